"""Batches of one image, in which a batch norm of a pooled map has nothing to average over."""

from functools import partial

from mmengine.dataset import InfiniteSampler
from mmengine.dist import get_world_size
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader
from torch.utils.hooks import RemovableHandle

from ..errors import InputError
from .checkpoints import unwrapped


class BatchNormHook(Hook):
    """Looks in the first step for batch norms that cannot train with one image, see :func:`watch_norms`."""

    def before_train(self, runner: Runner) -> None:
        self._handles = watch_norms(unwrapped(runner.model), runner.train_loop.dataloader)

    def after_train_iter(self, runner: Runner, *args, **kwargs) -> None:
        while self._handles:
            self._handles.pop().remove()


def watch_norms(model: nn.Module, dataloader: DataLoader) -> list[RemovableHandle]:
    """Refuse batch norms that get one value per channel from an image, as after a global pooling, if there are batches
    of one image: all, or the last one of an epoch. Torch would end the training with an error of its own there.

    The norms are looked at when they are called: a config does not show the sizes of maps.

    Returns:
        The handles that remove this from the model.

    Raises:
        InputError: in the forward pass, naming the norm and what to set.
    """
    size, least = batch_sizes(dataloader)

    def look(name: str, module: nn.Module, inputs: tuple[Tensor]) -> None:
        if module.training and inputs[0].numel() == size * inputs[0].size(1):
            which, setting = ('each', 'batch_size=2') if size == 1 else ('the last', 'drop_last=True')
            raise InputError(
                f'{name} is a batch norm with one value per channel and image, and {which} batch of an epoch has one '
                f"image: set train_dataloader.{setting}, or another norm, as norm_cfg=dict(type='GN', num_groups=32)"
            )

    return [
        module.register_forward_pre_hook(partial(look, name))
        for name, module in (model.named_modules() if least == 1 else ())
        if isinstance(module, _BatchNorm) and not (isinstance(module, nn.SyncBatchNorm) and get_world_size() > 1)
    ]


def batch_sizes(dataloader: DataLoader) -> tuple[int | None, int | None]:
    """The numbers of images of a dataloader's batches and of its smallest batch; None where they are not known."""
    batches = dataloader.batch_sampler  # torch's, or MMDetection's by aspect ratio
    sampler, size = getattr(batches, 'sampler', None), getattr(batches, 'batch_size', None)
    if not isinstance(size, int) or getattr(batches, 'drop_last', False) or isinstance(sampler, InfiniteSampler):
        return size, size
    return size, (hasattr(sampler, '__len__') and len(sampler) % size) or size
