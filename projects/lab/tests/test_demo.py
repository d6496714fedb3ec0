"""projects/lab/tools/demo.py in its quick form."""

import os
import subprocess
import sys

import cv2
import pytest

from tests import PYTHONPATH, ROOT


@pytest.mark.slow
def test_quick_demo(tmp_path):
    """All steps of ``make demo`` run to the end: data, training, tests, table, curves and images. One detector starts
    from the classifier. A second call repeats nothing."""
    command = [sys.executable, ROOT / 'projects' / 'lab' / 'tools' / 'demo.py', '--quick', '--work-dir', tmp_path]
    environment = {**os.environ, 'PYTHONPATH': PYTHONPATH, 'CUDA_VISIBLE_DEVICES': ''}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    table = (tmp_path / 'metrics.md').read_text()
    for row in (
        'classifier | top-1',
        'mask-rcnn-scratch | box AP50',
        'mask-rcnn-pretrained | box AP50',
        'upernet | mIoU | 0.',
    ):
        assert row in table
    assert 'classifier/final.pth' in (tmp_path / 'mask-rcnn-pretrained training.log').read_text()
    for name in ('curves.png', '000000000001_attention.png', 'mask-rcnn-pretrained.png', 'upernet.png', 'readme.png'):
        assert cv2.imread(str(tmp_path / name)) is not None
    again = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert again.returncode == 0 and again.stdout.count('already done') == 10
