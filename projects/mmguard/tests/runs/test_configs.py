import copy
import importlib
import inspect
import re
import sys
from argparse import ArgumentParser
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import SimpleNamespace

import mmcv
import pytest
from mmdet.models import RetinaNet
from mmengine.config import Config, ConfigDict
from mmengine.config.utils import MODULE2PACKAGE
from mmengine.model.weight_init import PretrainedInit
from mmengine.optim import AmpOptimWrapper
from torch import nn

import mmattn
from mmguard.errors import InputError
from mmguard.packages import MissingPackage
from mmguard.runs import configs
from mmguard.runs.configs import add_config, load_config
from mmguard.runs.rows import read_row
from mmguard.runs.sharding import ShardedStrategy
from mmguard.weights import CheckpointError
from tests import ROOT

MASK_RCNN = ROOT / 'configs' / 'elsa_swin' / 'mask-rcnn_elsa-swin-t_fpn_ms-1x_coco.py'
CASCADE = ROOT / 'configs' / 'elsa_swin' / 'cascade-mask-rcnn_elsa-swin-t_fpn_ms-1x_coco.py'
LAB = ROOT / 'projects/lab/configs'
CLASSIFIER = LAB / 'toy' / 'elsa-swin-toy_in1k.py'
UPERNET = ROOT / 'configs' / 'elsa_swin' / 'elsa-swin-t_upernet_8xb2-160k_ade20k-512x512.py'


@pytest.fixture
def device(monkeypatch):
    """Sets what MMEngine takes for the device of this machine."""
    return lambda name: monkeypatch.setattr(configs, 'get_device', lambda: name)


def test_cpu_gets_what_it_can_run(device):
    """Without an accelerator, mixed precision, SyncBN and nccl are replaced; with one, nothing changes. MMEngine would
    divide by the number of accelerators for slurm."""
    device('cpu')
    cfg = load_config(CASCADE, launcher='pytorch')
    assert cfg.optim_wrapper.type == 'OptimWrapper' and cfg.model_wrapper_cfg.device_ids is None
    assert {head.norm_cfg.type for head in cfg.model.roi_head.bbox_head} == {'BN'}
    with pytest.raises(InputError, match='--launcher slurm needs accelerators.*dist_train.sh'):
        load_config(MASK_RCNN, launcher='slurm')
    device('cuda')
    cfg = load_config(CASCADE, launcher='pytorch')
    assert cfg.optim_wrapper.type == 'AmpOptimWrapper' and 'model_wrapper_cfg' not in cfg
    assert {head.norm_cfg.type for head in cfg.model.roi_head.bbox_head} == {'SyncBN'}


def test_classes_as_types(device):
    """A new-style config has classes where others have their names."""
    device('cpu')
    cfg = dict(launcher='none', model=dict(norm=dict(type=nn.SyncBatchNorm)), optim_wrapper=dict(type=AmpOptimWrapper))
    configs._fit_cpu(cfg := ConfigDict(cfg))
    assert (cfg.model.norm.type, cfg.optim_wrapper.type) == ('BN', 'OptimWrapper')
    assert configs.is_sharded(dict(strategy=dict(type=ShardedStrategy)))
    start = dict(type=PretrainedInit, checkpoint='no.pth')
    with pytest.raises(CheckpointError, match='no.pth'):
        configs.check_pretrained(ConfigDict(model=dict(backbone=dict(init_cfg=start))))


def test_a_config_without_training(tmp_path):
    """Such a config can be tested."""
    keys = 'train_dataloader', 'train_cfg', 'optim_wrapper', 'param_scheduler'
    (tmp_path / 'a.py').write_text(f'_base_ = "{UPERNET}"\n' + ''.join(f'{key} = None\n' for key in keys))
    assert load_config(tmp_path / 'a.py').optim_wrapper is None


