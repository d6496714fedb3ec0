"""Batches of one image, in which a batch norm of a pooled map has nothing to average over."""

from mmengine.dataset import InfiniteSampler
from mmengine.dist import get_world_size
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader

from ..errors import InputError
from .checkpoints import unwrapped


class BatchNormHook(Hook):
    """Looks in the first step for batch norms that get one value per channel from an image, as after a global pooling.

    They cannot train with one image. Torch raises an error of its own then, for the last batch of an epoch only at the
    end of the epoch. Any model is looked at: a config does not show the sizes of maps.

    Raises:
        InputError: naming the norm and what to set, if each batch, or the last one of an epoch, has one image.
    """

    def before_train(self, runner: Runner) -> None:
        size, least = batch_sizes(runner.train_loop.dataloader)
        self._handles = []
        for name, module in unwrapped(runner.model).named_modules() if least == 1 else ():
            if isinstance(module, _BatchNorm) and not (isinstance(module, nn.SyncBatchNorm) and get_world_size() > 1):

                def look(module: nn.Module, inputs: tuple[Tensor], name: str = name) -> None:
                    if module.training and inputs[0].numel() == size * inputs[0].size(1):
                        raise InputError(
                            f'{name} is a batch norm with one value per channel and image, and '
                            + ('each batch has one image' if size == 1 else 'the last batch of an epoch has one image')
                            + ': set train_dataloader.'
                            + ('batch_size=2' if size == 1 else 'drop_last=True')
                            + ", or another norm, such as norm_cfg=dict(type='GN', num_groups=32)"
                        )

                self._handles.append(module.register_forward_pre_hook(look))

    def after_train_iter(self, runner: Runner, *args, **kwargs) -> None:
        while self._handles:
            self._handles.pop().remove()


def batch_sizes(dataloader: DataLoader) -> tuple[int | None, int | None]:
    """The numbers of images of a dataloader's batches and of its smallest batch; None where they are not known."""
    batches = dataloader.batch_sampler  # torch's, or MMDetection's by aspect ratio
    sampler, size = getattr(batches, 'sampler', None), getattr(batches, 'batch_size', None)
    if not isinstance(size, int) or getattr(batches, 'drop_last', False) or isinstance(sampler, InfiniteSampler):
        return size, size
    return size, (hasattr(sampler, '__len__') and len(sampler) % size) or size
