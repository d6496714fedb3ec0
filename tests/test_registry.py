"""MMEngine finds what is named ``mmattn.NAME`` by mmattn/registry.py, in everybody's tools."""

import os
import subprocess
import sys
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

import pytest
from mmengine.registry import MODELS, DefaultScope

from mmattn.backbones import NAT
from mmattn.backbones.layer_decay import LayerDecayOptimWrapperConstructor
from mmattn.classification import LoadTokenLabels, MixThenErase, TimmCosineLR
from mmattn.detection import SimpleFeaturePyramid
from mmattn.packages import PACKAGES
from mmattn_distillation import BackboneCheckpointHook, MultiScaleBatchSampler, TeacherSimilarity, UnlabelledImages
from tests import PYTHONPATH, ROOT
from tests.fresh import run_python
from tests.tools.in_process import NO_WORKERS, run_tool


@pytest.mark.parametrize(
    'kind, name, found',
    [
        ('OPTIM_WRAPPER_CONSTRUCTORS', 'mmattn.LayerDecayOptimWrapperConstructor', LayerDecayOptimWrapperConstructor),
        ('MODELS', 'mmattn.detection.SimpleFeaturePyramid', SimpleFeaturePyramid),
        ('TRANSFORMS', 'mmattn.classification.LoadTokenLabels', LoadTokenLabels),
        ('PARAM_SCHEDULERS', 'mmattn.classification.TimmCosineLR', TimmCosineLR),
        ('BATCH_AUGMENTS', 'mmattn.classification.MixThenErase', MixThenErase),
        ('HOOKS', 'mmattn_distillation.BackboneCheckpointHook', BackboneCheckpointHook),
        ('METRICS', 'mmattn_distillation.TeacherSimilarity', TeacherSimilarity),
        ('DATASETS', 'mmattn_distillation.UnlabelledImages', UnlabelledImages),
        ('DATA_SAMPLERS', 'mmattn_distillation.MultiScaleBatchSampler', MultiScaleBatchSampler),
        ('MODELS', 'mmattn.detection.NoSuchClass', None),
        ('MODELS', 'mmattn.NoSuchClass', None),
    ],
)
@pytest.mark.parametrize('package', ['mmengine', 'mmdet', 'mmseg', 'mmpretrain'])
def test_names(package, kind, name, found):
    """From the registries of MMEngine and of the packages above it; a path of modules is one from mmattn."""
    registry = getattr(pytest.importorskip(f'{package}.registry'), kind, None)
    if registry is None:
        assert kind == 'BATCH_AUGMENTS' and package != 'mmpretrain'
    elif found is None:
        with pytest.raises(KeyError, match=f'{name} is not in the '):
            registry.build(dict(type=name))
    else:
        assert registry.get(name) is found


@pytest.mark.parametrize('scope', ['mmdet', 'mmseg', 'mmpretrain', 'mmattn'])
@pytest.mark.parametrize('backbone', [dict(type='mmattn.NAT'), dict(type='NAT', _scope_='mmattn')], ids=str)
def test_scopes(scope, backbone):
    """In every scope of a config, and below a model of another package."""
    whole = dict(type='ImageClassifier', _scope_='mmpretrain', backbone=dict(backbone, arch='mini'))
    with DefaultScope.overwrite_default_scope(scope):
        assert type(MODELS.build(whole).backbone) is NAT


def test_import_that_fails_is_told():
    """MMEngine hides errors of the import of mmattn.registry, and would say that no registry has the name."""
    done = run_python("""if True:
        import sys
        from mmengine.registry import MODELS
        sys.modules['safetensors'] = None
        MODELS.build(dict(type='mmattn.ELSASwin'))
    """)
    assert done.stderr.splitlines()[-1].startswith('ModuleNotFoundError: import of safetensors')


