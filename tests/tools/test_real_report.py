"""tools/dev/real_report.py: the table has each finished run in its place."""

import json

from tests.tools.in_process import load_tool, run_tool

real_report = load_tool('dev/real_report')


def write(folder, run, seconds=60, **metrics):
    (folder / run).mkdir(parents=True)
    (folder / run / 'result.json').write_text(json.dumps(dict(metrics=metrics, seconds=seconds)))


def test_table(tmp_path):
    """Runs that chose the rate are left out, AP becomes percent, seeds have a mean, and a missing run is a dash."""
    write(tmp_path / 'tiny' / 'swin', 'rate0.001_seed0', 600, **{'accuracy/top1': 31.25, 'accuracy/top5': 60.0})
    write(tmp_path / 'tiny' / 'swin', 'rate0.001_sweep', 600, **{'accuracy/top1': 99.0, 'accuracy/top5': 99.0})
    write(tmp_path / 'camvid' / 'swin', 'rate0.001_seed0', mIoU=40.0)
    write(tmp_path / 'camvid' / 'swin', 'rate0.001_seed1', mIoU=44.0)
    write(tmp_path / 'bccd' / 'swin-pretrained', 'rate0.001_seed0', **{'pascal_voc/mAP': 0.5})
    classifiers = {row: runs[0] for row, runs in real_report.finished(tmp_path / 'tiny').items()}
    downstream = {task: real_report.finished(tmp_path / task) for task in ('camvid', 'bccd')}
    lines = real_report.table(['swin'], classifiers, downstream, {'swin': 12.3}).splitlines()
    assert lines[2] == '| swin | 31.2 | 60.0 | 10 | 42.0 ± 2.8 | - | - | 50.0 | 12 |'


def test_nothing_is_finished(tmp_path):
    """One sentence says what to run, and nothing is written."""
    done = run_tool('dev/real_report', tmp_path, '--out', tmp_path / 'report')
    assert done.returncode == 1 and 'make real trains them' in done.stderr and not (tmp_path / 'report').exists()
