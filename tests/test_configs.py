import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope

from tests import ROOT

CONFIGS = sorted(path for path in (ROOT / 'configs').rglob('*.py') if '_base_' not in path.parts)
CLASSIFIERS = [path for path in CONFIGS if path.stem.endswith('_in1k')]


def names(path: Path) -> str:
    return path.stem


@pytest.mark.parametrize('path', CLASSIFIERS, ids=names)
def test_classifier_fits(path):
    """MMPretrain is not part of the stack, but its linear head takes what the backbone's only map has."""
    cfg = Config.fromfile(path)
    with torch.device('meta'):
        (out,) = MODELS.build(cfg.model.backbone)(torch.empty(1, 3, 64, 64))
    assert cfg.default_scope == 'mmpretrain' and out.shape[1] == cfg.model.head.in_channels


@pytest.mark.parametrize('path', sorted(set(CONFIGS) - set(CLASSIFIERS)), ids=names)
def test_config_builds(path):
    """Every config resolves on its own and builds a model whose parts fit together."""
    cfg = Config.fromfile(path)
    for key in ('train_dataloader', 'val_dataloader', 'test_evaluator', 'optim_wrapper', 'tta_model', 'tta_pipeline'):
        assert key in cfg
    with torch.device('meta'), DefaultScope.overwrite_default_scope(cfg.default_scope):
        model = MODELS.build(cfg.model).eval()
        maps = model.extract_feat(torch.empty(1, 3, 64, 64))
    head = next(getattr(model, name) for name in ('decode_head', 'rpn_head', 'bbox_head') if hasattr(model, name))
    head(maps)


@pytest.mark.parametrize('config', ['msf-vit-s_fpn_8xb2-80k_ade20k-512x512', 'mask-rcnn_msf-vit-s_fpn_ms-1x_coco'])
def test_pyramid_over_vit(config):
    """MMSegmentation's neck makes strides 4 to 32 of a ViT's maps, under either package and at odd sizes of these, and
    every map reaches the loss."""
    cfg = Config.fromfile(ROOT / 'configs' / 'msf' / f'{config}.py')
    first, fpn = cfg.model.neck
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        pyramid = MODELS.build({**first, 'norm_cfg': dict(type='BN')})  # on the CPU
        necks = torch.nn.Sequential(pyramid, MODELS.build(fpn))
    maps = [torch.randn(2, 384, 7, 9, requires_grad=True) for _ in range(4)]
    assert [tuple(out.shape[2:]) for out in pyramid(maps)] == [(28, 36), (14, 18), (7, 9), (3, 4)]
    sum(out.square().mean() for out in necks(maps)).backward()
    assert all(m.grad.abs().sum() > 0 for m in maps)


@pytest.mark.parametrize(
    'variable, config, key',
    [
        ('COCO_ROOT', 'mask-rcnn_elsa-swin-t_fpn_ms-1x_coco', 'train_dataloader.dataset.data_root'),
        ('ADE20K_ROOT', 'elsa-swin-t_upernet_8xb2-160k_ade20k-512x512', 'val_dataloader.dataset.data_root'),
    ],
)
def test_root_alone_moves_the_data(monkeypatch, variable, config, key):
    monkeypatch.setenv(variable, 'elsewhere/')
    cfg = Config.fromfile(ROOT / 'configs' / 'elsa_swin' / f'{config}.py')
    value = cfg
    for part in key.split('.'):
        value = value[part]
    assert value == 'elsewhere/' and 'data/' not in str(cfg.val_evaluator.get('ann_file'))


@pytest.mark.parametrize('index', yaml.safe_load((ROOT / 'model-index.yml').read_text())['Import'])
def test_model_index(index):
    """The index names the metafiles of all folders, and these name configs that exist, each once."""
    entries = yaml.safe_load((ROOT / index).read_text())
    configs = [entry['Config'] for entry in entries['Models']]
    assert len(set(configs)) == len(configs) and all((ROOT / config).is_file() for config in configs)
    assert all(entry['Name'] == Path(entry['Config']).stem for entry in entries['Models'])
    assert (ROOT / entries['Collections'][0]['README']).is_file()


