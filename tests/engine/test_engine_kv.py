"""Rows, slabs and the prefix cache."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qwengyre.engine.kv import LEAST_SHARED, KVShape, PrefixCache, Resting, Slab, common_prefix, row_class

SHAPE = KVShape(layers=2, heads=1, groups=1, width=4, dtype=torch.float32, device=torch.device("cpu"))


@given(st.integers(1, 5000), st.integers(64, 5000))
def test_a_class_holds_its_tokens_without_wasting_half(tokens, window):
    size = row_class(min(tokens, window), window)
    assert min(tokens, window) <= size <= window
    assert size <= max(64, tokens * 3 // 2)


@given(st.lists(st.integers(0, 2), max_size=8), st.lists(st.integers(0, 2), max_size=8))
def test_common_prefix(a, b):
    n = common_prefix(np.array(a, np.int32), np.array(b, np.int32))
    assert a[:n] == b[:n]
    assert n == min(len(a), len(b)) or a[n] != b[n]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(0, 8)), max_size=40))
def test_rows_keep_their_contents_and_stay_gapless(operations):
    slab = Slab(SHAPE, 8)
    held: dict[str, torch.Tensor] = {}
    rows: dict[str, int] = {}
    for step, (add, pick, tokens) in enumerate(operations):
        if add or not held:
            name = f"o{step}"
            held[name], rows[name] = torch.randn(2, 2, tokens, 1, 4), len(slab.owners)
            slab.add(name, held[name])
        else:
            name = sorted(held)[pick % len(held)]
            last = slab.owners[-1]
            mover = slab.remove(rows[name], held[last].shape[2])
            if mover is not None:
                rows[mover] = rows[name]
            del held[name], rows[name]
        assert sorted(rows.values()) == list(range(len(held)))
        for name, contents in held.items():
            assert torch.equal(slab.view(rows[name], contents.shape[2]), contents)


COMMON = list(range(LEAST_SHARED))


def ids(*values):
    return np.array([*COMMON, *values], np.int32)


def strip(n):
    return torch.zeros(2, 2, LEAST_SHARED + n, 1, 4)


def test_a_longer_strip_replaces_its_prefixes():
    cache = PrefixCache()
    cache.put(Resting(ids(1, 2), strip(2)))
    cache.put(Resting(ids(1, 3), strip(2)))
    cache.put(Resting(ids(1, 2, 5), strip(3)))
    assert (len(cache), cache.tokens) == (2, 2 * LEAST_SHARED + 5)
    assert cache.holder(ids(1, 2)) is not None
    assert cache.holder(ids(1, 2, 6)) is None


def test_find_returns_the_longest_and_eviction_takes_the_least_recent():
    cache = PrefixCache()
    first, second = Resting(ids(1, 2, 3), strip(3)), Resting(ids(1, 2, 4, 5), strip(4))
    cache.put(first)
    cache.put(second)
    assert cache.find(ids(9)[::-1].copy()) == (0, None)
    length, found = cache.find(ids(1, 2, 3, 9))
    assert length == LEAST_SHARED + 3
    assert found is first
    assert cache.evict()
    length, found = cache.find(ids(1, 2, 4, 5))
    assert length == LEAST_SHARED + 2
    assert found is first
    assert cache.evict()
    assert not cache.evict()
    assert cache.tokens == 0


def test_fewer_ids_than_the_least_are_not_looked_for():
    cache = PrefixCache()
    cache.put(Resting(np.array(COMMON, np.int32), strip(0)))
    assert cache.find(np.array(COMMON[:-1], np.int32)) == (0, None)
    assert cache.find(np.array([*COMMON[:-1], 99, 99], np.int32)) == (0, None)
    assert cache.find(ids(4))[0] == LEAST_SHARED


@pytest.mark.parametrize("method", ["clear", "evict"])
def test_nothing_is_left(method):
    cache = PrefixCache()
    cache.put(Resting(ids(1, 2), strip(2)))
    getattr(cache, method)()
    assert (len(cache), cache.tokens, cache._alike) == (0, 0, {})
