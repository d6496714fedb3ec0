"""The recipes of the papers' classifiers, against what the released scripts do."""

import itertools
import re
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmcv.transforms import Compose, RandomChoice
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, PARAM_SCHEDULERS, DefaultScope
from mmpretrain.datasets import RandAugment
from timm.optim import param_groups_weight_decay

from mmguard.runs.rows import read_row
from mmguard.runs.views import views_pipeline
from tests.configs import CONFIGS, PAPERS, named

#: epoch -> rate, as the released scripts of ELSA, VOLO, NAT, Shunted and MSF set it
RATES = {
    'elsa_swin/elsa-swin-t_in1k': [
        *[(0, 1e-6), (1, 5.095e-5), (19, 9.5005e-4), (20, 9.8918e-4), (150, 5.05e-4), (299, 1.0027e-5)],
        *[(300, 1e-5), (309, 1e-5)],
    ],
    'elsa_volo/elsa-volo-d1_in1k': [
        *[(0, 1e-6), (1, 8.095e-5), (19, 1.5201e-3), (20, 1.5826e-3), (150, 8.05e-4), (299, 1.0044e-5)],
        *[(300, 1e-5), (309, 1e-5)],
    ],
    'elsa_volo/volo-d1_384_in1k': [
        *[(0, 1e-6), (1, 2.4e-6), (4, 6.6e-6), (5, 7.732e-6), (15, 6e-6), (30, 4e-6), (39, 4e-6)]
    ],
    'nat/nat-t_in1k': [
        *[(0, 1e-6), (1, 5.095e-5), (19, 9.5005e-4), (20, 9.8913e-4), (150, 5.025e-4), (299, 5.0273e-6)],
        *[(300, 5e-6), (309, 5e-6)],
    ],
    'shunted/shunted-t_in1k': [
        *[(0, 1e-6), (1, 1e-6), (2, 2.008e-4), (5, 8.002e-4), (6, 9.9932e-4)],
        *[(150, 5.1018e-4), (299, 1.0109e-5)],
    ],
    'msf/msf-vit-s_in1k': [(0, 3.3e-5), (1, 1.297e-4), (9, 9.033e-4), (10, 1e-3), (11, 9.997e-4), (99, 3.046e-7)],
    'msf/msf-vit-s_300e_in1k': [(0, 3.3e-5), (9, 9.033e-4), (10, 1e-3), (155, 5e-4), (299, 2.934e-8)],
}
#: config -> settings of a small form of its backbone, and its last channels
NARROW = {
    'elsa_swin/elsa-swin-t_in1k': (
        dict(arch=dict(embed_dim=16, depths=(1, 1, 1, 1), num_heads=(1, 2, 4, 8), group_width=4)),
        128,
    ),
    'shunted/shunted-t_in1k': (
        dict(arch=dict(embed_dims=(16, 32, 64, 128), depths=(1, 1, 1, 1), num_heads=(2, 4, 8, 16), stem_convs=0)),
        128,
    ),
    'msf/msf-vit-s_in1k': (dict(arch=dict(embed_dim=32, depth=2, num_heads=2)), 32),
    'msf/msf-swin-t_in1k': (dict(arch=dict(embed_dim=16, depths=(1, 1, 1, 1), num_heads=(1, 2, 4, 8))), 128),
    'gsa/gsa-r50_in1k': (dict(depth=dict(depths=(1, 1, 1, 1), stem_channels=8, base_channels=16, expansion=2)), 256),
}


FINE_TUNED = [name for name in PAPERS if re.search(r'_(384|448|512)_in1k|_inat|_cifar', name)]


def recipe(name: str) -> Config:
    """The config of a model of a metafile, whose folder may stand before its name."""
    cfg = named(name.split('/')[-1])
    cfg.optim_wrapper.type = 'OptimWrapper'  # mixed precision needs a GPU
    return cfg


@pytest.fixture(autouse=True)
def scope():
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        yield


@pytest.fixture(scope='module')
def image(tmp_path_factory):
    """An image as a dataset names it."""
    path = tmp_path_factory.mktemp('images') / 'image.png'
    cv2.imwrite(str(path), np.random.default_rng(0).integers(0, 256, (300, 400, 3), np.uint8))
    return dict(img_path=str(path), gt_label=3)


@pytest.mark.parametrize('name', RATES)
def test_rates(name):
    cfg = recipe(name)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=cfg.optim_wrapper.optimizer.lr)
    configs = cfg.param_scheduler if isinstance(cfg.param_scheduler, list) else [cfg.param_scheduler]
    schedulers = [PARAM_SCHEDULERS.build({**config, 'optimizer': optimizer}) for config in configs]
    rates = []
    for _ in range(cfg.train_cfg.max_epochs):
        rates.append(optimizer.param_groups[0]['lr'])
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
    for epoch, rate in RATES[name]:
        assert rates[epoch] == pytest.approx(rate, rel=1e-4), epoch
    assert len(rates) == RATES[name][-1][0] + 1


