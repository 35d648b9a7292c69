"""Events, actions, plans and states <-> plain JSON values. Exact: what is read back equals what was written.

Dataclasses become objects, maps lists of pairs, an ExecutionId its text form; events and actions carry their `type`.
Reading follows the annotations of the fields, so a new field needs no line here.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from immutables import Map

from qwengyre.errors import JournalError, nearest
from qwengyre.schedule.actions import ACTIONS, Action
from qwengyre.schedule.cells import Cell, Cells
from qwengyre.schedule.events import EVENTS, Event
from qwengyre.types import ExecutionId

T = TypeVar("T")
Read = Callable[[Any], Any]


def encode(value: Any) -> Any:
    """A plain JSON value. Raises JournalError for a type that has none."""
    if isinstance(value, ExecutionId | StrEnum):
        return str(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, tuple):
        return [encode(item) for item in cast("tuple[Any, ...]", value)]
    if isinstance(value, Map):
        items = cast("Map[Any, Any]", value).items()
        return [[encode(key), encode(item)] for key, item in sorted(items, key=lambda pair: pair[0])]
    if is_dataclass(value):
        named = {"type": value.type} if isinstance(value, Action | Event) else {}
        return named | {field.name: encode(getattr(value, field.name)) for field in fields(value)}
    raise JournalError(f"cannot write a {type(value).__name__} ({value!r}): plain ints, floats and text are written")


def decode(kind: type[T], value: Any) -> T:
    """Inverse of `encode`, for a dataclass. Raises JournalError naming what does not fit."""
    try:
        return _reader(kind)(value)
    except (KeyError, TypeError, ValueError) as error:
        raise JournalError(f"no {kind.__name__} can be read from {_short(value)}: {error}") from None


def decode_event(value: Any) -> Event:
    """An event from its plain form. Raises JournalError, also for an unknown type."""
    return decode(_named(EVENTS, value, "event"), value)


def decode_action(value: Any) -> Action:
    """An action from its plain form. Raises JournalError, also for an unknown type."""
    return decode(_named(ACTIONS, value, "action"), value)


def _named(known: Mapping[str, type[T]], value: Any, what: str) -> type[T]:
    name = cast("dict[str, Any]", value).get("type") if isinstance(value, dict) else None
    if not isinstance(name, str) or name not in known:
        raise JournalError(f"unknown {what} {_short(value)}: {nearest(str(name), list(known))}")
    return known[name]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:120]}..."


@cache
def _reader(hint: Any) -> Read:
    """How to read a value with this annotation."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is UnionType and NoneType in args:
        (inner,) = (_reader(arg) for arg in args if arg is not NoneType)
        return lambda value: None if value is None else inner(value)
    if origin is tuple:
        return _tuple_reader(args)
    if origin is Map:
        key, item = _reader(args[0]), _reader(args[1])
        return lambda value: Map([(key(k), item(v)) for k, v in value])
    if hint is ExecutionId:
        return lambda value: ExecutionId.parse(_exactly(str, value))
    if hint is Cells:
        cells = _reader(tuple[Cell, ...])
        return lambda value: Cells(cells(value))
    if hint is float:
        return _number
    if hint in (bool, int, str):
        return lambda value: _exactly(hint, value)
    if hint is Action:
        return decode_action
    return _dataclass_reader(hint) if is_dataclass(hint) else hint


def _tuple_reader(args: tuple[Any, ...]) -> Read:
    if args[-1] is Ellipsis:
        read = _reader(args[0])
        return lambda value: tuple(read(item) for item in value)
    reads = [_reader(arg) for arg in args]
    return lambda value: tuple(read(item) for read, item in zip(reads, value, strict=True))


def _dataclass_reader(kind: Any) -> Read:
    hints = get_type_hints(kind)
    reads = {field.name: _reader(hints[field.name]) for field in fields(kind)}
    named = {"type"} if issubclass(kind, Action | Event) else set[str]()

    def read(value: Any) -> Any:
        if set(value) != set(reads) | named:
            raise ValueError(f"the fields are {sorted(reads)}")
        return kind(**{name: read(value[name]) for name, read in reads.items()})

    return read


def _exactly(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{_short(value)} is not of type {kind.__name__}")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError(f"{value} is no number")
    return float(value)
