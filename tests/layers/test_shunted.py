import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given
from hypothesis import strategies as st

from mmattn.layers import EnhancedAttention, SelfAttention, ShuntedAttention, TokenConv2d, TokenMerging
from mmattn.layers.shunted import AGGREGATIONS
from tests.ops.measuring import TensorSizes

sizes = st.tuples(st.integers(1, 2), st.integers(1, 11), st.integers(1, 11))


def softmax_attention(q, k, v):
    """Equation 2 for one head; q: (B, N, d), k and v: (B, n, d)."""
    return (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).softmax(-1) @ v


def tokens(conv, x):
    """A convolution over (B, H, W, C), as a (B, C, H, W) convolution."""
    return F.conv2d(
        x.permute(0, 3, 1, 2), conv.weight, conv.bias, conv.stride, conv.padding, groups=conv.groups
    ).permute(0, 2, 3, 1)


def by_hand(layer, x, rates, aggregation='shunted'):
    """Equations 1 and 2, head by head, on a map padded by F.pad. A group of heads has its own rate."""
    B, H, W, C = x.shape
    d = C // layer.num_heads
    in_group = layer.num_heads // len(rates)
    heads = []
    for i in range(layer.num_heads):
        group, place = divmod(i, in_group)
        r = rates[group]
        sr, norm, kv, local = (getattr(layer, f'{name}{group + 1}') for name in ('sr', 'norm', 'kv', 'local_conv'))
        padded = F.pad(x.permute(0, 3, 1, 2), (0, -W % r, 0, -H % r), mode='replicate')
        if aggregation == 'linear':
            merged = F.linear(F.avg_pool2d(padded, r).permute(0, 2, 3, 1), sr.weight, sr.bias)
        else:
            merged = F.conv2d(padded, sr.weight, sr.bias, r).permute(0, 2, 3, 1)
        key, value = kv(F.gelu(norm(merged))).chunk(2, -1)
        if aggregation != 'convolution':
            value = value + tokens(local, value)
        mine = slice(place * d, (place + 1) * d)
        q = layer.q(x)[..., i * d : (i + 1) * d]
        heads.append(softmax_attention(*(t.reshape(B, -1, d) for t in (q, key[..., mine], value[..., mine]))))
    return layer.proj(torch.cat(heads, -1)).reshape(x.shape)


@given(size=sizes, r=st.sampled_from([2, 4, 8, [3], [2, 1], [5, 4, 2, 1]]), aggregation=st.sampled_from(AGGREGATIONS))
@example(size=(2, 9, 10), r=[5, 4, 2, 1], aggregation='shunted')
@example(size=(1, 10, 7), r=8, aggregation='convolution')
@example(size=(2, 5, 6), r=[3], aggregation='linear')
def test_equals_equations_1_and_2(size, r, aggregation):
    """Fused attention equals the explicit softmax, forward and backward, in double precision at any size, in every form
    of table 8 and with any number of groups."""
    layer = ShuntedAttention(8, 4, r, aggregation=aggregation).double()
    x = torch.randn(*size, 8, dtype=torch.float64, requires_grad=True)
    wanted = (x, *layer.parameters())
    out, expected = layer(x), by_hand(layer, x, r if isinstance(r, list) else [r, r // 2], aggregation)
    torch.testing.assert_close(out, expected)
    upstream = torch.randn_like(out)
    for a, b in zip(torch.autograd.grad(out, wanted, upstream), torch.autograd.grad(expected, wanted, upstream)):
        torch.testing.assert_close(a, b)


def test_rates():
    """A number is the same as its two rates; None is the paper's r for the stride of the map, or the even
    number below."""
    pairs = [(4, [4, 2]), (1, [1])]
    layers = [[ShuntedAttention(8, 4, reduction) for reduction in pair] for pair in pairs]
    layers += [
        [ShuntedAttention(8, 4, stride=stride), ShuntedAttention(8, 4, r)]
        for stride, r in ((4, 8), (8, 4), (16, 2), (32, 2), (6, 4))
    ]
    for one, other in layers:
        other.load_state_dict(one.state_dict())


def test_a_number_is_seen_where_tensors_do_not_show_it():
    """The tensors of a linear layer do not tell its rate."""
    linear = ShuntedAttention(8, 4, 4, aggregation='linear')
    assert linear.settings == dict(reduction=[4, 2]) and not ShuntedAttention(8, 4, 4).settings


@given(size=sizes)
def test_unmerged_attention_equals_its_equation(size):
    """At r = 1 the convolution of the values is added to the output, not to the values."""
    layer = EnhancedAttention(8, 2).double()
    x = torch.randn(*size, 8, dtype=torch.float64)
    query, key, value = layer.qkv(x).chunk(3, -1)
    heads = [softmax_attention(*(t[..., i : i + 4].flatten(1, 2) for t in (query, key, value))) for i in (0, 4)]
    expected = layer.proj(torch.cat(heads, -1).view(x.shape) + tokens(layer.local_conv, value))
    torch.testing.assert_close(layer(x), expected)


def test_convolutions_keep_the_layout():
    """Convolutions of contiguous tokens return contiguous tokens, so no layout is copied."""
    x = torch.randn(2, 6, 5, 8)
    for conv in (TokenConv2d(8, 8, 3, padding=1, groups=8), TokenConv2d(8, 4, 3, 2, 1), TokenMerging(8, 4, 2)):
        assert conv(x).is_contiguous()


def test_no_score_matrix():
    """No tensor is as large as the attention weights: 2 heads * 1024 tokens * 64 or 256 keys."""
    layer, x = ShuntedAttention(16, 4, 4), torch.randn(1, 32, 32, 16)
    with TensorSizes() as sizes:
        layer(x)
    assert max(sizes.found) == x.numel()


@pytest.mark.parametrize('aggregation', ['shunted', 'linear'])
def test_start_from_plain_attention(aggregation):
    """On a map of normed tokens that repeats each of them, it starts as the plain attention whose projections it takes:
    merged tokens are the same tokens, each once."""
    torch.manual_seed(0)
    plain, own = SelfAttention(32, 4, qkv_bias=True), ShuntedAttention(32, 4, 4, aggregation=aggregation)
    given = {f'attn.{name}': value for name, value in plain.state_dict().items()}
    own.load_state_dict(own.warm_start(given, 'attn.'))
    assert not given
    x = F.layer_norm(torch.randn(2, 3, 2, 32), (32,)).repeat_interleave(4, 1).repeat_interleave(4, 2)
    with torch.no_grad():
        torch.testing.assert_close(own(x), plain(x), rtol=1e-3, atol=1e-3)
