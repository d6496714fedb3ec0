"""Interrupted training of a model of two layers; tests/tools/test_dist_and_resume.py kills tools/train.py itself."""

import itertools
import os
import resource
import signal
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch import nn

from mmattn.engine.checkpoints import AtomicBackend, prepare_resume
from mmattn.weights import CheckpointError

STEPS, KILLED_AT = 8, 5  # a checkpoint every 2 steps, an epoch every 4


class Model(BaseModel):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))

    def forward(self, x, mode='tensor'):
        x = torch.stack(x) if isinstance(x, list) else x
        return dict(loss=self.layers(x).square().mean()) if mode == 'loss' else [{}]


class Data(BaseDataset):
    def load_data_list(self):
        return [dict(x=x) for x in torch.randn(8, 3, generator=torch.Generator().manual_seed(0))]

    def prepare_data(self, index):
        return dict(x=self.get_data_info(index)['x'])


class Better(BaseMetric):
    """Every evaluation is better than the one before."""

    score = itertools.count()

    def process(self, data_batch, data_samples):
        self.results.append(None)

    def compute_metrics(self, results):
        return dict(acc=float(next(self.score)))


class Killed(BaseException):
    """No code catches it, as no code runs after a kill."""


class Kill(Hook):
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter == KILLED_AT:
            raise Killed


names = map('run{}'.format, itertools.count())


def train(folder, by_epoch=False, killed=False, seed=None, checkpoint=None, steps=STEPS, validate=False):
    """Train in a folder, resumed from its newest checkpoint; the weights at the end."""
    loop = dict(by_epoch=True, max_epochs=steps // 4) if by_epoch else dict(by_epoch=False, max_iters=steps)
    sampler = 'DefaultSampler' if by_epoch else 'InfiniteSampler'
    dataloader = dict(batch_size=2, num_workers=0, sampler=dict(type=sampler, shuffle=True), dataset=Data())
    cfg = Config(dict(work_dir=str(folder), randomness=dict(seed=seed)))
    prepare_resume(cfg)
    validation = (
        dict(
            val_dataloader=dict(dataloader, sampler=dict(type='DefaultSampler', shuffle=False)),
            val_evaluator=[Better()],
            val_cfg=dict(),
        )
        if validate
        else {}
    )
    torch.manual_seed(0)
    runner = Runner(
        Model(),
        str(folder),
        dataloader,
        train_cfg=dict(loop, val_interval=2),
        **validation,
        optim_wrapper=dict(optimizer=dict(type='AdamW', lr=0.1)),
        param_scheduler=dict(type='CosineAnnealingLR', T_max=STEPS, by_epoch=False),
        default_hooks=dict(
            checkpoint=dict(
                type='AtomicCheckpointHook', by_epoch=by_epoch, interval=1 if by_epoch else 2, **checkpoint or {}
            )
        ),
        custom_hooks=[Kill()] if killed else [],
        load_from=cfg.get('load_from'),
        resume=cfg.resume,
        randomness=cfg.randomness,
        experiment_name=next(names),
        log_level='WARNING',
    )
    runner.train()
    return runner.model.state_dict()


def training_state(path, **contents):
    torch.save(
        dict(dict(meta=dict(seed=1), state_dict={'w': torch.zeros(1000)}, optimizer={}, message_hub={}), **contents),
        path,
    )


@pytest.mark.parametrize('by_epoch', [False, True])
def test_goes_on_as_if_uninterrupted(tmp_path, by_epoch):
    """A resumed training gives the weights of one that was not interrupted, also if the config has no seed."""
    with pytest.raises(Killed):
        train(tmp_path / 'killed', by_epoch, killed=True)
    last = torch.load((tmp_path / 'killed' / 'last_checkpoint').read_text(), weights_only=False)
    assert last['meta']['iter'] == 4
    resumed = train(tmp_path / 'killed', by_epoch)
    whole = train(tmp_path / 'whole', by_epoch, seed=last['meta']['seed'])
    other = train(tmp_path / 'other', by_epoch, seed=last['meta']['seed'] + 1)
    assert all(torch.equal(resumed[name], value) for name, value in whole.items())
    assert not torch.equal(resumed['layers.0.weight'], other['layers.0.weight'])


@pytest.fixture
def four(tmp_path):
    """A work folder with four checkpoints."""
    for i in (90, 100, 110, 120):
        training_state(tmp_path / f'iter_{i}.pth', meta=dict(seed=i))
    (tmp_path / 'last_checkpoint').write_text(str(tmp_path / 'iter_110.pth'))  # 120 is of an older training
    return tmp_path


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1000])


