"""Write a trained model as a folder to share: weights, config and model card.

    python tools/publish.py CONFIG CHECKPOINT FOLDER --figures top-1=41.2 --data 'Tiny ImageNet, for research only'

model.safetensors has the weights in half precision, and the settings of the backbones that tensors do not show.
config.py is the config in one file. README.md is the card, with the figures and the note on the data. Any ``init_cfg``
takes the weights: ``init_cfg=dict(type='Pretrained', checkpoint='FOLDER/model.safetensors')``.
"""

import argparse
import json
from pathlib import Path

import torch
from mmengine.config import Config
from safetensors.torch import save_file
from torch import Tensor

import mmattn
from mmattn.errors import InputError
from mmattn.runs.configs import load_config
from mmattn.runs.outputs import check_output, whole_file
from mmattn.runs.running import run_tool
from mmattn.weights import CheckpointError, plain_names, read_file, weights_in
from mmattn.weights.files import noted_settings

#: scope of a config -> task, as model hubs name it
TASKS = dict(mmpretrain='image-classification', mmdet='object-detection', mmseg='image-segmentation')
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', type=Path)
    parser.add_argument('checkpoint', type=Path, help='of a training with this config')
    parser.add_argument('folder', type=Path, help='folder to write to; files in it are written anew')
    parser.add_argument('--figures', nargs='+', default=[], metavar='NAME=VALUE', help='for the card')
    parser.add_argument('--data', required=True, help='what it was trained on, and the terms of the data, for the card')
    args = parser.parse_args()
    figures = [figure.partition('=') for figure in args.figures]
    if not all(name and value for name, _, value in figures):
        raise InputError(f'--figures must be NAME=VALUE, not {" ".join(args.figures)}')
    cfg = load_config(args.config)
    publish(cfg, args.folder.name, args.checkpoint, args.folder, {name: value for name, _, value in figures}, args.data)
    print(f'{args.folder} is written')


def publish(cfg: Config, name: str, checkpoint: Path, folder: Path, figures: dict[str, str], data: str) -> None:
    """Write model.safetensors, config.py and README.md.

    Args:
        name: heading of the card.
        figures: what is measured -> value.
        data: what it was trained on, and the terms of the data.

    Raises:
        InputError: if a file cannot be written.
        CheckpointError: if the checkpoint cannot be read, or mmattn did not write it.
    """
    files = [folder / file for file in ('model.safetensors', 'config.py', 'README.md')]
    check_output(*files)
    contents = read_file(checkpoint)
    noted = noted_settings(contents)
    if not noted:
        raise CheckpointError(f'{checkpoint} has no settings: it is not a checkpoint of a training with mmattn')
    tensors = plain_names(weights_in(contents)[0], str(checkpoint))
    backbone = cfg.model.backbone.to_dict()
    backbone = {'type': backbone.pop('type'), **backbone}  # A dumped config has its keys in the order of the alphabet.
    card = CARD.format(
        name=name,
        backbone=backbone['type'],
        version=mmattn.__version__,
        task=TASKS.get(cfg.get('default_scope'), 'image-feature-extraction'),
        head=' | '.join(['parameters / M', *figures]),
        line=' | '.join(['---:'] * (1 + len(figures))),
        row=' | '.join([f'{sum(tensor.numel() for tensor in tensors.values()) / 1e6:.2f}', *figures.values()]),
        settings=', '.join(f'{key}={value!r}' for key, value in backbone.items() if key != 'init_cfg'),
        data=data.rstrip('.'),
    )
    weights, config, readme = files
    with whole_file(weights) as part:
        save_file(
            {key: halved(value) for key, value in tensors.items()}, part, dict(format='pt', mmattn=json.dumps(noted))
        )
    with whole_file(config) as part:
        cfg.dump(part)
    with whole_file(readme) as part:
        part.write_text(card)


def halved(value: Tensor) -> Tensor:
    """Matrices in half precision. Vectors stay: they are small, and a variance may be beyond the range of float16."""
    return (value.half() if value.dtype == torch.float32 and value.dim() > 1 else value).contiguous()


if __name__ == '__main__':
    run_tool(main)
