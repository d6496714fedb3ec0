from mmengine.registry import MODELS
from mmengine.structures import PixelData
from mmseg.models.segmentors import SegTTAModel
from mmseg.structures import SegDataSample


@MODELS.register_module()
class MapTTAModel(SegTTAModel):
    """Test-time augmentation of segmentors, also of those with one sigmoid channel (``out_channels=1``).

    ``SegTTAModel`` of MMSegmentation averages the class probabilities of all views. Of one channel, it takes the
    sigmoid of what a segmentor returns, but that is a probability already: each one becomes 0.5 or more. Here, the
    probabilities are averaged as they are and compared with the head's threshold. A single view has the result of the
    ordinary test.
    """

    def merge_preds(self, data_samples_list: list[list[SegDataSample]]) -> list[SegDataSample]:
        """The samples of the first views, with what all views of their image predict together."""
        if self.module.out_channels > 1:
            return super().merge_preds(data_samples_list)
        merged = []
        for sample, *others in data_samples_list:
            mean = sum((other.seg_logits.data for other in others), sample.seg_logits.data) / (len(others) + 1)
            labels = (mean > self.module.decode_head.threshold).to(mean)
            sample.set_data(dict(seg_logits=PixelData(data=mean), pred_sem_seg=PixelData(data=labels)))
            merged.append(sample)
        return merged
