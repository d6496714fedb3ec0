"""MMDetection's anchor-based detectors in a form that torch.export traces, for ONNX files that take images of any size.

MMDetection's heads decide about boxes in Python, which fixes their number in a graph. Here the steps after the heads'
convolutions are tensor operations, with NMS and RoIAlign of torchvision. All else is taken from the detector.
"""

import copy
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from mmcv.cnn.utils.fuse_conv_bn import fuse_conv_bn
from mmdet.structures import DetDataSample
from torch import Tensor, nn
from torchvision.ops import nms, roi_align

from mmattn.errors import InputError
from mmattn.ops.any_size import every_second_pixel, pad_to_multiple

#: classes of a detector and its parts whose computations the graph repeats
SUPPORTED = (
    'RetinaNet FasterRCNN MaskRCNN CascadeRCNN RetinaHead RPNHead StandardRoIHead CascadeRoIHead FCNMaskHead '
    'ConvFCBBoxHead Shared2FCBBoxHead Shared4Conv1FCBBoxHead SingleRoIExtractor RoIAlign AnchorGenerator '
    'DeltaXYWHBBoxCoder'
).split()
#: names of the outputs; the last is missing if the detector has no mask head
OUTPUTS = ('boxes', 'labels', 'scores', 'masks')


class TraceableDetector(nn.Module):
    """A copy of a detector in evaluation mode, which :func:`mmattn.export.graphs.trace` turns into a graph.

    Supported are RetinaNet, Faster R-CNN, Mask R-CNN and Cascade (Mask) R-CNN with the classes in ``SUPPORTED``.

    Raises:
        InputError: if a part of the detector, or a setting of its ``test_cfg``, is not supported.
    """

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        _check(detector)
        self.detector, self.extra_maps = copy.deepcopy(detector).eval(), 0
        fuse_conv_bn(getattr(self.detector, 'roi_head', nn.Identity()))  # batch norm would ask whether there are boxes
        for neck in self.detector.modules():
            if type(neck).__name__ == 'FPN' and not neck.add_extra_convs:  # it would pool, and ask if the size is odd
                self.extra_maps = neck.num_outs - len(neck.lateral_convs)
                neck.num_outs = len(neck.lateral_convs)

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """Detect what the detector's ``predict`` does with ``rescale=False``.

        Args:
            image: (1, 3, H, W), normalised but not padded: the graph pads it as the data preprocessor does.

        Returns:
            boxes (N, 4) as x1, y1, x2, y2 in pixels, labels (N,), descending scores (N,), and of a detector with a mask
            head, masks (N, H, W) of type bool.
        """
        size, detector = image.shape[2:], self.detector
        maps = list(detector.extract_feat(_pad(detector, image)))
        for _ in range(self.extra_maps):
            maps.append(every_second_pixel(maps[-1]))
        if not hasattr(detector, 'roi_head'):
            return _dense_boxes(detector.bbox_head, maps, size)
        head, (boxes, _, _) = detector.roi_head, _dense_boxes(detector.rpn_head, maps, size)
        boxes, labels, scores = _refined_boxes(head, maps, boxes, size)
        if not head.with_mask:
            return boxes, labels, scores
        stages = list(zip(_stages(head.mask_roi_extractor), _stages(head.mask_head)))
        masks = sum(mask_head(_features(extractor, maps, boxes)).sigmoid() for extractor, mask_head in stages)
        masks = masks[torch.arange(labels.shape[0], device=labels.device), labels % masks.shape[1]] / len(stages)
        return boxes, labels, scores, _paste(masks, boxes, size) >= head.test_cfg.mask_thr_binary


def detect(detector: nn.Module, image: Tensor) -> tuple[Tensor, ...]:
    """What MMDetection's ``predict`` finds in an image; arguments and results as :class:`TraceableDetector`."""
    size = tuple(image.shape[2:])
    sample = DetDataSample(metainfo=dict(img_shape=size, ori_shape=size, scale_factor=(1.0, 1.0)))
    with torch.no_grad():
        found = detector.predict(_pad(detector, image), [sample], rescale=False)[0].pred_instances
    return tuple(found[name] for name in ('bboxes', *OUTPUTS[1:]) if name in found)


def spread_scores(detector: nn.Module, image: Tensor) -> None:
    """Scale the layers that classify, so that a detector with initial weights finds objects in images.

    Their outputs get a standard deviation of 2, so that rounding hardly reorders the scores.

    Args:
        image: (1, 3, H, W), normalised, on which the outputs are measured.
    """

    def scale(layer: nn.Module, _: tuple, output: Tensor) -> Tensor:
        handles.pop(layer).remove()
        factor = 2 / output.std()
        layer.weight.data *= factor
        return output * factor

    handles = {}
    for name, layer in detector.named_modules():
        if name.endswith(('rpn_cls', 'fc_cls', 'retina_cls', 'conv_logits')):
            nn.init.constant_(layer.bias, -4.0 if 'retina' in name else 0.0)
            handles[layer] = layer.register_forward_hook(scale)
    detect(detector, image)
    for handle in handles.values():  # of a mask head, if the detector finds nothing
        handle.remove()


