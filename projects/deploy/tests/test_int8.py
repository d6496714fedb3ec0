"""ONNX files in 8 bits."""

import numpy as np
import pytest

from mmattn.errors import InputError
from mmattn_deploy import int8

onnx = pytest.importorskip('onnx')
onnxruntime = pytest.importorskip('onnxruntime')


@pytest.fixture
def file(tmp_path):
    """A convolution, a depth-wise one and a linear layer."""
    make, numbers = onnx.helper, np.random.default_rng(0)
    shapes = dict(a=(8, 3, 3, 3), b=(8, 1, 3, 3), c=(8, 16))
    weights = [
        onnx.numpy_helper.from_array(numbers.normal(size=shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        make.make_node('Conv', ['image', 'a'], ['x'], 'first'),
        make.make_node('Conv', ['x', 'b'], ['y'], 'second', group=8),
        make.make_node('Transpose', ['y'], ['z'], 'third', perm=[0, 2, 3, 1]),
        make.make_node('MatMul', ['z', 'c'], ['scores'], 'fourth'),
    ]
    image, scores = (
        make.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (('image', (1, 3, 'height', 'width')), ('scores', (1, 'rows', 'columns', 16)))
    )
    model = make.make_model(
        make.make_graph(nodes, 'graph', [image], [scores], weights),
        opset_imports=[make.make_opsetid('', 18)],
        ir_version=9,
    )
    make.set_model_props(model, dict(classes='[]'))
    onnx.save(model, tmp_path / 'model.onnx')
    return tmp_path / 'model.onnx'


IMAGES = [np.random.default_rng(i).normal(size=(1, 3, 12, 9 + i)).astype(np.float32) for i in range(4)]


def test_quantise(file, tmp_path):
    """All kinds are found; results are near those of float32, at another size, too; and metadata stays."""
    errors = int8.quantise(file, tmp_path / 'small.onnx', IMAGES)
    assert list(errors) == ['convolutions', 'depth-wise convolutions', 'linear', 'all']
    assert 0 < max(errors.values()) == errors['all'] < 0.05
    image = np.random.default_rng(9).normal(size=(1, 3, 20, 15)).astype(np.float32)
    sessions = [onnxruntime.InferenceSession(path) for path in (file, tmp_path / 'small.onnx')]
    exact, small = (session.run(None, dict(image=image))[0] for session in sessions)
    assert 0 < np.linalg.norm(small - exact) < 0.1 * np.linalg.norm(exact)
    assert sessions[1].get_modelmeta().custom_metadata_map['classes'] == '[]'


def test_sensitive_kinds_stay(file, tmp_path, monkeypatch):
    """A kind that changes the outputs more than is allowed has weights in float32; all of them: an error."""
    first = int8.quantise(file, tmp_path / 'all.onnx', IMAGES)
    *_, second, largest = sorted(first[kind] for kind in list(first)[:3])
    monkeypatch.setattr(int8, 'LARGEST_ERROR', (second + largest) / 2)
    assert int8.quantise(file, tmp_path / 'two.onnx', IMAGES)['all'] < first['all']
    kept = [
        list(w.dims) for w in onnx.load(tmp_path / 'two.onnx').graph.initializer if w.data_type == 1 and len(w.dims) > 1
    ]
    assert len(kept) == 1
    monkeypatch.setattr(int8, 'LARGEST_ERROR', 0.0)
    with pytest.raises(InputError, match='8 bits change the outputs too much: convolutions by'):
        int8.quantise(file, tmp_path / 'none.onnx', IMAGES)
    with pytest.raises(InputError, match='need at least two images, .* not 1'):
        int8.quantise(file, tmp_path / 'none.onnx', IMAGES[:1])


def test_errors_are_of_other_images(file, tmp_path):
    """Errors are not measured on the images that give the ranges: values beyond those are cut off, and that shows."""
    images = [image * factor for image, factor in zip(IMAGES, (0.05, 1, 0.05, 1))]
    with pytest.raises(InputError, match='8 bits change the outputs too much'):
        int8.quantise(file, tmp_path / 'small.onnx', images)


def test_weights_have_seven_bits(file, tmp_path):
    """A CPU without VNNI adds two products in 16 bits, which would overflow with weights of 8 bits."""
    int8.quantise(file, tmp_path / 'small.onnx', IMAGES)
    weights = [onnx.numpy_helper.to_array(each) for each in onnx.load(tmp_path / 'small.onnx').graph.initializer]
    whole = [each for each in weights if each.dtype == np.int8 and each.ndim > 1]
    assert len(whole) == 3 and all(np.abs(each.astype(int)).max() <= 64 for each in whole)
