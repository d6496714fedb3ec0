"""MMSegmentation's metric, which names what its means leave out, and its cascade, which predicts from one channel too.
Importing this imports MMSegmentation."""

import numpy as np
from mmseg.evaluation import IoUMetric
from mmseg.models import CascadeEncoderDecoder
from mmseg.registry import METRICS, MODELS

from ..errors import warn
from ..weights import first_names


@METRICS.register_module()
class CheckedIoUMetric(IoUMetric):
    """MMSegmentation's ``IoUMetric``, which logs the classes that its means leave out: no pixel is labelled as one or
    predicted as one, so their IoU is NaN."""

    def compute_metrics(self, results: list[tuple]) -> dict[str, float]:
        metrics = super().compute_metrics(results)
        if results and not self.format_only and self.nan_to_num is None:
            classes = self.dataset_meta['classes']
            union = np.sum([np.asarray(unions) for _, unions, _, _ in results], 0)
            absent = [str(name) for name, pixels in zip(classes, union) if not pixels]
            if absent:
                warn(
                    f'mIoU is the mean of {len(classes) - len(absent)} of {len(classes)} classes: no pixel is labelled '
                    f'or predicted as {first_names(absent)}'
                )
        return metrics


@MODELS.register_module()
class CheckedCascadeEncoderDecoder(CascadeEncoderDecoder):
    """MMSegmentation's ``CascadeEncoderDecoder``, whose last head may have one sigmoid channel (``out_channels=1``).

    A segmentor predicts from it with ``decode_head.threshold``, which a list of heads does not have there.
    """

    def _init_decode_head(self, decode_head: list[dict]) -> None:
        super()._init_decode_head(decode_head)
        self.decode_head.threshold = self.decode_head[-1].threshold
