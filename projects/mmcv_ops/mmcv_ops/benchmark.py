"""Time and memory of each operator, beside compiled MMCV if that is what is installed.

    python -m mmcv_ops.benchmark                   # on the CPU
    python -m mmcv_ops.benchmark --device cuda
    python -m mmcv_ops.benchmark RoIAlign NMS

Each operator runs forward and backward at a size of detectors, with the arguments that ``mmcv.ops`` gives it. Both take
turns; a time is the median. Memory is the peak above inputs and results: on the CPU of torch's and NumPy's memory that
a process of its own uses, on a GPU of torch's tensors. Compiled MMCV has no form for the CPU of some operators.
"""

import argparse
import importlib
import importlib.util
import multiprocessing
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

import mmcv_ops

#: seconds for each time
SECONDS = 0.5


def boxes(number: int, size: float = 800) -> Tensor:
    corner, length = torch.rand(number, 2) * size, torch.rand(number, 2) * size / 8
    return torch.cat([corner, corner + length], 1)


def nms(ops: ModuleType, device: str) -> list[Callable]:
    some, scores = boxes(5000).to(device), torch.rand(5000, device=device)
    return [lambda: ops.nms(some, scores, 0.5, 0)]


def softnms(ops: ModuleType, device: str, number: int = 1000) -> list[Callable]:
    some, scores = boxes(number), torch.rand(number)
    dets = torch.empty(number, 5)
    return [lambda: ops.softnms(some, scores, dets, 0.3, 0.5, 1e-3, 1, 0)]


def large_softnms(ops: ModuleType, device: str) -> list[Callable]:
    return softnms(ops, device, 5000)


def nms_match(ops: ModuleType, device: str) -> list[Callable]:
    dets = torch.cat([boxes(2000), torch.rand(2000, 1)], 1)
    return [lambda: ops.nms_match(dets, 0.5)]


def regions(number: int, device: str) -> Tensor:
    return torch.cat([torch.randint(2, (number, 1)), boxes(number)], 1).to(device)


def roi_align(ops: ModuleType, device: str, pool_mode: int = 1) -> list[Callable]:
    features, rois = torch.randn(2, 256, 100, 100, device=device), regions(256, device)
    output, gradient = torch.zeros(256, 256, 7, 7, device=device), torch.zeros_like(features)
    argmax = [torch.zeros_like(output if pool_mode == 0 else output[:0]) for _ in range(2)]
    rest = (7, 7, 1 / 8, 0, pool_mode, True)
    return [
        lambda: ops.roi_align_forward(features, rois, output, *argmax, *rest),
        lambda: ops.roi_align_backward(output, rois, *argmax, gradient, *rest),
    ]


def roi_align_max(ops: ModuleType, device: str) -> list[Callable]:
    return roi_align(ops, device, 0)


def roi_pool(ops: ModuleType, device: str) -> list[Callable]:
    features, rois = torch.randn(2, 256, 100, 100, device=device), regions(256, device)
    output, gradient = torch.zeros(256, 256, 7, 7, device=device), torch.zeros_like(features)
    argmax = torch.zeros_like(output, dtype=torch.int32)
    return [
        lambda: ops.roi_pool_forward(features, rois, output, argmax, 7, 7, 1 / 8),
        lambda: ops.roi_pool_backward(output, rois, argmax, gradient, 7, 7, 1 / 8),
    ]


def deform_conv(ops: ModuleType, device: str) -> list[Callable]:
    features, offsets = torch.randn(2, 128, 50, 50, device=device), torch.randn(2, 18, 50, 50, device=device)
    weight, output = torch.randn(128, 128, 3, 3, device=device), torch.zeros(2, 128, 50, 50, device=device)
    gradients, buffers = (
        [torch.zeros_like(part) for part in (features, offsets, weight)],
        [torch.zeros(0, device=device)] * 2,
    )
    rest = (3, 3, 1, 1, 1, 1, 1, 1, 1, 1)

    def backward() -> None:
        columns = torch.zeros(0, device=device)
        ops.deform_conv_backward_input(features, offsets, output, *gradients[:2], weight, columns, *rest, 2)
        ops.deform_conv_backward_parameters(features, offsets, output, gradients[2], columns, columns, *rest, 1.0, 2)

    return [lambda: ops.deform_conv_forward(features, weight, offsets, output, *buffers, *rest, 2), backward]


