"""Every config resolves, its parts fit together, and it starts from what its paper or MMDetection says."""

import re
from collections import Counter
from pathlib import Path

import pytest
import torch
import yaml
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, DefaultScope

from mmattn.weights import compare_settings, misfits
from tests import ROOT

FILES = sorted((ROOT / 'configs').rglob('*.py'))
CONFIGS = [path for path in FILES if '_base_' not in path.parts]
CLASSIFIERS = [path for path in CONFIGS if re.search(r'_(in1k|inat\d+|cifar100)$', path.stem)]
DOWNSTREAM = sorted(set(CONFIGS) - set(CLASSIFIERS))
#: what a whole config has, among others
WHOLE = ('train_dataloader', 'val_dataloader', 'test_evaluator', 'optim_wrapper', 'tta_model', 'tta_pipeline')
METAFILES = sorted((ROOT / 'configs').glob('*/metafile.yml'))


def names(path: Path) -> str:
    return path.stem


@pytest.mark.parametrize('path', CLASSIFIERS, ids=names)
def test_classifier_builds(path):
    """Every config of a classifier is whole, and its head takes what the backbone's only map has and gives a score to
    each class of its data."""
    cfg = Config.fromfile(path)
    for key in WHOLE:
        assert key in cfg
    assert cfg.default_scope == 'mmpretrain' and cfg.data_preprocessor.num_classes == cfg.model.head.num_classes
    with torch.device('meta'), DefaultScope.overwrite_default_scope('mmpretrain'):
        model = MODELS.build(cfg.model).eval()
        scores = model(torch.empty(1, 3, 64, 64))
    assert scores.shape == (1, cfg.model.head.num_classes)


@pytest.mark.parametrize('path', DOWNSTREAM, ids=names)
def test_config_builds(path):
    """Every config resolves on its own and builds a model whose parts fit together. It says for which batch its
    learning rate is. A detector has masks, or reads none."""
    cfg = Config.fromfile(path)
    for key in WHOLE:
        assert key in cfg
    assert path.parent.name == 'toy' or cfg.auto_scale_lr.base_batch_size == 8 * cfg.train_dataloader.batch_size
    with torch.device('meta'), DefaultScope.overwrite_default_scope(cfg.default_scope):
        model = MODELS.build(cfg.model).eval()
        maps = model.extract_feat(torch.empty(1, 3, 64, 64))
    head = next(getattr(model, name) for name in ('decode_head', 'rpn_head', 'bbox_head') if hasattr(model, name))
    head(maps)
    if cfg.default_scope == 'mmdet':
        masks = 'mask_head' in cfg.model.get('roi_head', ())
        for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
            (load,) = (step for step in loader.dataset.pipeline if step.type == 'LoadAnnotations')
            assert load.get('with_mask', False) == masks
        assert ('segm' in cfg.test_evaluator.metric) == masks


@pytest.mark.parametrize('path', [path for path in DOWNSTREAM if path.parent.name in ('msf', 'gsa')], ids=names)
def test_downstream_starts_from_its_classifier(path):
    """MSF and GSA have no released weights. Their detectors and segmentors name the checkpoint that a classifier's
    config leaves after its last epoch, and it fits to the last tensor but for output norms."""
    settings = Config.fromfile(path).model.backbone
    folder, epoch = re.fullmatch(r'work_dirs/(.*)/epoch_(\d+)\.pth', settings.init_cfg.checkpoint).groups()
    cfg = Config.fromfile(path.parent / f'{folder}.py')
    assert cfg.get('train_cfg', {}).get('max_epochs', int(epoch)) == int(epoch)
    with torch.device('meta'):
        classifier, backbone = MODELS.build(cfg.model.backbone), MODELS.build(settings)
    compare_settings(classifier.settings_note, backbone.settings_note)
    weights = {
        name: torch.zeros((), dtype=value.dtype).expand(value.shape) for name, value in classifier.state_dict().items()
    }
    translation = backbone.from_release(weights)
    assert not misfits(translation, backbone.state_dict())
    assert all(name.startswith('norm') for name in (*translation.fresh, *translation.dropped))


@pytest.mark.parametrize('config', ['msf-vit-s_fpn_8xb2-80k_ade20k-512x512', 'mask-rcnn_msf-vit-s_fpn_ms-1x_coco'])
def test_pyramid_over_vit(config):
    """MMSegmentation's neck makes strides 4 to 32 from a ViT's maps, in either package and for odd sizes, and every map
    reaches the loss."""
    cfg = Config.fromfile(ROOT / 'configs' / 'msf' / f'{config}.py')
    first, fpn = cfg.model.neck
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        pyramid = MODELS.build({**first, 'norm_cfg': dict(type='BN')})  # SyncBN does not run on the CPU
        necks = torch.nn.Sequential(pyramid, MODELS.build(fpn))
    maps = [torch.randn(2, 384, 7, 9, requires_grad=True) for _ in range(4)]
    assert [tuple(out.shape[2:]) for out in pyramid(maps)] == [(28, 36), (14, 18), (7, 9), (3, 4)]
    sum(out.square().mean() for out in necks(maps)).backward()
    assert all(m.grad.abs().sum() > 0 for m in maps)


