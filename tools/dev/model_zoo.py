"""Write docs/model_zoo.md from the metafiles of configs/*, or with --check exit with 1 if it is stale.

    python tools/dev/model_zoo.py [--check]

What a metafile of ours has beside OpenMMLab's fields:

- A model's ``Metadata``: all parameters and multiply-adds as ``tools/complexity.py`` counts them, without multiply-adds
  where it counts none. They are counted anew where a metafile has no parameters.
- A model's ``Input Size``, if it is not the usual one. It is not in ``Metadata``, where mim can read texts only.
- A model's ``Printed``: the paper's own ``Parameters`` and ``FLOPs``. ``Operations per Multiply-Add: 2`` says that the
  paper counts multiplications and additions, ``Parameters Counted: matrices`` that it leaves out biases and norms,
  ``Attention Counted`` what share of attention's products it counts.
- A model's ``Results``: the paper's.
- A model's ``Released Weights``: the ``Source``, the ``File`` in checkpoints/ that our configs expect, and the
  ``Metrics`` that the authors give for it, which are not always the paper's.
- A collection's ``Benchmark``: what ``tools/benchmark.py`` compares, a list of a ``Model`` and its ``Peer``.
"""

import argparse
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / 'docs' / 'model_zoo.md'
HEAD = """\
<!-- written by tools/dev/model_zoo.py from configs/*/metafile.yml -->
# Model zoo

**Nothing was trained here.** Accuracies are the papers'. The last column links to weights that the authors released and
gives the authors' score for them, which is not always the paper's. MSF and GSA have none: their detectors and
segmentors start from classifiers that the configs here train.

These are the commands for the first row. Those of other rows differ in the config and the checkpoint: a file of the
last column, or one that was trained here.

```
python tools/train.py configs/elsa_swin/elsa-swin-t_in1k.py
python tools/test.py configs/elsa_swin/elsa-swin-t_in1k.py checkpoints/elsa_swin_tiny.pth
```

The test of a classifier prints top-1 and top-5 accuracy. It resizes and crops images as the release does. For a
segmentor, `--tta` gives mIoU(ms+flip).

| name of the config | data | input size for counting operations |
| --- | --- | --- |
| `_in1k`, `_300e_in1k` (300 epochs) | ImageNet-1k | 224 x 224 |
| `_384_in1k` (fine-tuned) | ImageNet-1k | 384 x 384 |
| `_inat2018`, `_inat2019`, `_cifar100` (fine-tuned) | iNaturalist, CIFAR-100 | 224 x 224 |
| `_coco` | COCO | 1280 x 800 |
| `_ade20k` | ADE20K | 2048 x 512; SegFormer 512 x 512 |
| `_cityscapes` | Cityscapes | not counted |
| `_voc0712` | Pascal VOC 2007 and 2012 | 1280 x 800 |

Parameters and operations are counted by `python tools/complexity.py CONFIG`. Operations are multiply-adds. The papers'
own counts stand beside them. DINO, Deformable DETR and Mask2Former have no count of operations: their deformable
attention does not run without data. With MMDetection 3.3, DINO has 0.1 M parameters fewer: its checkpoints do not fit
those of the stack onedl.

- ¹ The paper counts multiplications and additions: two operations for one multiply-add.
- ² The paper counts weight matrices only: no biases, no norms.
- ³ The paper counts no products of attention, or a part of them.
"""
COLUMNS = ('config', 'parameters', 'multiply-adds', "the paper's count", "the paper's accuracy", 'released weights')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--check', action='store_true', help='write nothing, exit with 1 if the page is stale')
    args = parser.parse_args()
    page = model_zoo()
    if not args.check:
        PAGE.write_text(page)
    elif not PAGE.is_file() or PAGE.read_text() != page:
        sys.exit('docs/model_zoo.md is stale: run python tools/dev/model_zoo.py')


def model_zoo() -> str:
    """The page."""
    return '\n'.join([HEAD, *(family(path) for path in sorted(ROOT.glob('configs/*/metafile.yml')))])


def family(metafile: Path) -> str:
    """The section of one metafile."""
    content = yaml.safe_load(metafile.read_text())
    (collection,) = content['Collections']
    paper = collection['Paper']
    rows = [row(entry) for entry in content['Models']]
    table = [COLUMNS, ['---'] * len(COLUMNS), *rows]
    return '\n'.join(
        [
            f'## {collection["Name"]}\n',
            f'[{paper["Title"]}]({paper["URL"]}), [about the configs](../{collection["README"]})\n',
            *(f'| {" | ".join(cells)} |' for cells in table),
            '',
        ]
    )


def row(entry: dict) -> list[str]:
    """A model's cells."""
    parameters, operations = size(entry)
    results = {name: value for result in entry.get('Results', ()) for name, value in result['Metrics'].items()}
    weights = entry.get('Released Weights')
    return [
        f'[{entry["Name"]}](../{entry["Config"]})',
        f'{parameters / 1e6:.1f} M',
        f'{operations / 1e9:.{2 if operations < 1e11 else 0}f} G' if operations else '',
        printed(entry.get('Printed', {})),
        metrics(results),
        released(weights) if weights else '',
    ]


def size(entry: dict) -> tuple[float, float | None]:
    """Parameters and multiply-adds of a model."""
    metadata = entry.get('Metadata', {})
    if 'Parameters' in metadata:
        return metadata['Parameters'], metadata.get('FLOPs')
    from mmattn.analysis import count_config  # building models takes long

    return count_config(ROOT / entry['Config'])


def printed(figures: dict) -> str:
    """The paper's own count, with the marks that the head of the page explains."""
    cells = []
    if 'Parameters' in figures:
        cells.append(f'{figures["Parameters"] / 1e6:g} M' + '²' * ('Parameters Counted' in figures))
    if 'FLOPs' in figures:
        marks = '¹' * (figures.get('Operations per Multiply-Add') == 2) + '³' * ('Attention Counted' in figures)
        cells.append(f'{figures["FLOPs"] / 1e9:g} G{marks}')
    return ', '.join(cells)


def released(weights: dict) -> str:
    """The authors' score, with a link to their page, and the file."""
    file = f', `{weights["File"]}`' if 'File' in weights else ''
    return f'[{metrics(weights["Metrics"])}]({weights["Source"]}){file}'


def metrics(values: dict) -> str:
    """Figures with their names: "82.7 top 1"."""
    return ', '.join(f'{value} {name.replace(" Accuracy", "").replace("Top", "top")}' for name, value in values.items())


if __name__ == '__main__':
    main()
