"""The operators of mmcv.ops as their papers and MMCV's documentation state them, pixel by pixel, in float64."""

import math

import torch
from torch import Tensor


def iou(one, other, offset):
    x1, y1, x2, y2 = max(one[0], other[0]), max(one[1], other[1]), min(one[2], other[2]), min(one[3], other[3])
    shared = max(x2 - x1 + offset, 0) * max(y2 - y1 + offset, 0)
    area = [(b[2] - b[0] + offset) * (b[3] - b[1] + offset) for b in (one, other)]
    return shared / (sum(area) - shared) if sum(area) - shared else 0


def best_first(scores):
    return sorted(range(len(scores)), key=lambda i: -scores[i])


def nms(boxes, scores, iou_threshold, offset=0):
    boxes, kept = boxes.tolist(), []
    for i in best_first(scores.tolist()):
        if all(iou(boxes[k], boxes[i], offset) <= iou_threshold for k in kept):
            kept.append(i)
    return torch.tensor([[*boxes[i], scores[i]] for i in kept]).view(-1, 5), torch.tensor(kept, dtype=torch.int64)


def soft_nms(boxes, scores, iou_threshold=0.3, sigma=0.5, min_score=1e-3, method='linear', offset=0):
    boxes, scores, kept = boxes.tolist(), dict(enumerate(scores.tolist())), []
    while scores:
        best = max(scores, key=scores.get)
        kept.append((best, scores.pop(best)))
        for i in scores:
            overlap = iou(boxes[best], boxes[i], offset)
            if method == 'gaussian':
                scores[i] *= math.exp(-(overlap**2) / sigma)
            elif overlap >= iou_threshold:
                scores[i] *= 1 - overlap if method == 'linear' else 0
        scores = {i: score for i, score in scores.items() if score >= min_score}
    kept_boxes = torch.tensor([[*boxes[i], score] for i, score in kept]).view(-1, 5)
    return kept_boxes, torch.tensor([i for i, _ in kept])


def nms_match(dets, iou_threshold):
    groups = []
    for i in best_first(dets[:, 4].tolist()):
        group = next((g for g in groups if iou(dets[g[0]].tolist(), dets[i].tolist(), 0) >= iou_threshold), None)
        if group:
            group.append(i)
        else:
            groups.append([i])
    return [torch.tensor(group) for group in groups]


def bbox_overlaps(one, many, mode='iou', aligned=False, offset=0):
    def overlap(a, b):
        value = iou(a, b, offset)
        if mode == 'iof':
            area_a, area_b = ((c[2] - c[0] + offset) * (c[3] - c[1] + offset) for c in (a, b))
            value = value * (area_a + area_b) / (1 + value) / area_a
        return value

    one, many = one.tolist(), many.tolist()
    if aligned:
        return torch.tensor([overlap(a, b) for a, b in zip(one, many)])
    return torch.tensor([[overlap(a, b) for b in many] for a in one])


def line_nms(lanes, scores, overlap, top_k):
    lanes = lanes.tolist()
    spans = [(int(lane[2] * 71 + 0.5), int(lane[2] * 71 + 0.5) + int(lane[4]) - 1) for lane in lanes]

    def close(a, b):
        first, last = max(spans[a][0], spans[b][0]), min(spans[a][1], spans[b][1], 71)
        rows = range(first, last + 1)
        return len(rows) and sum(abs(lanes[a][5 + r] - lanes[b][5 + r]) for r in rows) / len(rows) < overlap

    kept, parents = [], [0] * len(lanes)
    order = best_first(scores.tolist())
    for place, i in enumerate(order):
        if len(kept) == top_k:
            break
        if any(close(k, i) for k in kept):
            continue
        kept.append(i)
        for j in order[place:]:
            if j == i or close(i, j):
                parents[j] = len(kept)
    return [torch.tensor(kept + [0] * (len(lanes) - len(kept))), torch.tensor(len(kept)), torch.tensor(parents)]


