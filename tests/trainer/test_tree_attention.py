import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import flex_attention
from trainer_cases import random_tree

from qwengyre.trainer import attention
from qwengyre.trainer.attention import Ancestry, Tree, tree_attention
from qwengyre.trajectory import runs


def ancestry(tree) -> Ancestry:
    return Ancestry(runs.ends(tree), runs.before(tree))


def seen(tree) -> torch.Tensor:
    """[T, T], from the paths."""
    mask = torch.zeros(tree.tokens, tree.tokens, dtype=torch.bool)
    for path in runs.paths(tree):
        for at, q in enumerate(path):
            mask[q, path[: at + 1]] = True
    return mask


def qkv(size: int, heads: int, key_heads: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(1, n, size, 8, requires_grad=True) for n in (heads, key_heads, key_heads)]


@pytest.mark.parametrize("cost", [0, 4096, 10**9])
def test_blocks_are_the_row_in_order_and_show_what_paths_show(rng, monkeypatch, cost: int):
    monkeypatch.setattr(attention, "CALL_COST", cost)
    monkeypatch.setattr(attention, "LONGEST_SEGMENT", 7)
    for num in (1, 3, 8):
        tree = random_tree(rng, num, 20)
        found = ancestry(tree)
        starts = np.cumsum([0, *found.sizes])
        mask = torch.zeros(tree.tokens, tree.tokens, dtype=torch.bool)
        at = 0
        for block in found.blocks:
            assert block.first == at
            keys = [k for s in (*block.ancestors, *range(block.first, block.end)) for k in range(*starts[s : s + 2])]
            mask[starts[block.first] : starts[block.end], keys] = block.mask
            at = block.end
        assert at == len(found.sizes)
        assert torch.equal(mask, seen(tree))
        roots = sum(parent < 0 for parent in tree.parents)
        assert len(found.blocks) == {0: len(found.sizes), 10**9: roots}.get(cost, len(found.blocks))


@pytest.mark.parametrize(("heads", "key_heads"), [(4, 4), (4, 2), (6, 1)])
def test_attention_and_its_gradient_are_those_of_one_masked_product(rng, monkeypatch, heads: int, key_heads: int):
    monkeypatch.setattr(attention, "CALL_COST", 50)
    tree = random_tree(rng, 7, 20)
    query, key, value = qkv(tree.tokens, heads, key_heads)
    aim = torch.randn(1, tree.tokens, heads, 8)
    out, _ = tree_attention(torch.nn.Module(), query, key, value, None, tree=Tree(ancestry(tree)), scaling=0.3)
    made = torch.autograd.grad((out * aim).sum(), (query, key, value))
    groups = heads // key_heads
    whole = F.scaled_dot_product_attention(
        query, key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1), seen(tree), scale=0.3
    ).transpose(1, 2)
    expected = torch.autograd.grad((whole * aim).sum(), (query, key, value))
    torch.testing.assert_close(out, whole)
    for own, other in zip(made, expected, strict=True):
        torch.testing.assert_close(own, other)


def test_flex_attention_under_the_row_mask_is_the_same(rng, monkeypatch):
    monkeypatch.setattr(attention, "_flex", lambda: flex_attention)  # not compiled: that is for CUDA
    tree = random_tree(rng, 6, 20)
    query, key, value = (x.detach() for x in qkv(tree.tokens, 4, 2))
    whole = Tree(ancestry(tree))
    with pytest.warns(UserWarning, match="torch.compile"):
        flex = attention._by_flex(query, key, value, whole, None)
    torch.testing.assert_close(flex, attention._by_blocks(query, key, value, whole, None))


def test_attention_that_asks_for_more_is_refused(rng):
    tree = random_tree(rng, 3, 5)
    query, key, value = qkv(tree.tokens, 2, 2)
    with pytest.raises(NotImplementedError, match="softcap"):
        tree_attention(torch.nn.Module(), query, key, value, None, tree=Tree(ancestry(tree)), softcap=30.0)
