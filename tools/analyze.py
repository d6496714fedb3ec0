"""Look inside a backbone: pictures of what its attention, features and projections do, and numbers beside them.

    python tools/analyze.py configs/shunted/shunted-s_in1k.py CHECKPOINT --images photos --query 0.3 0.6 --out seen

--out gets a sheet (PNG) and a JSON of each kind of --what:

    attention     NAME_attention: of each image, the weights that one query gives to the image, by stage and head
    norms         mean norm of the features after each block, over the images
    similarity    of the projections of attention: how much query, key, value ... read the same subspace
    erf           effective receptive field of the centre, by stage, over the images
    cam           NAME_cam: classifiers only, what speaks for the best class; it needs the package grad-cam
    distillation  NAME_distillation: models that are distilled only, features of teachers and student as colours
    grafting      models that are grafted only: how far each block is from its old token mixer, and a plan with --budget

docs/analyze.md explains each sheet.
"""

import argparse
import json
import textwrap
from collections.abc import Sequence
from itertools import combinations_with_replacement
from pathlib import Path

import matplotlib

matplotlib.use('Agg')
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor, nn

from mmattn.analysis.attention import query_attention
from mmattn.analysis.features import (
    blocks_of,
    feature_norms,
    projections,
    receptive_field,
    side_of_share,
    subspace_similarity,
)
from mmattn.analysis.sheets import attention_sheet, spread, summary
from mmattn.layers import Block
from mmguard.checks.images import image_suffixes, load_image
from mmguard.checks.pixels import pixels_of
from mmguard.errors import InputError
from mmguard.outputs import check_output, whole_file
from mmguard.prediction.drawing import in_bgr
from mmguard.prediction.predict import VIDEOS, Model, build, find_files
from mmguard.runs.configs import add_config, load_config
from mmguard.runs.running import run_tool, running
from mmguard.text import in_figure

