"""timm's names for the backbones: ``import mmattn.timm``, then ``timm.create_model('elsa_swin_tiny')``.

:class:`TimmClassifier` has the methods of timm's own models. A model's name is that of its family, with the variant
from ``arch_zoo`` of the backbone. DINOViT has no names here: timm has these models.
"""

import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path

import timm
import torch
from huggingface_hub import ModelCard, ModelHubMixin
from mmengine.logging import print_log
from mmengine.model import initialize
from safetensors.torch import save_file
from timm.layers import ClassifierHead, LayerNorm2d, NormMlpClassifierHead
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model, resolve_pretrained_cfg
from timm.models._features import feature_take_indices
from timm.models._hub import save_config_for_hf
from torch import Tensor, nn

from .arguments import check_choice, check_whole
from .backbones import (
    ELSAVOLO,
    NAT,
    DiNAT,
    ELSASwin,
    GSAResNet,
    MSFSwin,
    MSFViT,
    ShuntedTransformer,
    SwinFrame,
    ViTFrame,
)
from .backbones.base import Backbone
from .backbones.swin import Stage
from .errors import CheckpointError, InputError
from .version import __version__
from .weights import plain_names, read_file, weights_in
from .weights.downloads import from_hub

#: of the Hub's model cards, as a template of Jinja
CARD = """---
{{ card_data }}
---

# {{ name }}

{{ backbone }} of mmattn {{ version }} for timm, {{ parameters }} M parameters, images of {{ size }} pixels.

```python
import timm
import mmattn.timm

model = timm.create_model('hf-hub:OWNER/NAME', pretrained=True)
model = mmattn.timm.TimmClassifier.from_pretrained('OWNER/NAME')
```

Settings: {{ settings }}.

Data and licence: {{ data | default("not given", true) }}.
"""


