"""tools/curves.py on logs as MMEngine writes them."""

import json
import math
import shutil

import pytest
from matplotlib import pyplot
from matplotlib.cbook import is_math_text

from mmguard.curves import is_score, read_curves
from mmguard.errors import InputError
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


@pytest.mark.parametrize('trainings', [1, 2])
def test_picture_of_many_scores(tmp_path, monkeypatch, trainings):
    """By default, the curves of COCO are those of mAP; the -1 of sizes without an object is not drawn. Of dozens of
    losses, the largest are. No two lines look the same, and the legend covers none."""
    parts = {f'd{i}.loss_{name}': 0.1 * i for i in range(9) for name in ('cls', 'mask', 'dice')}
    kinds = [f'coco/{kind}_mAP' for kind in ('bbox', 'segm')]
    scores = {
        f'{kind}{end}': 0.5 - (end == '_l') * 1.5 for kind in kinds for end in ('', '_50', '_75', '_s', '_m', '_l')
    }
    lines = [dict(step=5, loss=9.0, **parts), dict(step=5, **scores)]
    folders = [tmp_path / f'work{i}' for i in range(trainings)]
    for folder in folders:
        (folder / 'a' / 'vis_data').mkdir(parents=True)
        (folder / 'a' / 'vis_data' / 'scalars.json').write_text('\n'.join(map(json.dumps, lines)))
    monkeypatch.setattr(pyplot, 'subplots', lambda *_, **__: (figure, axes))
    for keys, number in (((), 2), (('--keys', *scores), 12)):
        figure = pyplot.figure(layout='constrained')
        axes = figure.subplots(1, 2)
        assert run_tool('curves', *folders, '--out', tmp_path / 'a.png', *keys).returncode == 0
        losses, drawn = (axis.get_lines() for axis in axes)
        assert len(losses) == (10 if trainings == 1 else 2) and len(drawn) == number * trainings
        assert {line.get_label() for line in losses} & {'loss', 'work0: loss'}
        assert len({(str(line.get_color()), line.get_linestyle(), line.get_marker()) for line in drawn}) == len(drawn)
        assert axes[1].dataLim.ymin >= 0
        assert not any(axis.get_legend().get_window_extent().overlaps(axis.bbox) for axis in axes)


@pytest.mark.parametrize('name', ['$x^$', '_run', 'other/work'])
def test_names_of_trainings(work, tmp_path, monkeypatch, name):
    """Matplotlib takes text between two $ for a formula, and leaves out of a legend what begins with "_". Names begin
    where the paths of work folders differ."""
    monkeypatch.setattr(pyplot, 'subplots', lambda *_, **__: (figure, axes))
    figure, axes = pyplot.figure(), pyplot.figure().subplots(1, 2)
    shutil.copytree(work, tmp_path / name)
    options = '--out', tmp_path / 'a.png', '--keys', 'coco/bbox_mAP'
    assert run_tool('curves', work, tmp_path / name, *options).returncode == 0
    texts = [text.get_text() for text in axes[0].get_legend().get_texts()]
    assert [text.replace(r'\$', '$').strip() for text in texts] == ['work: loss', f'{name}: loss']
    assert not any(map(is_math_text, texts))


@pytest.mark.parametrize('line', ['{"loss": }', '{"loss": 1, "step": 1.5}'])
def test_damaged_log(work, line):
    (work / 'a' / 'vis_data' / 'scalars.json').write_text(f'{line}\n')
    with pytest.raises(InputError, match='scalars.json cannot be read'):
        read_curves(work)


def test_numbers_that_cannot_be_drawn(work, tmp_path):
    """Infinity, NaN and numbers beyond those of a float are gaps of a curve, and what is no number has none."""
    values = ['1e400', 'NaN', '-Infinity', '1' + '0' * 400, '1e308', '2', 'true', '"2"', '[2]', 'null']
    lines = [f'{{"step": {step}, "loss": {value}}}' for step, value in enumerate(values)]
    (work / 'a' / 'vis_data' / 'scalars.json').write_text('\n'.join(lines))
    shutil.rmtree(work / 'b')
    curve = read_curves(work)['loss']
    assert list(curve) == [0, 1, 2, 3, 4, 5] and curve[5] == 2 and all(math.isnan(curve[step]) for step in range(5))
    assert run_tool('curves', work, '--out', tmp_path / 'a.png').returncode == 0


@pytest.mark.parametrize(
    'arguments, sentence',
    [
        (['{}', '--keys', 'bbox_mAP', '--out', 'a.png'], 'no training has: did you mean coco/bbox_mAP'),
        (['{}/a', '--out', 'a.png'], 'has no log of a training'),
        (['{}', '--out', '{}/a/a.log/a.png'], 'a.png cannot be written'),
    ],
)
def test_mistakes(work, arguments, sentence):
    done = run_tool('curves', *(argument.format(work) for argument in arguments))
    assert done.returncode == 1 and sentence in done.stderr