def largest_differences(expected: tuple[Tensor, ...], found: tuple[Tensor, ...]) -> tuple[int, float, float, float]:
    """How much detections differ, in any order. Two are a pair if labels are equal and boxes within 0.05 pixels.

    Returns:
        how many detections are in no pair (a few may be, as NMS keeps any of overlapping boxes with equal scores), and
        over all pairs the largest difference of boxes, in pixels, of scores, and of masks, in shares of the image.
    """
    boxes, labels, scores, *masks = expected
    if not len(boxes) or not len(found[0]):
        return len(boxes) + len(found[0]), 0.0, 0.0, 0.0
    distances = (boxes[:, None] - found[0]).abs().amax(2) + torch.where(labels[:, None] == found[1], 0.0, torch.inf)
    smallest, match = distances.min(1)
    pair = (smallest <= 0.05) & (distances.argmin(0)[match] == torch.arange(len(match)))
    shares = [(a[pair] != b[match[pair]]).float().mean((1, 2)) for a, b in zip(masks, found[3:])] or [smallest[:0]]
    differences = smallest[pair], (scores[pair] - found[2][match[pair]]).abs(), shares[0]
    # Python's max would pass over a NaN.
    largest = (float(x.max()) if len(x) else 0.0 for x in differences)
    return max(len(boxes), len(found[0])) - int(pair.sum()), *largest


def _check(detector: nn.Module) -> None:
    """Raise an InputError that names the first part or setting that the graph would not repeat."""
    _check_classes([detector])
    roi = getattr(detector, 'roi_head', None)
    dense = detector.rpn_head if roi else detector.bbox_head
    heads = [dense, *_stages(getattr(roi, 'bbox_head', []))]
    masks = _stages(getattr(roi, 'mask_head', []))
    extractors = [x for kind in ('bbox', 'mask') for x in _stages(getattr(roi, f'{kind}_roi_extractor', []))]
    _check_classes([*heads, *masks, *([roi] if roi else []), *extractors])
    layers = [layer for extractor in extractors for layer in extractor.roi_layers]
    _check_classes([*layers, dense.prior_generator, *(head.bbox_coder for head in heads)])
    configs = [dense.test_cfg, *([roi.test_cfg] if roi else [])]
    options = {option for cfg in configs for option in cfg.nms}  # split_thr saves memory, with the same result
    for setting, found in {
        'no positive nms_pre': dense.test_cfg.get('nms_pre', 0) <= 0,
        'no positive max_per_img': min(cfg.max_per_img for cfg in configs) <= 0,
        'another type of NMS than nms': any(cfg.nms.get('type', 'nms') != 'nms' for cfg in configs),
        'an option of NMS other than iou_threshold': options - {'type', 'iou_threshold', 'split_thr'},
        'a negative mask_thr_binary': masks and roi.test_cfg.mask_thr_binary < 0,
        'a pad_value other than 0': getattr(detector.data_preprocessor, 'pad_value', 0),
        'a shared_head': roi and roi.with_shared_head,
        'max pooling in RoIAlign': any(layer.pool_mode != 'avg' for layer in layers),
        'a loss with scores of its own': any(getattr(head.loss_cls, 'custom_cls_channels', False) for head in heads),
    }.items():
        if found:
            raise InputError(f'a detector with {setting} cannot be exported: change that, or export the backbone.')


def _check_classes(parts: Iterable) -> None:
    """Raise an InputError that names the first part whose class is not supported."""
    for name in (type(part).__name__ for part in parts):
        if name not in SUPPORTED:
            raise InputError(f'{name} cannot be exported, only {", ".join(SUPPORTED)}: export the backbone alone.')


def _stages(modules: object) -> Iterable:
    """The modules of a cascade, or the one module that stands in their place."""
    return modules if isinstance(modules, (nn.ModuleList, list)) else [modules]


def _pad(detector: nn.Module, image: Tensor) -> Tensor:
    """Pad at the bottom and the right as the data preprocessor does."""
    return pad_to_multiple(image, getattr(detector.data_preprocessor, 'pad_size_divisor', 1), (2, 3))


