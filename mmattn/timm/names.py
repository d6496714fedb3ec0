"""The names of the backbones in timm: that of the family, with the variant from ``arch_zoo`` of the backbone."""

import dataclasses
import functools
from pathlib import Path
from urllib.parse import quote

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model, resolve_pretrained_cfg
from torch import nn

from ..arguments import check_choice
from ..backbones import (
    ELSAVOLO,
    NAT,
    DiNAT,
    ELSASwin,
    GSAResNet,
    MSFSwin,
    MSFViT,
    ShuntedTransformer,
    SwinFrame,
    TransNeXt,
    ViTFrame,
)
from ..backbones.base import Backbone
from ..errors import InputError
from ..weights.downloads import from_hub
from .classifier import TimmClassifier
from .config_json import build_saved, check_saved, weights_of
from .volo import VOLOClassifier


@dataclasses.dataclass(frozen=True)
class Family:
    """The names of one backbone's variants.

    Args:
        backbone: its class.
        name: of the models; {} stands for the variant.
        first_conv: name of the layer that takes the image.
        stride: of the last map.
        crop_pct, interpolation: of test images, as in the ``_in1k`` configs of the family.
        arguments: arguments of the backbone in a classifier, from the same configs.
        others: variant -> values of timm's ``PretrainedCfg`` that differ.
        model: class of the models.
    """

    backbone: type[Backbone]
    name: str
    first_conv: str = 'backbone.patch_embed.proj'
    stride: int = 32
    crop_pct: float = 0.875
    interpolation: str = 'bicubic'
    arguments: dict = dataclasses.field(default_factory=dict)
    others: dict[str, dict] = dataclasses.field(default_factory=dict)
    model: type[TimmClassifier] = TimmClassifier


D5, LARGE_384 = dict(crop_pct=1.15), dict(input_size=(3, 384, 384), crop_pct=1.0)
SWIN = dict(shift_small_maps=False)
#: Where a frame has no config of its own, test images are those of the Swins of ELSA and the ViTs of MSF.
FAMILIES = [
    Family(ELSASwin, 'elsa_swin_{}', crop_pct=0.9, arguments=SWIN),
    Family(ELSAVOLO, 'elsa_volo_{}', 'backbone.patch_embed.conv.0', 16, 0.96, others=dict(d5=D5), model=VOLOClassifier),
    Family(GSAResNet, 'gsa_resnet{}', 'backbone.conv1'),
    Family(MSFSwin, 'msf_swin_{}', interpolation='bilinear', arguments=SWIN),
    Family(MSFViT, 'msf_vit_{}', stride=16, interpolation='bilinear'),
    Family(NAT, 'nat_{}', 'backbone.patch_embed.proj.0'),
    Family(DiNAT, 'dinat_{}', 'backbone.patch_embed.proj.0', others=dict(large_384=LARGE_384)),
    Family(ShuntedTransformer, 'shunted_{}', 'backbone.patch_embed1.conv.0'),
    Family(SwinFrame, 'swin_frame_{}', crop_pct=0.9, arguments=SWIN),
    Family(TransNeXt, 'transnext_{}', 'backbone.patch_embed1.proj'),
    Family(ViTFrame, 'vit_frame_{}', stride=16, interpolation='bilinear'),
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
    given, saved = arguments.get('pretrained_cfg'), arguments.pop('pretrained_model_args', {})
    in_folder = isinstance(given, dict) and given.get('source') in ('local-dir', 'hf-hub')
    if in_folder:  # timm has read it; ``saved`` is its part of the arguments.
        config = f'config.json of {given.get("file") or given.get("hf_hub_id")}'
        check_saved(family.backbone, saved, given, config)
    source = resolve_pretrained_cfg(name, given, overlay)
    if pretrained and not (source.has_weights or source.state_dict):
        raise InputError(
            f'mmattn publishes no weights of {name}: name a file with pretrained_cfg_overlay=dict(file=...), or with '
            'checkpoint_path=... and without pretrained'
        )
    if arguments.get('features_only'):
        arguments.setdefault('num_classes', 0)
        check_choice('feature_cls of features_only', arguments.setdefault('feature_cls', 'getter'), ('getter',))
    model = functools.partial(family.model, family.backbone)
    if in_folder:
        weights = None
        if pretrained and source.source == 'hf-hub':
            repository, at, revision = source.hf_hub_id.partition('@')
            weights = from_hub(f'hf://{repository}{at}{quote(revision, safe="")}', cache_dir=arguments.get('cache_dir'))
        elif pretrained:
            weights = weights_of(Path(source.file))
        classes = saved.get('num_classes', source.num_classes)
        model = functools.partial(build_saved, model, family.backbone, config, weights, classes)
    return build_model_with_cfg(
        model,
        name,
        pretrained and not in_folder,
        pretrained_cfg_overlay=overlay,
        feature_cfg=dict(out_indices=3 if issubclass(family.backbone, ViTFrame) else (0, 1, 2, 3)),
        **{family.backbone.arch_argument: arch, **family.arguments, **arguments},
    )


def _pretrained_cfg(family: Family, arch: str | int) -> dict:
    cfg = dict(
        input_size=(3, 224, 224),
        crop_pct=family.crop_pct,
        interpolation=family.interpolation,
        first_conv=family.first_conv,
        classifier=family.model.classifier,
    )
    cfg.update(family.others.get(arch, {}))
    return dict(cfg, pool_size=(cfg['input_size'][1] // family.stride,) * 2)


def _register(name: str) -> None:
    def entrypoint(pretrained: bool = False, **arguments) -> nn.Module:
        return create(name, pretrained, **arguments)

    entrypoint.__name__ = entrypoint.__qualname__ = name
    globals()[name] = register_model(entrypoint)


__all__ = []  # register_model adds the names of models
default_cfgs = generate_default_cfgs({name: _pretrained_cfg(*variant) for name, variant in variants().items()})
for _name in default_cfgs:
    _register(_name)
