"""timm's names for the backbones: ``import mmattn.timm``, then ``timm.create_model('elsa_swin_tiny')``.

:class:`TimmClassifier` has the methods of timm's own models, and :class:`VOLOClassifier` also has VOLO's head. A
model's name is that of its family, with the variant from ``arch_zoo`` of the backbone. DINOViT has no names here: timm
has these models.
"""

import contextlib
import dataclasses
import functools
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import quote

import timm
import torch
from huggingface_hub import ModelCard, ModelHubMixin
from mmengine.logging import print_log
from mmengine.model import initialize
from timm.layers import ClassifierHead, LayerNorm2d, NormMlpClassifierHead, get_device_dtype
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
from .backbones.stages import Stage
from .errors import CheckpointError, InputError, describe, warn
from .hub_folders import build_saved, check_model_args, check_pretrained_cfg, forms, read_config, weights_of
from .layers import ClassAttention
from .outputs import check_output, whole_file
from .privacy import without_secrets
from .version import __version__
from .weights import Translation, first_names, listed, misfits, plain_names, read_file, split_init_cfg, weights_in
from .weights.downloads import from_hub
from .weights.files import safetensors_of

#: arguments of huggingface_hub's functions, now or earlier, that have no meaning for a model
OF_HUB = set('endpoint etag_timeout headers local_dir proxies repo_type resume_download use_auth_token'.split())
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
#: arguments of ``create_model`` that say what is loaded into a model, and not what it is
OF_LOADING = ('init_cfg', 'pretrained_strict', 'pretrained_filter_fn')
#: arguments that ``create_model`` hands on, beside those of a model
OF_CREATE_MODEL = ('pretrained_cfg', 'cache_dir', 'features_only', 'feature_cls', 'out_indices', 'device', 'dtype')
#: the end of a sentence on a model that no folder can describe
ALONE = 'Its weights alone are written by torch.save(model.state_dict(), FILE)'


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
        global_pool: 'avg', 'max', 'avgmax', 'catavgmax' as in timm; '': none. Heads with a norm after pooling,
            MSFViT's and ViTFrame's, do not take 'catavgmax'.
        drop_rate: dropout before the classifier.
        proj_drop_rate: ``drop_rate`` of the backbone, in its blocks.
        device, dtype: of all tensors.
        settings: further arguments of the backbone, its architecture among them, without ``out_indices``.

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
        **settings,
    ) -> None:
        super().__init__()
        self._arguments: dict[str, object] = {}
        check_whole('num_classes', num_classes, 0)
        if 'out_indices' in settings:
            raise ValueError('out_indices needs features_only=True')
        if proj_drop_rate is not None:
            settings['drop_rate'] = proj_drop_rate
        if isinstance(settings.get('img_size'), Sequence):  # as timm writes it in config.json
            if len(settings['img_size']) != 2 or settings['img_size'][0] != settings['img_size'][1]:
                raise ValueError(f'img_size must be one side, or two equal ones, not {settings["img_size"]!r}')
            settings['img_size'] = settings['img_size'][0]
        if backbone.arch_argument not in settings:
            raise ValueError(f'{backbone.arch_argument} is missing: the architecture of {backbone.__name__}')
        arch = backbone.resolve_arch(settings[backbone.arch_argument])
        if 'depths' in arch:  # Other backbones return the last map by default.
            settings['out_indices'] = (len(arch['depths']) - 1,)
        with torch.device(device) if device else contextlib.nullcontext():
            self.backbone = backbone(in_channels=in_chans, **settings)
            self.num_classes = num_classes
            self.in_chans = in_chans
            self.global_pool = global_pool
            self.num_features = self.backbone.channels[-1]
            self.head = self._head(settings, pool_type=global_pool, drop_rate=drop_rate)
        self.head_hidden_size = self.head.num_features
        initial, pretrained = split_init_cfg(self.backbone.init_cfg)
        initialize(self, initial)  # init_weights() would log every parameter.
        for arguments in pretrained:
            self.load_pretrained(**arguments)
        if dtype:
            self.to(dtype)
        names = {module: name for name, module in self.named_modules()}
        self.feature_info = [
            dict(num_chs=channels, reduction=stride, module=names[last_block(modules)])
            for channels, stride, modules in zip(
                self.backbone.channels, self.backbone.strides, self.backbone.stage_modules()[1:]
            )
        ]

    def _head(self, settings: dict, **head_settings) -> nn.Module:
        """Pooling and a linear layer; between them is the norm of a ViT that has no final norm, as in MSF's.

        Args:
            settings: of the backbone.
            head_settings: of the head.
        """
        if isinstance(self.backbone, ViTFrame) and isinstance(self.backbone.norm, nn.Identity):
            norm = functools.partial(LayerNorm2d, eps=self.backbone.settings['norm_eps'])
            return NormMlpClassifierHead(self.num_features, self.num_classes, norm_layer=norm, **head_settings)
        return ClassifierHead(self.num_features, self.num_classes, **head_settings)

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
        """Names of the position embeddings, of the prefix tokens and, as in timm's Swin, of the tables of relative
        positions of a ``swin_frame_*``. The recipes of the other backbones decay their tables. timm leaves out vectors
        itself."""
        ends = ('pos_embed', 'cls_token', 'reg_token')
        if type(self.backbone) is SwinFrame:  # ELSASwin and MSFSwin are Swin frames, too.
            ends += ('.attn.rb',)
        return {name for name, _ in self.named_parameters() if name.endswith(ends)}

    def load_pretrained(
        self, checkpoint: str | Path, whole_head: bool = False, prefix: str | None = None, **settings
    ) -> None:
        """Load the backbone and the head strictly, without the classifier if it has another number of classes.

        Args:
            checkpoint: a classifier, detector, segmentor or backbone; see :func:`mmattn.weights.read_checkpoint`.
            whole_head: whether weights without a head, or with another number of classes, are refused.
            prefix: of the names of the backbone's tensors. Those of the head have it without "backbone." at its end.
            settings: of :meth:`mmattn.weights.StrictModule.load_pretrained`, for the backbone.

        Raises:
            CheckpointError: if the file cannot be read, or its tensors do not fit.
        """
        self.backbone.load_pretrained(checkpoint, prefix, **settings)
        shown = without_secrets(checkpoint)
        weights = plain_names(weights_in(read_file(checkpoint))[0], shown)
        beside = re.sub(r'(^|(?<=\.))backbone\.$', '', f'{prefix.removesuffix(".")}.' if prefix else '')
        weights = {name.removeprefix(beside): value for name, value in weights.items() if name.startswith(beside)}
        try:
            self.backbone.translate_classifier(weights)
        except CheckpointError:  # It has no head.
            weights = {}
        given = {name: value for name, value in weights.items() if name.startswith('head.')}
        own = {f'head.{name}': value for name, value in self.head.state_dict().items()}
        layers = (self.classifier,) if isinstance(self.classifier, str) else self.classifier
        classifiers = tuple(f'{layer}.' for layer in layers)
        marks = (*classifiers, 'head.cls_token')  # of a head; a backbone may have a norm of this name
        has_head, needs_head = (any(name.startswith(marks) for name in names) for names in (given, own))
        if not has_head and (needs_head or not given):
            if whole_head and own:
                raise CheckpointError(f'{shown} has no head')
            print_log(f'{shown} has no head: it starts untrained', logger='current')
            return
        classes, wanted = (len(tensors.get('head.fc.weight', ())) for tensors in (given, own))
        if classes != wanted and whole_head:
            raise CheckpointError(f'{shown} has a classifier of {classes} classes, and the model has {wanted}')
        if classes != wanted:
            print_log(f'{shown} has a classifier of {classes} classes, which is not loaded', logger='current')
            given = {name: value for name, value in given.items() if not name.startswith(classifiers)}
            given.update((name, value) for name, value in own.items() if name.startswith(classifiers))
        if found := misfits(Translation(given), own):
            sentence = f'{shown}: the head does not fit: tensors {listed(found, 3)}'
            if settings.get('strict', True) and not settings.get('warm_start'):
                raise CheckpointError(sentence)
            warn(f'{sentence}. It starts untrained')
            return
        self.head.load_state_dict({name.removeprefix('head.'): value for name, value in given.items()})

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        revision: str | None = None,
        subfolder: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        force_download: bool = False,
        local_files_only: bool = False,
        **arguments,
    ) -> 'TimmClassifier':
        """A model that ``save_pretrained`` or ``push_to_hub`` wrote, in evaluation mode.

        Args:
            name: folder, or OWNER/NAME on the Hub.
            revision: branch, tag or commit on the Hub, or a pull request, as ``refs/pr/1``.
            subfolder: the part of the folder or repository that has the model.
            token, cache_dir, force_download, local_files_only: of huggingface_hub. A folder needs no token and no
                ``cache_dir``.
            arguments: of ``timm.create_model``, instead of those in config.json. With another ``num_classes``, the
                classifier starts untrained.

        Raises:
            CheckpointError: if there is no such model, the Hub cannot be reached, config.json cannot be read, or
                tensors do not fit.
            ValueError: if an argument is wrong, such as ``features_only``, which ``timm.create_model`` takes.
        """
        if arguments.get('features_only'):
            raise ValueError("features_only is for timm.create_model('local-dir:FOLDER' or 'hf-hub:OWNER/NAME')")
        folder = Path(name).expanduser()
        local = folder.is_dir()
        if not local and not re.fullmatch(r'[\w.-]+/[\w.-]+', str(name)):
            raise CheckpointError(f'there is no folder {name}, and names on the Hub are OWNER/NAME')
        if refused := sorted(arguments.keys() & OF_HUB):
            raise ValueError(
                f'from_pretrained does not take {", ".join(refused)}: of huggingface_hub it takes revision, subfolder, '
                'token, cache_dir, force_download and local_files_only. A proxy is set by HTTPS_PROXY'
            )
        if local and (revision or force_download):
            raise ValueError(f'{name} is a folder: revision and force_download are for models on the Hub')
        subfolder = (subfolder or '').strip('/')
        folder /= subfolder
        place = f'hf://{name}' + (f'@{quote(revision, safe="")}' if revision else '') + (subfolder and f'/{subfolder}')
        options = dict(
            token=token, cache_dir=cache_dir, force_download=force_download, local_files_only=local_files_only
        )
        config = folder / 'config.json' if local else from_hub(f'{place}/config.json', **options)
        if not config.is_file():
            raise CheckpointError(
                f'{name} has no config.json, which save_pretrained writes: its weights alone are read by '
                'pretrained_cfg_overlay=dict(file=...) of timm.create_model'
            )
        architecture, saved, pretrained_cfg = read_config(config.read_bytes(), f'config.json of {name}')
        if architecture not in variants():
            raise CheckpointError(f'config.json of {name} is of {architecture[:100]}, which is no model of mmattn')
        check_model_args(variants()[architecture][0].backbone, saved, f'config.json of {name}')
        weights = weights_of(folder) if local else from_hub(f'{place}/', **options)
        model = timm.create_model(
            architecture,
            pretrained=True,
            pretrained_cfg=dict(pretrained_cfg, source='local-dir', file=str(weights.parent)),
            pretrained_model_args=saved,
            **{**saved, **arguments},
        )
        return model.eval()

    def save_pretrained(self, save_directory: str | Path, *, repo_id: str | None = None, **settings) -> str | None:
        """Write a folder, or nothing: see :class:`huggingface_hub.ModelHubMixin`, which also has the arguments.

        Raises:
            InputError: if ``from_pretrained`` could not build the model again, or the folder cannot be written.
        """
        self._config()
        folder = Path(save_directory)
        check_output(folder / 'model.safetensors')
        folder.mkdir(parents=True, exist_ok=True)
        # ModelHubMixin removes an earlier config.json first.
        with tempfile.TemporaryDirectory(prefix='.', dir=folder) as staged:
            answer = super().save_pretrained(staged, repo_id=repo_id or folder.name, **settings)
            for file in Path(staged).iterdir():
                if file.name != 'README.md' or not (folder / file.name).exists():
                    os.replace(file, folder / file.name)
        return answer

    def push_to_hub(self, repo_id: str, **settings) -> str:
        """Upload the model: see :class:`huggingface_hub.ModelHubMixin`, which also has the arguments.

        Raises:
            InputError: if ``from_pretrained`` could not build the model again; then no repository is made.
        """
        self._config()
        return super().push_to_hub(repo_id, **settings)

    def _save_pretrained(self, save_directory: Path) -> None:
        """Write the weights, with the settings that they do not show, and timm's config.json."""
        tensors = {name: value.contiguous() for name, value in self.state_dict().items()}
        with whole_file(save_directory / 'model.safetensors') as part:
            part.write_bytes(safetensors_of(tensors, dict(backbone=self.backbone.settings_note)))
        with whole_file(save_directory / 'config.json') as part:
            part.write_bytes(self._config())

    @property
    def _model_args(self) -> dict[str, object]:
        """The arguments that timm writes to config.json, without what was loaded when the model was built."""
        return self._arguments

    @_model_args.setter
    def _model_args(self, arguments: dict[str, object]) -> None:
        self._arguments = {key: value for key, value in arguments.items() if key not in OF_LOADING}

    def _config(self) -> bytes:
        """timm's config.json.

        Raises:
            InputError: if it does not build this model.
        """
        if not hasattr(self, 'pretrained_cfg'):
            raise InputError('the model has no config.json to be built from: build it by timm.create_model')
        try:
            with tempfile.TemporaryDirectory() as folder:
                save_config_for_hf(self, file := Path(folder, 'config.json'))
                config = file.read_bytes()
            architecture, saved, pretrained_cfg = read_config(config, 'config.json')
            again = timm.create_model(
                architecture,
                pretrained_cfg=dict(pretrained_cfg, source='local-dir'),
                pretrained_model_args=saved,
                device='meta',
                **saved,
            )
        except ValueError as error:  # timm's, of an argument that JSON does not have
            raise InputError(f'config.json cannot describe the model: {describe(error)}. {ALONE}') from error
        own, built = forms(self), forms(again)
        differing = [name for name in {**own, **built} if own.get(name) != built.get(name)]
        if differing:
            raise InputError(f'config.json builds a model that differs in {first_names(differing, 3)}. {ALONE}')
        return config

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


