"""Why a model does not learn: a batch of its training is looked at, learned by heart, and the likely cause is named."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from statistics import median

import torch
from mmengine.config import Config
from mmengine.optim import OptimWrapper
from mmengine.runner import CheckpointLoader, EpochBasedTrainLoop, Runner
from torch import Tensor, nn

from .checks.config_types import find_type, loads_strictly, nested
from .checks.datasets import check_built_datasets, check_files, ignored_labels, inner_datasets
from .checks.pixels import Pixels, check_pixels, other_normalisation, pixels_of
from .errors import InputError
from .packages import PACKAGES
from .runs.batches import watch_norms
from .runs.configs import check_pretrained
from .weights import first_names, is_pretrained, weights_in

#: ImageNet's mean of the channels red, green, blue, between 0 and 255, which published weights expect
MEAN = (123.675, 116.28, 103.53)
#: of a channel of normalised photographs: range of the standard deviation, and largest distance of the mean from 0
DEVIATION, OFFSET = (0.1, 6.0), 4.0
#: range of the change in the first step, as a part of the norm of a module's weights: with less, 50 steps learn too
#: little; more destroys the pretrained weights of a backbone
CHANGE = (1e-3, 0.1)
#: the same limit for necks and heads, which start from small random weights
CHANGE_OF_HEADS = 1.0
#: A batch is learned by heart if its loss falls below this part of the first loss.
LEARNED = 0.5
#: the least share of a loss in the sum of all, and of the mean rate of a schedule in the rate of the optimizer
LOSS_SHARE, RATE_SHARE = 1e-3, 0.05
#: With less of the gradient, clipping is the cause of a small change.
CLIPPED = 0.01
#: the largest part of the weights that weight decay takes in a step
DECAY = 0.01
#: so many batches are looked at for labels
BATCHES = 10


@dataclass
class Stage:
    """What is measured in a part of the model, in the first step."""

    gradient: float = 0.0  #: norm of the gradient
    weight: float = 0.0  #: norm of the weights
    change: float = 0.0  #: norm of what the first step changes, divided by that of the weights
    trained: int = 0  #: parameters that need a gradient and have a rate above 0
    frozen: int = 0
    given: bool = False  #: whether it starts from weights of a file


@dataclass
class Findings:
    """What :func:`examine` finds.

    Attributes:
        labels: name of a class -> its boxes, pixels or images in the batch; None if the batch has no such labels.
        images: mean and standard deviation of each channel of the normalised images of the batch.
        maps: standard deviation of each map of the backbone, before the first step.
        stages: what is measured per part of the model.
        rates: rate and weight decay -> parameters that have them.
        weights: file of the weights that the backbone starts from; '' if there is none.
        used: tensors of that file that the model starts with, and all of its tensors, see :func:`values`.
        taken: tensors of the backbone that are from that file, and all of its tensors.
        losses: of the steps on one batch.
        shares: name of a part of the loss -> its share in the losses of all steps.
        clipped: what is left of the norm of the gradient in the first step, after ``clip_grad``.
        causes: sentences, the likeliest first.
        remarks: sentences on what is no mistake.
    """

    labels: dict[str, int] | None = None

    images: list[tuple[float, float]] = field(default_factory=list)
    maps: list[float] = field(default_factory=list)
    stages: dict[str, Stage] = field(default_factory=dict)
    rates: dict[tuple[float, float], int] = field(default_factory=dict)
    weights: str = ''
    used: tuple[int, int] = (0, 0)
    taken: tuple[int, int] = (0, 0)
    losses: list[float] = field(default_factory=list)
    shares: dict[str, float] = field(default_factory=dict)
    clipped: float = 1.0
    causes: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def examine(cfg: Config, steps: int = 50) -> Findings:
    """Learn a batch of a training by heart, without its schedule of rates, and look for what is wrong.

    It is the first batch with a box, or with labels of two classes for a model that does not find boxes.

    Args:
        cfg: from :func:`mmguard.runs.configs.load_config`. Nothing is written but MMEngine's log in ``cfg.work_dir``.

    Raises:
        InputError: if the config cannot train a model with a backbone, files are missing, or the datasets do not fit
            the model, or batches of one image a batch norm.
    """
    if 'backbone' not in cfg.model or cfg.get('optim_wrapper') is None:
        raise InputError('the doctor needs a config with model.backbone and optim_wrapper')
    check_pixels(cfg)
    check_files(cfg, 'train')
    check_pretrained(cfg)
    found = Findings()
    found.causes += [*missing_imports(cfg)]
    runner = Runner.from_cfg(cfg)
    model = runner.model
    pixels = pixels_of(cfg, model.data_preprocessor, 'train')
    found.causes += [*channel_order(pixels)] or [*other_normalisation(cfg, model)]
    check_built_datasets(runner)
    found.weights = start(runner, cfg)
    if found.weights:
        found.used, found.taken = used_tensors(model, found.weights)
        found.causes += [*weights_not_used(found, model.backbone)]
    runner.optim_wrapper = runner.build_optim_wrapper(runner.optim_wrapper)
    found.rates = rates(runner)
    model.train()
    batch = labelled_batch(runner, found)
    batch = model.data_preprocessor(batch, True)
    found.images = channel_statistics(batch['inputs'])
    if len(pixels.switches) < 2:
        found.causes += [*images_not_normalised(found.images)]
    watch_norms(model, runner.train_dataloader)
    with recorded_maps(model.backbone) as maps:
        learn(runner, batch, steps, found)
    found.maps = maps
    for part, stage in found.stages.items():
        stage.given = stage.given or starts_from_file(cfg, part.partition('.')[0])
    for look in (nothing_trained, no_gradient, loss_without_weight, decays, rate_does_not_fit):
        found.causes += look(found)
    found.causes += low_schedule(runner, found)
    if not starts_from_file(cfg, 'backbone') and cfg.get('default_scope') != 'mmpretrain':
        found.remarks.append(
            'the backbone starts from random weights: with few images, mAP and mIoU stay near 0 for many epochs; '
            "weights of ImageNet are set by init_cfg=dict(type='Pretrained', checkpoint=...) of the backbone"
        )
    return found


def starts_from_file(cfg: Config, part: str) -> bool:
    """Whether a config gives weights to a part of its model, such as "backbone" or "neck"."""
    node = cfg.model.get(part)
    pretrained = isinstance(node, dict) and node.get('pretrained') or part == 'backbone' and cfg.model.get('pretrained')
    return bool(cfg.get('load_from') or pretrained or any(is_pretrained(each) for _, each in nested(node, part)))


def labelled_batch(runner: Runner, found: Findings) -> dict:
    """The batch to learn, and its labels in ``found``; a cause, if none of the first batches is worth learning."""
    dataset = next(inner_datasets(runner.train_dataloader.dataset), None)
    classes = dataset.metainfo.get('classes') or () if dataset else ()
    seen = set()
    for batch in islice(runner.train_dataloader, BATCHES):
        boxes, labels = batch_labels(batch, ignored_labels(runner.model))
        if labels is None:
            return batch
        found.labels = {str(classes[label]) if label < len(classes) else str(label): labels[label] for label in labels}
        if len(labels) >= (1 if boxes else 2):
            return batch
        seen.update(found.labels)
    if len(seen) < 2:  # otherwise, batches of one image
        found.causes.append(
            f'the first batches have {f"only the label {min(seen)}" if seen else "no label"}, so nothing is to be '
            'learned: look at the labels with tools/browse.py, and have the sampler shuffle the images'
        )
    return batch


def batch_labels(batch: dict, ignored: list[int]) -> tuple[bool, Counter | None]:
    """Whether the samples of a batch have boxes, and label -> boxes, pixels or images; None if there are no samples
    with labels."""
    samples, labels, boxes = batch.get('data_samples') if isinstance(batch, dict) else None, [], False
    for sample in samples if isinstance(samples, (list, tuple)) else ():
        if 'gt_instances' in sample:
            boxes = True
            labels.append(sample.gt_instances.labels)
        elif 'gt_sem_seg' in sample:
            pixels = sample.gt_sem_seg.data
            labels.append(pixels[~torch.isin(pixels, pixels.new_tensor(ignored))])
        elif 'gt_label' in sample:
            labels.append(sample.gt_label)
    if not labels:
        return boxes, None
    numbers, counts = torch.cat([each.flatten().cpu() for each in labels]).unique(return_counts=True)
    return boxes, Counter(dict(zip(numbers.tolist(), counts.tolist())))


def missing_imports(cfg: Config) -> Iterator[str]:
    """OpenMMLab's own tools import what ``custom_imports`` names, and the packages that types begin with."""
    imports = (cfg.get('custom_imports') or {}).get('imports') or []
    kind = find_type(cfg.model.backbone)
    if kind is cfg.model.backbone.type:  # a class, which the config itself has imported
        return
    name, package = str(cfg.model.backbone.type), getattr(kind, '__module__', '').partition('.')[0]
    if package in (*PACKAGES, '') or name.startswith(f'{package}.'):
        return
    if not any(str(each).split('.')[0] == package for each in ([imports] if isinstance(imports, str) else imports)):
        yield (
            f"custom_imports does not name {package}, so OpenMMLab's own tools do not know {name}: set "
            f"type='{package}.{name}'"
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
    """MMEngine loads what has the right name and shape. Backbones that load strictly refuse all others themselves."""
    used, count = found.taken
    if 2 * used < count and not loads_strictly(backbone):
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
    """Mean and standard deviation of each channel of (B, C, H, W), or of a list of (C, H, W), without the zeros that
    fill a border."""
    pixels = torch.cat([image.float().flatten(1) for image in images], 1)
    pixels = pixels[:, (pixels != 0).any(0)]
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
    model, optimizer, measured, sums = runner.model, runner.optim_wrapper, False, Counter()
    rated = {id(parameter) for group in optimizer.param_groups if group['lr'] > 0 for parameter in group['params']}
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for _ in range(steps):
        with optimizer.optim_context(model):
            losses = model(**batch, mode='loss')
            loss, parts_of_loss = model.parse_losses(losses)
        found.losses.append(float(loss.detach()))
        for name in parts_of_loss:
            if 'loss' in name and name != 'loss':  # the sum
                sums[name] += float(torch.as_tensor(parts_of_loss[name]).detach())
        if not loss.requires_grad:  # No parameter does, either.
            found.stages = parts(model, before, {}, rated)
            break
        optimizer.backward(loss)
        scale = loss_scale(optimizer)
        gradients = {} if measured else gradient_norms(model, scale)
        optimizer.step()
        if not measured:
            found.stages = parts(model, before, gradients, rated)
            measured = loss_scale(optimizer) >= scale
            norms = [torch.tensor([*each.values()]).norm() for each in (gradient_norms(model), gradients)]
            found.clipped = float(norms[0] / norms[1]) if norms[1] else 1.0
        optimizer.zero_grad()
        if not torch.isfinite(loss):
            break
    total = sum(found.losses)
    found.shares = {name: value / total if total else 0.0 for name, value in sums.items()}


def gradient_norms(model: nn.Module, scale: float = 1.0) -> dict[str, float]:
    """The norm of the gradient of each parameter that has one, without the scale of mixed precision."""
    return {name: float(x.grad.norm()) / scale for name, x in model.named_parameters() if x.grad is not None}


def loss_scale(optimizer: OptimWrapper) -> float:
    """What mixed precision multiplies loss and gradients by; it falls after a step that is left out."""
    return optimizer.loss_scaler.get_scale() if hasattr(optimizer, 'loss_scaler') else 1.0


def parts(
    model: nn.Module, before: dict[str, Tensor], gradients: dict[str, float], rated: set[int]
) -> dict[str, Stage]:
    """What the first step does, per part: the stages of the backbone, its other modules, neck and heads.

    Args:
        rated: ``id`` of each parameter with a rate above 0.
    """
    stages: dict[str, Stage] = {}
    squares = defaultdict(lambda: [0.0, 0.0, 0.0])
    for name, parameter in model.named_parameters():
        part = part_of(name)
        stage = stages.setdefault(part, Stage())
        # A table of its own that a module fixes is no part that has to be trained.
        stage.given = part == name and not parameter.requires_grad
        if parameter.requires_grad and id(parameter) in rated:
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
    """The part of a model that a parameter belongs to: "backbone.layers.2", "neck", "roi_head.bbox_head"."""
    first, _, rest = name.partition('.')
    if first != 'backbone':
        return re.match(r'\w*head\.\w*head(?=\.)|\w+', name)[0]
    match = re.match(r'\D+?\.\d+(?=\.)|\w+', rest)
    return f'backbone.{match[0]}' if match else first


def nothing_trained(found: Findings) -> Iterator[str]:
    """A part with weights may be frozen."""
    still = [part for part, stage in found.stages.items() if not stage.trained and not stage.given]
    if not any(stage.trained for stage in found.stages.values()):
        yield 'no parameter is trained: all have requires_grad=False or the rate 0; see frozen_stages and paramwise_cfg'
    elif still:
        yield (
            f'parts start from random weights and are not trained: {first_names(still)}; set frozen_stages=-1 and no '
            'lr_mult=0 for them, or give them weights in init_cfg'
        )


def no_gradient(found: Findings) -> Iterator[str]:
    """Parts that the loss does not reach. If it reaches none, another sentence says so."""
    silent = [part for part, stage in found.stages.items() if stage.trained and not stage.gradient > 0]
    if silent and len(silent) < len(found.stages):
        yield f'no gradient reaches {", ".join(silent)}: the loss does not depend on them, or is not finite'


def loss_without_weight(found: Findings) -> Iterator[str]:
    """Parts of the loss that do not count, by their shares in all steps."""
    small = {name: share for name, share in found.shares.items() if abs(share) < LOSS_SHARE}
    if small:
        yield (
            f'less than {100 * LOSS_SHARE:.2g} % of the loss is {first_names(small)}, so nothing is learned from it: '
            'see loss_weight, and with tools/browse.py whether the images have what it is computed from'
        )


def decays(found: Findings) -> Iterator[str]:
    """By rate times weight decay, what a step takes from the weights."""
    part = max((rate * decay for rate, decay in found.rates), default=0.0)
    if part > DECAY and part > 0.5 * max(stage.change for stage in found.stages.values()):
        yield (
            f'weight decay takes {100 * part:.2g} % of the weights in each step, more than they learn: set '
            'optim_wrapper.optimizer.weight_decay to 0.05 or less'
        )


def rate_does_not_fit(found: Findings) -> Iterator[str]:
    """By what a step changes, and by the loss on one batch."""
    if not any(found.losses):
        return
    first, last = found.losses[0], median(found.losses[-5:])
    course = f'the loss on one batch goes from {first:.3g} to {last:.3g} in {len(found.losses)} steps'
    changes = {part: stage.change for part, stage in found.stages.items() if stage.trained}
    largest = defaultdict(float)  # of backbone, neck and heads, since a step changes norms less than matrices
    for part, change in changes.items():
        largest[part.partition('.')[0]] = max(largest[part.partition('.')[0]], change)
    fast = [part for part, each in largest.items() if each > (CHANGE[1] if part == 'backbone' else CHANGE_OF_HEADS)]
    slow = [part for part, each in largest.items() if 0 < each < CHANGE[0]]
    by = ', '.join(f'{part} by {100 * largest[part]:.2g} %' for part in fast or slow)
    seen = f'the first step changes the norm of {by}, and {course}' if by else course
    if fast or not last < 2 * first:
        yield f'the rate is too high: {seen}: divide optim_wrapper.optimizer.lr by 10 to 100, or lr_mult of that part'
    elif last < LEARNED * first:
        return
    elif slow and found.clipped < CLIPPED:
        yield f'clip_grad leaves {100 * found.clipped:.2g} % of the gradient: {seen}: raise its max_norm'
    elif slow:
        yield f'the rate is too low: {seen}: multiply optim_wrapper.optimizer.lr by 10 to 100, or lr_mult of that part'
    else:
        yield f'{course}: the model cannot learn it by heart, so look at images and labels with tools/browse.py'


def low_schedule(runner: Runner, found: Findings) -> Iterator[str]:
    """By the mean of the rate over the whole training, after what the schedules do to it."""
    rate, steps = max((rate for rate, _ in found.rates), default=0.0), runner.train_loop.max_iters
    if not rate or runner.param_schedulers is None:
        return
    # One group in place of all: they have one schedule.
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], rate, momentum=0.9)
    runner.optim_wrapper = OptimWrapper(optimizer)
    schedulers = runner.build_param_scheduler(runner.param_schedulers)
    runner.optim_wrapper.step()  # changes nothing; schedulers warn if they come first
    epoch = len(runner.train_dataloader) if isinstance(runner.train_loop, EpochBasedTrainLoop) else steps
    total = 0.0
    for step in range(1, steps + 1):
        total += optimizer.param_groups[0]['lr']
        for scheduler in schedulers:
            # Those that wait for a validation have not changed a rate before one.
            if not getattr(scheduler, 'need_val_args', False) and (not scheduler.by_epoch or not step % epoch):
                scheduler.step()
    if total < RATE_SHARE * rate * steps:
        yield (
            f'param_scheduler leaves {100 * total / rate / steps:.2g} % of the rate, as a mean of the {steps} steps of '
            'the training: see begin, end and milestones, which count epochs, or steps with by_epoch=False'
        )
