"""How long things take in a simulated run, and how often they fail. Seconds of virtual time throughout."""

from dataclasses import dataclass

import numpy as np

from qwengyre.types import Ending, Verdict


@dataclass(frozen=True)
class Workload:
    """Durations and chances. An execution works `execution_s` (median; lognormal with `spread`) while it has a cell."""

    execution_s: float = 3600.0
    spread: float = 0.8
    timeout_s: float = 14400.0
    settle_s: float = 60.0
    weigh_s: float = 5.0
    micro_steps: float = 6.0
    """Mean of a group (Poisson, at least 1)."""
    micro_step_s: float = 60.0
    optimizer_s: float = 5.0
    publish_s: float = 20.0
    to_training_s: float = 8.52
    to_rollout_s: float = 3.46
    dropped: float = 0.0
    """Chance that an execution ends dropped."""
    weightless: float = 0.0
    """Chance that a group has no micro-steps: all its scores are equal."""
    failed_moves: float = 0.0
    """Chance that a move ends in the role in which it began."""
    cell_life_s: float = 0.0
    """Mean time until a cell is lost (exponential); 0: never."""
    restart_s: float = 120.0

    def execution(self, rng: np.random.Generator) -> "Work":
        """Draw an execution."""
        work = float(self.execution_s * np.exp(self.spread * rng.standard_normal()))
        dropped = bool(rng.random() < self.dropped)
        late = work >= self.timeout_s
        ending = Ending.OVERALL_TIMEOUT if dropped else Ending.HARNESS_TIMEOUT if late else Ending.FINISHED
        verdict = Verdict.DROPPED if dropped else Verdict.SCORED
        return Work(min(work, self.timeout_s), ending, verdict, float(rng.random()))

    def group(self, rng: np.random.Generator) -> int:
        """Draw the number of micro-steps of a group."""
        count = max(1, int(rng.poisson(self.micro_steps)))
        return 0 if rng.random() < self.weightless else count


@dataclass
class Work:
    """An execution: seconds of work left, and how it will end."""

    left_s: float
    ending: Ending
    verdict: Verdict
    score: float
    home: int = -1
    resumed_at: float | None = None
    """None while it is suspended or has no cell."""
    pause: int = 0
    """Grows with every suspension: an end that was planned before one is void."""