def modulated_deform_conv(ops: ModuleType, device: str) -> list[Callable]:
    features, offsets = torch.randn(2, 128, 50, 50, device=device), torch.randn(2, 18, 50, 50, device=device)
    mask, weight = torch.rand(2, 9, 50, 50, device=device), torch.randn(128, 128, 3, 3, device=device)
    bias, output = torch.zeros(128, device=device), torch.zeros(2, 128, 50, 50, device=device)
    gradients = [torch.zeros_like(part) for part in (features, weight, bias, offsets, mask)]
    buffer, rest = torch.zeros(0, device=device), (3, 3, 1, 1, 1, 1, 1, 1, 1, 1, True)
    return [
        lambda: ops.modulated_deform_conv_forward(features, weight, bias, buffer, offsets, mask, output, buffer, *rest),
        lambda: ops.modulated_deform_conv_backward(
            features, weight, bias, buffer, offsets, mask, buffer, *gradients, output, *rest
        ),
    ]


def deformable_attention(ops: ModuleType, device: str) -> list[Callable]:
    shapes = torch.tensor([[50, 50], [25, 25], [13, 13], [7, 7]], device=device)
    keys = shapes.prod(1)
    starts, number = torch.cat([keys.new_zeros(1), keys.cumsum(0)[:-1]]), int(keys.sum())
    value = torch.randn(2, number, 8, 32, device=device)
    locations, weights = torch.rand(2, number, 8, 4, 4, 2, device=device), torch.rand(2, number, 8, 4, 4, device=device)
    output = torch.randn(2, number, 256, device=device)
    gradients = [torch.zeros_like(part) for part in (value, locations, weights)]
    return [
        lambda: ops.ms_deform_attn_forward(value, shapes, starts, locations, weights, 64),
        lambda: ops.ms_deform_attn_backward(value, shapes, starts, locations, weights, output, *gradients, 64),
    ]


def sigmoid_focal_loss(ops: ModuleType, device: str) -> list[Callable]:
    logits, target = torch.randn(100000, 80, device=device), torch.randint(81, (100000,), device=device)
    output, weight = torch.zeros_like(logits), torch.zeros(0, device=device)
    return [
        lambda: ops.sigmoid_focal_loss_forward(logits, target, weight, output, 2.0, 0.25),
        lambda: ops.sigmoid_focal_loss_backward(logits, target, weight, output, 2.0, 0.25),
    ]


def softmax_focal_loss(ops: ModuleType, device: str) -> list[Callable]:
    p, target = torch.rand(100000, 80, device=device), torch.randint(80, (100000,), device=device)
    output, gradient, weight = torch.zeros(100000, device=device), torch.zeros_like(p), torch.zeros(0, device=device)
    return [
        lambda: ops.softmax_focal_loss_forward(p, target, weight, output, 2.0, 0.25),
        lambda: ops.softmax_focal_loss_backward(p, target, weight, output, gradient, 2.0, 0.25),
    ]


def carafe(ops: ModuleType, device: str) -> list[Callable]:
    features, masks = torch.randn(2, 256, 25, 25, device=device), torch.rand(2, 25, 50, 50, device=device)
    output, spare = torch.zeros(2, 256, 50, 50, device=device), [torch.zeros_like(features), torch.zeros_like(masks)]
    gradients = [torch.zeros_like(features), torch.zeros_like(masks)]
    result = [torch.zeros_like(output) for _ in range(2)]
    return [
        lambda: ops.carafe_forward(features, masks, spare[0], result[0], spare[1], output, 5, 1, 2),
        lambda: ops.carafe_backward(output, features, masks, *result, *spare, *gradients, 5, 1, 2),
    ]


def psamask(ops: ModuleType, device: str) -> list[Callable]:
    masks, output = torch.randn(1, 59 * 59, 30, 30, device=device), torch.zeros(1, 900, 30, 30, device=device)
    gradient, rest = torch.zeros_like(masks), (0, 1, 30, 30, 59, 59, 29, 29)
    return [lambda: ops.psamask_forward(masks, output, *rest), lambda: ops.psamask_backward(output, gradient, *rest)]


def masked_conv(ops: ModuleType, device: str) -> list[Callable]:
    features, rows = torch.randn(1, 256, 100, 100, device=device), torch.randint(100, (2000,), device=device)
    columns = torch.zeros(256 * 9, 2000, device=device)
    return [lambda: ops.masked_im2col_forward(features, rows, rows, columns, 3, 3, 1, 1)]


