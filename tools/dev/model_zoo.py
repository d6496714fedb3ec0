"""Write docs/model_zoo.md and docs/images/cost_accuracy.png from the metafiles of configs/*.

With --check, write nothing and exit with 1 if the page is stale.

    python tools/dev/model_zoo.py [--check]

Our metafiles have OpenMMLab's fields and these:

- ``Metadata`` of a model: all parameters and multiply-adds, as ``tools/complexity.py`` counts them. If it counts no
  multiply-adds, there are none. If a metafile has no parameters, this tool counts both.
- ``Input Size`` of a model, if it is not the usual one. It is not in ``Metadata``, where mim can read only lists of
  text.
- ``Printed`` of a model: the paper's own ``Parameters`` and ``FLOPs``. ``Operations per Multiply-Add: 2`` means that
  the paper counts multiplications and additions. ``Parameters Counted: matrices`` means that it leaves out biases,
  norms and tables of positions. ``Attention Counted`` is the share of attention's products that it counts. ``Unknown``
  says why the operations cannot agree, ``Note`` what else there is to say. ``Milliseconds`` is the time of an image.
- ``Results`` of a model: the paper's accuracy. ``Table`` of a result is the table that prints it, of a detector or
  segmentor.
- ``Released Weights`` of a model: the ``Source``, the ``File`` in checkpoints/ that our configs expect, and the
  ``Metrics`` that the authors give for this file. They can differ from the paper's.
- ``printed.yml`` in the folder ``ablations`` has the paper's figures of the rows there, see ``FIGURES``.
- ``Benchmark`` of a collection: a list of a ``Model`` and its ``Baseline``, which ``tools/benchmark.py`` compares.
"""

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / 'docs' / 'model_zoo.md'
PLOT = ROOT / 'docs' / 'images' / 'cost_accuracy.png'
METAFILES = sorted(ROOT.glob('configs/*/metafile.yml'), key=lambda path: (path.parent.name == 'baselines', path))
#: name of an ImageNet classifier in the comparison; group 1 is its family, group 2 the variant
CLASSIFIER = re.compile(
    r'(elsa-swin-|shunted-|msf-swin-|msf-vit-|gsa-r|nat-|dinat-(?!l)|dinat_s-(?!l)|transnext-|swin-|vit-|r|pvtv2-(?!b0))([a-z\d]+)(-all)?'
    r'(_3\d0e)?_in1k'
)
LEFT, ABOVE, BELOW, RIGHT = (-12, -3), (-12, 5), (4, -11), (7, -9)
#: family -> its name, and the offset of its labels in the plot
FAMILIES = {
    'elsa-swin-': ('ELSA-Swin', BELOW),
    'shunted-': ('Shunted', ABOVE),
    'msf-swin-': ('MSF-Swin', RIGHT),
    'msf-vit-': ('MSF-ViT', RIGHT),
    'gsa-r': ('GSA-ResNet', ABOVE),
    'nat-': ('NAT', ABOVE),
    'dinat-': ('DiNAT', BELOW),
    'dinat_s-': ('DiNAT_s', ABOVE),
    'transnext-': ('TransNeXt', ABOVE),
    'swin-': ("Swin, in MSF's paper", BELOW),
    'vit-': ("ViT, in MSF's paper", BELOW),
    'r': ("ResNet, in GSA's paper", BELOW),
    'own-swin-': ("Swin, in ELSA's paper", LEFT),
    'pvtv2-': ('PVTv2, in its paper', ABOVE),
}
HEAD = """\
<!-- written by tools/dev/model_zoo.py from configs/*/metafile.yml -->
# Model zoo

**None of these models was trained here.** Accuracies are the papers'. The last column links to weights that the
authors released, and gives the authors' score for these weights. It can differ from the paper's accuracy. MSF, GSA
and ELSA-VOLO have no released weights: their detectors and segmentors start from classifiers that you train with the
configs here.

These are the commands for the first line of [the table](#all-models). For another line, change the config and the
checkpoint. The checkpoint is the file in the last column, or one that you trained.

```
python tools/train.py configs/elsa_swin/elsa-swin-t_in1k.py
python tools/test.py configs/elsa_swin/elsa-swin-t_in1k.py checkpoints/elsa_swin_tiny.pth
```

The test of a classifier prints top-1 and top-5 accuracy. It resizes and crops images as the authors' code does. For a
segmentor, `--tta` gives mIoU(ms+flip).

| name of the model | data | input size for counting operations |
| --- | --- | --- |
| `_in1k`, `_300e_in1k` (300 epochs) | ImageNet-1k | 224 x 224 |
| `_384_in1k`, `_448_in1k`, `_512_in1k` (fine-tuned) | ImageNet-1k | 384 x 384, 448 x 448, 512 x 512 |
| `_inat2018`, `_inat2019`, `_cifar100` (fine-tuned) | iNaturalist, CIFAR-100 | 224 x 224 |
| `_coco` | COCO | 1280 x 800 |
| `_ade20k` | ADE20K | 2048 x 512; SegFormer 512 x 512; `-640x640` 2560 x 640 |
| `_cityscapes` | Cityscapes | not counted |
| `_voc0712` | Pascal VOC 2007 and 2012 | 1280 x 800 |

`python tools/complexity.py CONFIG` counts parameters and multiply-adds. The next column has the paper's own count. For
DINO, Deformable DETR and Mask2Former, no multiply-adds are counted, because deformable attention does not run without
data. With MMDetection 3.3, DINO has 0.1 M parameters fewer than with 3.5. So a checkpoint of DINO fits only one of
them.

- ¹ The paper counts two operations for one multiply-add. GSA's says so. Of MSF's, the figures show it.
- ² Matrices and filters of layers only, without biases, norms and tables of positions. The paper does not say so;
  counts like this have its digits.
- ³ No products of attention, or only some of them. The paper does not say so; counts like this agree to 0.3 %,
  those of Twins-SVT-S to 1.2 %.
- ms: the time of an image on a TPUv3, which GSA's paper prints.
- ⁴ A line below the table says what the paper leaves open, or by how much the counts differ.
"""
COMPARISON = """\
## Cost and accuracy

This table compares the backbones as ImageNet-1k classifiers at 224 x 224.

- **Parameters and multiply-adds** are those of the classifier.
- **Top-1** is the paper's accuracy, for training on ImageNet-1k alone for 300 epochs (ELSA, NAT and DiNAT: 310, GSA and
  its ResNets: 90).
- **Box AP** is the paper's, for a Mask R-CNN on COCO after 12 epochs. ELSA's paper trains with images of several sizes.
- **Training step on a CPU** is the time of a step, as a multiple of the time of the model named beside it. See the
  [benchmarks](benchmarks.md).
- GSA-ResNet-50 has attention in groups 2 to 4, GSA-ResNet-38 and 101 have it in all groups.
- In the plot, squares are models of other papers. They have configs here, too.

![Top-1 accuracy over multiply-adds, a line per family](images/cost_accuracy.png)

| backbone | variant | parameters | multiply-adds | top-1 | box AP | training step on a CPU |
| --- | --- | --- | --- | --- | --- | --- |
"""
PRINTED_TABLES = """\
## Detectors and segmentors as printed

The accuracies of each table of a paper, for the models that have a config here. They are the papers' claims. Those of
the models that a paper compares with are often taken from other papers. Parameters and multiply-adds are counted here;
the table above has the papers' own counts.

"""
COLUMNS = ('model', 'parameters', 'multiply-adds', "the paper's count", "the paper's accuracy", 'released weights')


