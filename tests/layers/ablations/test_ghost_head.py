import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mmattn.layers import GhostHeadAttention
from mmattn.ops.global_self_attention import fit_table


def layer(**settings):
    torch.manual_seed(0)
    built = GhostHeadAttention(**{'dim': 12, 'num_heads': 2, 'stride': 16, 'img_size': 80, **settings}).double()
    for parameter in built.parameters():
        nn.init.normal_(parameter)
    return built


@pytest.mark.parametrize('lam, gamma', [(0, 0), (1, 0), (0, 0.5), (2, 0.5)])
@pytest.mark.parametrize('multiple, height, width', [(3, 4, 3), (1, 5, 4)])
def test_computes_equation_8(lam, gamma, multiple, height, width):
    """Every pair of pixels by itself, on maps of at most the size of the tables."""
    attention = layer(lam=lam, gamma=gamma, multiple=multiple)
    x = torch.randn(2, height, width, 12, dtype=torch.float64)
    q, k, v = attention.pre_proj(x).flatten(1, 2).split(12, -1)
    expected = torch.zeros_like(v)
    for c in range(2 * multiple):
        head, channels = slice(c % 2 * 6, c % 2 * 6 + 6), slice(c * 6 // multiple, (c + 1) * 6 // multiple)
        for b in range(2):
            for i in range(height * width):
                weights = F.softmax(k[b, :, head] @ q[b, i, head] / 6**0.5, 0)
                for j, weight in enumerate(weights):
                    # 4 is the centre of the tables, which are 9 x 9.
                    row, column = j // width - i // width + 4, j % width - i % width + 4
                    if lam:
                        weight = attention.ghost_mul[c, row, column] ** lam * weight
                    if gamma:
                        weight = weight + gamma * attention.ghost_add[c, row, column]
                    expected[b, i, channels] += weight * v[b, j, channels]
    torch.testing.assert_close(attention(x), attention.post_proj(expected).view_as(x))


def test_larger_maps():
    """The tables are stretched along both axes. The sum over the map of S stays the same, and O keeps its values."""
    attention = layer()
    with torch.no_grad():
        attention.ghost_mul.fill_(2.0)
    mul, add = (
        attention._by_pair(table, 7, 10, kept)
        for table, kept in ((attention.ghost_mul, False), (attention.ghost_add, True))
    )
    torch.testing.assert_close(mul, torch.full_like(mul, 2.0))
    # Seen from the first pixel, the offsets are 0 to 6 and 0 to 9.
    stretched = fit_table(attention.ghost_add.permute(1, 0, 2).flatten(1), 7, 'stretch')
    stretched = fit_table(stretched.unflatten(1, (4, 9)).permute(2, 1, 0).flatten(1), 10, 'stretch')
    stretched = stretched.unflatten(1, (4, 13)).permute(1, 2, 0)
    torch.testing.assert_close(add[:, 0].unflatten(1, (7, 10)), stretched[:, 6:, 9:])


def test_starts_as_plain_attention():
    """O is 1 and S nearly 0."""
    attention = GhostHeadAttention(12, 2, img_size=80)
    q, k = torch.randn(2, 1, 25, 12)
    weights = attention.weights(q, k, 5, 5)
    plain = (q.view(25, 2, 6).transpose(0, 1) @ k.view(25, 2, 6).permute(1, 2, 0) / 6**0.5).softmax(-1)
    torch.testing.assert_close(weights[0], plain.repeat(2, 1, 1), atol=0.1, rtol=0)