def own(folder: Path) -> Path:
    """A config with rows."""
    rows = dict(
        deep={'model.backbone.arch.depths': (1, 1, 3, 1)},
        plain=dict(model=dict(backbone=dict(_delete_=True, type='ResNet', depth=18), head=dict(in_channels=512))),
        broken={'model.type.x': 1},
    )
    path = folder / 'own.py'
    path.write_text(f'_base_ = {str(CLASSIFIER)!r}\nmodel = dict(backbone=dict(drop_path_rate=0.5))\nrows = {rows!r}')
    return path


def test_work_dir_and_options(tmp_path):
    """A row has a folder of its own, and MMEngine cannot write a Path."""
    cfg = load_config(CLASSIFIER, work_dir=tmp_path, options={'train_cfg.max_epochs': 3})
    assert cfg.work_dir == str(tmp_path) and cfg.train_cfg.max_epochs == 3
    assert load_config(own(tmp_path), row='deep').work_dir == 'work_dirs/own/deep'
    with pytest.raises(InputError, match='work_dir must be text, not 3'):
        load_config(CLASSIFIER, {'work_dir': 3})


def test_rows(tmp_path):
    """A row is merged into the config, with dotted keys and _delete_, before --cfg-options. It is then a config without
    rows. Without a row, the config is as MMEngine reads it."""
    path = own(tmp_path)
    assert read_row(path)._cfg_dict == Config.fromfile(path)._cfg_dict
    deep = load_config(path, {'model.backbone.drop_path_rate': 0.25}, row='deep')
    assert (deep.model.backbone.type, deep.model.backbone.drop_path_rate) == ('mmattn.ELSASwin', 0.25)
    assert deep.model.backbone.arch.depths == (1, 1, 3, 1) and 'rows' not in deep
    plain = read_row(path, 'plain').model
    assert plain.backbone == dict(type='ResNet', depth=18) and plain.head.in_channels == 512


@pytest.mark.parametrize('row, sentence', [('dep', 'has no row dep: did you mean deep'), ('x', 'row x: it has deep')])
def test_unknown_rows(tmp_path, row, sentence):
    """A row that a config does not have, and one that does not fit it, is named in one sentence."""
    with pytest.raises(InputError, match=sentence):
        load_config(own(tmp_path), row=row)
    with pytest.raises(InputError, match='own.py: the row broken cannot be merged'):
        load_config(own(tmp_path), row='broken')


@pytest.mark.parametrize('order', [1, -1], ids=['config first', 'config last'])
def test_rows_are_listed(capsys, tmp_path, order):
    """--list-rows prints the names of the rows and ends, before other arguments are missed."""
    parser = ArgumentParser()
    add_config(parser)
    parser.add_argument('checkpoint')
    with pytest.raises(SystemExit) as ended:
        parser.parse_args([str(own(tmp_path)), '--list-rows'][::order])
    assert ended.value.code == 0 and capsys.readouterr().out == 'deep\nplain\nbroken\n'


@pytest.fixture
def few_frames():
    """Python refuses deeper calls after 150, in place of a thousand, which read hundreds of files."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 150)
    yield
    sys.setrecursionlimit(limit)


def test_a_config_that_is_its_own_base(tmp_path, few_frames):
    (tmp_path / 'a.py').write_text('_base_ = "./a.py"')
    with pytest.raises(InputError, match='a.py cannot be read: it is its own _base_'):
        load_config(tmp_path / 'a.py')


def test_a_config_that_is_no_python(tmp_path):
    """It ends in a sentence, and not in MMEngine's traceback."""
    (tmp_path / 'a.py').write_text('model = dict(a==)')
    with pytest.raises(InputError, match='a.py cannot be read: SyntaxError'):
        load_config(tmp_path / 'a.py')


def test_yaml_and_json_configs(tmp_path):
    """What MMEngine writes, with tuples and anchors, is read as before."""
    cfg = Config.fromfile(CLASSIFIER)
    for suffix in ('yaml', 'json'):
        cfg.dump(tmp_path / f'a.{suffix}')
        assert load_config(tmp_path / f'a.{suffix}').model.head.in_channels == cfg.model.head.in_channels