KINDS = ('attention', 'norms', 'similarity', 'erf', 'cam', 'distillation', 'grafting')
OF_EACH_IMAGE = 'attention', 'cam', 'distillation'
#: kind -> the attribute of the models that it is for, and what they are; the default of --what leaves these out
SPECIAL = dict(
    cam=('head', 'classifiers'),
    distillation=('paired_features', 'FeatureDistiller'),
    grafting=('grafted', 'BlockDistiller'),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_config(parser)
    parser.add_argument('checkpoint', help='weights of the whole model')
    parser.add_argument('--images', nargs='+', required=True, help='images, folders with them, or patterns in quotes')
    parser.add_argument('--out', type=Path, required=True, help='folder for the sheets')
    parser.add_argument('--what', nargs='+', choices=KINDS, help='sheets to write (default: the first four)')
    parser.add_argument(
        '--query',
        nargs=2,
        metavar=('X', 'Y'),
        default=('0.5', '0.5'),
        help='position whose attention is shown: pixels of the image, or, with a decimal point, fractions of its width '
        'and height (default: 0.5 0.5)',
    )
    parser.add_argument(
        '--measure', choices=('operations', 'time'), help='of the cost of --what grafting (default: operations)'
    )
    parser.add_argument(
        '--budget',
        type=float,
        help='of --what grafting: cost of the backbone for the first image, in 10^9 multiply-adds or in milliseconds',
    )
    parser.add_argument('--device', help='cpu, cuda, cuda:1 ... (default: an accelerator, if there is one)')
    parser.add_argument('--trust-checkpoint', action='store_true', help='run the code in the checkpoint, if any')
    args = parser.parse_args()
    cfg = load_config(args.config, args.cfg_options, row=args.row)
    kinds = args.what or [kind for kind in KINDS if kind not in SPECIAL]
    if 'grafting' not in kinds and (args.measure or args.budget is not None):
        raise InputError('--measure and --budget are for --what grafting: leave them out')
    files = [
        (name, path)
        for name, _, path in find_files(args.images, image_suffixes(cfg))
        if not path.lower().endswith(VIDEOS)
    ]
    if not files:
        raise InputError('--images names videos only: give images')
    sheets = [f'{name}_{kind}' for name, _ in files for kind in OF_EACH_IMAGE if kind in kinds]
    sheets += [kind for kind in kinds if kind not in OF_EACH_IMAGE]
    check_output(*(args.out / f'{name}.{suffix}' for name in sheets for suffix in ('png', 'json')))
    with running(cfg, args.trust_checkpoint):
        load, model = build(cfg, args.checkpoint, args.device, args.trust_checkpoint)
    network = model.inferencer.model
    for kind, (part, models) in SPECIAL.items():
        if kind in kinds and not hasattr(network, part):
            raise InputError(f'{kind} is for {models}: leave it out of --what')
    # MMPretrain's TimmClassifier has no backbone.
    stages = [] if set(kinds) <= {'distillation', 'grafting'} else blocks_of(getattr(network, 'backbone', network))
    images = []  # all are read first: where one is at fault, nothing has been written
    for name, path in files:
        pixels = load_image(load, dict(img_path=path))['img']
        images.append((name, *prepare(model, pixels, args.query, path)))
    for name, batch, query in images:
        if 'attention' in kinds:
            write_attention(args.out, name, model, batch['inputs'], query)
        if 'cam' in kinds:
            write_cam(args.out, name, model, batch['inputs'])
        if 'distillation' in kinds:
            from mmattn_distillation.sheets import distillation_sheet  # imported: the model is of this project

            write(args.out, f'{name}_distillation', *distillation_sheet(name, network, batch))
    inputs = [batch['inputs'] for _, batch, _ in images]
    if 'norms' in kinds:
        write_norms(args.out, network.backbone, stages, inputs)
    if 'similarity' in kinds:
        write_similarity(args.out, stages)
    if 'erf' in kinds:
        write_fields(args.out, network.backbone, stages, inputs)
    if 'grafting' in kinds:
        from mmattn_distillation.sheets import grafting_sheet

        sheet = grafting_sheet(network, cfg.model, inputs, args.measure or 'operations', args.budget)
        write(args.out, 'grafting', *sheet)


def prepare(model: Model, image: np.ndarray, query: Sequence[str], path: str) -> tuple[dict, tuple[float, float]]:
    """An image as the model takes it, a batch whose "inputs" are (1, C, H, W), and the query in its pixels.

    Raises:
        InputError: if the test pipeline cannot prepare the image, or the query is not in what it leaves of it.
    """
    network = model.inferencer.model
    try:
        fractions = [
            float(given) if '.' in given else (int(given) + 0.5) / size
            for given, size in zip(query, image.shape[1::-1])
        ]
    except ValueError:
        raise InputError(f'--query must be two numbers, not {" ".join(query)}') from None
    if not all(0 <= fraction < 1 for fraction in fractions):
        height, width = image.shape[:2]
        raise InputError(
            f'--query {" ".join(query)} is outside {path}, which is {width} x {height} pixels: '
            'whole numbers are pixels, numbers with a decimal point are fractions below 1.0'
        )
    batch = network.data_preprocessor(model.prepare([image]), False)
    # The pipeline may resize, cut and normalise. So it also gets images that are the x and the y of each pixel, and one
    # that is black and one that is white.
    height, width = image.shape[:2]
    x, y = ((np.arange(size) + 0.5) * (255 / size) for size in (width, height))
    marks = []
    for ramp in (x[None], y[:, None], np.zeros((1, 1)), np.full((1, 1), 255)):
        marked = np.empty_like(image)
        marked.T[...] = ramp.round().T  # in each channel, if there are several
        marks.append(model.prepare([marked])['inputs'][0][0].float())
    *positions, black, white = marks
    contrast = white - black
    positions = [255 * (position - black) / contrast for position in positions]
    distance = torch.maximum(*((position - 255 * fraction).abs() for position, fraction in zip(positions, fractions)))
    distance[~(contrast > 0.98 * contrast.max())] = 255  # padding
    if distance.min() > 2 + 255 / min(*image.shape[:2], *distance.shape):
        raise InputError(f"--query {' '.join(query)} is in a part of {path} that the config's test pipeline cuts off")
    row, column = (distance == distance.min()).nonzero().float().mean(0).tolist()
    return batch, (column + 0.5, row + 0.5)


def picture_of(model: Model, x: Tensor) -> np.ndarray:
    """The image of a batch of one as the backbone sees it, (H, W, 3), RGB from 0 to 1; grey in three equal channels."""
    pixels = pixels_of(model.cfg, model.inferencer.model.data_preprocessor)
    picture = in_bgr((x[0].permute(1, 2, 0).cpu().numpy() * pixels.std + pixels.mean).round())
    return (picture if pixels.channels(x.shape[1]) == 'RGB' else picture[..., ::-1]) / 255


def write(out: Path, name: str, figure: plt.Figure, title: str, caption: str, numbers: object) -> None:
    """Write a sheet and its numbers."""
    width = int(figure.get_figwidth() * 13)
    figure.suptitle('\n'.join(textwrap.wrap(in_figure(title), width)), fontsize=11)
    figure.supxlabel('\n'.join(textwrap.wrap(caption, width)), fontsize=9, x=0.01, ha='left')
    with whole_file(out / f'{name}.png') as part:
        figure.savefig(part, dpi=90)
    plt.close(figure)
    with whole_file(out / f'{name}.json') as part:
        part.write_text(json.dumps(dict(title=title, caption=caption, **numbers), indent=1), 'utf-8')
    print(f'{out / name}.png', flush=True)


def write_attention(out: Path, name: str, model: Model, x: Tensor, query: tuple[float, float]) -> None:
    """The sheet of an image: the heads of each layer and part of its attention."""
    layers = query_attention(model.inferencer.model.backbone, x, *query)
    unknown = {one.layer for one in layers if one.weights is None}
    for layer in sorted(unknown):
        print(f'{layer} is left out: its attention cannot be read (see READERS in mmattn/analysis/attention.py)')
    layers = [one for one in layers if one.weights is not None]
    if not layers:
        print('There is no sheet of attention: no layer of the backbone has attention that can be read.')
        return
    picture = picture_of(model, x)
    figure, caption = attention_sheet(layers, picture, query)
    numbers = dict(query=query, layers=[summary(one, picture.shape[:2]) for one in layers], left_out=sorted(unknown))
    height, width = picture.shape[:2]
    place = f'x = {query[0]:.0f}, y = {query[1]:.0f} in {width} x {height} pixels'
    title = f'{name}: what the query at {place} attends to'
    caption += ' The JSON has all heads and blocks.'
    write(out, f'{name}_attention', figure, title, caption, numbers)


def write_norms(out: Path, backbone: nn.Module, stages: list[list[nn.Module]], images: list[Tensor]) -> None:
    norms = torch.cat([feature_norms(backbone, x) for x in images], 1).cpu()
    figure, axis = plt.subplots(figsize=(7, 4.2), layout='constrained')
    axis.fill_between(range(len(norms)), norms.amin(1), norms.amax(1), alpha=0.2)
    axis.plot(norms.mean(1), 'o-')
    ends = np.cumsum([len(stage) for stage in stages])
    if len(stages) < len(norms) - 1:  # not a ViT
        for number, end in enumerate(ends, 1):
            axis.axvline(end + 0.5, color='0.7', lw=0.8)
            axis.text(end + 0.45, 0.01, f'stage {number}', transform=axis.get_xaxis_transform(), ha='right', fontsize=8)
    axis.set(xlabel='block (0: the input of the first)', ylabel='mean L2 norm of a position')
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
    caption = (
        'The norm of the features at each position, averaged over the positions of an image, after every block. '
        f'Line: mean of {len(images)} images; band: smallest and largest image. Norms of stages with different numbers '
        'of channels do not compare.'
    )
    numbers = dict(mean=norms.mean(1).tolist(), images=norms.t().tolist(), last_block_of_stage=ends.tolist())
    write(out, 'norms', figure, 'Feature norms by depth', caption, numbers)


def write_similarity(out: Path, stages: list[list[nn.Module]]) -> None:
    layers = [[projections(unit.attn) for unit in stage if getattr(unit, 'attn', None) is not None] for stage in stages]
    if len(stages) > 6:  # a ViT
        layers = [[layer for stage in layers for layer in stage]]
    groups = {i: [one for one in stage if one] for i, stage in enumerate(layers, 1) if any(stage)}
    if not groups:
        print('There is no sheet of similarity: the backbone has no layer with query, key and value of one input.')
        return
    figure, axes = plt.subplots(
        1, len(groups), figsize=(max(6, 3.4 * len(groups)), 4.6), squeeze=False, layout='constrained'
    )
    numbers = []
    for axis, (stage, found) in zip(axes[0], groups.items()):
        names = [name for name in found[0] if all(name in one for one in found)]  # A stage may mix token mixers.
        heads, channels, width = found[0][names[0]].shape
        table = np.full((len(names), len(names)), np.nan)
        for i, j in combinations_with_replacement(range(len(names)), 2):
            table[i, j] = np.mean([subspace_similarity(one[names[i]], one[names[j]]).mean().item() for one in found])
            axis.text(j, i, f'{table[i, j]:.2f}', ha='center', va='center', color='w' if table[i, j] < 0.6 else 'k')
        axis.imshow(table, vmin=0, vmax=1)
        axis.set_xticks(range(len(names)), names)
        axis.set_yticks(range(len(names)), names)
        title = 'all blocks' if len(stages) > 6 else f'stage {stage}'
        axis.set_title(f'{title}: {heads} heads, blocks: {len(found)}\nrandom: {width / channels:.2f}', fontsize=9)
        pairs = {f'{a}-{b}': float(table[i, j]) for i, a in enumerate(names) for j, b in enumerate(names) if i < j}
        numbers.append(dict(stage=title, blocks=len(found), heads=heads, random=width / channels, **pairs))
    caption = (
        'Query, Key, Value, Probe and Weight (the projection back): how much of the subspace of one lies in that of '
        'the other, mean over heads and blocks (1: the same subspace; "random": what independent projections have).'
    )
    write(out, 'similarity', figure, 'Subspace similarity of projections', caption, dict(stages=numbers))


def write_fields(out: Path, backbone: nn.Module, stages: list[list[nn.Module]], images: list[Tensor]) -> None:
    chosen = spread(range(len(stages)), 4)
    figure, axes = plt.subplots(1, len(chosen), figsize=(3.4 * len(chosen), 4), squeeze=False, layout='constrained')
    numbers = []
    for axis, stage in zip(axes[0], chosen):
        fields = [receptive_field(backbone, x, stage) for x in images]
        # Images of several sizes: what all have around their centres.
        before = [min(centre[i] for _, centre in fields) for i in (0, 1)]
        after = [min(field.shape[i] - centre[i] for field, centre in fields) for i in (0, 1)]
        parts = [field[y - before[0] : y + after[0], x - before[1] : x + after[1]].cpu() for field, (y, x) in fields]
        field = torch.stack(parts).mean(0)
        shown = (field / field.max().clamp(min=1e-30)).clamp(min=1e-4).log10()
        drawn = axis.imshow(shown, cmap='magma', vmin=-4, vmax=0)
        sides = {share: side_of_share(field, before, share) for share in (0.5, 0.95)}
        for side, style in zip(sides.values(), ('-', '--')):
            corner = [centre - side / 2 for centre in before[::-1]]
            axis.add_patch(plt.Rectangle(corner, side, side, fill=False, ec='w', ls=style))
        axis.set(xlim=(-0.5, field.shape[1] - 0.5), ylim=(field.shape[0] - 0.5, -0.5))
        kind = 'block' if len(stages) > 6 else 'stage'
        axis.set_title(f'{kind} {stage + 1}: 50 % in {sides[0.5]}, 95 % in {sides[0.95]}', fontsize=9)
        numbers.append({kind: stage + 1, 'side_of_50_percent': sides[0.5], 'side_of_95_percent': sides[0.95]})
    figure.colorbar(drawn, ax=axes, shrink=0.6, label='gradient / largest, powers of 10')
    caption = (
        'How much each pixel changes the features at the centre of the last map of a stage: absolute gradient, mean of '
        f'{len(images)} images. Squares around the centre hold 50 % (line) and 95 % (dashed) of the sum; their sides '
        'are in pixels of the image as the network sees it.'
    )
    write(out, 'erf', figure, 'Effective receptive fields', caption, dict(stages=numbers))


def write_cam(out: Path, name: str, model: Model, x: Tensor) -> None:
    """Grad-CAM of the best class, at the last map of the backbone."""
    try:
        from pytorch_grad_cam import GradCAM
    except ImportError as error:
        raise InputError(f'cam needs the package grad-cam (pip install grad-cam): {error}') from error
    network = model.inferencer.model
    if not hasattr(network.backbone, 'stage_modules'):
        raise InputError(f'cam is for backbones of mmattn, not for {type(network.backbone).__name__}: leave it out')
    last = network.backbone.stage_modules()[-1]
    tokens = any(isinstance(unit, Block) for part in last for unit in part.modules())
    with torch.no_grad():
        scores = network(x).softmax(1)[0]
    label = int(scores.argmax())
    with GradCAM(network, [last[-1]], (lambda x: x.permute(0, 3, 1, 2)) if tokens else None) as cam:
        field = cam(x.clone().requires_grad_(), None)[0]  # A frozen backbone has gradients of its input only.
    picture = picture_of(model, x)
    figure, axes = plt.subplots(1, 2, figsize=(8, 4.6), layout='constrained')
    for axis in axes:
        axis.imshow(picture)
        axis.set(xticks=[], yticks=[])
    axes[1].imshow(field, cmap='jet', alpha=0.5, vmin=0, vmax=1)
    title = f'{name}: {model.classes[label]}, {scores[label]:.2f}'
    caption = 'Grad-CAM at the last map of the backbone: red regions raise the score of the best class.'
    write(out, f'{name}_cam', figure, title, caption, dict(label=label, score=float(scores[label])))


if __name__ == '__main__':
    run_tool(main)
