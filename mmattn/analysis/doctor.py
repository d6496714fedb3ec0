"""Why a model does not learn: a batch of its training is looked at, learned by heart, and the likely cause is named."""

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from mmengine.config import Config
from mmengine.optim import OptimWrapper
from mmengine.runner import CheckpointLoader, Runner
from torch import Tensor, nn

from ..checks.config_types import find_type
from ..checks.datasets import check_built_datasets, check_files
from ..checks.pixels import Pixels, check_pixels, pixels_of
from ..errors import InputError
from ..runs.configs import check_pretrained
from ..weights import StrictModule, is_pretrained, weights_in

#: ImageNet's mean of the channels red, green, blue, between 0 and 255, which published weights expect
MEAN = (123.675, 116.28, 103.53)
#: of a channel of normalised photographs: range of the standard deviation, and largest distance of the mean from 0
DEVIATION, OFFSET = (0.1, 6.0), 4.0
#: range of the change in the first step, as a part of the norm of the backbone's weights: with less, 50 steps learn too
#: little; more destroys pretrained weights
CHANGE = (1e-3, 0.1)
#: A batch is learned by heart if its loss falls below this part of the first loss.
LEARNED = 0.8


@dataclass
class Stage:
    """What is measured in a part of the model, in the first step."""

    gradient: float = 0.0  #: norm of the gradient
    weight: float = 0.0  #: norm of the weights
    change: float = 0.0  #: norm of what the first step changes, divided by that of the weights
    trained: int = 0  #: parameters that are trained
    frozen: int = 0


@dataclass
class Findings:
    """What :func:`examine` finds.

    Attributes:
        images: mean and standard deviation of each channel of the normalised images of the batch.
        maps: standard deviation of each map of the backbone, before the first step.
        stages: what is measured per part of the model.
        rates: rate and weight decay -> parameters that have them.
        weights: file of the weights that the backbone starts from; '' if there is none.
        used: tensors of that file that the model starts with, and all of its tensors, see :func:`values`.
        taken: tensors of the backbone that are from that file, and all of its tensors.
        losses: of the steps on one batch.
        causes: sentences, the likeliest first.
    """

    images: list[tuple[float, float]] = field(default_factory=list)
    maps: list[float] = field(default_factory=list)
    stages: dict[str, Stage] = field(default_factory=dict)
    rates: dict[tuple[float, float], int] = field(default_factory=dict)
    weights: str = ''
    used: tuple[int, int] = (0, 0)
    taken: tuple[int, int] = (0, 0)
    losses: list[float] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)


def examine(cfg: Config, steps: int = 50) -> Findings:
    """Learn the first batch of a training by heart, without its schedule of rates, and look for what is wrong.

    Args:
        cfg: from :func:`mmattn.runs.configs.load_config`. Nothing is written but MMEngine's log in ``cfg.work_dir``.

    Raises:
        InputError: if the config cannot train a model with a backbone, files are missing, or the datasets do not fit
            the model.
    """
    if 'backbone' not in cfg.model or cfg.get('optim_wrapper') is None:
        raise InputError('the doctor needs a config with model.backbone and optim_wrapper')
    check_files(cfg, 'train')
    check_pixels(cfg)
    check_pretrained(cfg)
    found = Findings()
    found.causes += [*missing_imports(cfg)]
    runner = Runner.from_cfg(cfg)
    model = runner.model
    pixels = pixels_of(cfg, model.data_preprocessor, 'train')
    found.causes += [*channel_order(pixels)]
    check_built_datasets(runner)
    found.weights = start(runner, cfg)
    if found.weights:
        found.used, found.taken = used_tensors(model, found.weights)
        found.causes += [*weights_not_used(found, model.backbone)]
    runner.optim_wrapper = runner.build_optim_wrapper(runner.optim_wrapper)
    found.rates = rates(runner)
    model.train()
    batch = model.data_preprocessor(next(iter(runner.train_dataloader)), True)
    found.images = channel_statistics(batch['inputs'])
    if len(pixels.switches) < 2:
        found.causes += [*images_not_normalised(found.images)]
    with recorded_maps(model.backbone) as maps:
        learn(runner, batch, steps, found)
    found.maps = maps
    found.causes += [*nothing_trained(found), *no_gradient(found), *rate_does_not_fit(found)]
    if cfg.get('default_scope') != 'mmpretrain':
        found.causes += [*no_weights(found)]
    return found


def missing_imports(cfg: Config) -> Iterator[str]:
    """OpenMMLab's own tools import what ``custom_imports`` names, and nothing else."""
    imports = (cfg.get('custom_imports') or {}).get('imports') or []
    kind = find_type(cfg.model.backbone)
    if kind is cfg.model.backbone.type:  # a class, which the config itself has imported
        return
    if getattr(kind, '__module__', '').startswith('mmattn') and not any(
        str(name).split('.')[0] == 'mmattn' for name in ([imports] if isinstance(imports, str) else imports)
    ):
        yield (
            f"custom_imports does not name mmattn, so OpenMMLab's own tools do not know {cfg.model.backbone.type}: set "
            "custom_imports=dict(imports=['mmattn'])"
        )


