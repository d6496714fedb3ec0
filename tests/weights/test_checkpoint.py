import argparse
import contextlib
import os
import pickle
import shutil

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer

from mmattn.weights import CheckpointError, read_checkpoint, read_file

WEIGHTS = {'a.weight': torch.ones(2), 'b.bias': torch.zeros(1)}


@pytest.mark.parametrize(
    'contents',
    [
        WEIGHTS,
        {'state_dict': WEIGHTS, 'epoch': 300, 'args': argparse.Namespace(lr=1e-3)},
        {'state_dict': {'a.weight': torch.zeros(2)}, 'state_dict_ema': WEIGHTS},
        {'model': WEIGHTS},
        {'model': {}, 'model_ema': {f'module.{k}': v for k, v in WEIGHTS.items()}, 'n_averaged': 3},
        {'state_dict': {f'module.{k}': v for k, v in WEIGHTS.items()}},
        {'state_dict': {f'backbone.{k}': v for k, v in WEIGHTS.items()} | {'decode_head.w': torch.ones(1)}, 'meta': {}},
        {'state_dict': {f'module.backbone.{k}': v for k, v in WEIGHTS.items()}},
    ],
)
def test_any_wrapping(tmp_path, contents):
    """Weights are found in the containers of all known trainers; averaged weights come first."""
    torch.save(contents, tmp_path / 'c.pth')
    state_dict, _ = read_checkpoint(str(tmp_path / 'c.pth'))
    assert state_dict.keys() == WEIGHTS.keys() and all(torch.equal(state_dict[k], WEIGHTS[k]) for k in WEIGHTS)


def test_prefix(tmp_path):
    """Tensors under a prefix are taken, and the prefix is removed, as in MMEngine."""
    torch.save({'state_dict': {'encoder.a': torch.ones(1), 'other.a': torch.zeros(1)}}, tmp_path / 'c.pth')
    assert read_checkpoint(str(tmp_path / 'c.pth'), 'encoder.')[0] == {'a': torch.ones(1)}
    with pytest.raises(CheckpointError, match='holds no weights under "state_dict" "decoder'):
        read_checkpoint(str(tmp_path / 'c.pth'), 'decoder.')


@pytest.mark.parametrize(
    'contents, message',
    [
        (b'', 'cannot be read'),
        (b'not a checkpoint', 'cannot be read'),
        (pickle.dumps(3), 'cannot be read'),
        (None, 'there is no checkpoint'),
    ],
)
def test_unreadable_files_are_named(tmp_path, contents, message):
    path = tmp_path / 'c.pth'
    if contents is not None:
        path.write_bytes(contents)
    with pytest.raises(CheckpointError, match=message) as error:
        read_checkpoint(str(path))
    assert str(path) in str(error.value)


@pytest.mark.parametrize('contents', [{}, {'state_dict': {}}, {'epoch': 3}, [torch.ones(1)], torch.ones(2)])
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
        lambda proof: Call(open, proof, 'w'),
        lambda proof: Call(eval, f'open({proof!r}, "w")'),
        lambda proof: Call(os.system, f'touch {proof}'),
        lambda proof: Call(Call, open, proof, 'w'),
        lambda proof: Call(getattr, HistoryBuffer, '__init__'),
        lambda proof: Call(torch.hub.load_state_dict_from_url, 'http://localhost'),
    ],
    ids=['open', 'eval', 'system', 'class', 'getattr', 'torch'],
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


def test_trusted_files_are_read_whole(tmp_path):
    torch.save({'state_dict': WEIGHTS, 'meta': Call(open, str(tmp_path / 'proof'), 'w')}, tmp_path / 'c.pth')
    assert read_file(str(tmp_path / 'c.pth'), trusted=True)['state_dict'].keys() == WEIGHTS.keys()
    assert (tmp_path / 'proof').exists()


