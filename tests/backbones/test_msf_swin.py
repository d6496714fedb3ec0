import argparse

import pytest
import timm
import torch
from mmengine.config import DictAction
from mmengine.registry import MODELS

from mmattn.backbones import MSFSwin
from mmattn.weights import CheckpointError
from mmattn.weights.sources import check_source
from tests import ROOT
from tests.configs import named

SMALL = dict(arch=dict(embed_dim=8, depths=(1, 2), num_heads=(1, 2)), window_size=4, out_indices=(0, 1))


def microsoft(weights):
    """timm's weights under Microsoft's names: patch merging at the end of a stage, the classifier a single layer."""
    rename = {f'layers.{i + 1}.downsample.': f'layers.{i}.downsample.' for i in range(3)} | {'head.fc.': 'head.'}
    for old, new in rename.items():
        weights = {new + key.removeprefix(old) if key.startswith(old) else key: value for key, value in weights.items()}
    area = weights['layers.0.blocks.0.attn.qkv.weight'].shape[0] // 3
    return {
        **weights,
        'layers.0.blocks.1.attn_mask': torch.zeros(area, 49, 49),
        'layers.0.blocks.0.attn.relative_position_index': torch.zeros(49, 49, dtype=torch.long),
    }


@pytest.mark.parametrize(
    'layout, settings',
    [(lambda weights: weights, dict()), (lambda weights: {'model': microsoft(weights)}, dict(groups=2))],
)
def test_warm_start_from_released_swin(tmp_path, log, layout, settings):
    """All usable tensors of Microsoft's and timm's checkpoints are taken. The log names the others."""
    weights = timm.create_model('swin_tiny_patch4_window7_224').state_dict()
    torch.save(layout(weights), tmp_path / 'swin.pth')
    backbone = MSFSwin(
        **settings, init_cfg=dict(type='Pretrained', checkpoint=str(tmp_path / 'swin.pth'), warm_start=True)
    )
    backbone.init_weights()
    own = backbone.state_dict()
    afresh, left = (
        set(next(line for line in log if f'warm start: {what}' in line).split(f'{what}: ')[1].split(', '))
        for what in ('keep their initial values', 'left out')
    )
    expected = {f'norm{i}.{kind}' for i in backbone.out_indices for kind in ('weight', 'bias')}
    projection = backbone.layers[1].blocks[1].attn.attn.pre_proj
    dense = projection.dense_weight() if 'groups' in settings else projection.weight
    free = dense[:576] != 0  # zero between groups
    assert free.float().mean() == (0.5 if 'groups' in settings else 1)
    q, k, v = weights['layers.1.blocks.1.attn.qkv.weight'].chunk(3)
    expected_weight = torch.cat((torch.cat((8 * q, k / 8, v)) * free, torch.zeros(192, 192)))
    assert torch.equal(dense, expected_weight)
    assert afresh == expected and 'norm.weight' in left
    assert ('layers.0.blocks.0.attn.qkv.bias' in left) != ('proj_bias' in settings)
    assert torch.equal(own['layers.1.downsample.reduction.weight'], weights['layers.2.downsample.reduction.weight'])
    table = 'layers.0.blocks.0.attn.relative_position_bias_table'
    assert torch.equal(own[table], weights[table])


@pytest.mark.parametrize(
    'config, timm_name',
    [
        ('mask-rcnn_msf-swin-t-g2_fpn_ms-1x_coco', 'swin_tiny_patch4_window7_224'),
        ('msf-vit-s-g2_setr-mla_8xb2-160k_ade20k-512x512', 'vit_small_patch16_224'),
    ],
)
def test_options_of_the_readme_start_warm(tmp_path, log, config, timm_name):
    """With the options that the README gives, a config starts from published weights, in their layout; here from a file
    in the place of a download. It takes the biases of attention, too. Images are normalised as for these weights."""
    readme = (ROOT / 'configs' / 'msf' / 'README.md').read_text()
    (options,) = (line for line in readme.splitlines() if line.startswith('--cfg-options') and timm_name in line)
    parser = argparse.ArgumentParser()
    parser.add_argument('--cfg-options', nargs='+', action=DictAction)
    cfg = named(config)
    cfg.merge_from_dict(parser.parse_args(options.split()).cfg_options)
    model = timm.create_model(timm_name)
    weights = model.state_dict()
    start = cfg.model.backbone.init_cfg
    check_source(start.checkpoint)
    start.checkpoint = str(tmp_path / 'weights.pth')
    torch.save({'model': microsoft(weights)} if 'swin' in timm_name else weights, start.checkpoint)
    backbone = MODELS.build(cfg.model.backbone)
    backbone.init_weights()
    assert torch.equal(backbone.patch_embed.proj.bias, weights['patch_embed.proj.bias'])
    left = next(line for line in log if 'warm start: left out' in line)
    assert 'attn.qkv.bias' not in left and 'attn.proj.bias' not in left
    for kind in ('mean', 'std'):
        expected = [255 * value for value in model.default_cfg[kind]]
        assert list(cfg.model.data_preprocessor[kind]) == pytest.approx(expected)


def test_probe_starts_silent():
    """After a warm start, mean shift is the Gaussian kernel alone."""
    swin = timm.models.SwinTransformer(img_size=64, embed_dim=8, depths=(1, 2), num_heads=(1, 2), window_size=4)
    maps = []
    for form in ('msf', 'gauss'):
        backbone = MSFSwin(**SMALL, form=form).eval()
        backbone.load_state_dict(
            {**backbone.state_dict(), **backbone.from_release(swin.state_dict(), warm_start=True).tensors}
        )
        maps.append(backbone(torch.ones(1, 3, 50, 40).cumsum(3)))
    for a, b in zip(*maps):
        torch.testing.assert_close(a, b)


def test_tables_that_were_written_before():
    """Tables of relative positions were once by key minus query, under another name; one too many is refused."""
    backbone, other = (MSFSwin(**SMALL).eval() for _ in range(2))
    weights, name = backbone.state_dict(), 'relative_position_bias_table'
    before = {
        key.replace(name, 'rb'): value.t().flip(1) if key.endswith(name) else value for key, value in weights.items()
    }
    other.load_state_dict(before)
    assert all(torch.equal(value, weights[key]) for key, value in other.state_dict().items())
    with pytest.raises(CheckpointError, match=r'not used: layers\.0\.blocks\.0\.attn\.rb'):
        other.load_state_dict({**before, **weights})
