"""How fast executions progress that share a cell: R(n), in unloaded seconds a second.

    R(n) = 1 / (e + (1-e) (1 + a (b-1)^+)),  b = n d / (e + d),  d = (1-e) (1 + a (b-1)^+)

e = share of the unloaded time spent in tools, a = slope of decode latency per concurrent decode, b = the mean number
of executions that decode at a moment, self-consistent. R(1) = 1.
"""

from qwengyre.sim.workload import Rate

_ROUNDS = 60


class Rates:
    """R(n) by n, each solved once."""

    def __init__(self, rate: Rate) -> None:
        self._env, self._alpha = rate.env_frac, rate.alpha
        self._known = [1.0, 1.0]

    def __getitem__(self, executions: int) -> float:
        """R(n); R(0) = 1."""
        while len(self._known) <= executions:
            self._known.append(self._solve(len(self._known)))
        return self._known[executions]

    def throughput(self, slots: int) -> float:
        """max n R(n) over 1..slots: the most unloaded seconds that a cell can make in a second."""
        return max(n * self[n] for n in range(1, slots + 1))

    def _solve(self, executions: int) -> float:
        """Bisection on b: what b implies for the decode time falls below what it assumed at exactly one point."""
        low, high = 0.0, float(executions)
        for _ in range(_ROUNDS):
            decoding = (low + high) / 2
            decode = self._decode(decoding)
            if executions * decode > decoding * (self._env + decode):
                low = decoding
            else:
                high = decoding
        return 1.0 / (self._env + self._decode((low + high) / 2))

    def _decode(self, decoding: float) -> float:
        return (1 - self._env) * (1 + self._alpha * max(0.0, decoding - 1))
