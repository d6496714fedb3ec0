"""Training a backbone to predict the features of frozen teachers, without labels."""

import inspect
from collections.abc import Callable, Sequence
from numbers import Real

import torch
import torch.nn.functional as F
from mmengine.dist import all_reduce
from mmengine.model import BaseModel
from mmengine.registry import MODELS
from torch import Tensor, nn

from mmattn.errors import InputError, refusing, warn

from .teacher import Teacher, map_channels, maps_of


@MODELS.register_module()
class FeatureDistiller(BaseModel):
    """Trains a backbone, the student, to predict the features of one or several frozen teachers.

    The recipe is that of UNIC (Sariyildiz et al., 2024, https://arxiv.org/abs/2408.05088): the features of a teacher
    are standardised per channel, maps and whole images count the same, and an image never leaves out the teacher with
    its largest loss. Three things differ. Each map of the student has one linear layer per teacher; UNIC adds up MLPs
    of all blocks. The statistics for standardising are the mean over all steps, and later a moving average with
    ``momentum``; UNIC's momentum falls along a cosine. The teacher may see another image than the student.

    A student's map is resized to the grid of the teacher's, as if both covered the whole image. If it has
    padded or cut the image and this shows in the number of positions, the log says so once. The whole image is
    predicted from the mean of the last map.

    A student with the maps of its teacher, a backbone, needs no linear layers: with ``same_maps``, each map is compared
    with the teacher's of the same number, both standardised by the teacher's statistics.

    Checkpoints have the student's tensors as "backbone.*", and no teacher.

    Args:
        backbone: config of the student, any backbone of MODELS that returns feature maps.
        teacher: arguments of a :class:`Teacher`, or a list of them.
        loss: config of the loss between features.
        global_weight: share of the whole image in the loss, from 0 to 1; all maps together have the rest.
        teacher_drop_prob: probability with which an image leaves out a teacher whose loss is not the largest.
        momentum: smallest weight of a step in the statistics of the teachers.
        same_maps: whether each map is compared with the teacher's of the same number, without linear layers.
        data_preprocessor: as in MMEngine, see :class:`ViewPreprocessor`.
        init_cfg: MMEngine's.

    Attributes:
        teachers: list of :class:`Teacher`, not among the submodules.
        names: of the teachers in logs; that of a single one is ''.
        stages: names of the student's maps: "stage2" is that of ``out_indices`` 2.

    Raises:
        InputError: if an argument is wrong.
    """

    def __init__(
        self,
        backbone: dict,
        teacher: dict | list[dict],
        loss: dict = dict(type='FeatureLoss'),
        global_weight: float = 0.5,
        teacher_drop_prob: float = 0.5,
        momentum: float = 1e-3,
        same_maps: bool = False,
        data_preprocessor: dict | nn.Module | None = None,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(data_preprocessor, init_cfg)
        if not isinstance(loss, dict):
            raise InputError(f'loss must be the config of a loss, not {loss!r}')
        for name, value in dict(global_weight=global_weight, teacher_drop_prob=teacher_drop_prob).items():
            if not isinstance(value, Real) or not 0 <= value <= 1:
                raise InputError(f'{name} must be a number from 0 to 1, not {value!r}')
        if not isinstance(momentum, Real) or not 0 < momentum <= 1:
            raise InputError(f'momentum must be a number above 0 and at most 1, not {momentum!r}')
        self.backbone, self.same_maps = MODELS.build(backbone), same_maps
        # A list and no ModuleList: teachers are not trained, saved or wrapped.
        given = teacher if isinstance(teacher, (list, tuple)) else [teacher]
        with refusing('teacher must be the arguments of a Teacher, or a list of them', (TypeError,)):
            for each in given or [None]:
                inspect.signature(Teacher).bind(**each)
        self.teachers = [Teacher(**each, **dict(all_maps=True) if same_maps else {}) for each in given]
        self.loss = MODELS.build({'type': 'FeatureLoss', **loss})
        self.global_weight, self.teacher_drop_prob, self.momentum = global_weight, teacher_drop_prob, momentum
        self.uneven: set[str] = set()  # what the log has named
        channels = map_channels(self.backbone)
        indices = getattr(self.backbone, 'out_indices', None) or range(len(channels))
        self.stages = [f'stage{index}' for index in indices]
        names = [each.name for each in self.teachers]
        if len(set(names)) < len(names):
            names = [f'{name}_{number}' for number, name in enumerate(names)]
        self.names = names if len(names) > 1 else ['']
        self.projectors = nn.ModuleList()
        self.statistics = nn.ModuleList()
        inputs = dict(zip([*self.stages, 'global'], [*channels, channels[-1]]))
        for each in self.teachers:
            if same_maps:
                theirs = map_channels(each.model)
                if theirs != channels:
                    raise InputError(
                        f'same_maps needs a backbone with the maps of the teacher {each.name}, but their channels are '
                        f'{channels} and {theirs}'
                    )
                parts = {part: Standardisation(count, momentum) for part, count in inputs.items()}
                self.statistics.append(nn.ModuleDict(parts))
                continue
            layers = {part: nn.Conv2d(count, each.channels, 1) for part, count in inputs.items()}
            for layer in layers.values():
                nn.init.trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)
            self.projectors.append(nn.ModuleDict(layers))
            parts = {part: Standardisation(each.channels, momentum) for part in ('map', 'global')}
            self.statistics.append(nn.ModuleDict(parts))

    @property
    def training_note(self) -> dict[str, object]:
        """The settings that a resumed training is compared in, see :func:`mmguard.runs.checkpoints.training_note`."""
        note = dict(momentum=self.momentum, global_weight=self.global_weight, teacher_drop_prob=self.teacher_drop_prob)
        loss = {key: value for key, value in vars(self.loss).items() if key != 'training' and not key.startswith('_')}
        parts = [('loss', loss)]
        for number, each in enumerate(self.teachers):
            parts.append((f'teacher {number}', dict(each.targets, weight=each.weight)))
        plain = (str, int, float, tuple, list, type(None))
        for part, settings in parts:
            note.update({f'{part}.{key}': value for key, value in settings.items() if isinstance(value, plain)})
        return note

    def _apply(self, fn: Callable, *args, **kwargs) -> 'FeatureDistiller':
        for each in self.teachers:  # They move to another device with the model.
            each._apply(fn, *args, **kwargs)
        return super()._apply(fn, *args, **kwargs)

    def forward(
        self,
        inputs: Tensor,
        data_samples: list | None = None,
        teacher_inputs: Tensor | None = None,
        mode: str = 'tensor',
    ) -> tuple[Tensor, ...] | dict[str, Tensor] | list:
        """MMEngine's interface of a model.

        Args:
            inputs: normalised images, (B, 3, H, W).
            data_samples: of the images. ``view_key``, where they have one, is the key of a teacher's cache.
            teacher_inputs: what the teachers see, (B, 3, H, W), RGB from 0 to 255.
            mode: 'tensor', 'loss' or 'predict'.

        Returns:
            'tensor': the maps of the student. 'loss': the losses by name. 'predict': the data samples, with the
            similarity to the teachers in ``cosines``: part -> mean cosine over its positions.
        """
        if mode == 'tensor':
            return self.backbone(inputs)
        keys = [sample.get('view_key') for sample in data_samples or ()]
        keys = None if None in keys or not keys else keys
        if keys and not getattr(self.data_preprocessor, '_channel_conversion', True):
            keys = [f'{key}-as-loaded' for key in keys]  # A key is of the pixels before bgr_to_rgb.
        if mode == 'loss':
            if keys is None and any(each.cache for each in self.teachers):
                raise InputError(
                    'the teacher has a cache, but the views of the images are drawn anew each time: put the random '
                    'transforms of the training into FixedViews, or leave out cache'
                )
            return self._losses(self.paired_features(inputs, teacher_inputs, keys))
        if mode != 'predict':
            raise ValueError(f"mode must be 'tensor', 'loss' or 'predict', not {mode!r}")
        for name, parts in zip(self.names, self.paired_features(inputs, teacher_inputs, keys)):
            for part, features in parts.items():
                cosines = F.cosine_similarity(*features, dim=1).reshape(len(inputs), -1).mean(1)
                for sample, cosine in zip(data_samples, cosines.tolist()):
                    sample.set_field({**sample.get('cosines', {}), _joined(name, part): cosine}, 'cosines')
        return data_samples

    def paired_features(
        self, inputs: Tensor, teacher_inputs: Tensor, keys: list[str] | None = None
    ) -> list[dict[str, tuple[Tensor, Tensor]]]:
        """What the student predicts of each teacher's features, and these features, standardised.

        Args:
            inputs, teacher_inputs: see :meth:`forward`.
            keys: of the views in the cache.

        Returns:
            for each teacher: the names in ``stages`` -> two maps (B, C, h, w), and "global" -> two vectors (B, C).
        """
        targets = [each(teacher_inputs, keys) for each in self.teachers]
        maps = maps_of(self.backbone, inputs)
        for stage, x in zip(self.stages, maps):
            self._check_grid(f"the student's {stage}", x, inputs.shape[2:])
        for each, (*_, last, _) in zip(self.teachers, targets):
            if each.patch == 1:  # Others resize images to whole patches.
                self._check_grid(f'the map of the teacher {each.name}', last, each.img_size or teacher_inputs.shape[2:])
        if self.same_maps:
            own = dict(zip([*self.stages, 'global'], [*maps, maps[-1].mean((2, 3))]))
            return [paired(own, theirs, statistics) for theirs, statistics in zip(targets, self.statistics)]
        found = []
        for projectors, statistics, (last, vector) in zip(self.projectors, self.statistics, targets):
            last, vector = statistics['map'](last), statistics['global'](vector)
            parts = {}
            for stage, x in zip(self.stages, maps):
                # Both orders give the same; this one projects fewer pixels.
                shrinks = x.shape[2] >= last.shape[2] and x.shape[3] >= last.shape[3]
                x = resized(projectors[stage](x), last) if not shrinks else projectors[stage](resized(x, last))
                parts[stage] = x.float(), last
            pooled = projectors['global'](maps[-1].mean((2, 3), keepdim=True)).flatten(1)
            found.append({**parts, 'global': (pooled.float(), vector)})
        return found

    def _check_grid(self, what: str, x: Tensor, image: Sequence[int]) -> None:
        (h, w), (height, width) = x.shape[2:], image
        # As many pixels, and whole ones, are in a position both ways. Padded squares may look so too.
        if what not in self.uneven and (height % h or width % w or height // h != width // w):
            self.uneven.add(what)
            warn(
                f'{what} has {h} x {w} positions for images of {height} x {width}, and covers more or less than the '
                'image: student and teacher are compared in places that differ by up to a position; use sizes that '
                'are multiples of the strides'
            )

    def _losses(self, compared: list[dict[str, tuple[Tensor, Tensor]]]) -> dict[str, Tensor]:
        shares = dict.fromkeys(self.stages, (1 - self.global_weight) / len(self.stages))
        shares['global'] = self.global_weight
        with torch.autocast(next(iter(compared[0].values()))[1].device.type, enabled=False):
            losses = [{part: shares[part] * self.loss(*pair) for part, pair in parts.items()} for parts in compared]
        kept = kept_teachers(torch.stack([sum(parts.values()) for parts in losses]).detach(), self.teacher_drop_prob)
        kept = kept / kept.sum()
        return {
            _joined(name, f'loss_{part}'): teacher.weight * (weights * loss).sum()
            for name, teacher, weights, parts in zip(self.names, self.teachers, kept, losses)
            for part, loss in parts.items()
        }


def _joined(teacher: str, part: str) -> str:
    return f'{teacher}.{part}' if teacher else part


def kept_teachers(losses: Tensor, drop_prob: float) -> Tensor:
    """Teacher dropping as in UNIC and its released code, image by image.

    Args:
        losses: (T, B), of each teacher and image.
        drop_prob: of the teachers whose loss is not the largest of the image.

    Returns:
        (T, B), 1 where a teacher is kept and 0 where not.
    """
    if len(losses) == 1:
        return torch.ones_like(losses)
    kept = torch.rand_like(losses) >= drop_prob
    return (kept | (losses == losses.amax(0))).to(losses.dtype)


def paired(
    own: dict[str, Tensor], targets: Sequence[Tensor], statistics: nn.ModuleDict
) -> dict[str, tuple[Tensor, Tensor]]:
    """Maps and vectors by their names, each beside the target of the same number; both are standardised like it."""
    pairs = {}
    for (part, x), target in zip(own.items(), targets, strict=True):
        target = statistics[part](target)
        x = resized(x.float(), target) if x.dim() == 4 else x.float()
        pairs[part] = statistics[part].applied(x), target
    return pairs


def resized(x: Tensor, like: Tensor) -> Tensor:
    """A map (B, C, h, w) on the grid of another one: the mean of what falls into a cell, or bilinear interpolation."""
    size = like.shape[2:]
    if x.shape[2:] == size:
        return x
    if x.shape[2] >= size[0] and x.shape[3] >= size[1]:
        return F.adaptive_avg_pool2d(x, size)
    return F.interpolate(x, size, mode='bilinear', align_corners=False)


class Standardisation(nn.Module):
    """Features minus their mean, divided by their standard deviation, per channel, as in UNIC.

    Both are averages over the steps of the training: at first the mean of all steps, and a moving average once a new
    step would count less than ``momentum``. Deviations are from this mean, so that the differences between batches
    count. Processes share their statistics.

    Args:
        channels: of the features.
        momentum: the smallest part of a step.
    """

    def __init__(self, channels: int, momentum: float) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer('mean', torch.zeros(channels))
        self.register_buffer('var', torch.ones(channels))
        self.register_buffer('steps', torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, ...) -> the same shape; a step of the training updates the statistics first."""
        if self.training:
            self.update(x)
        return self.applied(x)

    def applied(self, x: Tensor) -> Tensor:
        """x, or what is compared with it, by the statistics as they are."""
        shape = (-1, *[1] * (x.dim() - 2))
        return (x - self.mean.view(shape)) / (self.var.view(shape) + 1e-6).sqrt()

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        """Take a batch (B, C, ...) of a step into the statistics."""
        others = [dim for dim in range(x.dim()) if dim != 1]
        self.steps += 1
        part = (1 / self.steps).clamp(min=self.momentum).to(self.mean.dtype)
        mean = x.mean(others)
        all_reduce(mean, 'mean')
        self.mean.lerp_(mean, part)
        var = (x - self.mean.view(-1, *[1] * (x.dim() - 2))).square().mean(others)
        all_reduce(var, 'mean')
        self.var.lerp_(var, part)