def sample(plane: Tensor, y: Tensor, x: Tensor, edge: bool = False) -> Tensor:
    """Bilinear samples of (C, H, W) at any number of points; pixels outside are 0, or those of RoIAlign's edge.

    A sample that is one pixel outside has no gradient.
    """
    height, width = plane.shape[1:]
    inside = (y > -1) & (x > -1)
    if edge:
        inside = (y >= -1) & (y <= height) & (x >= -1) & (x <= width)
        y, x = y.clamp(0, height - 1), x.clamp(0, width - 1)
    top, left = y.detach().floor(), x.detach().floor()
    total = 0
    for row, of_row in ((top, 1 - (y - top)), (top + 1, y - top)):
        for column, of_column in ((left, 1 - (x - left)), (left + 1, x - left)):
            there = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            pixels = plane[:, row.long().clamp(0, height - 1), column.long().clamp(0, width - 1)]
            total = total + pixels * of_row * of_column * there
    return total * inside


def roi_align(input, rois, output_size, spatial_scale=1.0, sampling_ratio=0, pool_mode='avg', aligned=True):
    results = []
    for image, *box in rois.tolist():
        x1, y1, x2, y2 = (value * spatial_scale - 0.5 * aligned for value in box)
        sizes = [y2 - y1, x2 - x1] if aligned else [max(y2 - y1, 1), max(x2 - x1, 1)]
        bins = [size / output_size for size in sizes]
        rows, columns = (sampling_ratio or math.ceil(size) for size in bins)
        y = y1 + (torch.arange(output_size * rows, dtype=input.dtype) + 0.5) * bins[0] / rows
        x = x1 + (torch.arange(output_size * columns, dtype=input.dtype) + 0.5) * bins[1] / columns
        samples = sample(input[int(image)], y[:, None].expand(-1, len(x)), x.expand(len(y), -1), edge=True)
        samples = samples.view(-1, output_size, rows, output_size, columns).transpose(2, 3).flatten(3)
        results.append(samples.mean(3) if pool_mode == 'avg' else samples.max(3).values)
    return torch.stack(results) if results else input.new_zeros(0, input.size(1), output_size, output_size)


def roi_pool(input, rois, output_size, spatial_scale):
    height, width = input.shape[2:]
    output = input.new_zeros(len(rois), input.size(1), output_size, output_size)
    for n, (image, x1, y1, x2, y2) in enumerate(rois.tolist()):
        x1, y1, x2, y2 = x1 * spatial_scale, y1 * spatial_scale, (x2 + 1) * spatial_scale, (y2 + 1) * spatial_scale
        for i in range(output_size):
            for j in range(output_size):
                step_y, step_x = (y2 - y1) / output_size, (x2 - x1) / output_size
                top, bottom = max(math.floor(y1 + i * step_y), 0), min(math.ceil(y1 + (i + 1) * step_y), height)
                left, right = max(math.floor(x1 + j * step_x), 0), min(math.ceil(x1 + (j + 1) * step_x), width)
                if top < bottom and left < right and step_y > 0 and step_x > 0:
                    output[n, :, i, j] = input[int(image), :, top:bottom, left:right].amax((1, 2))
    return output


def deform_conv2d(input, offset, weight, mask=None, bias=None, stride=1, padding=0, dilation=1, groups=1, deform=1):
    batch, channels = input.shape[:2]
    kernel, (height, width) = weight.shape[2:], offset.shape[2:]
    offset = offset.view(batch, deform, *kernel, 2, height, width)
    factors = (
        torch.ones_like(offset[:, :, :, :, 0]) if mask is None else mask.view(batch, deform, *kernel, height, width)
    )
    taps = input.new_zeros(batch, channels, *kernel, height, width)
    for b in range(batch):
        for group, part in enumerate(input[b].chunk(deform)):
            for i in range(kernel[0]):
                for j in range(kernel[1]):
                    y, x = offset[b, group, i, j]
                    y = y + (torch.arange(height) * stride - padding + i * dilation)[:, None]
                    x = x + torch.arange(width) * stride - padding + j * dilation
                    some = slice(group * len(part), (group + 1) * len(part))
                    taps[b, some, i, j] = sample(part, y, x) * factors[b, group, i, j]
    weight = weight.unflatten(0, (groups, -1))
    output = torch.einsum('bgcijyx,gocij->bgoyx', taps.unflatten(1, (groups, -1)), weight).flatten(1, 2)
    return output if bias is None else output + bias[:, None, None]


