"""What a mean over classes leaves out is said beside it."""

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import METRICS, MODELS, DefaultScope
from mmseg.structures import SegDataSample

from mmattn.segmentation import MapTTAModel
from mmguard.checks.channels import check_channels
from mmguard.checks.datasets import use_checked_datasets
from mmguard.errors import InputError


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


def cascade(**head):
    """The config of two heads, each with settings, on a small backbone."""
    head = dict(in_channels=8, in_index=0, channels=4, norm_cfg=dict(type='BN'), **head)
    first = dict(head, type='FCNHead', num_convs=1, threshold=None)  # the last one decides
    heads = [first, dict(head, type='OCRHead', ocr_channels=4)]
    backbone = dict(type='UNet', base_channels=8, num_stages=1, strides=(1,), enc_num_convs=(1,))
    backbone.update(dec_num_convs=(), downsamples=(), enc_dilations=(1,), dec_dilations=())
    backbone.update(norm_cfg=dict(type='BN'))
    model = dict(type='CascadeEncoderDecoder', num_stages=2, backbone=backbone, decode_head=heads)
    model.update(test_cfg=dict(mode='whole'), data_preprocessor=dict(type='SegDataPreProcessor'))
    return Config(dict(default_scope='mmseg', model=model))


def test_cascade_of_one_channel():
    """Its last head's threshold decides in a test and in a test of several views."""
    cfg = cascade(
        num_classes=2, out_channels=1, threshold=0.45, loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=True)
    )
    use_checked_datasets(cfg)
    with DefaultScope.overwrite_default_scope('mmseg'):
        model = MODELS.build(cfg.model).eval()
    sample = SegDataSample(metainfo=dict(img_shape=(16, 24), ori_shape=(16, 24), img_path='a.png'))
    with torch.no_grad():
        (found,) = model.predict(torch.randn(1, 3, 16, 24), [sample])
    labels, scores = found.pred_sem_seg.data, found.seg_logits.data
    assert torch.equal(labels, (scores > 0.45).float()) and 0 < labels.mean() < 1
    (merged,) = MapTTAModel(module=model).merge_preds([[found]])
    assert torch.equal(merged.pred_sem_seg.data, labels)


def test_one_class_with_one_channel():
    """The background is a class, as the dataset's check says, for predict and export too, which read no dataset."""
    with DefaultScope.overwrite_default_scope('mmseg'):
        with pytest.raises(InputError, match=r'decode_head\[0\].num_classes is 1, but .*: set num_classes=2'):
            check_channels(cascade(num_classes=1, out_channels=1).model, 'model')
        check_channels(cascade(num_classes=2, out_channels=1).model, 'model')
