import re

import pytest
import timm
import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import nn

from mmattn.backbones import ELSAVOLO
from mmattn.layers import OutlookAttention
from mmattn.weights import CheckpointError

VOLO = None
SMALL = dict(embed_dim=12, depths=(2, 1, 1, 1), num_heads=(2, 4), stem_dim=8, mlp_ratio=3)


def timm_small(img_size=64, drop_path_rate=0.0):
    """The VOLO of SMALL, with running statistics that make a difference."""
    model = timm.models.volo.VOLO(
        layers=[2, 1, 1, 1],
        img_size=img_size,
        num_classes=5,
        stem_hidden_dim=8,
        embed_dims=[12, 24, 24, 24],
        num_heads=[2, 4, 4, 4],
        drop_path_rate=drop_path_rate,
    ).eval()
    for name, value in model.named_buffers():
        if 'running' in name:
            nn.init.uniform_(value, 0.5, 1.5)
    return model


@pytest.mark.parametrize('img_size', [224, pytest.param(384, marks=pytest.mark.slow)])
@torch.no_grad()
def test_maps_of_timm(img_size):
    """timm's VOLO-D1 fills all tensors of the plain backbone, which gives the same maps."""
    reference = timm.create_model('volo_d1_224', pretrained=False, img_size=img_size).eval()
    backbone = ELSAVOLO('d1', VOLO, img_size=img_size).eval()
    backbone.load_state_dict(reference.state_dict())
    x = torch.randn(1, 3, img_size, img_size)
    expected = reference.forward_intermediates(x, norm=False, intermediates_only=True)
    for out, wanted in zip(backbone(x), expected, strict=True):
        torch.testing.assert_close(out, wanted, atol=1e-5, rtol=0)


@torch.no_grad()
def test_file_of_the_authors(tmp_path):
    """The authors' file, and another image size than that of the checkpoint: the table of positions is resized. With
    final_norm, the map of the last stage has VOLO's norm."""
    reference = timm_small()
    nn.init.normal_(reference.norm.weight)
    weights = {f'module.{name}': value for name, value in reference.state_dict().items()}
    torch.save(dict(state_dict=weights, epoch=3), tmp_path / 'd1.pth.tar')
    init_cfg = dict(type='Pretrained', checkpoint=str(tmp_path / 'd1.pth.tar'))
    backbone = MODELS.build(
        dict(type='ELSAVOLO', arch=SMALL, attention=VOLO, img_size=96, final_norm=True, init_cfg=init_cfg)
    )
    backbone.init_weights()
    table = reference.pos_embed.permute(0, 3, 1, 2)
    resized = F.interpolate(table, (6, 6), mode='bicubic', align_corners=False).permute(0, 2, 3, 1)
    torch.testing.assert_close(backbone.network[1].pos_embed, resized)
    reference.pos_embed.data = resized
    x = torch.randn(1, 3, 96, 96)
    expected = reference.forward_features(x)[:, 1:].transpose(1, 2).unflatten(2, (6, 6))
    torch.testing.assert_close(backbone.eval()(x)[-1], expected)


@torch.no_grad()
def test_other_sizes_of_images():
    """The table is resized to the map, as it would be if it were loaded for that size."""
    weights = timm_small().state_dict()
    x = torch.randn(1, 3, 96, 96)
    maps = []
    for img_size in (64, 96):
        backbone = ELSAVOLO(SMALL, VOLO, img_size=img_size).eval()
        backbone.load_state_dict(weights)
        maps.append(backbone(x))
    torch.testing.assert_close(*maps)


@torch.no_grad()
def test_padding():
    """An image is padded with zeros to a multiple of 8 pixels, and the map of stride 8 to one of 2 pixels."""
    backbone = ELSAVOLO(SMALL, VOLO, img_size=64).eval()
    x = torch.randn(1, 3, 60, 83)
    for out, expected in zip(backbone(x), backbone(F.pad(x, (0, 5, 0, 4)))):
        torch.testing.assert_close(out, expected)
    tokens = torch.randn(1, 3, 5, 12)
    torch.testing.assert_close(backbone.network[1](tokens), backbone.network[1](F.pad(tokens, (0, 0, 0, 1, 0, 1))))


