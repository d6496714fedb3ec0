"""Tools refuse an output that cannot be written before they read weights, data or models."""

import pytest

from tests.tools.in_process import run_tool

CLASSIFIER = 'projects/lab/configs/toy/elsa-swin-toy_in1k.py'
LONG = 'n' * 300


@pytest.mark.parametrize(
    'tool, arguments',
    [
        ('predict', [CLASSIFIER, 'absent.pth', '{folder}/a.png', '--out', '{folder}/file/sub']),
        ('analyze', [CLASSIFIER, 'absent.pth', '--images', '{folder}/a.png', '--out', '{folder}/file']),
        ('browse', ['projects/lab/configs/toy/shunted-toy_fpn.py', '--out', '{folder}/file/sub']),
        ('compare', ['--work-dir', '{folder}/file']),
        ('export', ['absent.py', '--out', f'{{folder}}/{LONG}.onnx']),
        ('convert_weights', ['absent.pth', f'{{folder}}/{LONG}.pth']),
        ('convert_data', ['csv', 'absent', '--images', 'absent', '--out', '{folder}/file/a.json']),
        ('merge_shards', ['absent', '{folder}/file/merged.pth']),
        ('benchmark', ['absent', '--out', '/proc/mmattn']),
    ],
)
def test_output_that_cannot_be_written(tmp_path, tool, arguments):
    """The weights and configs that the tools would read next are not there, so that another sentence would come."""
    for name in ('file', 'a.png'):
        (tmp_path / name).touch()
    done = run_tool(tool, *(argument.format(folder=tmp_path) for argument in arguments))
    assert done.returncode == 1 and 'cannot be written' in done.stderr.splitlines()[-1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ['a.png', 'file']
