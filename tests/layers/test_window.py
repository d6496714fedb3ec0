import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from mmattn.layers import MeanShiftWindowAttention, WindowAttention
from mmattn.layers import window as module
from mmattn.ops import windows
from mmattn.ops.windows import shift_mask


def by_hand(layer: WindowAttention, x: torch.Tensor) -> torch.Tensor:
    """Window attention over every pair of padded pixels, masked to pairs of one window and one region."""
    B, H, W, C = x.shape
    w, s, heads = layer.window_size, layer.shift, layer.num_heads
    padded = F.pad(x, (0, 0, 0, -W % w, 0, -H % w))
    Hp, Wp = padded.shape[1:3]
    q, k, v = layer.qkv(padded).view(B, Hp * Wp, 3, heads, C // heads).permute(2, 0, 3, 1, 4)
    y, xx = (t.flatten() for t in torch.meshgrid(torch.arange(Hp), torch.arange(Wp), indexing='ij'))
    # A shifted window is a window over positions displaced by -s; what wraps around is apart.
    s, t = (s if layer.shift_small_maps or size > w else 0 for size in (Hp, Wp))
    window = torch.stack(((y - s) % Hp // w, (xx - t) % Wp // w, (y < s) * s, (xx < t) * t), -1)
    same = (window[:, None] == window[None]).all(-1)
    ys, xs = (y - s) % Hp, (xx - t) % Wp
    offset = (ys[None] - ys[:, None] + w - 1) * (2 * w - 1) + xs[None] - xs[:, None] + w - 1
    table = layer.relative_position_bias_table.t().flip(1)  # by key minus query
    bias = table[:, offset.clamp(0, table.shape[1] - 1)]
    scores = (q @ k.transpose(-1, -2) * (C // heads) ** -0.5 + bias).masked_fill(~same, float('-inf'))
    out = (scores.softmax(-1) @ v).transpose(1, 2).reshape(B, Hp, Wp, C)
    return layer.proj(out)[:, :H, :W]


@given(
    H=st.integers(1, 11),
    W=st.integers(1, 11),
    w=st.integers(2, 4),
    shifted=st.booleans(),
    small=st.booleans(),
    B=st.integers(1, 2),
)
@example(H=3, W=9, w=4, shifted=True, small=False, B=1)  # one window down, three across
@example(H=7, W=6, w=3, shifted=True, small=True, B=2)
def test_equals_masked_global_attention(H, W, w, shifted, small, B):
    """Padding, cyclic shift and mask together compute attention within windows, at any size and batch, whether or not
    maps of one window are shifted."""
    layer = WindowAttention(8, 2, window_size=w, shift=w // 2 if shifted else 0, shift_small_maps=small).double()
    torch.nn.init.normal_(layer.relative_position_bias_table)
    x = torch.randn(B, H, W, 8, dtype=torch.float64)
    torch.testing.assert_close(layer(x), by_hand(layer, x))


def call_under(mode, layer, x):
    """Call a layer in a mode of torch."""
    if mode == 'functionalize':
        torch.func.functionalize(layer)(x)
    elif mode == 'fake':
        with FakeTensorMode(allow_non_fake_inputs=True) as fake:
            layer(fake.from_tensor(x))
    elif mode == 'meta':
        copy.deepcopy(layer).to('meta')(x.to('meta'))
    elif mode == 'jit.trace':
        torch.jit.trace(layer, x, check_trace=False)
    else:
        with getattr(torch, mode)():
            layer(x)


@pytest.mark.parametrize('mode', ['inference_mode', 'no_grad', 'functionalize', 'fake', 'meta', 'jit.trace'])
@pytest.mark.parametrize('kept', [False, True])
def test_masks_are_kept_outside_of_modes(mode, kept):
    """A call in a mode of torch, before or after a mask is kept, does not change what training computes."""
    layer, x = WindowAttention(8, 2, window_size=3, shift=1), torch.randn(2, 5, 7, 8)
    windows._kept_mask.cache_clear()
    if kept:
        layer(x)
    before = windows._kept_mask.cache_info()
    call_under(mode, layer, x)
    assert (windows._kept_mask.cache_info() == before) == (mode not in ('inference_mode', 'no_grad'))
    out = layer(x)
    torch.testing.assert_close(out, by_hand(layer, x))
    out.sum().backward()
    assert layer.relative_position_bias_table.grad.isfinite().all()
    assert not windows._kept_mask(None, 2, 3, 3, (1, 1), x.device).is_inference()


def test_masks_are_made_once(monkeypatch):
    """Blocks and steps share the masks of their sizes; few are kept."""
    calls = []
    monkeypatch.setattr(windows, 'shift_mask', lambda *sizes: calls.append(sizes) or shift_mask(*sizes))
    windows._kept_mask.cache_clear()
    layers = [WindowAttention(8, 2, window_size=3, shift=1) for _ in range(2)]
    for size in (4, 7, 4):
        for layer in layers:
            layer(torch.randn(1, size, 5, 8))
    assert len(calls) == 2
    for size in range(100, 130, 3):
        layers[0](torch.randn(1, size, 5, 8))
    assert windows._kept_mask.cache_info().currsize == windows._kept_mask.cache_info().maxsize == 8


def mixer(cls=WindowAttention, shift=1, **arguments):
    torch.manual_seed(0)
    layer = cls(8, 2, window_size=3, shift=shift, shift_small_maps=False, **arguments)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    return layer


@pytest.mark.skipif(torch.cuda.is_available(), reason='on a GPU, kernels with products take 16 bits only')
@pytest.mark.usefixtures('triton_runs')
@pytest.mark.parametrize(
    'build',
    [
        partial(mixer, ghost_size=3),
        partial(mixer, MeanShiftWindowAttention, 0, proj_bias=True),
        partial(mixer, MeanShiftWindowAttention, 2, form='gauss'),
        partial(mixer, MeanShiftWindowAttention, 2, form='plain', groups=2, proj_bias=True, ghost_size=3),
    ],
    ids=['swin', 'msf', 'gauss', 'plain'],
)
def test_one_kernel_is_the_layer(build):
    """It reads the projected map, and gives the results and gradients of windows that are cut out of the input:
    padded pixels have the biases of the projection."""
    x, results = torch.randn(1, 3, 5, 8, requires_grad=True), []
    for backend in (None, 'triton'):
        layer = build()
        getattr(layer, 'attn', layer).backend = backend
        out = layer(x)
        results.append([out, *torch.autograd.grad(out.square().sum(), [x, *layer.parameters()])])
    for found, expected in zip(*results):
        torch.testing.assert_close(found, expected, atol=1e-4 * expected.abs().max().item(), rtol=1e-4)


def hooked(layer):
    part = layer.attn if isinstance(layer, MeanShiftWindowAttention) else layer.qkv
    part.register_forward_hook(lambda *_: None)
    return layer


def replaced():
    layer = mixer(MeanShiftWindowAttention)
    layer.attn.forward = layer.attn.forward  # as accelerate does
    return layer


class LowRank(torch.nn.Module):
    """A projection of another package around the own one."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.forward = layer, layer.forward


def low_rank():
    layer = mixer()
    layer.qkv = LowRank(layer.qkv)
    return layer


@pytest.mark.parametrize(
    'build, fused',
    [
        (mixer, True),
        (partial(mixer, MeanShiftWindowAttention, attn_drop_rate=0.1), False),
        (partial(mixer, attn_drop_rate=0.1), False),
        (lambda: mixer(attn_drop_rate=0.1).eval(), True),
        (lambda: hooked(mixer()), False),
        (lambda: hooked(mixer(MeanShiftWindowAttention)), False),
        (replaced, False),
        (low_rank, False),
        (partial(mixer, MeanShiftWindowAttention, form='residual'), False),
        (partial(mixer, MeanShiftWindowAttention, sharing='QKKQW'), False),
        (partial(mixer, MeanShiftWindowAttention, steps=2), False),
    ],
    ids=['swin', 'msf dropout', 'dropout', 'eval', 'hook', 'msf hook', 'own', 'lora', 'residual', 'sharing', 'steps'],
)
def test_what_one_kernel_is_for(monkeypatch, build, fused):
    """On a GPU, the kernel serves layers that compute what it does. For others, windows are cut out as on the CPU."""
    monkeypatch.setattr(module, 'triton_multiplies', lambda *_: True)
    calls = []
    monkeypatch.setattr(module.Windows, 'attend_map', lambda self, x, *_, **__: calls.append(x) or x)
    build()(torch.randn(1, 3, 5, 8))
    assert bool(calls) == fused
