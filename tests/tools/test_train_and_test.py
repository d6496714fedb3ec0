"""tools/train.py and tools/test.py as a user calls them, on a few toy images."""

import json
import pickle
from pathlib import Path

import pytest
from mmengine.config import Config

from tests.tools.in_process import NO_WORKERS, run_tool

MASK_RCNN = 'projects/lab/configs/toy/mask-rcnn_elsa-swin-toy_fpn.py'
TRANSNEXT = 'projects/lab/configs/toy/mask-rcnn_transnext-toy_fpn.py'
UPERNET = 'projects/lab/configs/toy/elsa-swin-toy_upernet.py'
SEMANTIC_FPN = 'projects/lab/configs/toy/transnext-toy_fpn.py'
#: a training of two steps, in which the second continues the first when resumed
SHORT = {
    MASK_RCNN: [
        'train_dataloader.batch_size=4',
        'model.train_cfg.rpn_proposal.max_per_img=50',
        'model.test_cfg.rpn.max_per_img=10',
        'train_cfg.val_interval=1',
        'train_cfg.max_epochs={}',
    ],
    UPERNET: [
        'train_dataloader.batch_size=2',
        'train_cfg.val_interval=1',
        'default_hooks.checkpoint.interval=1',
        'train_cfg.max_iters={}',
    ],
}
#: after two steps every score is low: take boxes of any score, but of few regions, each of which has 80 boxes
TEST = {
    MASK_RCNN: ['model.test_cfg.rcnn.score_thr=0.', 'model.test_cfg.rpn.max_per_img=10'],
    UPERNET: ['model.test_cfg.mode=whole'],
}
LAST = {MASK_RCNN: 'epoch_{}.pth', UPERNET: 'iter_{}.pth'}
METRICS = {MASK_RCNN: {'coco/bbox_mAP_50', 'coco/segm_mAP'}, UPERNET: {'mIoU'}}
for table in (SHORT, TEST, LAST, METRICS):
    table[TRANSNEXT], table[SEMANTIC_FPN] = table[MASK_RCNN], table[UPERNET]


@pytest.fixture(scope='module')
def toy(tmp_path_factory):
    """The environment in which configs find toy data."""
    folder = tmp_path_factory.mktemp('tools') / 'toy'
    assert run_tool('make_toy_data', folder, '--train', 4, '--val', 2).returncode == 0
    return dict(COCO_ROOT=f'{folder}/coco/', ADE20K_ROOT=f'{folder}/ADEChallengeData2016', CUDA_VISIBLE_DEVICES='')


@pytest.fixture(
    scope='module',
    params=[
        MASK_RCNN,
        *(pytest.param(config, marks=pytest.mark.slow) for config in (UPERNET, TRANSNEXT, SEMANTIC_FPN)),
    ],
)
def trained(request, toy, tmp_path_factory):
    """A config, its work folder after one step and one more by --resume, and the last checkpoint.
    test_dist_and_resume.py trains in processes of their own."""
    config, folder = request.param, tmp_path_factory.mktemp('work')
    for end in (1, 2):
        options = [option.format(end) for option in SHORT[config]]
        arguments = 'train', config, '--work-dir', folder, '--resume', '--cfg-options', *options
        done = run_tool(*arguments, *NO_WORKERS, **toy)
        assert done.returncode == 0, done.stdout + done.stderr
        assert (folder / LAST[config].format(end)).is_file()
    assert 'resumed' in (done.stdout + done.stderr).lower()
    return config, folder, folder / LAST[config].format(2)


def metrics(folder):
    return json.loads(max(folder.glob('*/*.json')).read_text())


def test_test(toy, trained, tmp_path):
    """The test gives metrics, a file of predictions, a confusion matrix, and as many images as wanted."""
    config, _, checkpoint = trained
    arguments = (
        'test',
        config,
        checkpoint,
        '--work-dir',
        tmp_path / 'work',
        '--show-dir',
        tmp_path / 'shown',
        '--draw',
        1,
        '--out',
        tmp_path / 'predictions.pkl',
        '--confusion',
        tmp_path / 'matrix.png',
        '--cfg-options',
        *TEST[config],
    )
    done = run_tool(*arguments, *NO_WORKERS, **toy)
    assert done.returncode == 0, done.stdout + done.stderr
    assert METRICS[config] <= set(metrics(tmp_path / 'work'))
    assert '| kite ' in done.stdout or config in (UPERNET, SEMANTIC_FPN)  # the table of each class
    assert len(list((tmp_path / 'shown').rglob('*.[jp][pn]g'))) == 1
    assert len(pickle.loads((tmp_path / 'predictions.pkl').read_bytes())) == 2
    assert (tmp_path / 'matrix.png').is_file() and 'Most frequent confusions:' in done.stdout


def test_multi_scale_test(toy, trained, tmp_path):
    """--tta tests the model of views, and gives the metrics of segmentation, boxes and masks."""
    config, _, checkpoint = trained
    options = ['--cfg-options', *TEST[config], *NO_WORKERS, 'tta_views.factors=[0.5,0.75]']
    done = run_tool('test', config, checkpoint, '--work-dir', tmp_path, '--tta', *options, **toy)
    assert done.returncode == 0, done.stdout + done.stderr
    assert METRICS[config] <= set(metrics(tmp_path))
    assert Config.fromfile(tmp_path / Path(config).name).model.type.endswith('TTAModel')


@pytest.mark.parametrize(
    'tool, arguments, message',
    [
        ('train', ['no.py'], 'there is no config no.py'),
        (
            'train',
            ['projects/lab/configs/toy/elsa-swin-toy_in1k.py', '--auto-scale-lr'],
            'needs auto_scale_lr.base_batch_size',
        ),
        ('test', [MASK_RCNN, 'no.pth', '--out', 'x.json'], '--out must name a .pkl file'),
    ],
)
def test_mistakes_get_a_sentence(toy, tmp_path, tool, arguments, message):
    done = run_tool(tool, *arguments, '--work-dir', tmp_path, **toy)
    assert done.returncode == 1 and message in done.stderr.splitlines()[-1]


def test_options_of_a_training(toy, tmp_path, monkeypatch):
    """Each arrives: mixed precision, a rate for the batch size, and the checkpoint to resume from, which is trusted."""
    calls = []
    monkeypatch.setattr('mmguard.runs.running.train', lambda *given, **named: calls.append((*given, named)))
    options = '--amp', '--auto-scale-lr', '--resume', 'a.pth', '--trust-checkpoint'
    assert run_tool('train', UPERNET, '--work-dir', tmp_path, *options, **toy).sentence is None
    ((cfg, *others),) = calls
    assert cfg.optim_wrapper.type != 'OptimWrapper' and cfg.auto_scale_lr.enable
    assert others == ['a.pth', dict(trusted=True)]


def test_interruption(toy, tmp_path, monkeypatch):
    """Ctrl-C ends a training with one line, which names the work folder, and --resume if there is a checkpoint."""

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr('mmguard.runs.running.train', interrupted)
    for there in (False, True):
        done = run_tool('train', UPERNET, '--work-dir', tmp_path, **toy)
        line = done.stderr.splitlines()[-1]
        assert done.returncode == 130 and str(tmp_path) in line and ('--resume' in line) == there
        (tmp_path / 'iter_2.pth').touch()
