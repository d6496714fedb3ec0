"""Parameters that no gradient reaches: one process leaves them untrained, several end in the second step."""

import functools
import re
from typing import Any

from mmengine.hooks import Hook
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.runner import FlexibleRunner, Runner
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ..checks.channels import only_read_maps
from ..errors import InputError, warn
from .checkpoints import unwrapped

#: what DistributedDataParallel says one step after it waited for a gradient in vain
UNFINISHED = re.compile(r'Expected to have finished reduction in the prior iteration.*?(?:rank \d+: ([\d ]+)|$)', re.S)


class UnusedParameterHook(Hook):
    """Looks for parameters without a gradient before the first step of the optimizer.

    Such are the output norms of a backbone whose maps no neck or head reads. DistributedDataParallel waits for a
    gradient of each parameter, unless ``find_unused_parameters`` is set, so the training is refused. One process
    trains without them, and the log says so.

    The gradients of the first batch show this for any model. A config does not: each neck and head chooses its maps in
    a way of its own, and losses may leave out parts too.

    Raises:
        InputError: naming parameters, and what to set.
    """

    def before_train(self, runner: Runner) -> None:
        wrapper = runner.optim_wrapper
        if isinstance(wrapper, OptimWrapper) and not isinstance(runner, FlexibleRunner):
            for each in wrapper.values() if isinstance(wrapper, OptimWrapperDict) else [wrapper]:
                _look_before_first_step(runner, each.optimizer)


def _look_before_first_step(runner: Runner, optimizer: Optimizer) -> None:
    # Not by register_step_pre_hook: older releases of torch call no such hook once something was compiled.
    step = optimizer.step

    @functools.wraps(step)  # with the mark by which a schedule knows that it counts these steps
    def first(*args: Any, **kwargs: Any) -> Any:
        optimizer.step = step
        _look(runner, optimizer)
        return step(*args, **kwargs)

    optimizer.step = first


def _look(runner: Runner, optimizer: Optimizer) -> None:
    own = {id(value) for group in optimizer.param_groups for value in group['params']}
    named = {name: value for name, value in unwrapped(runner.model).named_parameters() if id(value) in own}
    unused = {name: value for name, value in named.items() if value.requires_grad and value.grad is None}
    parallel = [module for module in runner.model.modules() if isinstance(module, DistributedDataParallel)]
    waiting = {
        id(value)
        for module in parallel
        if not module.find_unused_parameters and not module.static_graph
        for value in module.parameters()
    }
    if waiting & {id(value) for value in unused.values()}:
        raise InputError(unused_sentence(runner, list(unused)))
    if unused and not runner.cfg.get('find_unused_parameters'):
        settings = only_read_maps(runner.cfg.get('model'), unwrapped(runner.model))
        advice = f'; if nothing reads their maps, set {settings}' if settings else ''
        warn(f'{_listed(list(unused))} in the first step, so they are not trained{advice}')


def unused_sentence(runner: Runner, names: list[str]) -> str:
    """What is said of a training in several processes with parameters that have no gradient."""
    settings = only_read_maps(runner.cfg.get('model'), unwrapped(runner.model))
    advice = f'set {settings}' if settings else 'leave out or freeze what nothing reads'
    return (
        f'{_listed(names)}, but training in several processes waits for a gradient of each parameter: {advice}, or set '
        'find_unused_parameters=True'
    )


def _listed(names: list[str]) -> str:
    if not names:
        return 'a parameter has no gradient'
    more = f' and {len(names) - 3} more' if len(names) > 3 else ''
    return f'no gradient reaches {", ".join(names[:3])}{more}'


def unfinished(runner: Runner, error: Exception) -> list[str] | None:
    """The parameters that DistributedDataParallel names in an error, by their numbers; None for other errors."""
    match = UNFINISHED.search(str(error))
    if match is None:
        return None
    names = [name for name, value in unwrapped(runner.model).named_parameters() if value.requires_grad]
    return [names[int(number)] for number in (match[1] or '').split() if int(number) < len(names)]
