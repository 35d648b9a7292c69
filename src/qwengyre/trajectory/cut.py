"""Where an ordered list of sequences is cut into micro-steps: as few as hold them, of about equal cost.

A token costs a linear term (matrix products) and one that grows with its position (attention).
"""

from collections.abc import Sequence

ATTENTION = 1 / 2048
"""Cost of attending to one token, in that of one token's matrix products: 1 / (2 x width) by the operations of a
decoder layer. Width 1024 stands for all models: only the balance of micro-steps depends on it."""
_TOLERANCE = 0.01


def cost(first: int, end: int) -> float:
    """Of computing the tokens at positions [first, end) of a sequence, in tokens of a short sequence."""
    return (end - first) + ATTENTION * (end * end - first * first) / 2


def cut(lengths: Sequence[int], shared: Sequence[int], tokens: int) -> list[range]:
    """Neighbours that form a micro-step each, in order: the fewest parts, and for that number the least largest cost.

    `shared[k]` tokens of sequence k are those of sequence k - 1; the first of a part shares none. A part has at most
    `tokens` distinct tokens, unless it is one longer sequence.
    """
    if not lengths:
        return []
    best = _greedy(lengths, shared, tokens, float("inf"))
    low, high = max(cost(0, length) for length in lengths), sum(cost(0, length) for length in lengths)
    while high - low > _TOLERANCE * low:
        middle = (low + high) / 2
        found = _greedy(lengths, shared, tokens, middle)
        if len(found) > len(best):
            low = middle
        else:
            best, high = found, middle
    return best


def _greedy(lengths: Sequence[int], shared: Sequence[int], tokens: int, most: float) -> list[range]:
    """Each part takes the next sequence while it stays within `tokens` and costs at most `most`."""
    parts: list[range] = []
    size, spent = 0, 0.0
    for k, (length, common) in enumerate(zip(lengths, shared, strict=True)):
        if parts and size + length - common <= tokens and spent + cost(common, length) <= most:
            parts[-1] = range(parts[-1].start, k + 1)
            size, spent = size + length - common, spent + cost(common, length)
        else:
            parts.append(range(k, k + 1))
            size, spent = length, cost(0, length)
    return parts
