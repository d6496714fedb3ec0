import argparse
import contextlib
import os
import pickle
import re
import zipfile
from collections import Counter

import numpy as np
import pytest
import safetensors.torch
import torch
from mmengine.logging import HistoryBuffer

from mmattn.weights import CheckpointError, compare_settings, read_checkpoint, read_file, unusable

WEIGHTS = {'a.weight': torch.ones(2), 'b.bias': torch.zeros(1)}


@pytest.mark.parametrize(
    'contents',
    [
        WEIGHTS,
        {'state_dict': WEIGHTS, 'epoch': 300, 'args': argparse.Namespace(lr=1e-3)},
        {'state_dict': {'a.weight': torch.zeros(2)}, 'state_dict_ema': WEIGHTS},
        {'model': {}, 'model_ema': {f'module.{k}': v for k, v in WEIGHTS.items()}, 'n_averaged': 3},
        {'state_dict': {f'backbone.{k}': v for k, v in WEIGHTS.items()} | {'decode_head.w': torch.ones(1)}, 'meta': {}},
        {'state_dict': {f'module.module.{k}': v for k, v in WEIGHTS.items()}},
        {'state_dict': {f'module.backbone._orig_mod.{k}': v for k, v in WEIGHTS.items()}},
        {'state_dict': {f'backbone._fsdp_wrapped_module.{k}': v for k, v in WEIGHTS.items()}},
    ],
    ids=['bare', 'args', 'ema', 'model_ema', 'backbone', 'modules', 'compiled', 'fsdp'],
)
def test_any_wrapping(tmp_path, contents):
    """Weights are found in the containers of all known trainers; averaged weights come first."""
    torch.save(contents, tmp_path / 'c.pth')
    state_dict, *_ = read_checkpoint(tmp_path / 'c.pth')
    assert state_dict.keys() == WEIGHTS.keys() and all(torch.equal(state_dict[k], WEIGHTS[k]) for k in WEIGHTS)


def test_prefix(tmp_path):
    """Tensors under a prefix are taken, and the prefix is removed, as in MMEngine: with its last dot or without."""
    torch.save({'state_dict': {'module.encoder.a': torch.ones(1), 'other.a': torch.zeros(1)}}, tmp_path / 'c.pth')
    for prefix in ('encoder.', 'encoder', 'module.encoder.'):
        assert read_checkpoint(str(tmp_path / 'c.pth'), prefix)[0] == {'a': torch.ones(1)}
    assert read_checkpoint(str(tmp_path / 'c.pth'), '')[0].keys() == {'encoder.a', 'other.a'}
    torch.save({'my_orig_mod.a': torch.ones(1)}, tmp_path / 'own.pth')  # a part of a name is not a wrapper's
    assert read_checkpoint(tmp_path / 'own.pth')[0].keys() == {'my_orig_mod.a'}
    with pytest.raises(CheckpointError, match='holds no weights under "state_dict" "decoder'):
        read_checkpoint(str(tmp_path / 'c.pth'), 'decoder.')


@pytest.mark.parametrize('twin', ['module.a.weight', 'backbone.a.weight'])
def test_two_tensors_of_one_name(tmp_path, twin):
    """Of two tensors for one place, neither is chosen without a word. A prefix chooses between a backbone's."""
    torch.save({'state_dict': {'a.weight': torch.ones(2), twin: torch.zeros(2)}}, tmp_path / 'c.pth')
    with pytest.raises(CheckpointError, match=f'has both a.weight and {twin}'):
        read_checkpoint(tmp_path / 'c.pth')
    if twin.startswith('backbone'):
        assert read_checkpoint(tmp_path / 'c.pth', prefix='backbone')[0]['a.weight'].tolist() == [0, 0]
        assert read_checkpoint(tmp_path / 'c.pth', prefix='')[0]['a.weight'].tolist() == [1, 1]


