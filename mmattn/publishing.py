"""A trained model as a folder to share: weights, config and model card."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from mmengine.config import Config
from torch import Tensor

from .outputs import check_output, whole_file
from .privacy import without_secrets
from .version import __version__
from .weights import is_pretrained
from .weights.files import safetensors_of
from .weights.licenses import chosen_license, licenses_of

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


def publish(
    cfg: Config,
    name: str,
    read: Callable[[], dict],
    folder: Path,
    figures: dict[str, str],
    data: str,
    license: str | None = None,
) -> None:
    """Write model.safetensors, config.py and README.md, without secrets and without the folders of this machine.

    Args:
        name: heading of the card.
        read: reads what was trained, see :func:`mmguard.runs.trained.read_trained`; all else is checked before.
        figures: what is measured -> value.
        data: what it was trained on, and the terms of the data.
        license: of the weights, as the Hugging Face Hub names it. It may be left out if the weights that the training
            started from have one that is known, see :func:`starting_licenses`.

    Raises:
        InputError: if a file cannot be written, or the license is not known.
        CheckpointError: of ``read``.
    """
    files = [folder / file for file in ('model.safetensors', 'config.py', 'README.md')]
    check_output(*files)
    starts = starting_licenses(cfg)
    license = chosen_license(license, starts)
    trained = read()
    tensors = trained['tensors']
    published = Config(_without_machine({key: value for key, value in cfg.to_dict().items() if key not in MACHINE}))
    parameters = sum(tensor.numel() for name, tensor in tensors.items() if not name.endswith(STATISTICS))
    backbone = published.model.backbone.to_dict()
    backbone = {'type': backbone.pop('type'), **backbone}  # A dumped config has its keys in the order of the alphabet.
    names = _without_machine(dict(names=[*starts]))['names']
    card = CARD.format(
        license=license,
        start=', '.join(f'{name} ({terms or "see its authors"})' for name, terms in zip(names, starts.values()))
        or 'config.py names no weights',
        predict=trained['predict'],
        name=name,
        backbone=backbone['type'],
        version=__version__,
        task=TASKS.get(trained['package'], 'image-feature-extraction'),
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
        part.write_bytes(safetensors_of(halves, trained['settings'], trained['classes']))
    with whole_file(config) as part:
        part.write_text(without_secrets(published.pretty_text), encoding='utf-8')
    with whole_file(readme) as part:
        part.write_text(without_secrets(card), encoding='utf-8', errors='surrogateescape')


def starting_licenses(cfg: Config) -> dict[str, str | None]:
    """The weights that a config names, for the model or a part -> their license; None if timm does not know it."""
    return licenses_of([*_checkpoints(cfg.model), cfg.model.get('pretrained'), cfg.get('load_from')])


def _checkpoints(node: object) -> Iterator[str]:
    """What the entries of ``init_cfg`` in a node of a config load."""
    if isinstance(node, dict) and is_pretrained(node):
        yield node.get('checkpoint')
    for each in node.values() if isinstance(node, dict) else node if isinstance(node, (list, tuple)) else ():
        yield from _checkpoints(each)


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
