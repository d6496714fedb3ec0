"""A training that diverges is stopped, and none of its checkpoints has a NaN or an infinity."""

from collections.abc import Iterable

import torch
from mmengine.device import get_device
from mmengine.dist import all_gather_object, all_reduce
from mmengine.hooks import EMAHook, Hook
from mmengine.optim import AmpOptimWrapper, OptimWrapperDict
from mmengine.runner import FlexibleRunner, Runner
from torch import Tensor

from ..errors import InputError
from ..weights.files import is_mask
from .checkpoints import unwrapped, writes_at_this_step

#: steps in a row with a loss that is not finite, after which a training is stopped
PATIENCE = 10
#: the same in mixed precision. It skips such steps, so the weights stay finite, but it does not do so for long: each
#: one halves the scale of the losses.
PATIENCE_AMP = 100


class DivergedError(InputError):
    """A training has diverged."""


class DivergenceHook(Hook):
    """Stops a training in all processes if its loss stays NaN or infinite, or if its weights are.

    The weights, their averages and the state of the optimizer are checked before each evaluation and before hooks for
    checkpoints do anything: a checkpoint with such values is not written, and no older one is removed for it.
    MMDetection's ``CheckInvalidLossHook`` looks at the loss of every 50th step, of one process.

    Raises:
        DivergedError: naming the step, and what is not finite.
    """

    def __init__(self) -> None:
        self.steps: int | Tensor = 0

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: object = None, outputs: dict | None = None
    ) -> None:
        losses = [
            torch.as_tensor(value, device=get_device()) for name, value in (outputs or {}).items() if 'loss' in name
        ]
        # Tensors, so that no step waits for the GPU.
        finite = torch.stack([loss.detach().isfinite().all() for loss in losses]).all() if losses else True
        self.steps = torch.where(torch.as_tensor(finite), 0, self.steps + 1)
        if self.every_n_train_iters(runner, PATIENCE):
            steps = self.steps.clone()
            all_reduce(steps, 'max')
            if steps >= (PATIENCE_AMP if _is_amp(runner) else PATIENCE):
                _stop(runner.iter + 1, f'the loss was NaN or infinite in the last {steps} steps')
        if writes_at_this_step(runner):
            _check_state(runner, runner.iter + 1)

    def after_train_epoch(self, runner: Runner) -> None:
        _check_state(runner, runner.iter)

    def before_val_epoch(self, runner: Runner) -> None:
        _check_state(runner, runner.iter)


def _is_amp(runner: Runner) -> bool:
    wrapper = runner.optim_wrapper
    wrappers = wrapper.values() if isinstance(wrapper, OptimWrapperDict) else [wrapper]
    return any(isinstance(each, AmpOptimWrapper) for each in wrappers)


def _check_state(runner: Runner, step: int) -> None:
    model, wrapper = unwrapped(runner.model), runner.optim_wrapper
    wrappers = wrapper if isinstance(wrapper, OptimWrapperDict) else {'the optimizer': wrapper}
    state = {
        # Each process of a sharded training has its part of the tensors, and would gather all of them here.
        '': dict(model.named_parameters()) if isinstance(runner, FlexibleRunner) else model.state_dict(),
        'the averaged model': [hook.ema_model.state_dict() for hook in runner.hooks if isinstance(hook, EMAHook)],
        **{name: list(each.optimizer.state.values()) for name, each in wrappers.items()},
    }
    broken = next(filter(None, all_gather_object(first_broken(state))), '')
    if broken:
        _stop(step, f'{broken} has a NaN or an infinity')


def _stop(step: int, reason: str) -> None:
    raise DivergedError(
        f'the training has diverged: {reason}, up to step {step}; the checkpoints before it are finite: set '
        'optim_wrapper.clip_grad=dict(max_norm=1) and continue with --resume, or start a new training with a lower '
        'learning rate'
    )


def first_broken(state: object, name: str = '') -> str:
    """The name of the first tensor in dicts and lists that has a NaN or an infinity; '' if none has.

    The name has the keys that lead to the tensor, as in "the optimizer exp_avg".
    """
    if isinstance(state, Tensor):
        inexact = state.is_floating_point() or state.is_complex()
        broken = inexact and not state.isfinite().all() and not (is_mask(name) and not state.isnan().any())
        return name if broken else ''
    parts: Iterable = ()
    if isinstance(state, dict):
        parts = ((f'{name} {key}'.strip(), value) for key, value in state.items())
    elif isinstance(state, (list, tuple)):
        parts = ((name, value) for value in state)
    return next(filter(None, (first_broken(value, part) for part, value in parts)), '')