@pytest.mark.parametrize(
    'path, message',
    [
        ('x' * 5000, 'cannot be read'),
        ('http://[::1', 'cannot be read'),
        ('http://localhost:x/c.pth', 'cannot be downloaded'),
        ('https://localhost/', 'names no file'),
        ('https://localhost/' + 'x' * 5000, 'cannot be read'),
        ('a\0b', 'there is no checkpoint'),
    ],
    ids=['long', 'address', 'port', 'no file', 'long address', 'zero'],
)
def test_paths_that_are_none(tmp_path, monkeypatch, path, message):
    """An impossible path or address ends in one sentence of a readable length."""
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path))
    with pytest.raises(CheckpointError, match=message) as error:
        read_file(path)
    assert len(str(error.value)) < 1000 and '\n' not in str(error.value)


@pytest.mark.parametrize(
    'contents, message',
    [
        (b'', 'cannot be read'),
        (b'not a checkpoint', 'torch.save did not write it'),
        (b'\n<!DOCTYPE html>', 'it is a web page'),
        (None, 'there is no checkpoint .*: put it there$'),
    ],
    ids=['empty', 'text', 'page', 'missing'],
)
def test_unreadable_files_are_named(tmp_path, contents, message):
    path = tmp_path / 'c.pth'
    if contents is not None:
        path.write_bytes(contents)
    with pytest.raises(CheckpointError, match=message) as error:
        read_checkpoint(str(path))
    assert str(path) in str(error.value)


def test_other_archives_are_named(tmp_path):
    """A TorchScript program and another zip file are whole, and no checkpoints."""
    torch.jit.script(torch.nn.Linear(2, 2)).save(tmp_path / 'c.pth')
    with pytest.raises(CheckpointError, match='is a TorchScript program: save the state_dict'):
        read_file(tmp_path / 'c.pth')
    np.savez(tmp_path / 'c.npz', a=np.ones(2))
    with pytest.raises(CheckpointError, match='torch.save did not write it'):
        read_file(tmp_path / 'c.npz')


@pytest.mark.parametrize(
    'contents', [{'state_dict': {}}, {'epoch': 3}, [torch.ones(1)]], ids=['empty', 'other', 'list']
)
def test_files_without_weights_are_named(tmp_path, contents):
    torch.save(contents, tmp_path / 'c.pth')
    with pytest.raises(CheckpointError, match='holds no weights'):
        read_checkpoint(str(tmp_path / 'c.pth'))


@pytest.fixture(params=['of torch', 'of pickle'])
def unpickler(request, monkeypatch):
    """Both readers of files: torch's weights_only, and the restricted pickle for older versions of torch."""
    if request.param == 'of pickle':
        monkeypatch.setattr(torch, '__version__', '2.1.2')


class Call:
    """An object that is unpickled by a call of a function."""

    def __init__(self, function, *args):
        self.call = (function, args)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize('legacy', [False, True])
@pytest.mark.parametrize(
    'call',
    [
        lambda proof: Call(os.system, f'touch {proof}'),
        lambda proof: Call(Call, open, proof, 'w'),
        lambda proof: Call(getattr, HistoryBuffer, '__init__'),
        lambda proof: Call(torch.hub.load_state_dict_from_url, 'http://localhost'),
    ],
    ids=['system', 'class', 'getattr', 'torch'],
)
def test_no_code_gets_through(tmp_path, unpickler, call, legacy):
    """Code does not run as a function, as a class or through the allowed classes, in both of torch's file formats."""
    proof = tmp_path / 'proof'
    torch.save(
        {'state_dict': WEIGHTS, 'meta': call(str(proof))}, tmp_path / 'c.pth', _use_new_zipfile_serialization=not legacy
    )
    with pytest.raises(CheckpointError, match='code in a file is not run'):
        read_file(str(tmp_path / 'c.pth'))
    assert not proof.exists()


class Dtype(Call):
    """A dtype whose fields and flags a file sets."""

    def __init__(self, *state):
        self.call = (np.dtype, ('f8', False, True), (3, '<', *state))


