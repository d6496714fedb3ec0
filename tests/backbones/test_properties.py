"""What holds for every backbone with any settings, by random examples.

``make test`` tries the same few examples in every run. ``make test-all`` tries many new ones, and prints how to repeat
one that fails.
"""

import io
import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from mmengine.registry import MODELS

from mmattn.backbones import patch_embed
from mmattn.layers import DropPath
from tests.backbones.cases import CASES, every_backbone

SIDES = st.integers(32, 100)
LAYOUTS = {
    'contiguous': lambda x: x.clone(),
    'channels last': lambda x: x.contiguous(memory_format=torch.channels_last),
    'transposed': lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    'part of a larger one': lambda x: torch.nn.functional.pad(x, (3, 1, 2, 5))[..., 2:-5, 3:-1],
}


#: arguments of training, of the beginning, and of what is returned; the tensors show in_channels. shift_small_maps is
#: left out because detectors, which shift small maps, start from classifiers, which do not.
NO_SETTINGS = {
    *('drop_rate', 'attn_drop_rate', 'drop_path_rate', 'norm_eval', 'frozen_stages', 'with_cp'),
    *('init_cfg', 'zero_init_residual', 'out_indices', 'in_channels', 'shift_small_maps'),
}


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
def test_maps(case, data, B, H, W, train, layout, dtype):
    """Images of any size from 32 up give maps with the promised channels and sides of ceil(side / stride). The maps are
    finite, contiguous, of the dtype of the image, and independent of its memory layout."""
    assume(not train or B * H * W > 32 * 32)  # batch norm cannot train on one value per channel
    backbone = case.build(data.draw(case.any_settings), drop_path_rate=0.0).to(dtype).train(train)
    x = torch.randn(B, 3, H, W, dtype=dtype)
    maps = backbone(LAYOUTS[layout](x))
    assert isinstance(maps, tuple)
    assert len(maps) == backbone.num_built
    for out, channels, stride in zip(maps, backbone.channels, backbone.strides):
        assert out.shape == (B, channels, math.ceil(H / stride), math.ceil(W / stride))
        assert out.dtype == dtype and out.isfinite().all()
        assert out.is_contiguous()  # MMCV's RoIAlign takes it for granted
    if dtype == torch.float64:
        for out, reference in zip(maps, backbone(x)):
            torch.testing.assert_close(out, reference)


@every_backbone
@given(data=st.data(), H=SIDES, W=SIDES, train=st.booleans(), with_cp=st.booleans(), autocast=st.booleans())
def test_no_images(case, data, H, W, train, with_cp, autocast):
    """A batch of no images gives maps of no images and gradients of zero, and leaves running statistics alone."""
    backbone = case.build(data.draw(case.any_settings), **case.dropouts, with_cp=with_cp).train(train)
    before = {name: value.clone() for name, value in backbone.named_buffers() if 'num_batches' not in name}
    x = torch.randn(0, 3, H, W, requires_grad=True)
    with torch.autocast('cpu', torch.bfloat16, enabled=autocast):
        maps = backbone(x)
    for out, channels, stride in zip(maps, backbone.channels, backbone.strides):
        assert out.shape == (0, channels, math.ceil(H / stride), math.ceil(W / stride))
    sum(out.sum() for out in maps).backward()
    assert x.grad.shape == x.shape and not any(p.grad.any() for p in backbone.parameters())
    assert all(torch.equal(value, before[name]) for name, value in backbone.named_buffers() if name in before)


#: what others depend on: a mode of groups matters where there are groups
CONTEXT = dict(groups=2, lam=1, embedding='deit')


def in_context(case):
    return {**case.small, **{key: value for key, value in CONTEXT.items() if key in case.others}}


