"""Batches of one image for batch norms of pooled maps."""

import pytest
from mmengine.dataset import DefaultSampler, InfiniteSampler
from torch import nn

from mmguard.errors import InputError
from mmguard.runs.batches import BatchNormHook

from .small_training import Data, Model, build


def loader(size, sampler=DefaultSampler, **settings):
    return dict(batch_size=size, num_workers=0, sampler=dict(type=sampler), dataset=Data(), **settings)


def start(folder, dataloader, model=None, by_epoch=True):
    """Train for an epoch, or for two steps."""
    hooks = [BatchNormHook()]
    build(
        folder,
        by_epoch=by_epoch,
        steps=4 if by_epoch else 2,
        custom_hooks=hooks,
        model=model or Model(),
        train_dataloader=dataloader,
    ).train()


@pytest.mark.parametrize(
    'dataloader, message',
    [
        (loader(1), 'each batch of an epoch has one image: set train_dataloader.batch_size=2, or another norm'),
        (loader(7), 'the last batch of an epoch has one image: set train_dataloader.drop_last=True, or'),
    ],
    ids=['each', 'last'],
)
def test_one_value_per_channel(tmp_path, dataloader, message):
    """The first step is refused, and names the norm. Otherwise the last batch ends the training with a traceback."""
    named = f'layers.1 is a batch norm with one value per channel and image, and {message}'
    with pytest.raises(InputError, match=named):
        start(tmp_path, dataloader)


@pytest.mark.parametrize(
    'dataloader, by_epoch',
    [(loader(3), True), (loader(7, drop_last=True), True), (loader(7, InfiniteSampler), False)],
    ids=['two left', 'dropped', 'infinite'],
)
def test_batches_of_several_images(tmp_path, dataloader, by_epoch):
    """No batch has one image."""
    start(tmp_path, dataloader, by_epoch=by_epoch)


def test_norms_that_do_not_average(tmp_path):
    """Frozen norms use their own statistics."""
    model = Model()
    model.layers[1].train = lambda mode=True: nn.BatchNorm1d.train(model.layers[1], False)
    start(tmp_path, loader(1), model)
