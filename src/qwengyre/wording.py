"""Words for what is wrong with a configuration: what was expected, and what other frameworks' names are called here."""

from collections.abc import Mapping
from typing import Any

FOREIGN: Mapping[str, str] = {
    "n": "rl.group_size",
    "num_generations": "rl.group_size",
    "n_samples_per_prompt": "rl.group_size",
    "rollouts_per_example": "rl.group_size",
    "train_batch_size": "rl.groups_per_step",
    "rollout_batch_size": "rl.groups_per_step",
    "max_off_policy_steps": "rl.phi (and rl.mu: staleness is at most mu + phi - 1)",
    "max_staleness": "rl.phi (and rl.mu: staleness is at most mu + phi - 1)",
    "max_response_length": "rl.max_tokens",
    "max_completion_length": "rl.max_tokens",
    "max_new_tokens": "rl.max_tokens",
    "lr": "trainer.learning_rate",
    "total_epochs": "run.steps",
    "total_training_steps": "run.steps",
    "max_steps": "run.steps",
    "max_grad_norm": "trainer.clip_norm",
    "save_freq": "checkpoint.every",
    "test_freq": "eval.every",
    "eval_steps": "eval.every",
    "model_name_or_path": "model.name",
    "num_gpus": "cells.count",
}
"""Last part of a key elsewhere -> the key here."""

PLAIN = {
    "tuple_type": 'expected a list, as ["a", "b"]',
    "dict_type": "expected a table, as { a = 1 }",
    "model_type": "expected a section, as [{key}] or {key}.name=VALUE",
    "model_attributes_type": "expected a section, as [{key}] or {key}.name=VALUE",
    "bool_parsing": "expected true or false",
    "bool_type": "expected true or false",
    "int_parsing": "expected a whole number",
    "int_type": "expected a whole number",
    "float_parsing": "expected a number",
    "float_type": "expected a number",
    "string_type": "expected a text, in quotes",
}
"""Kinds of error of pydantic whose own words are about Python."""


def expected(error: Mapping[str, Any]) -> str:
    """What a value should have been; `error` as pydantic tells it."""
    key = ".".join(map(str, error["loc"]))
    plain = PLAIN.get(error["type"])
    said = str(error["msg"]).removeprefix("Value error, ")
    return plain.replace("{key}", key) if plain else f"{said[0].lower()}{said[1:]}"


def foreign(key: str, given: Mapping[str, Any]) -> str:
    """`here it is 'x'` for a key of another framework; "" for any other. `given`: the tree in which it stood, since
    only its outermost part may be named as unknown."""
    path = key.split(".")
    value: Any = given
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    while isinstance(value, Mapping) and len(value) == 1:
        part, value = next(iter(value.items()))
        path.append(str(part))
    ours = FOREIGN.get(path[-1])
    return f"here it is '{ours}'" if ours else ""
