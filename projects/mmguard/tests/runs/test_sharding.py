"""Sharded checkpoints in one process. tests/tools/test_dist_and_resume.py trains with several."""

import pickle

import pytest
import torch
from mmengine.config import Config
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.fsdp import FullyShardedDataParallel

from mmguard.errors import InputError
from mmguard.packages import version_numbers
from mmguard.runs import configs, sharding
from mmguard.runs.checkpoints import AtomicBackend, locked
from mmguard.runs.configs import check_sharding
from mmguard.runs.resuming import prepare_resume
from mmguard.runs.sharding import merge_shards
from mmguard.weights import CheckpointError, read_file

needs_dcp = pytest.mark.skipif(version_numbers(torch.__version__) < (2, 6), reason='sharding needs torch 2.6')
SHARDED = dict(strategy=dict(type='ShardedStrategy'), launcher='pytorch')


@pytest.fixture
def sharded(tmp_path):
    """A function that writes a sharded checkpoint of a step. It returns the folder and the state in it."""

    def write(step, **tensors):
        weight = dict(step=torch.tensor(float(step)), exp_avg=torch.randn(2, 3), none=None)
        state = dict(
            meta=dict(epoch=0, iter=step, seed=1),
            state_dict={'b.weight': torch.randn(2, 3), 'a.mean': torch.randn(3)},
            optimizer=dict(state={'b.weight': weight}, param_groups=[dict(lr=0.1, params=['b.weight'])]),
            message_hub=dict(log_scalars={}, runtime_info={}, resumed_keys={}),
        )
        folder = tmp_path / f'iter_{step}.pth'
        rest = {**state, 'state_dict': dict(state['state_dict'])}
        rest['optimizer'] = {**state['optimizer'], 'state': {'b.weight': dict(weight)}}
        sharding.save(sharding._take_tensors(rest) | tensors, storage_writer=FileSystemWriter(folder))
        torch.save(rest, folder / 'rest.pth')
        return folder, state

    return write


@needs_dcp
def test_merged(sharded):
    """The merged checkpoint has the same state, with tensors in the order of the model, as the optimizer expects."""
    folder, state = sharded(2)
    merged = merge_shards(folder)
    assert list(merged) == list(state) and list(merged['state_dict']) == list(state['state_dict'])
    for part in ('meta', 'message_hub'):
        assert merged[part] == state[part]
    torch.testing.assert_close(merged['state_dict'], state['state_dict'], rtol=0, atol=0)
    moments, expected = (each['optimizer']['state']['b.weight'] for each in (merged, state))
    assert moments.pop('none') is expected.pop('none') is None
    torch.testing.assert_close(moments, expected, rtol=0, atol=0)
    assert merged['optimizer']['param_groups'] == state['optimizer']['param_groups']


class Harmful:
    def __reduce__(self):
        return open, ('harm', 'w')


@needs_dcp
def test_code_is_not_run(sharded, tmp_path, monkeypatch):
    """Code in the metadata is refused, and so are objects in the shards: DCP would unpickle them and run their code."""
    monkeypatch.chdir(tmp_path)
    folder, _ = sharded(2, harmful=Harmful())
    with pytest.raises(CheckpointError, match='contains objects that are not tensors'):
        merge_shards(folder)
    (folder / '.metadata').write_bytes(pickle.dumps(Harmful()))
    with pytest.raises(CheckpointError, match='unsupported class .*open'):
        merge_shards(folder)
    assert not (tmp_path / 'harm').exists()


@needs_dcp
def test_metadata_is_read_once(sharded, tmp_path, monkeypatch):
    """torch would read another file, as a plain pickle, if the first has odd values in what is not used."""
    monkeypatch.chdir(tmp_path)
    folder, state = sharded(2)
    contents = pickle.loads((folder / '.metadata').read_bytes())
    contents.storage_meta, contents.planner_data = 5, 'x'
    (folder / '.metadata').write_bytes(pickle.dumps(contents))
    (folder / '__0.metadata').write_bytes(pickle.dumps(Harmful()))
    torch.testing.assert_close(merge_shards(folder)['state_dict'], state['state_dict'], rtol=0, atol=0)
    assert not (tmp_path / 'harm').exists()


def _tensor(contents):
    return contents.state_dict_metadata['state_dict.b.weight']


def _place(contents):
    return next(place for key, place in contents.storage_data.items() if key.fqn == 'state_dict.b.weight')