@pytest.mark.parametrize(
    'name',
    ['elsa_swin/elsa-swin-t_in1k', 'elsa_volo/elsa-volo-d1_in1k', 'shunted/shunted-t_in1k', 'msf/msf-vit-s_in1k'],
)
def test_weight_decay(name):
    """ELSA's, VOLO's and Shunted's scripts exempt what timm does: all of one dimension, and not ELSA's ghost heads and
    bias tables; of VOLO also positions and class token. MSF's exempts nothing."""
    cfg = recipe(name)
    with torch.device('meta'):
        model = MODELS.build(cfg.model)
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    decays = {id(p): group['weight_decay'] for group in wrapper.optimizer.param_groups for p in group['params']}
    exempt = [name for name, _ in model.named_parameters() if name.endswith(('pos_embed', 'cls_token'))]
    assert len(exempt) == (2 if 'volo' in name else 0)
    groups = param_groups_weight_decay(model, 0.05, no_weight_decay_list=exempt)
    timm = {id(p): group['weight_decay'] for group in groups for p in group['params']}
    assert len(decays) == len(list(model.parameters()))
    assert decays == (dict.fromkeys(decays, 0.05) if name.startswith('msf') else timm)


@pytest.mark.parametrize('name', [*NARROW, 'shunted/shunted-s_384_in1k'])
def test_pipelines(name, image):
    """Images of any size become images of the size of the model, in training and in a test, of which --tta makes two,
    one of them flipped."""
    cfg = recipe(name)
    size = (3, 384, 384) if '384' in name else (3, 224, 224)
    assert Compose(cfg.train_pipeline)(dict(image))['inputs'].shape == size
    test = Compose(cfg.test_pipeline)(dict(image))['inputs']
    one, other = Compose(views_pipeline(cfg.test_pipeline))(dict(image))['inputs']
    assert test.shape == size and torch.equal(one, test) and torch.equal(other, test.flip(2))


def test_test_images():
    """Each release resizes test images in its own way."""
    sizes = {
        name: [(step.scale, step.interpolation) for step in recipe(name).test_pipeline if 'Resize' in step.type]
        for name in ('elsa_swin/elsa-swin-b_in1k', 'shunted/shunted-b_in1k', 'msf/msf-vit-b_in1k')
    }
    assert [*sizes.values()] == [[(248, 'bicubic')], [(256, 'bicubic')], [(256, 'bilinear')]]


@pytest.mark.parametrize(
    'name, interpolations',
    [('elsa_swin/elsa-swin-t_in1k', ['bilinear', 'bicubic']), ('shunted/shunted-t_in1k', ['bicubic'])],
)
def test_rand_augment(name, interpolations):
    """rand-m9-mstd0.5-inc1: timm's 15 operations. Those that move pixels fill with the mean colour."""
    steps = Compose(recipe(name).train_pipeline).transforms
    ways = [choice.transforms for choice in steps if type(choice) is RandomChoice]
    found = [step for way in [steps, *itertools.chain(*ways)] for step in way if isinstance(step, RandAugment)]
    assert len(found) == len(interpolations)
    for augment, interpolation in zip(found, interpolations):
        assert (augment.num_policies, len(augment.transforms)) == (2, 15)
        moving = [op for op in augment.transforms if hasattr(op, 'pad_val')]
        assert len(moving) == 5  # rotate, and shear and translate along both axes
        assert all(op.pad_val == (104, 116, 124) and op.interpolation == interpolation for op in moving)
        levels = [op for op in augment.transforms if op.magnitude_range]
        assert {(op.magnitude_level, op.magnitude_std, op.total_level) for op in levels} == {(9, 0.5, 10)}


def test_averaged_weights():
    """ELSA averages the weights of Swin-B and VOLO-D5, at both sizes of images."""
    names = [name for name in PAPERS if re.match(r'(elsa-swin-[sb]|(elsa-)?volo-d[35])\w*_in1k', name)]
    averaged = [name for name in names if 'EMAHook' in str(recipe(name).get('custom_hooks'))]
    assert set(averaged) == {
        f'{name}_in1k' for name in ('elsa-swin-b', 'elsa-volo-d5', 'elsa-volo-d5_512', 'volo-d5', 'volo-d5_512')
    }


def test_drop_path_of_figures_from_swin():
    """In ELSA's ablations, the rows whose figures are from Swin's paper have Swin's drop path, and so have the rows of
    figure 2, which differ only in their heads. All others have ELSA's."""
    path = CONFIGS / 'elsa_swin' / 'ablations' / 'swin-t_in1k.py'
    rates = {row: read_row(path, row).model.backbone.drop_path_rate for row in read_row(path).rows}
    heads = {row for row in rates if row.endswith(('-head', '-heads'))}
    assert len(heads) == 6 and {row for row, rate in rates.items() if rate == 0.2} == {'lsa', 'net1', 'dwconv', *heads}
    assert set(rates.values()) == {0.1, 0.2}


