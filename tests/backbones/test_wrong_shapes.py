"""A tensor of another shape is refused by name, wherever weights come from."""

from functools import partial

import pytest
import timm
import torch

from mmattn.backbones import ELSAVOLO, NAT, GSAResNet, MSFSwin, MSFViT, SwinFrame, ViTFrame
from mmattn.weights import CheckpointError, Translation, misfits
from tests.backbones.cases import every_backbone

CHANGES = {
    'dimensions reversed': lambda x: x.permute(tuple(range(x.dim()))[::-1]),
    'one more at the front': lambda x: x[None],
    'two dimensions in one': lambda x: x.flatten(1) if x.dim() > 1 else x,
    'another kernel of as many numbers': lambda x: (
        x.reshape(*x.shape[:2], x.shape[2] // 2, x.shape[3] * 2) if x.dim() == 4 and x.shape[2] % 2 == 0 else x
    ),
    'twice the first': lambda x: torch.cat((x, x)) if x.dim() else x,
    'without the last': lambda x: x[..., :-1] if x.dim() else x,
    'a number': lambda x: x.sum(),
    'nothing': lambda x: x.new_zeros(0),
}
ATTENTION = dict(embed_dim=24, depth=2, num_heads=2)


def vit():
    return timm.models.VisionTransformer(img_size=32, patch_size=8, **ATTENTION, num_classes=3).state_dict()


def swin():
    arch = dict(embed_dim=8, depths=(2, 1), num_heads=(1, 2))
    return timm.models.SwinTransformer(img_size=32, window_size=4, **arch, num_classes=3).state_dict()


def wrong(weights):
    """Each tensor changed in each way: its name and the weights."""
    for name, value in weights.items():
        for change in CHANGES.values():
            changed = change(value)
            if changed.shape != value.shape:
                yield name, {**weights, name: changed}


def refused(own, translation):
    """Whether loading would refuse a tensor for its shape, beside the tensors that a backbone has."""
    return 'of another shape' in misfits(translation, own)


def check_refusals(backbone, load, weights, dropped, message='of another shape: {} {} instead of ('):
    """Each wrong tensor is refused, and named if that is before all shapes are compared. What is left out may have any
    shape.

    Args:
        load: makes a Translation of weights.
        dropped: what is left out of the weights.
        message: with the name and the shape.
    """
    count, own = 0, backbone.state_dict()
    for name, given in wrong(weights):
        try:
            passed = not refused(own, load(given))
        except CheckpointError as error:
            assert message.format(name, tuple(given[name].shape)) in str(error)
            passed = False
        assert passed == (name in dropped), name
        count += not passed
    assert count > 100


def check_lacking(backbone, weights, dropped):
    """A warm start from weights without one of the tensors that it takes is refused, and so is an unknown tensor."""
    with pytest.raises(CheckpointError, match=r'have 1 tensors that it does not know \(other\)'):
        backbone._warm_started({**weights, 'other': torch.zeros(1)})
    for name in sorted(weights.keys() - set(dropped)):
        if '.attn.' in name or name.startswith('norm.') or name.endswith('num_batches_tracked'):
            continue
        with pytest.raises(CheckpointError, match='these weights lack'):
            backbone._warm_started({key: value for key, value in weights.items() if key != name})


def test_volo_lacks_nothing():
    sizes = dict(embed_dims=[8, 16], num_heads=[1, 2])
    volo = timm.models.volo.VOLO(layers=[1, 1], img_size=32, num_classes=3, stem_hidden_dim=8, **sizes).state_dict()
    arch = dict(embed_dim=8, depths=(1, 1), num_heads=(1, 2), stem_dim=8, mlp_ratio=3)
    backbone = ELSAVOLO(arch, [dict(type='ELSA', group_width=4), None], img_size=32, out_indices=(0, 1))
    check_lacking(backbone, volo, backbone.from_release(volo, warm_start=True).dropped)


@pytest.mark.parametrize('form', ['ViT', 'Swin'])
def test_warm_starts(form):
    """Also where tensors are rearranged before all shapes are compared. What is left out may have any shape."""
    settings = dict(groups=2, sharing='QKVVQ')
    if form == 'ViT':
        backbone, weights = MSFViT(arch=ATTENTION, patch_size=8, final_norm=True, **settings), vit()
    else:
        arch = dict(embed_dim=8, depths=(2, 1), num_heads=(1, 2))
        backbone, weights = MSFSwin(arch=arch, window_size=4, out_indices=(0, 1), **settings), swin()
    dropped = backbone.from_release(weights, warm_start=True).dropped
    assert not refused(backbone.state_dict(), Translation(backbone._warm_started(weights)))
    check_lacking(backbone, weights, dropped)
    check_refusals(backbone, lambda given: Translation(backbone._warm_started(given)), weights, dropped)


def test_warm_start_from_deit():
    frame = ViTFrame(arch=ATTENTION, attention=dict(type='DepthwiseConv'), embedding='deit', img_size=16, patch_size=8)
    dropped = frame.from_release(vit(), warm_start=True).dropped
    check_refusals(frame, lambda given: Translation(frame._warm_started(given)), vit(), dropped, ': {} ')


#: token mixers that take a part of another attention
TAKE = 'ELSA', 'AggregatedAttention', 'CosineAttention', 'RankAugmentedAttention'


@pytest.mark.parametrize('token_mixer', [None, *TAKE])
def test_a_swin(token_mixer):
    """Strictly, and with warm starts of token mixers that take a part of each attention."""
    arch = dict(embed_dim=8, depths=(2, 1), num_heads=(1, 2))
    frame = SwinFrame(arch, dict(type=token_mixer or 'WindowAttention'), window_size=4, out_indices=(0, 1))
    load = partial(frame.from_release, warm_start=token_mixer is not None)
    check_refusals(frame, load, swin(), load(swin()).dropped)


@pytest.mark.parametrize('token_mixer', [None, 'MeanShiftAttention', *TAKE[1:]])
def test_a_nat(token_mixer):
    """Strictly, and with warm starts of token mixers that take a part of each attention."""
    arch = dict(embed_dim=8, depths=(1, 1), num_heads=(1, 2), mlp_ratio=1, layer_scale=1)
    near = dict(type='NeighbourhoodAttention', kernel_size=3)
    weights = NAT(arch, near, out_indices=(0, 1)).state_dict()
    stages = near if token_mixer is None else [[dict(near, ghost_size=3)], dict(type=token_mixer)]
    frame = NAT(arch, stages, out_indices=(0, 1))
    load = partial(frame.from_release, warm_start=token_mixer is not None)
    check_refusals(frame, load, weights, load(weights).dropped)


def test_a_resnet():
    settings = dict(
        depth=dict(depths=(1, 1), stem_channels=8, base_channels=4, expansion=2), num_heads=2, out_indices=(0, 1)
    )
    weights = GSAResNet(**settings, gsa_stages=()).state_dict()
    backbone = GSAResNet(**settings, gsa_stages=(1,))
    own = backbone.state_dict()
    assert not refused(own, backbone.from_release(weights))
    for name, given in wrong(weights):
        assert refused(own, backbone.from_release(given)) == (name != 'layer2.0.conv2.weight'), name


@every_backbone
@pytest.mark.every(3)
def test_own_weights(case):
    """Tables that are resized to another size are treated alike."""
    backbone = case.build(case.tiny)
    weights = backbone.state_dict()
    assert not refused(weights, backbone.from_release(weights))
    for name, given in wrong(weights):
        assert refused(weights, backbone.from_release(given)), name
