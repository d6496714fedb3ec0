"""Whatever a checkpoint holds, a backbone has its numbers afterwards or refuses it."""

import copy
import functools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmattn.weights import CheckpointError
from tests.backbones.cases import CASES

#: what torch can store, weights or not
DTYPES = [value for value in vars(torch).values() if isinstance(value, torch.dtype)]
WRAPPERS = ['', 'module.', 'module.module.', '_orig_mod.', 'module._orig_mod.', '_fsdp_wrapped_module.']
CONTAINERS = [(), ('state_dict',), ('model',), ('state_dict_ema',), ('model_ema',)]


def quantised(value):
    return torch.quantize_per_tensor(value.float(), 0.1, 0, torch.qint8)


def cast(dtype, value):
    return quantised(value) if str(dtype).startswith(('torch.q', 'torch.bits')) else value.to(dtype)


def with_value(number, value):
    value = value.clone()
    value.view(-1)[0] = number
    return value


def wider(value):
    value = value.double()
    value.view(-1)[0] = 1e200
    return value


#: each changes one tensor
CHANGES = {
    'another dtype': st.sampled_from(DTYPES).map(lambda dtype: functools.partial(cast, dtype)),
    'another shape': st.sampled_from(
        [
            lambda v: v[None],
            lambda v: v.flatten()[:-1],
            lambda v: v.sum(),
            lambda v: v.t().contiguous(),
            torch.atleast_3d,
        ]
    ),
    'another form': st.sampled_from(
        [
            quantised,
            lambda v: v.to('meta'),
            lambda v: v.to_sparse(),
            lambda v: torch.nested.nested_tensor([v]),
            lambda v: v.tolist(),
            lambda v: None,
            lambda v: torch.nn.Parameter(v),
            lambda v: v.expand(2, *v.shape)[0],
        ]
    ),
    'another value': st.sampled_from(
        [wider, *(functools.partial(with_value, number) for number in (float('nan'), float('inf'), -1.0))]
    ),
}


@functools.lru_cache
def trained(name):
    backbone = CASES[name].build(CASES[name].tiny)
    for value in backbone.state_dict().values():
        if value.is_floating_point():
            value.copy_(torch.rand_like(value))
    return backbone


def named(draw, tensors):
    """The tensors as a wrapper, a whole model or both would save them; and the prefix to ask for."""
    wrapper, prefix = draw(st.sampled_from(WRAPPERS)), draw(st.sampled_from(['', 'backbone.', 'encoder.body.']))
    contents = {f'{wrapper}{prefix}{key}': value for key, value in tensors.items()}
    asked = None if prefix in ('', 'backbone.') and draw(st.booleans()) else prefix.removesuffix('.')
    if prefix:
        contents['head.weight'] = torch.ones(3)
    return contents, asked


@pytest.mark.parametrize('name', CASES)
@pytest.mark.every(4)
@given(data=st.data())
def test_right_or_refused(tmp_path_factory, name, data):
    """Any dtype, shape, form of tensor, wrapper, container and prefix: the backbone has the numbers of the file, or a
    CheckpointError is raised. A file without a change is not refused."""
    tensors = {key: value.clone() for key, value in trained(name).state_dict().items()}
    changed = data.draw(st.lists(st.sampled_from(list(tensors)), max_size=2, unique=True))
    refused = ambiguous = False
    for key in changed:
        change = data.draw(st.sampled_from(list(CHANGES)).flatmap(CHANGES.get))
        try:
            tensors[key] = change(tensors[key])
        except (RuntimeError, NotImplementedError, TypeError, ValueError):
            continue  # torch cannot do this change
        refused = True
    contents, asked = named(data.draw, tensors)
    if data.draw(st.integers(0, 9)) == 0:
        key = data.draw(st.sampled_from(list(contents)))
        contents[f'module.{key}'] = torch.ones(1) if isinstance(contents[key], torch.Tensor) else 0
        refused = True
        ambiguous = isinstance(contents[key], torch.Tensor)
    if data.draw(st.integers(0, 9)) == 0:
        contents[data.draw(st.sampled_from([0, None, (1, 2), b'name']))] = torch.ones(1)
        refused = ambiguous = True
    for container in data.draw(st.sampled_from(CONTAINERS)):
        meta = data.draw(st.sampled_from([None, {}, {'mmattn': 3}, {'mmattn': {'': 3}}]))
        contents = {container: contents, 'meta': meta}
    path = tmp_path_factory.getbasetemp() / f'{name}.pth'
    try:
        torch.save(contents, path)
    except (RuntimeError, NotImplementedError, TypeError, KeyError):
        return  # torch cannot write it
    backbone = copy.deepcopy(trained(name))
    for value in backbone.state_dict().values():
        value.zero_()
    try:
        backbone.load_pretrained(path, prefix=asked)
    except CheckpointError as error:
        assert refused and '\n' not in str(error), error
        return
    assert not ambiguous
    for key, value in backbone.state_dict().items():
        if key.endswith('num_batches_tracked') and not isinstance(tensors[key], torch.Tensor):
            continue  # this counter may be missing
        assert torch.isfinite(value).all() and torch.equal(value, tensors[key].to(value.dtype))
        assert value.is_floating_point() == tensors[key].is_floating_point()
