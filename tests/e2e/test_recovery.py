"""One run that loses its gateway, its core and its control, one after the other; `make chaos` has many more."""

from pathlib import Path

import pytest
from harm import Run, action, event

pytestmark = pytest.mark.e2e


def test_a_run_survives_its_gateway_its_core_and_its_control(tmp_path: Path) -> None:
    with Run(tmp_path / "run", "rl.max_tokens=160", "trainer.microstep_tokens=128") as run:
        run.wait_for_calls(4)
        run.kill("gateway-0")
        run.wait_for(event("backlog", counted=1))
        run.kill("cell-0")
        run.wait_for(event("rolled_back"))
        run.wait_for(action("publish"))
        run.kill("control")
        run.check_whole(steps=2)
        assert run.verdicts() == {"scored": 16}, "no execution is lost"
        assert not any("HTTP" in error for error in run.harness_errors()), "a dropped connection is all they see"
        run.check_harnesses()
        deaths = [name for name in ("gateway-0", "cell-0") if run.process(name)["incarnation"] == 1]
        assert deaths == ["gateway-0", "cell-0"]