@pytest.mark.parametrize(
    'value',
    [
        Call(np.ndarray, (2,)),
        Call(np.ndarray, (1,), 'f8', b'12345678'),
        np.array([None, 1]),
        np.zeros(2, [('a', 'f8'), ('b', object)]),
        np.zeros(2, 'M8[s]'),
        np.void(b'1234'),
        Dtype(None, None, None, -1, -1, 63),
        Dtype((np.dtype('f8'), (1000,)), None, None, -1, -1, 0),
        Dtype(None, ('a',), {'a': (np.dtype('f8'), 9000)}, -1, -1, 0),
    ],
    ids=[
        *('length', 'address', 'objects', 'fields with objects', 'dates', 'raw value'),
        *('dtype with flags', 'dtype of arrays', 'dtype with fields'),
    ],
)
def test_arrays_have_no_pointers(tmp_path, unpickler, value):
    """A file makes arrays of numbers, by their values: no objects, no memory of its choice, no flags of dtypes."""
    torch.save({'state_dict': WEIGHTS, 'meta': value}, tmp_path / 'c.pth')
    with pytest.raises(CheckpointError, match='has numpy'):
        read_file(str(tmp_path / 'c.pth'))


def test_arrays_have_values_once(tmp_path, unpickler):
    """A tensor may share the memory of an array, which other values would take away. Read arrays are written as
    NumPy's own."""
    arrays = [np.arange(6.0, dtype='>f4').reshape(2, 3).T, np.array([True]), np.float16(2), np.zeros((0, 3), int)]
    torch.save(arrays, tmp_path / 'c.pth')
    read = read_file(tmp_path / 'c.pth')
    assert all(
        np.array_equal(value, array) and value.dtype.char == array.dtype.char for value, array in zip(read, arrays)
    )
    with pytest.raises(pickle.UnpicklingError, match='twice'):
        read[0].__setstate__(np.zeros(2).__reduce__()[2])
    assert b'mmattn' not in pickle.dumps([read, [value + 1 for value in read]])


def test_classes_stay_as_they_are(tmp_path, unpickler):
    """A file cannot set attributes of an allowed class, which all of the program uses."""
    program = b'\x80\x02cargparse\nNamespace\nN}X\7\0\0\0changedK\1s\x86b.'
    with zipfile.ZipFile(tmp_path / 'c.pth', 'w') as archive:
        archive.writestr('c/data.pkl', program)
        archive.writestr('c/version', '3\n')
    with pytest.raises(CheckpointError):
        read_file(tmp_path / 'c.pth')
    assert not hasattr(argparse.Namespace, 'changed')


nested = getattr(torch._utils, '_rebuild_nested_tensor', None)  # not in torch 2.1