def test_bases_of_mmsegmentation(tmp_path):
    """A config of MMSegmentation can be a base on both stacks, and MMEngine's table of packages stays as it was.
    Weights in ``pretrained`` are refused."""
    before = dict(MODULE2PACKAGE)
    base = "_base_ = 'mmseg::upernet/upernet_r50_4xb4-160k_ade20k-512x512.py'"
    backbone = "dict(_delete_=True, type='mmattn.ShuntedTransformer', arch='small')"
    (tmp_path / 'a.py').write_text(
        f'{base}\nmodel = dict(pretrained=None, backbone={backbone}, '
        'decode_head=dict(in_channels=[64, 128, 256, 512]), auxiliary_head=dict(in_channels=256))'
    )
    cfg = load_config(tmp_path / 'a.py')
    assert cfg.model.decode_head.num_classes == 150 and before == MODULE2PACKAGE
    with pytest.raises(ZeroDivisionError), mmattn.mmseg_bases():  # what other scripts use
        assert Config.fromfile(tmp_path / 'a.py').model.decode_head.num_classes == 150
        1 / 0  # noqa: B018
    assert before == MODULE2PACKAGE
    with pytest.raises(InputError, match=r"no argument pretrained.*init_cfg=dict.type='Pretrained'.*pretrained=None"):
        load_config(tmp_path / 'a.py', {'model.pretrained': 'open-mmlab://resnet50_v1c'})


def test_annotations_are_checked():
    """The datasets and metrics of a config are those that check what they read."""
    cfg = load_config(MASK_RCNN)
    assert 'Checked' in cfg.train_dataloader.dataset.type and 'Checked' in cfg.test_evaluator.type


@pytest.mark.parametrize(
    'package, config, message, other',
    [
        ('mmseg', UPERNET, 'mmseg', MASK_RCNN),
        ('mmcv', CLASSIFIER, 'in1k.py .* needs mmcv .*: pip install --upgrade onedl-mmcv, or mmcv if', None),
        ('mmcv.ops', MASK_RCNN, 'the operators of mmcv, which do not import .*: pip install .*/mmcv_ops', CLASSIFIER),
    ],
)
def test_missing_packages_are_told(monkeypatch, package, config, message, other):
    """If they are needed, before anything of the config is imported."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackage, match=message):
        load_config(config)
    assert other is None or load_config(other).model


@pytest.mark.parametrize('config', [MASK_RCNN, UPERNET], ids=['detector', 'segmentor'])
def test_a_compiled_extension_that_does_not_load(monkeypatch, tmp_path, config):
    """It is named as what it is, also for MMSegmentation, which can do without operators but not with broken ones."""
    (tmp_path / f'_ext{EXTENSION_SUFFIXES[0]}').write_bytes(b'damaged')
    monkeypatch.setattr(mmcv, '__path__', [str(tmp_path), *mmcv.__path__])
    for name in [name for name in sys.modules if name.startswith(('mmcv._ext', 'mmcv.ops'))]:
        monkeypatch.delitem(sys.modules, name)
    imported = importlib.import_module
    monkeypatch.setattr(
        'mmguard.packages.importlib.import_module',
        lambda name: imported('mmcv.ops' if name == 'mmseg.models' else name),
    )
    with pytest.raises(MissingPackage, match='operators of mmcv, whose compiled file .*_ext.*too short.*install mmcv'):
        load_config(config)


@pytest.mark.parametrize(
    'options, message',
    [
        (dict(default_scope='mmpretran'), 'no package is named mmpretran, the default_scope: did you mean mmpretrain'),
        (dict(custom_imports=dict(imports=['nowhere'])), r'custom_imports cannot be imported \(install .*nowhere'),
    ],
)
def test_packages_that_do_not_exist(options, message):
    with pytest.raises(InputError, match=message):
        load_config(CLASSIFIER, options)


def test_models_that_cannot_be_imported(monkeypatch):
    """The sentence has the error of the import, and what to do where transformers is too new. MMEngine's registries
    hide it, and the model's type would be unknown."""
    imported = importlib.import_module

    def fail(name):
        if name == 'mmseg.models':
            raise TypeError('NoneType takes no arguments')
        return imported(name)

    monkeypatch.setattr('mmguard.packages.importlib.import_module', fail)
    new = SimpleNamespace(version='5.24.0')
    monkeypatch.setattr('mmguard.packages.distributions', lambda name: [new] * (name == 'transformers'))
    sentence = r"needs mmseg.models, .*NoneType takes no arguments.*transformers 5.24.0 .* 'transformers<5'"
    with pytest.raises(MissingPackage, match=sentence):
        load_config(UPERNET)