def test_model_index_is_complete():
    imports = yaml.safe_load((ROOT / 'model-index.yml').read_text())['Import']
    assert {str(path.relative_to(ROOT)) for path in (ROOT / 'configs').glob('*/metafile.yml')} == set(imports)


@pytest.fixture(scope='module')
def complexity():
    spec = importlib.util.spec_from_file_location('complexity', ROOT / 'tools' / 'complexity.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_complexity_counts_the_operator_and_attention(complexity):
    """A layer's operations by hand: projections, Hadamard convolutions, sum, ghost head; and window attention."""
    from mmattn.analysis import count_operations
    from mmattn.layers import ELSA, EnhancedAttention, WindowAttention

    H, W, C, heads, k, width = 14, 21, 12, 2, 5, 4
    qk = 8

    with torch.device('meta'):
        elsa, window, x = ELSA(C, heads, k, group_width=width), WindowAttention(C, heads, 7), torch.empty(1, H, W, C)
    per_pixel = C * (2 * qk + C) + qk * width * k * k + qk * heads * k * k + 2 * C * k * k + C * C
    assert count_operations(lambda: elsa(x)) == per_pixel * H * W
    assert count_operations(lambda: window(x)) == (4 * C * C + 2 * 49 * C) * H * W
    shunted = EnhancedAttention(C, heads)  # on the CPU, whose fused attention is an operator of its own
    expected = (4 * C * C + 9 * C + 2 * H * W * C) * H * W
    assert count_operations(lambda: shunted(torch.empty(1, H, W, C))) == expected


def test_complexity_counts_matrices_where_the_paper_does(complexity):
    """With "Parameters Counted: matrices", biases and norms do not count; without, they do."""

    class Model(torch.nn.Module):
        decode_head = True

        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 2)

        def forward(self, x):
            return self.layer(x.new_empty(1, 4))

    with torch.device('meta'):
        model = Model()
    for metadata, wrong in (
        (dict(Parameters=8), 1),
        (dict(Parameters=10), 0),
        (dict(Parameters=8, **{'Parameters Counted': 'matrices'}), 0),
    ):
        assert complexity.report('', model, 'mmseg', dict(Metadata=metadata)) == wrong


def test_complexity_lists_ablations(complexity):
    """Table 1 of MSF: tied forms have the paper's number of parameters, in the unit of the entry; a figure 5 %
    higher would be seen."""
    folder = ROOT / 'configs' / 'msf'
    entry = next(
        entry
        for entry in yaml.safe_load((folder / 'metafile.yml').read_text())['Models']
        if entry['Name'] == 'msf-vit-s_in1k'
    )
    rows = complexity.ablations(Config.fromfile(folder / 'msf-vit-s_in1k.py'), entry)
    assert len(rows) == 19 and rows[8][0].strip() == 'sharing=QKKQW'
    assert complexity.report(*rows[0]) == complexity.report(*rows[8]) == 0
    rows[8][3]['Metadata']['Parameters'] *= 1.05
    assert complexity.report(*rows[8]) == 1


def test_complexity_fails_on_a_wrong_figure(tmp_path):
    """Beside the paper's row the tool passes; with the figure 5 % higher it says so and exits with 1."""
    for name in ('elsa-swin-t_in1k.py', 'metafile.yml'):
        (tmp_path / name).write_text((ROOT / 'configs' / 'elsa_swin' / name).read_text())
    entries = yaml.safe_load((tmp_path / 'metafile.yml').read_text())
    entries['Models'] = entries['Models'][:1]
    (tmp_path / 'metafile.yml').write_text(yaml.safe_dump(entries))

    def run() -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, ROOT / 'tools' / 'complexity.py', tmp_path / 'elsa-swin-t_in1k.py'],
            capture_output=True,
            text=True,
            env=dict(os.environ, CUDA_VISIBLE_DEVICES=''),
        )

    assert run().returncode == 0
    entries['Models'][0]['Metadata']['FLOPs'] = int(4.8e9 * 1.05)
    (tmp_path / 'metafile.yml').write_text(yaml.safe_dump(entries))
    done = run()
    assert done.returncode == 1 and '1 figures are off' in done.stdout