def flip(path):
    contents = bytearray(path.read_bytes())
    contents[len(contents) // 2] ^= 1
    path.write_bytes(contents)


def test_last_checkpoint_is_used(four):
    cfg = Config(dict(work_dir=str(four), load_from='weights.pth', randomness=dict(seed=3, deterministic=True)))
    prepare_resume(cfg)
    assert cfg.resume and cfg.load_from == str(four / 'iter_110.pth')
    assert cfg.randomness == dict(seed=110, deterministic=True)


@pytest.mark.parametrize('damage', [truncate, flip, lambda path: path.write_bytes(b''), Path.unlink])
def test_damaged_checkpoint_is_named_and_passed_over(four, log, damage):
    """The checkpoint with the next lower number is used, and the log names the damaged one."""
    damage(four / 'iter_110.pth')
    damage(four / 'iter_100.pth')
    (four / 'iter_95.pth.part').write_bytes(b'half')
    cfg = Config(dict(work_dir=str(four)))
    prepare_resume(cfg)
    assert cfg.load_from == str(four / 'iter_90.pth') and cfg.randomness.seed == 90
    assert 'iter_110.pth' in log[0] and log[0].endswith(f'resuming from {cfg.load_from}')


def test_folder_was_moved(four):
    """The path in the note of the last checkpoint no longer exists."""
    (four / 'last_checkpoint').write_text('/elsewhere/iter_100.pth')
    cfg = Config(dict(work_dir=str(four)))
    prepare_resume(cfg)
    assert cfg.load_from == str(four / 'iter_100.pth')


def test_empty_note(four):
    """The training was killed after it opened the note of the last checkpoint and before it wrote the note."""
    (four / 'last_checkpoint').write_text('')
    cfg = Config(dict(work_dir=str(four)))
    prepare_resume(cfg)
    assert cfg.load_from == str(four / 'iter_120.pth')


def test_nothing_whole_is_an_error(four):
    """A new training would overwrite the checkpoints that the user wants to keep."""
    for path in four.glob('*.pth'):
        truncate(path)
    with pytest.raises(CheckpointError, match='iter_110.pth cannot be read.*iter_90.*nothing to resume from'):
        prepare_resume(Config(dict(work_dir=str(four))))


def test_nothing_yet(tmp_path):
    """Without a checkpoint, --resume starts a new training, from the config's load_from."""
    cfg = Config(dict(work_dir=str(tmp_path / 'none'), load_from='weights.pth'))
    prepare_resume(cfg)
    assert cfg.resume is False and cfg.load_from == 'weights.pth'


@pytest.mark.parametrize(
    'spoil, message',
    [
        (truncate, 'damaged'),
        (flip, 'damaged'),
        (Path.unlink, 'there is no checkpoint'),
        (lambda path: path.write_text('text'), 'damaged'),
        (lambda path: torch.save({'state_dict': {}}, path), 'holds no state of a training'),
        (lambda path: torch.save([1], path), 'holds no state of a training'),
    ],
)
def test_named_checkpoint_must_be_whole(four, spoil, message):
    """No other checkpoint is used instead."""
    spoil(four / 'iter_100.pth')
    with pytest.raises(CheckpointError, match=f'iter_100.pth.*{message}|{message}.*iter_100.pth'):
        prepare_resume(Config(dict(work_dir=str(four))), str(four / 'iter_100.pth'))


@pytest.mark.parametrize('keep', [dict(max_keep_ckpts=1), dict(max_keep_ckpts=2), dict()])
def test_number_of_checkpoints(tmp_path, keep):
    """max_keep_ckpts is the number of checkpoints at the end."""
    train(tmp_path, checkpoint=keep)
    numbers = sorted(int(path.stem[5:]) for path in tmp_path.glob('*.pth*'))
    assert numbers == [2, 4, 6, 8][-keep.get('max_keep_ckpts', 4) :]


@pytest.mark.parametrize(
    'full, best', [('iter_6.pth', 'best_acc_iter_4.pth'), ('best_acc_iter_6.pth', 'best_acc_iter_4.pth')]
)
def test_full_disk(tmp_path, full, best):
    """If a checkpoint does not fit on the disk, the error says so and the training can be resumed.

    No part of the file is left. The last checkpoint before it and the best one stay.
    """
    (tmp_path / f'{full}.part').symlink_to('/dev/full')
    options = dict(max_keep_ckpts=1, save_best='acc', rule='greater')
    with pytest.raises(CheckpointError, match=rf'{full} cannot be written \(No space left on device\); .* --resume'):
        train(tmp_path, checkpoint=options, validate=True)
    left = {path.name for path in tmp_path.glob('*.pth*')}
    assert left == {best, 'iter_4.pth' if full.startswith('iter') else 'iter_6.pth'}
    train(tmp_path, checkpoint=options, validate=True)
    assert {path.name for path in tmp_path.glob('*.pth*')} == {'iter_8.pth', 'best_acc_iter_8.pth'}


def test_a_given_backend_is_used(tmp_path):
    """With backend_args, the hook writes as MMEngine's does: not to NAME.part."""
    (tmp_path / 'iter_2.pth.part').symlink_to('/dev/full')
    train(tmp_path, checkpoint=dict(backend_args=dict(backend='local')))
    assert (tmp_path / 'iter_2.pth').is_file()


def test_killed_while_writing(tmp_path):
    """The kernel kills the process while it writes: the older file of that name stays whole."""
    path = tmp_path / 'iter_2.pth'
    path.write_bytes(b'whole')
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        try:
            AtomicBackend().put(bytes(2000), path)
        finally:
            os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGXFSZ
    assert path.read_bytes() == b'whole' and (tmp_path / 'iter_2.pth.part').stat().st_size == 1000
    AtomicBackend().put(b'newer', path)
    assert path.read_bytes() == b'newer' and list(tmp_path.iterdir()) == [path]
