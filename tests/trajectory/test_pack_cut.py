from itertools import combinations

import pytest

from qwengyre.trajectory.cut import cost, cut


def costs(parts: list[range], lengths: list[int], shared: list[int]) -> list[float]:
    return [sum(cost(shared[k] if k > part.start else 0, lengths[k]) for k in part) for part in parts]


def tokens(part: range, lengths: list[int], shared: list[int]) -> int:
    return sum(lengths[k] - (shared[k] if k > part.start else 0) for k in part)


def test_as_few_parts_as_fit_and_the_costs_of_those_are_even():
    lengths = [10] * 9
    assert len(cut(lengths, [0] * 9, 49)) == 3
    assert len(cut(lengths, [0] * 9, 50)) == 2
    assert sorted(len(part) for part in cut(lengths, [0] * 9, 80)) == [4, 5], "not 8 and 1"


@pytest.mark.parametrize("size", [60, 100, 175])
def test_no_cut_of_as_many_parts_has_a_smaller_largest_cost(size: int):
    lengths, shared = [50, 40, 45, 60, 30, 30, 20, 44], [0, 30, 10, 0, 20, 29, 0, 15]
    parts = cut(lengths, shared, size)
    assert [k for part in parts for k in part] == list(range(8))
    assert all(tokens(part, lengths, shared) <= size or len(part) == 1 for part in parts)
    best = min(
        max(costs(found, lengths, shared))
        for n in range(8)
        for edges in combinations(range(1, 8), n)
        if len(found := [range(a, b) for a, b in zip((0, *edges), (*edges, 8), strict=True)]) == len(parts)
        and all(tokens(part, lengths, shared) <= size or len(part) == 1 for part in found)
    )
    assert max(costs(parts, lengths, shared)) <= best * 1.02


def test_a_long_sequence_is_alone_and_costs_more_than_its_tokens():
    assert cut([300, 20, 20], [0, 0, 0], 64) == [range(0, 1), range(1, 3)]
    assert cost(0, 4096) > 2 * cost(0, 2048)
    assert cost(0, 4096) == pytest.approx(cost(0, 1000) + cost(1000, 4096))
    assert cut([], [], 10) == []
