"""The configs of distillation and grafting resolve, fit together, and give detectors and segmentors what they take."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from mmcv.transforms import Compose
from mmengine.config import Config
from mmengine.registry import MODELS, PARAM_SCHEDULERS, DefaultScope
from mmpretrain.structures import DataSample
from torch import nn

from mmattn.weights import StrictModule, compare_settings, misfits
from mmguard.runs.rows import read_row
from tests import ROOT
from tests.configs import PAPERS
from tests.test_configs import DOWNSTREAM, WHOLE, missing_imports, names, slow_but_for_one_row

CONFIGS = ROOT / 'projects' / 'distillation' / 'configs'
STUDENTS, GRAFTS = (sorted((CONFIGS / folder).glob('*.py')) for folder in ('students', 'grafts'))
TOY_DISTILLATION, TOY_GRAFT = CONFIGS / 'toy' / 'distill.py', CONFIGS / 'toy' / 'graft.py'
REAL_DISTILLATION, REAL_GRAFT = CONFIGS / 'real' / 'distill.py', CONFIGS / 'real' / 'graft.py'
REAL_FOCUS, STREET = (CONFIGS / 'real' / f'{name}.py' for name in ('distill-focus', 'distill-focus-camvid'))
#: a teacher and a schedule each
ROWS = [*Config.fromfile(CONFIGS / '_base_' / 'rows.py').rows]


@pytest.mark.parametrize('row', ROWS)
@pytest.mark.parametrize('path', STUDENTS, ids=names)
@pytest.mark.every(5)
def test_distillation_is_whole(path, row):
    """The batch and the epochs are those of the name of the row, the rate is UNIC's for this batch, and its schedule
    ends with the training. The config imports what it uses. The validation has the images that the training leaves
    out."""
    cfg = read_row(path, row)
    assert not missing_imports(cfg)
    assert all(key in cfg for key in WHOLE)
    teacher, *numbers = re.fullmatch(r'(dinov[23])-b_(\d)xb(\d+)-(\d+)e', row).groups()
    gpus, batch, epochs = map(int, numbers)
    assert teacher in cfg.model.teacher.model
    assert cfg.train_dataloader.batch_size == batch and cfg.auto_scale_lr.base_batch_size == gpus * batch
    assert cfg.optim_wrapper.optimizer.lr == pytest.approx(3e-4 * gpus * batch / 256)
    warm_up, cosine = cfg.param_scheduler
    assert cfg.train_cfg.max_epochs == epochs == cosine.end == cosine.begin + cosine.T_max
    assert warm_up.end == cosine.begin == epochs / 20
    train, val = cfg.train_dataloader.dataset, cfg.val_dataloader.dataset
    assert (train.split, val.split) == ('train', 'held_out') and train.held_out == val.held_out > 0
    assert sum(size.share for size in cfg.train_dataloader.batch_sampler.sizes) == pytest.approx(1)


@pytest.mark.usefixtures('any_weights')
@pytest.mark.parametrize('teacher', ['dinov2-b', 'dinov3-b'])
def test_distillation_builds(teacher):
    """The model of a config, with a teacher of timm whose weights are not downloaded."""
    cfg = read_row(CONFIGS / 'students' / 'gsa-r50.py', f'{teacher}_1xb128-100e')
    cfg.model.teacher.pretrained = False
    with torch.device('meta'), DefaultScope.overwrite_default_scope('mmpretrain'):
        model = MODELS.build(cfg.model)
    assert model.teachers[0].channels == 768 and model.stages == ['stage1', 'stage2', 'stage3']


@pytest.mark.usefixtures('any_weights')
@pytest.mark.parametrize('path', STUDENTS, ids=names)
@pytest.mark.every(3)
def test_strides_of_students(path):
    """The maps of all students have strides 8 to 32."""
    with torch.device('meta'):
        maps = MODELS.build(read_row(path).model.backbone)(torch.empty(2, 3, 64, 64))
    assert [64 // x.shape[2] for x in maps] in ([8, 16, 32], [8, 16, 16], [16, 16, 16])


#: GSA fits its tables of positions to other images, and a ViT has a norm at its end: all others are slow
SPECIAL = [
    pytest.param(path, 'mask-rcnn_', id=f'{path.stem} Mask R-CNN')
    for path in STUDENTS
    if re.match('gsa|msf-vit', path.stem)
]
ALL = [pytest.param(path, '', id=f'{path.stem} all', marks=pytest.mark.slow) for path in STUDENTS]


@pytest.mark.parametrize('path, kind', [*SPECIAL, *ALL])
def test_downstream_starts_from_a_distilled_backbone(path, kind):
    """The detectors and segmentors of a student take all of their weights from it, except output norms."""
    with torch.device('meta'):
        student = MODELS.build(read_row(path).model.backbone)
    weights = {
        name: torch.zeros((), dtype=value.dtype).expand(value.shape) for name, value in student.state_dict().items()
    }
    named = {name: path for name, path in PAPERS.items() if (path, None) in DOWNSTREAM}
    downstream = [name for name in named if re.search(f'{kind}.*{path.stem}_', name)]
    assert downstream
    for name in downstream:
        settings = read_row(named[name]).model.backbone
        with torch.device('meta'):
            backbone = MODELS.build(settings)
        compare_settings(student.settings_note, backbone.settings_note)
        translation = backbone.from_release(weights)
        assert not misfits(translation, backbone.state_dict()), name
        assert all(name.startswith('norm') for name in (*translation.fresh, *translation.dropped)), name


def tiny_teacher(cfg: Config) -> None:
    """Replace the teacher of a distillation by a random one that costs little."""
    arch = dict(embed_dim=16, depths=(1, 1, 1, 1), num_heads=(1, 2, 4, 8), group_width=4)
    cfg.model.teacher = dict(model=dict(type='ELSASwin', arch=arch, out_indices=(1,)))


def check_step(cfg: Config) -> None:
    """A training step of a distillation: all losses are finite, and every parameter that learns gets a gradient."""
    tiny_teacher(cfg)
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        model = MODELS.build(cfg.model)
    model.init_weights()
    images = [torch.randint(256, (3, 64, 96), dtype=torch.uint8) for _ in range(2)]
    data = model.data_preprocessor(dict(inputs=images, data_samples=[DataSample(), DataSample()]), True)
    losses = model(**data, mode='loss')
    assert len(losses) == 4 and all(loss.isfinite() for loss in losses.values())
    sum(losses.values()).backward()
    assert not [name for name, param in model.named_parameters() if param.requires_grad and param.grad is None]


@pytest.mark.parametrize('name', ['elsa-swin', 'shunted', 'msf-vit', 'msf-swin', 'gsa-resnet'])
def test_toy_distillation_runs(name):
    """Narrow students of all families learn: no parameter is left out, which would stop a training with several
    processes."""
    cfg = read_row(TOY_DISTILLATION, name)
    assert not missing_imports(cfg)
    assert all(key in cfg for key in WHOLE)
    check_step(cfg)


@pytest.mark.parametrize(
    'case', slow_but_for_one_row([(REAL_DISTILLATION, row) for row in read_row(REAL_DISTILLATION).rows]), ids=names
)
def test_distillation_on_real_photographs_runs(case):
    """The same for the rows of the real photos. The teacher has the tensors that its classifier writes."""
    cfg = read_row(*case)
    assert not missing_imports(cfg) and all(key in cfg for key in WHOLE)
    given, trained = (
        cfg.model.teacher.model,
        read_row(ROOT / 'projects/lab/configs/real' / 'tiny-imagenet.py', 'shunted').model.backbone,
    )
    assert {**given, 'init_cfg': None} == {**trained, 'init_cfg': None}
    check_step(cfg)


def test_a_trained_vit_teaches_on_real_photographs():
    """Also the Shunted Transformer, the teacher of the other config. The rate rises for a tenth of the training, as
    there. Images are whole patches, and views have keys, so that features are kept."""
    cfg = read_row(REAL_FOCUS, 'shunted')
    assert not missing_imports(cfg) and all(key in cfg for key in WHOLE)
    rise, fall = cfg.param_scheduler
    assert rise.end == fall.begin == pytest.approx(0.3) and fall.end == cfg.train_cfg.max_epochs == 3
    assert fall.begin + fall.T_max == pytest.approx(fall.end)
    assert cfg.model.teacher.img_size % 14 == 0 and cfg.model.teacher.cache
    pipeline = Compose(cfg.train_dataloader.dataset.pipeline[1:])
    sample = pipeline(dict(img=np.zeros((64, 64, 3), np.uint8), img_path='a.jpg', img_shape=(64, 64)))
    assert sample['inputs'].shape == (3, 48, 48) and sample['data_samples'].view_key
    check_step(cfg)


def test_a_student_goes_on_with_street_photos():
    """It starts from the weights of the first part, and learns from the same map of the same teacher, in larger crops
    whose features are kept."""
    cfg, first = read_row(STREET, 'nat'), read_row(REAL_FOCUS, 'nat')
    assert not missing_imports(cfg) and cfg.photos.data_root.endswith('CamVid/train')
    start = cfg.model.backbone.pop('init_cfg')
    assert start.type == 'Pretrained' and start.checkpoint.endswith('/nat/backbone_epoch_3.pth')
    assert dict(cfg.model.backbone, init_cfg=None) == first.model.backbone
    assert cfg.model.teacher.model == first.model.teacher.model and cfg.model.teacher.img_size % 14 == 0
    pipeline = Compose(cfg.train_dataloader.dataset.pipeline[1:])
    sample = pipeline(dict(img=np.zeros((360, 480, 3), np.uint8), img_path='a.png', img_shape=(360, 480)))
    assert sample['inputs'].shape == (3, 256, 256) and sample['data_samples'].view_key
    assert cfg.param_scheduler[-1].end == cfg.train_cfg.max_epochs
    check_step(cfg)


@pytest.mark.slow
@pytest.mark.parametrize('path', STUDENTS, ids=names)
def test_distillation_runs(path):
    """The same for the students of full size."""
    check_step(read_row(path))


def test_rate_of_a_graft_starts_again():
    """The rate rises and falls twice: once while blocks learn, and to a fifth of it while the whole backbone does."""
    cfg, length = Config.fromfile(GRAFTS[0]), 20
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(()))], cfg.optim_wrapper.optimizer.lr)
    schedulers = [
        PARAM_SCHEDULERS.build(each, default_args=dict(optimizer=optimizer, epoch_length=length))
        for each in cfg.param_scheduler
    ]
    rates = []
    for _ in range(cfg.train_cfg.max_epochs * length):
        rates.append(optimizer.param_groups[0]['lr'])
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
    blocks = cfg.block_epochs * length
    for part, most in ((rates[:blocks], 5e-4), (rates[blocks:], 1e-4)):
        assert max(part) == pytest.approx(most, rel=0.05) and part.index(max(part)) in range(length - 3, length + 3)
        assert part[0] < 0.01 * most and part[-1] < 0.05 * most


#: config of a graft, its row, and the names of models of the papers that take what comes out
DOWNSTREAM_OF_GRAFTS = [
    ('elsa-swin-t', None, 'elsa-swin-t_(mask2former|upernet|fpn)|mask-rcnn_elsa-swin-t'),
    ('msf-swin-t', None, 'msf-swin-t_(fpn|upernet)'),
    ('gsa-r50', None, 'gsa-r50_(fpn|upernet)|mask-rcnn_gsa-r50_'),
    *(('dinov3-s', row, '') for row in ('neighbourhood', 'msf', 'shunted')),
]


@pytest.fixture
def graft_of(monkeypatch):
    """From a config of a graft and its row, the config and the model, without values."""
    monkeypatch.setattr(StrictModule, 'init_weights', lambda self: None)  # would load those of the source

    def build(path: Path, row: str | None) -> tuple[Config, nn.Module]:
        cfg = read_row(path, row)
        with torch.device('meta'), DefaultScope.overwrite_default_scope('mmpretrain'):
            return cfg, MODELS.build(cfg.model)

    return build


@pytest.mark.usefixtures('any_weights')
@pytest.mark.parametrize('name, row, downstream', DOWNSTREAM_OF_GRAFTS)
@pytest.mark.every(3)
def test_grafting(graft_of, name, row, downstream):
    """A config of a graft is whole, its rate starts again where the whole backbone begins to learn, and its token
    mixers are those of its name. Detectors and segmentors of this backbone take all of their weights from it."""
    cfg, model = graft_of(CONFIGS / 'grafts' / f'{name}.py', row)
    assert not missing_imports(cfg) and all(key in cfg for key in WHOLE)
    hook = next(hook for hook in cfg.custom_hooks if hook.type == 'mmattn_distillation.WholeModelHook')
    restart, first, second = cfg.param_scheduler
    assert sum(restart.periods) == restart.end == cfg.train_cfg.max_epochs
    assert hook.begin == restart.periods[0] == second.begin == cfg.default_hooks.checkpoint.interval
    assert cfg.find_unused_parameters and first.begin == 0
    counts = {'elsa-swin-t': 10, 'msf-swin-t': 12, 'gsa-r50': 13, 'dinov3-s': 6}
    assert len(model.blocks) == counts[name]
    assert cfg.train_dataloader.dataset.pipeline == [
        step
        for step in read_row(STUDENTS[0]).train_dataloader.dataset.pipeline
        if step.type != 'mmattn_distillation.StudentColors'
    ]
    weights = {
        key: torch.zeros((), dtype=value.dtype).expand(value.shape)
        for key, value in model.backbone.state_dict().items()
    }
    names_of_models = [each for each in PAPERS if downstream and re.search(downstream, each)]
    cases = [PAPERS[each] for each in names_of_models if (PAPERS[each], None) in DOWNSTREAM]
    assert bool(cases) == bool(downstream)
    for case in cases:
        settings = read_row(case).model.backbone
        settings = dict(settings, proj_bias=True) if name == 'msf-swin-t' else settings
        with torch.device('meta'):
            backbone = MODELS.build(settings)
        compare_settings(model.backbone.settings_note, backbone.settings_note)
        translation = backbone.from_release(weights)
        assert not misfits(translation, backbone.state_dict()), case
        assert all(key.startswith('norm') for key in (*translation.fresh, *translation.dropped)), case


@pytest.mark.parametrize('path, row', [*((TOY_GRAFT, row) for row in read_row(TOY_GRAFT).rows), (REAL_GRAFT, None)])
@pytest.mark.every(4)
def test_small_grafts(graft_of, path, row):
    """Each small source can be grafted: other token mixers are found in it."""
    cfg, model = graft_of(path, row)
    assert not missing_imports(cfg) and all(key in cfg for key in WHOLE) and model.blocks


@pytest.mark.parametrize('slash', ['', '/'], ids=['no slash', 'slash'])
def test_root_moves_the_images(monkeypatch, tmp_path, slash):
    """MMATTN_IMAGES moves the images of training and validation."""
    monkeypatch.setenv('MMATTN_IMAGES', f'{tmp_path}{slash}')
    for path in (STUDENTS[0], TOY_DISTILLATION):
        cfg = Config.fromfile(path)
        for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
            assert Path(loader.dataset.data_root) == tmp_path
