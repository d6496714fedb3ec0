"""Training of a model of two layers in MMEngine's Runner, which may be killed."""

import itertools
import os
import socket

import torch
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch import distributed, multiprocessing, nn

from mmguard.runs.resuming import CheckpointCheckHook, prepare_resume

STEPS, KILLED_AT = 8, 5  # a checkpoint every 2 steps, an epoch every 4


class Model(BaseModel):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))

    def forward(self, x, mode='tensor'):
        x = torch.stack(x) if isinstance(x, list) else x
        return dict(loss=self.layers(x).square().mean()) if mode == 'loss' else [{}]


class Data(BaseDataset):
    def __init__(self):
        super().__init__(serialize_data=False)  # which collects garbage

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
        return dict.fromkeys(('acc', 'mIoU'), float(next(self.score)))


class Killed(BaseException):
    """No code catches it, as no code runs after a kill."""


class Kill(Hook):
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter == KILLED_AT:
            raise Killed


names = map('run{}'.format, itertools.count())


def train(*args, **kwargs):
    """Train, see :func:`build`; the weights at the end."""
    runner = build(*args, **kwargs)
    runner.register_hook(CheckpointCheckHook(), 'HIGHEST')
    runner.train()
    return runner.model.state_dict()


def build(
    folder,
    by_epoch=False,
    killed=False,
    seed=None,
    checkpoint=None,
    steps=STEPS,
    validate=False,
    workers=0,
    prepared=None,
    **changes,
):
    """A Runner that trains in a folder, resumed from its newest checkpoint.

    Args:
        checkpoint: arguments of the hook.
        prepared: a config that says what to resume from, and the seed.
        changes: of the arguments of the Runner; ``resume`` and ``load_from`` name a file.
    """
    loop = dict(by_epoch=True, max_epochs=steps // 4) if by_epoch else dict(by_epoch=False, max_iters=steps)
    sampler = 'DefaultSampler' if by_epoch else 'InfiniteSampler'
    dataloader = dict(batch_size=2, num_workers=workers, sampler=dict(type=sampler, shuffle=True), dataset=Data())
    hook = dict(type='AtomicCheckpointHook', by_epoch=by_epoch, interval=1 if by_epoch else 2)
    hook.update(checkpoint or {})
    cfg = Config(dict(work_dir=str(folder), randomness=dict(seed=seed), default_hooks=dict(checkpoint=hook)))
    if prepared is not None:
        cfg.resume, cfg.load_from = bool(prepared.get('resume')), prepared.get('load_from')
        cfg.randomness = prepared.get('randomness', cfg.randomness)
    elif 'load_from' in changes:
        cfg.resume, cfg.load_from = False, changes.pop('load_from')
    else:
        prepare_resume(cfg, changes.pop('resume', None))
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
    settings = dict(
        model=Model(),
        work_dir=str(folder),
        train_dataloader=dataloader,
        train_cfg=dict(loop, val_interval=2),
        **validation,
        optim_wrapper=dict(optimizer=dict(type='AdamW', lr=0.1)),
        param_scheduler=dict(type='CosineAnnealingLR', T_max=STEPS, by_epoch=False),
        default_hooks=cfg.default_hooks,
        custom_hooks=[*changes.pop('custom_hooks', []), *([Kill()] if killed else [])],
        load_from=cfg.get('load_from'),
        resume=cfg.resume,
        randomness=cfg.randomness,
        experiment_name=next(names),
        log_level='WARNING',
    )
    return Runner(**{**settings, **changes})


def in_two_processes(run, *arguments):
    """What a function gives in each of two processes of gloo, whose number is its first argument."""
    with socket.socket() as free:
        free.bind(('', 0))
        place = dict(WORLD_SIZE='2', MASTER_ADDR='127.0.0.1', MASTER_PORT=str(free.getsockname()[1]))
    context = multiprocessing.get_context('fork')
    results = context.SimpleQueue()

    def process(rank):
        torch.set_num_threads(1)  # OpenMP waits for ever for threads that a fork leaves behind
        os.environ.update(place, RANK=str(rank), LOCAL_RANK=str(rank))
        try:
            distributed.init_process_group('gloo')
            results.put((rank, run(rank, *arguments)))
            distributed.destroy_process_group()
        except BaseException:
            results.put((rank, None))  # Otherwise the test would wait for ever.
            raise

    processes = [context.Process(target=process, args=(rank,)) for rank in (0, 1)]
    for each in processes:
        each.start()
    given = dict(results.get() for _ in processes)
    for each in processes:
        each.join()
        assert each.exitcode == 0
    return [given[rank] for rank in (0, 1)]
