"""A trained model as a folder to share: weights, config and model card."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
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
- {tag}
---

# {name}

{backbone} of mmattn {version}{origin}.

| {head} |
| {line} |
| {row} |

```python
{code}
```

{more}Data: {data}.

Start: {start}.

The license is that of the weights. It gives no right to the images.
"""
CODE = """backbone = dict({arguments})
backbone['init_cfg'] = dict(type='Pretrained', checkpoint='model.safetensors')"""


def share(
    folder: Path,
    config: str,
    read: Callable[[], tuple[dict[str, Tensor], tuple[dict | None, ...], str, dict[str, str]]],
    license: str | None,
    starts: dict[str, str | None],
    figures: dict[str, str] | None = None,
    keep_card: bool = False,
) -> None:
    """Write model.safetensors, a config and README.md to a folder: all of them or none, without secrets.

    Args:
        config: name of the config's file.
        read: gives the tensors; what else :func:`~mmattn.weights.files.safetensors_of` takes; the text of the config;
            and the other fields of ``CARD``. All else is checked before.
        license: of the weights, as the Hugging Face Hub names it. It may be left out if ``starts`` have one.
        starts: the weights that the training started from -> their license, see :func:`starting_licenses`.
        figures: what is measured -> value.
        keep_card: leave a README.md that is there as it is.

    Raises:
        InputError: if a file cannot be written, or the license is not known.
    """
    files = [folder / file for file in ('model.safetensors', config, 'README.md')]
    check_output(*files)
    license, figures = chosen_license(license, starts), figures or {}
    tensors, notes, text, card = read()
    parameters = sum(tensor.numel() for name, tensor in tensors.items() if not name.endswith(STATISTICS))
    names = _without_machine(dict(names=[*starts]))['names']
    readme = CARD.format(
        license=license,
        version=__version__,
        head=' | '.join(['parameters / M', *figures]),
        line=' | '.join(['---:'] * (1 + len(figures))),
        row=' | '.join([f'{parameters / 1e6:.2f}', *figures.values()]),
        start=', '.join(f'{name} ({terms or "see its authors"})' for name, terms in zip(names, starts.values()))
        or 'no weights are named',
        **card,
    )
    # safetensors itself writes files that others cannot read, and has its own errors for a full disk.
    contents = [safetensors_of(tensors, *notes)]
    contents += [without_secrets(each).encode(errors='surrogateescape') for each in (text, readme)]
    with ExitStack() as parts:  # They get their names at the end.
        for file, content in zip(files[:-1] if keep_card and files[-1].exists() else files, contents):
            parts.enter_context(whole_file(file)).write_bytes(content)


def publish(
    cfg: Config,
    name: str,
    read: Callable[[], dict],
    folder: Path,
    figures: dict[str, str],
    data: str,
    license: str | None = None,
) -> None:
    """Share what was trained by a config, without the folders of this machine; matrices in half precision.

    Args:
        name: heading of the card.
        read: reads what was trained, see :func:`mmguard.runs.trained.read_trained`; all else is checked before.
        figures, license: see :func:`share`.
        data: what it was trained on, and the terms of the data.

    Raises:
        InputError: if a file cannot be written, or the license is not known.
        CheckpointError: of ``read``.
    """

    def contents() -> tuple:
        trained = read()
        published = Config(_without_machine({key: value for key, value in cfg.to_dict().items() if key not in MACHINE}))
        backbone = published.model.backbone.to_dict()
        backbone = {'type': backbone.pop('type'), **backbone}  # A dumped config has its keys in the alphabet's order.
        arguments = ', '.join(f'{key}={value!r}' for key, value in backbone.items() if key != 'init_cfg')
        card = dict(
            name=name,
            task=TASKS.get(trained['package'], 'image-feature-extraction'),
            tag='mmattn',
            backbone=backbone['type'].removeprefix('mmattn.'),
            origin=', trained by `config.py` in this folder',
            code=CODE.format(arguments=arguments),
            more=trained['predict'],
            data=data.rstrip('.'),
        )
        halves = {key: halved(value) for key, value in trained['tensors'].items()}
        return halves, (trained['settings'], trained['classes']), published.pretty_text, card

    share(folder, 'config.py', contents, license, starting_licenses(cfg), figures)


def starting_licenses(cfg: Config) -> dict[str, str | None]:
    """The weights that a config names, for the model or a part -> their license; None if timm does not know it."""
    return licenses_of([*checkpoints_in(cfg.model), cfg.model.get('pretrained'), cfg.get('load_from')])


def checkpoints_in(node: object) -> Iterator[str]:
    """What the entries of ``init_cfg`` in a node of a config load."""
    if isinstance(node, dict) and is_pretrained(node):
        yield node.get('checkpoint')
    for each in node.values() if isinstance(node, dict) else node if isinstance(node, (list, tuple)) else ():
        yield from checkpoints_in(each)


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
