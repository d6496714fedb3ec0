"""ONNX files whose layers compute with integers of 8 bits, by onnxruntime's static quantisation."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mmattn.errors import InputError

if TYPE_CHECKING:
    import onnx

#: a kind of layers stays in float32 if it alone, in 8 bits, changes the outputs by more than this, see :func:`quantise`
LARGEST_ERROR = 0.1


def quantise(file: str | Path, out: str | Path, images: Sequence[np.ndarray]) -> dict[str, float]:
    """Write a file of :func:`mmattn.export.graphs.write_onnx` again, with weights and activations of layers in 8 bits.

    Each kind of layers (convolutions, depth-wise convolutions, linear layers) is first quantised alone. A kind that
    changes the outputs by more than :data:`LARGEST_ERROR` stays in float32, and so does the rest: products of
    activations, softmax, norms. Ranges of activations are their smallest and largest value on every second image.
    Errors are measured on the others.

    Args:
        file, out: the file to read and the file to write.
        images: inputs of the file, at least two, (1, C, height, width) in float32.

    Returns:
        the error of each kind, and of "all" that are written: root of the mean square of the difference, divided by
        that of the outputs in float32.

    Raises:
        InputError: if there are fewer than two images, or every kind changes the outputs too much.
    """
    import onnx
    from onnxruntime.quantization import QuantFormat, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    if len(images) < 2:
        raise InputError(f'8 bits need at least two images, to find ranges and to measure errors, not {len(images)}')
    with tempfile.TemporaryDirectory() as folder:
        prepared, trial = (str(Path(folder, name)) for name in ('prepared.onnx', 'trial.onnx'))
        quant_pre_process(str(file), prepared, skip_symbolic_shape=True)  # It joins convolutions and norms.
        found = kinds(onnx.load(prepared))
        expected = _outputs(file, images[1::2])

        def write(nodes: list[str], to: str) -> float:
            # 7 bits for weights: CPUs with AVX2 or AVX-512, but without VNNI, add two products in 16 bits. With 8 bits,
            # that sum overflows.
            how = dict(nodes_to_quantize=nodes, per_channel=True, reduce_range=True)
            quantize_static(prepared, to, _Reader(images[::2]), QuantFormat.QDQ, **how)
            return _error(_outputs(to, images[1::2]), expected)

        errors = {kind: write(nodes, trial) for kind, nodes in found.items()}
        kept = [node for kind, nodes in found.items() if errors[kind] <= LARGEST_ERROR for node in nodes]
        if not kept:
            shares = ', '.join(f'{kind} by {error:.0%}' for kind, error in errors.items())
            raise InputError(f'8 bits change the outputs too much: {shares}')
        errors['all'] = write(kept, trial)
        model = onnx.load(trial)
        model.metadata_props.extend(onnx.load(file).metadata_props)
        onnx.save(model, out)
    return errors


def kinds(model: 'onnx.ModelProto') -> dict[str, list[str]]:
    """Names of the nodes that have weights, by the kind of layer."""
    weights = {weight.name for weight in model.graph.initializer}
    shapes = {weight.name: weight.dims for weight in model.graph.initializer}
    found: dict[str, list[str]] = {}
    for node in model.graph.node:
        if node.op_type in ('Conv', 'MatMul', 'Gemm') and node.input[1] in weights:
            depth_wise = node.op_type == 'Conv' and shapes[node.input[1]][1] == 1
            kind = 'depth-wise convolutions' if depth_wise else 'convolutions' if node.op_type == 'Conv' else 'linear'
            found.setdefault(kind, []).append(node.name)
    return found


class _Reader:
    """What onnxruntime takes images from."""

    def __init__(self, images: Sequence[np.ndarray]) -> None:
        self.images = iter(images)

    def get_next(self) -> dict[str, np.ndarray] | None:
        image = next(self.images, None)
        return None if image is None else dict(image=image)


def _outputs(file: str | Path, images: Sequence[np.ndarray]) -> list[np.ndarray]:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=['CPUExecutionProvider'])
    return [out for image in images for out in session.run(None, dict(image=image))]


def _error(outputs: list[np.ndarray], expected: list[np.ndarray]) -> float:
    difference = sum(np.square(a - b).sum() for a, b in zip(outputs, expected))
    return float(np.sqrt(difference / sum(np.square(b).sum() for b in expected)))