class ClassAttentionHead(ClassAttention, nn.Module):
    """VOLO's head, with the methods of timm's heads. Its tensors have the names of ``VOLOHead``'s.

    Scores are those of the class token, plus half the largest of all other tokens per class.

    Args:
        in_features: channels C of the map.
        num_classes: number of classes K; 0: no classifier.
        num_heads, mlp_ratio, attn_drop_rate: of class attention.
        pool_type: 'token': the class token; 'avg': the mean of all tokens; '': all tokens, each classified alone.
        drop_rate: dropout before the classifier.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        num_heads: int,
        mlp_ratio: float,
        attn_drop_rate: float = 0.0,
        pool_type: str = 'token',
        drop_rate: float = 0.0,
    ) -> None:
        super().__init__()
        self.add_class_attention(in_features, num_heads, mlp_ratio, attn_drop_rate=attn_drop_rate)
        self.drop = nn.Dropout(drop_rate)
        self.reset(num_classes, pool_type, in_features=in_features)

    def reset(
        self, num_classes: int, pool_type: str | None = None, reset_other: bool = False, in_features: int | None = None
    ) -> None:
        """Replace the classifier, the pooling if it is given, and with ``reset_other`` remove class attention."""
        if reset_other:
            self.cls_token, self.post_network = None, nn.ModuleList()
        if pool_type is not None:
            kinds = ('avg', '') if self.cls_token is None else ('token', 'avg', '')
            if pool_type not in kinds:
                raise ValueError(f'global_pool must be one of {", ".join(map(repr, kinds))}, not {pool_type!r}')
            self.pool_type = pool_type
        if in_features is not None:
            self.num_features = in_features
        place = get_device_dtype(self)
        linear = lambda: nn.Linear(self.num_features, num_classes, **place).train(self.training)
        self.fc = linear() if num_classes else nn.Identity()
        self.aux_head = linear() if num_classes and self.cls_token is not None else None

    def attended(self, x: Tensor) -> Tensor:
        """x: (B, C, H, W) -> the class token and all others, normed, (B, 1 + H W, C); (B, H W, C) without one."""
        return super().attended(x) if self.cls_token is not None else self.norm(x.flatten(2).transpose(1, 2))

    def forward(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Tokens, the class token first, (B, N, C) -> scores (B, K), or what the classifier takes (B, C). Without
        pooling (B, N, K) and (B, N, C)."""
        pooled = x[:, 0] if self.pool_type == 'token' else x.mean(1) if self.pool_type else x
        pooled = self.drop(pooled)
        if pre_logits:
            return pooled
        scores = self.fc(pooled)
        if self.aux_head is not None and self.pool_type:
            scores = scores + 0.5 * self.aux_head(self.drop(x[:, 1:])).amax(1)
        return scores