#: key of a row in printed.yml -> head of its column
FIGURES = dict(
    params='parameters, millions',
    flops='operations, billions',
    top1='top-1',
    top5='top-5',
    sdc='top-1, computed in sliding chunks',
    epochs='top-1 after epochs',
    loss='training loss',
    training='top-1 in training',
    ms='ms per image, TPUv3',
    here='what it is here',
    unknown='left open',
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--check', action='store_true', help='write nothing, exit with 1 if the page is stale')
    args = parser.parse_args()
    page = model_zoo()
    if not args.check:
        PAGE.write_text(page, 'utf-8')
        plot()
    elif not PAGE.is_file() or PAGE.read_text('utf-8') != page:
        sys.exit('docs/model_zoo.md is stale: run python tools/dev/model_zoo.py')


def model_zoo() -> str:
    """The page."""
    printed_lines = [line for path in METAFILES for line in as_printed(path)]
    parts = [HEAD, comparison(), all_models(), PRINTED_TABLES + '\n'.join(printed_tables())]
    return '\n'.join([*parts, '## What the papers print\n', *printed_lines])


def compared() -> list[tuple]:
    """Rows of the comparison: family, variant, parameters, multiply-adds, top-1, box AP, time of a training step."""
    models = [
        model for path in METAFILES for model in yaml.safe_load(path.read_text('utf-8'))['Models'] if 'Results' in model
    ]
    # only the first result of each model
    results = {model['Name']: next(iter(model['Results'][0]['Metrics'].values())) for model in models}
    measured = (ROOT / 'docs' / 'benchmarks.md').read_text('utf-8').partition('\n## GPU\n')[0]
    folders = {model['Name']: model['In Collection'] for model in models}
    rows = []
    for model in models:
        name, match = model['Name'], CLASSIFIER.fullmatch(model['Name'])
        better = {name.replace('_in1k', '_300e_in1k'), name.replace('-all', '')} - {name}
        if match and not better & set(results):
            backbone = match[1] + match[2]
            detectors = [f'mask-rcnn_{backbone}_fpn_{schedule}_coco' for schedule in ('ms-1x', '1x')]
            detectors = [detector for detector in detectors if folders.get(detector) == folders[name]]
            box_ap = results[detectors[0]] if detectors else ''
            step = re.search(rf"^\| {backbone}[^|]* \| \w+'s (\S+) \|[^|]*\| ([\d.]+) ", measured, re.M | re.I)
            ratio = f'{step[2]} x {step[1]}' if step else ''
            family = 'own-swin-' if match[4] == '_310e' else match[1]
            rows.append((family, match[2], *size(model), results[name], box_ap, ratio))
    return sorted(rows, key=lambda row: (list(FAMILIES).index(row[0]), row[3]))


def comparison() -> str:
    """The section on cost and accuracy."""
    lines = []
    for family, variant, parameters, operations, top1, box_ap, step in compared():
        costs = f'{parameters / 1e6:.1f} M | {operations / 1e9:.1f} G'
        lines.append(f'| {FAMILIES[family][0]} | {variant} | {costs} | {top1:.1f} | {box_ap} | {step} |')
    return COMPARISON + '\n'.join(lines) + '\n'


def plot() -> None:
    """Draw top-1 accuracy over multiply-adds."""
    import matplotlib

    matplotlib.use('Agg')
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(9.5, 8), layout='constrained')
    for number, (family, (name, place)) in enumerate(FAMILIES.items()):
        style = 'o-' if number < 9 else 's--'  # mmattn's come first
        variants = [(row[1], (row[3] / 1e9, row[4])) for row in compared() if row[0] == family]
        axis.plot(*zip(*(point for _, point in variants)), style, label=name, color=f'C{number}', markersize=5)
        for variant, point in variants:
            axis.annotate(variant.upper(), point, place, textcoords='offset points', color=f'C{number}', size=9)
    axis.set(xlabel='multiply-adds, billions', ylabel="the papers' top-1 accuracy on ImageNet-1k at 224 x 224, %")
    axis.set(xscale='log', xticks=(1, 2, 5, 10, 20), xticklabels=(1, 2, 5, 10, 20))
    axis.minorticks_off()
    axis.grid(alpha=0.3)
    axis.legend(loc='lower right')
    figure.savefig(PLOT, dpi=110)


