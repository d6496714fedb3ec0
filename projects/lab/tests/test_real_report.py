"""projects/lab/tools/real_report.py: the table has each finished run in its place."""

import json
import math

from tests.tools.in_process import load_tool, run_tool

real_report = load_tool('real_report')


def write(folder, run, seconds=60, **metrics):
    (folder / run).mkdir(parents=True)
    (folder / run / 'result.json').write_text(json.dumps(dict(metrics=metrics, seconds=seconds, rate=0.001)))


def test_table(tmp_path):
    """Runs that chose the rate are left out, AP becomes percent, seeds have a mean, and a missing run is a dash. Of
    several rates the best classifier counts, one without an accuracy last, and what diverged is no number."""
    write(tmp_path / 'tiny' / 'swin', 'rate0.001_seed0', 600, **{'accuracy/top1': 31.25, 'accuracy/top5': 60.0})
    write(tmp_path / 'tiny' / 'swin', 'rate0.0005_seed0', 600, **{'accuracy/top1': 21.0, 'accuracy/top5': 50.0})
    write(tmp_path / 'tiny' / 'swin', 'rate0.002_seed0')
    write(tmp_path / 'tiny' / 'swin', 'rate0.001_sweep', 600, **{'accuracy/top1': 99.0, 'accuracy/top5': 99.0})
    write(tmp_path / 'tiny' / 'vit', 'rate0.001_seed0', 0, **{'accuracy/top1': math.nan})
    write(tmp_path / 'camvid' / 'swin', 'rate0.001_seed0', mIoU=40.0)
    write(tmp_path / 'camvid' / 'swin', 'rate0.001_seed1', mIoU=44.0)
    write(tmp_path / 'camvid' / 'vit', 'rate0.001_seed0', mIoU=math.nan)
    write(tmp_path / 'camvid' / 'vit', 'rate0.001_seed1', mIoU=44.0)
    write(tmp_path / 'bccd' / 'swin-pretrained', 'rate0.001_seed0', **{'pascal_voc/mAP': 0.5})
    classifiers = {row: real_report.best(runs) for row, runs in real_report.finished(tmp_path / 'tiny').items()}
    downstream = {task: real_report.finished(tmp_path / task) for task in ('camvid', 'bccd')}
    lines = real_report.table(['swin', 'vit'], classifiers, downstream, {'swin': 12.3, 'vit': 9}).splitlines()
    assert lines[2] == '| swin | 31.2 | 60.0 | 10 | 42.0 ± 2.8 | - | - | 50.0 | 12 |'
    assert lines[3] == '| vit | nan | nan | 0 | nan ± nan | - | - | - | 9 |'


def test_pictures(tmp_path, monkeypatch):
    """They are of the last checkpoint of the first seed that did not diverge, and the model has the options of the
    trainings."""
    seen = []
    monkeypatch.setattr(real_report, 'test', lambda cfg, checkpoint, hooks: seen.append((cfg.model, checkpoint)))
    monkeypatch.setattr(real_report, 'measure', lambda config, rows, options: dict.fromkeys(rows, 1.0))
    work = tmp_path / 'real'
    write(work / 'classifiers' / 'tiny-imagenet' / 'vit', 'rate0.001_seed0', **{'accuracy/top1': 1, 'accuracy/top5': 2})
    write(work / 'downstream' / 'camvid' / 'vit', 'rate0.001_seed0', mIoU=math.nan)
    write(work / 'downstream' / 'camvid' / 'vit', 'rate0.001_seed1', mIoU=44.0)
    last = work / 'downstream' / 'camvid' / 'vit' / 'rate0.001_seed1' / 'iter_500.pth'
    for file in (last, last.with_name('iter_90.pth')):
        file.touch()
    options = ['--cfg-options', 'model.decode_head.dropout_ratio=0.3']
    monkeypatch.setattr('sys.argv', ['real_report.py', str(work), '--out', str(tmp_path / 'report'), *options])
    real_report.main()
    [(model, checkpoint)] = seen
    assert checkpoint == str(last) and model.decode_head.dropout_ratio == 0.3
    assert {file.name for file in (tmp_path / 'report').iterdir()} == {'table.md', 'curves.png'}


def test_nothing_is_finished(tmp_path):
    """One sentence says what to run, and nothing is written."""
    done = run_tool('real_report', tmp_path, '--out', tmp_path / 'report')
    assert done.returncode == 1 and 'make real trains them' in done.stderr and not (tmp_path / 'report').exists()
