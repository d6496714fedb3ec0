"""What holds for every backbone of any architecture. A new backbone adds a strategy to ARCHITECTURES.

``make test-all`` tries many more examples than ``make test``.
"""

import io
import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from mmengine.registry import MODELS

from mmattn.backbones import msf_vit
from mmattn.layers import MeanShiftAttention
from mmattn.layers.mean_shift import COLUMNS, GROUP_MODES
from mmattn.ops.global_self_attention import BEYOND


def divisors(number, most=4):
    return st.sampled_from([d for d in range(1, most + 1) if number % d == 0])


def stages(value, count):
    return st.lists(value, min_size=count, max_size=count)


@st.composite
def swins(draw, count):
    embed_dim = draw(st.sampled_from([4, 6, 8, 12]))
    return dict(
        arch=dict(
            embed_dim=embed_dim,
            depths=draw(stages(st.integers(1, 2), count)),
            num_heads=[draw(divisors(embed_dim * 2**i)) for i in range(count)],
        ),
        window_size=draw(st.integers(1, 5)),
        mlp_ratio=draw(st.sampled_from([1, 2.5])),
    )


@st.composite
def elsa_swins(draw):
    count = draw(st.integers(1, 4))
    given = draw(swins(count))
    given['arch']['group_width'] = draw(st.sampled_from([1, 2, 4]))
    return dict(
        given,
        kernel_size=draw(st.sampled_from([1, 3, 5])),
        dilation=draw(st.integers(1, 2)),
        lam=draw(st.integers(0, 2)),
        gamma=draw(st.sampled_from([0, 0.5, 1])),
        elsa_stages=draw(st.sets(st.integers(0, count - 1))),
    )


@st.composite
def mean_shifts(draw, dim):
    attention = draw(st.sampled_from(list(COLUMNS)))
    columns = COLUMNS[attention]
    return dict(
        attention=attention,
        sharing=''.join(draw(stages(st.sampled_from(columns), len(columns)))),
        groups=draw(divisors(dim)),
        group_mode=draw(st.sampled_from(GROUP_MODES)),
        proj_bias=draw(st.booleans()),
    )


@st.composite
def msf_swins(draw):
    given = draw(swins(draw(st.integers(1, 4))))
    return dict(given, **draw(mean_shifts(given['arch']['embed_dim'])))


@st.composite
def msf_vits(draw):
    dim = draw(st.sampled_from([8, 12, 16]))
    return dict(
        arch=dict(embed_dim=dim, depth=draw(st.integers(1, 3)), num_heads=draw(divisors(dim))),
        patch_size=draw(st.sampled_from([7, 8, 16])),
        final_norm=draw(st.booleans()),
        **draw(mean_shifts(dim)),
    )


@st.composite
def shunteds(draw):
    count = draw(st.integers(1, 4))
    heads = draw(stages(st.sampled_from([2, 4]), count))
    return dict(
        arch=dict(
            embed_dims=[n * draw(st.sampled_from([2, 3, 4])) for n in heads],
            depths=draw(stages(st.integers(1, 2), count)),
            num_heads=heads,
            stem_convs=draw(st.integers(0, 2)),
        ),
        reductions=draw(stages(st.sampled_from([1, 2, 4, 8]), count)),
        mlp_ratios=draw(stages(st.sampled_from([1, 2.5]), count)),
    )


@st.composite
def gsa_resnets(draw):
    count = draw(st.integers(1, 4))
    width = draw(st.sampled_from([2, 4, 6]))
    parts = draw(st.integers(1, 7))
    return dict(
        depth=dict(
            depths=draw(stages(st.integers(1, 2), count)),
            stem_channels=draw(st.integers(1, 8)),
            base_channels=width,
            expansion=draw(st.integers(1, 3)),
        ),
        gsa_stages=draw(st.sets(st.integers(0, count - 1))),
        num_heads=draw(divisors(width)),
        content=bool(parts & 1),
        column=bool(parts & 2),
        row=bool(parts & 4),
        img_size=draw(st.integers(1, 100)),
        beyond=draw(st.sampled_from(BEYOND)),
    )


ARCHITECTURES = {
    'ELSASwin': elsa_swins(),
    'GSAResNet': gsa_resnets(),
    'ShuntedTransformer': shunteds(),
    'MSFViT': msf_vits(),
    'MSFSwin': msf_swins(),
}
SIDES = st.integers(32, 100)
LAYOUTS = {
    'contiguous': lambda x: x.clone(),
    'channels last': lambda x: x.contiguous(memory_format=torch.channels_last),
    'transposed': lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    'part of a larger one': lambda x: torch.nn.functional.pad(x, (3, 1, 2, 5))[..., 2:-5, 3:-1],
}

