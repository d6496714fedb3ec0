import argparse
import pickle

import pytest
import torch

from mmattn.weights import CheckpointError, read_checkpoint

WEIGHTS = {'a.weight': torch.ones(2), 'b.bias': torch.zeros(1)}


@pytest.mark.parametrize('contents', [
    WEIGHTS,
    {'state_dict': WEIGHTS, 'epoch': 300, 'args': argparse.Namespace(lr=1e-3)},
    {'state_dict': {'a.weight': torch.zeros(2)}, 'state_dict_ema': WEIGHTS},
    {'model': WEIGHTS},
    {'model': {}, 'model_ema': {f'module.{k}': v for k, v in WEIGHTS.items()}, 'n_averaged': 3},
    {'state_dict': {f'module.{k}': v for k, v in WEIGHTS.items()}},
    {'state_dict': {f'backbone.{k}': v for k, v in WEIGHTS.items()} | {'decode_head.w': torch.ones(1)}, 'meta': {}},
    {'state_dict': {f'module.backbone.{k}': v for k, v in WEIGHTS.items()}},
])
def test_any_wrapping(tmp_path, contents):
    """Weights are found in whatever a trainer wraps them, averaged ones first."""
    torch.save(contents, tmp_path / 'c.pth')
    state_dict, _ = read_checkpoint(str(tmp_path / 'c.pth'))
    assert state_dict.keys() == WEIGHTS.keys() and all(torch.equal(state_dict[k], WEIGHTS[k]) for k in WEIGHTS)


def test_prefix(tmp_path):
    """A prefix selects and strips, MMEngine's way."""
    torch.save({'state_dict': {'encoder.a': torch.ones(1), 'other.a': torch.zeros(1)}}, tmp_path / 'c.pth')
    assert read_checkpoint(str(tmp_path / 'c.pth'), 'encoder.')[0] == {'a': torch.ones(1)}
    with pytest.raises(CheckpointError, match='holds no weights under "state_dict" "decoder'):
        read_checkpoint(str(tmp_path / 'c.pth'), 'decoder.')


class Evil:

    def __reduce__(self):
        return (open, (str(self.path), 'w'))


def test_code_is_never_run(tmp_path):
    """A pickle with a call in it is refused, unread."""
    Evil.path = tmp_path / 'proof'
    torch.save({'state_dict': {'a': Evil()}}, tmp_path / 'c.pth')
    with pytest.raises(CheckpointError, match='cannot be read'):
        read_checkpoint(str(tmp_path / 'c.pth'))
    assert not Evil.path.exists()


@pytest.mark.parametrize('contents, message', [
    (b'', 'cannot be read'), (b'not a checkpoint', 'cannot be read'), (pickle.dumps(3), 'cannot be read'),
    (None, 'there is no checkpoint')])
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
