"""projects/lab/tools/compare.py: which runs it does, what it writes, and that a second call continues the first."""

import math
import multiprocessing
import os
import re
import select
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import mmseg
import pytest

from mmguard.packages import version_numbers
from mmguard.runs.divergence import DivergedError
from tests import PYTHONPATH, ROOT
from tests.tools.in_process import load_tool

compare = load_tool('compare')

FPN = 'projects/lab/configs/toy/compare/fpn_ade20k.py'
RATES = [1e-4, 3e-4, 1e-3, 3e-3, 1e-2]


def all_runs(score, rates=RATES, seeds=(0, 1, 2)):
    """The runs that are wanted one after the other, if ``score`` gives their results."""
    scores = {}
    while runs := compare.wanted(scores, rates, seeds):
        scores.update({run: score(*run) for run in runs})
    return list(scores)


@pytest.mark.parametrize(('best', 'swept'), [(1e-3, RATES[1:4]), (3e-3, RATES[1:]), (1e-4, RATES[:4])])
def test_runs(best, swept):
    """The sweep reaches an end of the rates only from its neighbour, and the best rate gets all the seeds."""
    runs = all_runs(lambda rate, seed: -abs(RATES.index(rate) - RATES.index(best)))
    assert sorted(rate for rate, seed in runs if seed == 0) == swept
    assert sorted(run for run in runs if run[1]) == [(best, 1), (best, 2)]


def test_runs_of_few_rates():
    assert all_runs(lambda *_: 0, rates=[1e-3]) == [(1e-3, 0), (1e-3, 1), (1e-3, 2)]
    assert all_runs(lambda rate, _: rate, rates=[1e-3, 1e-2], seeds=[4]) == [(1e-3, 4), (1e-2, 4)]


def test_runs_of_a_sweep():
    """Short runs choose the rate, with which every seed is trained."""
    runs = all_runs(lambda rate, _: rate, rates=[1e-3, 1e-2], seeds=[None, 0, 1])
    assert runs == [(1e-3, None), (1e-2, None), (1e-2, 0), (1e-2, 1)]


def test_only_the_first_seed_chooses_the_rate():
    """Otherwise a rate with more seeds would have more chances."""
    assert compare.best_rate({(1e-3, 0): 5, (3e-3, 0): 4, (3e-3, 1): 9}, RATES, [0, 1]) == 1e-3


def entry(name, scores):
    return compare.Entry(
        Path('fpn_ade20k.py'), name, 'mIoU', 'mIoU', 1, '', (64, 64), 1_250_000, 24.06e6, (300, 300), scores=scores
    )


def test_nan_is_no_best_score():
    """Of a run whose metric is NaN, nothing is repeated, wherever it is in the order."""
    assert compare.best_rate({(1e-3, 0): float('nan'), (3e-3, 0): 4}, RATES, [0]) == 3e-3
    assert compare.best_rate({(1e-3, 0): 4, (3e-3, 0): float('nan')}, RATES, [0]) == 1e-3


def test_a_run_that_diverges(tmp_path, monkeypatch):
    """It is finished, with a score of NaN, and does not end the other runs. Each run has its own rate and seed, and
    those of a sweep its settings and the first seed."""
    trained = []

    def train(cfg, *_, **__):
        trained.append((cfg.optim_wrapper.optimizer.lr, cfg.randomness.seed, cfg.train_cfg.max_iters))
        raise DivergedError('the training has diverged: loss')

    monkeypatch.setattr(compare, 'train', train)
    one = entry('swin', {})
    one.config = tmp_path / 'fpn_ade20k.py'
    one.config.write_text(f"_base_ = '{ROOT / FPN}'\nsweep = dict(train_cfg=dict(max_iters=9))")
    args = Namespace(work_dir=tmp_path, cfg_options={}, seeds=[7, 8])
    for run in ((0.1, None), (0.2, 8)):
        assert math.isnan(compare.train_one(one, run, args)[0]['mIoU'])
    compare.read_finished(one, tmp_path)
    assert trained == [(0.1, 7, 9), (0.2, 8, 300)]
    assert len(one.scores) == 2 and all(map(math.isnan, one.scores.values()))


