import numpy as np

from qwengyre.trajectory.prefix import depth_first, keys_of


def keys(*sequences: str) -> list[np.ndarray]:
    return [np.frombuffer(s.encode(), np.uint8).astype(np.int64) for s in sequences]


def test_neighbours_share_the_most_and_the_given_order_is_kept_otherwise():
    given = ["abXYZ", "Q", "abPQRS", "a", "abXYW"]
    order, shared = depth_first(keys(*given))
    assert [given[k] for k in order] == ["abXYZ", "abXYW", "abPQRS", "a", "Q"]
    assert shared == [0, 4, 2, 1, 0]


def test_equal_sequences_and_prefixes_add_no_token():
    given = ["ab", "abcd", "abcd", "abc"]
    order, shared = depth_first(keys(*given))
    added = [len(given[k]) - common for k, common in zip(order, shared, strict=True)]
    assert added == [4, 0, 0, 0]
    assert depth_first([]) == ([], [])
    assert depth_first(keys("a")) == ([0], [0])


def test_context_is_shared_by_id_and_a_sampled_token_by_its_row_alone():
    ids, rows = np.array([7, 8, 9], np.int32), np.array([-1, 0, -1], np.int32)
    one, same, other = keys_of(ids, rows, 0), keys_of(ids, rows, 0), keys_of(ids, rows, 5)
    assert one.tolist() == same.tolist()
    assert (one == other).tolist() == [True, False, True]
    assert keys_of(ids, rows, 2)[1] == keys_of(ids, rows + 2, 0)[1]
    assert min(one) >= 0