def test_views_of_masks_and_boxes():
    """MaskTTAModel keeps the mask head, and boxes alone leave it out. MMDetection's DetTTAModel cannot merge masks."""
    cfg = load_config(MASK_RCNN)
    other, boxes = copy.deepcopy(cfg), copy.deepcopy(cfg)
    configs.enable_tta(cfg)
    assert cfg.model.type == 'mmattn.detection.MaskTTAModel' and cfg.model.module.roi_head.mask_head
    boxes.test_evaluator.metric = 'bbox'
    configs.enable_tta(boxes)
    assert boxes.model.module.roi_head.mask_head is None
    other.tta_model.type = 'DetTTAModel'
    with pytest.raises(InputError, match='tta_model DetTTAModel cannot merge masks.*use mmattn.detection.MaskTTAModel'):
        configs.enable_tta(other)


def test_views_of_maps_and_classes():
    """A segmentor's six scales each come flipped too, in each dataset below those that wrap them; a classifier's image
    and the flipped one are averaged."""
    cfg = Config.fromfile(UPERNET)
    part = cfg.test_dataloader.dataset
    cfg.test_dataloader.dataset = dict(type='ConcatDataset', datasets=[part, copy.deepcopy(part)])
    configs.enable_tta(cfg)
    assert 'pipeline' not in cfg.test_dataloader.dataset
    for one in cfg.test_dataloader.dataset.datasets:
        scales, flips, *_ = one.pipeline[1].transforms
        assert [scale.scale[1] / 512 for scale in scales] == [0.5, 0.75, 1, 1.25, 1.5, 1.75] and len(flips) == 2
    configs.enable_tta(cfg := Config.fromfile(CLASSIFIER))
    assert cfg.model.type == 'AverageClsScoreTTA' and cfg.model.module.type == 'ImageClassifier'
    assert cfg.test_dataloader.dataset.pipeline[-1].type == 'TestTimeAug'


def test_options_for_views(tmp_path):
    """--tta reads them, in a config that does not have them too."""
    cfg = Config.fromfile(CLASSIFIER)
    cfg.pop('tta_model')
    cfg.dump(tmp_path / 'a.py')
    options = {'tta_model.type': 'AverageClsScoreTTA', 'tta_views.factors': (1.0, 1.5)}
    cfg = load_config(tmp_path / 'a.py', {**options, 'tta_pipeline': [dict(type='A')]})
    configs.enable_tta(cfg)
    assert cfg.model.type == 'AverageClsScoreTTA' and cfg.test_dataloader.dataset.pipeline == [dict(type='A')]
    for views, sentence in (
        (dict(factor=(1, 2)), 'tta_views has factors and long_side, not factor'),
        (dict(factors=('a',)), 'must be numbers above 0'),
    ):
        cfg = Config.fromfile(MASK_RCNN)
        cfg.tta_views = views
        with pytest.raises(InputError, match=sentence):
            configs.enable_tta(cfg)


