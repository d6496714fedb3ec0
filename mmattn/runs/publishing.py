"""A trained model as a folder to share: weights, config and model card."""

import json
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from safetensors.torch import save
from torch import Tensor

from ..errors import CheckpointError
from ..version import __version__
from ..weights import plain_names, read_file, weights_in
from ..weights.files import noted_settings
from .configs import package_of
from .outputs import check_output, whole_file

#: scope of a config -> task, as model hubs name it
TASKS = dict(mmpretrain='image-classification', mmdet='object-detection', mmseg='image-segmentation')
#: what batch norms have beside parameters
STATISTICS = ('.running_mean', '.running_var', '.num_batches_tracked')
CARD = """---
library_name: mmattn
license: apache-2.0
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

Data: {data}.

The license is that of the weights. It gives no right to the images.
"""


def publish(cfg: Config, name: str, checkpoint: Path, folder: Path, figures: dict[str, str], data: str) -> None:
    """Write model.safetensors, config.py and README.md.

    Args:
        name: heading of the card.
        figures: what is measured -> value.
        data: what it was trained on, and the terms of the data.

    Raises:
        InputError: if a file cannot be written.
        CheckpointError: if the checkpoint cannot be read, if mmattn did not write it, or if it is of another config.
    """
    files = [folder / file for file in ('model.safetensors', 'config.py', 'README.md')]
    check_output(*files)
    contents = read_file(checkpoint)
    noted = noted_settings(contents)
    if not noted:
        raise CheckpointError(f'{checkpoint} has no settings: it is not a checkpoint of a training with mmattn')
    tensors = plain_names(weights_in(contents)[0], str(checkpoint))
    if 'backbone' in noted:  # With another config, the card would have settings that refuse the weights.
        with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
            part = MODELS.build(dict(cfg.model.backbone, init_cfg=None))
        # A backbone also takes weights of the one that it extends, as GSA-ResNet those of a ResNet.
        if set(part.state_dict()) - {name.removeprefix('backbone.') for name in tensors}:
            raise CheckpointError(
                f'{checkpoint} is of another config than this, whose backbone is {cfg.model.backbone.type}: name its '
                'own, and the row in MMATTN_ROW'
            )
        part.load_pretrained(checkpoint)
    parameters = sum(tensor.numel() for name, tensor in tensors.items() if not name.endswith(STATISTICS))
    backbone = cfg.model.backbone.to_dict()
    backbone = {'type': backbone.pop('type'), **backbone}  # A dumped config has its keys in the order of the alphabet.
    card = CARD.format(
        name=name,
        backbone=backbone['type'],
        version=__version__,
        task=TASKS.get(package_of(cfg), 'image-feature-extraction'),
        head=' | '.join(['parameters / M', *figures]),
        line=' | '.join(['---:'] * (1 + len(figures))),
        row=' | '.join([f'{parameters / 1e6:.2f}', *figures.values()]),
        settings=', '.join(f'{key}={value!r}' for key, value in backbone.items() if key != 'init_cfg'),
        data=data.rstrip('.'),
    )
    weights, config, readme = files
    with whole_file(weights) as part:
        noted = dict(format='pt', mmattn=json.dumps(noted))
        # safetensors itself writes files that others cannot read, and has its own errors for a full disk.
        part.write_bytes(save({key: halved(value) for key, value in tensors.items()}, noted))
    with whole_file(config) as part:
        cfg.dump(part)
    with whole_file(readme) as part:
        part.write_text(card, 'utf-8')


def halved(value: Tensor) -> Tensor:
    """Matrices in half precision, unless a value is beyond its range. Vectors stay, because they are small."""
    half = value.half() if value.dtype == torch.float32 and value.dim() > 1 else value
    # safetensors refuses tensors that share memory, as tied weights do
    return (half if half.isfinite().all() else value).clone(memory_format=torch.contiguous_format)
