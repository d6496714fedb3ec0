import re
from pathlib import Path

import pytest
import torch
import yaml
from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, DefaultScope
from torch import Tensor, nn

import mmattn
from mmattn.backbones import NAT
from mmattn.weights import files
from tests import ROOT
from tests.fresh import run_python

DOCUMENTS = [ROOT / name for name in ('README.md', 'CONTRIBUTING.md', 'CHANGELOG.md')] + sorted(
    (ROOT / 'docs').rglob('*.md')
)
README = (ROOT / 'README.md').read_text()
EXAMPLES = re.findall(r'```python\n(.*?)```', (ROOT / 'docs' / 'add_a_backbone.md').read_text(), re.DOTALL)
GETTING_STARTED = (ROOT / 'docs' / 'getting_started.md').read_text()
DETECTOR, CALL = re.findall(r'```python\n(.*?)```', README, re.DOTALL)
SEGMENTOR = re.findall(r'```python\n(.*?)```', GETTING_STARTED, re.DOTALL)[0]


def build(path: Path) -> nn.Module:
    """The model of a config, with the weights that it names, on the CPU."""
    cfg = Config.fromfile(path)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        model = revert_sync_batchnorm(MODELS.build(cfg.model))
    model.init_weights()
    return model


def losses(model: nn.Module, inputs: dict) -> list[Tensor]:
    """The losses of one training step."""
    computed = model(**model.data_preprocessor(inputs, True), mode='loss')
    found = [
        torch.as_tensor(loss) for value in computed.values() for loss in (value if isinstance(value, list) else [value])
    ]
    assert found
    return found


@pytest.fixture
def weights(tmp_path, monkeypatch):
    """What is at the address of the weights in the configs."""
    weights = NAT(arch='tiny').state_dict()
    torch.save(weights, tmp_path / 'nat_tiny.pth')
    monkeypatch.setattr(files, 'from_server', lambda address, read: read(tmp_path / Path(address).name))
    return weights


def test_detector(tmp_path, weights):
    """The README's config for MMDetection takes the weights of its address and trains."""
    from mmdet.testing import demo_mm_inputs

    (tmp_path / 'config.py').write_text(DETECTOR)
    model = build(tmp_path / 'config.py')
    name = 'levels.0.blocks.0.attn.rpb'
    assert torch.equal(model.backbone.state_dict()[name], weights[name])
    inputs = demo_mm_inputs(1, [[3, 64, 96]], num_items=[2], with_mask=True)
    assert all(loss.isfinite().all() for loss in losses(model, inputs))


@pytest.mark.slow  # UperNet's weights: 20 seconds
def test_segmentor(tmp_path, weights):
    """Read as the page says, its config for MMSegmentation takes the weights of its address and trains."""
    from mmengine.structures import PixelData
    from mmseg.structures import SegDataSample

    (tmp_path / 'config.py').write_text(SEGMENTOR)
    assert '`with mmattn.mmseg_bases():`' in GETTING_STARTED
    with mmattn.mmseg_bases():
        model = build(tmp_path / 'config.py')
    name = 'levels.0.blocks.0.attn.rpb'
    assert torch.equal(model.backbone.state_dict()[name], weights[name])
    sample = SegDataSample(gt_sem_seg=PixelData(data=torch.randint(150, (1, 64, 96))))
    image = torch.randint(256, (3, 64, 96), dtype=torch.uint8)
    inputs = dict(inputs=[image, image], data_samples=[sample, sample])
    assert all(loss.isfinite().all() for loss in losses(model, inputs))


def test_python_call(capsys):
    """The README's Python example prints what its comments say."""
    exec(CALL, {})
    # The log names a backend at its first use in a process.
    printed = [line for line in capsys.readouterr().out.splitlines() if ' - mmengine - ' not in line]
    assert printed == re.findall(r'^# (.*)', CALL, re.MULTILINE)


