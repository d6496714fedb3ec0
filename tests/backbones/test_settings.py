"""What ``settings`` tell of a backbone. tests/backbones/test_properties.py shows that they leave nothing out."""

import io
from contextlib import nullcontext

import pytest
import torch
from mmengine.registry import MODELS

from mmattn.errors import CheckpointError
from tests.backbones.cases import every_backbone

SWIN = dict(arch=dict(embed_dim=8, depths=(1,), num_heads=(2,)), out_indices=(0,))
HEADS = [dict(arch=dict(SWIN['arch'], num_heads=(heads,))) for heads in (1, 2)]
OWN_HEADS = dict(type='SelfAttention', num_heads=4)
GAUSS = dict(type='MeanShiftAttention', form='residual')
MSF = dict(type='MeanShiftAttention')
ELSA = dict(arch=dict(SWIN['arch'], group_width=4), elsa_stages=(0,), out_indices=(0,))
VIT = dict(embed_dim=16, depth=1, num_heads=2)
SHUNTED = dict(embed_dims=(16,), depths=(1,), num_heads=(4,), stem_convs=0)
FEW_HEADS = dict(arch=dict(SHUNTED, num_heads=(2,)))
STAGE = dict(reductions=(2,), mlp_ratios=(2,), out_indices=(0,))
GSA = dict(
    depth=dict(depths=(1,), stem_channels=8, base_channels=8, expansion=2),
    gsa_stages=(0,),
    out_indices=(0,),
    num_heads=2,
)
CONTENT = dict(column=False, row=False)
NEAR = dict(type='NeighbourhoodAttention', rel_pos_bias=False)
WIDE_EPS = dict(norm_cfg=dict(type='BN', eps=0.1))


def build(name, *settings):
    return MODELS.build(dict(type=name, **{key: value for part in settings for key, value in part.items()})).eval()


@pytest.mark.parametrize(
    'name, common, one, other',
    [
        ('ELSASwin', ELSA, dict(), dict(dilation=2)),
        ('ELSASwin', ELSA, dict(lam=1), dict(lam=2)),
        ('ELSASwin', ELSA, dict(), dict(gamma=0.5)),
        ('ELSASwin', ELSA, dict(), dict(lam=1, gamma=0)),
        ('MSFSwin', SWIN, dict(), dict(form='residual')),
        ('MSFSwin', SWIN, dict(form='gauss'), dict(form='plain')),
        ('MSFSwin', SWIN, dict(sharing='QKVQW'), dict(sharing='QKVVW')),
        ('MSFSwin', dict(SWIN, groups=2), dict(), dict(group_mode='block')),
        ('SwinFrame', dict(attention=dict(type='EnhancedAttention'), out_indices=(0,)), *HEADS),
        ('SwinFrame', dict(SWIN, attention=dict(type='MeanShiftAttention')), dict(), dict(attention=GAUSS)),
        ('SwinFrame', dict(SWIN, attention=dict(type='SelfAttention')), dict(), dict(attention=OWN_HEADS)),
        ('SwinFrame', SWIN, dict(), dict(attention=dict(type='WindowAttention', shift=3))),
        ('SwinFrame', SWIN, dict(attention=dict(NEAR, kernel_size=3)), dict(attention=dict(NEAR, kernel_size=5))),
        ('ViTFrame', dict(arch=VIT), dict(feed_forward='conv'), dict(feed_forward='detail')),
        ('ViTFrame', dict(arch=VIT), dict(attention=MSF), dict(attention=dict(MSF, steps=2))),
        ('ViTFrame', dict(arch=VIT), dict(attention=MSF), dict(attention=dict(MSF, step_size=0.5))),
        ('MSFViT', dict(arch=VIT), dict(), dict(landmarks=2)),
        ('MSFViT', {}, dict(arch=VIT), dict(arch=dict(VIT, num_heads=4))),
        ('MSFViT', dict(arch=VIT), dict(patch_size=8, in_channels=12), dict(patch_size=16)),
        ('ShuntedTransformer', STAGE, dict(arch=SHUNTED), FEW_HEADS),
        ('ShuntedTransformer', dict(STAGE, arch=SHUNTED), dict(), WIDE_EPS),
        ('GSAResNet', dict(GSA, **CONTENT), dict(), dict(num_heads=4)),
        ('GSAResNet', GSA, dict(), dict(beyond='stretch')),
        ('GSAResNet', GSA, dict(), WIDE_EPS),
    ],
)
def test_tensors_of_the_same_shapes(name, common, one, other):
    """Where tensors do not tell two backbones apart, their settings do."""
    one, other = build(name, common, one), build(name, common, other)
    assert [value.shape for value in one.state_dict().values()] == [v.shape for v in other.state_dict().values()]
    assert one.settings != other.settings


def test_the_same_in_other_words():
    """Letters of a sharing are names only, and without groups or attention their settings do not count."""
    assert (
        build('MSFSwin', SWIN, dict(sharing='QKKQW')).settings == build('MSFSwin', SWIN, dict(sharing='VPPVW')).settings
    )
    assert build('MSFSwin', SWIN).settings == build('MSFSwin', SWIN, dict(group_mode='block')).settings
    plain = dict(GSA, gsa_stages=())
    assert build('GSAResNet', plain).settings == build('GSAResNet', plain, dict(beyond='stretch', num_heads=1)).settings


@every_backbone
def test_plain_values(case):
    """A checkpoint with them is read without running code."""
    settings, file = case.build(case.small).settings, io.BytesIO()
    assert settings
    torch.save(dict(meta=settings), file)
    file.seek(0)
    assert torch.load(file, weights_only=True)['meta'] == settings
    parts = [part for value in settings.values() for part in (value if isinstance(value, list) else [value])]
    assert {type(part) for part in parts} <= {int, float, str, bool}


@pytest.mark.parametrize(
    'backbone, noted, refused',
    [
        (('SwinFrame', dict(SWIN, attention=[GAUSS])), {'stages[0]': GAUSS['type'], 'stages[0].attention': 'msf'}, 1),
        (
            ('SwinFrame', dict(SWIN, attention=[GAUSS])),
            {'stages[0]': GAUSS['type'], 'stages[0].attention': 'residual'},
            0,
        ),
        (('MSFSwin', SWIN), dict(attention='gauss'), 1),
        (('MSFSwin', SWIN), dict(attention='msf'), 0),
    ],
    ids=['frame-differs', 'frame', 'msf-differs', 'msf'],
)
def test_notes_under_earlier_names(tmp_path, backbone, noted, refused):
    """Files written when ``attention`` was called ``stages``, and ``form`` was called ``attention``, are compared."""
    model = build(*backbone)
    saved = {'sharing': 'QKVPW', **noted} if backbone[0] == 'MSFSwin' else {'stages[0].sharing': 'QKVPW', **noted}
    note = {'': dict(type=backbone[0], **saved)}
    torch.save(dict(state_dict=model.state_dict(), meta=dict(mmattn=note)), tmp_path / 'old.pth')
    with pytest.raises(CheckpointError, match='trained with .*form=') if refused else nullcontext():
        model.load_pretrained(tmp_path / 'old.pth')