def all_models() -> str:
    """The section with a table of all models."""
    contents = [yaml.safe_load(path.read_text('utf-8')) for path in METAFILES]
    papers = []
    for (collection,) in (content['Collections'] for content in contents):
        paper = collection.get('Paper')  # rows of other packages have one each, in their README
        source = f'[{paper["Title"]}]({paper["URL"]}), ' if paper else ''
        papers.append(f'- **{collection["Name"]}**: {source}[about the configs](../{collection["README"]})')
    models = [entry for content in contents for entry in content['Models']]
    notes: dict[str, list[str]] = {}
    for entry in models:
        figures = entry.get('Printed', {})
        for text in (figures[key] for key in ('Unknown', 'Note') if key in figures):
            notes.setdefault(text, []).append(entry['Name'])
    return '\n'.join(
        [
            '## All models\n',
            *papers,
            '',
            *table(COLUMNS, map(row, models)),
            *(f'⁴ {", ".join(names)}: {text}.\n' for text, names in notes.items()),
        ]
    )


def printed_tables() -> Iterator[str]:
    """Lines of the papers' tables of detectors and segmentors. Models of one framework and schedule stand together, in
    the order of their accuracies."""
    tables: dict[str, dict[str, dict]] = {}
    entries = {entry['Name']: entry for path in METAFILES for entry in yaml.safe_load(path.read_text())['Models']}
    for name, entry in entries.items():
        for result in entry.get('Results', ()):
            if 'Table' in result:
                tables.setdefault(result['Table'], {}).setdefault(name, {}).update(result['Metrics'])
    # "table 3 of Shunted": by paper, then by number
    for title, models in sorted(tables.items(), key=lambda item: (item[0].split()[3], int(item[0].split()[1]))):
        keys = list(dict.fromkeys(key for values in models.values() for key in values))
        names = sorted(models, key=lambda name: (framework(name), next(iter(models[name].values()))))
        yield f'{title[0].upper()}{title[1:]}:\n'
        yield from table(
            ['model', *COLUMNS[1:3], *keys],
            [[name, *sizes(entries[name]), *(str(models[name].get(key, '')) for key in keys)] for name in names],
        )