@pytest.mark.parametrize('text', ['{"rate": 0.001, "se', '[' * 100_000])
def test_unreadable_results(tmp_path, capsys, text):
    """A run whose result.json cannot be read is not finished, and a line says so; the others count."""
    row = entry('swin', {})
    for name, content in (
        ('a', text),
        ('b', '{"rate": 0.001, "seed": 0, "metrics": {"mIoU": 3}, "digest": "", "seconds": 1}'),
    ):
        (row.folder(tmp_path) / name).mkdir(parents=True)
        (row.folder(tmp_path) / name / 'result.json').write_text(content, encoding='latin-1')
    compare.read_finished(row, tmp_path)
    assert row.scores == {(1e-3, 0): 3}
    assert re.fullmatch(r'.*/a/result.json cannot be read .* the run counts as not finished\n', capsys.readouterr().out)
    row.digest = 'other'
    with pytest.raises(compare.InputError, match='b was trained with other settings than fpn_ade20k.py has now'):
        compare.read_finished(row, tmp_path)


def test_process_ends_with_its_parent():
    """If projects/lab/tools/compare.py is killed, its trainings end."""
    fork = multiprocessing.get_context('fork')

    def train():
        fork.Process(target=compare.end_with_parent).start()
        os.write(started, b'training')
        time.sleep(60)

    ended, started = os.pipe()  # Its other end is open as long as one of the processes lives.
    parent = fork.Process(target=train)
    parent.start()
    os.close(started)
    assert os.read(ended, 8) == b'training'
    parent.kill()
    assert select.select([ended], [], [], 10)[0] and not os.read(ended, 1)
    os.close(ended)


def test_table():
    """Mean and sample standard deviation of the seeds at the best rate, what is not finished, and what diverged."""
    done = entry('swin', {(1e-3, 0): 40.0, (3e-3, 0): 38.04, (1e-3, 1): 42.0, (1e-3, 2): 47.0})
    rows = [done, entry('vit', {(1e-3, 0): 1.0}), entry('new', {}), entry('nan', {(1e-3, 0): 1.0, (1e-3, 1): math.nan})]
    lines = compare.make_table(rows, RATES[2:4], [0, 1, 2])
    assert lines.splitlines()[2:] == [
        '| model | parameters / M | multiply-adds / M at 64 x 64 | 0.001 | 0.003 | seed 1 | seed 2 | '
        'mIoU, mean ± spread |',
        '| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |',
        '| swin | 1.25 | 24.1 | **40.0** | 38.0 | 42.0 | 47.0 | 43.0 ± 3.6 |',
        '| vit | 1.25 | 24.1 | **1.0** | - | - | - | 1.0 |',
        '| new | 1.25 | 24.1 | - | - | - | - | - |',
        '| nan | 1.25 | 24.1 | **1.0** | - | nan | - | nan ± nan |',
    ]


def test_nothing_found():
    """A detector that finds nothing has no metrics at all: 0. Another key is a mistake."""
    row = entry('swin', {})
    row.factor = 100
    assert compare.score(row, {}) == 0 and compare.score(row, {'mIoU': 0.31}) == 31
    with pytest.raises(compare.InputError, match=r'has no metric mIoU: it has aAcc'):
        compare.score(row, {'aAcc': 31.0})


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    root = tmp_path_factory.mktemp('data') / 'toy'
    make = [sys.executable, ROOT / 'projects/lab/tools/make_toy_data.py', root, '--train', '4', '--val', '2']
    environment = dict(
        os.environ, PYTHONPATH=PYTHONPATH, CUDA_VISIBLE_DEVICES='', ADE20K_ROOT=f'{root}/ADEChallengeData2016'
    )
    subprocess.run(make, env=environment, check=True)

    def run(*arguments):
        command = [sys.executable, ROOT / 'projects/lab/tools/compare.py', *map(str, arguments)]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)

    return run


