"""Everything that can be found wrong before a run starts, in the order of what it costs to find."""

import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from qwengyre.config import Config
from qwengyre.errors import ConfigError, MachineError


@dataclass(frozen=True)
class Prepared:
    """What a run needs to know of its model and its machine."""

    model: Path
    """A local HF folder."""
    window: int
    """min(model, trainer.max_sequence): an untrainable trajectory cannot exist."""
    eos_ids: tuple[int, ...]
    enforcement: str
    """Which sandbox limits hold here, and how."""
    num_tasks: int


def prepare(config: Config, scratch: Path, progress: Callable[[str], None]) -> Prepared:
    """Check and fetch. Raises ConfigError or MachineError (exit 2). `scratch`: a folder for generated tasks."""
    from qwengyre.execution import harnesses, sandboxes, tasksets
    from qwengyre.model import load

    if config.cells.count + config.cells.standalone > 1:
        raise ConfigError("cells.count and cells.standalone: this version runs one elastic cell; set 1 and 0")
    _check_port(config.gateway.port)
    harnesses.build(config.harness.kind, config.harness.model_dump())
    enforcement = sandboxes.build(config.sandbox.kind, run_id="check", scratch=scratch).check()
    tasks = tasksets.build(config.tasks, config.harness, config.sandbox, seed=config.run.seed, folder=scratch)
    model = load.resolve(config.model.name, progress=progress)
    load.tokenizer(model, config.model.chat_template)
    window = min(load.window(model), config.trainer.max_sequence)
    if config.rl.max_tokens >= window:
        raise ConfigError(
            f"rl.max_tokens={config.rl.max_tokens} but the window is {window} tokens "
            "(the least of the model's and trainer.max_sequence): lower the first or raise the second"
        )
    return Prepared(model, window, load.eos_ids(model), str(enforcement), len(tasks))


def _check_port(port: int) -> None:
    """A fixed port must be free now; the gateway says the same if it is taken meanwhile."""
    if port == 0:
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise MachineError(
                f"gateway.port={port} cannot be used ({error.strerror}): give another, or 0 for a free one"
            ) from None