def example_of_a_new_backbone() -> str:
    """Both files in docs/add_a_backbone.md work: maps, frozen stages, and reading a release."""
    example, weights = EXAMPLES[2:]
    check = """
import torch
from mmengine.registry import MODELS
whole = MODELS.build(dict(type='ExampleNet'))
release = {name.replace('stages.', 'layers.'): value for name, value in whole.state_dict().items()}
torch.save({**release, 'head.weight': torch.zeros(10, 256)}, 'release.pth')
part = MODELS.build(dict(
    type='ExampleNet', out_indices=(0, 2), frozen_stages=1, with_cp=True,
    init_cfg=dict(type='Pretrained', checkpoint='release.pth')))
part.init_weights()
given = whole.state_dict()
assert all(torch.equal(value, given[name]) for name, value in part.state_dict().items())
maps = part(torch.randn(2, 3, 65, 97))
assert [tuple(m.shape) for m in maps] == [(2, 32, 17, 25), (2, 128, 5, 7)] and part.out_channels == (32, 128)
sum(m.sum() for m in maps).backward()
assert [{p.grad is None for m in stage for p in m.parameters()} for stage in part.stage_modules()] == [
    {True}, {True}, {False}, {False}]
"""
    return f"""
import types, mmattn
for name, code in dict(examplenet_weights={weights!r}, examplenet={example!r}).items():
    module = types.ModuleType(f'mmattn.backbones.{{name}}')
    module.__package__ = 'mmattn.backbones'
    exec(code, vars(module))
    setattr(mmattn.backbones, name, module)
{check}"""


def example_of_a_new_token_mixer(folder: Path) -> str:
    """The ten lines in docs/add_a_backbone.md, and their config: an image passes through all stages."""
    example, config = EXAMPLES[:2]
    (folder / 'my_mixer.py').write_text(example)
    (folder / 'config.py').write_text(config)
    return """
import torch
from mmengine.config import Config
from mmengine.registry import MODELS
backbone = MODELS.build(Config.fromfile('config.py').model.backbone)
assert [type(stage.blocks[0].attn).__name__ for stage in backbone.layers] == [
    'RowMean', 'RowMean', 'ELSA', 'WindowAttention']
assert [m.shape[1] for m in backbone(torch.randn(1, 3, 65, 97))] == [96, 192, 384, 768]
"""


def test_examples_of_new_parts(tmp_path):
    """Both, in a process of their own, because what is registered stays."""
    for name, code in (
        ('backbone.py', example_of_a_new_backbone()),
        ('mixer.py', example_of_a_new_token_mixer(tmp_path)),
    ):
        (tmp_path / name).write_text(code)
    done = run_python('import runpy; runpy.run_path("backbone.py"); runpy.run_path("mixer.py")', folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_table_agrees_with_metafiles():
    """Parameters and accuracies of the backbones are those of the metafiles."""
    page = (ROOT / 'docs' / 'choose.md').read_text()
    rows = re.findall(r'\[[^]]+\]\(\.\./(configs/\S+\.py)\) \| ([\d.]+) M \| ([\d.]+) \|', page)
    assert len(rows) == 9
    for config, parameters, top1 in rows:
        models = yaml.safe_load((ROOT / config).with_name('metafile.yml').read_text())['Models']
        (entry,) = (model for model in models if model['Config'] == config)
        assert float(parameters) == pytest.approx(entry['Metadata']['Parameters'] / 1e6, abs=0.05)
        assert float(top1) == pytest.approx(entry['Results'][0]['Metrics']['Top 1 Accuracy'], abs=0.05)


@pytest.mark.parametrize('document', DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_named_files_exist(document):
    """Links to files of the repository, and paths in the text, lead somewhere."""
    text = document.read_text()
    for link in re.findall(r'\]\((?!https?://)([^)#]+)[^)]*\)', text):
        assert (document.parent / link).exists(), link
    for path in re.findall(
        r'(?<![\w/])(?:tools|configs|projects|requirements|tests|mmattn)/[\w./-]+\.(?:py|sh|txt)\b', text
    ):
        assert (ROOT / path).is_file(), path
