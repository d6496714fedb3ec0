"""What holds for every backbone with any settings, by random examples.

``make test`` tries the same few examples in every run. ``make test-all`` tries many new ones, and prints how to repeat
one that fails.
"""

import inspect
import io
import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from mmengine.registry import MODELS

from mmattn.backbones import patch_embed
from tests.backbones.cases import CASES, every_backbone

SIDES = st.integers(32, 100)
LAYOUTS = {
    'contiguous': lambda x: x.clone(),
    'channels last': lambda x: x.contiguous(memory_format=torch.channels_last),
    'transposed': lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    'part of a larger one': lambda x: torch.nn.functional.pad(x, (3, 1, 2, 5))[..., 2:-5, 3:-1],
}


#: values of arguments that the strategies of the cases leave out
OTHERS = dict(norm_cfg=dict(type='BN', eps=0.1), mlp_ratio=2, group_width=1, stem_convs=1, num_heads=1)
OTHERS |= dict(class_token=True, registers=1, rope=10.0, qkv_bias=False, landmarks=2)
#: arguments of training, of the beginning, and of what is returned; the tensors show in_channels. shift_small_maps is
#: left out because detectors, which shift small maps, start from classifiers, which do not.
NO_SETTINGS = {
    *('drop_rate', 'attn_drop_rate', 'drop_path_rate', 'norm_eval', 'frozen_stages', 'with_cp'),
    *('init_cfg', 'zero_init_residual', 'out_indices', 'in_channels', 'shift_small_maps'),
}


def arguments_of(backbone):
    """The names of the arguments of a backbone, those of its frame included."""
    names = set(inspect.signature(backbone).parameters)
    if 'kwargs' in names:  # The frame's mechanisms are not among them.
        names = names - {'kwargs'} | arguments_of(backbone.__base__) - {'attention'}
    return names


def build(case, settings, **others):
    """The backbone with the maps of all its stages."""
    return case.build({'out_indices': range(len(case.channels(settings))), **settings}, **others)


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
    settings = data.draw(case.architectures)
    backbone = build(case, settings, drop_path_rate=0.0).to(dtype).train(train)
    x = torch.randn(B, 3, H, W, dtype=dtype)
    maps = backbone(LAYOUTS[layout](x))
    assert isinstance(maps, tuple)
    assert tuple(backbone.out_channels) == tuple(case.channels(settings))
    for out, channels, stride in zip(maps, case.channels(settings), case.strides(settings), strict=True):
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
    settings = data.draw(case.architectures)
    backbone = build(case, dict(settings, **case.dropouts), with_cp=with_cp).train(train)
    before = {name: value.clone() for name, value in backbone.named_buffers() if 'num_batches' not in name}
    x = torch.randn(0, 3, H, W, requires_grad=True)
    with torch.autocast('cpu', torch.bfloat16, enabled=autocast):
        maps = backbone(x)
    for out, channels, stride in zip(maps, case.channels(settings), case.strides(settings), strict=True):
        assert out.shape == (0, channels, math.ceil(H / stride), math.ceil(W / stride))
    sum(out.sum() for out in maps).backward()
    assert x.grad.shape == x.shape and not any(p.grad.any() for p in backbone.parameters())
    assert all(torch.equal(value, before[name]) for name, value in backbone.named_buffers() if name in before)


@every_backbone
@given(data=st.data())
def test_settings_tell_what_tensors_do_not(case, data):
    """Two backbones that differ in one argument compute the same with the same weights, if the names and shapes of
    their tensors and their ``settings`` are the same."""
    one, other = data.draw(case.architectures), data.draw(case.architectures)
    arguments = arguments_of(MODELS.get(case.name))
    others = {key: value for key, value in {**OTHERS, **other}.items() if key in arguments}
    assert set(arguments) - {MODELS.get(case.name).arch_argument, *others} <= NO_SETTINGS
    changed = [{**one, key: value} for key, value in others.items()]
    changed += [{**one, 'arch': {**one['arch'], key: value}} for key, value in other['arch'].items()]
    backbone, x = build(case, one).eval(), torch.randn(1, 3, 130, 70)
    weights = backbone.state_dict()
    for settings in changed:
        try:
            second = build(case, settings).eval()
        except ValueError:
            continue  # the two do not go together
        shapes = [{name: value.shape for name, value in model.state_dict().items()} for model in (backbone, second)]
        if shapes[0] == shapes[1] and backbone.settings == second.settings:
            second.load_state_dict(weights)
            assert all(torch.equal(*maps) for maps in zip(second(x), backbone(x), strict=True))