class VOLOClassifier(TimmClassifier):
    """ELSA-VOLO or VOLO, with VOLO's own head, and the methods of timm's VOLO.

    ``forward_features`` returns tokens (B, 1 + h w, num_features): the class token after class attention and all
    others, normed. ``norm=True`` of ``forward_intermediates`` norms all maps but that of the first stage. A classifier
    of MMPretrain with ``VOLOHead``, or a released one, loads with its head.

    Args:
        backbone: ELSAVOLO.
        global_pool: 'token', 'avg' or '', see :class:`ClassAttentionHead`.
        settings: further arguments of :class:`TimmClassifier`. ``attn_drop_rate`` is that of class attention, too.
    """

    output_fmt = 'NLC'
    classifier = 'head.fc', 'head.aux_head'

    def __init__(self, backbone: type[ELSAVOLO], global_pool: str = 'token', **settings) -> None:
        super().__init__(backbone, global_pool=global_pool, **settings)

    def _head(self, settings: dict, **head_settings) -> ClassAttentionHead:
        arch = self.backbone.resolve_arch(settings[self.backbone.arch_argument])
        return ClassAttentionHead(
            self.num_features,
            self.num_classes,
            arch['num_heads'][1],
            arch['mlp_ratio'],
            settings.get('attn_drop_rate', 0.0),
            **head_settings,
        )

    def _features(self, x: Tensor) -> Tensor:
        return self.head.attended(x)

    def _intermediate(self, stage: int, x: Tensor, norm: bool) -> Tensor:
        return super()._intermediate(stage, self.head.norm(x) if norm and stage else x, False)

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Remove the stages after the last of ``indices``, class attention with the classifier, and the norm."""
        chosen = super().prune_intermediate_layers(indices, prune_norm, prune_head)
        if prune_norm or max(chosen) == 0:
            self.head.norm = nn.Identity()
        return chosen

    def group_matcher(self, coarse: bool = False) -> Callable[[str], tuple[int]]:
        """As that of :class:`TimmClassifier`. Blocks of class attention come after those of the backbone; the class
        token belongs to the stem, as in timm's VOLO."""
        depth_of = super().group_matcher(coarse)

        def depth(name: str) -> tuple[int]:
            if name == 'head.cls_token':
                return (0,)
            (found,) = depth_of(name)
            if coarse or not name.startswith('head'):
                return (found,)
            block = re.match(r'head\.post_network\.(\d+)', name)
            return (found + (int(block[1]) if block else len(self.head.post_network)),)

        return depth

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Compute blocks, those of class attention too, again in the backward pass."""
        super().set_grad_checkpointing(enable)
        self.head.with_cp = enable


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
        model: class of the models.
    """

    backbone: type[Backbone]
    name: str
    first_conv: str
    stride: int = 32
    crop_pct: float = 0.875
    interpolation: str = 'bicubic'
    settings: dict = dataclasses.field(default_factory=dict)
    others: dict[str, dict] = dataclasses.field(default_factory=dict)
    model: type[TimmClassifier] = TimmClassifier


