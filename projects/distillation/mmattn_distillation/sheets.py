"""Sheets of models that are distilled or grafted, which ``tools/analyze.py`` writes: figures and numbers."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor, nn

from .hooks import component_sheet, cosines
from .plan import groups_of, sensitivity, settings_of, steps_within

#: --measure -> the unit of --budget, and how many of them are one multiply-add or second
UNITS = dict(operations=('billion multiply-adds', 1e-9), time=('ms', 1e3))


#: a figure, its title and caption, and its numbers
Sheet = tuple[plt.Figure, str, str, dict]


def distillation_sheet(name: str, network: nn.Module, batch: dict) -> Sheet:
    """Principal components of the features of teachers and student.

    Args:
        name: of the image.
        network: a ``FeatureDistiller``.
        batch: of one image, as its data preprocessor gives it.
    """
    with torch.no_grad():
        compared = network.paired_features(batch['inputs'], batch['teacher_inputs'])
    sheet = component_sheet(batch['teacher_inputs'][0], compared, network.names)
    height, width = sheet.shape[:2]
    figure, axis = plt.subplots(figsize=(width / 90, height / 90 + 1.4), layout='constrained')
    axis.imshow(sheet)
    axis.axis('off')
    caption = (
        "Red, green and blue: the first three principal components of the teacher's standardised features. The student "
        'shows the same components of what it predicts: where colours agree, these components do. Numbers: cosine '
        'similarity of prediction and teacher in all components, mean over positions; "global": of the whole image.'
    )
    numbers = dict(teachers=[dict(name=each, cosines=cosines(one)) for each, one in zip(network.names, compared)])
    return figure, f'Features of teacher and student in {name}', caption, numbers


def grafting_sheet(
    network: nn.Module, cfg: dict, images: Sequence[Tensor], measure: str, budget: float | None = None
) -> Sheet:
    """How far each block is from its old token mixer, the order of a greedy plan, and the config that keeps a budget.

    The plan that keeps the budget is printed.

    Args:
        network: a ``BlockDistiller``, and ``cfg`` its config.
        images: (1, 3, H, W) each, normalised as the backbone takes them.
        measure: a key of ``UNITS``.
        budget: cost of the backbone for the first image, in the unit of the measure.
    """
    unit, factor = UNITS[measure]
    found = sensitivity(network, images, groups_of(cfg.backbone, network.blocks), measure)
    costs = [factor * cost for cost in (found['cost'], *(step['cost'] for step in found['steps']))]
    changes = [0.0, *(100 * step['change'] for step in found['steps'])]
    names = [f'{each["blocks"][0]}{" ..." * (len(each["blocks"]) > 1)}' for each in found['exchanges']]
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(12, 0.35 * len(names) + 3), width_ratios=(3, 2), layout='constrained'
    )
    for key, shift, label in (('error', -0.2, 'error of its output'), ('change', 0.2, 'change of the maps')):
        values = [100 * each[key] for each in found['exchanges']]
        left.barh(np.arange(len(names)) + shift, values, 0.4, label=label)
    left.set_yticks(range(len(names)), names, fontsize=8)
    left.set(xlabel='percent of the norm')
    left.invert_yaxis()
    left.legend(fontsize=8)
    right.plot(costs, changes, 'o-', ms=4)
    for number, place in enumerate(zip(costs, changes)):
        right.annotate(str(number), place, textcoords='offset points', xytext=(4, 4), fontsize=7)
    right.set(xlabel=f'cost of the backbone, {unit}', ylabel='change of the maps, percent of the norm')
    right.locator_params('x', nbins=5)
    right.grid(alpha=0.3)
    if budget is not None:
        right.axvline(budget, color='0.6', ls='--')
        number = steps_within(found, budget / factor)
        blocks = [name for step in found['steps'][:number] for name in step['blocks']]
        settings = settings_of(cfg.teacher.model, cfg.backbone, blocks)
        found['plan'] = dict(budget=budget, unit=unit, steps=number, blocks=blocks, settings=settings)
        kept = 'keeps' if costs[number] <= budget else 'does not keep'
        print(
            f'{number} steps: {costs[number]:.4g} instead of {costs[0]:.4g} {unit}, which {kept} the budget; the maps '
            f'change by {changes[number]:.1f} %; exchanged: {", ".join(blocks) or "nothing"}'
        )
        for argument, value in (settings or {}).items():
            print(f'{argument} = {value}')
    caption = (
        'Left: how far the output of a new token mixer is from that of the replaced one for the same input, and how '
        "far the maps are from the source's if these blocks alone are exchanged. Right: the maps after each step of a "
        f'plan that exchanges what changes them least first. Means of {len(images)} images; cost of the first.'
    )
    return figure, 'How far each block is from its old token mixer', caption, found
