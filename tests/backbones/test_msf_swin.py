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


def test_warm_start_from_released_swin(log):
    """All usable tensors of Microsoft's checkpoints are taken. The log names the others."""
    arch = dict(embed_dim=8, depths=(2, 2), num_heads=(1, 2))
    weights = timm.models.SwinTransformer(img_size=64, window_size=4, **arch).state_dict()
    backbone = MSFSwin(arch, window_size=4, out_indices=(0, 1))
    own = backbone._warm_started(microsoft(weights))
    afresh, left = (
        set(next(line for line in log if f'warm start: {what}' in line).split(f'{what}: ')[1].split(', '))
        for what in ('keep their initial values', 'left out')
    )
    assert afresh == {f'norm{i}.{kind}' for i in (0, 1) for kind in ('weight', 'bias')} and 'norm.weight' in left
    q, k, v = weights['layers.1.blocks.1.attn.qkv.weight'].chunk(3)
    expected = torch.cat((8 * q, k / 8, v, torch.zeros(16, 16)))
    assert torch.equal(own['layers.1.blocks.1.attn.attn.pre_proj.weight'], expected)
    assert 'layers.0.blocks.0.attn.qkv.bias' in left
    assert torch.equal(own['layers.0.downsample.reduction.weight'], weights['layers.1.downsample.reduction.weight'])
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