#: Where a frame has no config of its own, test images are those of the Swins of ELSA and the ViTs of MSF.
FAMILIES = [
    Family(ELSASwin, 'elsa_swin_{}', 'backbone.patch_embed.proj', crop_pct=0.9, settings=dict(shift_small_maps=False)),
    Family(
        ELSAVOLO,
        'elsa_volo_{}',
        'backbone.patch_embed.conv.0',
        stride=16,
        crop_pct=0.96,
        others=dict(d5=dict(crop_pct=1.15)),
        model=VOLOClassifier,
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
    given, saved = arguments.get('pretrained_cfg'), arguments.pop('pretrained_model_args', None)
    in_folder = isinstance(given, dict) and given.get('source') in ('local-dir', 'hf-hub')
    config = f'config.json of {given.get("file") or given.get("hf_hub_id")}' if in_folder else ''
    if in_folder:  # timm or from_pretrained has read it; ``saved`` is its part of the arguments.
        if saved is None:  # of an older timm
            saved = {key: value for key, value in arguments.items() if key not in OF_CREATE_MODEL}
        check_model_args(family.backbone, saved, config)
        check_pretrained_cfg(given, config)
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
        **{family.backbone.arch_argument: arch, **family.settings, **arguments},
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


__all__ = ['TimmClassifier', 'VOLOClassifier', 'create', 'variants']  # register_model adds the names of models
default_cfgs = generate_default_cfgs({name: _pretrained_cfg(*variant) for name, variant in variants().items()})
for _name in default_cfgs:
    _register(_name)
