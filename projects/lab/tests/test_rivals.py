"""The token mixers that GSA is compared with, and later ones in a ResNet's place: each against its equation, or against
the library that it comes from."""

import itertools
import sys

import pytest
import torch
import torch.nn.functional as F
from mmcv.cnn import NonLocal2d
from mmcv.ops import CrissCrossAttention as MMCVCrissCross
from timm.layers.bottleneck_attn import BottleneckAttn
from timm.layers.lambda_layer import LambdaLayer as TimmLambdaLayer
from torch import nn

from mmattn.ops.global_self_attention import fit_table
from mmattn.packages import MissingPackage
from mmattn_lab import (
    AttentionAugmentedConv,
    AxialAttention,
    BottleneckAttention,
    CompactNonLocal,
    CrissCrossAttention,
    EfficientAttention,
    HaloAttention,
    Involution,
    LambdaLayer,
    LocalRelation,
    NonLocal,
    PairwiseAttention,
    PatchwiseAttention,
    RivalResNet,
    StandAloneAttention,
)

H, W, DIM, HEADS, SIDE = 3, 4, 8, 2, 3
OFFSETS = list(itertools.product(range(-(SIDE // 2), SIDE // 2 + 1), repeat=2))
PIXELS = list(itertools.product(range(H), range(W)))

LAYERS = {
    'stand-alone': lambda: StandAloneAttention(DIM, HEADS, kernel_size=SIDE),
    'axial': lambda: AxialAttention(DIM, HEADS, rel_pos_length=5),
    'augmented': lambda: AttentionAugmentedConv(DIM, HEADS, min_key_width=3, rel_pos_length=5),
    'local relation': lambda: LocalRelation(DIM, kernel_size=SIDE, share=4),
    'pairwise': lambda: PairwiseAttention(DIM, kernel_size=SIDE, share=4),
    'patchwise': lambda: PatchwiseAttention(DIM, kernel_size=SIDE, share=4),
    'involution': lambda: Involution(DIM, kernel_size=SIDE, share=4),
    'efficient': lambda: EfficientAttention(DIM, HEADS),
    'compact non-local': lambda: CompactNonLocal(DIM, groups=2),
}
#: LAYERS, and those of timm and MMCV
ALL = {
    **LAYERS,
    'augmented, halved': lambda: AttentionAugmentedConv(DIM, HEADS, min_key_width=3, stride=8, coarse_stride=16),
    'non-local': lambda: NonLocal(DIM),
    'criss-cross': lambda: CrissCrossAttention(DIM),
    'halo': lambda: HaloAttention(DIM, HEADS, block_size=2, halo_size=1),
    'lambda': lambda: LambdaLayer(DIM, HEADS, kernel_size=SIDE),
    'bottleneck': lambda: BottleneckAttention(DIM, HEADS, rel_pos_length=5),
}


def rough(layer):
    """A layer in float64 whose norms and zeros have values of their own."""
    for module in layer.modules():
        if isinstance(module, (nn.BatchNorm2d, nn.GroupNorm)):
            nn.init.normal_(module.weight, 1, 0.3)
            nn.init.normal_(module.bias, std=0.3)
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.3)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return layer.double().eval()


def at(x, y, c):
    """The vector of a pixel, zero outside of the map."""
    return x[y, c] if 0 <= y < x.shape[0] and 0 <= c < x.shape[1] else torch.zeros_like(x[0, 0])


def linear(layer, x):
    """A 1 x 1 convolution of vectors."""
    return F.linear(x, layer.weight[:, :, 0, 0], layer.bias)


def heads(x, count=HEADS):
    return x.unflatten(-1, (count, -1))


def stand_alone(layer, x):
    q, k, v = linear(layer.qkv, x).chunk(3, -1)
    out = torch.zeros_like(x)
    for (y, c), head in itertools.product(PIXELS, range(HEADS)):
        query = heads(q[y, c])[head]
        products = []
        for dy, dx in OFFSETS:
            r = torch.cat((layer.rel_row[dy + SIDE // 2], layer.rel_col[dx + SIDE // 2]))
            products.append(query @ heads(at(k, y + dy, c + dx))[head] + query @ r)
        for weight, (dy, dx) in zip(torch.stack(products).softmax(0), OFFSETS):
            heads(out[y, c])[head] += weight * heads(at(v, y + dy, c + dx))[head]
    return out


def axial(layer, x):
    for step, project, table in zip((0, 1), layer.qkv, (layer.rel_col, layer.rel_row)):
        x = x if step == 0 else x.transpose(0, 1)
        maps, out = heads(linear(project, x)), torch.zeros_like(x)
        for line, o, head in itertools.product(range(x.shape[1]), range(x.shape[0]), range(HEADS)):
            query, keys, values = maps[o, line, head, :2], maps[:, line, head, 2:4], maps[:, line, head, 4:]
            products = [query @ key + query @ table[p - o + 4] for p, key in enumerate(keys)]
            heads(out[o, line])[head] += torch.stack(products).softmax(0) @ values
        x = out if step == 0 else out.transpose(0, 1)
    return x


def augmented(layer, x):
    q, k, v = heads(linear(layer.qkv, x)).split((3, 3, 1), -1)
    mixed = torch.zeros(H, W, HEADS, 1, dtype=x.dtype)
    for (y, c), head in itertools.product(PIXELS, range(HEADS)):
        products = [
            q[y, c, head] @ (k[j, i, head] + layer.rel_row[i - c + 4] + layer.rel_col[j - y + 4]) / 3**0.5
            for j, i in PIXELS
        ]
        for weight, (j, i) in zip(torch.stack(products).softmax(0), PIXELS):
            mixed[y, c, head] += weight * v[j, i, head]
    convolved = F.conv2d(x.permute(2, 0, 1)[None], layer.conv.weight, padding=1)[0].permute(1, 2, 0)
    return torch.cat((convolved, linear(layer.proj, mixed.flatten(2))), -1)


def summed(x, weights):
    """Values of groups of 4 channels; weights: function of (y, x) -> (groups, k * k)."""
    out = torch.zeros_like(x)
    for y, c in PIXELS:
        of_pixel = weights(y, c)
        for j, (dy, dx) in enumerate(OFFSETS):
            out[y, c] += of_pixel[:, j].repeat_interleave(4) * at(x, y + dy, c + dx)
    return out


def local_relation(layer, x):
    q, k = linear(layer.query, x), linear(layer.key, x)

    def weights(y, c):
        logits = [
            -((q[y, c] - at(k, y + dy, c + dx)) ** 2) + layer.geometry(torch.tensor([dy, dx], dtype=x.dtype))
            for dy, dx in OFFSETS
        ]
        return torch.stack(logits, -1).softmax(-1)

    return summed(linear(layer.value, x), weights)


def pairwise(layer, x):
    q, k = linear(layer.query, x), linear(layer.key, x)

    def place(y, c):
        return torch.tensor([2 * y / (H - 1) - 1, 2 * c / (W - 1) - 1], dtype=x.dtype)

    def weights(y, c):
        logits = []
        for dy, dx in OFFSETS:
            position = layer.position(place(y, c)) - layer.position(place(y + dy, c + dx))
            relation = torch.cat((q[y, c] - at(k, y + dy, c + dx), position))
            logits.append(layer.weights(relation[None, :, None, None]).flatten())
        return torch.stack(logits, -1).softmax(-1)

    return summed(linear(layer.value, x), weights)


def patchwise(layer, x):
    q, k = linear(layer.query, x), linear(layer.key, x)

    def weights(y, c):
        patch = torch.stack([at(k, y + dy, c + dx) for dy, dx in OFFSETS], 1).flatten()
        return layer.weights(torch.cat((q[y, c], patch))[None, :, None, None]).view(2, -1)

    return summed(linear(layer.value, x), weights)


def involution(layer, x):
    def weights(y, c):
        hidden = layer.norm(layer.reduce(x[y, c][None, :, None, None])).clamp(min=0)
        return linear(layer.span, hidden.flatten()).view(2, -1)

    return summed(x, weights)


def efficient(layer, x):
    q, k, v = (heads(part).flatten(0, 1) for part in linear(layer.qkv, x).chunk(3, -1))
    mixed = [q[:, h].softmax(-1) @ (k[:, h].softmax(0).T @ v[:, h]) for h in range(HEADS)]
    return x + linear(layer.proj, torch.cat(mixed, -1).unflatten(0, (H, W)))


def compact_non_local(layer, x):
    """With the matrix of all pairs of numbers of a group, which the block avoids."""
    theta, phi, g = (heads(part).unbind(-2) for part in linear(layer.maps, x).chunk(3, -1))
    mixed = [(torch.outer(t.flatten(), p.flatten()) @ v.flatten()).view_as(v) for t, p, v in zip(theta, phi, g)]
    return x + layer.norm(layer.proj(torch.cat(mixed, -1).permute(2, 0, 1)[None]))[0].permute(1, 2, 0)


BY_HAND = dict(
    zip(
        LAYERS,
        (stand_alone, axial, augmented, local_relation, pairwise, patchwise, involution, efficient, compact_non_local),
    )
)


@pytest.mark.parametrize('name', LAYERS)
def test_equations(name):
    """One pixel, neighbour and head at a time."""
    torch.manual_seed(0)
    layer = rough(LAYERS[name]())
    x = torch.randn(2, H, W, DIM, dtype=torch.float64)
    with torch.no_grad():
        expected = torch.stack([BY_HAND[name](layer, image) for image in x])
        torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize(
    'build',
    [
        lambda length: AxialAttention(DIM, HEADS, rel_pos_length=length),
        lambda length: AttentionAugmentedConv(DIM, HEADS, min_key_width=3, rel_pos_length=length),
        lambda length: BottleneckAttention(DIM, HEADS, rel_pos_length=length),
    ],
    ids=['axial', 'augmented', 'bottleneck'],
)
def test_maps_longer_than_the_tables(build):
    """Tables are stretched: a layer whose tables are as long as the map, and stretched before, computes the same."""
    short, long = rough(build(3)), rough(build(5))
    state = short.state_dict().items()
    long.load_state_dict({name: fit_table(x, 5, 'stretch') if 'rel' in name else x for name, x in state})
    x = torch.randn(2, 5, 5, DIM, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(short(x), long(x))


def test_attention_on_halved_maps():
    """Of a finer map than asked for, attention sees means of 3 x 3 pixels, and the convolution every pixel."""
    layer = rough(ALL['augmented, halved']())
    x = torch.randn(1, 5, 6, DIM, dtype=torch.float64)
    with torch.no_grad():
        out = layer(x)
        means = torch.stack(
            [x[:, max(y - 1, 0) : y + 2, max(c - 1, 0) : c + 2].mean((1, 2)) for y in (0, 2, 4) for c in (0, 2, 4)], 1
        ).view(1, 3, 3, DIM)
        mixed = layer.proj(layer.attend(means)).permute(0, 3, 1, 2)
        torch.testing.assert_close(out[..., :6], layer.conv(x))
        torch.testing.assert_close(out[..., 6:], F.interpolate(mixed, (5, 6), mode='bilinear').permute(0, 2, 3, 1))


def test_layers_of_libraries():
    """An adapter computes what the library's layer does: criss-cross attention twice, halo attention on the padded
    map, bottleneck attention on a map of its size, and on a smaller one with the middle of its tables."""
    x = torch.randn(2, H, W, DIM)
    maps = x.permute(0, 3, 1, 2)
    non_local, criss_cross, halo, layer, bottleneck = (
        rough(ALL[name]()).float() for name in ('non-local', 'criss-cross', 'halo', 'lambda', 'bottleneck')
    )
    nn.init.ones_(criss_cross.block.gamma.scale)
    assert isinstance(non_local.block, NonLocal2d) and isinstance(criss_cross.block, MMCVCrissCross)
    small = BottleneckAttn(DIM, feat_size=(H, W), num_heads=HEADS)
    state = dict(bottleneck.attn.state_dict())
    for axis, length in (('height', H), ('width', W)):
        state[f'pos_embed.{axis}_rel'] = state[f'pos_embed.{axis}_rel'][5 - length : 4 + length]
    small.load_state_dict(state)
    lambdas = TimmLambdaLayer(DIM, num_heads=HEADS, r=SIDE, dim_head=16).eval()
    lambdas.load_state_dict(layer.attn.state_dict())
    with torch.no_grad():
        for adapter, expected in (
            (non_local, non_local.block(maps)),
            (criss_cross, criss_cross.block(criss_cross.block(maps))),
            (halo, halo.attn(F.pad(maps, (0, 0, 0, 1)))[:, :, :H]),
            (layer, lambdas(maps)),
            (bottleneck, small(maps)),
        ):
            torch.testing.assert_close(adapter(x), expected.permute(0, 2, 3, 1))
            assert not torch.equal(adapter(x), x)
        square = torch.randn(1, 5, 5, DIM)
        whole = BottleneckAttn(DIM, feat_size=(5, 5), num_heads=HEADS)
        whole.load_state_dict(bottleneck.attn.state_dict())
        torch.testing.assert_close(bottleneck(square), whole(square.permute(0, 3, 1, 2)).permute(0, 2, 3, 1))


def test_lambda_layer_without_convolutions_in_three_dimensions(monkeypatch):
    """A training in bfloat16 on the CPU would end in "double free or corruption"."""
    monkeypatch.setattr(F, 'conv3d', None)
    with torch.autocast('cpu', torch.bfloat16):
        LambdaLayer(DIM, HEADS)(torch.randn(2, 14, 14, DIM)).sum().backward()


def test_without_mmcv(monkeypatch):
    """Only the two layers of MMCV need it, and say so."""
    monkeypatch.setitem(sys.modules, 'mmcv', None)
    for name, build in ALL.items():
        if name in ('non-local', 'criss-cross'):
            with pytest.raises(MissingPackage, match=r'token mixer (NonLocal|CrissCrossAttention) needs mmcv'):
                build()
        else:
            build()


@pytest.mark.parametrize('name', ALL)
def test_step_in_a_resnet(name):
    """In RivalResNet, which offers its own arguments, a small step of training lowers the loss."""
    torch.manual_seed(0)
    kind = type(ALL[name]()).__name__
    depth = dict(depths=(1, 2), stem_channels=8, base_channels=8, expansion=2)
    settings = dict(num_heads=2, zero_init_residual=False, out_indices=(1,), attention=dict(type=kind))
    backbone = RivalResNet(depth, gsa_stages=(0, 1), insert_after=[(1, 0)], **settings).double()
    optimizer = torch.optim.SGD(backbone.parameters(), lr=1e-6)
    x, target = torch.randn(2, 3, 41, 54).double(), torch.randn(2, 32, 6, 7)
    losses = []
    for _ in range(2):
        losses.append((backbone(x)[0] - target).square().mean())
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[1] < losses[0] and all(p.grad is not None for p in backbone.parameters())


@pytest.mark.parametrize('name', ALL)
def test_half_precision(name):
    """bfloat16 is near float64, also under autocast, on a map of odd sides and on one of a single pixel. MMCV's
    criss-cross attention takes autocast only."""
    layer = rough(ALL[name]())
    for size in ((7, 5), (1, 1)):
        x = torch.randn(2, *size, DIM, dtype=torch.float64)
        with torch.no_grad():
            exact = layer.double()(x)
            with torch.autocast('cpu', torch.bfloat16):
                mixed = layer.float()(x.float())
            outs = [mixed] if name == 'criss-cross' else [mixed, layer.bfloat16()(x.bfloat16())]
        assert outs[-1].dtype == torch.bfloat16 or name == 'criss-cross'
        for out in outs:
            assert out.shape == x.shape and (out - exact).abs().max() < 0.1 * exact.abs().max()
