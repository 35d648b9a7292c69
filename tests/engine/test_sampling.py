"""Inverse-CDF sampling and the recorded log-probabilities."""

import torch

from qwengyre.engine.sampling import sample


def test_frequencies_follow_the_tempered_distribution():
    torch.manual_seed(0)
    logits, draws = torch.randn(37) * 2, 40_000
    uniforms = (torch.arange(draws) + 0.5) / draws
    ids, logprobs = sample(logits.repeat(draws, 1), torch.full((draws,), 0.7), uniforms)
    expected = (logits / 0.7).log_softmax(-1)
    torch.testing.assert_close(torch.bincount(ids, minlength=37) / draws, expected.exp(), atol=1e-4, rtol=0)
    torch.testing.assert_close(logprobs, expected[ids])


def test_the_ends_of_the_unit_interval_give_possible_ids():
    logits = torch.full((2, 1000), float("-inf"))
    logits[:, 400:600] = 0.0
    ids, logprobs = sample(logits, torch.ones(2), torch.tensor([0.0, 1.0 - 2**-24]))
    assert ids.tolist() == [400, 599]
    assert torch.isfinite(logprobs).all()


def test_greedy_and_sampled_rows_mix():
    torch.manual_seed(0)
    logits = torch.randn(4, 50)
    ids, logprobs = sample(logits.clone(), torch.tensor([0.0, 1.0, 0.0, 2.0]), torch.full((4,), 0.3))
    assert ids[[0, 2]].tolist() == logits[[0, 2]].argmax(-1).tolist()
    torch.testing.assert_close(logprobs[0], logits[0].log_softmax(-1)[ids[0]])
    torch.testing.assert_close(logprobs[3], (logits[3] / 2).log_softmax(-1)[ids[3]])
    alone, _ = sample(logits[3:].clone(), torch.tensor([2.0]), torch.tensor([0.3]))
    assert alone[0] == ids[3]
