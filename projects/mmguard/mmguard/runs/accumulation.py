"""Gradients that a training has accumulated, but not yet applied, are part of its checkpoints."""

from mmengine.dist import all_gather_object, all_reduce, get_world_size
from mmengine.hooks import CheckpointHook, Hook
from mmengine.logging import print_log
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.runner import EpochBasedTrainLoop, FlexibleRunner, Runner
from torch import Tensor, nn, zeros_like

from ..errors import CheckpointError, InputError, warn
from .checkpoints import accumulative_counts, unwrapped, writes_at_this_step

#: key of a checkpoint: the gradients, by the names of their parameters
GRADIENTS = 'accumulated_gradients'


class AccumulationHook(Hook):
    """Saves and restores the gradients of ``accumulative_counts``, so that a resumed training equals one in one go.

    A checkpoint may lie between two steps of the optimizer, as at the end of an epoch whose number of batches
    ``accumulative_counts`` does not divide. MMEngine loses the gradients since the last step.

    Each of several processes has the gradients of its own images until the optimizer's next step. They are averaged
    before a checkpoint, also in memory: so a training that goes on computes the same as one that is resumed, and a
    training can be resumed with another number of processes.

    Raises:
        CheckpointError: if gradients of a checkpoint do not fit the model.
        InputError: if checkpoints of a sharded training would lie between two steps. They have no such gradients.
    """

    def __init__(self) -> None:
        self.loaded: dict[str, Tensor] = {}

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        gradients = checkpoint.pop(GRADIENTS, {}) if runner._resume else {}
        own = dict(unwrapped(runner.model).named_parameters())
        if not isinstance(gradients, dict):
            raise CheckpointError(f'{runner._load_from} cannot be resumed: its {GRADIENTS} are not tensors by name')
        for name, value in gradients.items():
            if not isinstance(value, Tensor) or name not in own or value.shape != own[name].shape:
                raise CheckpointError(
                    f'{runner._load_from} is the state of another training: its gradient of {name} fits no parameter'
                )
        self.loaded = gradients

    def before_train(self, runner: Runner) -> None:
        if isinstance(runner, FlexibleRunner):
            _check_sharded(runner)
            return
        gradients, self.loaded = self.loaded, {}
        accumulating = _accumulating(runner)
        for name in gradients.keys() & accumulating:
            accumulating[name].grad = gradients[name].to(accumulating[name])
        if gradients:
            print_log('The gradients since the last step of the optimizer are those of the checkpoint.', 'current')
        elif accumulating:
            warn(
                f'{runner._load_from} lies between two steps of the optimizer and has no gradients: those since the '
                'last step are lost, so the weights will differ a little from those of an uninterrupted training'
            )

    def after_train_iter(self, runner: Runner, *args, **kwargs) -> None:
        if writes_at_this_step(runner):
            _average(runner)

    def after_train_epoch(self, runner: Runner) -> None:
        _average(runner)

    def before_val_epoch(self, runner: Runner) -> None:
        _average(runner)  # A checkpoint is written for the best scores.

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        gradients = {name: value.grad.cpu() for name, value in _accumulating(runner).items() if value.grad is not None}
        if gradients and 'optimizer' in checkpoint:
            checkpoint[GRADIENTS] = gradients


def _accumulating(runner: Runner) -> dict[str, nn.Parameter]:
    """The parameters, by name, of the optimizers that are between two steps; none in a validation alone."""
    wrapper = runner.optim_wrapper
    if isinstance(runner, FlexibleRunner) or not isinstance(wrapper, OptimWrapper):
        return {}
    wrappers = wrapper.values() if isinstance(wrapper, OptimWrapperDict) else [wrapper]
    between = [each for each in wrappers if not each.should_update()]
    own = {id(value) for each in between for group in each.optimizer.param_groups for value in group['params']}
    return {name: value for name, value in unwrapped(runner.model).named_parameters() if id(value) in own}


def _average(runner: Runner) -> None:
    """Give all processes the mean of their accumulated gradients. One that a process does not have counts as 0."""
    accumulating = _accumulating(runner)
    if not accumulating or get_world_size() == 1:
        return
    here = [name for name, value in accumulating.items() if value.grad is not None]
    anywhere = set().union(*all_gather_object(here))
    for name, value in accumulating.items():
        if name in anywhere:
            value.grad = zeros_like(value) if value.grad is None else value.grad
            all_reduce(value.grad, 'mean')


def _check_sharded(runner: Runner) -> None:
    counts, loop = accumulative_counts(runner), runner.train_loop
    epoch = len(loop.dataloader) if isinstance(loop, EpochBasedTrainLoop) else 1
    for hook in runner.hooks:
        if isinstance(hook, CheckpointHook):
            steps = hook.interval * (epoch if hook.by_epoch else 1)
            if steps > 0 and steps % counts:
                raise InputError(
                    f'a checkpoint of sharded training every {steps} steps would lose accumulated gradients: set the '
                    f'interval of {type(hook).__name__} so that these are a multiple of accumulative_counts={counts}'
                )
