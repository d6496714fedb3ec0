"""A trained model as a folder to share: weights, config and model card."""

import re
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from torch import Tensor, nn

from ..checks.classes import saved_meta
from ..checks.config_types import nested
from ..errors import CheckpointError
from ..outputs import check_output, whole_file
from ..privacy import without_secrets
from ..weights import Translation, is_pretrained, listed, misfits, read_file
from ..weights.files import noted_settings, safetensors_of
from ..weights.licenses import chosen_license, licenses_of
from .checkpoints import READ_BY_MMGUARD, backbone_settings
from .configs import package_of
from .resuming import check_complete, whole_model_weights

#: scope of a config -> task, as model hubs name it
TASKS = dict(mmpretrain='image-classification', mmdet='object-detection', mmseg='image-segmentation')
#: what batch norms have beside parameters
STATISTICS = ('.running_mean', '.running_var', '.num_batches_tracked')
#: keys of a config that say where and from what it was run
MACHINE = ('work_dir', 'load_from', 'resume')
#: an absolute path: of Linux, macOS or Windows, or in a home folder
ABSOLUTE = re.compile(r'(file:/+|/|~[\w.-]*(?=[/\\]|$)|[A-Za-z]:[/\\]|\\\\).*', re.DOTALL)
CARD = """---
library_name: mmattn
license: {license}
pipeline_tag: {task}
tags:
- mmattn
---

# {name}

{backbone} of mmattn {version}, trained by `config.py` in this folder.

| {head} |
| {line} |
| {row} |

```python
backbone = dict({settings})
backbone['init_cfg'] = dict(type='Pretrained', checkpoint='model.safetensors')
```

{predict}Data: {data}.

Start: {start}.

The license is that of the weights. It gives no right to the images.
"""
#: scope of a config -> how a whole model predicts, for the card: the package's inferencer, and its argument for weights
INFERENCERS = dict(
    mmpretrain=('mmpretrain', 'ImageClassificationInferencer', 'pretrained'),
    mmdet=('mmdet.apis', 'DetInferencer', 'weights'),
    mmseg=('mmseg.apis', 'MMSegInferencer', 'weights'),
)
PREDICT = """To predict with the whole model, in this folder:

```python
from {module} import {inferencer}

import mmguard

predict = {inferencer}('config.py', {weights}='{scheme}model.safetensors')
print(predict('image.jpg'))
```

"""


def publish(
    cfg: Config,
    name: str,
    checkpoint: Path,
    folder: Path,
    figures: dict[str, str],
    data: str,
    license: str | None = None,
) -> None:
    """Write model.safetensors, config.py and README.md, without secrets and without the folders of this machine.

    Args:
        name: heading of the card.
        figures: what is measured -> value.
        data: what it was trained on, and the terms of the data.
        license: of the weights, as the Hugging Face Hub names it. It may be left out if the weights that the training
            started from have one that is known, see :func:`starting_licenses`.

    Raises:
        InputError: if a file cannot be written, or the license is not known.
        CheckpointError: if the checkpoint cannot be read, if mmattn did not write it, or if it is of another config:
            of another task, number of classes, backbone or settings.
    """
    files = [folder / file for file in ('model.safetensors', 'config.py', 'README.md')]
    check_output(*files)
    starts = starting_licenses(cfg)
    license = chosen_license(license, starts)
    contents = read_file(checkpoint)
    noted = noted_settings(contents)
    if not noted:
        raise CheckpointError(f'{checkpoint} has no settings: it is not a checkpoint of a training with mmattn')
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
        # The weights of a backbone alone, as of a distillation, have no name of a part.
        model = MODELS.build(cfg.model.backbone if '' in noted else cfg.model)
    tensors = _weights_of(model, contents, checkpoint)
    noted = {
        part: {key: value for key, value in noted.get(part, settings).items() if key in settings}
        for part, settings in backbone_settings(model).items()
    }
    whole = backbone_settings(model).keys() != {''}
    published = Config(_without_machine({key: value for key, value in cfg.to_dict().items() if key not in MACHINE}))
    parameters = sum(tensor.numel() for name, tensor in tensors.items() if not name.endswith(STATISTICS))
    backbone = published.model.backbone.to_dict()
    backbone = {'type': backbone.pop('type'), **backbone}  # A dumped config has its keys in the order of the alphabet.
    names = _without_machine(dict(names=[*starts]))['names']
    module, inferencer, weights = INFERENCERS.get(package_of(cfg), ('', '', ''))
    predict = PREDICT.format(module=module, inferencer=inferencer, weights=weights, scheme=READ_BY_MMGUARD)
    card = CARD.format(
        license=license,
        start=', '.join(f'{name} ({terms or "see its authors"})' for name, terms in zip(names, starts.values()))
        or 'config.py names no weights',
        predict=predict if module and whole else '',
        name=name,
        backbone=backbone['type'],
        version=version('mmattn'),
        task=TASKS.get(package_of(cfg), 'image-feature-extraction'),
        head=' | '.join(['parameters / M', *figures]),
        line=' | '.join(['---:'] * (1 + len(figures))),
        row=' | '.join([f'{parameters / 1e6:.2f}', *figures.values()]),
        settings=', '.join(f'{key}={value!r}' for key, value in backbone.items() if key != 'init_cfg'),
        data=data.rstrip('.'),
    )
    weights, config, readme = files
    with whole_file(weights) as part:
        # safetensors itself writes files that others cannot read, and has its own errors for a full disk.
        halves = {key: halved(value) for key, value in tensors.items()}
        part.write_bytes(safetensors_of(halves, noted, _named_classes(contents) if whole else None))
    with whole_file(config) as part:
        part.write_text(without_secrets(published.pretty_text), encoding='utf-8')
    with whole_file(readme) as part:
        part.write_text(without_secrets(card), encoding='utf-8', errors='surrogateescape')


