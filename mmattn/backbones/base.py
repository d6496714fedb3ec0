"""What the backbones have in common: variants, outputs, frozen stages, checkpointing, strict loading of weights."""

import inspect
import logging
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from mmengine.logging import print_log
from mmengine.model import BaseModule
from torch import Tensor, nn

from ..arguments import check_rates, check_whole, stage_numbers
from ..errors import InputError, near_misses
from ..ops.recompute import recompute
from ..weights import (
    CheckpointError,
    Translation,
    check_floats,
    compare_settings,
    first_names,
    misfits,
    odd_form,
    plain_names,
    read_checkpoint,
    unusable,
    weights_in,
)


class Backbone(BaseModule):
    """Base class of the backbones.

    A subclass lists its variants in ``arch_zoo`` and its modules in ``stage_modules``, passes every block through
    ``run``, and translates checkpoints of other layouts in ``from_release``.

    Weights fit to the last tensor or are refused, however they are loaded: by ``init_cfg``, by ``load_from`` as part of
    a classifier, detector or segmentor, or by ``load_state_dict``. ``backbone.load_state_dict(..., strict=False)``
    takes what fits and logs the rest. A classifier of MMPretrain takes a released classifier, head included, as it is.

    Args:
        channels: channels of the map of every stage; subclasses pass it on from their architecture.
        out_indices: stages whose maps are returned, ascending, counted from 0. Stages after the last one are not built.
        in_channels: channels of the image.
        frozen_stages: freezes the stem (0) and that many stages: no gradients, always in evaluation mode, output norms
            included. -1 freezes nothing. Setting the attribute later freezes other stages, and trains the rest again.
        with_cp: compute blocks again in the backward pass instead of keeping their activations in memory.
        init_cfg: MMEngine's initialisation config. ``dict(type='Pretrained', checkpoint=...)`` takes a released file as
            it is; ``warm_start=True`` beside it takes weights of a related architecture.

    All backbones also have these arguments:

    - ``drop_path_rate``: stochastic depth of the last block; the rate rises linearly from 0 at the first block.
    - ``norm_cfg``, of backbones with batch norms: ``dict(type='BN')`` or ``dict(type='SyncBN')``, see
      :func:`mmattn.layers.batch_norm`.
    - ``norm_eval``, of backbones with batch norms: they always use, and never update, their running statistics.

    Attributes:
        out_channels: channels of the returned maps.
        settings: the arguments that change the maps, but not the names and shapes of tensors, as plain Python values.
            Checkpoints keep them. Not among them are ``out_indices``, what matters in training only, and what a
            checkpoint is fitted to when it is loaded.

    Raises:
        ValueError: if an argument is wrong; the message names it.
    """

    #: name -> architecture. ``cls(arch=name)`` builds it; a dict given as ``arch`` has the same keys
    arch_zoo: dict[str | int, dict] = {}
    #: name of the argument that takes the architecture
    arch_argument = 'arch'
    #: description of a kind of checkpoint -> regular expression for the names in it; error messages use it
    layouts: dict[str, str] = {}
    #: the description, of any backbone's ``layouts``, of the checkpoints that ``warm_start=True`` takes
    warm_start_from: str | None = None
    #: prefix of the head's names in a released classifier -> in MMPretrain's; the first match counts
    head_names: dict[str, str] = {'head.': 'head.fc.'}
    settings: dict[str, object] = {}
    norm_eval = False
    _strict = True

    def __new__(cls, *_: object, **arguments: object) -> 'Backbone':
        if arguments.get('pretrained') is not None:  # A segmentor of MMSegmentation gives its own to the backbone.
            raise ValueError(
                f'{cls.__name__} has no argument pretrained: set '
                "init_cfg=dict(type='Pretrained', checkpoint=...) of the backbone, and pretrained=None in a segmentor"
            )
        return super().__new__(cls)

    def __init__(
        self,
        channels: Sequence[int],
        out_indices: Sequence[int],
        in_channels: int = 3,
        frozen_stages: int = -1,
        with_cp: bool = False,
        init_cfg: dict | list[dict] | None = None,
    ) -> None:
        init_cfg = init_cfg or None  # A config that deletes the init_cfg of its base has {}.
        _check_init_cfg(init_cfg)
        super().__init__(init_cfg)
        self.num_stages = len(channels)
        self.out_indices = stage_numbers('out_indices', out_indices, self.num_stages)
        if not self.out_indices or list(self.out_indices) != sorted(set(self.out_indices)):
            raise ValueError(f'out_indices must be ascending, at least one, not {self.out_indices}')
        check_whole('in_channels', in_channels)
        self.in_channels = in_channels
        self.out_channels = tuple(channels[i] for i in self.out_indices)
        self._frozen_stages = self._checked_frozen_stages(frozen_stages)  # subclasses call train() at their end
        self._frozen_parameters: list[str] = []
        self.with_cp = with_cp
        register = getattr(self, 'register_load_state_dict_pre_hook', None)  # public since torch 2.5
        if register is None:
            register = partial(self._register_load_state_dict_pre_hook, with_module=True)
        register(_translate_before_loading)

    @classmethod
    def resolve_arch(cls, arch: str | int | dict) -> dict:
        """The architecture of a name in ``arch_zoo``, or of a dict with the same keys.

        Raises:
            ValueError: if the name is unknown, the dict lacks a key or has an unknown one, or a value is impossible.
        """
        argument = f'{cls.arch_argument} of {cls.__name__}'
        if not isinstance(arch, dict):
            if arch not in list(cls.arch_zoo):
                raise ValueError(
                    f'{argument} must be one of {", ".join(map(str, cls.arch_zoo))} or a dict, not {arch!r}'
                )
            return dict(cls.arch_zoo[arch])
        wanted = set(next(iter(cls.arch_zoo.values())))
        if set(arch) != wanted:
            problems = [
                f'{kind} {", ".join(sorted(keys))}'
                for kind, keys in (('lacks', wanted - set(arch)), ('has unknown', set(arch) - wanted))
                if keys
            ]
            raise ValueError(f'{argument} {" and ".join(problems)}; its keys are {", ".join(sorted(wanted))}')
        for key, value in arch.items():
            known = [variant[key] for variant in cls.arch_zoo.values()]
            name = f'{cls.arch_argument}: {key}'
            if not isinstance(known[0], tuple):
                check_whole(name, value, 0 if 0 in known else 1)
            elif not isinstance(value, Sequence) or isinstance(value, str) or not value:
                raise ValueError(f'{name} must be a list of whole numbers, one per stage, not {value!r}')
            else:
                for i, number in enumerate(value):
                    check_whole(f'{name}[{i}]', number)
        return dict(arch)

    @property
    def frozen_stages(self) -> int:
        return self._frozen_stages

    @frozen_stages.setter
    def frozen_stages(self, number: int) -> None:
        self._frozen_stages = self._checked_frozen_stages(number)
        for name in self._frozen_parameters:
            self.get_parameter(name).requires_grad_(True)
        self._frozen_parameters = []
        self.train(self.training)

    def _checked_frozen_stages(self, number: int) -> int:
        check_whole('frozen_stages', number, -1)
        if number > self.num_stages:
            raise ValueError(f'frozen_stages must be from -1 to {self.num_stages}, not {number}')
        return number

    @property
    def settings_note(self) -> dict[str, object]:
        """Type and ``settings``, as checkpoints of mmattn keep them."""
        return dict(type=type(self).__name__, **self.settings)

    def stage_modules(self) -> list[list[nn.Module]]:
        """The modules of the stem, then those of each stage that is built, output norm included."""
        raise NotImplementedError

    def get_layer_depth(self, param_name: str, prefix: str = '') -> tuple[int, int]:
        """The depth of a parameter, for layer-wise decay of the learning rate. MMPretrain's Swin has the same depths.

        The stem has depth 0. The blocks have the depths 1, 2 and so on. A layer between two stages has the depth of the
        block before it. Layers after the last block have the largest depth, and so have all output norms of ELSASwin
        and MSFSwin, because no block takes their output.

        Args:
            param_name: name of the parameter in the model.
            prefix: start of the names of the backbone's parameters in the model. Parameters with other names, such as
                those of the heads, have the largest depth.

        Returns:
            The depth, and the number of depths.
        """
        # Modules are registered in the order of the forward pass, output norms last. A wrapper can have the attributes
        # of its block, so a block is counted by its first parameter.
        units = [module for module in self.modules() if getattr(module, 'sharding_unit', False)]
        firsts = dict.fromkeys(next(unit.parameters()) for unit in units)
        starts = {parameter: depth for depth, parameter in enumerate(firsts, start=1)}
        last = set(units[-1].parameters())
        depth, depths = 0, {}
        for name, parameter in self.named_parameters():
            depth = starts.get(parameter, depth)
            depths[prefix + name] = depth if depth < len(starts) or parameter in last else depth + 1
        return depths.get(param_name, len(starts) + 1), len(starts) + 2

    def check_images(self, x: Tensor) -> None:
        """Check the input of ``forward``.

        Raises:
            InputError: if x cannot be a batch of images; there may be none in it.
        """
        if x.dim() != 4 or x.shape[1] != self.in_channels or x.shape[2] < 1 or x.shape[3] < 1:
            raise InputError(
                f'{type(self).__name__} takes images (B, {self.in_channels}, H, W) with H and W of at least 1, not '
                f'{tuple(x.shape)}'
            )
        if not x.is_floating_point():
            raise InputError(f'{type(self).__name__} takes images of floating-point numbers, not {x.dtype}')

    def run(self, block: nn.Module, x: Tensor) -> Tensor:
        """``block(x)``; with ``with_cp``, its activations are computed again in the backward pass."""
        return recompute(block, x) if self.with_cp and self.training else block(x)

    def set_backend(self, backend: str | None) -> None:
        """Choose the path that the operators of all layers take, for comparisons.

        Args:
            backend: 'reference' or another one of the operators in ``mmattn.ops``; None chooses the fastest.

        Raises:
            ValueError: if no layer has an operator with backends. An unknown name is refused in the next forward pass.
        """
        layers = [module for module in self.modules() if hasattr(module, 'backend')]
        if not layers:
            raise ValueError(f'this {type(self).__name__} has no layer whose operator has backends')
        for layer in layers:
            layer.backend = backend

    def train(self, mode: bool = True) -> 'Backbone':
        super().train(mode)
        if self.norm_eval:
            for module in self.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        frozen = [module.eval() for modules in self.stage_modules()[: self.frozen_stages + 1] for module in modules]
        parameters = {parameter for module in frozen for parameter in module.parameters() if parameter.requires_grad}
        # Names, because to_empty() and others replace parameters.
        self._frozen_parameters += [name for name, parameter in self.named_parameters() if parameter in parameters]
        for parameter in parameters:
            parameter.requires_grad_(False)
        return self

    def init_weights(self) -> None:
        """Initialise as ``init_cfg`` says. Pretrained weights are loaded last, and strictly."""
        if self.is_init:
            return
        init_cfg = self.init_cfg
        entries = [init_cfg] if isinstance(init_cfg, dict) else init_cfg or []
        pretrained = [entry for entry in entries if entry['type'] == 'Pretrained']
        self.init_cfg = [entry for entry in entries if entry not in pretrained]
        super().init_weights()
        self.init_cfg = init_cfg
        for entry in pretrained:
            self.load_pretrained(**{key: value for key, value in entry.items() if key != 'type'})

    def load_pretrained(
        self,
        checkpoint: str | Path,
        prefix: str | None = None,
        strict: bool = True,
        map_location: str = 'cpu',
        warm_start: bool = False,
    ) -> None:
        """Load a checkpoint, as ``init_cfg=dict(type='Pretrained', checkpoint=...)`` does.

        Args:
            checkpoint: see :func:`mmattn.weights.read_checkpoint`.
            prefix: see :func:`mmattn.weights.read_checkpoint`.
            strict: refuse the checkpoint if a tensor is missing, is of another shape or kind or is not used, or if the
                backbone that wrote it had other ``settings``.
            map_location: has no effect, since tensors are read on the CPU; MMEngine's configs may set it.
            warm_start: take weights of the architecture ``warm_start_from``. The log says which tensors are taken,
                which keep their initial values and which have no place.

        Raises:
            CheckpointError: if the file cannot be read, or its tensors do not fit.
        """
        state_dict, source, settings = read_checkpoint(checkpoint, prefix)
        print_log(f'{type(self).__name__}: loading {checkpoint} ({source})', logger='current')
        try:
            if warm_start:
                state_dict = self._warm_started(state_dict)
            else:
                self._compare_settings(settings, strict)
            self.load_state_dict(state_dict, strict=strict)
        except CheckpointError as error:
            raise CheckpointError(f'{checkpoint}: {error}') from None

    def _compare_settings(self, saved: dict | None, strict: bool) -> None:
        try:
            compare_settings(saved, self.settings_note)
        except CheckpointError as error:
            if strict:
                raise
            print_log(str(error), logger='current', level=logging.WARNING)

    def load_state_dict(self, state_dict: dict[str, Tensor], strict: bool = True, **kwargs):
        """As torch's, for checkpoints in all layouts that ``from_release`` knows.

        Raises:
            CheckpointError: if strict, and a tensor is missing, has another shape or is not used.
        """
        self._strict = strict
        try:
            return super().load_state_dict(state_dict, strict, **kwargs)
        finally:
            self._strict = True

    def from_release(self, state_dict: dict[str, Tensor], warm_start: bool = False) -> Translation:
        """Translate a checkpoint into the backbone's own names.

        A subclass overrides it if releases have other names or shapes than the backbone. It also gets checkpoints of
        the backbone itself, which it leaves as they are.

        Args:
            state_dict: tensors of a release or of the backbone itself; it is not changed.
            warm_start: the tensors are of ``warm_start_from`` instead. Then tensors that the backbone cannot place and
                does not expect stay in ``Translation.tensors`` under the names that they had.

        Raises:
            CheckpointError: if the backbone has no warm start.
            KeyError: if a warm start lacks a tensor; it names the tensor.
        """
        if warm_start:
            raise CheckpointError(
                f'{type(self).__name__} has no warm start from other architectures: leave warm_start out'
            )
        return Translation(dict(state_dict))

    def initial_values(self, names: list[str], state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        """Values to start with, for the tensors that the loaded weights lack.

        Args:
            names: of these tensors, ``Translation.fresh``.
            state_dict: the backbone's, with the loaded weights, and with the present values under these names.

        Returns:
            values by name: the present ones, unless a subclass computes others.
        """
        return {name: state_dict[name] for name in names}

    def translate_classifier(self, state_dict: dict[str, object], prefix: str = '', *_) -> None:
        """Rename the tensors of a released classifier, in place, to those of an ``ImageClassifier`` of MMPretrain.

        Weights of an ``ImageClassifier`` stay as they are.

        Args:
            state_dict: of the release, or all contents of its file.
            prefix: of the classifier's names in the state dict.
            _: further arguments of torch's load-state-dict pre-hooks.

        Raises:
            CheckpointError: if the weights are those of a backbone without a head.
        """
        given = {name.removeprefix(prefix): value for name, value in state_dict.items() if name.startswith(prefix)}
        weights, container = weights_in(given)
        tensors = {name: value for name, value in weights.items() if isinstance(value, Tensor)}
        tensors = plain_names(tensors, 'the state dict')
        if not any(name.startswith('backbone.') for name in tensors):
            tensors = {self._name_in_classifier(name): value for name, value in tensors.items()}
            if tensors and not any(name.startswith('head.') for name in tensors):
                raise CheckpointError(
                    f'the weights are those of {type(self).__name__} without the head of a classifier, '
                    f'{" or ".join(f"{name}*" for name in self.head_names)}: init_cfg=dict(type="Pretrained", '
                    'checkpoint=...) of the backbone takes them'
                )
        elif not container:
            return
        for name in given:
            del state_dict[prefix + name]
        state_dict.update((prefix + name, value) for name, value in tensors.items())

    #: the name by which an ImageClassifier of MMPretrain calls it before it loads weights
    _checkpoint_filter = translate_classifier

    def _name_in_classifier(self, name: str) -> str:
        for start, new in self.head_names.items():
            if name.startswith(start):
                return new + name.removeprefix(start)
        return f'backbone.{name}'

    def _warm_started(self, given: dict[str, Tensor]) -> dict[str, Tensor]:
        """The backbone's state dict, updated with what weights of ``warm_start_from`` have for it.

        Raises:
            CheckpointError: if the weights are of another architecture.
        """
        name = type(self).__name__
        check_floats(given)
        try:
            translation = self.from_release(given, warm_start=True)
        except KeyError as error:
            raise CheckpointError(
                f'{name} can start from {self.warm_start_from}, but these weights lack {error}: '
                f'{self._likely_cause(given)}'
            ) from None
        own = self.state_dict()
        unknown = misfits(translation, own).get('not used', [])
        if unknown:
            raise CheckpointError(
                f'{name} can start from {self.warm_start_from}, but it does not know {len(unknown)} tensors of these '
                f'weights: {first_names(unknown)}'
            )
        taken = translation.tensors
        for what, names in (
            ('taken', list(taken)),
            ('keep their initial values', [tensor for tensor in own if tensor not in taken]),
            ('left out', translation.dropped),
        ):
            print_log(f'{name}, warm start: {what}: {", ".join(names) or "nothing"}', logger='current')
        return {**own, **taken}

    def _likely_cause(self, given: dict[str, Tensor], prefix: str = '') -> str:
        """Why tensors do not fit, as part of a sentence."""
        if not given:
            return (
                f'the checkpoint has no tensor under "{prefix}"; ImageNet weights are given by '
                'init_cfg=dict(type="Pretrained", checkpoint=...) of the backbone, not by load_from'
            )
        for arch in self.arch_zoo:
            with torch.device('meta'):
                variant = type(self)(**{self.arch_argument: arch})
            if not misfits(variant.from_release(given), variant.state_dict()):
                return (
                    f'they are those of {type(self).__name__}({self.arch_argument}={arch!r}) with its default arguments'
                )
        own = self.state_dict()
        last = list(own)[-1]
        for name in given:
            place = name.removesuffix(last)
            inside = {key.removeprefix(place): value for key, value in given.items() if key.startswith(place)}
            if name.endswith(f'.{last}') and not misfits(self.from_release(inside), own):
                return f'they are under "{place}": give this as prefix beside the checkpoint'
        for description, pattern in _known_layouts().items():
            if any(re.search(rf'(^|\.)({pattern})', name) for name in given):
                if any(re.match(pattern, name) for name in self.state_dict()):
                    return 'they are of another architecture of the same family'
                if description == self.warm_start_from:
                    return f'they look like {description}; warm_start=True beside the checkpoint takes a part of them'
                return f'they look like {description}'
        return 'they look like another model'


def _check_init_cfg(init_cfg: object) -> None:
    """Check what only a whole run would find late.

    Raises:
        ValueError: naming what is wrong.
    """
    for entry in init_cfg if isinstance(init_cfg, (list, tuple)) else [init_cfg] if init_cfg is not None else []:
        if not isinstance(entry, dict) or 'type' not in entry:
            raise ValueError(
                "init_cfg must be a dict with a type, such as dict(type='Pretrained', checkpoint=...), or a list of "
                f'such, not {entry!r}'
            )
        if entry['type'] != 'Pretrained':
            continue
        known = {'type', *inspect.signature(Backbone.load_pretrained).parameters} - {'self'}
        for key in set(entry) - known:
            raise ValueError(f'init_cfg of type Pretrained has no key {key}{near_misses(key, known)}')
        checkpoint = entry.get('checkpoint')
        if not isinstance(checkpoint, (str, Path)) or not str(checkpoint):
            raise ValueError(
                f'init_cfg of type Pretrained needs a checkpoint, a path or an address, not {checkpoint!r}: '
                'init_cfg=None starts from scratch'
            )
        if not isinstance(entry.get('prefix'), (str, type(None))):
            raise ValueError(f'prefix in init_cfg must be a text, not {entry["prefix"]!r}')


def _known_layouts() -> dict[str, str]:
    """``layouts`` of all backbones."""
    found: dict[str, str] = {}
    classes: list[type[Backbone]] = [Backbone]
    for cls in classes:
        classes.extend(cls.__subclasses__())
        found.update(vars(cls).get('layouts', {}))
    return found


def _translate_before_loading(backbone: Backbone, state_dict: dict[str, Tensor], prefix: str, *_) -> None:
    """Translate the backbone's part of a state dict, in place; torch calls this hook before it copies tensors.

    torch's and MMEngine's loaders of whole models come here, too. Neither says whether it is strict, so the backbone's
    part of a whole model is always checked.

    Raises:
        CheckpointError: naming the tensors that do not fit, and a likely cause.
    """
    name = type(backbone).__name__
    given = {key.removeprefix(prefix): state_dict.pop(key) for key in list(state_dict) if key.startswith(prefix)}
    given = plain_names(given, 'the state dict')
    odd = [f'{key} ({form})' for key, value in given.items() if (form := odd_form(value))]
    given = {key: value for key, value in given.items() if not odd_form(value)}
    own = backbone.state_dict()
    adapters = {key: value for key, value in own.items() if '.lora_' in key}
    if adapters and all('.lora_' in key for key in given):  # MMPretrain's LoRAModel saves only these.
        own, translation = adapters, Translation(given)
    else:
        translation = backbone.from_release(given)
    problems = misfits(translation, own)
    if odd:
        problems['no ordinary tensors'] = odd
    if problems:
        listed = '; '.join(f'{len(names)} {kind}: {first_names(names)}' for kind, names in problems.items())
        message = f'the weights do not fit {name}: {backbone._likely_cause(given, prefix)}. Tensors {listed}'
        if backbone._strict:
            raise CheckpointError(message)
        print_log(message, logger='current', level=logging.WARNING)
    for what, names in (('left out', translation.dropped), ('start untrained', translation.fresh)):
        if names:
            print_log(f'{name}: {what}: {", ".join(names)}', logger='current')
    taken = {
        key: value
        for key, value in translation.tensors.items()
        if key not in own or value.shape == own[key].shape and not unusable(value, own[key])
    }
    if translation.fresh:
        taken.update(backbone.initial_values(translation.fresh, {key: taken.get(key, own[key]) for key in own}))
    state_dict.update((prefix + key, value) for key, value in taken.items())


def to_map(x: Tensor) -> Tensor:
    """Tokens (B, H, W, C) -> the map (B, C, H, W) that necks and heads expect.

    It is contiguous: MMCV's RoIAlign reads a channels-last map as if it were contiguous, and returns wrong values.
    """
    return x.permute(0, 3, 1, 2).contiguous()


def drop_path_schedule(depths: Sequence[int], rate: float) -> list[list[float]]:
    """Rates per stage and block, which rise linearly from 0 to ``rate`` over all blocks.

    Raises:
        ValueError: if rate is not in [0, 1).
    """
    check_rates(drop_path_rate=rate)
    rates = iter(rate * i / max(sum(depths) - 1, 1) for i in range(sum(depths)))
    return [[next(rates) for _ in range(depth)] for depth in depths]