every_backbone = pytest.mark.parametrize('name', ARCHITECTURES)


def build(name, given, **settings):
    """The backbone with all of its stages put out, unless settings say otherwise."""
    arch = given[MODELS.get(name).arch_argument]
    settings.setdefault('out_indices', range(arch['depth'] if name == 'MSFViT' else len(arch['depths'])))
    return MODELS.build(dict(type=name, **{**given, **settings}))


def maps_expected(name, given):
    """Channels and stride of every stage's map."""
    arch = given[MODELS.get(name).arch_argument]
    if name == 'MSFViT':
        return [(arch['embed_dim'], given['patch_size'])] * arch['depth']
    if name == 'ShuntedTransformer':
        channels = arch['embed_dims']
    else:
        first = arch['base_channels'] * arch['expansion'] if name == 'GSAResNet' else arch['embed_dim']
        channels = [first * 2**i for i in range(len(arch['depths']))]
    return [(c, 4 * 2**i) for i, c in enumerate(channels)]


@every_backbone
@given(
    data=st.data(),
    B=st.integers(1, 3),
    H=SIDES,
    W=SIDES,
    train=st.booleans(),
    layout=st.sampled_from(list(LAYOUTS)),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_maps(name, data, B, H, W, train, layout, dtype):
    """Maps are of the promised channels, ceil(side / stride), finite, contiguous and of the input's dtype, for any
    picture from 32 up, and the same however the picture lies in memory."""
    assume(not train or B * H * W > 32 * 32)  # batch norm cannot learn from one value a channel
    settings = data.draw(ARCHITECTURES[name])
    backbone = build(name, settings, drop_path_rate=0.0).to(dtype).train(train)
    x = torch.randn(B, 3, H, W, dtype=dtype)
    maps = backbone(LAYOUTS[layout](x))
    assert isinstance(maps, tuple)
    for out, (channels, stride) in zip(maps, maps_expected(name, settings), strict=True):
        assert out.shape == (B, channels, math.ceil(H / stride), math.ceil(W / stride))
        assert out.dtype == dtype and out.isfinite().all()
        assert out.is_contiguous()  # mmcv's RoIAlign reads it as such, whatever it is
    if dtype == torch.float64:
        for out, reference in zip(maps, backbone(x)):
            torch.testing.assert_close(out, reference)


@every_backbone
@given(data=st.data(), B=st.integers(2, 3), H=SIDES, W=SIDES)
def test_samples_do_not_mix(name, data, B, H, W):
    """In eval mode a picture gives the same maps alone and in a batch, whatever is beside it."""
    backbone = build(name, data.draw(ARCHITECTURES[name])).double().eval()
    x = torch.randn(B, 3, H, W, dtype=torch.float64)
    x[0] *= 1e3
    for whole, alone in zip(backbone(x), backbone(x[-1:])):
        torch.testing.assert_close(whole[-1:], alone)


@every_backbone
@given(data=st.data(), H=SIDES, W=SIDES)
def test_checkpointing_changes_nothing(name, data, H, W):
    """with_cp gives the same maps, gradients and statistics, dropouts included."""
    settings = dict(data.draw(ARCHITECTURES[name]), drop_path_rate=0.3)
    if name != 'GSAResNet':
        settings.update(drop_rate=0.2, attn_drop_rate=0.2)
    plain, recomputing = build(name, settings), build(name, settings, with_cp=True)
    recomputing.load_state_dict(plain.state_dict())
    x = torch.randn(2, 3, H, W)
    results = []
    for backbone in (plain, recomputing):
        torch.manual_seed(0)
        maps = backbone(x)
        sum(out.square().mean() for out in maps).backward()
        results.append([*maps, *(p.grad for p in backbone.parameters()), *backbone.buffers()])
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected)


@every_backbone
@given(data=st.data())
def test_saved_and_loaded_is_the_same(name, data):
    """A fresh backbone with saved weights computes to the last bit what the trained one computes."""
    settings = data.draw(ARCHITECTURES[name])
    backbone, loaded, file = build(name, settings), build(name, settings), io.BytesIO()
    x = torch.randn(2, 3, 33, 50)
    backbone(x)  # which changes statistics
    torch.save(backbone.state_dict(), file)
    file.seek(0)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    for ours, expected in zip(loaded.eval()(x), backbone.eval()(x), strict=True):
        assert torch.equal(ours, expected)


