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


def main() -> None:
    elsa()
    gsa()


def elsa() -> None:
    """Figure 1: layers in Swin-T."""
    rows = yaml.safe_load((CONFIGS / 'elsa_swin' / 'ablations' / 'printed.yml').read_text())['swin-t_in1k']['Rows']
    names = {'lsa': 'LSA', 'dwconv': 'DwConv', 'd-dwconv': 'D-DwConv', 'ddf': 'DDF', 'elsa': 'ELSA'}
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout='constrained', sharey=True)
    for axis, (key, label) in zip(axes, (('params', PARAMETERS), ('flops', MULTIPLY_ADDS))):
        points = {name: (float(rows[row][key]), rows[row]['top1']) for row, name in names.items()}
        draw(axis, label, [(name, [point], [name]) for name, point in points.items()])
        axis.margins(x=0.3)  # for long names
    axes[0].set_ylabel('top-1 on ImageNet-1k, %')
    save(figure, 'elsa_swin', 'Layers in Swin-T, as printed in table 5 of ELSA (figure 1)')


def gsa() -> None:
    """Figures 2 and 3: ResNets with convolutions and with GSA modules."""
    content = yaml.safe_load((CONFIGS / 'gsa' / 'metafile.yml').read_text())
    models = {model['Name']: model for model in content['Models']}
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
                results = [models[f'{backbone}_{data}']['Results'][0]['Metrics'] for backbone in backbones]
                points = zip(x, (result['Top 1 Accuracy'] for result in results))
                curves.append((name, list(points), depths))
            draw(axis, label, curves)
        line[0].set_ylabel(f'top-1 on {"ImageNet-1k" if data == "in1k" else "CIFAR-100"}, %')
    axes[0, 0].legend(loc='lower right')
    save(figure, 'gsa', 'ResNet-38, 50 and 101, as printed in table 6 of GSA (figures 2 and 3)')


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