class TimmClassifier(nn.Module, ModelHubMixin, library_name='mmattn', tags=['timm'], model_card_template=CARD):
    """A backbone and timm's own head, with the methods of timm's models. Maps are (B, C, H, W).

    ``save_pretrained(folder, model_card_kwargs=dict(data=...))`` and ``push_to_hub('OWNER/NAME')`` write weights,
    config.json and a card; :meth:`from_pretrained` and timm read them.

    The names of tensors are those of an ``ImageClassifier`` of MMPretrain, so weights that were trained there load
    here. A released classifier loads, too, with its head.

    Args:
        backbone: class of the backbone.
        num_classes: number of classes; 0: no classifier.
        in_chans: channels of the image.
        global_pool: 'avg', 'max', 'avgmax', 'catavgmax' as in timm; '': none.
        drop_rate: dropout before the classifier.
        proj_drop_rate: ``drop_rate`` of the backbone, in its blocks.
        device, dtype: of all tensors.
        settings: further arguments of the backbone, its architecture among them, without ``out_indices``.

    Raises:
        ValueError: if an argument is wrong.
    """

    output_fmt = 'NCHW'

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
        **settings,
    ) -> None:
        super().__init__()
        check_whole('num_classes', num_classes, 0)
        if 'out_indices' in settings:
            raise ValueError('out_indices needs features_only=True')
        if proj_drop_rate is not None:
            settings['drop_rate'] = proj_drop_rate
        arch = backbone.resolve_arch(settings[backbone.arch_argument])
        if 'depths' in arch:  # Other backbones return the last map by default.
            settings['out_indices'] = (len(arch['depths']) - 1,)
        with torch.device(device) if device else contextlib.nullcontext():
            self.backbone = backbone(in_channels=in_chans, **settings)
            self.num_classes = num_classes
            self.in_chans = in_chans
            self.global_pool = global_pool
            self.num_features = self.backbone.channels[-1]
            self.head = self._head(pool_type=global_pool, drop_rate=drop_rate)
        self.head_hidden_size = self.head.num_features
        if self.backbone.init_cfg:
            initialize(self, self.backbone.init_cfg)  # init_weights() would log every parameter.
        if dtype:
            self.to(dtype)
        names = {module: name for name, module in self.named_modules()}
        self.feature_info = [
            dict(num_chs=channels, reduction=stride, module=names[last_block(modules)])
            for channels, stride, modules in zip(
                self.backbone.channels, self.backbone.strides, self.backbone.stage_modules()[1:]
            )
        ]

    def _head(self, **settings) -> nn.Module:
        """Pooling and a linear layer; between them is the norm of a ViT that has no final norm, as in MSF's."""
        if isinstance(self.backbone, ViTFrame) and isinstance(self.backbone.norm, nn.Identity):
            norm = functools.partial(LayerNorm2d, eps=self.backbone.settings['norm_eps'])
            return NormMlpClassifierHead(self.num_features, self.num_classes, norm_layer=norm, **settings)
        return ClassifierHead(self.num_features, self.num_classes, **settings)

    def forward_features(self, x: Tensor) -> Tensor:
        """x: (B, in_chans, H, W) -> the last map (B, num_features, h, w), normed."""
        return self.backbone(x)[-1]

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
        """The last map, normed, and those of the stages ``indices``, of a ViT of its blocks.

        Args:
            x: (B, in_chans, H, W).
            indices: numbers of stages; a number n: the last n; None: all.
            norm: norm the maps of stages that have an output norm, usually the last one.
            stop_early: stop after the last of ``indices``; its map is then the last map.
            output_fmt: 'NCHW', the only one.
            intermediates_only: return the list alone.
        """
        check_choice('output_fmt', output_fmt, ('NCHW',))
        chosen, last = feature_take_indices(self.backbone.num_built, indices)
        maps = []
        for i, output in enumerate(self.backbone.stage_outputs(x)):
            if i in chosen:
                maps.append(self.backbone.output_map(i, output, norm))
            if i == last and (stop_early or intermediates_only):
                break
        return maps if intermediates_only else (self.backbone.output_map(i, output), maps)

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
            depths, count = self.backbone.layer_depths()
            head = count - 1

        def depth(name: str) -> tuple[int]:
            own = name.removeprefix('backbone.')
            return (next((depths[each] for each in depths if f'{each}.'.startswith(f'{own}.')), head),)

        return depth

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Compute blocks again in the backward pass instead of keeping their activations."""
        self.backbone.with_cp = enable

    def no_weight_decay(self) -> set[str]:
        """Names of the tables of positions and of the prefix tokens. timm leaves out vectors itself."""
        ends = ('pos_embed', 'cls_token', 'reg_token')
        return {name for name, _ in self.named_parameters() if name.endswith(ends)}

    def load_pretrained(self, checkpoint: str | Path) -> None:
        """Load the backbone strictly, and the head if it has as many classes.

        Args:
            checkpoint: a classifier, detector, segmentor or backbone; see :func:`mmattn.weights.read_checkpoint`.

        Raises:
            CheckpointError: if the file cannot be read, or its tensors do not fit.
        """
        self.backbone.load_pretrained(checkpoint)
        weights, own = plain_names(weights_in(read_file(checkpoint))[0], str(checkpoint)), self.head.state_dict()
        try:
            self.backbone.translate_classifier(weights)
        except CheckpointError:  # It has no head.
            weights = {}
        head = {name.removeprefix('head.'): value for name, value in weights.items() if name.startswith('head.')}
        given, wanted = (len(each['fc.weight']) if 'fc.weight' in each else 0 for each in (head, own))
        if given != wanted:
            what = f'a head of {given} classes, which is not loaded' if given else 'no head: it starts untrained'
            print_log(f'{checkpoint} has {what}', logger='current')
        elif given:
            try:
                self.head.load_state_dict(head)
            except RuntimeError as error:
                raise CheckpointError(f'{checkpoint}: the head does not fit: {error}') from None

    @classmethod
    def from_pretrained(cls, name: str | Path, *, revision: str | None = None, **arguments) -> 'TimmClassifier':
        """A model that ``save_pretrained`` or ``push_to_hub`` wrote, in evaluation mode.

        Args:
            name: folder, or OWNER/NAME on the Hub.
            revision: branch, tag or commit on the Hub.
            arguments: of ``timm.create_model``, instead of those in config.json.

        Raises:
            CheckpointError: if there is no such model, the Hub cannot be reached, or tensors do not fit.
        """
        local = Path(name).is_dir()
        place = str(name) if local else f'hf://{name}' + (f'@{revision}' if revision else '')
        config = Path(name, 'config.json') if local else from_hub(f'{place}/config.json')
        if not config.is_file():
            raise CheckpointError(
                f'{name} has no config.json, which save_pretrained writes: its weights alone are read by '
                'pretrained_cfg_overlay=dict(file=...) of timm.create_model'
            )
        settings = json.loads(config.read_text())
        architecture = settings.get('architecture')
        if architecture not in variants():
            raise CheckpointError(f'config.json of {name} is of {architecture}, which is no model of mmattn')
        arguments = {**settings.get('model_args', {}), **arguments}
        model = timm.create_model(architecture, pretrained_cfg=settings['pretrained_cfg'], **arguments)
        model.load_pretrained(f'{place}/model.safetensors')
        return model.eval()

    def _save_pretrained(self, save_directory: Path) -> None:
        """Write the weights, with the settings that they do not show, and timm's config.json."""
        tensors = {name: value.contiguous() for name, value in self.state_dict().items()}
        noted = json.dumps(dict(backbone=self.backbone.settings_note))
        save_file(tensors, save_directory / 'model.safetensors', dict(format='pt', mmattn=noted))
        save_config_for_hf(self, save_directory / 'config.json')

    def generate_model_card(self, **arguments) -> ModelCard:
        return super().generate_model_card(
            name=self.pretrained_cfg['architecture'],
            backbone=type(self.backbone).__name__,
            version=__version__,
            parameters=f'{sum(parameter.numel() for parameter in self.parameters()) / 1e6:.2f}',
            size=self.pretrained_cfg['input_size'][1],
            settings=', '.join(f'{key}={value!r}' for key, value in self.backbone.settings.items()),
            **arguments,
        )

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *args: object) -> None:
        self.backbone.translate_classifier(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)


