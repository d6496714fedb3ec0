"""Inputs of the operators, and two ways to call each: mmcv.ops and ``plain``."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from mmcv import ops
from torch import Tensor

from . import plain


@dataclass(frozen=True)
class Case:
    """An operator of mmcv.ops with arguments.

    Attributes:
        tensors: makes the arguments that are tensors; those with floating-point numbers have gradients.
        run: calls mmcv.ops with them.
        plain: calls the plain statement with them.
        cpu: compiled MMCV has it on the CPU.
        differentiable: it has gradients.
    """

    tensors: Callable[[], dict[str, Tensor]]
    run: Callable
    plain: Callable
    cpu: bool = True
    differentiable: bool = True


def boxes(number: int, size: float = 60) -> Tensor:
    corner, length = torch.rand(number, 2) * size, torch.rand(number, 2) * size / 2
    return torch.cat([corner, corner + length], 1)


def detections(number: int) -> dict[str, Tensor]:
    # no two scores are equal: NMS may take either of two boxes first
    return dict(boxes=boxes(number), scores=(torch.randperm(number) + 1) / (number + 1))


def regions(number: int = 6, images: int = 2) -> Tensor:
    """Regions on an image of 60 x 60 pixels; some reach over its borders."""
    image = torch.arange(number)[:, None] % images
    return torch.cat([image.float(), boxes(number) * 1.3 - 8], 1)


def maps(batch=2, channels=4, height=13, width=11) -> Tensor:
    return torch.randn(batch, channels, height, width)


def convolution(
    stride=1, padding=1, dilation=1, groups=1, deform=1, kernel=(3, 3), batch=2, mask=False, spread=2
) -> Case:
    def tensors() -> dict[str, Tensor]:
        height, width = ((size + 2 * padding - dilation * (k - 1) - 1) // stride + 1 for size, k in zip((9, 7), kernel))
        taps = deform * kernel[0] * kernel[1]
        given = dict(
            input=maps(batch, 4, 9, 7),
            offset=spread * torch.randn(batch, 2 * taps, height, width),
            weight=torch.randn(6, 4 // groups, *kernel),
        )
        return given | (dict(mask=torch.rand(batch, taps, height, width), bias=torch.randn(6)) if mask else {})

    def run(input, offset, weight, mask=None, bias=None):
        if mask is None:
            return ops.deform_conv2d(input, offset, weight, stride, padding, dilation, groups, deform)
        return ops.modulated_deform_conv2d(input, offset, mask, weight, bias, stride, padding, dilation, groups, deform)

    return Case(
        tensors,
        run,
        lambda **given: plain.deform_conv2d(
            **given, stride=stride, padding=padding, dilation=dilation, groups=groups, deform=deform
        ),
    )


def attention(shapes=((6, 4), (3, 2), (1, 1)), batch=2, queries=5) -> Case:
    shapes = torch.tensor(shapes)
    keys = shapes.prod(1)
    starts = torch.cat([keys.new_zeros(1), keys.cumsum(0)[:-1]])

    def tensors() -> dict[str, Tensor]:
        size = (batch, queries, 2, len(shapes), 3)
        return dict(
            value=torch.randn(batch, int(keys.sum()), 2, 4),
            locations=1.4 * torch.rand(*size, 2) - 0.2,
            weights=torch.rand(size),
        )

    def run(value, locations, weights):
        from mmcv.ops.multi_scale_deform_attn import MultiScaleDeformableAttnFunction

        return MultiScaleDeformableAttnFunction.apply(value, shapes, starts, locations, weights, 64)

    def stated(value, locations, weights):
        return plain.deform_attention(value, shapes, starts, locations, weights)

    return Case(tensors, run, stated, cpu=False)


def loss(name: str, reduction: str, weighted: bool, lowest: int, highest: int) -> Case:
    def tensors() -> dict[str, Tensor]:
        return dict(input=3 * torch.randn(20, 5), target=torch.randint(lowest, highest + 1, (20,)))

    weight = torch.tensor([0.5, 1, 2, 0.1, 3]) if weighted else None

    def call(function):
        return lambda input, target: function(
            input, target, 2.0, 0.25, None if weight is None else weight.to(input), reduction
        )

    return Case(tensors, call(getattr(ops, name)), call(getattr(plain, name)), cpu=False)


def align(number=6, **options) -> Case:
    return Case(
        lambda: dict(input=maps(), rois=regions(number)),
        ops.RoIAlign(3, 0.25, **options),
        lambda input, rois: plain.roi_align(input, rois, 3, 0.25, **options),
    )


def pool(number=6) -> Case:
    def call(function):
        return lambda input, rois: function(input, rois, 3, 0.25)

    return Case(lambda: dict(input=maps(), rois=regions(number)), call(ops.roi_pool), call(plain.roi_pool), cpu=False)


def suppress(name: str, number: int = 60, **options) -> Case:
    def call(function):
        return lambda boxes, scores: function(boxes, scores, **options)

    return Case(lambda: detections(number), call(getattr(ops, name)), call(getattr(plain, name)), differentiable=False)


def matched(number: int = 60) -> Case:
    def tensors() -> dict[str, Tensor]:
        given = detections(number)
        return dict(dets=torch.cat([given['boxes'], given['scores'][:, None]], 1))

    return Case(
        tensors, lambda dets: ops.nms_match(dets, 0.4), lambda dets: plain.nms_match(dets, 0.4), differentiable=False
    )


def overlaps(one=7, many=5, **options) -> Case:
    return Case(
        lambda: dict(one=boxes(one), many=boxes(many)),
        lambda one, many: ops.bbox_overlaps(one, many, **options),
        lambda one, many: plain.bbox_overlaps(one, many, **options),
        differentiable=False,
    )


def lanes(number: int = 20, top_k: int = 10) -> Case:
    def tensors() -> dict[str, Tensor]:
        start, length = torch.rand(number, 1) * 0.6, torch.randint(0, 60, (number, 1)).float()
        positions = torch.randint(4, (number, 1)) * 20 + torch.rand(number, 72) * 8
        lane = torch.cat([torch.rand(number, 2), start, torch.rand(number, 1), length, positions], 1)
        return dict(lanes=lane, scores=detections(number)['scores'])

    return Case(
        tensors,
        lambda lanes, scores: ops.line_nms(lanes, scores, 5.0, top_k),
        lambda lanes, scores: plain.line_nms(lanes, scores, 5.0, top_k),
        cpu=False,
        differentiable=False,
    )


def upsample(kernel=3, groups=2, scale=2) -> Case:
    def tensors() -> dict[str, Tensor]:
        return dict(features=maps(2, 4, 5, 3), masks=torch.randn(2, groups * kernel**2, 5 * scale, 3 * scale))

    return Case(
        tensors,
        lambda features, masks: ops.carafe(features, masks, kernel, groups, scale),
        lambda features, masks: plain.carafe(features, masks, kernel, groups, scale),
        cpu=False,
    )


def attend(psa_type: int, size: tuple[int, int]) -> Case:
    from mmcv.ops.psa_mask import psa_mask

    return Case(
        lambda: dict(input=torch.randn(2, size[0] * size[1], 4, 5)),
        lambda input: psa_mask(input, psa_type, size),
        lambda input: plain.psa_mask(input, psa_type, size),
    )


def convolve_some(density: float) -> Case:
    def tensors() -> dict[str, Tensor]:
        mask = (torch.rand(1, 6, 5) < density).int()
        return dict(features=maps(1, 3, 6, 5), mask=mask, weight=torch.randn(4, 3, 3, 3), bias=torch.randn(4))

    return Case(
        tensors,
        lambda features, mask, weight, bias: ops.masked_conv2d(features, mask, weight, bias, 1),
        lambda features, mask, weight, bias: plain.masked_conv2d(features, mask, weight, bias, 1),
        cpu=False,
        differentiable=False,
    )


CASES = {
    'nms': suppress('nms', iou_threshold=0.3),
    'nms with offset 1': suppress('nms', iou_threshold=0.5, offset=1),
    'nms of no box': suppress('nms', 0, iou_threshold=0.5),
    'soft-NMS linear': suppress('soft_nms', method='linear'),
    'soft-NMS gaussian': suppress('soft_nms', method='gaussian', min_score=0.1),
    'soft-NMS naive, offset 1': suppress('soft_nms', method='naive', offset=1),
    'soft-NMS of no box': suppress('soft_nms', 0),
    'nms_match': matched(),
    'nms_match of no box': matched(0),
    'overlaps': overlaps(),
    'overlaps, iof, offset 1': overlaps(mode='iof', offset=1),
    'overlaps, aligned': overlaps(6, 6, aligned=True),
    'RoIAlign': align(),
    'RoIAlign, not aligned': align(aligned=False, sampling_ratio=2),
    'RoIAlign of no region': align(0),
    'RoIAlign max': align(pool_mode='max'),
    'RoIAlign max, not aligned': align(pool_mode='max', aligned=False, sampling_ratio=2),
    'RoIAlign max of no region': align(0, pool_mode='max'),
    'RoIPool': pool(),
    'RoIPool of no region': pool(0),
    'DeformConv2d': convolution(),
    'DeformConv2d, offsets of 0': convolution(spread=0),
    'DeformConv2d, all options': convolution(2, 3, 2, groups=2, deform=2, kernel=(3, 2), batch=3),
    'ModulatedDeformConv2d': convolution(mask=True),
    'ModulatedDeformConv2d, all options': convolution(2, 3, 2, 2, 2, kernel=(3, 2), batch=3, mask=True),
    'deformable attention': attention(),
    'deformable attention of no query': attention(queries=0),
    'sigmoid focal loss': loss('sigmoid_focal_loss', 'none', False, 0, 5),
    'sigmoid focal loss, weighted mean': loss('sigmoid_focal_loss', 'mean', True, 0, 5),
    'softmax focal loss': loss('softmax_focal_loss', 'mean', False, -1, 4),
    'softmax focal loss, weighted sum': loss('softmax_focal_loss', 'sum', True, -1, 4),
    'CARAFE': upsample(),
    'CARAFE, kernel 5, scale 3': upsample(5, 1, 3),
    'PSAMask collects': attend(0, (3, 5)),
    'PSAMask distributes': attend(1, (7, 9)),
    'masked convolution': convolve_some(0.4),
    'masked convolution of no pixel': convolve_some(0),
}
if hasattr(ops, 'line_nms'):  # MMCV 2.1 does not have it
    CASES |= {'NMS of lanes': lanes(), 'NMS of lanes, the best two': lanes(top_k=2), 'NMS of no lane': lanes(0)}