@every_backbone
def test_every_argument_reaches_its_layer(case):
    """Another value of it gives tensors of other shapes, or other maps with the same weights. So does a dropout."""
    first, x = case.build(in_context(case)).eval(), torch.randn(1, 3, 130, 70)
    weights, maps = first.state_dict(), first(x)

    def is_used(key, value):
        try:
            second = case.build({**in_context(case), key: value}).eval()
        except ValueError:
            return False  # they do not go together
        own = second.state_dict()
        if {name: tensor.shape for name, tensor in own.items()} != {name: t.shape for name, t in weights.items()}:
            return True
        second.load_state_dict(weights)
        return not all(torch.equal(*pair) for pair in zip(second(x), maps, strict=True))

    unused = [key for key, values in case.others.items() if not any(is_used(key, value) for value in values)]
    assert unused == (['qkv_bias'] if case.name == 'MSFViT' else [])  # of plain attention alone
    case.build(case.small, in_channels=1)(torch.randn(2, 1, 64, 64))
    modules = list(case.build(case.small, **{**case.dropouts, 'drop_path_rate': 0.3}).modules())
    assert {module.p for module in modules if isinstance(module, torch.nn.Dropout)} <= {0.2}
    assert {module.attn_drop_rate for module in modules if hasattr(module, 'attn_drop_rate')} <= {0.2}
    rates = [module.drop_prob for module in modules if isinstance(module, DropPath)]
    assert rates == sorted(rates) and rates[0] == 0 and rates[-1] == pytest.approx(0.3)


@every_backbone
def test_settings_tell_what_tensors_do_not(case):
    """Two backbones that differ in one argument compute the same with the same weights, if the names and shapes of
    their tensors and their ``settings`` are the same."""
    assert case.arguments - {MODELS.get(case.name).arch_argument, *case.others} <= NO_SETTINGS
    noted = {}
    for one in (case.small, in_context(case)):
        changed = [{**one, key: value} for key, values in case.others.items() for value in values]
        changed += [{**one, 'arch': {**one['arch'], key: n}} for key, numbers in case.arch.items() for n in numbers]
        for settings in [one, *changed]:
            try:
                backbone = case.build(settings).eval()
            except ValueError:
                continue  # they do not go together
            shapes = {name: value.shape for name, value in backbone.state_dict().items()}
            noted.setdefault(str((shapes, backbone.settings)), []).append(backbone)
    x = torch.randn(1, 3, 130, 70)
    for first, *others in noted.values():
        maps = first(x) if others else ()
        for second in others:
            second.load_state_dict(first.state_dict())
            for ours, expected in zip(second(x), maps, strict=True):
                torch.testing.assert_close(ours, expected)


@every_backbone
@given(data=st.data(), B=st.integers(2, 3), H=SIDES, W=SIDES)
def test_samples_do_not_mix(case, data, B, H, W):
    """In eval mode an image gives the same maps alone and in a batch."""
    backbone = case.build(data.draw(case.any_settings)).double().eval()
    x = torch.randn(B, 3, H, W, dtype=torch.float64)
    x[0] *= 1e3
    for whole, alone in zip(backbone(x), backbone(x[-1:])):
        torch.testing.assert_close(whole[-1:], alone)


@every_backbone
@given(data=st.data(), H=SIDES, W=SIDES)
def test_checkpointing_changes_nothing(case, data, H, W):
    """with_cp gives the same maps, gradients and running statistics, also with dropout."""
    settings = dict(data.draw(case.any_settings), **case.dropouts)
    plain, recomputing = case.build(settings), case.build(settings, with_cp=True)
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
def test_saved_and_loaded_is_the_same(case, data):
    """A new backbone with the saved weights of a trained one gives exactly the same maps."""
    settings = data.draw(case.any_settings)
    backbone, loaded, file = case.build(settings), case.build(settings), io.BytesIO()
    x = torch.randn(2, 3, 33, 50)
    backbone(x)  # changes running statistics
    torch.save(backbone.state_dict(), file)
    file.seek(0)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    for ours, expected in zip(loaded.eval()(x), backbone.eval()(x), strict=True):
        assert torch.equal(ours, expected)