def framework(name: str) -> str:
    """The name of a detector or segmentor without its backbone."""
    parts = name.split('_')
    del parts[1 if parts[-1] == 'coco' else 0]
    return '_'.join(parts)


def as_printed(metafile: Path) -> Iterator[str]:
    """Lines of what a paper prints beyond the table of all models: its ablations and figures."""
    (collection,) = yaml.safe_load(metafile.read_text('utf-8'))['Collections']
    figure = PLOT.parent / f'paper_{metafile.parent.name}.png'  # of tools/dev/paper_figures.py
    lines = list(ablations(metafile.parent / 'ablations'))
    if figure.is_file():
        lines.append(f"![The paper's figures, from its printed numbers](images/{figure.name})\n")
    if lines:
        yield from (f'### {collection["Name"]}\n', *lines)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table, and an empty one."""
    return [f'| {" | ".join(cells)} |' for cells in (head, ['---'] * len(head), *rows)] + ['']


def ablations(folder: Path) -> Iterator[str]:
    """Lines of what the paper prints of the rows of each config of ablations in a folder."""
    file = folder / 'printed.yml'
    for config, content in yaml.safe_load(file.read_text('utf-8')).items() if file.is_file() else ():
        rows = content['Rows']
        keys = [key for key in FIGURES if any(key in figures for figures in rows.values())]
        marks = {'flops': '¹' * (content.get('Operations per Multiply-Add') == 2)}
        marks['params'] = '²' * ('Parameters Counted' in content)
        yield f'Rows of [{folder.name}/{config}](../{(folder / config).relative_to(ROOT)}.py), as printed:\n'
        yield from table(
            ['row', *(FIGURES[key] + marks.get(key, '') for key in keys)],
            [[f'`{name}`', *(as_text(figures.get(key, '')) for key in keys)] for name, figures in rows.items()],
        )


def as_text(figure: object) -> str:
    return ', '.join(f'{key}: {value}' for key, value in figure.items()) if isinstance(figure, dict) else str(figure)


def row(entry: dict) -> list[str]:
    """A model's cells."""
    results = {name: value for result in entry.get('Results', ()) for name, value in result['Metrics'].items()}
    results = {name: value for name, value in results.items() if not re.search(r'AP[\d_]', name)}  # see printed_tables
    weights = entry.get('Released Weights')
    return [
        f'[{entry["Name"]}](../{entry["Config"]})',
        *sizes(entry),
        printed(entry.get('Printed', {})),
        metrics(results),
        released(weights) if weights else '',
    ]


def sizes(entry: dict) -> tuple[str, str]:
    """The cells of a model's parameters and multiply-adds."""
    parameters, operations = size(entry)
    gigas = f'{operations / 1e9:.{2 if operations < 1e11 else 0}f} G' if operations else ''
    return f'{parameters / 1e6:.1f} M', gigas


def size(entry: dict) -> tuple[float, float | None]:
    """Parameters and multiply-adds of a model."""
    metadata = entry.get('Metadata', {})
    if 'Parameters' in metadata:
        return metadata['Parameters'], metadata.get('FLOPs')
    from mmattn.analysis import count_config  # building models takes long
    from mmguard.runs.rows import read_row

    return count_config(read_row(ROOT / entry['Config']), entry.get('Input Size'))


def printed(figures: dict) -> str:
    """The paper's own count, with the marks that the head of the page explains."""
    cells = []
    if 'Parameters' in figures:
        cells.append(f'{figures["Parameters"] / 1e6:g} M' + '²' * ('Parameters Counted' in figures))
    if 'FLOPs' in figures:
        marks = '¹' * (figures.get('Operations per Multiply-Add') == 2) + '³' * ('Attention Counted' in figures)
        cells.append(f'{figures["FLOPs"] / 1e9:g} G{marks}')
    if 'Milliseconds' in figures:
        cells.append(f'{figures["Milliseconds"]} ms')
    return ', '.join(cells) + '⁴' * ('Unknown' in figures or 'Note' in figures)


def released(weights: dict) -> str:
    """The authors' score, with a link to their page, and the file."""
    file = f', `{weights["File"]}`' if 'File' in weights else ''
    return f'[{metrics(weights["Metrics"])}]({weights["Source"]}){file}'


def metrics(values: dict) -> str:
    """Figures with their names: "82.7 top 1"."""
    return ', '.join(f'{value} {name.replace(" Accuracy", "").replace("Top", "top")}' for name, value in values.items())


if __name__ == '__main__':
    main()
