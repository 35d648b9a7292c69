"""What is cheap to import stays cheap."""

import subprocess
import sys

import pytest

HEAVY = {"torch", "ray", "transformers", "starlette", "uvicorn"}


@pytest.mark.parametrize(
    "module",
    [
        "qwengyre",
        "qwengyre.cli",
        "qwengyre.config",
        "qwengyre.loop",
        "qwengyre.schedule.step",
        "qwengyre.trajectory.pack",
        "qwengyre.sim.world",
        "qwengyre.cluster.journal",
        "qwengyre.cluster.reaper",
    ],
)
def test_import_pulls_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(*({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_cell_without_a_model_imports_no_torch() -> None:
    modules = ("cluster.cell", "transfer.ray", "engine.emulated", "trainer.emulated")
    code = f"import sys, {', '.join(f'qwengyre.{name}' for name in modules)}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