@every_backbone
@given(data=st.data(), B=st.integers(2, 3), H=SIDES, W=SIDES)
def test_samples_do_not_mix(case, data, B, H, W):
    """In eval mode an image gives the same maps alone and in a batch."""
    backbone = build(case, data.draw(case.architectures)).double().eval()
    x = torch.randn(B, 3, H, W, dtype=torch.float64)
    x[0] *= 1e3
    for whole, alone in zip(backbone(x), backbone(x[-1:])):
        torch.testing.assert_close(whole[-1:], alone)


@every_backbone
@given(data=st.data(), H=SIDES, W=SIDES)
def test_checkpointing_changes_nothing(case, data, H, W):
    """with_cp gives the same maps, gradients and running statistics, also with dropout."""
    settings = dict(data.draw(case.architectures), **case.dropouts)
    plain, recomputing = build(case, settings), build(case, settings, with_cp=True)
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
    settings = data.draw(case.architectures)
    backbone, loaded, file = build(case, settings), build(case, settings), io.BytesIO()
    x = torch.randn(2, 3, 33, 50)
    backbone(x)  # changes running statistics
    torch.save(backbone.state_dict(), file)
    file.seek(0)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    for ours, expected in zip(loaded.eval()(x), backbone.eval()(x), strict=True):
        assert torch.equal(ours, expected)


@pytest.mark.parametrize('case', [pytest.param(case, id=name) for name, case in CASES.items() if case.shifting])
@given(data=st.data(), depths=st.lists(st.integers(1, 2), min_size=1, max_size=2))
def test_a_shifted_image_shifts_its_maps(case, data, depths):
    """Away from the border, if attention is by relative position and has a limited reach."""
    settings, step, reach = data.draw(case.shifting(depths))
    torch.manual_seed(0)
    backbone = build(case, settings).double().eval()
    side, stride = 192, case.strides(settings)[-1]
    dy, dx = data.draw(st.sampled_from([(0, 1), (1, 0), (1, 2)]))
    x = torch.randn(1, 3, side + dy * step * stride, side + dx * step * stride, dtype=torch.float64)
    with torch.no_grad():
        ours, shifted = backbone(x[..., -side:, -side:])[-1], backbone(x[..., :side, :side])[-1]
    # The reach of all blocks in pixels of the first stage, and 3 pixels for the stem and for what halves the maps.
    margin = 3 + sum(depth * reach * 2**i for i, depth in enumerate(depths))
    margin = math.ceil(margin / 2 ** (len(depths) - 1)) + 1
    inner = range(margin, ours.shape[-1] - margin - max(dy, dx) * step)
    assume(len(inner) > 0)
    ys, xs = ([i + d * step for i in inner] for d in (dy, dx))
    torch.testing.assert_close(ours[..., inner, :][..., inner], shifted[..., ys, :][..., xs])
    assume(ours[..., inner, :][..., inner].std() > 0)  # all channels of a small ResNet may be zero


@given(
    settings=CASES['MSFViT'].architectures,
    rows=st.integers(2, 6),
    columns=st.integers(2, 6),
    dy=st.integers(0, 5),
    dx=st.integers(1, 5),
)
def test_patches_are_placed_by_the_code_alone(settings, rows, columns, dy, dx):
    """MSFViT without its position code: rolled patches give rolled maps. With the code they do not."""
    backbone = build(CASES['MSFViT'], settings, embedding='simple', feed_forward='plain').double().eval()
    p = settings['patch_size']
    x = torch.randn(1, 3, rows * p, columns * p, dtype=torch.float64)
    rolled = x.roll((dy * p, dx * p), (2, 3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(patch_embed, 'position_code', lambda *shape, device: torch.zeros(shape))
        for out, moved in zip(backbone(x), backbone(rolled)):
            torch.testing.assert_close(out.roll((dy, dx), (2, 3)), moved)
    if dx % columns or dy % rows:
        assert not torch.allclose(backbone(x)[-1].roll((dy, dx), (2, 3)), backbone(rolled)[-1])


@every_backbone
@given(data=st.data())
def test_layer_depths(case, data):
    """Every parameter has a depth: 0 in the stem, one more in each block. In the order of the forward pass, depths
    never decrease. Layers whose output no block takes, such as output norms, have the largest depth."""
    backbone = build(case, data.draw(case.architectures)).eval()
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
