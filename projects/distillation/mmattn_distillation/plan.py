"""How far each grafted block is from its old token mixer, and a plan that exchanges them one after the other."""

import inspect
import time
from collections.abc import Callable, Sequence
from statistics import fmean, median

import torch
from mmengine.registry import MODELS
from torch import Tensor, nn

from mmattn.analysis.complexity import count_operations
from mmattn.backbones import ViTFrame
from mmattn.backbones.stages import Stages
from mmattn.layers import token_mixers_by_stage

#: timed calls of a token mixer, after one that is not timed
CALLS = 5


@torch.no_grad()
def sensitivity(network: nn.Module, images: Sequence[Tensor], groups: Sequence[list[str]], measure: str) -> dict:
    """What it means to exchange the token mixers of each group of blocks by itself, and of all groups in a greedy
    order.

    Each step of the order exchanges the group that adds least to the difference of the maps from the source's, per cost
    that it saves. If some group saves nothing, the saved costs do not count. The maps are computed again for each step,
    as errors add up.

    Args:
        network: a ``BlockDistiller`` in evaluation mode, whose blocks have learned.
        images: (B, 3, H, W) each, normalised as the backbone takes them.
        groups: names of blocks.
        measure: of the cost of the first image: 'operations' for multiply-adds, 'time' for seconds.

    Returns:
        ``cost`` of the source; ``exchanges``: of each group its ``blocks``, the ``error`` of its output, the ``change``
        of the backbone's maps, and what it ``saves``; ``steps``: ``blocks`` of a step, and ``cost`` and ``change``
        after it. Errors and changes are norms of differences, divided by norms of what the source gives.
    """
    source, measured = network.source, dict(operations=count_operations, time=_seconds)[measure]
    maps = [source(x) for x in images]

    def change(blocks: Sequence[str]) -> float:
        with network.grafted(blocks):
            return fmean(_differs(*pair) for x, olds in zip(images, maps) for pair in zip(source(x), olds))

    errors, saves = {name: [] for group in groups for name in group}, {}
    for x in images:
        with network.recording() as recorded:
            source(x)
        for name, pair in network.pairs(recorded).items():
            errors[name].append(_differs(*pair))
            if name not in saves:
                inputs, old = recorded[name][0], network.operators(name)[0]
                saves[name] = measured(lambda: old(*inputs)) - measured(lambda: network.mixed(name, inputs))  # noqa: B023
    exchanges = [
        dict(
            blocks=group,
            error=fmean(error for name in group for error in errors[name]),
            change=change(group),
            saves=sum(saves[name] for name in group),
        )
        for group in groups
    ]
    found = dict(measure=measure, cost=measured(lambda: source(images[0])), exchanges=exchanges, steps=[])
    left, blocks, cost, before = list(exchanges), [], found['cost'], 0.0
    all_save = all(each['saves'] > 0 for each in exchanges)
    while left:
        changes = [change([*blocks, *each['blocks']]) for each in left]
        gains = [(after - before) / (each['saves'] if all_save else 1) for each, after in zip(left, changes)]
        number = gains.index(min(gains))
        best, before = left.pop(number), changes[number]
        blocks, cost = [*blocks, *best['blocks']], cost - best['saves']
        found['steps'].append(dict(blocks=best['blocks'], cost=cost, change=before))
    return found


def steps_within(found: dict, budget: float) -> int:
    """How many steps of :func:`sensitivity` to take for a budget of the whole cost.

    If the source costs more than the budget: the fewest steps that reach it. Otherwise: the most steps that stay within
    it. If no number of steps does: all.
    """
    costs = [found['cost'], *(step['cost'] for step in found['steps'])]
    kept = [number for number, cost in enumerate(costs) if cost <= budget]
    return (kept[0] if costs[0] > budget else kept[-1]) if kept else len(found['steps'])


def groups_of(config: dict, blocks: Sequence[str]) -> list[list[str]]:
    """The blocks that the config of a backbone can exchange by themselves: each one, or those of a stage."""
    place = {name: name if _takes_token_mixers(config) else name.rpartition('.')[0] for name in blocks}
    return [[name for name in blocks if place[name] == each] for each in dict.fromkeys(place.values())]


def settings_of(source: dict, graft: dict, blocks: Sequence[str]) -> dict[str, object] | None:
    """The argument of a backbone with the token mixers of ``graft`` in some blocks, and those of ``source`` elsewhere.

    Args:
        source, graft: configs of backbones.
        blocks: names of blocks.

    Returns:
        the argument ``attention``, and where plain attention is left those of the prefix tokens that ``graft`` is
        without; None if the blocks of a class have no such argument.
    """
    if not all(map(_takes_token_mixers, (source, graft))):
        return None
    cls = MODELS.get(graft['type'])
    old, new = (_value(config, 'attention') for config in (source, graft))
    arch = cls.resolve_arch(_value(graft, 'arch'))
    if issubclass(cls, ViTFrame):
        pairs = zip(*(each if isinstance(each, (list, tuple)) else [each] * arch['depth'] for each in (old, new)))
        settings = dict(attention=[pair[f'blocks.{i}' in blocks] for i, pair in enumerate(pairs)])
        without = [] if len(blocks) == arch['depth'] else [key for key in ('class_token', 'registers') if key in graft]
        if without:
            with torch.device('meta'):
                prefix = MODELS.build(source).prefix
            registers = 0 if prefix.reg_token is None else prefix.reg_token.shape[1]
            tokens = dict(class_token=prefix.cls_token is not None, registers=registers)
            settings |= {key: tokens[key] for key in without}
        return settings
    depths, token_mixers = arch['depths'], []
    both = (token_mixers_by_stage(each, depths, [cls.plain] * len(depths)) for each in (old, new))
    for i, pair in enumerate(zip(*both)):
        # Each block keeps its number among those with its token mixer, and with it the shift of its windows.
        in_turn = [pair[f'{cls.stage_list}.{i}.blocks.{j}' in blocks] for j in range(depths[i])]
        token_mixers.append([dict(each[j % len(each)], block=j // len(each)) for j, each in enumerate(in_turn)])
    return dict(attention=token_mixers)


def _value(config: dict, argument: str) -> object:
    """The value of a backbone's argument, which may be the default."""
    return config.get(argument, inspect.signature(MODELS.get(config['type'])).parameters[argument].default)


def _takes_token_mixers(config: dict) -> bool:
    """Whether the argument ``attention`` of a backbone names the token mixer of each block."""
    cls = MODELS.get(config['type'])
    return issubclass(cls, (ViTFrame, Stages)) and 'attention' in inspect.signature(cls).parameters


def _seconds(call: Callable[[], object]) -> float:
    """The median time of a call."""
    found = []
    for _ in range(1 + CALLS):
        start = time.perf_counter()
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return median(found[1:])


def _differs(new: Tensor, old: Tensor) -> float:
    return float((new - old).norm() / old.norm().clamp(min=1e-12))