def last_block(modules: list[nn.Module]) -> nn.Module:
    """The last block of a stage, from its modules."""
    return [part for module in modules for part in module.modules() if getattr(part, 'sharding_unit', False)][-1]


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


@dataclasses.dataclass(frozen=True)
class Family:
    """The names of one backbone's variants.

    Args:
        backbone: its class.
        name: of the models; {} stands for the variant.
        first_conv: name of the layer that takes the image.
        stride: of the last map.
        crop_pct, interpolation: of test images, as in the ``_in1k`` configs of the family.
        settings: arguments of the backbone in a classifier, from the same configs.
        others: variant -> values of timm's ``PretrainedCfg`` that differ.
    """

    backbone: type[Backbone]
    name: str
    first_conv: str
    stride: int = 32
    crop_pct: float = 0.875
    interpolation: str = 'bicubic'
    settings: dict = dataclasses.field(default_factory=dict)
    others: dict[str, dict] = dataclasses.field(default_factory=dict)


#: Where a frame has no config of its own, test images are those of the Swins of ELSA and the ViTs of MSF.
FAMILIES = [
    Family(ELSASwin, 'elsa_swin_{}', 'backbone.patch_embed.proj', crop_pct=0.9, settings=dict(shift_small_maps=False)),
    Family(
        ELSAVOLO,
        'elsa_volo_{}',
        'backbone.patch_embed.conv.0',
        stride=16,
        crop_pct=0.96,
        settings=dict(final_norm=True),
        others=dict(d5=dict(crop_pct=1.15)),
    ),
    Family(GSAResNet, 'gsa_resnet{}', 'backbone.conv1'),
    Family(
        MSFSwin,
        'msf_swin_{}',
        'backbone.patch_embed.proj',
        interpolation='bilinear',
        settings=dict(shift_small_maps=False),
    ),
    Family(MSFViT, 'msf_vit_{}', 'backbone.patch_embed.proj', stride=16, interpolation='bilinear'),
    Family(NAT, 'nat_{}', 'backbone.patch_embed.proj.0'),
    Family(
        DiNAT,
        'dinat_{}',
        'backbone.patch_embed.proj.0',
        others=dict(large_384=dict(input_size=(3, 384, 384), crop_pct=1.0)),
    ),
    Family(ShuntedTransformer, 'shunted_{}', 'backbone.patch_embed1.conv.0'),
    Family(
        SwinFrame, 'swin_frame_{}', 'backbone.patch_embed.proj', crop_pct=0.9, settings=dict(shift_small_maps=False)
    ),
    Family(ViTFrame, 'vit_frame_{}', 'backbone.patch_embed.proj', stride=16, interpolation='bilinear'),
]


