"""The examples of docs/fine_tuning.md do what the page says."""

import re

import pytest
import torch
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, DefaultScope

from mmattn.runs.configs import load_config
from tests import ROOT

EXAMPLES = dict(
    zip(
        ('freezing', 'decay', 'lora', 'average'),
        re.findall('```python\n(.*?)```', (ROOT / 'docs' / 'fine_tuning.md').read_text(), re.DOTALL),
        strict=True,
    )
)


@pytest.fixture
def load(tmp_path):
    """A function that loads an example and leaves out the pretrained weights."""

    def load(name):
        path = tmp_path / 'example.py'
        path.write_text(EXAMPLES[name].replace("'./", f"'{ROOT}/configs/"))
        cfg = load_config(path)
        backbone = cfg.model.backbone
        assert backbone.get('module', backbone).pop('init_cfg').checkpoint == 'checkpoints/elsa_swin_tiny.pth'
        return cfg

    return load


def trained(backbone):
    return [name for name, value in backbone.named_parameters() if value.requires_grad]


def test_freezing(load):
    with torch.device('meta'):
        names = trained(MODELS.build(load('freezing').model.backbone))
    assert not any(name.startswith(('patch_embed', 'layers.0.')) for name in names)
    assert any(name.startswith('layers.1.') for name in names)


def test_layer_decay(load):
    """There are 14 learning rates: of the stem, 12 blocks and the heads."""
    cfg = load('decay')
    with torch.device('meta'), DefaultScope.overwrite_default_scope('mmseg'):
        groups = build_optim_wrapper(MODELS.build(cfg.model), cfg.optim_wrapper).param_groups
    rates = sorted({group['lr'] / cfg.optim_wrapper.optimizer.lr for group in groups})
    assert rates == pytest.approx([0.9**i for i in range(13, -1, -1)])


def test_lora(load):
    """Each linear layer in the table gets two matrices. Nothing else of the backbone is trained. Only the two blocks
    of the last stage have a linear pre_proj."""
    names = trained(MODELS.build(load('lora').model.backbone))
    assert all('.lora_' in name for name in names) and len(names) == 2 * (2 + 12 + 12 + 12)


def test_averaged_weights(load):
    assert load('average').custom_hooks[0].type == 'EMAHook'
