"""What ``settings`` tell of a backbone. tests/backbones/test_properties.py shows that they leave nothing out."""

import io
from contextlib import nullcontext

import pytest
import torch
from mmengine.registry import MODELS

from mmattn.errors import CheckpointError
from tests.backbones.cases import every_backbone

SWIN = dict(arch=dict(embed_dim=8, depths=(1,), num_heads=(2,)), out_indices=(0,))
GAUSS = dict(type='MeanShiftAttention', form='residual')
GSA = dict(
    depth=dict(depths=(1,), stem_channels=8, base_channels=8, expansion=2),
    gsa_stages=(0,),
    out_indices=(0,),
    num_heads=2,
)


def build(name, *settings):
    return MODELS.build(dict(type=name, **{key: value for part in settings for key, value in part.items()})).eval()


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
