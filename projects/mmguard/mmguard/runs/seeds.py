"""Random numbers of a training that do not depend on whether it was interrupted."""

import random
from multiprocessing.sharedctypes import RawValue

import numpy as np
import torch
from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch.utils.data import get_worker_info

from ..checks.datasets import ignored_labels, inner_datasets
from ..checks.images import CheckedPipeline


class SeedHook(Hook):
    """Seeds each step of a training, and its data workers in each epoch, so that a resumed one draws the same numbers.

    MMEngine seeds once: a resumed training would draw the numbers of the first step again, and workers that are started
    for each epoch would draw the same numbers in each epoch.

    Models and batch augmentations draw the same numbers after a resumption. Transforms of a pipeline do so in a
    training by epochs that is saved at the end of an epoch.
    """

    def before_train(self, runner: Runner) -> None:
        self.worker_seed = WorkerSeed(runner.seed, get_rank())
        for dataset in inner_datasets(runner.train_loop.dataloader.dataset):
            dataset.pipeline.transforms.insert(0, self.worker_seed)
        # This hook is called before all others, and one of them may set another pipeline.
        runner.register_hook(SwitchedPipelineHook(self.worker_seed), 'LOWEST')

    def before_train_epoch(self, runner: Runner) -> None:
        self.worker_seed.epoch.value = runner.epoch
        self.before_train_iter(runner)  # Without workers, the first batch is read before its step.

    def before_train_iter(self, runner: Runner, *args, **kwargs) -> None:
        seed_generators(runner.seed, get_rank(), runner.iter, 0)


class WorkerSeed:
    """A transform that seeds a data worker when it reads its first sample of an epoch, and leaves samples as they are.

    ``rank`` is that of the process that starts the workers.
    """

    def __init__(self, seed: int, rank: int) -> None:
        self.seed, self.rank = seed, rank
        self.epoch = RawValue('q')  # Workers, which may live for several epochs, share it with their process.
        self.seeded = None

    def __call__(self, data: dict) -> dict:
        worker, epoch = get_worker_info(), self.epoch.value
        if worker is not None and self.seeded != epoch:
            self.seeded = epoch
            seed_generators(self.seed, self.rank, epoch, 1 + worker.id)
        return data


class SwitchedPipelineHook(Hook):
    """Seeds and checks a pipeline that another hook sets before an epoch, as MMDetection's PipelineSwitchHook does."""

    def __init__(self, worker_seed: WorkerSeed) -> None:
        self.worker_seed = worker_seed

    def before_train_epoch(self, runner: Runner) -> None:
        for dataset in inner_datasets(runner.train_loop.dataloader.dataset):
            if self.worker_seed not in dataset.pipeline.transforms:
                dataset.pipeline = CheckedPipeline(dataset.pipeline, dataset, ignored_labels(runner.model))
                dataset.pipeline.transforms.insert(0, self.worker_seed)


def seed_generators(*numbers: int) -> None:
    """Seed the generators of Python, NumPy and torch with one seed made of several numbers."""
    seed = int(np.random.SeedSequence(numbers).generate_state(1)[0])
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