def test_views_for_openmmlabs_tools(tmp_path):
    """The lines of docs/openmmlab_tools.md give --tta of MMSegmentation's test.py the views that it has here. A config
    that reads tta_pipeline of its base, as MMSegmentation's have it, gets a sentence with this cure."""
    page = (ROOT / 'docs' / 'openmmlab_tools.md').read_text()
    (block,) = (block for block in re.findall('```python\n(.*?)```', page, re.DOTALL) if 'views_pipeline' in block)
    path = tmp_path / 'a.py'
    path.write_text(block.replace("'../configs/", f"'{ROOT}/configs/"))
    cfg = load_config(path)
    views = cfg.tta_pipeline
    cfg.tta_pipeline = None
    configs.enable_tta(cfg)
    assert views == cfg.test_dataloader.dataset.pipeline and len(views[-1].transforms[0]) == 6
    for name in ('_base_.tta_pipeline', '{{_base_.tta_pipeline}}'):
        path.write_text(f'_base_ = {str(UPERNET)!r}\ntta_pipeline = {name}')
        sentence = 'its bases have no tta_pipeline.* make it with views_pipeline as in docs/o'
        with pytest.raises(InputError, match=sentence):
            load_config(path)


@pytest.mark.parametrize('sides, named', [((256, 512), ''), ((64, 128), 'short sides to 64 .* far from the 130')])
def test_explicit_views_far_from_the_test_size_are_named(sides, named, log):
    """They are taken as they are, with a line in the log."""
    cfg = Config.fromfile(UPERNET)
    cfg.test_dataloader.dataset.pipeline[1].scale = (520, 130 if named else 512)
    resizes = [dict(type='Resize', scale=(4 * side, side), keep_ratio=True) for side in sides]
    pipeline = cfg.tta_pipeline = [dict(type='TestTimeAug', transforms=[resizes, [dict(type='PackSegInputs')]])]
    configs.enable_tta(cfg)
    assert cfg.test_dataloader.dataset.pipeline == pipeline
    assert [bool(re.search(named, line)) for line in log] == [True] * bool(named)


@pytest.mark.parametrize('head', [dict(out_channels=1), [dict(), dict(num_classes=1)]], ids=['head', 'cascade'])
def test_one_sigmoid_channel_needs_another_merge(head):
    """MMSegmentation's takes the sigmoid twice."""
    model = dict(type='EncoderDecoder', decode_head=head)
    cfg = Config(dict(model=model, tta_model=dict(type='mmseg.SegTTAModel'), test_evaluator=dict(type='IoUMetric')))
    with pytest.raises(InputError, match='sigmoid of one channel twice: use mmattn.segmentation.MapTTAModel'):
        configs.enable_tta(cfg)


def test_options_that_set_a_variable():
    """The config was read with the old value, so the option would change nothing."""
    for path, options, places in (
        (MASK_RCNN, {'test_pipeline.1.scale': (9, 9)}, 'test_dataloader.dataset.pipeline, val_dataloader.dataset.pipe'),
        (LAB / 'real/bccd.py', {'data.data_root': '/x'}, 'test_dataloader.dataset, train_dataloader.dataset, val_'),
    ):  # in the second it is a part of larger dicts
        key = next(iter(options)).partition('.')[0]
        with pytest.raises(InputError, match=f'sets {key}, a variable .*: set what still has its old value, {places}'):
            load_config(path, options)
    root, changed = Config.fromfile(CLASSIFIER).data_root, dict(data_root='/x')
    assert load_config(CLASSIFIER, dict(data_root=root)).data_root == root
    changed.update({f'{split}_dataloader.dataset.data_root': '/x' for split in ('train', 'val', 'test')})
    assert load_config(CLASSIFIER, changed).data_root == '/x'