def starting_licenses(cfg: Config) -> dict[str, str | None]:
    """The weights that a config names, for the model or a part -> their license; None if timm does not know it."""
    names = [node.get('checkpoint') for _, node in nested(cfg.model, 'model') if is_pretrained(node)]
    return licenses_of([*names, cfg.model.get('pretrained'), cfg.get('load_from')])


def _named_classes(contents: object) -> dict[str, list] | None:
    """The names and colours of the classes that a checkpoint notes, as lists of text and of numbers."""
    for meta in saved_meta(contents):
        classes, palette = meta.get('classes'), meta.get('palette')
        if isinstance(classes, (list, tuple)):
            named = dict(classes=[str(name) for name in classes])
            if isinstance(palette, (list, tuple)):
                named['palette'] = [[int(value) for value in colour] for colour in palette]
            return named
    return None


def _weights_of(model: nn.Module, contents: dict, checkpoint: Path) -> dict[str, Tensor]:
    """The weights in a checkpoint, if they are all of a model and no others."""
    try:
        tensors = whole_model_weights(contents, model, str(checkpoint), resumes=True)
        check_complete(tensors, model, str(checkpoint))
        problems = misfits(Translation(dict(tensors)), model.state_dict())
        if problems:
            raise CheckpointError(f'{checkpoint}: {listed(problems)}')
    except CheckpointError as error:
        raise CheckpointError(
            f'{error}. Only weights of the config itself are published: name the config that {checkpoint} was trained '
            'with, and --row if it was trained with one'
        ) from error
    return dict(tensors)


def _without_machine(cfg: dict) -> dict:
    """A copy of a config without the folders of this machine. Of an absolute path, the name of the topmost folder that
    the config names stays, and what is within it. In place of a home folder or of a user's name stands "data"."""
    texts: set[str] = set()
    _mapped(cfg, lambda text: texts.add(text) or text)
    parts = {text: re.split(r'[/\\]+', text.rstrip('/\\')) for text in texts if ABSOLUTE.fullmatch(text)}
    home = Path.home()
    within = re.compile(rf'(?<![\w./~-]){re.escape(str(home))}(?=[/\s\'",;:)]|$)')

    def shown(text: str) -> str:
        if text not in parts:
            return within.sub('~', text) if home.name else text
        own = parts[text]
        top = min((each for each in parts.values() if own[: len(each)] == each), key=len)
        private = len(top) == 3 and top[1] in ('home', 'Users') or top[-1].startswith('~')
        name = 'data' if private or top[-1] in ('', home.name) else top[-1]
        return '/'.join([name, *own[len(top) :]]) + '/' * text.endswith(('/', '\\'))

    return _mapped(cfg, shown)


def _mapped(node: object, change: Callable[[str], str]) -> object:
    """A copy of a node of a config with other texts."""
    if isinstance(node, dict):
        return {key: _mapped(value, change) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        return type(node)(_mapped(value, change) for value in node)
    return change(str(node)) if isinstance(node, (str, Path)) else node


def halved(value: Tensor) -> Tensor:
    """Matrices in half precision, unless a value is beyond its range. Vectors stay, because they are small."""
    half = value.half() if value.dtype == torch.float32 and value.dim() > 1 else value
    # safetensors refuses tensors that share memory, as tied weights do
    return (half if half.isfinite().all() else value).clone(memory_format=torch.contiguous_format)