@pytest.mark.parametrize('legacy', [False, True])
@pytest.mark.parametrize(
    ('value', 'named'),
    [
        (Call(torch.FloatTensor, 3), 'torch.FloatTensor'),
        (torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), 'torch._utils._rebuild_qtensor'),
        pytest.param(
            Call(nested, *[torch.tensor([[9]])] * 4),
            'torch._utils._rebuild_nested_tensor',
            marks=pytest.mark.skipif(nested is None, reason='this torch has no such function'),
        ),
    ],
    ids=['values', 'quantised', 'nested'],
)
def test_no_tensors_of_other_memory(tmp_path, unpickler, value, named, legacy):
    """torch allows functions that make tensors without values, or on memory that is not there."""
    path = tmp_path / 'c.pth'
    torch.save({'optimizer': {'state': {0: {'a': value}}}}, path, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(CheckpointError, match=f'has {named} beside tensors'):
        read_file(path)


def test_sparse_indices_beyond_the_tensor(tmp_path, unpickler):
    """torch alone takes them, and then reads or writes beyond the memory, or ends the interpreter."""
    sparse = torch.sparse_coo_tensor([[1, 10**6]], [1.0, 1.0], (2,), check_invariants=False)
    torch.save({'state_dict': WEIGHTS, 'optimizer': {'state': {0: {'a': sparse}}}}, tmp_path / 'c.pth')
    with pytest.raises(CheckpointError, match='cannot be read'):
        read_file(tmp_path / 'c.pth')


def test_trusted_files_are_read_whole(tmp_path):
    torch.save({'state_dict': WEIGHTS, 'meta': Call(open, str(tmp_path / 'proof'), 'w')}, tmp_path / 'c.pth')
    assert read_file(str(tmp_path / 'c.pth'), trusted=True)['state_dict'].keys() == WEIGHTS.keys()
    assert (tmp_path / 'proof').exists()


def test_state_of_a_training_is_read(tmp_path, unpickler):
    """A checkpoint may contain what MMEngine saves beside the weights: log history, milestones of MultiStepLR, NumPy
    numbers."""
    history = HistoryBuffer([1.0, 3.0], [1, 1])
    state = {'log_scalars': {'loss': history}, 'runtime_info': {'best': np.float64(2), 'seed': np.arange(3)}}
    torch.save(
        {
            'state_dict': WEIGHTS,
            'message_hub': state,
            'optimizer': {'state': {0: {'step': torch.ones(1)}}},
            'param_schedulers': [{'milestones': Counter([8, 11])}],
        },
        tmp_path / 'c.pth',
    )
    contents = read_file(str(tmp_path / 'c.pth'))
    assert contents['param_schedulers'] == [{'milestones': Counter([8, 11])}]
    hub = contents['message_hub']
    assert hub['log_scalars']['loss'].mean() == 2 and hub['runtime_info']['best'] == 2
    assert hub['runtime_info']['seed'].tolist() == [0, 1, 2] and contents['optimizer']['state'][0]['step'] == 1


def test_damaged_files_are_refused(tmp_path, unpickler):
    """A file that is cut or has one changed byte is refused or read correctly; no other error is raised. torch alone
    does not compare checksums, and reads arbitrary memory where the index of the file marks a tensor as a folder."""
    tensors = {name: torch.randn(50, 2) for name in 'abc'}
    torch.save(tensors, tmp_path / 'whole.pth')
    whole, path = (tmp_path / 'whole.pth').read_bytes(), tmp_path / 'c.pth'
    attributes = [found.start() + 38 for found in re.finditer(b'PK\1\2', whole)]
    for at in (*range(1, len(whole), 122), *attributes):
        path.write_bytes(whole[:at])
        with pytest.raises(CheckpointError, match='cannot be read'):
            read_file(path)
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        with contextlib.suppress(CheckpointError):
            contents = read_file(path)
            assert all(torch.equal(contents[name], value) for name, value in tensors.items())


def test_compressed_files_are_refused(tmp_path):
    """A file of a megabyte could fill the memory."""
    torch.save({'a': torch.zeros(1000)}, tmp_path / 'c.pth')
    with zipfile.ZipFile(tmp_path / 'c.pth') as given, zipfile.ZipFile(tmp_path / 'z.pth', 'w', 8) as packed:
        for name in given.namelist():
            packed.writestr(name, given.read(name))
    with pytest.raises(CheckpointError, match='it is compressed, which torch.save does not do'):
        read_file(tmp_path / 'z.pth')


def test_safetensors(tmp_path):
    """The suffix may be in upper case. A file that is cut is refused; the format has no checksum."""
    safetensors.torch.save_file(WEIGHTS, tmp_path / 'X.SAFETENSORS')
    assert read_checkpoint(tmp_path / 'X.SAFETENSORS')[0].keys() == WEIGHTS.keys()
    (tmp_path / 'cut.safetensors').write_bytes((tmp_path / 'X.SAFETENSORS').read_bytes()[:-1])
    with pytest.raises(CheckpointError, match='cut.safetensors cannot be read as safetensors'):
        read_file(tmp_path / 'cut.safetensors')


def test_a_folder(tmp_path):
    with pytest.raises(CheckpointError, match='is a folder: give the path of a file in it'):
        read_file(tmp_path)


def test_settings_of_a_file_may_be_anything():
    """Lists that hold themselves, or each other twice over, would take for ever to compare."""
    endless, bushy = [], [1]
    endless.append(endless)
    for _ in range(15):
        bushy = [bushy, bushy]
    for value, shown in (
        (endless, "<class 'list'>"),
        (bushy, "<class 'list'>"),
        ({'a': bushy}, "<class 'dict'>"),
        (np.array(['a', 'b']), "<class 'numpy.ndarray'>"),
        ('x' * 10**6, "'xxx"),
    ):
        with pytest.raises(CheckpointError, match=f'trained with heads={shown}') as error:
            compare_settings(dict(type='A', heads=value), dict(type='A', heads=[1, 2]))
        assert len(str(error.value)) < 1000
        compare_settings(dict(type=value), dict(type='A', heads=[1, 2]))
    compare_settings(dict(type='A', heads=(1, 2)), dict(type='A', heads=[1, 2]))


@pytest.mark.parametrize(
    'value, what',
    [(float('nan'), 'has NaN in b.weight'), (float('-inf'), 'an infinity in b.weight')],
    ids=['NaN', 'inf'],
)
@pytest.mark.parametrize('container', [None, 'model_ema', 'ema_state_dict'])
def test_values_are_numbers(tmp_path, value, what, container):
    """NaN and infinities are refused with the tensor's name, also in averaged weights."""
    weights = {**WEIGHTS, 'b.weight': torch.tensor([1.0, value], dtype=torch.float16)}
    torch.save({container: weights} if container else weights, tmp_path / 'c.pth')
    with pytest.raises(CheckpointError, match=what):
        read_file(str(tmp_path / 'c.pth'))


def test_masks_have_infinities(tmp_path):
    """They are added to scores. No other tensor has them, whatever is in its name."""
    for name, right in (('attn.mask', True), ('mask_token', False)):
        torch.save({name: torch.tensor([0, float('-inf')])}, tmp_path / 'c.pth')
        with contextlib.nullcontext() if right else pytest.raises(CheckpointError, match='an infinity in mask_token'):
            read_file(tmp_path / 'c.pth')


@pytest.mark.parametrize(
    'name, value, message',
    [
        ('b.running_var', torch.tensor([1.0, -1e-9]), 'has a negative variance in b.running_var'),
        (
            'b.weight',
            torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
            'b.weight is quantised|_rebuild_qtensor',
        ),
        ('b.weight', torch.ones(2, 2).to_sparse_csr(), 'b.weight is sparse'),
        ('b.weight', torch.ones(2, device='meta'), 'b.weight is a tensor without values'),
        ('b.weight', torch.ones(2).to(torch.float8_e5m2), 'b.weight is float8_e5m2'),
        ('b.weight', torch.ones(1).expand(10**12), 'b.weight is a few numbers, repeated'),
        (7, torch.ones(2), 'the name 7: names of tensors must be text'),
    ],
    ids=['variance', 'quantised', 'sparse', 'meta', 'float8', 'repeated', 'name'],
)
def test_tensors_are_ordinary(tmp_path, name, value, message):
    """MMEngine would not copy them, and go on with untrained weights."""
    try:
        torch.save({'state_dict': {**WEIGHTS, name: value}}, tmp_path / 'c.pth')
    except KeyError:
        pytest.skip(f'torch {torch.__version__} does not save {value.dtype}')
    with pytest.raises(CheckpointError, match=message):
        read_file(tmp_path / 'c.pth')


INT8, FLOAT = torch.tensor([1], dtype=torch.int8), torch.zeros(1)


@pytest.mark.parametrize(
    'value, own, expected',
    [
        (torch.ones(1).half(), FLOAT, ''),
        (torch.ones(1).double(), FLOAT, ''),
        (torch.tensor([1e39], dtype=torch.float64), FLOAT, 'float64 for float32, with values beyond its range'),
        (torch.tensor([1e5]), FLOAT.half(), 'float32 for float16, with values beyond its range'),
        (INT8, FLOAT, 'int8 for float32'),
        (FLOAT, INT8.long(), 'float32 for int64'),
        (INT8, INT8.long(), ''),
        (torch.tensor([2**40]), INT8.int(), 'int64 for int32'),
        (INT8.bool(), INT8, 'bool for int8'),
    ],
    ids='half double range half-range int8 float wider-int range-int bool-int'.split(),
)
def test_unusable(value, own, expected):
    """A value is of the same kind of number as the tensor that it goes into, and in its range."""
    assert unusable(value, own) == expected


def test_half_precision_is_cast(tmp_path, log):
    """Weights of half precision load into a model of float32, and the log says so."""
    torch.save({'state_dict': torch.nn.Linear(2, 2).half().state_dict()}, tmp_path / 'c.pth')
    model = torch.nn.Linear(2, 2)
    model.load_state_dict(read_checkpoint(str(tmp_path / 'c.pth'))[0])
    assert model.weight.dtype == torch.float32
    assert any('half precision (float16)' in message for message in log)
