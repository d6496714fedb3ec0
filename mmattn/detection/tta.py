import torch
from mmdet.models.detectors import TwoStageDetector
from mmdet.models.roi_heads import CascadeRoIHead, StandardRoIHead
from mmdet.models.roi_heads.base_roi_head import BaseRoIHead
from mmdet.models.test_time_augs import DetTTAModel
from mmdet.structures import DetDataSample
from mmdet.structures.bbox import bbox2roi, bbox_mapping
from mmengine.registry import MODELS
from torch import Tensor

from ..errors import InputError

#: direction of a flip -> dimensions of a mask (N, classes, h, w)
FLIPPED = dict(horizontal=(3,), vertical=(2,), diagonal=(2, 3))


@MODELS.register_module()
class MaskTTAModel(DetTTAModel):
    """Test-time augmentation for boxes and for the masks of Mask R-CNN and Cascade Mask R-CNN.

    ``DetTTAModel`` of MMDetection, whose arguments it takes, merges the boxes of all views. Then the mask head predicts
    a mask for each merged box in each view. The probabilities are averaged over the views and over the stages of a
    cascade, as in MMDetection 2. MMDetection pastes the mean into the image. A single view that is not flipped has the
    result of the ordinary test. Detectors without masks are tested as with ``DetTTAModel``.

    Raises:
        InputError: if the detector has masks and is not a Mask R-CNN or Cascade Mask R-CNN.
    """

    def __init__(self, **kwargs) -> None:
        super().__init__(**kwargs)
        if self.module.with_mask:
            self.check_classes(type(self.module), type(getattr(self.module, 'roi_head', None)))

    @staticmethod
    def check_classes(detector: type, roi_head: type | None) -> None:
        """Raise an InputError unless the RoI head predicts a mask for each box that it gets, as in Mask R-CNN."""
        if (
            getattr(detector, 'predict', None) is not TwoStageDetector.predict
            or getattr(roi_head, 'predict', None) is not BaseRoIHead.predict
            or roi_head.predict_mask not in (StandardRoIHead.predict_mask, CascadeRoIHead.predict_mask)
        ):
            raise InputError(
                f'masks of {detector.__name__} cannot be merged over several views, only masks of Mask R-CNN and '
                'Cascade Mask R-CNN: leave out --tta'
            )

    def merge_preds(self, data_samples_list: list[list[DetDataSample]]) -> list[DetDataSample]:
        if 'masks' in data_samples_list[0][0].pred_instances:
            self.check_classes(type(self.module), None)
        return super().merge_preds(data_samples_list)

    def test_step(self, data: dict[str, list]) -> list[DetDataSample]:
        """Merge what is found in several views; ``inputs`` and ``data_samples`` list a batch for each view."""
        views = [{key: batches[i] for key, batches in data.items()} for i in range(len(data['inputs']))]
        if not self.module.with_mask:
            return super().test_step(data)
        if len(views) == 1 and not any(sample.get('flip') for sample in views[0]['data_samples']):
            return self.module.test_step(views[0])
        module, roi_head = self.module, self.module.roi_head
        features, metas, predictions = [], [], []
        for view in views:
            view = module.data_preprocessor(view, False)
            samples = view['data_samples']
            for sample in samples:  # A pipeline without RandomFlip does not set the flip.
                sample.set_metainfo({'flip': False, 'flip_direction': None, **sample.metainfo})
            features.append(module.extract_feat(view['inputs']))
            metas.append([sample.metainfo for sample in samples])
            proposals = module.rpn_head.predict(features[-1], samples, rescale=False)
            boxes = roi_head.predict_bbox(features[-1], metas[-1], proposals, roi_head.test_cfg, rescale=True)
            predictions.append(module.add_pred_to_datasample(samples, boxes))
        merged = self.merge_preds(list(zip(*predictions, strict=True)))
        results = [sample.pred_instances for sample in merged]
        boxes = [result.bboxes for result in results]
        probabilities = [self._masks(*view, boxes) for view in zip(features, metas, strict=True)]
        head = roi_head.mask_head[-1] if isinstance(roi_head, CascadeRoIHead) else roi_head.mask_head
        masks = torch.stack(probabilities).mean(0).split([len(result) for result in results])
        # The merged boxes have coordinates of the image, not of a view.
        images = [dict(ori_shape=meta['ori_shape'], scale_factor=(1.0, 1.0)) for meta in metas[0]]
        head.predict_by_feat(masks, results, images, roi_head.test_cfg, rescale=True, activate_map=True)
        return merged

    def _masks(self, features: tuple[Tensor, ...], metas: list[dict], boxes: list[Tensor]) -> Tensor:
        """Mask probabilities (N, classes, h, w) for boxes (n, 4) in each image, from one view, flipped back."""
        roi_head, inside = self.module.roi_head, []
        for box, meta in zip(boxes, metas, strict=True):
            scale = 2 * tuple(meta['scale_factor'])
            inside.append(bbox_mapping(box, meta['img_shape'], scale, meta['flip'], meta['flip_direction']))
        rois = bbox2roi(inside)
        if isinstance(roi_head, CascadeRoIHead):
            stages = [roi_head._mask_forward(stage, features, rois) for stage in range(roi_head.num_stages)]
        else:
            stages = [roi_head._mask_forward(features, rois)]
        masks = torch.stack([stage['mask_preds'].sigmoid() for stage in stages]).mean(0)
        parts = zip(masks.split([len(box) for box in boxes]), metas, strict=True)
        return torch.cat([part.flip(FLIPPED[meta['flip_direction']]) if meta['flip'] else part for part, meta in parts])
