"""Move the keys and values of a sequence to its new engine, or compute them again there?

    cost of moving     latency_s + tokens * bytes a token / bandwidth
    cost of computing  tokens / prefill rate

Rates are measured where known. An unknown bandwidth is taken as a slow link's; with an unknown prefill rate moving is
tried, which measures the other one.
"""

from dataclasses import dataclass

ASSUMED_BANDWIDTH = 250e6
"""Bytes a second, until one is measured: copies out of, through and into memory on one modest machine."""
LATENCY_S = 0.005
"""Messages of one hand-over."""


@dataclass(frozen=True)
class Rates:
    """As measured at the destination: `bandwidth` in bytes a second from end to end, `prefill` in tokens a second."""

    bandwidth: float | None = None
    prefill: float | None = None
    latency_s: float = LATENCY_S


def worth_moving(tokens: int, token_bytes: int, rates: Rates) -> bool:
    """Whether moving `tokens` tokens of `token_bytes` bytes each is cheaper than computing them again."""
    if rates.prefill is None:
        return True
    moving = rates.latency_s + tokens * token_bytes / (rates.bandwidth or ASSUMED_BANDWIDTH)
    return moving < tokens / rates.prefill
