"""Merged label maps of several views."""

import torch
from mmengine.model import BaseModel
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample

from mmattn.segmentation import MapTTAModel


class Segmentor(BaseModel):
    """What MapTTAModel looks at."""

    def __init__(self, out_channels):
        super().__init__()
        self.out_channels = out_channels
        self.decode_head = torch.nn.Identity()
        self.decode_head.threshold = 0.4

    def forward(self, inputs, data_samples=None, mode='tensor'):
        raise NotImplementedError


def sample(scores):
    """A prediction whose channels (C, H, W) are what a segmentor returns."""
    found = SegDataSample(metainfo=dict(img_path='a.png'))
    found.set_data(
        dict(seg_logits=PixelData(data=scores), pred_sem_seg=PixelData(data=torch.zeros(1, *scores.shape[1:])))
    )
    return found


def test_one_channel_is_a_probability():
    """Means of probabilities are compared with the threshold: 0.35 and 0.3 are background, 0.45 and 0.5 are not."""
    views = [sample(torch.tensor([[[0.1, 0.2, 0.2, 0.9]]])), sample(torch.tensor([[[0.6, 0.4, 0.7, 0.1]]]))]
    (merged,) = MapTTAModel(module=Segmentor(1)).merge_preds([views])
    assert merged.pred_sem_seg.data.tolist() == [[[0, 0, 1, 1]]]
    assert torch.allclose(merged.seg_logits.data, torch.tensor([[[0.35, 0.3, 0.45, 0.5]]]))


def test_classes_are_merged_as_in_mmsegmentation():
    """The mean of softmax, not of scores: a view that is very sure of one class does not outvote two others more than
    by its probability."""
    views = [
        sample(torch.tensor([9.0, 0.0]).reshape(2, 1, 1)),
        *(sample(torch.tensor([0.0, 3.0]).reshape(2, 1, 1)) for _ in '12'),
    ]
    (merged,) = MapTTAModel(module=Segmentor(2)).merge_preds([views])
    assert merged.pred_sem_seg.data.flatten().tolist() == [1]
