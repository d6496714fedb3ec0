"""Backbones and segmentors as graphs that take images of any size: for torch.export, and as ONNX files."""

import copy
import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ..packages import MissingPackage

#: torch.export's name for a size that may have any value; torch before 2.6 has none
any_size = getattr(getattr(getattr(torch, 'export', None), 'Dim', None), 'DYNAMIC', None)
#: height and width while tracing: maps of stride 32 have more than one window, and no two sizes are equal
EXAMPLE = (236, 301)


def trace(model: nn.Module, in_channels: int = 3) -> 'torch.export.ExportedProgram':
    """The graph of a model for one image, with height and width of at least :func:`smallest_side`.

    Args:
        model: takes (1, in_channels, H, W): a backbone, or a segmentor of MMSegmentation, which returns the class
            scores of its decode head at the stride of the head. It is not changed.

    Returns:
        the graph in evaluation mode, on the CPU. :func:`as_module` turns it into a module.

    Raises:
        MissingPackage: if torch is older than 2.6.
    """
    if any_size is None:
        raise MissingPackage(f'exporting needs torch 2.6 or newer, but {torch.__version__} is installed')
    model = copy.deepcopy(model).cpu()
    model.eval()  # returns nothing with some backbones of MMDetection
    for module in list(model.modules()):
        for name, child in module.named_children():
            setattr(module, name, _of_any_size(child))
    example = torch.zeros(1, in_channels, *EXAMPLE)
    with torch.no_grad():
        return torch.export.export(model, (example,), dynamic_shapes=({2: any_size, 3: any_size},), strict=False)


def as_module(graph: 'torch.export.ExportedProgram') -> nn.Module:
    """A graph of :func:`trace` as a module.

    torch's check of sizes is left out: it refuses maps of a single attention window, for which the graph is right.
    """
    checked = 'check_guards' in inspect.signature(graph.module).parameters  # torch 2.9
    return graph.module(check_guards=False) if checked else graph.module()


def smallest_side(graph: 'torch.export.ExportedProgram') -> int:
    """The smallest height and width that a graph of :func:`trace` takes: 33 for a backbone with maps of stride 32.

    The sides of the smallest map are more than one pixel, because torch treats a size of 1 in another way.
    """
    return max(int(sizes.lower) for sizes in graph.range_constraints.values())


def write_onnx(
    graph: 'torch.export.ExportedProgram',
    file: str | Path,
    names: Sequence[str] | None = None,
    metadata: Mapping[str, object] | None = None,
) -> None:
    """Write a graph of :func:`trace` as one ONNX file.

    Its input is "image", (1, in_channels, height, width). The axes of outputs have names made of these two, and the
    number of what a detector finds is "objects".

    Args:
        names: of the outputs, by default "output0" and so on. There may be more names than outputs.
        metadata: is written to the file, each value as JSON.

    Raises:
        MissingPackage: if onnx or onnxscript, which torch needs for it, is missing.
    """
    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingPackage(f'ONNX needs onnx and onnxscript ({error}): pip install onnx onnxscript') from None
    count = len(graph.graph_signature.user_outputs)
    program = torch.onnx.export(
        graph,
        input_names=['image'],
        output_names=list(names or (f'output{i}' for i in range(count)))[:count],
        dynamic_shapes=({2: 'height', 3: 'width'},),
        dynamo=True,
        verbose=False,
    )
    for output in program.model.graph.outputs:
        if not isinstance(output.shape[0], int):
            output.shape[0] = 'objects'
    program.model.metadata_props.update(
        {key: json.dumps(value, default=str) for key, value in (metadata or {}).items()}
    )
    program.save(str(file), external_data=False)


