import numpy as np
import torch

from qwengyre.trainer.batch import batches


def test_every_target_is_predicted_by_the_position_before_it():
    lengths = (3, 9, 8)
    ids = torch.arange(20)
    wanted = np.zeros(20, np.bool_)
    wanted[[2, 4, 11, 13, 19]] = True
    found = {}
    for batch in batches(ids, lengths, wanted):
        flat = batch.ids_BL.flatten()
        for row, target in zip(batch.rows_N.tolist(), batch.targets_N.tolist(), strict=True):
            found[target] = int(flat[row])
            assert int(flat[row + 1]) == int(ids[target])
    assert found == {2: 1, 4: 3, 11: 10, 13: 12, 19: 18}


def test_unlike_lengths_do_not_share_a_batch_and_rows_without_targets_are_left_out():
    lengths = (100, 90, 50, 48, 10)
    ids = torch.zeros(sum(lengths), dtype=torch.int64)
    wanted = np.zeros(sum(lengths), np.bool_)
    wanted[[99, 150, 200, 287]] = True
    assert [tuple(b.ids_BL.shape) for b in batches(ids, lengths, wanted)] == [(2, 100), (2, 50)]
