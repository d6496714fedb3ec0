"""The examples of fine-tuning in docs/weights.md do what the page says."""

import re

import pytest
import torch
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, DefaultScope

from mmguard.runs.configs import load_config
from tests import ROOT

PAGE = (ROOT / 'docs' / 'weights.md').read_text().partition('## Fine-tuning\n')[2].partition('\n## ')[0]
EXAMPLES = dict(
    zip(('freezing', 'decay', 'lora', 'average'), re.findall('```python\n(.*?)```', PAGE, re.DOTALL), strict=True)
)
#: backbone of the page's table of targets, beside that of the example -> a detector, and what the example needs for it
DETECTORS = {
    'MSFSwin': ('../configs/msf/mask-rcnn_msf-swin-t_fpn_ms-1x_coco.py', '_base_.model.backbone'),
    'ShuntedTransformer': (
        '../configs/shunted/mask-rcnn_shunted-s_fpn_1x_coco.py',
        'dict(_base_.model.backbone, norm_eval=True)',
    ),
}


@pytest.fixture
def load(tmp_path):
    """A function that loads an example as the tools do, and leaves out the pretrained weights."""

    def load(example):
        path = tmp_path / 'example.py'
        path.write_text(EXAMPLES.get(example, example).replace("'../configs/", f"'{ROOT}/configs/"))
        cfg = load_config(path)
        backbone = cfg.model.backbone
        checkpoint = backbone.get('module', backbone).pop('init_cfg').checkpoint
        assert checkpoint == 'checkpoints/elsa_swin_tiny.pth' or example not in EXAMPLES
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
    of the last stage have a linear qkv."""
    names = trained(MODELS.build(load('lora').model.backbone))
    assert all('.lora_' in name for name in names) and len(names) == 2 * (2 + 12 + 12 + 12)


@pytest.mark.parametrize('name', DETECTORS)
def test_lora_targets_of_each_backbone(name, load):
    """Each target that the page names for a backbone passes the tools' checks, and is a linear layer of it."""
    row = next(line for line in PAGE.splitlines() if line.startswith('| ') and name in line.split('|')[1])
    targets = re.findall('`([^`]+)`', ''.join(row.split('|')[2:]))
    base, module = DETECTORS[name]
    example = EXAMPLES['lora'].replace('../configs/elsa_swin/mask-rcnn_elsa-swin-t_fpn_ms-1x_coco.py', base)
    example = example.replace('module=_base_.model.backbone', f'module={module}')
    head, _, tail = example.partition('targets=[')
    assert module in PAGE and len(targets) >= 4
    cfg = load(f'{head}targets={[dict(type=target) for target in targets]}{tail.partition("]")[2]}')
    layers = {key.partition('.lora_')[0] for key in trained(MODELS.build(cfg.model.backbone))}
    for target in targets:
        assert any(re.fullmatch(target, layer) or layer.endswith(f'.{target}') for layer in layers), target


def test_averaged_weights(load):
    assert load('average').custom_hooks[0].type == 'EMAHook'