def read_onnx(file: str | Path, threads: int = 0) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """An ONNX file as a function from an image to a tuple of tensors, run by onnxruntime on the CPU.

    Args:
        threads: of an operator; 0 is onnxruntime's choice.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(os.fspath(file), options, providers=['CPUExecutionProvider'])
    return _on_tensors(lambda x: session.run(None, {'image': x}))


def read_openvino(file: str | Path, threads: int = 0) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """An ONNX file as a function from an image to a tuple of tensors, run by OpenVINO on the CPU in float32.

    Args:
        threads: 0 is OpenVINO's choice.
    """
    import openvino

    options = dict(INFERENCE_PRECISION_HINT='f32')  # It would choose bfloat16 where the CPU has it.
    if threads:
        options['INFERENCE_NUM_THREADS'] = threads
    model = openvino.Core().compile_model(os.fspath(file), 'CPU', options)
    return _on_tensors(lambda x: model({'image': x}).to_tuple())


#: package that runs ONNX files -> the function that reads one
RUNTIMES: dict[str, Callable] = dict(onnxruntime=read_onnx, openvino=read_openvino)


def _on_tensors(run: Callable[[np.ndarray], Sequence]) -> Callable[[Tensor], tuple[Tensor, ...]]:
    # Both runtimes may use the memory of a result again.
    return lambda x: tuple(torch.from_numpy(np.array(out)) for out in run(x.numpy()))


def largest_difference(
    model: nn.Module, graph: Callable, sizes: Sequence[tuple[int, int]], in_channels: int = 3
) -> list[float]:
    """How much a graph differs from its model, in evaluation mode on the CPU, for a random image of each height, width.

    Returns:
        per size, the largest difference divided by the largest value, over all outputs; NaN if one is not a number.
    """
    found = []
    for height, width in sizes:
        x = torch.randn(1, in_channels, height, width)
        with torch.no_grad():
            ours, theirs = (out if isinstance(out, (tuple, list)) else (out,) for out in (model(x), graph(x)))
        pairs = zip(ours, theirs, strict=True)
        differences = [(a - b).abs().max() / a.abs().max() if a.shape == b.shape else torch.inf for a, b in pairs]
        found.append(float(torch.tensor(differences).max()))  # Python's max would pass over a NaN
    return found


class AveragePool(nn.Module):
    """``nn.AdaptiveAvgPool2d`` as two matrix products. ONNX has no adaptive pooling of an unknown size."""

    def __init__(self, output_size: int | tuple[int, int]) -> None:
        super().__init__()
        self.output_size = (output_size, output_size) if isinstance(output_size, int) else tuple(output_size)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, C, H, W) -> (B, C, *output_size)."""
        rows, columns = (_bins(size, count, x) for size, count in zip(x.shape[2:], self.output_size))
        return rows @ x @ columns.t()


class CropToMultiple(nn.Module):
    """Leave out the last rows and columns that no pooling window covers. torch's pooling asks in tracing whether there
    are any, and the graph then refuses other sizes."""

    def __init__(self, kernel_size: int) -> None:
        super().__init__()
        self.kernel_size = kernel_size

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, C, H, W) -> (B, C, H', W'), the largest multiples of ``kernel_size``."""
        for dim in (2, 3):
            x = x.index_select(dim, torch.arange(x.shape[dim] // self.kernel_size * self.kernel_size, device=x.device))
        return x


def _bins(size: int, count: int, like: Tensor) -> Tensor:
    """(count, size): row i is the mean over pixels floor(i * size / count) to ceil((i + 1) * size / count) - 1."""
    i, pixel = torch.arange(count, device=like.device)[:, None], torch.arange(size, device=like.device)
    inside = ((pixel >= i * size // count) & (pixel < ((i + 1) * size + count - 1) // count)).to(like.dtype)
    return inside / inside.sum(1, keepdim=True)


def _of_any_size(module: nn.Module) -> nn.Module:
    """The module, or one that computes the same in a graph for any size."""
    if isinstance(module, nn.AdaptiveAvgPool2d) and None not in np.atleast_1d(module.output_size):
        return AveragePool(module.output_size)
    if isinstance(module, nn.MaxPool2d) and not (module.padding or module.ceil_mode):
        size = module.kernel_size
        if isinstance(size, int) and module.stride == size and module.dilation == 1:
            return nn.Sequential(CropToMultiple(size), module)
    if type(module).__name__ == 'Upsample' and module.size is None:  # MMSegmentation's computes sizes in Python
        return nn.Upsample(None, module.scale_factor, module.mode, module.align_corners)
    return module