#: name -> settings with which a shift of the image by as many pixels of the last map shifts that map, except near the
#: border, because a block passes information over a limited number of pixels
SHIFTING = {
    'ELSASwin': (dict(window_size=2, kernel_size=3, dilation=2, elsa_stages=(1,)), 2, 2),
    'MSFSwin': (dict(window_size=3), 3, 2),
    'GSAResNet': (dict(content=False, beyond='mask', img_size=12, gsa_stages=(0, 1)), 1, 2),
}


@pytest.mark.parametrize('name', SHIFTING)
@pytest.mark.parametrize('dy, dx', [(0, 1), (1, 2)])
def test_a_shifted_image_shifts_its_maps(name, dy, dx):
    """Away from the border, if attention is by relative position and has a limited reach."""
    settings, step, reach = SHIFTING[name]
    case, depths = CASES[name], (1, 1)
    settings = {**case.small, **settings, 'out_indices': (0, 1)}
    settings['arch'] = dict(settings['arch'], depths=(*depths, 1, 1))
    backbone = case.build(settings).double().eval()
    side, stride = 192, backbone.strides[1]
    x = torch.randn(1, 3, side + dy * step * stride, side + dx * step * stride, dtype=torch.float64)
    with torch.no_grad():
        ours, shifted = backbone(x[..., -side:, -side:])[-1], backbone(x[..., :side, :side])[-1]
    # The reach of all blocks in pixels of the first stage, and 3 pixels for the stem and for what halves the maps.
    margin = 3 + sum(depth * reach * 2**i for i, depth in enumerate(depths))
    margin = math.ceil(margin / 2 ** (len(depths) - 1)) + 1
    inner = range(margin, ours.shape[-1] - margin - max(dy, dx) * step)
    assert len(inner) > 0
    ys, xs = ([i + d * step for i in inner] for d in (dy, dx))
    torch.testing.assert_close(ours[..., inner, :][..., inner], shifted[..., ys, :][..., xs])
    assert ours[..., inner, :][..., inner].std() > 0


def test_patches_are_placed_by_the_code_alone(monkeypatch):
    """MSFViT without its position code: rolled patches give rolled maps. With the code they do not."""
    backbone = CASES['MSFViT'].build(CASES['MSFViT'].small).double().eval()
    x = torch.randn(1, 3, 48, 64, dtype=torch.float64)
    rolled = x.roll((16, 32), (2, 3))
    assert not torch.allclose(backbone(x)[-1].roll((1, 2), (2, 3)), backbone(rolled)[-1])
    monkeypatch.setattr(patch_embed, 'position_code', lambda *shape, device: torch.zeros(shape))
    for out, moved in zip(backbone(x), backbone(rolled), strict=True):
        torch.testing.assert_close(out.roll((1, 2), (2, 3)), moved)


@every_backbone
@given(data=st.data())
def test_layer_depths(case, data):
    """Every parameter has a depth: 0 in the stem, one more in each block. In the order of the forward pass, depths
    never decrease. Layers whose output no block takes, such as output norms, have the largest depth."""
    backbone = case.build(data.draw(case.any_settings)).eval()
    blocks = [name for name, module in backbone.named_modules() if getattr(module, 'is_block', False)]
    depths = {name: backbone.get_layer_depth(f'a.{name}', 'a.') for name, _ in backbone.named_parameters()}
    assert {count for _, count in depths.values()} == {len(blocks) + 2}
    assert backbone.get_layer_depth('head.weight', 'a.') == (len(blocks) + 1, len(blocks) + 2)
    depths = {name: depth for name, (depth, _) in depths.items()}
    for depth, block in enumerate(blocks, start=1):
        assert {depths[name] for name in depths if name.startswith(f'{block}.')} == {depth}
    ran = []
    for name, module in backbone.named_modules():
        own = {depths[f'{name}.{key}'] for key, _ in module.named_parameters(recurse=False)}
        assert len(own) < 2
        if own:
            module.register_forward_hook(lambda *_, depth=own.pop(): ran.append(depth))
    backbone(torch.randn(1, 3, 32, 32))
    inner = [depth for depth in ran if depth <= len(blocks)]
    assert inner == sorted(inner) and ran[0] == 0
