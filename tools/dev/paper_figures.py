"""Draw figures of the papers again, from the figures that they print: docs/images/paper_*.png.

    python tools/dev/paper_figures.py

The numbers are the papers' own, from metafile.yml and printed.yml in configs/. No model was trained or measured here.
"""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import yaml

matplotlib.use('Agg')
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parents[2]
CONFIGS, IMAGES = ROOT / 'configs', ROOT / 'docs' / 'images'
PARAMETERS, MULTIPLY_ADDS = 'parameters, millions', 'multiply-adds, billions'
#: a curve: its name, its points (x, y), and the label of each
Curve = tuple[str, list[tuple[float, float]], Sequence[str]]
#: models of table 2 of Shunted at 224 x 224 that no config here has, or whose figures in metafiles are of other papers:
#: millions of parameters, top-1 accuracy
TABLE_2 = {
    'PVT': [(13.2, 75.1), (24.5, 79.8), (44.2, 81.2), (61.4, 81.7)],
    'PVTv2': [(13.1, 78.7), (25.4, 82.0)],
    'Swin': [(28.3, 81.2), (49.6, 83.1), (87.8, 83.4)],
    'Focal Transformer': [(29.1, 82.2), (51.1, 83.5), (89.8, 83.8)],
}


def main() -> None:
    elsa()
    gsa()
    shunted()


def elsa() -> None:
    """Figure 1: layers in Swin-T."""
    printed = yaml.safe_load((CONFIGS / 'elsa_swin' / 'ablations' / 'printed.yml').read_text('utf-8'))
    rows = printed['swin-t_in1k']['Rows']
    names = {'lsa': 'LSA', 'dwconv': 'DwConv', 'd-dwconv': 'D-DwConv', 'ddf': 'DDF', 'elsa': 'ELSA'}
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout='constrained', sharey=True)
    for axis, (key, label) in zip(axes, (('params', PARAMETERS), ('flops', MULTIPLY_ADDS))):
        points = {name: (float(rows[row][key]), rows[row]['top1']) for row, name in names.items()}
        draw(axis, label, [(name, [point], [name]) for name, point in points.items()])
        axis.margins(x=0.3)  # for long names
    axes[0].set_ylabel('top-1 on ImageNet-1k, %')
    save(figure, 'elsa_swin', 'Layers in Swin-T, as printed in table 5 of ELSA (figure 1)')


def shunted() -> None:
    """Figure 1: accuracy over parameters, beside other papers' models."""
    families = {'DeiT': ('baselines', 'deit-{}', 'tsb'), 'Shunted': ('shunted', 'shunted-{}', 'tsbl')}
    curves = {name: (points, ['']) for name, points in TABLE_2.items()}
    for family, (folder, pattern, sizes) in families.items():
        models = read(folder)
        entries = [models[f'{pattern.format(size)}_in1k'] for size in sizes]
        points = [(entry['Printed']['Parameters'] / 1e6, top1(entry)) for entry in entries]
        curves[family] = points, sizes.upper()
    figure, axis = plt.subplots(figsize=(7, 5), layout='constrained')
    draw(axis, PARAMETERS, [(name, points, labels) for name, (points, labels) in curves.items()])
    axis.set_xlim(left=0)
    axis.set_ylabel('top-1 on ImageNet-1k at 224 x 224, %')
    axis.legend(loc='lower right')
    save(figure, 'shunted', 'Transformers, as printed in table 2 of Shunted (figure 1)')


def gsa() -> None:
    """Figures 2 and 3: ResNets with convolutions and with GSA modules."""
    models = read('gsa')
    depths = '38', '50', '101'
    costs = dict(
        Parameters=(PARAMETERS, 1e6),
        FLOPs=('multiplications and additions, billions', 1e9),
        Milliseconds=('ms per image, TPUv3', 1),
    )
    figure, axes = plt.subplots(2, 3, figsize=(11, 6.4), layout='constrained', sharey='row')
    for line, data in zip(axes, ('in1k', 'cifar100')):
        for axis, (key, (label, unit)) in zip(line, costs.items()):
            curves = []
            for name, pattern in (('convolution', 'r{}'), ('GSA', 'gsa-r{}-all')):
                backbones = [pattern.format(depth) for depth in depths]
                x = [models[f'{backbone}_in1k']['Printed'][key] / unit for backbone in backbones]
                points = zip(x, (top1(models[f'{backbone}_{data}']) for backbone in backbones))
                curves.append((name, list(points), depths))
            draw(axis, label, curves)
        line[0].set_ylabel(f'top-1 on {"ImageNet-1k" if data == "in1k" else "CIFAR-100"}, %')
    axes[0, 0].legend(loc='lower right')
    save(figure, 'gsa', 'ResNet-38, 50 and 101, as printed in table 6 of GSA (figures 2 and 3)')


def read(folder: str) -> dict[str, dict]:
    """The models of a metafile by their names."""
    models = yaml.safe_load((CONFIGS / folder / 'metafile.yml').read_text('utf-8'))['Models']
    return {model['Name']: model for model in models}


def top1(model: dict) -> float:
    return model['Results'][0]['Metrics']['Top 1 Accuracy']


def draw(axis: plt.Axes, label: str, curves: Sequence[Curve]) -> None:
    """Curves over a cost, each point with its label."""
    for number, (name, points, labels) in enumerate(curves):
        axis.plot(*zip(*points), 'o-', label=name, color=f'C{number}', markersize=5)
        for point, text in zip(points, labels):
            axis.annotate(text, point, (5, -11), textcoords='offset points', color=f'C{number}', size=9)
    axis.set_xlabel(label)
    axis.margins(x=0.22, y=0.12)
    axis.grid(alpha=0.3)


def save(figure: plt.Figure, folder: str, title: str) -> None:
    figure.suptitle(title, fontsize=11)
    figure.savefig(IMAGES / f'paper_{folder}.png', dpi=90)
    plt.close(figure)


if __name__ == '__main__':
    main()