def test_state_of_a_training_is_read(tmp_path, unpickler):
    """What MMEngine keeps beside the weights: its history of logs, NumPy's numbers and arrays."""
    history = HistoryBuffer([1.0, 3.0], [1, 1])
    state = {'log_scalars': {'loss': history}, 'runtime_info': {'best': np.float64(2), 'seed': np.arange(3)}}
    torch.save(
        {'state_dict': WEIGHTS, 'message_hub': state, 'optimizer': {'state': {0: {'step': torch.ones(1)}}}},
        tmp_path / 'c.pth',
    )
    contents = read_file(str(tmp_path / 'c.pth'))
    hub = contents['message_hub']
    assert hub['log_scalars']['loss'].mean() == 2 and hub['runtime_info']['best'] == 2
    assert hub['runtime_info']['seed'].tolist() == [0, 1, 2] and contents['optimizer']['state'][0]['step'] == 1


def test_damaged_files_are_refused(tmp_path, unpickler):
    """A file that is cut or has one changed byte is refused or read correctly; no other error is raised."""
    torch.save({'state_dict': {name: torch.randn(50, 2) for name in 'abc'}}, tmp_path / 'whole.pth')
    whole, path = (tmp_path / 'whole.pth').read_bytes(), tmp_path / 'c.pth'
    for at in range(1, len(whole), 61):
        path.write_bytes(whole[:at])
        with pytest.raises(CheckpointError, match='cannot be read'):
            read_file(str(path))
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        with contextlib.suppress(CheckpointError):
            read_file(str(path))


@pytest.mark.parametrize(
    'value, what', [(float('nan'), 'has NaN in b.weight'), (float('-inf'), 'an infinity in b.weight')]
)
@pytest.mark.parametrize('container', [None, 'state_dict', 'model_ema', 'ema_state_dict'])
def test_values_are_numbers(tmp_path, value, what, container):
    """NaN and infinities are refused with the tensor's name, also in averaged weights."""
    weights = {**WEIGHTS, 'b.weight': torch.tensor([1.0, value], dtype=torch.float16)}
    torch.save({container: weights} if container else weights, tmp_path / 'c.pth')
    with pytest.raises(CheckpointError, match=what):
        read_file(str(tmp_path / 'c.pth'))


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half_precision_is_cast(tmp_path, log, dtype):
    """Weights of half precision load into a model of float32, and the log says so."""
    torch.save({'state_dict': torch.nn.Linear(2, 2).to(dtype).state_dict()}, tmp_path / 'c.pth')
    model = torch.nn.Linear(2, 2)
    model.load_state_dict(read_checkpoint(str(tmp_path / 'c.pth'))[0])
    assert model.weight.dtype == torch.float32
    assert any(f'half precision ({str(dtype)[6:]})' in message for message in log)


def test_addresses_are_read_like_files(tmp_path, monkeypatch):
    """Downloads pass the same checks as files; names of torchvision are translated to addresses."""
    torch.save({'state_dict': WEIGHTS}, tmp_path / 'good.pth')
    torch.save({'state_dict': Call(open, str(tmp_path / 'proof'), 'w')}, tmp_path / 'evil.pth')
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path / 'hub'))
    monkeypatch.setattr(
        torch.hub, 'download_url_to_file', lambda url, file, **_: shutil.copy(tmp_path / url.rpartition('/')[2], file)
    )
    monkeypatch.setattr('mmengine.runner.checkpoint.get_torchvision_models', lambda: {'r': 'https://there/good.pth'})
    for address in ('https://there/good.pth', 'torchvision://r'):
        assert read_checkpoint(address)[0].keys() == WEIGHTS.keys()
    for address, message in (
        ('https://there/evil.pth', 'code in a file is not run'),
        ('https://there/no.pth', 'cannot be downloaded'),
        ('torchvision://no', 'no weights no'),
        ('s3://there/good.pth', 'download the file'),
    ):
        with pytest.raises(CheckpointError, match=message):
            read_checkpoint(address)
    assert not (tmp_path / 'proof').exists()