@pytest.mark.parametrize('name', ['ELSASwin', 'GSAResNet', 'MSFSwin'])
@given(data=st.data())
def test_a_shifted_picture_shifts_its_maps(name, data):
    """Away from the border, where attention is by relative position and of limited reach: ELSA's neighbourhoods;
    windows, by whole ones; global self-attention along columns and rows, beyond='mask', or none. What reaches all
    pixels of a padded map, as Shunted's attention and GSA's by content do, promises no such thing."""
    stage_count = data.draw(st.integers(1, 2))
    depths = data.draw(stages(st.integers(1, 2), stage_count))
    stride, step = 4 * 2 ** (stage_count - 1), 1
    if name == 'GSAResNet':
        settings = dict(data.draw(ARCHITECTURES[name]), content=False, beyond='mask', img_size=12)
        settings.update(column=settings['column'] or not settings['row'], gsa_stages=range(stage_count))
        settings['depth'] = dict(settings['depth'], depths=depths)
        reach = 2  # L - 1
    else:
        settings = data.draw(ARCHITECTURES[name])
        settings['arch'] = dict(
            settings['arch'], depths=depths, num_heads=(settings['arch']['num_heads'] * 2)[:stage_count]
        )
        settings['window_size'] = step = data.draw(st.integers(1, 3))
        reach = step - 1
    if name == 'ELSASwin':
        settings['elsa_stages'] = data.draw(st.sets(st.integers(0, stage_count - 1)))
        reach = max(reach, settings['kernel_size'] // 2 * settings['dilation'])
    torch.manual_seed(0)
    backbone = build(name, settings).double().eval()
    side = 192
    dy, dx = data.draw(st.sampled_from([(0, 1), (1, 0), (1, 2)]))
    x = torch.randn(1, 3, side + dy * step * stride, side + dx * step * stride, dtype=torch.float64)
    with torch.no_grad():
        ours, shifted = backbone(x[..., -side:, -side:])[-1], backbone(x[..., :side, :side])[-1]
    # In pixels of the first stage: that of the blocks, and a little for the stem and for what halves maps.
    margin = 3 + sum(depth * reach * 2**i for i, depth in enumerate(depths))
    margin = math.ceil(margin / 2 ** (stage_count - 1)) + 1
    inner = range(margin, ours.shape[-1] - margin - max(dy, dx) * step)
    assume(len(inner) > 0)
    ys, xs = ([i + d * step for i in inner] for d in (dy, dx))
    torch.testing.assert_close(ours[..., inner, :][..., inner], shifted[..., ys, :][..., xs])
    assume(ours[..., inner, :][..., inner].std() > 0)  # the few channels of a small ResNet may all be dead


@given(
    settings=msf_vits(), rows=st.integers(2, 6), columns=st.integers(2, 6), dy=st.integers(0, 5), dx=st.integers(1, 5)
)
def test_patches_are_placed_by_the_code_alone(settings, rows, columns, dy, dx):
    """MSFViT without its position code: rolled patches give rolled maps. With it they do not."""
    backbone = build('MSFViT', settings).double().eval()
    p = settings['patch_size']
    x = torch.randn(1, 3, rows * p, columns * p, dtype=torch.float64)
    rolled = x.roll((dy * p, dx * p), (2, 3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(msf_vit, 'position_code', lambda *shape, device: torch.zeros(shape))
        for out, moved in zip(backbone(x), backbone(rolled)):
            torch.testing.assert_close(out.roll((dy, dx), (2, 3)), moved)
    if dx % columns or dy % rows:
        assert not torch.allclose(backbone(x)[-1].roll((dy, dx), (2, 3)), backbone(rolled)[-1])


@pytest.mark.parametrize('name', ['MSFViT', 'MSFSwin'])
@given(data=st.data())
def test_a_constant_in_queries_and_keys_changes_nothing(name, data):
    """The paper's claim (section 2.2.2) on whole backbones: with the Gaussian kernel, only differences count."""
    settings = dict(
        data.draw(ARCHITECTURES[name]),
        sharing=None,
        proj_bias=True,
        attention=data.draw(st.sampled_from(['msf', 'residual', 'gauss'])),
    )
    backbone = build(name, settings).double().eval()
    x = torch.randn(1, 3, 40, 64, dtype=torch.float64)
    before = backbone(x)
    for layer in backbone.modules():
        if isinstance(layer, MeanShiftAttention):
            bias = layer.pre_proj.bias.data.view(len(layer.matrices), -1)
            bias[:2] += torch.randn_like(bias[0])
    for ours, expected in zip(backbone(x), before):
        torch.testing.assert_close(ours, expected)