def channel_order(pixels: Pixels) -> Iterator[str]:
    """Images are read as BGR. What normalises swaps the channels first."""
    mean = pixels.mean
    if len(pixels.switches) > 1:
        yield f'images are normalised twice, see {" and ".join(pixels.switches)}: leave one of both out'
    elif len(mean) == 3 and mean[0] != mean[2] and pixels.is_rgb != (mean[0] > mean[2]):
        order = 'blue, green, red' if pixels.is_rgb else 'red, green, blue'
        yield (
            f'{pixels.switches[0]} is {pixels.is_rgb}, but mean and std are in the order {order}: weights of ImageNet '
            f'expect {pixels.switches[0].rpartition(".")[2]}=True and mean={list(MEAN)}'
        )


def start(runner: Runner, cfg: Config) -> str:
    """Give the model its initial weights, and name the file of those of the backbone."""
    runner.model.init_weights()
    runner.load_or_resume()
    init_cfg = cfg.model.backbone.get('init_cfg')
    listed = init_cfg if isinstance(init_cfg, list) else [init_cfg]
    file = next((each['checkpoint'] for each in listed if each and is_pretrained(each)), None)
    file = cfg.get('load_from') or file or cfg.model.get('pretrained')
    return str(file or '')


def used_tensors(model: nn.Module, file: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Of the tensors in a file, how many a model has, and of how many; the same of its backbone, from the file."""
    contents, _ = weights_in(CheckpointLoader.load_checkpoint(file, map_location='cpu'))
    given, own, of_backbone = (values(part) for part in (contents, model.state_dict(), model.backbone.state_dict()))
    return (
        (sum(value in own for value in given), len(given)),
        (sum(value in given for value in of_backbone), len(of_backbone)),
    )


def values(tensors: dict[str, object]) -> list[tuple[int, float, float]]:
    """What a tensor keeps when it gets another name or order: its size, its smallest and its largest number.

    Tensors of one value are left out, since many models have them, and so are those that are no floats.
    """
    floats = [each.float() for each in tensors.values() if isinstance(each, Tensor) and each.is_floating_point()]
    found = [(each.numel(), float(each.min()), float(each.max())) for each in floats if each.numel()]
    return [(size, low, high) for size, low, high in found if low < high]


def weights_not_used(found: Findings, backbone: nn.Module) -> Iterator[str]:
    """MMEngine loads what has the right name and shape. Backbones of mmattn refuse all other weights themselves."""
    used, count = found.taken
    if 2 * used < count and not isinstance(backbone, StrictModule):
        yield (
            f'only {used} of the {count} tensors of the backbone are from {found.weights}, since the others there have '
            'other names or shapes: give the weights of this backbone'
        )


def rates(runner: Runner) -> dict[tuple[float, float], int]:
    """Rate and weight decay -> the number of parameters that have them."""
    found = defaultdict(int)
    for group in runner.optim_wrapper.param_groups:
        number = sum(parameter.numel() for parameter in group['params'] if parameter.requires_grad)
        found[group['lr'], group.get('weight_decay', 0.0)] += number
    return {key: number for key, number in sorted(found.items(), reverse=True) if number}


def channel_statistics(images: Tensor | list[Tensor]) -> list[tuple[float, float]]:
    """Mean and standard deviation of each channel of (B, C, H, W), or of a list of (C, H, W)."""
    pixels = torch.cat([image.float().flatten(1) for image in images], 1)
    return [(float(channel.mean()), float(channel.std())) for channel in pixels]


def images_not_normalised(channels: list[tuple[float, float]]) -> Iterator[str]:
    """By the statistics of their channels."""
    wrong = [(mean, std) for mean, std in channels if not DEVIATION[0] < std < DEVIATION[1] or not abs(mean) < OFFSET]
    if wrong:
        mean, std = wrong[0]
        yield (
            f'the images are not normalised: after the data preprocessor, a channel has mean {mean:.3g} and standard '
            f'deviation {std:.3g} instead of about 0 and 1: '
        ) + (
            f'set mean={list(MEAN)} and std=[58.395, 57.12, 57.375] of the data preprocessor, which are for pixels '
            'from 0 to 255'
            if len(channels) == 3
            else f'set mean and std of what normalises, {len(channels)} numbers each, to those of your images'
        )


@contextmanager
def recorded_maps(backbone: nn.Module) -> Iterator[list[float]]:
    """A list that gets the standard deviation of each of the backbone's maps in the first pass of the block."""
    deviations: list[float] = []

    def record(module: nn.Module, inputs: tuple, maps: Tensor | tuple[Tensor, ...]) -> None:
        if not deviations:
            deviations.extend(float(each.detach().float().std()) for each in _tensors(maps))

    with backbone.register_forward_hook(record):
        yield deviations


def _tensors(maps: Tensor | tuple | list) -> list[Tensor]:
    return [maps] if isinstance(maps, Tensor) else list(maps)


def learn(runner: Runner, batch: dict, steps: int, found: Findings) -> None:
    """Train on one batch, and measure the parts of the model in the first step.

    Each batch is a step, also where the config accumulates gradients. A step of mixed precision that is left out, since
    its scaled gradients were too large, is measured again.
    """
    model, optimizer, measured = runner.model, runner.optim_wrapper, False
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for _ in range(steps):
        with optimizer.optim_context(model):
            losses = model(**batch, mode='loss')
            loss, _ = model.parse_losses(losses)
        found.losses.append(float(loss.detach()))
        if not loss.requires_grad:  # No parameter does, either.
            found.stages = parts(model, before, {})
            break
        optimizer.backward(loss)
        scale = loss_scale(optimizer)
        gradients = {name: x.grad for name, x in model.named_parameters() if x.grad is not None and not measured}
        gradients = {name: float(grad.norm()) / scale for name, grad in gradients.items()}
        optimizer.step()
        optimizer.zero_grad()
        if not measured:
            found.stages = parts(model, before, gradients)
            measured = loss_scale(optimizer) >= scale
        if not torch.isfinite(loss):
            break


def loss_scale(optimizer: OptimWrapper) -> float:
    """What mixed precision multiplies loss and gradients by; it falls after a step that is left out."""
    return optimizer.loss_scaler.get_scale() if hasattr(optimizer, 'loss_scaler') else 1.0


def parts(model: nn.Module, before: dict[str, Tensor], gradients: dict[str, float]) -> dict[str, Stage]:
    """What the first step does, per part: the stages of the backbone, its other modules, neck and heads."""
    stages: dict[str, Stage] = {}
    squares = defaultdict(lambda: [0.0, 0.0, 0.0])
    for name, parameter in model.named_parameters():
        part = part_of(name)
        stage = stages.setdefault(part, Stage())
        if parameter.requires_grad:
            stage.trained += parameter.numel()
        else:
            stage.frozen += parameter.numel()
        old = before[name]
        for i, norm in enumerate(
            (gradients.get(name, 0.0), float(old.norm()), float((parameter.detach() - old).norm()))
        ):
            squares[part][i] += norm**2
    for part, (gradient, weight, change) in squares.items():
        stages[part].gradient, stages[part].weight = gradient**0.5, weight**0.5
        stages[part].change = (change / weight) ** 0.5 if weight else 0.0
    return stages


def part_of(name: str) -> str:
    """The part of a model that a parameter belongs to: "backbone.layers.2", "neck", "bbox_head"."""
    first, _, rest = name.partition('.')
    if first != 'backbone':
        return first
    match = re.match(r'\D+?\.\d+(?=\.)|\w+', rest)
    return f'backbone.{match[0]}' if match else first


def nothing_trained(found: Findings) -> Iterator[str]:
    """A frozen backbone with weights is no mistake."""
    rated = sum(number for (rate, _), number in found.rates.items() if rate > 0)
    backbone = [stage for part, stage in found.stages.items() if part.startswith('backbone')]
    if not rated:
        yield 'no parameter is trained: all have requires_grad=False or the rate 0; see frozen_stages and paramwise_cfg'
    elif not sum(stage.change for stage in backbone) and not found.weights:
        yield (
            'the backbone is not trained, and starts from random weights: set frozen_stages=-1 and no lr_mult=0 for '
            'it, or give it weights in init_cfg'
        )


def no_gradient(found: Findings) -> Iterator[str]:
    """Parts that the loss does not reach. If it reaches none, another sentence says so."""
    silent = [part for part, stage in found.stages.items() if stage.trained and not stage.gradient > 0]
    if silent and len(silent) < len(found.stages):
        yield f'no gradient reaches {", ".join(silent)}: the loss does not depend on them, or is not finite'


def rate_does_not_fit(found: Findings) -> Iterator[str]:
    """By what a step changes, and by the loss on one batch."""
    first, last = found.losses[0], found.losses[-1]
    course = f'the loss on one batch goes from {first:.3g} to {last:.3g} in {len(found.losses)} steps'
    change = max((stage.change for part, stage in found.stages.items() if part.startswith('backbone')), default=0.0)
    percent = f'the first step changes the weights by {100 * change:.2g} % of their norm'
    if change > CHANGE[1] or not math.isfinite(last):
        yield f'the rate is too high: {percent}, and {course}: divide optim_wrapper.optimizer.lr by 10 to 100'
    elif last < LEARNED * first:
        return
    elif 0 < change < CHANGE[0]:
        yield f'the rate is too low: {percent}, and {course}: multiply optim_wrapper.optimizer.lr by 10 to 100'
    else:
        yield f'{course}: the model cannot learn it by heart, so look at images and labels with tools/browse.py'


def no_weights(found: Findings) -> Iterator[str]:
    """The last cause: a model without weights learns a batch by heart, too. Classifiers are trained from nothing."""
    if not found.weights:
        yield (
            'the backbone starts from random weights: without those of ImageNet, mAP and mIoU stay near 0 for many '
            "epochs; set init_cfg=dict(type='Pretrained', checkpoint=...) of the backbone"
        )
