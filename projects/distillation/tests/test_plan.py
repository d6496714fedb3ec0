"""The sheet of a graft: what each exchange changes and saves, and the plan."""

import pytest
import torch
from mmengine.registry import MODELS

from mmattn.analysis.complexity import count_operations
from mmattn_distillation.plan import groups_of, sensitivity, settings_of, steps_within

pytest.importorskip('mmpretrain')
from projects.distillation.tests.test_blocks import ELSA, GRAFTS, NEAR, RESNET, SWIN, VIT, WINDOW, graft, seen


@pytest.mark.parametrize('name', ['elsa-swin', 'near vit', 'gsa-resnet'])
def test_sensitivity(name):
    """The cost after all steps is that of the grafted backbone, and the maps change as much as its maps differ. A step
    has the change of the blocks that are exchanged until then, and the first one is the best by itself."""
    source, changes, blocks = GRAFTS[name]
    model = graft(source, changes).eval()
    x = seen(model)['inputs']
    groups = groups_of(dict(source, **changes), blocks)
    found = sensitivity(model, [x, x.flip(3)], groups, 'operations')
    assert [each['blocks'] for each in found['exchanges']] == groups
    assert found['cost'] == count_operations(lambda: model.source(x))
    assert found['steps'][-1]['cost'] == pytest.approx(count_operations(lambda: model.backbone(x)))
    with torch.no_grad():
        pairs = [pair for each in (x, x.flip(3)) for pair in zip(model.backbone(each), model.source(each))]
    change = sum(float((a - b).norm() / b.norm()) for a, b in pairs) / len(pairs)
    assert found['steps'][-1]['change'] == pytest.approx(change, rel=1e-3)
    assert sorted(name for step in found['steps'] for name in step['blocks']) == sorted(blocks)
    saves = all(each['saves'] > 0 for each in found['exchanges'])
    best = min(found['exchanges'], key=lambda each: each['change'] / (each['saves'] if saves else 1))
    assert (found['steps'][0]['blocks'], found['steps'][0]['change']) == (best['blocks'], best['change'])


def test_errors():
    """The error of an exchange is that of its output, for the inputs that the teacher's blocks get."""
    source, changes, blocks = GRAFTS['elsa-swin']
    model = graft(source, changes).eval()
    x = seen(model, batch=1)
    found = sensitivity(model, [x['inputs']], [[name] for name in blocks], 'time')
    errors = model(**x, mode='predict')[0].errors
    assert [each['error'] for each in found['exchanges']] == pytest.approx([errors[name] for name in blocks], rel=1e-4)
    assert found['cost'] > 0


@pytest.mark.parametrize(
    'costs, budget, steps',
    [
        ((10, 8, 6, 4), 7, 2),  # as few as possible
        ((10, 8, 6, 4), 3, 3),  # none keeps it
        ((10, 11, 12, 13), 12, 2),  # as many as possible
        ((10, 11, 12, 13), 20, 3),
        ((10, 11, 12, 13), 9, 3),
    ],
)
def test_steps_within(costs, budget, steps):
    """A budget below the source's cost takes as few exchanges as keep it, a larger one as many as keep it."""
    first, *others = costs
    assert steps_within(dict(cost=first, steps=[dict(cost=cost) for cost in others]), budget) == steps


@pytest.mark.parametrize(
    'source, changes, chosen',
    [
        (SWIN, dict(attention=[ELSA, NEAR, NEAR]), ['layers.0.blocks.0', 'layers.1.blocks.1', 'layers.2.blocks.0']),
        (SWIN, dict(attention=[WINDOW, [NEAR, WINDOW], NEAR]), ['layers.1.blocks.0', 'layers.2.blocks.1']),
        (VIT, dict(attention=NEAR), ['blocks.0', 'blocks.2']),
        (VIT, dict(attention=[None, NEAR, None, NEAR]), ['blocks.3']),
        (VIT, dict(attention=NEAR, class_token=False, registers=0), ['blocks.0', 'blocks.2']),
    ],
)
def test_settings_of_a_plan(source, changes, chosen):
    """A backbone with the settings of a plan has new token mixers in the chosen blocks and in no others: windows stay
    shifted where they were, and plain attention has its prefix tokens."""
    config = dict(source, **changes)
    settings = settings_of(source, config, chosen)
    assert graft(source, settings).blocks == chosen
    if source is SWIN:
        settings = settings_of(source, config, [])
        backbone, own = MODELS.build(dict(source, **settings)), MODELS.build(source)
        shifts = [[b.attn.shift for stage in each.layers for b in stage.blocks] for each in (backbone, own)]
        assert shifts[0] == shifts[1] and any(shifts[0])


def test_settings_that_are_not_given():
    """Architecture and token mixers of a config may be defaults of its class; a block that is not exchanged keeps that
    of the source."""
    plan = settings_of(dict(type='DINOViT', arch='vit_small_patch14_dinov2'), dict(type='ViTFrame', attention=NEAR), [])
    assert plan == dict(attention=[None] * 12)
    plan = settings_of(dict(type='SwinFrame'), dict(type='SwinFrame', attention=NEAR), [])
    assert plan['attention'][2][5] == dict(type='WindowAttention', block=5)


def test_by_stage():
    """GSA-ResNets choose attention by groups, so a plan exchanges all blocks of a group together, and has no setting
    for single blocks."""
    config, blocks = dict(RESNET, gsa_stages=(1, 2)), GRAFTS['gsa-resnet'][2]
    assert groups_of(config, blocks) == [['layer2.0'], ['layer3.0', 'layer3.1']]
    assert settings_of(RESNET, config, blocks) is None
    assert settings_of(SWIN, dict(type='ELSASwin'), blocks) is None