@pytest.mark.parametrize('kind', ['mmdet.RetinaNet', RetinaNet])
def test_predictions_without_a_default_scope(kind):
    """The package is that of the model's class, which the type may be itself."""
    cfg = Config(dict(model=dict(type=kind), test_evaluator=dict(type='mmdet.CocoMetric')))
    configs.write_predictions(cfg, Path('a.pkl'))
    assert cfg.test_evaluator[-1].type == 'DumpDetResults'


def test_what_a_test_cannot_write(tmp_path):
    """MMEngine knows an evaluator of one's own only alone. A folder would be noticed at the end of a test."""
    cfg = Config(dict(default_scope='mmdet', test_evaluator=dict(type='MultiDatasetsEvaluator', metrics=[dict()])))
    with pytest.raises(InputError, match='--out needs a metric or a list .* not MultiDatasetsEvaluator'):
        configs.write_predictions(cfg, Path('a.pkl'))
    with pytest.raises(InputError, match='cannot be written, it is a folder'):
        configs.write_predictions(cfg, tmp_path)
    cfg.test_evaluator = None
    with pytest.raises(InputError, match='the config has no test_evaluator'):
        configs.write_predictions(cfg, Path('a.pkl'))


@pytest.mark.parametrize(
    'enable, option',
    [
        (configs.enable_tta, 'tta_model'),
        (configs.enable_amp, 'optim_wrapper'),
        (configs.enable_auto_scale_lr, 'auto_scale_lr'),
    ],
)
def test_options_that_need_a_part_of_the_config(enable, option):
    with pytest.raises(InputError, match=f'--.* needs {option}'):
        enable(Config(dict(model=dict(type='RetinaNet'))))


def test_missing_weights_are_named_early(tmp_path):
    """Before anything is built, with the place in the config. Addresses are not looked at, names are."""
    file = tmp_path / 'a.pth'
    parts = [dict(type='A'), dict(type='B', init_cfg=[dict(type='Pretrained', checkpoint=str(file))])]
    cfg = Config(dict(model=dict(init_cfg=dict(type='Pretrained', checkpoint='https://a/b.pth'), neck=parts)))
    sentence = r'no checkpoint .*/a.pth: put it there, or set model.neck\[1\].init_cfg\[0\]='
    with pytest.raises(InputError, match=sentence):
        configs.check_pretrained(cfg)
    file.touch()
    configs.check_pretrained(cfg)
    for key in ('load_from', 'model.init_cfg.checkpoint'):
        changed = copy.deepcopy(cfg)
        changed.merge_from_dict({key: 'timm:resnet5'})
        with pytest.raises(InputError, match='no model resnet5: did you mean resnet50'):
            configs.check_pretrained(changed)


@pytest.mark.parametrize(
    'option, sentence',
    [
        ('model..depth=3', 'model..depth=3 is not of the form key.key=value'),
        ('hooks=[dict(a=1,b=2)]', 'hooks=[dict(a=1,b=2)] has a dict as its value: set the keys of a dict one by one'),
        ('scale=(1,2', 'the value of scale=(1,2 cannot be read: lists are [1,2,3]'),
    ],
)
def test_malformed_options(capsys, option, sentence):
    """They are a wrong argument: MMEngine ends in a traceback, or takes a dict for text."""
    add_config(parser := ArgumentParser())
    with pytest.raises(SystemExit) as end:
        parser.parse_args(['config.py', '--cfg-options', option])
    assert end.value.code == 2 and sentence in capsys.readouterr().err.splitlines()[-1]


def test_options_that_can_be_read():
    add_config(parser := ArgumentParser())
    options = 'a.b=1', 'c=[(1,2),x]', 'd.0.name={}_{}.pth', 'e=f=g'
    read = parser.parse_args(['config.py', '--cfg-options', *options, '--cfg-options', 'h=None']).cfg_options
    assert read == {'a.b': 1, 'c': [(1, 2), 'x'], 'd.0.name': '{}_{}.pth', 'e': 'f=g', 'h': None}
