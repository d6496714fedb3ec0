"""Confusion matrices of made-up predictions."""

import cv2
import numpy as np
import pytest
import torch
from mmdet.structures import DetDataSample
from mmengine.config import Config
from mmengine.registry import METRICS
from mmengine.structures import InstanceData, PixelData
from mmpretrain.structures import DataSample
from mmseg.structures import SegDataSample

from mmguard import confusion
from mmguard.confusion import confusions, draw, draw_confusion, fold, table
from mmguard.errors import InputError

NAMES = ['cat', 'dog', r'a $\frac$']  # the last is no formula


def matrix_of(samples, monkeypatch, file, **settings):
    """The matrix that the metric draws of these predictions and annotations."""
    drawn = []
    monkeypatch.setattr(confusion, 'draw', lambda matrix, names: drawn.append(matrix) or draw(matrix, names))
    metric = METRICS.build(dict(type='ConfusionPicture', file=str(file), **settings))
    metric.dataset_meta = dict(classes=NAMES)
    metric.process(None, [sample.to_dict() for sample in samples])
    assert metric.evaluate(len(samples)) == {}
    assert cv2.imread(str(file)) is not None
    return drawn[0].tolist()


def boxes(*rows, scores=None):
    """Instances of rows (label, x1, y1, x2, y2)."""
    rows = torch.tensor(rows).reshape(-1, 5)
    found = InstanceData(labels=rows[:, 0].long(), bboxes=rows[:, 1:].float())
    if scores is not None:
        found.scores = torch.tensor(scores)
    return found


def test_segmentor(tmp_path, monkeypatch):
    """Pixels count, but neither void ones nor those of a label without a class."""
    truth, found = torch.tensor([[[0, 0, 0, 1], [1, 2, 7, 255]]]), torch.tensor([[[0, 0, 1, 1], [0, 0, 1, 1]]])
    sample = SegDataSample(gt_sem_seg=PixelData(data=truth), pred_sem_seg=PixelData(data=found))
    matrix = matrix_of([sample, sample], monkeypatch, tmp_path / 'a.png', ignore_index=2)
    assert matrix == [[4, 2, 0], [2, 2, 0], [0, 0, 0]]


def test_classifier(tmp_path, monkeypatch):
    """Images count, with the class of the best score."""
    pairs = [(0, 0), (0, 1), (0, 1), (1, 1)]
    samples = [DataSample().set_gt_label(a).set_pred_score(torch.eye(3)[b]) for a, b in pairs]
    assert matrix_of(samples, monkeypatch, tmp_path / 'a.png') == [[1, 2, 0], [0, 1, 0], [0, 0, 0]]


def test_detector(tmp_path, monkeypatch):
    """Each box counts once, also if it is missed; so does a detection without a box, but not in an ignored region. The
    best scores choose first, and take the box that they overlap most."""
    sample = DetDataSample(
        gt_instances=boxes((1, 0, 2, 10, 12), (0, 0, 0, 10, 10), (0, 20, 0, 30, 10), (1, 40, 0, 50, 10)),
        ignored_instances=boxes((1, 0, 100, 100, 200)),
        pred_instances=boxes(
            (1, 0, 0, 10, 10),  # gets the other of two boxes, since its score is lower
            (0, 0, 1, 10, 10),  # right
            (1, 0, 0, 10, 10),  # the same place again, where no box is left
            (1, 20, 0, 30, 9),  # another class
            (1, 40, 6, 50, 16),  # overlaps too little
            (1, 40, 0, 50, 10),  # a score that is too low
            (1, 10, 110, 30, 130),  # in the ignored region
            scores=[0.8, 0.9, 0.7, 0.9, 0.9, 0.2, 0.9],
        ),
    )
    empty = DetDataSample(gt_instances=boxes(), pred_instances=boxes(scores=[]))
    matrix = matrix_of([sample, empty], monkeypatch, tmp_path / 'a.png')
    assert matrix == [[1, 1, 0, 0], [0, 1, 0, 1], [0, 0, 0, 0], [0, 2, 0, 0]]


def test_many_classes():
    """The classes that are confused most stay, the others are one class, and nothing is lost."""
    names = [f'c{i}' for i in range(50)]
    matrix = np.diag(np.arange(50))
    matrix[40, 7], matrix[3, 40], matrix[7, 8] = 90, 60, 70
    folded, few = fold(matrix, names)
    assert {'c3', 'c7', 'c8', 'c40', 'c49'} < set(few) and 'c0' not in few and few[-1] == '30 others' and len(few) == 21
    assert folded.sum() == matrix.sum() and folded[few.index('c40'), few.index('c7')] == 90
    assert folded[-1, -1] == sum(i for i in range(50) if f'c{i}' not in few)
    assert fold(np.diag([5, *[0] * 49]), names)[1] == ['c0', '49 others']  # the others do not occur
    with_background = np.pad(matrix, (0, 1), constant_values=500)
    folded, few = fold(with_background, [*names, confusion.BACKGROUND])
    assert few[-1] == confusion.BACKGROUND and {'c3', 'c40'} < set(few) and len(few) == 22
    assert folded[few.index('c40')].tolist()[-1] == 500 and folded[-1, -2] == 30 * 500


def test_table_and_picture():
    """The most frequent confusion comes first, with its share of the true class. A class without a sample is empty."""
    matrix = np.array([[6, 2, 0], [7, 93, 0], [0, 0, 0]])
    assert confusions(matrix) == [(1, 0), (0, 1)]
    assert [line.split() for line in table(matrix, NAMES)] == [
        ['7', '7.0%', 'of', 'dog', 'found', 'as', 'cat'],
        ['2', '25.0%', 'of', 'cat', 'found', 'as', 'dog'],
    ]
    (axis,) = draw(matrix, NAMES).axes
    assert axis.images[0].get_array()[2].tolist() == [0, 0, 0]
    assert [text.get_text() for text in axis.texts] == ['75', '25', '7.0', '93']
    assert [label.get_text() for label in axis.get_yticklabels()] == ['cat (8)', 'dog (100)', f'{NAMES[2]} (0)']


@pytest.mark.parametrize(
    'sample',
    [
        DataSample().set_gt_label([0, 1]).set_pred_score(torch.zeros(3)),
        DetDataSample(gt_instances=InstanceData(), pred_instances=boxes(scores=[])),
        SegDataSample(pred_sem_seg=PixelData(data=torch.zeros(1, 2, 2))),
    ],
)
def test_no_annotations(sample, tmp_path, monkeypatch):
    """As of a test set without labels, and of several labels in an image."""
    with pytest.raises(InputError, match='needs boxes, label maps or one label of each image'):
        matrix_of([sample], monkeypatch, tmp_path / 'a.png')


def test_option(tmp_path):
    """The label that the config's metric ignores is ignored; a folder that cannot be written to is noticed first."""
    cfg = Config(dict(model=dict(), test_evaluator=dict(type='IoUMetric', ignore_index=11)))
    draw_confusion(cfg, tmp_path / 'a.png')
    assert cfg.test_evaluator[1].ignore_index == 11
    with pytest.raises(InputError, match='cannot be written'):
        draw_confusion(cfg, tmp_path)


def test_option_for_several_labels(tmp_path):
    """A model that predicts several labels of an image is refused before the test."""
    cfg = Config(dict(default_scope='mmpretrain', model=dict(head=dict(type='MultiLabelLinearClsHead'))))
    with pytest.raises(InputError, match='needs one label of each image, and a MultiLabelLinearClsHead predicts sev'):
        draw_confusion(cfg, tmp_path / 'a.png')