def variants() -> dict[str, tuple[Family, str | int]]:
    """All names, with their family and the name of the variant in ``arch_zoo``."""
    return {family.name.format(arch): (family, arch) for family in FAMILIES for arch in family.backbone.arch_zoo}


def create(name: str, pretrained: bool = False, **arguments) -> nn.Module:
    """Build a model, as ``timm.create_model`` asks for it.

    Args:
        name: of :func:`variants`.
        pretrained: load weights. There are none of our own: ``pretrained_cfg_overlay=dict(file=...)`` names them.
        arguments: those of :class:`TimmClassifier`, of its backbone, and of timm's ``build_model_with_cfg``.

    Raises:
        InputError: if ``pretrained`` has no source.
        ValueError: if an argument is wrong.
    """
    family, arch = variants()[name]
    overlay = dict(arguments.pop('pretrained_cfg_overlay', None) or {})
    if overlay.get('file'):
        overlay.setdefault('custom_load', True)
    source = resolve_pretrained_cfg(name, arguments.get('pretrained_cfg'), overlay)
    if pretrained and not (source.has_weights or source.state_dict):
        raise InputError(
            f'mmattn publishes no weights of {name}: name a file with pretrained_cfg_overlay=dict(file=...), or with '
            'checkpoint_path=... and without pretrained'
        )
    if arguments.get('features_only'):
        arguments.setdefault('num_classes', 0)
        check_choice('feature_cls of features_only', arguments.setdefault('feature_cls', 'getter'), ('getter',))
    model = functools.partial(TimmClassifier, family.backbone, **{family.backbone.arch_argument: arch})
    return build_model_with_cfg(
        model,
        name,
        pretrained,
        pretrained_cfg_overlay=overlay,
        feature_cfg=dict(out_indices=3 if issubclass(family.backbone, ViTFrame) else (0, 1, 2, 3)),
        **{**family.settings, **arguments},
    )


def _pretrained_cfg(family: Family, arch: str | int) -> dict:
    cfg = dict(
        input_size=(3, 224, 224),
        crop_pct=family.crop_pct,
        interpolation=family.interpolation,
        first_conv=family.first_conv,
        classifier='head.fc',
    )
    cfg.update(family.others.get(arch, {}))
    return dict(cfg, pool_size=(cfg['input_size'][1] // family.stride,) * 2)


def _register(name: str) -> None:
    def entrypoint(pretrained: bool = False, **arguments) -> nn.Module:
        return create(name, pretrained, **arguments)

    entrypoint.__name__ = entrypoint.__qualname__ = name
    globals()[name] = register_model(entrypoint)


__all__ = ['TimmClassifier', 'create', 'variants']  # register_model adds the names of models
default_cfgs = generate_default_cfgs({name: _pretrained_cfg(*variant) for name, variant in variants().items()})
for _name in default_cfgs:
    _register(_name)