@pytest.mark.slow
@pytest.mark.skipif(
    version_numbers(mmseg.__version__) < (1, 3), reason='class weights of MMSegmentation 1.2 fail on ignored pixels'
)
def test_compare(run, tmp_path):
    """Two models, two seeds, two steps, side by side. A second call trains only what is missing, and scores of another
    config are refused."""
    command = [FPN, '--row', 'swin', 'resnet', '--rates', '1e-3', '--seeds', '0', '1']
    command += ['--jobs', '2', '--work-dir', tmp_path]
    short = ['--cfg-options', 'train_cfg.max_iters=2', 'train_cfg.val_interval=2']
    done = run(*command, *short)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r'^fpn_ade20k, .* mIoU [\d.]+ \(', done.stdout, re.M)) == 4
    table = (tmp_path / 'table.md').read_text()
    assert len(re.findall(r'^\| (?:swin|resnet) .* [\d.]+ ± [\d.]+ \|$', table, re.M)) == 2
    assert (tmp_path / 'plot.png').stat().st_size > 5000
    assert len(set(re.findall(r'[\d.]+ ± [\d.]+', table))) == 2, 'models or seeds are mixed up'

    (tmp_path / 'fpn_ade20k' / 'swin' / 'rate0.001_seed1' / 'result.json').unlink()
    again = run(*command, *short)
    assert again.returncode == 0, again.stdout + again.stderr
    assert re.findall(r'^fpn_ade20k, (.*): mIoU', again.stdout, re.M) == ['swin, rate 0.001, seed 1']
    assert (tmp_path / 'table.md').read_text() == table, 'the same seed gives other scores'

    other = run(*command)
    assert other.returncode == 1 and 'name another --work-dir' in other.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ('arguments', 'sentence'),
    [
        ([FPN, '--row', 'sven'], 'has no row sven'),
        ([FPN, '--row', 'resnet', 'resnet'], 'have the same name'),
        ([FPN, '--cfg-options', 'val_dataloader=None', 'val_cfg=None', 'val_evaluator=None'], 'has no val_dataloader'),
        (['--rates', '1e-2', '1e-3'], '--rates must be positive, finite and ascending'),
    ],
)
def test_mistakes(monkeypatch, tmp_path, arguments, sentence):
    """A mistake ends in one sentence, before anything is trained or written."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr('sys.argv', ['compare.py', *arguments, '--work-dir', str(tmp_path / 'work')])
    with pytest.raises(compare.InputError, match=sentence):
        compare.main()
    assert not (tmp_path / 'work').exists()


def test_metrics_of_the_last_evaluation(tmp_path, monkeypatch):
    """A detector that finds nothing in the end counts as 0, whatever it found before. A run that was killed in its last
    evaluation, after its last checkpoint, repeats it."""
    from mmengine.hooks import Hook

    from projects.mmguard.tests.runs import small_training

    class Found(Hook):
        def after_val_epoch(self, runner, metrics=None):
            if runner.iter == small_training.STEPS:
                metrics.clear()

    class Kill(Hook):
        def before_val(self, runner):
            if runner.iter == small_training.STEPS:
                raise small_training.Killed

    def train(cfg, resume, hooks=()):
        runner = small_training.build(cfg.work_dir, validate=True)
        for hook, priority in [(more, 'HIGHEST') for more in others] + [(hook, 'NORMAL') for hook in hooks]:
            runner.register_hook(hook, priority)
        runner.train()

    monkeypatch.setattr(compare, 'train', train)
    monkeypatch.chdir(ROOT)
    one, args = entry('swin', {}), Namespace(work_dir=tmp_path, cfg_options={}, seeds=[0])
    one.config, others = Path(FPN), [Found()]
    one.place(tmp_path, (0.1, 0)).mkdir(parents=True)
    metrics, _ = compare.train_one(one, (0.1, 0), args)
    assert compare.score(one, metrics) == 0
    others = [Kill()]
    with pytest.raises(small_training.Killed):
        compare.train_one(one, (0.2, 0), args)
    others, before = [], next(small_training.Better.score)
    assert compare.train_one(one, (0.2, 0), args)[0]['mIoU'] == before + 1
    assert (one.place(tmp_path, (0.2, 0)) / 'result.json').is_file()


@pytest.mark.parametrize('evaluator, key, value', [('CocoMetric', 'coco/bbox_mAP_50', 0.42), ('IoUMetric', 'mIoU', 42)])
def test_scores_are_in_percent(evaluator, key, value):
    """MMDetection's metrics are shares, those of MMSegmentation and MMPretrain percent; the table has percent."""
    metric, _, factor = compare.METRICS[evaluator]
    assert compare.score(Namespace(metric=metric, factor=factor), {key: value}) == pytest.approx(42)