def _other(contents):
    return next(place for key, place in contents.storage_data.items() if key.fqn == 'state_dict.a.mean')


@needs_dcp
@pytest.mark.parametrize(
    ('edit', 'message'),
    [
        (lambda c: setattr(_tensor(c), 'size', torch.Size([4, 3])), 'do not cover it'),
        (lambda c: _tensor(c).chunks.clear(), 'do not cover it'),
        (lambda c: _tensor(c).chunks.append(_tensor(c).chunks[0]), 'overlap, or do not cover it'),
        (lambda c: setattr(_tensor(c), 'size', torch.Size([-2, 3])), 'no size of a tensor'),
        (lambda c: setattr(_tensor(c), 'size', torch.Size([0, 2**40, 2**40])), 'no size of a tensor'),
        (lambda c: setattr(_tensor(c).properties, 'dtype', None), 'no dtype'),
        (lambda c: setattr(_tensor(c).properties, 'dtype', torch.float16), 'torch.float32 .2, 3., not torch.float16'),
        (lambda c: setattr(_place(c), 'relative_path', '../other.pth/__0_0.distcp'), 'no file of this folder'),
        (lambda c: setattr(_place(c), 'relative_path', 'link'), 'no file of this folder'),
        (lambda c: setattr(_place(c), 'offset', -1), 'has no place'),
        (lambda c: setattr(_place(c), 'length', 2**50), 'cut short'),
        (lambda c: setattr(_place(c), 'length', 8), 'larger than its part'),
        (lambda c: vars(_place(c)).update(vars(_other(c))), 'tensors overlap in __0_0.distcp|larger than its part'),
        (lambda c: c.storage_data.clear(), 'cannot be read'),
        (lambda c: c.state_dict_metadata.pop('state_dict.b.weight'), 'places of tensors that it does not name'),
        (
            lambda c: (c.state_dict_metadata.pop('state_dict.b.weight'), _forget(c)),
            'do not both have state_dict.b.weight',
        ),
        (lambda c: vars(c).pop('storage_data'), 'cannot be read as a sharded checkpoint'),
    ],
)
def test_edited_metadata(sharded, edit, message):
    """Each tensor has all of its values once, in a file of this folder, and they are of its size and dtype. torch would
    take values that are in memory by chance, those of other folders, and None."""
    folder, _ = sharded(2)
    (folder / 'link').symlink_to(folder / '__0_0.distcp')
    contents = pickle.loads((folder / '.metadata').read_bytes())
    edit(contents)
    (folder / '.metadata').write_bytes(pickle.dumps(contents))
    with pytest.raises(CheckpointError, match=message):
        merge_shards(folder)


def _forget(contents):
    kept = {key: place for key, place in contents.storage_data.items() if key.fqn != 'state_dict.b.weight'}
    contents.storage_data = kept


@needs_dcp
def test_shards_have_checksums(sharded):
    """A changed number is refused: each tensor of a shard has its checksum."""
    folder, state = sharded(2)
    shard = folder / '__0_0.distcp'
    number = state['state_dict']['b.weight'].numpy().tobytes()[:4]
    assert shard.read_bytes().count(number) == 1
    shard.write_bytes(shard.read_bytes().replace(number, bytes([number[0] ^ 1]) + number[1:]))
    with pytest.raises(CheckpointError, match='its tensors are damaged .*not as it was written'):
        merge_shards(folder)


@needs_dcp
@pytest.mark.parametrize(
    'rest',
    [{'state_dict': 5, 'meta': {'iter': 2}}, {'state_dict': {}, 'meta': {'iter': 2}}, {'state_dict': {}, 'meta': 5}],
    ids=['no dict', 'no names', 'no step'],
)
def test_rest_of_another_kind(sharded, rest):
    """What is beside the tensors must name them, and the step."""
    folder, _ = sharded(2)
    torch.save(rest, folder / 'rest.pth')
    with pytest.raises(CheckpointError, match='no state of a training|do not both have'):
        merge_shards(folder)


