"""A backbone and timm's own head, with the methods of timm's models."""

import contextlib
import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from mmengine.logging import print_log
from mmengine.model import initialize
from timm.layers import ClassifierHead, LayerNorm2d, NormMlpClassifierHead
from timm.models._features import feature_take_indices
from torch import Tensor, nn

from ..arguments import check_choice, check_whole
from ..backbones import SwinFrame, ViTFrame
from ..backbones.base import Backbone
from ..backbones.layer_decay import layer_depths
from ..backbones.stages import Stage
from ..errors import CheckpointError, warn
from ..privacy import without_secrets
from ..weights import Translation, listed, misfits, plain_names, read_file, split_init_cfg, weights_in
from .sharing import SharedModel


class TimmClassifier(nn.Module, SharedModel):
    """A backbone and timm's own head, with the methods of timm's models. Maps are (B, C, H, W).

    :meth:`save_pretrained` and :meth:`push_to_hub` write weights, config.json and a card; :meth:`from_pretrained` and
    timm read them.

    The names of tensors are those of an ``ImageClassifier`` of MMPretrain, so weights that were trained there load
    here. A released classifier loads, too, with its head.

    Args:
        backbone: class of the backbone.
        num_classes: number of classes; 0: no classifier.
        in_chans: channels of the image.
        global_pool: 'avg', 'max', 'avgmax', 'catavgmax' as in timm; '': none. Heads with a norm after pooling,
            MSFViT's and ViTFrame's, do not take 'catavgmax'.
        drop_rate: dropout before the classifier.
        proj_drop_rate: ``drop_rate`` of the backbone, in its blocks.
        device, dtype: of all tensors.
        arguments: further arguments of the backbone, its architecture among them, without ``out_indices``.

    Raises:
        ValueError: if an argument is wrong.
    """

    output_fmt = 'NCHW'
    #: the layers that depend on the number of classes
    classifier: str | tuple[str, ...] = 'head.fc'

    def __init__(
        self,
        backbone: type[Backbone],
        num_classes: int = 1000,
        in_chans: int = 3,
        global_pool: str = 'avg',
        drop_rate: float = 0.0,
        proj_drop_rate: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **arguments,
    ) -> None:
        super().__init__()
        self._arguments: dict[str, object] = {}
        check_whole('num_classes', num_classes, 0)
        if 'out_indices' in arguments:
            raise ValueError('out_indices needs features_only=True')
        if proj_drop_rate is not None:
            arguments['drop_rate'] = proj_drop_rate
        if isinstance(arguments.get('img_size'), Sequence):  # as timm writes it in config.json
            if len(arguments['img_size']) != 2 or arguments['img_size'][0] != arguments['img_size'][1]:
                raise ValueError(f'img_size must be one side, or two equal ones, not {arguments["img_size"]!r}')
            arguments['img_size'] = arguments['img_size'][0]
        if backbone.arch_argument not in arguments:
            raise ValueError(f'{backbone.arch_argument} is missing: the architecture of {backbone.__name__}')
        arch = backbone.resolve_arch(arguments[backbone.arch_argument])
        if 'depths' in arch:  # Other backbones return the last map by default.
            arguments['out_indices'] = (len(arch['depths']) - 1,)
        with torch.device(device) if device else contextlib.nullcontext():
            self.backbone = backbone(in_channels=in_chans, **arguments)
            self.num_classes = num_classes
            self.in_chans = in_chans
            self.global_pool = global_pool
            self.num_features = self.backbone.channels[-1]
            self.head = self._head(arguments, pool_type=global_pool, drop_rate=drop_rate)
        self.head_hidden_size = self.head.num_features
        initial, pretrained = split_init_cfg(self.backbone.init_cfg)
        initialize(self, initial)  # init_weights() would log every parameter.
        for arguments in pretrained:
            self.load_pretrained(**arguments)
        if dtype:
            self.to(dtype)
        names = {module: name for name, module in self.named_modules()}
        lasts = [names[last_block(modules)] for modules in self.backbone.stage_modules()[1:]]
        maps = zip(self.backbone.channels, self.backbone.strides, lasts)
        self.feature_info = [dict(num_chs=channels, reduction=stride, module=name) for channels, stride, name in maps]

    def _head(self, arguments: dict, **head_arguments) -> nn.Module:
        """Pooling and a linear layer; between them is the norm of a ViT that has no final norm, as in MSF's.

        Args:
            arguments: of the backbone.
            head_arguments: of the head.
        """
        if isinstance(self.backbone, ViTFrame) and isinstance(self.backbone.norm, nn.Identity):
            norm = functools.partial(LayerNorm2d, eps=self.backbone.settings['norm_eps'])
            return NormMlpClassifierHead(self.num_features, self.num_classes, norm_layer=norm, **head_arguments)
        return ClassifierHead(self.num_features, self.num_classes, **head_arguments)

    def _features(self, x: Tensor) -> Tensor:
        """The last map of the backbone -> what :meth:`forward_features` returns."""
        return x

    def _intermediate(self, stage: int, x: Tensor, norm: bool) -> Tensor:
        """The output (B, h, w, C) of a stage -> its map in :meth:`forward_intermediates`."""
        return self.backbone.output_map(stage, x, norm)

    def forward_features(self, x: Tensor) -> Tensor:
        """x: (B, in_chans, H, W) -> the last map (B, num_features, h, w), normed."""
        return self._features(self.backbone(x)[-1])

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """The last map (B, num_features, h, w) -> logits (B, num_classes); or what the classifier takes."""
        return self.head(x, pre_logits=pre_logits)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, in_chans, H, W) -> logits (B, num_classes)."""
        return self.forward_head(self.forward_features(x))

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = 'NCHW',
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """The result of :meth:`forward_features`, and the maps of the stages ``indices``, of a ViT of its blocks.

        Args:
            x: (B, in_chans, H, W).
            indices: numbers of stages; a number n: the last n; None: all.
            norm: norm the maps of stages that have an output norm, usually the last one.
            stop_early: stop after the last of ``indices``; its map is then the result, unless it is the last stage.
            output_fmt: 'NCHW', the only one.
            intermediates_only: return the list alone.
        """
        check_choice('output_fmt', output_fmt, ('NCHW',))
        chosen, last = feature_take_indices(self.backbone.num_built, indices)
        maps = []
        for i, output in enumerate(self.backbone.stage_outputs(x)):
            if i in chosen:
                maps.append(self._intermediate(i, output, norm))
            if i == last and (stop_early or intermediates_only):
                break
        if intermediates_only:
            return maps
        x = self.backbone.output_map(i, output)
        return self._features(x) if i == self.backbone.num_built - 1 else x, maps

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Remove the stages after the last of ``indices``, and its output norm or the head.

        Returns:
            the numbers of the stages in ``indices``.
        """
        chosen, last = feature_take_indices(self.backbone.num_built, indices)
        cut = last < self.backbone.num_built - 1
        if cut or prune_norm:
            remove_stages(self.backbone, last)
        if cut:
            self.num_features = self.backbone.channels[last]
        if cut or prune_head:
            self.num_classes, self.global_pool = 0, ''
            self.head.reset(0, '', reset_other=True, in_features=self.num_features)
            self.head_hidden_size = self.head.num_features
        return chosen

    def get_classifier(self) -> nn.Module:
        """The last layer."""
        return self.head.fc

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the last layer by a new one, and the pooling."""
        check_whole('num_classes', num_classes, 0)
        self.num_classes = num_classes
        self.global_pool = self.global_pool if global_pool is None else global_pool
        self.head.reset(num_classes, global_pool)
        self.head_hidden_size = self.head.num_features

    def group_matcher(self, coarse: bool = False) -> Callable[[str], tuple[int]]:
        """From the name of a parameter or module to its depth, as timm's decay of learning rates by layer takes it.

        Depths are those of :meth:`mmattn.backbones.base.Backbone.get_layer_depth`; if ``coarse``, those of the stem, 0,
        of the stages and of the head.
        """
        if coarse:
            stages = {
                parameter: i
                for i, modules in enumerate(self.backbone.stage_modules())
                for module in modules
                for parameter in module.parameters()
            }
            depths = {name: stages[parameter] for name, parameter in self.backbone.named_parameters()}
            head = self.backbone.num_built + 1
        else:
            depths, count = layer_depths(self.backbone)
            head = count - 1

        def depth(name: str) -> tuple[int]:
            own = name.removeprefix('backbone.')
            return (next((depths[each] for each in depths if f'{each}.'.startswith(f'{own}.')), head),)

        return depth

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Compute blocks again in the backward pass instead of keeping their activations."""
        self.backbone.with_cp = enable

    def no_weight_decay(self) -> set[str]:
        """Names of the position embeddings, of the prefix tokens and, as in timm's Swin, of the tables of relative
        positions of a ``swin_frame_*``. The recipes of the other backbones decay their tables. timm leaves out vectors
        itself."""
        ends = ('pos_embed', 'cls_token', 'reg_token')
        if type(self.backbone) is SwinFrame:  # ELSASwin and MSFSwin are Swin frames, too.
            ends += ('.attn.relative_position_bias_table', '.attn.rb')
        return {name for name, _ in self.named_parameters() if name.endswith(ends)}

    def load_pretrained(
        self, checkpoint: str | Path, whole_head: bool = False, prefix: str | None = None, **arguments
    ) -> None:
        """Load the backbone and the head strictly, without the classifier if it has another number of classes.

        Args:
            checkpoint: a classifier, detector, segmentor or backbone; see :func:`mmattn.weights.read_checkpoint`.
            whole_head: whether weights without a head, or with another number of classes, are refused.
            prefix: of the names of the backbone's tensors. Those of the head have it without "backbone." at its end.
            arguments: of :meth:`mmattn.weights.StrictModule.load_pretrained`, for the backbone.

        Raises:
            CheckpointError: if the file cannot be read, or its tensors do not fit.
        """
        self.backbone.load_pretrained(checkpoint, prefix, **arguments)
        shown = without_secrets(checkpoint)
        weights = plain_names(weights_in(read_file(checkpoint))[0], shown)
        beside = re.sub(r'(^|(?<=\.))backbone\.$', '', f'{prefix.removesuffix(".")}.' if prefix else '')
        weights = {name.removeprefix(beside): value for name, value in weights.items() if name.startswith(beside)}
        try:
            self.backbone.translate_classifier(weights)
        except CheckpointError:  # It has no head.
            weights = {}
        given = {name: value for name, value in weights.items() if name.startswith('head.')}
        own = self.head.state_dict(prefix='head.')
        layers = (self.classifier,) if isinstance(self.classifier, str) else self.classifier
        layers = tuple(f'{layer}.' for layer in layers)
        marks = (*layers, 'head.cls_token')  # of a head; a backbone may have a norm of this name
        has_head, needs_head = (any(name.startswith(marks) for name in names) for names in (given, own))
        if not has_head and (needs_head or not given):
            if whole_head and own:
                raise CheckpointError(f'{shown} has no head')
            print_log(f'{shown} has no head: it starts untrained', logger='current')
            return
        classes = len(given.get('head.fc.weight', ()))
        if classes != self.num_classes:
            text = f'{shown} has a classifier of {classes} classes'
            if whole_head:
                raise CheckpointError(f'{text}, and the model has {self.num_classes}')
            print_log(f'{text}, which is not loaded', logger='current')
            given = {name: value for name, value in given.items() if not name.startswith(layers)}
            given.update((name, value) for name, value in own.items() if name.startswith(layers))
        if found := misfits(Translation(given), own):
            sentence = f'{shown}: the head does not fit: tensors {listed(found, 3)}'
            if arguments.get('strict', True) and not arguments.get('warm_start'):
                raise CheckpointError(sentence)
            warn(f'{sentence}. It starts untrained')
            return
        self.head.load_state_dict({name.removeprefix('head.'): value for name, value in given.items()})

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *args: object) -> None:
        self.backbone.translate_classifier(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)


def last_block(modules: list[nn.Module]) -> nn.Module:
    """The last block of a stage, from its modules."""
    return [part for module in modules for part in module.modules() if getattr(part, 'is_block', False)][-1]


def remove_stages(backbone: Backbone, last: int) -> None:
    """Remove the stages after ``last`` and all output norms. The stage ``last`` becomes the only output."""
    _, *stages = backbone.stage_modules()
    norms = {backbone.output_norm(i) for i in backbone.out_indices}
    gone = {module for modules in stages[last + 1 :] for module in modules}
    for parent in list(backbone.modules()):
        for name, child in list(parent.named_children()):
            if child in gone:
                delattr(parent, name)
    for module in stages[last]:
        if isinstance(module, Stage):
            module.downsample = None
    backbone.out_indices, backbone.out_channels = (last,), (backbone.channels[last],)
    for name in (norms | {backbone.output_norm(last)}) - {''}:
        setattr(backbone, name, nn.Identity())