@pytest.mark.parametrize('slash', ['', '/'], ids=['no slash', 'slash'])
@pytest.mark.parametrize(
    'config',
    [
        'elsa_swin/mask-rcnn_elsa-swin-t_fpn_ms-1x_coco',
        'shunted/retinanet_shunted-s_fpn_1x_coco',
        'toy/retinanet_shunted-toy_fpn',
        'elsa_swin/elsa-swin-t_upernet_8xb2-160k_ade20k-512x512',
        'toy/elsa-swin-toy_upernet',
    ],
)
def test_root_moves_the_data(monkeypatch, tmp_path, config, slash):
    """COCO_ROOT and ADE20K_ROOT, with and without a slash at the end, move every path of the datasets and the
    evaluator."""
    variable = 'ADE20K_ROOT' if 'upernet' in config else 'COCO_ROOT'
    monkeypatch.setenv(variable, f'{tmp_path}{slash}')
    cfg = Config.fromfile(ROOT / 'configs' / f'{config}.py')
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        assert Path(loader.dataset.data_root) == tmp_path
        for path in (*loader.dataset.data_prefix.values(), loader.dataset.get('ann_file', '')):
            assert not Path(path).is_absolute() and 'data' not in Path(path).parts  # MMEngine joins it to data_root
    for evaluator in (cfg.val_evaluator, cfg.test_evaluator):
        if variable == 'COCO_ROOT':
            assert Path(evaluator.ann_file) == tmp_path / 'annotations' / 'instances_val2017.json'


def test_a_checkpoint_is_named_once():
    """The path of ImageNet weights stands in one file, which all configs of that variant read."""
    pattern = re.compile(r"'((?:checkpoints|work_dirs)/[^']*)'")
    paths = Counter(name for path in FILES for name in pattern.findall(path.read_text()))
    assert len(paths) > 8 and set(paths.values()) == {1}


@pytest.mark.parametrize('schedule', ['ade20k_160k_segformer', 'ade20k_160k_setr'])
def test_rates_of_heads(schedule):
    """Heads learn ten times as fast as the backbone, ELSA's ghost_head included, whatever model a schedule is used
    for."""
    cfg = Config.fromfile(ROOT / 'configs' / '_base_' / 'schedules' / f'{schedule}.py')
    head = dict(type='FCNHead', in_channels=64, channels=8, in_index=1, num_convs=1, num_classes=3)
    model = dict(
        type='EncoderDecoder',
        backbone=dict(
            type='ELSASwin', arch=dict(embed_dim=32, depths=(1, 1, 1, 1), num_heads=(1, 2, 4, 8), group_width=4)
        ),
        decode_head=head,
        auxiliary_head=[head],
    )
    with DefaultScope.overwrite_default_scope('mmseg'):
        model = MODELS.build(model)
        wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    rates = {id(param): group['lr'] for group in wrapper.param_groups for param in group['params']}
    rates = {name: rates[id(param)] / cfg.optim_wrapper.optimizer.lr for name, param in model.named_parameters()}
    assert sum('ghost_head' in name for name in rates) == 3
    for name, rate in rates.items():
        assert rate == pytest.approx(1 if name.startswith('backbone.') else 10), name


@pytest.mark.parametrize('metafile', METAFILES, ids=lambda path: path.parent.name)
def test_metafile_is_complete(metafile):
    """A metafile lists every config of its folder once, under its own name, and only those. The files that it names are
    those that the configs start from."""
    content = yaml.safe_load(metafile.read_text())
    listed = [entry['Config'] for entry in content['Models']]
    assert sorted(listed) == sorted(str(path.relative_to(ROOT)) for path in metafile.parent.glob('*.py'))
    assert all(entry['Name'] == Path(entry['Config']).stem for entry in content['Models'])
    for entry in content['Models']:
        file = entry.get('Released Weights', {}).get('File')
        assert file is None or Config.fromfile(ROOT / entry['Config']).pretrained.checkpoint == f'checkpoints/{file}'
    (collection,) = content['Collections']
    assert (ROOT / collection['README']).is_file()
    assert {entry['In Collection'] for entry in content['Models']} == {collection['Name']}
    assert {pair['Model'] for pair in collection['Benchmark']} <= {entry['Name'] for entry in content['Models']}


def test_model_index_is_complete():
    """The index imports the metafiles of all folders."""
    (pattern,) = yaml.safe_load((ROOT / 'model-index.yml').read_text())['Import']
    assert sorted(ROOT.glob(pattern)) == METAFILES