@pytest.mark.parametrize('config', ['elsa_swin/ablations/deit-ti_in1k', 'shunted/ablations/deit-s_in1k'])
def test_norms_of_deit(config):
    """All norms of the DeiTs in ELSA's table 11 and Shunted's table 9 have the eps of DeiT's code."""
    path = CONFIGS / f'{config}.py'
    for row in read_row(path).rows:
        with torch.device('meta'), DefaultScope.overwrite_default_scope('mmpretrain'):
            backbone = MODELS.build(read_row(path, row).model.backbone)
        norms = [module for module in backbone.modules() if isinstance(module, torch.nn.LayerNorm)]
        assert len(norms) == 25 and {norm.eps for norm in norms} == {1e-6}


@pytest.mark.parametrize('name', FINE_TUNED)
def test_starts_from_a_classifier(name):
    """Fine-tuning starts from the last checkpoint of a classifier that was trained here, or from a released one. It has
    the same backbone, but for the size of its images, and for TransNeXt's stochastic depth."""
    target = recipe(name)
    start = Path(target.load_from or target.model.backbone.init_cfg.checkpoint)
    if start.parts[0] == 'work_dirs':
        _, config, file = start.parts
        source = read_row(PAPERS[name].with_name(f'{config}.py'))
        assert file == f'epoch_{source.train_cfg.max_epochs}.pth'
    else:
        source = recipe(re.sub(r'(-11x11)?_\d+_in1k', '_in1k', name))  # whose tables the authors resized to 11 x 11
        assert start == Path(target.pretrained.init_cfg.checkpoint)
    for cfg in (source, target):
        # A table of positions is resized, and the dilations of DiNAT and DiNAT_s grow with the images.
        for key in ('img_size', 'attention', 'dilations', 'kernel_size', 'init_cfg'):
            cfg.model.backbone.pop(key, None)
        if 'transnext' in name:
            cfg.model.backbone.pop('drop_path_rate')
    assert source.model.backbone == target.model.backbone


def assert_trains(cfg, image, losses):
    """A step of the whole recipe, with a small form of the model, moves the first and the last weights."""
    model = MODELS.build({**cfg.model, 'data_preprocessor': cfg.data_preprocessor})
    model.init_weights()
    first, *_, last = model.parameters()
    before = first.clone(), last.clone()
    pipeline = Compose(cfg.train_pipeline)
    batch = pseudo_collate([pipeline(dict(image)) for _ in range(2)])
    found = model.train_step(batch, build_optim_wrapper(model, cfg.optim_wrapper))
    assert set(found) == losses and found['loss'].isfinite()
    assert not torch.equal(first, before[0]) and not torch.equal(last, before[1])


@pytest.mark.parametrize('name', NARROW)
def test_trains(name, image):
    cfg, (settings, channels) = recipe(name), NARROW[name]
    cfg.model.backbone.update(settings)
    cfg.model.head.in_channels = channels
    assert_trains(cfg, image, {'loss'})


@pytest.fixture
def labelled(image, tmp_path, monkeypatch):
    """The image, with a label map in the folder that TOKEN_LABELS_ROOT names."""
    monkeypatch.setenv('TOKEN_LABELS_ROOT', str(tmp_path))
    file = tmp_path / Path(image['img_path']).parent.name / 'image.pt'
    file.parent.mkdir()
    numbers = torch.arange(5.0).view(5, 1, 1).expand(5, 18, 18)
    torch.save(torch.stack((torch.randn(5, 18, 18), numbers)).half(), file)
    return dict(image)


@pytest.mark.parametrize(
    'name, size, border',
    [('elsa-volo-d1', 224, 0), ('elsa-volo-d5', 224, 15), ('volo-d1_384', 384, 0), ('volo-d5_512', 512, 33)],
)
def test_token_label_pipelines(name, size, border, labelled):
    """Images become images of the size of the model, with label map and crop. Test images of D5 have a black border."""
    cfg = recipe(f'elsa_volo/{name}_in1k')
    data = Compose(cfg.train_pipeline)(dict(labelled))
    sample = data['data_samples']
    assert data['inputs'].shape == (3, size, size)
    assert sample.label_map.shape == (2, 5, 18, 18) and ((sample.label_box >= 0) & (sample.label_box <= 1)).all()
    one, other = Compose(views_pipeline(cfg.test_pipeline))(dict(labelled))['inputs']
    assert one.shape == (3, size, size) and torch.equal(other, one.flip(2))
    rows = one.any(0).any(1)
    assert not rows[:border].any() and rows[border + 1 : size - border - 1].all() and rows[-1] == (border == 0)
    assert cfg.model.get('ground_truth', False) == (size > 224)


def test_trains_with_token_labels(labelled):
    cfg = recipe('elsa_volo/elsa-volo-d1_in1k')
    cfg.model.backbone.arch = dict(embed_dim=32, depths=(1, 1, 1, 1), num_heads=(2, 2), stem_dim=8, mlp_ratio=2)
    cfg.model.head.update(in_channels=64, num_heads=2)
    assert_trains(cfg, labelled, {'loss', 'loss_class', 'loss_tokens'})
