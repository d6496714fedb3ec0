import pytest
from torch import nn

from mmattn.layers import batch_norm


@pytest.mark.parametrize('norm_type, cls', [('BN', nn.BatchNorm2d), ('SyncBN', nn.SyncBatchNorm)])
def test_types_and_settings(norm_type, cls):
    """OpenMMLab's names, with torch's settings; requires_grad=False freezes scale and offset."""
    norm = batch_norm(4, dict(type=norm_type, momentum=0.3, requires_grad=False))
    assert type(norm) is cls and norm.num_features == 4 and norm.momentum == 0.3
    assert not any(p.requires_grad for p in norm.parameters())
    assert all(p.requires_grad for p in batch_norm(4, dict(type=norm_type)).parameters())


@pytest.mark.parametrize(
    'norm_cfg, message',
    [
        (dict(type='GN'), "'GN'"),
        (None, 'norm_cfg'),
        (dict(type='BN', epsilon=1.0), 'norm_cfg has no key epsilon'),
        (dict(type='BN', requires_grad='False'), "norm_cfg: requires_grad must be True or False, not 'False'"),
    ],
    ids=['type', 'none', 'key', 'requires_grad'],
)
def test_bad_norm_cfg_is_named(norm_cfg, message):
    with pytest.raises(ValueError, match=message):
        batch_norm(4, norm_cfg)
