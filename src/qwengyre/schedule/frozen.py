"""Frozen dataclasses that are replaced several times an event."""

from typing import Any, Self


class Frozen:
    """A frozen dataclass with a quick `replace`."""

    def but(self, **changes: Any) -> Self:
        """`dataclasses.replace` without its checks."""
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__, **changes)
        return new
