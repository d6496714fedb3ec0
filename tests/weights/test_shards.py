import json

import pytest
import safetensors.torch
import torch

from mmattn.weights import CheckpointError, read_checkpoint, read_file

MAP = {'a.weight': 'a.safetensors', 'b.weight': 'b.safetensors', 'b.bias': 'b.safetensors'}


@pytest.fixture
def index(tmp_path):
    """The index of two files."""
    a, b = {'a.weight': torch.ones(1)}, {'b.weight': torch.zeros(1), 'b.bias': torch.zeros(1)}
    noted = dict(mmattn=json.dumps(dict(backbone=dict(type='NAT'))))
    for name, tensors in (('a', a), ('b', b)):
        safetensors.torch.save_file(tensors, tmp_path / f'{name}.safetensors', noted)
    file = tmp_path / 'model.safetensors.index.json'
    file.write_text(json.dumps(dict(metadata=dict(total_size=12), weight_map=MAP)))
    return file


def test_all_files_of_an_index_are_read(index):
    """Tensors, and the settings that mmattn noted."""
    assert read_file(index)['state_dict'].keys() == MAP.keys()
    tensors, _, noted = read_checkpoint(index, prefix='')
    assert tensors['a.weight'] == 1 and noted is None
    assert read_file(index)['meta'] == dict(mmattn=dict(backbone=dict(type='NAT')))


@pytest.mark.parametrize(
    'change, message',
    [
        ({'c.weight': 'a.safetensors'}, 'a.safetensors has no c.weight, which the index has in a.safetensors'),
        ({'a.weight': 'c.safetensors'}, 'index.json names c.safetensors, which is not beside it'),
        (
            {'b.bias': None},
            'b.safetensors has b.bias, which the index has in no file: the files do not belong together',
        ),
        ({'a.weight': '../a.safetensors'}, "has '../a.safetensors' for a.weight: only files beside it are read"),
        ({'a.weight': 3}, "has '3' for a.weight: only files beside it are read"),
    ],
    ids=['missing', 'no file', 'not named', 'elsewhere', 'number'],
)
def test_files_that_do_not_belong_together(index, change, message):
    """A tensor that is missing, or in two files, is refused, and so is a path that leads elsewhere."""
    changed = {name: file for name, file in {**MAP, **change}.items() if file is not None}
    index.write_text(json.dumps(dict(weight_map=changed)))
    with pytest.raises(CheckpointError, match=message):
        read_file(index)


@pytest.mark.parametrize(
    'text, message',
    [
        ('{"weight_map"', 'cannot be read as an index of weights'),
        ('{"weight_map": [1]}', 'cannot be read as an index of weights'),
        ('[' * 100000, 'cannot be read as an index of weights'),
        ('{"weight_map": {}}', 'names no tensors'),
    ],
    ids=['cut', 'list inside', 'deep', 'empty'],
)
def test_broken_index(index, text, message):
    index.write_text(text)
    with pytest.raises(CheckpointError, match=message):
        read_file(index)
