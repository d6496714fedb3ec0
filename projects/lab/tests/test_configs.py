"""The configs of toy data, of real photos and of mixes resolve, and their parts fit together."""

from copy import deepcopy

import pytest
import torch
from mmengine.registry import MODELS, DefaultScope

from mmattn.analysis.complexity import count_model
from mmguard.checks.channels import check_channels
from mmguard.runs.checkpoints import backbone_settings
from mmguard.runs.rows import read_row
from tests import ROOT
from tests.test_configs import (
    WHOLE,
    check_classifier,
    check_downstream,
    check_forward,
    missing_imports,
    names,
    slow_but_for_one_row,
)

CONFIGS = ROOT / 'projects' / 'lab' / 'configs'
REAL = sorted([*(CONFIGS / 'real').glob('*.py'), *(CONFIGS / 'real' / 'full').glob('*.py')])
#: toy configs and mixes
OTHERS = [
    path
    for folder in ('toy', 'mixes')
    for path in sorted((CONFIGS / folder).rglob('*.py'))
    if '_base_' not in path.parts
]
CLASSIFIERS = [(path, None) for path in OTHERS if path.stem.endswith('_in1k')]


@pytest.mark.usefixtures('any_weights')
@pytest.mark.parametrize('case', CLASSIFIERS, ids=names)
@pytest.mark.every(3)
def test_classifier_builds(case):
    """Every classifier is whole and builds, as those of configs/ do."""
    check_classifier(case)


@pytest.mark.usefixtures('any_weights')
@pytest.mark.parametrize('path', [path for path in OTHERS if (path, None) not in CLASSIFIERS], ids=names)
@pytest.mark.every(3)
def test_config_builds(path):
    """Every detector and segmentor is complete and builds, as those of configs/ do."""
    check_downstream(read_row(path), path)


def rows() -> list:
    """Configs of toy ablations, with each of their rows."""
    found = {path: read_row(path) for path in sorted((CONFIGS / 'toy' / 'ablations').glob('*_in1k.py'))}
    return [(path, row) for path, cfg in found.items() for row in cfg.rows]


@pytest.mark.usefixtures('any_weights')
@pytest.mark.parametrize('case', rows(), ids=names)
@pytest.mark.every(6)
def test_toy_ablations_compute(case):
    """Every row is a classifier of the toy ImageNet. tests/analysis/test_complexity.py has those of ImageNet."""
    check_classifier(case)


@pytest.mark.usefixtures('any_weights')
@pytest.mark.parametrize(
    'case',
    slow_but_for_one_row([(path, row) for path in REAL for row in read_row(path).rows]),
    ids=lambda case: f'{case[0].parent.name} {names(case)}',
)
def test_real_photographs_build(case):
    """The models of real photos are whole, in their runs for the rate too, and their heads take what they get. Their
    evaluations are logged with the step, of which the report draws curves."""
    cfg = read_row(*case)
    assert cfg.default_hooks.logger.log_metric_by_epoch is False
    assert not missing_imports(cfg) and all(key in cfg for key in WHOLE)
    choosing = deepcopy(cfg)
    choosing.merge_from_dict(cfg.get('sweep', {}))
    assert all(of.train_cfg.max_iters == of.param_scheduler[1].end for of in (cfg, choosing))
    starts = '-pretrained' in case[1] or case[0].stem == 'starts' and '@scratch' not in case[1]
    assert bool(cfg.model.backbone.get('init_cfg')) == starts
    with torch.no_grad(), DefaultScope.overwrite_default_scope(cfg.default_scope):
        check_channels(cfg.model, 'model')
        model = MODELS.build(cfg.model).eval()
        if cfg.default_scope == 'mmpretrain':
            assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 200)
        else:
            check_forward(model)


#: row of the real photos at full size -> config of its ImageNet classifier
OF_IMAGENET = {
    'elsa-swin': 'elsa_swin/elsa-swin-t_in1k',
    'msf-swin': 'msf/msf-swin-t_in1k',
    'nat': 'nat/nat-t_in1k',
    'shunted': 'shunted/shunted-s_in1k',
    'pvt-v2': 'shunted/pvtv2-b2_in1k',
    'transnext': 'transnext/transnext-t_in1k',
    'msf-vit': 'msf/msf-vit-s_in1k',
    'vit': 'msf/vit-s_in1k',
    'gsa-resnet': 'gsa/gsa-r50_in1k',
    'conv-gsa': '../projects/lab/configs/mixes/conv-gsa-t_in1k',
    'nat-shunted': '../projects/lab/configs/mixes/nat-shunted-t_in1k',
}


@pytest.mark.parametrize('row', OF_IMAGENET)
@pytest.mark.every(5)
def test_real_photographs_of_full_size_are_those_of_imagenet(row):
    """The backbone of a full-size row is that of the ImageNet classifier, but for the maps that are taken, drop path,
    and the size of the images."""
    found = [
        read_row(CONFIGS / 'real' / 'full' / 'camvid.py', row),
        read_row(ROOT / 'configs' / f'{OF_IMAGENET[row]}.py'),
    ]
    of_the_task = {'out_indices', 'drop_path_rate', 'shift_small_maps', 'final_norm', 'img_size'}
    ours, theirs = ({k: v for k, v in cfg.model.backbone.items() if k not in of_the_task} for cfg in found)
    assert ours == theirs


@pytest.mark.slow
@pytest.mark.usefixtures('any_weights')
def test_real_photographs_have_equal_cost():
    """Classifiers that are compared have 2 to 4 million parameters, and multiply-adds within 10 % of each other. Their
    settings are noted: tools/publish.py refuses weights without."""
    path = CONFIGS / 'real' / 'tiny-imagenet.py'
    costs = []
    for row in read_row(path).rows:
        with DefaultScope.overwrite_default_scope('mmpretrain'):
            model = MODELS.build(read_row(path, row).model).eval()
        assert backbone_settings(model), row
        costs.append(count_model(row, model, 'mmpretrain', {'Input Size': (64, 64)}))
    assert all(2e6 < cost.parameters < 4e6 for cost in costs)
    operations = [cost.operations for cost in costs]
    assert max(operations) < 1.1 * min(operations)