@pytest.mark.parametrize('settings', [dict(), dict(out_indices=(0, 1)), dict(final_norm=True)], ids=str)
def test_warm_start(log, settings):
    """The ELSA form takes all of a VOLO but the first stage's attention, and says what starts afresh."""
    reference = timm_small().state_dict()
    backbone = ELSAVOLO(SMALL, img_size=96, **settings)
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    backbone.load_state_dict(backbone._warm_started(reference))
    (kept,) = (line.split(': ')[-1].split(', ') for line in log if 'keep their initial values' in line)
    assert (
        set(kept) == {name for name in before if name.startswith(('network.0.0.attn.', 'network.0.1.attn.'))} != set()
    )
    for name, value in backbone.state_dict().items():
        if name in kept:
            assert torch.equal(value, before[name])
        elif 'pos_embed' not in name:
            assert torch.equal(value, reference[name])


def test_the_log_says_how_far_a_start_is_from_volo(tmp_path, log):
    """A VOLO is compared with itself at its own table of positions, and ELSA with it."""
    torch.save(timm_small().state_dict(), tmp_path / 'volo.pth')
    for attention in (VOLO, [dict(type='ELSA'), None, None, None]):
        ELSAVOLO(SMALL, attention, img_size=64).load_pretrained(tmp_path / 'volo.pth', warm_start=True)
    same, other = (re.findall(r'([0-9.]+) %', line) for line in log if 'differs from that of a VOLO by' in line)
    assert same == ['0.0'] * 4 and len(other) == 4 and '0.0' not in other


def test_weights_of_the_other_form():
    """VOLO's weights do not pass for those of ELSA-VOLO; the error tells of the warm start."""
    with pytest.raises(CheckpointError, match='they look like a VOLO; warm_start=True beside the checkpoint'):
        ELSAVOLO(SMALL, img_size=64).load_state_dict(timm_small().state_dict())
    with pytest.raises(CheckpointError, match='they look like an ELSA-VOLO'):
        ELSAVOLO(SMALL, VOLO).load_state_dict(ELSAVOLO(SMALL).state_dict())


def test_mix_token():
    """In the box, on the map of stride 16, the tokens of the stem are those of the reversed batch."""
    backbone = ELSAVOLO(SMALL, VOLO).eval()
    x, box = torch.randn(3, 3, 64, 96), (1, 2, 3, 5)
    tokens = backbone.patch_embed(x)
    mixed = tokens.clone()
    for row in range(2, 6):
        for column in range(4, 10):
            mixed[:, row, column] = tokens[[2, 1, 0], row, column]
    maps = backbone(x, box)
    backbone.patch_embed.register_forward_hook(lambda *_: mixed)
    for out, expected in zip(maps, backbone(x), strict=True):
        torch.testing.assert_close(out, expected)


def test_drop_path():
    """It is 0 in the first stage and rises as in timm's VOLO."""
    backbone = ELSAVOLO(SMALL, drop_path_rate=0.4)
    rates = [block.drop_path.drop_prob for part in (0, 2, 3, 4) for block in backbone.network[part]]
    reference = [
        getattr(block.drop_path1, 'drop_prob', 0.0)
        for part in (0, 2, 3, 4)
        for block in timm_small(drop_path_rate=0.4).network[part]
    ]
    assert rates == pytest.approx(reference) and rates[:2] == [0, 0] and rates[-1] == 0.4


def test_defaults():
    """The reconstruction: a kernel of 7, a group width of 16, the ghost head without its multiplier, and no bias for
    query, key and value; VOLO's attention elsewhere."""
    with torch.device('meta'):
        backbone = ELSAVOLO('d1')
    elsa = backbone.network[0][0].attn
    assert (elsa.kernel_size, elsa.attn[0].weight.shape[1], elsa.lam, elsa.gamma) == (7, 16, 0, 1)
    assert elsa.pre_proj.bias is None and elsa.num_heads == 6 and elsa.ghost_head.shape == (1, 192, 7, 7)
    assert not any(isinstance(module, OutlookAttention) for module in backbone.modules())


@pytest.mark.parametrize(
    'wrong, message',
    [
        (dict(img_size=0), 'img_size'),
        (dict(arch=dict(SMALL, depths=(2,))), 'depths must have two or more numbers'),
        (dict(arch=dict(SMALL, num_heads=(2, 4, 4, 4))), 'and num_heads two'),
        (dict(arch=dict(SMALL, num_heads=(2, 5))), 'num_heads 5 does not divide the 24 channels'),
    ],
)
def test_impossible_settings_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        ELSAVOLO(**wrong)