OPERATORS = {
    'NMS, 5000 boxes': nms,
    'soft-NMS, 1000 boxes': softnms,
    'soft-NMS, 5000 boxes': large_softnms,
    'nms_match, 2000 boxes': nms_match,
    'RoIAlign, 256 regions': roi_align,
    'RoIAlign max, 256 regions': roi_align_max,
    'RoIPool, 256 regions': roi_pool,
    'DeformConv2d, 2 x 128 x 50 x 50': deform_conv,
    'ModulatedDeformConv2d, the same': modulated_deform_conv,
    'deformable attention, 2 x 3343 queries': deformable_attention,
    'sigmoid focal loss, 100000 x 80': sigmoid_focal_loss,
    'softmax focal loss, 100000 x 80': softmax_focal_loss,
    'CARAFE, 2 x 256 x 25 x 25 to 50 x 50': carafe,
    'PSAMask, 59 x 59 in 30 x 30': psamask,
    'masked convolution, 2000 pixels': masked_conv,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('operators', nargs='*', help='names that start so; all if none is given')
    parser.add_argument('--device', default='cpu')
    args = parser.parse_args()
    compiled = has_compiled()
    print(f'torch {torch.__version__}, {args.device}, {torch.get_num_threads()} threads\n')
    print('| operator | step | ms | ms of compiled MMCV | ratio | MB | MB of compiled MMCV |')
    print('| --- | --- | ---: | ---: | ---: | ---: | ---: |')
    for name in OPERATORS:
        if args.operators and not name.startswith(tuple(args.operators)):
            continue
        with multiprocessing.get_context('spawn').Pool(1, maxtasksperchild=1) as pool:
            ours, theirs = pool.apply(times, (name, args.device, compiled))
            memory = [pool.apply(peaks, (name, args.device, False))]
            memory.append(pool.apply(peaks, (name, args.device, True)) if theirs else [])
        for i, step in enumerate(('forward', 'backward')[: len(ours)]):
            other = f'{theirs[i]:.1f} | {ours[i] / theirs[i]:.2f}' if theirs else '- | -'
            peak = f'{memory[1][i]:.0f}' if theirs else '-'
            print(f'| {name} | {step} | {ours[i]:.1f} | {other} | {memory[0][i]:.0f} | {peak} |', flush=True)


def has_compiled() -> bool:
    """Whether MMCV's extension is compiled."""
    spec = importlib.util.find_spec('mmcv._ext') if importlib.util.find_spec('mmcv') else None
    return spec is not None and not spec.origin.endswith('.py')


def steps(name: str, device: str, compiled: bool) -> list[Callable]:
    torch.manual_seed(0)
    return OPERATORS[name](importlib.import_module('mmcv._ext') if compiled else mmcv_ops, device)


def times(name: str, device: str, compiled: bool) -> tuple[list[float], list[float]]:
    """Milliseconds of the steps of an operator, and of compiled MMCV; the second list is empty if that has none."""
    parts = [steps(name, device, False)]
    if compiled:
        parts.append(steps(name, device, True))
        try:
            for step in parts[1]:
                step()
        except RuntimeError as error:
            if 'implementation for device' not in str(error):
                raise
            del parts[1]
    results = []
    for pair in zip(*parts):
        taken = [[] for _ in pair]
        started = time.perf_counter()
        while time.perf_counter() - started < SECONDS * len(pair) or len(taken[0]) < 3:
            for step, all_times in zip(pair, taken):
                begin = time.perf_counter()
                step()
                if device != 'cpu':
                    torch.cuda.synchronize()
                all_times.append(1000 * (time.perf_counter() - begin))
        results.append([statistics.median(all_times) for all_times in taken])
    ours, *theirs = zip(*results)
    return list(ours), list(theirs[0]) if theirs else []


def peaks(name: str, device: str, compiled: bool) -> list[float]:
    """Megabytes that the steps of an operator need at their peak."""
    found = []
    for step in steps(name, device, compiled):
        if device == 'cpu':
            before, clear = _resident('VmRSS'), Path('/proc/self/clear_refs')
            clear.write_text('5', 'utf-8')  # the peak starts anew
            step()
            found.append((_resident('VmHWM') - before) / 1e3)
        else:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            step()
            found.append((torch.cuda.max_memory_allocated() - before) / 1e6)
    return found


def _resident(field: str) -> int:
    """Kilobytes of this process: VmRSS, or its peak, VmHWM."""
    lines = dict(line.split(':', 1) for line in Path('/proc/self/status').read_text('utf-8').splitlines())
    return int(lines[field].split()[0])


if __name__ == '__main__':
    main()
