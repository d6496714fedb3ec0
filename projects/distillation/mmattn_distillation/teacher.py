"""A frozen teacher: a model of timm by its name, or any backbone of the registries."""

import hashlib
import inspect
import json
import math
import sys
from collections.abc import Sequence
from copy import deepcopy
from functools import cached_property
from numbers import Real
from pathlib import Path

import safetensors.torch
import timm
import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor, nn

from mmattn.errors import CheckpointError, InputError, describe, warn
from mmattn.weights import Translation, evaluating, listed, misfits, read_file, timm_release, weights_in
from mmguard.checks.config_types import type_name
from mmguard.runs.checkpoints import AtomicBackend

from .views import check_normalisation

#: of ImageNet, on the scale from 0 to 1
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Teacher(nn.Module):
    """The last map, or all maps, of a frozen model, and one vector for the whole image.

    It runs without gradients and in evaluation mode, on a GPU in bfloat16, or float16 where there is none. An image is
    resized to whole patches first: 800 x 1344 becomes 798 x 1344 for patches of 14.

    Of a ViT of timm, the map is made of the patch tokens and the vector is the class token, both after the last norm;
    registers are left out. Of other models, the vector is the mean of the map.

    Args:
        model: name of a model of timm, as ``'vit_base_patch16_dinov3'`` or ``'convnext_tiny.dinov3_lvd1689m'``, or the
            config of a backbone of MODELS, which loads its own weights by its ``init_cfg``.
        checkpoint: weights of timm's or of the original release, see :mod:`mmattn.weights.sources`. No code in a file
            is run.
        pretrained: if there is no ``checkpoint``, get the weights by timm's own download. False leaves them random.
        img_size: height and width, or the side of a square, that images are resized to. By default they keep the size
            that the student sees.
        cache: folder that keeps the features of each view that has a key, as float16, or as float32 where they are too
            large for it. Several trainings can share the folder: each teacher has its own place there, by its settings
            and weights. Each file has a checksum. One that is damaged, or of another view, is made again.
        weight: factor of this teacher's losses, beside other teachers.
        mean, std: normalisation of RGB images on the scale from 0 to 1, timm's and not that of OpenMMLab's configs. The
            default is timm's of the model, or that of ImageNet.
        all_maps: whether all maps of a backbone are given, and not only the last one.

    Attributes:
        name: of the model.
        channels: of the last map and of the vector.

    Raises:
        InputError: if an argument is wrong, or the weights cannot be downloaded; later, if the model does not take
            images of this size, features are not finite, or the cache cannot be written.
        CheckpointError: if the weights cannot be read, or do not fit the model.
    """

    def __init__(
        self,
        model: str | dict,
        checkpoint: str | None = None,
        pretrained: bool = True,
        img_size: int | Sequence[int] | None = None,
        cache: str | None = None,
        weight: float = 1.0,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        all_maps: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(weight, Real) or not 0 < weight < math.inf:
            raise InputError(f'weight of a teacher must be a positive number, not {weight!r}')
        size = img_size if isinstance(img_size, Sequence) else (img_size, img_size)
        if img_size is not None and (len(size) != 2 or not all(type(side) is int and side > 0 for side in size)):
            raise InputError(f'img_size of a teacher must be a side, or height and width, not {img_size!r}')
        for name, given in (('mean', mean), ('std', std)):
            if given is not None:
                check_normalisation(f'{name} of a teacher', given, 1)
        self.img_size, self.weight, self.all_maps = img_size and tuple(size), weight, all_maps
        own, self.patch = {}, 1
        if isinstance(model, str):
            if all_maps:
                raise InputError(
                    f'the teacher {model} gives its last map only: all_maps is for the config of a backbone'
                )
            self.name, self.model = model, _timm_model(model, checkpoint, pretrained)
            own, self.patch = self.model.pretrained_cfg, self.model.feature_info[-1]['reduction']
            # Other models may have a class token that they do not give beside a map, such as XCiT's.
            gives_tokens = 'return_prefix_tokens' in inspect.signature(self.model.forward_intermediates).parameters
            has_token = gives_tokens and getattr(self.model, 'cls_token', None) is not None
            self._read = _read_class_token if has_token else _read_maps
            self.channels = self.model.feature_info[-1]['num_chs']  # num_features may be of a layer after the map
        elif not isinstance(model, dict) or 'type' not in model:
            raise InputError(f'model of a teacher must be a name of timm, or the config of a backbone, not {model!r}')
        else:
            if checkpoint is not None:
                raise InputError("the teacher is a backbone: give its checkpoint in its init_cfg, of type 'Pretrained'")
            self.name, self.model, self._read = type_name(model['type']), MODELS.build(model), _read_backbone
            if model.get('init_cfg') is None:
                warn(f'the teacher {self.name} has no init_cfg: its weights are random')
            self.model.init_weights()
            self.channels = map_channels(self.model)[-1]
        for name, given, default in (('mean', mean, MEAN), ('std', std, STD)):
            values = torch.tensor(own.get(name, default) if given is None else given).view(1, 3, 1, 1)
            self.register_buffer(name, 255 * values, persistent=False)
        self.requires_grad_(False)
        self.eval()
        # Tensors do not show all settings of a backbone. Its weights may come from anywhere.
        settings = {} if isinstance(model, str) else {key: model[key] for key in model if key != 'init_cfg'}
        self._settings = json.dumps(settings, sort_keys=True, default=str)
        self.cache = cache and Path(cache, f'{self.name}-{_sha(json.dumps(self.targets).encode()).hex()[:16]}')

    @cached_property
    def targets(self) -> dict[str, object]:
        """All that the features of an image depend on, by name, in plain Python; the weights as a checksum."""
        weights = (x.cpu().contiguous().flatten().view(torch.uint8).numpy() for x in self.model.state_dict().values())
        mean, std = (each.flatten().tolist() for each in (self.mean, self.std))
        own = dict(settings=self._settings, img_size=self.img_size, mean=mean, std=std)
        own.update(dict(all_maps=True) if self.all_maps else {})  # Older caches have no such key.
        return dict(model=self.name, **own, weights=_sha(*weights).hex()[:16])

    def train(self, mode: bool = True) -> 'Teacher':
        """A teacher always stays in evaluation mode."""
        return super().train(False)

    def __deepcopy__(self, memo: dict) -> 'Teacher':
        """A teacher of its own on the same weights in memory: it can move to another device without the original.

        So copies of a model, such as the average of EMAHook, do not hold the frozen weights twice.
        """
        memo.update({id(p): nn.Parameter(p.detach(), p.requires_grad) for p in self.parameters()})
        memo.update({id(b): b.detach() for b in self.buffers()})
        copied = memo[id(self)] = self.__new__(type(self))
        copied.__dict__ = deepcopy(self.__dict__, memo)
        return copied

    @torch.no_grad()
    def forward(self, images: Tensor, keys: Sequence[str] | None = None) -> tuple[Tensor, ...]:
        """Images -> their map, or maps, and vector, in float32.

        Args:
            images: (B, 3, H, W), RGB from 0 to 255.
            keys: of the views, for ``cache``.

        Returns:
            (B, C, h, w) of the last map or of each map, and (B, C).
        """
        if self.cache is None or keys is None:
            return self._features(images)
        found = [self._cached(key) for key in keys]
        new = [i for i, features in enumerate(found) if features is None]
        if new:
            for i, *features in zip(new, *self._features(images[new])):
                # Also now as they are kept, so that a view is the same each time.
                found[i] = tuple(_kept(each) for each in features)
                self._keep(keys[i], found[i])
        return tuple(torch.stack([one.float() for one in each]).to(images.device) for each in zip(*found))

    def _features(self, images: Tensor) -> tuple[Tensor, ...]:
        size = self.img_size or images.shape[2:]
        size = [max(1, round(side / self.patch)) * self.patch for side in size]
        x = images.float()
        if list(x.shape[2:]) != size:
            x = F.interpolate(x, size, mode='bicubic', antialias=True).clamp(0, 255)
        x = ((x - self.mean) / self.std).to(self.mean.dtype)
        half = torch.float16 if x.is_cuda and not torch.cuda.is_bf16_supported() else torch.bfloat16
        with torch.autocast(x.device.type, half, enabled=x.is_cuda):
            *maps, vector = self._maps_and_vector(x)
        maps = [each.float() for each in (maps if self.all_maps else maps[-1:])]
        features = *maps, maps[-1].mean((2, 3)) if vector is None else vector.float()
        finite = torch.stack([each.isfinite().flatten(1).all(1) for each in features]).all(0)
        if not finite.all():
            small = ', or take a GPU with bfloat16, whose range is larger' if half is torch.float16 else ''
            raise InputError(
                f'the teacher {self.name} gives NaN or infinite features for {int((~finite).sum())} of {len(x)} '
                f'images: check its weights{small}'
            )
        return features

    def _maps_and_vector(self, x: Tensor) -> tuple[Tensor | None, ...]:
        """What the model gives for normalised images. Some models of timm take images of certain sizes only."""
        try:
            return self._read(self.model, x)
        except (AssertionError, RuntimeError) as error:
            if self._read is _read_backbone or isinstance(error, torch.cuda.OutOfMemoryError):
                raise
            raise InputError(
                f'the teacher {self.name} fails for images of {x.shape[2]} x {x.shape[3]} ({describe(error)[:200]}): '
                'if it takes other sizes only, set its img_size, else choose another teacher'
            ) from error

    def _file(self, key: str) -> Path:
        return self.cache / key[:2] / f'{key}.features'

    def _checksum(self, key: str, content: bytes) -> bytes:
        """The checksum of a file of features. It covers teacher and view, so that a file of another view is noticed."""
        return _sha(f'{self.cache.name} {key} '.encode(), content)

    def _cached(self, key: str) -> tuple[Tensor, ...] | None:
        """The features of a view; None if they are not in the cache, or their file is not as it was written."""
        file = self._file(key)
        try:
            content = file.read_bytes()
            if content[:32] == self._checksum(key, content[32:]):
                features = safetensors.torch.load(content[32:])
                return tuple(features[name] for name in _names(len(features)))
            problem = 'it is damaged, or of another view'
        except FileNotFoundError:
            return None
        except OSError as error:
            problem = error.strerror
        warn(f'{file} in the cache of the teacher is made again: {problem}')
        return None

    def _keep(self, key: str, features: tuple[Tensor, ...]) -> None:
        content = safetensors.torch.save(dict(zip(_names(len(features)), features)))
        try:
            AtomicBackend().put(self._checksum(key, content) + content, self._file(key))
        except OSError as error:
            raise InputError(
                f'{error.filename} in the cache of the teacher cannot be written ({error.strerror}): free or repair '
                'the disk, or set cache of the teacher to another folder or None'
            ) from error


def _names(count: int) -> list[str]:
    """Of a view's features in a file of the cache: the last map is "map", those before it "map0", "map1" ..."""
    return [*(f'map{i}' for i in range(count - 2)), 'map', 'vector']


def _sha(*parts: bytes) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.digest()


def _kept(features: Tensor) -> Tensor:
    """Finite features as the cache keeps them, on the CPU."""
    features = features.cpu().contiguous()
    half = features.half()
    return half if half.isfinite().all() else features


def _read_class_token(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """The map of the patch tokens of a ViT of timm, and its class token."""
    arguments = dict(indices=1, norm=True, intermediates_only=True)
    ((last, tokens),) = model.forward_intermediates(x, return_prefix_tokens=True, **arguments)
    return last, tokens[:, 0]


def _read_maps(model: nn.Module, x: Tensor) -> tuple[Tensor, None]:
    """The last map of any other model of timm."""
    return model.forward_intermediates(x, indices=1, norm=True, intermediates_only=True)[-1], None


def _read_backbone(model: nn.Module, x: Tensor) -> tuple[Tensor | None, ...]:
    return *maps_of(model, x), None


def maps_of(backbone: nn.Module, x: Tensor) -> Sequence[Tensor]:
    """The maps (B, C, h, w) of a backbone.

    Raises:
        InputError: if it returns something else.
    """
    maps = backbone(x)
    maps = [maps] if isinstance(maps, Tensor) else maps
    if not all(isinstance(each, Tensor) and each.dim() == 4 for each in maps):
        raise InputError(
            f'{type(backbone).__name__} must return feature maps (B, C, H, W) to be a student or a teacher'
        )
    return maps


@torch.no_grad()
def map_channels(backbone: nn.Module) -> list[int]:
    """The channels of the maps of a backbone."""
    known = getattr(backbone, 'out_channels', None)
    if isinstance(known, tuple):
        return list(known)
    device = next(backbone.parameters()).device
    with evaluating(backbone):
        return [each.shape[1] for each in maps_of(backbone, torch.zeros(1, 3, 224, 224, device=device))]


def _timm_model(name: str, checkpoint: str | None, pretrained: bool) -> nn.Module:
    source = timm_release(name)
    with torch.device('meta'):
        cls = type(timm.create_model(name.split('.')[0]))
    if not hasattr(cls, 'forward_intermediates'):
        raise InputError(f"timm's {name} cannot be a teacher: it has no forward_intermediates, which returns maps")
    accepted = inspect.signature(cls.__init__).parameters
    arguments = dict(dynamic_img_size=True, strict_img_size=False)  # of models that take one size by default
    arguments = {key: value for key, value in arguments.items() if key in accepted}
    if checkpoint is None and pretrained:
        try:
            return timm.create_model(name, pretrained=True, num_classes=0, **arguments)
        except Exception as error:  # of networks, files and formats: many kinds
            source = source and source.hf_hub_id or 'its release'
            raise InputError(
                f'the weights of the teacher {name} cannot be downloaded by timm ({describe(error)[:80]} ...): get '
                f'model.safetensors of {source} where there is a network, and set checkpoint of the teacher to it'
            ) from error
    model = timm.create_model(name, num_classes=0, **arguments)
    if checkpoint is not None:
        _load(model, name, checkpoint)
    return model


def _load(model: nn.Module, name: str, checkpoint: str) -> None:
    tensors, _ = weights_in(read_file(checkpoint))
    # Each file of timm with models has such a function, which renames the tensors of the original release.
    rename = getattr(sys.modules[type(model).__module__], 'checkpoint_filter_fn', None)
    try:
        tensors = dict(rename(tensors, model) if rename else tensors)
    except Exception as error:  # a file may hold anything
        raise CheckpointError(f'{checkpoint} does not fit the teacher {name}: {describe(error)[:200]}') from error
    classifiers = model.pretrained_cfg.get('classifier') or ()
    classifiers = (classifiers,) if isinstance(classifiers, str) else classifiers
    heads = tuple(f'{each}.' for each in classifiers)
    tensors = {key: value for key, value in tensors.items() if not key.startswith(heads or '.')}
    found = misfits(Translation(tensors), model.state_dict())
    if found:
        raise CheckpointError(f'{checkpoint} does not fit the teacher {name}: tensors {listed(found, 3)}')
    model.load_state_dict(tensors)