def _dense_boxes(head: nn.Module, maps: list[Tensor], size: tuple[int, int]) -> tuple[Tensor, ...]:
    """Boxes, labels and scores of an RPNHead or a RetinaHead."""
    cfg, levels = head.test_cfg, []
    is_rpn = type(head).__name__ == 'RPNHead'  # it has no score_thr, and its NMS is per level instead of per class
    for level, (logits, deltas) in enumerate(zip(*head(maps))):
        logits = logits[0].permute(1, 2, 0).reshape(-1, head.cls_out_channels)
        scores = logits.sigmoid() if head.use_sigmoid_cls else logits.softmax(1)[:, :-1]
        classes = scores.shape[1]
        scores, index = scores.flatten().topk(torch.sym_min(cfg.nms_pre, scores.shape[0] * classes))
        anchor, labels = index // classes, index % classes
        anchors = head.prior_generator.single_level_grid_priors(deltas.shape[2:], level, device=deltas.device)[anchor]
        deltas = deltas[0].permute(1, 2, 0).reshape(-1, 4)[anchor]
        levels.append((anchors, deltas, labels, scores, torch.full_like(labels, level) if is_rpn else labels))
    anchors, deltas, labels, scores, groups = (torch.cat(parts) for parts in zip(*levels))
    boxes = _decode(head.bbox_coder, anchors, deltas, size)
    keep = (boxes[:, 2:] - boxes[:, :2] > cfg.get('min_bbox_size', -1)).all(1)
    keep = (keep & (scores > (-1 if is_rpn else cfg.get('score_thr', 0)))).nonzero()[:, 0]
    return _nms(boxes[keep], labels[keep], scores[keep], groups[keep], cfg)


def _refined_boxes(head: nn.Module, maps: list[Tensor], boxes: Tensor, size: tuple[int, int]) -> tuple[Tensor, ...]:
    """Boxes, labels and scores of a StandardRoIHead or a CascadeRoIHead, from proposals (N, 4)."""
    total, stages = 0, list(zip(_stages(head.bbox_roi_extractor), _stages(head.bbox_head)))
    for stage, (extractor, bbox_head) in enumerate(stages, 1):
        logits, deltas = bbox_head(_features(extractor, maps, boxes))
        total = total + logits
        count = 1 if bbox_head.reg_class_agnostic else bbox_head.num_classes
        decoded = _decode(bbox_head.bbox_coder, boxes.repeat_interleave(count, 0), deltas, size).reshape(-1, count, 4)
        if stage < len(stages):
            best = logits[:, :-1].argmax(1) % count
            boxes = decoded[torch.arange(best.shape[0], device=best.device), best]
    scores = (total / len(stages)).softmax(1)[:, :-1]
    roi, labels = (scores > head.test_cfg.score_thr).nonzero().unbind(1)
    return _nms(decoded[roi, labels % count], labels, scores[roi, labels], labels, head.test_cfg)


def _decode(coder: object, boxes: Tensor, deltas: Tensor, size: tuple[int, int]) -> Tensor:
    """Boxes (N, 4) moved by N deltas of 4. The coder asks whether there are any: with one more, there are."""
    return coder.decode(F.pad(boxes, (0, 0, 0, 1)), F.pad(deltas.reshape(-1, 4), (0, 0, 0, 1)), max_shape=size)[:-1]


def _nms(boxes: Tensor, labels: Tensor, scores: Tensor, groups: Tensor, cfg: dict) -> tuple[Tensor, ...]:
    """The best of overlapping boxes of a group, in descending order of scores; groups are moved apart, as in mmcv."""
    apart = torch.cat((boxes.flatten(), boxes.new_zeros(1))).max() + 1
    keep = nms(boxes + (groups.to(boxes) * apart)[:, None], scores, cfg.nms.iou_threshold)[: cfg.max_per_img]
    torch._check(keep.shape[0] <= cfg.max_per_img)  # the sum of unbounded sizes is too large for ONNX
    return boxes[keep], labels[keep], scores[keep]


def _features(extractor: nn.Module, maps: list[Tensor], boxes: Tensor) -> Tensor:
    """RoIAlign of every box (N, 4) on the map of its scale. (N, C, h, w)."""
    rois = F.pad(boxes, (1, 0))  # the image is the first of its batch
    levels = extractor.map_roi_levels(rois, len(extractor.roi_layers))
    order = [(levels == level).nonzero()[:, 0] for level in range(len(extractor.roi_layers))]
    features = [
        roi_align(x, rois[index], layer.output_size, layer.spatial_scale, layer.sampling_ratio, layer.aligned)
        for x, index, layer in zip(maps, order, extractor.roi_layers)
    ]
    return torch.cat(features)[torch.cat(order).argsort()]


def _paste(masks: Tensor, boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Masks (N, h, w) resized bilinearly into images (N, H, W). MMDetection's grid_sample needs twice the memory."""

    def weights(start: Tensor, stop: Tensor, pixels: int, cells: int) -> Tensor:
        centers = torch.arange(pixels, device=masks.device) + 0.5
        position = (centers - start[:, None]) / (stop - start)[:, None] * cells - 0.5
        return (1 - (position[..., None] - torch.arange(cells, device=masks.device)).abs()).clamp(min=0)

    rows = weights(boxes[:, 1], boxes[:, 3], size[0], masks.shape[1])
    return rows @ masks @ weights(boxes[:, 0], boxes[:, 2], size[1], masks.shape[2]).transpose(1, 2)
