"""Parameters and operations of models, beside the figures that their papers print.

    python tools/complexity.py configs/elsa_swin/*.py

Every config gets a row for its backbone as the paper's ImageNet classifier (224 x 224, 1000 classes) and, for a
detector (1280 x 800) or segmentor (2048 x 512), one for the whole model. The paper's figures, their input size and
their unit stand in metafile.yml beside the config. Exits with 1 if a figure is more than 2 % (parameters) or 3 %
(operations) off.

Counted as the papers count: multiply-adds (or twice that, where the paper does) of convolutions, matrix products,
fused attention and the ELSA operator; 1000 proposals through the box heads, 100 through the mask head, in every stage
of a cascade. Some papers' counters missed the products of attention, or a part of them: where the metafile says which
share they saw ("Attention Counted"), so does the end of the row. Likewise where a paper counts weight matrices only
("Parameters Counted: matrices"), and no biases, norms or the like. A classifier's entry may list "Ablations": settings
of its backbone with the paper's figures for them, a row each. Nothing is computed: models are built on PyTorch's meta
device.
"""

import argparse
import functools
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import yaml
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from torch import Tensor, nn

from mmattn.analysis import count_operations
from mmattn.engine.configs import SCOPES
from mmattn.packages import require

PARAMETER_TOLERANCE, OPERATION_TOLERANCE = 0.02, 0.03
#: width x height at which the papers count a model of each scope
INPUT_SIZES = {'mmpretrain': (224, 224), 'mmdet': (1280, 800), 'mmseg': (2048, 512)}
#: settings of a backbone that do not change what it computes
IMMATERIAL = ('out_indices', 'drop_path_rate', 'norm_cfg', 'norm_eval', 'frozen_stages', 'with_cp', 'init_cfg')


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('configs', nargs='+', type=Path, metavar='CONFIG')
    args = parser.parse_args()
    print(
        f'{"model":54s} {"input":>11s} {"params/M":>9s} {"paper":>6s} {"off":>6s} '
        f'{"ops/G":>8s} {"paper":>6s} {"off":>6s}'
    )
    wrong = 0
    for path in args.configs:
        if not path.is_file():
            sys.exit(f'There is no config {path}.')
        cfg = _load(path)
        backbone_entry = _find(path, lambda other: _same_backbone(cfg, other))
        rows = [(f'{path.stem} (backbone)', classifier(cfg), 'mmpretrain', backbone_entry)]
        if cfg.default_scope == 'mmpretrain':
            rows += ablations(cfg, backbone_entry)
        else:
            for package in SCOPES[cfg.default_scope]:
                require(package, f'{path} ({cfg.default_scope})')
            with DefaultScope.overwrite_default_scope(cfg.default_scope), torch.device('meta'):
                model = MODELS.build(cfg.model).eval()
            entry = _find(path, lambda other: other.filename == cfg.filename)
            rows.append((path.stem, model, cfg.default_scope, entry))
        for name, model, scope, entry in rows:
            wrong += report(name, model, scope, entry)
    if wrong:
        print(
            f'{wrong} figures are off by more than {PARAMETER_TOLERANCE:.0%} (parameters) or '
            f'{OPERATION_TOLERANCE:.0%} (operations).'
        )
    return int(wrong > 0)


