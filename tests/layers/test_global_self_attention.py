import itertools

import pytest
import torch
from torch import nn

from mmattn.layers import GlobalSelfAttention


def from_golden(data, **parts):
    """The module of golden/gsa.pt, in float64 and eval mode; parts can be left out."""
    c, bn = data['config'], data['bn']
    layer = GlobalSelfAttention(c['channels'], c['heads'], rel_pos_length=c['rel_pos_length'], project=False, **parts)
    layer = layer.double().eval()
    weights = {f'{name}.weight': data[f'w_{name}'][:, :, None, None] for name in ('query', 'key', 'value')}
    weights.update(rel_col=data['rel_col'], rel_row=data['rel_row'])
    weights.update(
        {
            'bn.weight': bn['weight'],
            'bn.bias': bn['bias'],
            'bn.running_mean': bn['mean'],
            'bn.running_var': bn['var'],
            'bn.num_batches_tracked': torch.tensor(0),
        }
    )
    layer.load_state_dict({name: weights[name] for name in layer.state_dict()})
    return layer


@pytest.mark.parametrize('memory_format', [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize('backend', ['reference', 'batched'])
def test_computes_the_equations(golden, memory_format, backend):
    """To 1e-9 in double precision: the whole module and the columns alone, by every backend, in every memory layout."""
    data = golden('gsa')
    x = data['input'].contiguous(memory_format=memory_format).permute(0, 2, 3, 1)
    whole, columns = from_golden(data), from_golden(data, content=False, row=False)
    whole.backend = columns.backend = backend
    torch.testing.assert_close(whole(x), data['output'].permute(0, 2, 3, 1), atol=1e-9, rtol=0)
    expected = data['column_attention_before_bn'].permute(0, 2, 3, 1)
    torch.testing.assert_close(columns(x), expected, atol=1e-9, rtol=0)


def loops(layer, x):
    """The module of any form, from its weights, one pixel and one neighbour at a time. Maps are not longer than L, or
    pixels farther apart are masked."""
    B, H, W, C = x.shape

    def project(conv):
        return torch.einsum('bhwc,dc->bhwd', x, conv.weight[:, :, 0, 0]).unflatten(-1, (layer.num_heads, -1))

    def along(value, table, dim):
        if table is None:
            return value
        L, out = len(table) // 2 + 1, torch.zeros_like(value)
        for y, u in itertools.product(range(H), range(W)):
            scores, values = [], []
            for i in range(x.shape[dim]):
                there = (i, u) if dim == 1 else (y, i)
                offset = i - (y, u)[dim - 1]
                if abs(offset) < L:
                    term = query[:, y, u] @ table[offset + L - 1]
                    if layer.content == 'axial':
                        term = term + (query[:, y, u] * key[:, there[0], there[1]]).sum(-1)
                    scores.append(term)
                    values.append(value[:, there[0], there[1]])
            weights = torch.stack(scores)
            weights = weights.softmax(0) if layer.axial_softmax else weights
            out[:, y, u] = sum(weight[..., None] * v for weight, v in zip(weights, values))
        return out

    query, value = project(layer.query), project(layer.value)
    key = project(layer.key) if layer.key is not None else None
    out = along(value, layer.rel_col, 1)
    if layer.bn is not None:
        out = layer.bn(out.flatten(-2).permute(0, 3, 1, 2)).permute(0, 2, 3, 1).view_as(out)
    out = along(out, layer.rel_row, 2)
    if layer.content is True:
        queries = query.softmax(-1) if layer.softmax_queries else query
        content = torch.zeros_like(value)
        weights = key.flatten(1, 2).softmax(1)
        for p in range(H * W):
            for y, u in itertools.product(range(H), range(W)):
                content[:, y, u] += (queries[:, y, u] * weights[:, p]).sum(-1, True) * value.flatten(1, 2)[:, p]
        out = content + out if layer.rel_col is not None or layer.rel_row is not None else content
    out = out.flatten(-2)
    if layer.proj is not None:
        out = layer.norm(out.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        out = torch.einsum('bhwc,dc->bhwd', out, layer.proj.weight[:, :, 0, 0]) + layer.proj.bias
    return out


@pytest.mark.parametrize('axial_softmax', [False, True])
@pytest.mark.parametrize('neighbourhood', [None, 5])
@pytest.mark.parametrize('content', [True, False, 'axial'])
@pytest.mark.parametrize('column, row', [(True, True), (True, False), (False, True)])
def test_forms(column, row, content, neighbourhood, axial_softmax):
    """Every combination of parts, of table 4 and others, in train and eval mode. No weight is there that has no part,
    and every weight has a gradient."""
    layer = GlobalSelfAttention(
        8,
        2,
        stride=32,
        neighbourhood=neighbourhood,
        content=content,
        column=column,
        row=row,
        axial_softmax=axial_softmax,
        softmax_queries=content is True and neighbourhood is None,
    ).double()
    x = torch.randn(2, 4, 5, 8, dtype=torch.float64)
    for train in (True, False):
        torch.testing.assert_close(layer.train(train)(x), loops(layer, x))
    layer(x).square().sum().backward()
    assert all(p.grad is not None for p in layer.parameters())
    table = layer.rel_col if column else layer.rel_row
    assert len(table) == (neighbourhood or 2 * 7 - 1)
    assert ('key.weight' in layer.state_dict(), layer.bn is None) == (bool(content), not (column and row))
    assert layer.settings['content'] == content and layer.settings['axial_softmax'] == axial_softmax


def test_content_alone():
    """With and without the softmax of queries."""
    for softmax_queries in (False, True):
        settings = dict(column=False, row=False, softmax_queries=softmax_queries, project=False)
        layer, x = GlobalSelfAttention(8, 2, **settings).double(), torch.randn(2, 4, 5, 8, dtype=torch.float64)
        torch.testing.assert_close(layer(x), loops(layer, x))


def test_beyond_its_tables():
    """On a map longer than L the two rules differ; on a shorter one they are the same."""
    stretch, mask = (
        GlobalSelfAttention(8, 2, rel_pos_length=4, beyond=beyond).eval() for beyond in ('stretch', 'mask')
    )
    mask.load_state_dict(stretch.state_dict())
    small, long = torch.randn(1, 4, 3, 8), torch.randn(1, 3, 9, 8)
    torch.testing.assert_close(stretch(small), mask(small))
    assert not torch.allclose(stretch(long), mask(long))


def test_norm_cfg_reaches_the_norm():
    assert isinstance(GlobalSelfAttention(8, norm_cfg=dict(type='SyncBN')).bn, nn.SyncBatchNorm)
