"""The ResNet in which rivals of GSA are compared: places, widths and starts that GSA-ResNet does not have."""

import pytest
import torch
from torch import nn

from mmattn.backbones import GSAResNet
from mmattn.errors import CheckpointError
from mmattn.ops.any_size import average_pool
from mmattn_lab import RivalResNet
from tests.backbones.test_gsa_resnet import SMALL, randomised


def test_attention_after_pooling():
    """With ``pool_first``, it sees the pooled map, also an odd one, and its tables are for that map."""
    block = RivalResNet(**SMALL, pool_first=True).double().eval().layer2[0]
    assert len(block.attn.rel_row) == 2 * 8 - 1
    x, inputs = torch.randn(1, 8, 7, 10, dtype=torch.float64), []
    block.bn2.register_forward_pre_hook(lambda norm, args: inputs.append(args[0]))
    with torch.no_grad():
        block(x)
        inner = average_pool(torch.relu(block.bn1(block.conv1(x))))
        torch.testing.assert_close(inputs[0].permute(0, 2, 3, 1), block.attn(inner.permute(0, 2, 3, 1)))


def test_inserted_blocks(tmp_path, log):
    """A token mixer follows the named blocks, on all channels. Beside weights of a ResNet, non-local blocks start as
    the identity."""
    settings = dict(SMALL, gsa_stages=(), insert_after=[(1, 0), [3, 0]])
    ours = RivalResNet(**settings, attention=dict(type='NonLocal'))
    assert [name for name, m in ours.named_modules() if type(m).__name__ == 'NonLocal'] == [
        'layer2.0.attn_after',
        'layer4.0.attn_after',
    ]
    torch.save(randomised(GSAResNet(**SMALL, gsa_stages=())).state_dict(), tmp_path / 'resnet.pth')
    ours.load_pretrained(tmp_path / 'resnet.pth')
    (line,) = (line for line in log if 'first pass' in line)
    assert 'differs from that of a ResNet by 0.0 %, 0.0 %, 0.0 %, 0.0 %' in line
    twice = RivalResNet(**settings, attention=dict(type=Twice)).eval()
    plain = GSAResNet(**SMALL, gsa_stages=()).eval()
    plain.load_state_dict(twice.state_dict())
    with torch.no_grad():
        x = torch.rand(1, plain.layer2[0].conv1.in_channels, 6, 5)
        torch.testing.assert_close(twice.layer2[0](x), 2 * plain.layer2[0](x))


class Twice(nn.Module):
    def forward(self, x):
        return 2 * x


def test_inner_layers_have_a_width_of_their_own():
    """``width_ratio`` changes the inner layers, with and without attention, and no map between blocks."""
    backbone = RivalResNet(**{**SMALL, 'gsa_stages': (2,)}, width_ratio=1.5)
    assert backbone.layer1[0].conv2.weight.shape[:2] == (6, 6)
    assert backbone.layer3[0].attn.value.weight.shape[0] == 24
    assert backbone.out_channels == GSAResNet(**SMALL).out_channels


@pytest.mark.parametrize(
    'settings, message',
    [
        (dict(insert_after=[(0, 0)]), 'insert_after needs attention'),
        (dict(insert_after=[(1, 2)], attention=dict(type='NonLocal')), r'of \[1, 2, 1, 1\] blocks, not \[\(1, 2\)\]'),
        (dict(width_ratio=0.1), 'width_ratio must make at least 1 of 4 channels'),
    ],
)
def test_impossible_places(settings, message):
    with pytest.raises(ValueError, match=message):
        RivalResNet(**{**SMALL, **settings})


FORMS = [
    dict(pool_first=True),
    dict(attention=dict(type='EfficientAttention', reduction=1), insert_after=[(0, 0), (1, 1)]),
]


@pytest.mark.parametrize('settings', FORMS, ids=str)
def test_forms(settings, tmp_path):
    """Each form takes maps of odd sides and trains all its weights. Its checkpoint fits it, and not the default."""
    backbone = RivalResNet(**SMALL, zero_init_residual=False, **settings)
    maps = backbone(torch.randn(2, 3, 37, 61))
    assert [tuple(out.shape[2:]) for out in maps] == [(10, 16), (5, 8), (3, 4), (2, 2)]
    sum(out.square().sum() for out in maps).backward()
    assert all(p.grad is not None for p in backbone.parameters())
    path = tmp_path / 'weights.pth'
    torch.save(dict(state_dict=backbone.state_dict(), meta=dict(mmattn={'': backbone.settings_note})), path)
    RivalResNet(**SMALL, **settings).load_pretrained(path)
    with pytest.raises(CheckpointError):
        RivalResNet(**SMALL).load_pretrained(path)