def report(name: str, model: nn.Module, scope: str, entry: dict) -> int:
    """Print a row; how many of its figures are off."""
    printed = entry.get('Metadata', {})
    width, height = printed.get('Input Size', INPUT_SIZES[scope])
    matrices = printed.get('Parameters Counted') == 'matrices'
    parameters = sum(p.numel() for p in model.parameters() if p.dim() > 1 or not matrices)
    share = printed.get('Attention Counted', 1)
    x = torch.empty(1, 3, height, width, device='meta')
    operations = count_operations(lambda: _forward(model, x), share) * printed.get('Operations per Multiply-Add', 1)
    cells, wrong = [], 0
    for value, key, unit, tolerance in (
        (parameters, 'Parameters', 1e6, PARAMETER_TOLERANCE),
        (operations, 'FLOPs', 1e9, OPERATION_TOLERANCE),
    ):
        paper = printed.get(key)
        off = paper and value / paper - 1
        bad = paper is not None and abs(off) > tolerance
        cells.append(
            f'{value / unit:8.2f} {paper / unit:6.5g} {off:+6.1%}{"!" if bad else " "}'
            if paper
            else f'{value / unit:8.2f} {"-":>6s} {"":7s}'
        )
        wrong += bad
    if matrices:
        cells.append('matrices')
    if share != 1:
        cells.append(f'attention x {share}')
    print(f'{name:54s} {width:5d}x{height:<5d} {" ".join(cells)}', flush=True)
    return wrong


def classifier(cfg: Config) -> nn.Module:
    """The backbone of a config as an ImageNet classifier: its last output, averaged, and a linear layer."""
    backbone = cfg.model.backbone.copy()
    backbone.out_indices = None
    with torch.device('meta'):
        whole = MODELS.build({key: value for key, value in backbone.items() if key != 'out_indices'})
        backbone.out_indices = whole.out_indices[-1:]
        backbone = MODELS.build(backbone)
        channels = backbone(torch.empty(1, 3, 224, 224))[-1].shape[1]
        return nn.ModuleDict(dict(backbone=backbone, head=nn.Linear(channels, 1000))).eval()


def ablations(cfg: Config, entry: dict) -> list[tuple[str, nn.Module, str, dict]]:
    """A row for each of the ablations of a classifier's entry, with the unit of the entry's own figures."""
    rows = []
    for ablation in entry.get('Ablations', ()):
        variant = cfg.copy()
        variant.model = cfg.model.copy()
        variant.model.backbone = {**cfg.model.backbone, **ablation['Settings']}
        units = {key: value for key, value in entry['Metadata'].items() if key not in ('Parameters', 'FLOPs')}
        name = ', '.join(f'{key}={value}' for key, value in ablation['Settings'].items())
        rows.append((f'  {name}', classifier(variant), 'mmpretrain', {'Metadata': {**units, **ablation['Metadata']}}))
    return rows


def _forward(model: nn.Module, x: Tensor) -> None:
    """What of a model the papers count, by what kind of model it is."""
    if isinstance(model, nn.ModuleDict):
        model['head'](model['backbone'](x)[-1].mean((2, 3)))
    elif hasattr(model, 'decode_head'):
        model(x)
    else:
        maps = model.extract_feat(x)
        if not getattr(model, 'with_roi_head', False):
            model.bbox_head(maps)
            return
        model.rpn_head(maps)
        roi_head = model.roi_head
        channels = maps[0].shape[1]
        for bbox_head in _stages(roi_head.bbox_head):
            bbox_head(x.new_empty(1000, channels, 7, 7))
        for mask_head in _stages(roi_head.mask_head) if roi_head.with_mask else ():
            mask_head(x.new_empty(100, channels, 14, 14))


def _stages(head: nn.Module) -> list[nn.Module]:
    return list(head) if isinstance(head, nn.ModuleList) else [head]


def _find(path: Path, wanted: Callable[[Config], bool]) -> dict:
    """The entry of the metafile beside a config whose own config is the wanted one; {} if there is none."""
    metafile = path.parent / 'metafile.yml'
    if metafile.is_file():
        for entry in yaml.safe_load(metafile.read_text())['Models']:
            if wanted(_load(path.parent / Path(entry['Config']).name)):
                return entry
    return {}


_load = functools.cache(Config.fromfile)


def _same_backbone(cfg: Config, other: Config) -> bool:
    if other.default_scope != 'mmpretrain':
        return False
    a, b = ({key: value for key, value in c.model.backbone.items() if key not in IMMATERIAL} for c in (cfg, other))
    return a == b


if __name__ == '__main__':
    sys.exit(main())
