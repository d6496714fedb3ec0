"""A resumed training draws the random numbers of one that was not interrupted."""

import random

import numpy as np
import pytest
import torch
from mmengine.dataset import Compose
from mmengine.hooks import Hook

from mmguard.checks.images import CheckedPipeline
from mmguard.runs import running, seeds

from .small_training import Data, Killed, Model, build


class Noisy(Model):
    """Draws as drop path and Mixup do, by torch and by NumPy."""

    def forward(self, x, mode='tensor'):
        x = torch.stack(x)
        return super().forward(x + np.random.rand() * torch.randn_like(x), mode)


class Augmented(Data):
    """Draws as transforms of a pipeline do."""

    def __init__(self):
        super().__init__()
        self.pipeline = Compose([lambda data: dict(x=data['x'] + random.random() * np.random.rand() + torch.rand(3))])

    def prepare_data(self, index):
        return self.pipeline(super().prepare_data(index))


def train(folder, workers=0, persistent=False, by_epoch=True, data=Augmented, hooks=(), **arguments):
    sampler = dict(type='DefaultSampler' if by_epoch else 'InfiniteSampler', shuffle=True)
    loader = dict(
        batch_size=2,
        num_workers=workers,
        persistent_workers=persistent,
        sampler=sampler,
        dataset=data(),
        drop_last=True,
    )
    hooks = [dict(type='EMAHook', momentum=0.5), *hooks]
    torch.manual_seed(0)
    runner = build(folder, by_epoch, model=Noisy(), train_dataloader=loader, custom_hooks=hooks, **arguments)
    running._run(runner, runner.train)
    return {**runner.model.state_dict(), **runner.optim_wrapper.state_dict()['state']}


@pytest.mark.parametrize('loader', [dict(), dict(workers=2, persistent=True)], ids=['here', 'workers'])
def test_resumed_random_numbers(tmp_path, loader):
    """Weights and moments are equal to the last bit, whoever draws: the model, the pipeline or its workers."""
    with pytest.raises(Killed):
        train(tmp_path / 'killed', seed=1, killed=True, **loader)
    resumed = train(tmp_path / 'killed', **loader)
    whole = train(tmp_path / 'whole', seed=1, **loader)
    for name, value in whole.items():
        for part, expected in value.items() if isinstance(value, dict) else [(None, value)]:
            assert torch.equal(resumed[name] if part is None else resumed[name][part], expected), name


def test_epochs_differ(tmp_path, monkeypatch):
    """Workers draw other numbers in each epoch, and each worker others; models do in each step, and in each process."""
    seen = []

    def forward(self, x, mode):
        seen.extend([*x, torch.rand(3)])
        return Model.forward(self, x, mode)

    monkeypatch.setattr(Noisy, 'forward', forward)
    monkeypatch.setattr(Data, 'load_data_list', lambda self: [dict(x=torch.zeros(3)) for _ in range(8)])
    for rank in range(2):
        monkeypatch.setattr(seeds, 'get_rank', lambda rank=rank: rank)
        train(tmp_path / str(rank), workers=2, persistent=rank == 0, seed=1)
    assert len({tuple(x.tolist()) for x in seen}) == len(seen) == 2 * (16 + 8)


class Switch(Hook):
    """Sets another pipeline in the second epoch, as MMDetection's PipelineSwitchHook does."""

    def before_train_epoch(self, runner):
        if runner.epoch == 1:
            runner.train_dataloader.dataset.pipeline = Compose([lambda data: dict(x=data['x'] + np.random.rand())])

    def after_train(self, runner):
        self.pipeline = runner.train_dataloader.dataset.pipeline


def test_another_pipeline(tmp_path, monkeypatch):
    """It is checked, and its workers draw other numbers in each epoch."""
    seen, switch = [], Switch()
    monkeypatch.setattr(Noisy, 'forward', lambda self, x, mode: seen.extend(x) or Model.forward(self, x, mode))
    monkeypatch.setattr(Augmented, 'get_data_info', lambda self, index: dict(x=torch.zeros(3)))
    train(tmp_path, workers=1, seed=1, steps=12, hooks=[switch])
    assert len({tuple(x.tolist()) for x in seen}) == len(seen) == 24
    assert isinstance(switch.pipeline, CheckedPipeline)