#: package -> a toy config, how to train it for one step, what predicts, and whether the config is in the checkpoint
TOOLS = {
    'mmdet': (
        'mask-rcnn_elsa-swin-toy_fpn',
        ['train_cfg.max_epochs=1', 'train_cfg.val_interval=9', 'train_dataloader.batch_size=4'],
        'from mmdet.apis import DetInferencer as Inferencer',
        dict(weights='CHECKPOINT'),  # the config is in its meta
    ),
    'mmseg': (
        'elsa-swin-toy_upernet',
        ['train_cfg.max_iters=1', 'default_hooks.checkpoint.interval=1', 'train_dataloader.batch_size=2'],
        'from mmseg.apis import MMSegInferencer as Inferencer',
        dict(model='CONFIG', weights='CHECKPOINT'),
    ),
    'mmpretrain': (
        'elsa-swin-toy_in1k',
        ['train_cfg.max_epochs=1', 'train_dataloader.batch_size=4'],
        'from mmpretrain import ImageClassificationInferencer as Inferencer',
        dict(model='CONFIG', pretrained='CHECKPOINT'),
    ),
}
#: what MMPretrain's classifier has of mmattn beside the backbone
CLASSIFIER = """
param_scheduler = dict(_delete_=True, type='mmattn.classification.TimmCosineLR', t_initial=1)
optim_wrapper = dict(constructor='mmattn.LayerDecayOptimWrapperConstructor', paramwise_cfg=dict(layer_decay_rate=0.9))
"""
PREDICT = """
import sys
import numpy as np
IMPORT
inferencer = Inferencer(device='cpu', **SETTINGS)
assert any(name.startswith('mmattn.backbones') for name in sys.modules)
assert inferencer(np.zeros((64, 80, 3), np.uint8))
"""


@pytest.fixture(scope='module')
def toy(tmp_path_factory):
    """The environment in which configs find toy data, and a process mmattn."""
    folder = tmp_path_factory.mktemp('registry')
    assert run_tool('make_toy_data', folder / 'toy', '--train', 4, '--val', 1).returncode == 0
    return dict(
        COCO_ROOT=f'{folder}/toy/coco',
        ADE20K_ROOT=f'{folder}/toy/ADEChallengeData2016',
        IMAGENET_ROOT=f'{folder}/toy/imagenet',
        PYTHONPATH=PYTHONPATH,
        OMP_NUM_THREADS='1',
        CUDA_VISIBLE_DEVICES='',
    )


@pytest.mark.slow
@pytest.mark.parametrize('package', TOOLS)
@pytest.mark.parametrize('command', ['train.py', 'mim'])
def test_tools_of_the_packages(command, package, toy, tmp_path):
    """Each package's own train.py, mim, which calls it, test.py and inferencer take a config that names mmattn and
    imports nothing, also the one that MMEngine wrote to the work folder or to the checkpoint."""
    if command == 'mim':
        pytest.importorskip('mim')  # not required here: onedl-mim pins pandas, and openmim an old setuptools
    name, options, load, settings = TOOLS[package]
    config = tmp_path / 'mine.py'
    config.write_text(f'_base_ = {str(ROOT / f"projects/lab/configs/toy/{name}.py")!r}\n')
    if package == 'mmpretrain':
        config.write_text(config.read_text() + CLASSIFIER)

    def run(*command: object) -> None:
        done = subprocess.run(
            [sys.executable, *map(str, command)], cwd=tmp_path, env=os.environ | toy, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr

    tools = Path(find_spec(package).submodule_search_locations[0]) / '.mim' / 'tools'
    # mim knows a package by the name of its distribution.
    name = next(name for name in PACKAGES[package][1:] if any(distributions(name=name)))
    train = ['-m', 'mim', 'train', name, '--gpus', 0] if command == 'mim' else [tools / 'train.py']
    run(*train, config, '--work-dir', 'work', '--cfg-options', *options, *NO_WORKERS)
    (checkpoint,), dumped = (tmp_path / 'work').glob('*_1.pth'), tmp_path / 'work' / 'mine.py'
    assert 'custom_imports' not in dumped.read_text() and "'mmattn.ELSASwin'" in dumped.read_text()
    run(tools / 'test.py', dumped, checkpoint, '--work-dir', 'tested')
    paths = dict(CONFIG=str(dumped), CHECKPOINT=str(checkpoint))
    settings = {key: paths[value] for key, value in settings.items()}
    run('-c', PREDICT.replace('IMPORT', load).replace('SETTINGS', repr(settings)))
