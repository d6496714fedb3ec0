"""tools/curves.py on logs as MMEngine writes them."""

import json
import shutil

import cv2
import pytest
from matplotlib import pyplot

from mmattn.analysis.curves import is_score, read_curves
from mmattn.errors import InputError
from tests.tools.in_process import run_tool


@pytest.fixture
def work(tmp_path):
    """The work folder of a training of 2 epochs of 10 steps that was resumed once."""
    for name, lines in {
        'a': [dict(step=5, loss=2.0, loss_cls=1.0, lr=0.1), dict(step=1, **{'coco/bbox_mAP': 0.1})],
        'b': [
            dict(step=15, loss=1.0, loss_cls=0.5, lr=0.1),
            dict(step=2, **{'coco/bbox_mAP': 0.2, 'coco/cat_precision': 1}),
        ],
    }.items():
        folder = tmp_path / 'work' / name
        (folder / 'vis_data').mkdir(parents=True)
        (folder / f'{name}.log').write_text('11/23 - mmengine - INFO - Epoch(train)  [1][ 5/10]  loss: 2.0\n')
        (folder / 'vis_data' / 'scalars.json').write_text('\n'.join(map(json.dumps, lines)))
    return tmp_path / 'work'


def test_curves(work):
    """Resumed trainings are joined, and scores of an epoch are at its last step."""
    curves = read_curves(work)
    assert curves['loss'] == {5: 2.0, 15: 1.0} and curves['coco/bbox_mAP'] == {10: 0.1, 20: 0.2}
    assert [key for key in sorted(curves) if is_score(key)] == ['coco/bbox_mAP']


@pytest.mark.parametrize(
    'log, steps',
    [('Epoch(train)  [1][ 5/10]', [10, 20]), ('Iter(train) [ 5/20]', [0, 0])],
    ids=['epochs, scores by steps', "steps, MMEngine's default logger"],
)
def test_scores_that_are_counted_in_another_way(tmp_path, log, steps):
    """log_metric_by_epoch of MMEngine's LoggerHook says how scores are counted, whatever the training."""
    (tmp_path / 'a' / 'vis_data').mkdir(parents=True)
    (tmp_path / 'a' / 'a.log').write_text(log)
    lines = [
        dict(step=10, loss=2.0),
        dict(step=steps[0], mIoU=1.0),
        dict(step=20, loss=1.0),
        dict(step=steps[1], mIoU=2.0),
    ]
    (tmp_path / 'a' / 'vis_data' / 'scalars.json').write_text('\n'.join(map(json.dumps, lines)))
    assert read_curves(tmp_path)['mIoU'] == {10: 1.0, 20: 2.0}


def test_picture(work, tmp_path):
    done = run_tool('curves', work, '--out', tmp_path / 'new' / 'a.png')
    assert done.returncode == 0 and cv2.imread(str(tmp_path / 'new' / 'a.png')) is not None


def test_names_of_several_trainings(work, tmp_path, monkeypatch):
    """Work folders may have the same name: rate0.001_seed0 of two models."""
    monkeypatch.setattr(pyplot, 'subplots', lambda *_, **__: (figure, axes))
    figure, axes = pyplot.figure(), pyplot.figure().subplots(1, 2)
    other = shutil.copytree(work, tmp_path / 'other' / 'work')
    assert run_tool('curves', work, other, '--out', tmp_path / 'a.svg').returncode == 0
    assert [text.get_text() for text in axes[0].get_legend().get_texts()] == [f'{work}: loss', f'{other}: loss']


def test_damaged_log(work):
    (work / 'a' / 'vis_data' / 'scalars.json').write_text('{"loss": }\n')
    with pytest.raises(InputError, match='scalars.json cannot be read'):
        read_curves(work)


@pytest.mark.parametrize(
    'arguments, sentence',
    [
        (['{}', '--keys', 'mIoU', '--out', 'a.png'], 'which no training has: there are coco/bbox_mAP'),
        (['{}/a', '--out', 'a.png'], 'has no log of a training'),
        (['{}', '--out', 'a.jpg'], '--out must name a .png'),
        (['{}', '--out', '{}/a/a.log/a.png'], 'a.png cannot be written'),
    ],
)
def test_mistakes(work, arguments, sentence):
    done = run_tool('curves', *(argument.format(work) for argument in arguments))
    assert done.returncode == 1 and sentence in done.stderr