def deform_attention(value, shapes, starts, locations, weights):
    output = value.new_zeros(len(value), locations.size(1), *value.shape[2:])
    for b in range(len(value)):
        for head in range(value.size(2)):
            for level, (height, width) in enumerate(shapes.tolist()):
                plane = value[b, starts[level] :][: height * width, head].T.unflatten(1, (height, width))
                x, y = locations[b, :, head, level].unbind(-1)
                samples = sample(plane, y * height - 0.5, x * width - 0.5)
                output[b, :, head] += (samples * weights[b, :, head, level]).sum(-1).T
    return output.flatten(2)


def sigmoid_focal_loss(input, target, gamma, alpha, weight, reduction):
    one_hot = (target[:, None] == torch.arange(input.size(1))).to(input)
    p = input.sigmoid()
    cross_entropy = torch.nn.functional.binary_cross_entropy_with_logits(input, one_hot, reduction='none')
    loss = (one_hot * alpha + (1 - one_hot) * (1 - alpha)) * (one_hot - p).abs() ** gamma * cross_entropy
    if weight is not None:
        loss = loss * torch.cat([weight, weight.new_ones(1)])[target][:, None]
    return loss if reduction == 'none' else loss.sum() / (len(input) if reduction == 'mean' else 1)


def softmax_focal_loss(input, target, gamma, alpha, weight, reduction):
    valid = target >= 0
    log_p = input.log_softmax(1)[range(len(input)), target.clamp(min=0)]
    loss = -alpha * (1 - log_p.exp()) ** gamma * log_p * valid
    if weight is not None:
        loss = loss * weight[target.clamp(min=0)]
    return loss if reduction == 'none' else loss.sum() / (len(input) if reduction == 'mean' else 1)


def carafe(features, masks, kernel_size, group_size, scale_factor):
    batch, channels, height, width = features.shape
    edge, size = kernel_size // 2, channels // group_size
    output = features.new_zeros(batch, channels, height * scale_factor, width * scale_factor)
    padded = torch.nn.functional.pad(features, [edge] * 4)
    for y in range(output.size(2)):
        for x in range(output.size(3)):
            top, left = y // scale_factor, x // scale_factor
            window = padded[:, :, top : top + kernel_size, left : left + kernel_size].flatten(2)
            for group in range(group_size):
                some = slice(group * size, (group + 1) * size)
                kernel = masks[:, group * kernel_size**2 : (group + 1) * kernel_size**2, y, x]
                output[:, some, y, x] = (window[:, some] * kernel[:, None]).sum(-1)
    return output


def psa_mask(input, psa_type, mask_size):
    batch, _, height, width = input.shape
    output = input.new_zeros(batch, height, width, height, width)
    windows = input.view(batch, *mask_size, height, width)
    for y in range(height):
        for x in range(width):
            for i in range(mask_size[0]):
                for j in range(mask_size[1]):
                    other = y + i - (mask_size[0] - 1) // 2, x + j - (mask_size[1] - 1) // 2
                    if 0 <= other[0] < height and 0 <= other[1] < width:
                        place = (y, x, *other) if psa_type else (*other, y, x)
                        output[(slice(None), *place)] = windows[:, i, j, y, x]
    return output.flatten(1, 2)


def masked_conv2d(features, mask, weight, bias, padding):
    return torch.nn.functional.conv2d(features, weight, bias, padding=padding) * (mask > 0)