@needs_dcp
@pytest.mark.parametrize('damage', ['missing', 'cut', 'rest'])
def test_newest_whole_one(sharded, tmp_path, log, damage):
    """--resume takes the newest complete sharded checkpoint, and the log says why it leaves out a newer one."""
    older, newest = (sharded(step)[0] for step in (2, 4))
    (tmp_path / 'last_checkpoint').write_text(str(newest))
    cfg = Config(dict(work_dir=str(tmp_path), **SHARDED))
    prepare_resume(cfg)
    assert cfg.load_from == str(newest) and cfg.resume and cfg.randomness.seed == 1
    shard = newest / '__0_0.distcp'
    if damage == 'missing':
        shard.unlink()
    else:
        file = dict(cut=shard, rest=newest / 'rest.pth')[damage]
        file.write_bytes(file.read_bytes()[:-1])
    prepare_resume(cfg)
    assert cfg.load_from == str(older) and f'{newest}' in log[-1] and 'cannot be read' in log[-1]


@needs_dcp
def test_sharded_for_ordinary_and_back(sharded, tmp_path):
    """Ordinary training refuses sharded checkpoints, sharded training ordinary ones. Both say what to do."""
    folder, state = sharded(2)
    for read in (read_file, lambda path: prepare_resume(Config(dict(work_dir=str(tmp_path))), str(path))):
        with pytest.raises(CheckpointError, match=f'python tools/merge_shards.py {folder} TARGET'):
            read(folder)
    torch.save(state, tmp_path / 'ordinary.pth')
    with pytest.raises(
        CheckpointError, match='sharded training cannot resume from .*: leave out .*fsdp.py, or .*load_from'
    ):
        prepare_resume(Config(dict(work_dir=str(tmp_path), **SHARDED)), str(tmp_path / 'ordinary.pth'))
    with pytest.raises(CheckpointError, match='is not a sharded checkpoint'):
        merge_shards(tmp_path / 'ordinary.pth')


@pytest.mark.parametrize(
    'settings, message',
    [
        (dict(launcher='none'), 'dist_train.sh'),
        (dict(custom_hooks=[dict(type='EMAHook')]), 'cannot average weights'),
        (dict(strategy=dict(type='FSDPStrategy')), 'use ShardedStrategy'),
    ],
)
def test_what_sharded_training_cannot_do(settings, message, monkeypatch):
    """Each setting that sharded training cannot work with is refused; without them, the check passes."""
    monkeypatch.setattr(configs, 'require_sharding', lambda purpose: None)
    check_sharding(Config(SHARDED))
    with pytest.raises(InputError, match=message):
        check_sharding(Config(SHARDED | settings))


def test_old_torch(monkeypatch, tmp_path):
    """Training and merging say which torch they need."""
    monkeypatch.setattr(torch, '__version__', '2.5.1')
    for refused in (lambda: check_sharding(Config(SHARDED)), lambda: merge_shards(tmp_path)):
        with pytest.raises(InputError, match='needs torch 2.6 or newer, and this is 2.5.1'):
            refused()


def test_folders_are_removed(tmp_path):
    """A superseded folder is removed at the end of the block, and kept if the block fails. The next training removes an
    incomplete folder."""
    folder, backend = tmp_path / 'iter_2.pth', AtomicBackend()
    folder.mkdir()
    with pytest.raises(ZeroDivisionError), backend.removing_afterwards():
        backend.rmtree(folder)
        1 / 0  # noqa: B018
    with backend.removing_afterwards():
        backend.rmtree(folder)
        assert folder.is_dir()
    assert not list(tmp_path.iterdir())
    (tmp_path / 'iter_4.pth.part' / 'sub').mkdir(parents=True)
    with locked([tmp_path]):
        assert not list(tmp_path.glob('*.part'))


@pytest.fixture
def two_processes():
    """A group of which only the first process is there: enough to shard, not to compute."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group('fake', store=FakeStore(), rank=0, world_size=2)
    yield
    torch.distributed.destroy_process_group()


@needs_dcp
def test_decay_of_matrices(two_processes):
    """Shards of matrices are flat. flat_decay_mult is for what is flat as a whole: here a bias and a norm."""
    strategy, cpu = object.__new__(sharding.ShardedStrategy), torch.device('cpu')
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
    strategy.model = FullyShardedDataParallel(model, use_orig_params=True, device_id=cpu)
    optimizer = dict(type='SGD', lr=0.1, weight_decay=0.1)
    cfg = dict(optimizer=optimizer, paramwise_cfg=dict(flat_decay_mult=0.0))
    wrapper = strategy.build_optim_wrapper(cfg, strategy.model)
    groups = wrapper.optimizer.param_groups
    assert [group['weight_decay'] for group in groups] == [0.1, 0.0, 0.0, 0.0]
    assert all(group['params'][0] is own for group, own in zip(groups, strategy.model.parameters()))
