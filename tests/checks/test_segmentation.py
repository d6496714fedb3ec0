"""What a mean over classes leaves out is said beside it."""

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import METRICS, DefaultScope

from mmattn.checks.datasets import use_checked_datasets


@pytest.mark.parametrize('predicted, counted', [(0, 1), (1, 2)])
def test_classes_that_are_nan(log, predicted, counted):
    """The mean of one class of two is not that of the model. A class that is predicted only has an IoU of 0."""
    cfg = Config(dict(default_scope='mmseg', val_evaluator=dict(type='IoUMetric')))
    use_checked_datasets(cfg)
    with DefaultScope.overwrite_default_scope('mmseg'):
        metric = METRICS.build(cfg.val_evaluator)
    metric.dataset_meta = dict(classes=('ground', 'cell'))
    label = torch.tensor([[0, 0]])
    result = metric.intersect_and_union(torch.tensor([[0, predicted]]), label, 2, 255)
    assert metric.compute_metrics([result, result])['mIoU'] == (100 if counted == 1 else 25)
    lines = [line for line in log if line.startswith('mIoU is the mean of')]
    sentence = 'mIoU is the mean of 1 of 2 classes: no pixel is labelled or predicted as cell'
    assert lines == ([sentence] if counted == 1 else [])
