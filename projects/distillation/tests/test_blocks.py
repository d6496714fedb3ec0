"""Grafting of small backbones: losses, starts, exchanges, and what is refused."""

import copy
import math
from types import SimpleNamespace

import pytest
import torch
from mmengine.registry import MODELS

from mmattn.errors import InputError
from mmattn_distillation import BlockDistiller
from mmattn_distillation.blocks import WholeModelHook, attention_blocks, relative_errors
from projects.distillation.tests.test_distiller import samples
from projects.distillation.tests.test_teacher import images

WINDOW = dict(type='WindowAttention')
NEAR = dict(type='NeighbourhoodAttention', kernel_size=3)
MSF = dict(type='MeanShiftAttention', proj_bias=True)
SHUNTED = dict(type='ShuntedAttention')
ELSA = dict(type='ELSA', kernel_size=3, group_width=4)
PVT = dict(type='SpatialReductionAttention')
SWIN = dict(
    type='SwinFrame',
    arch=dict(embed_dim=8, depths=(1, 2, 2), num_heads=(1, 2, 2)),
    window_size=4,
    drop_path_rate=0.0,
    out_indices=(1, 2),
)
VIT = dict(
    type='DINOViT', arch=dict(embed_dim=32, depth=4, num_heads=2, version=3, registers=2, swiglu=0), out_indices=(1, 3)
)
NAT = dict(
    type='NAT',
    arch=dict(embed_dim=8, depths=(1, 2), num_heads=(1, 2), mlp_ratio=2, layer_scale=0),
    attention=NEAR,
    drop_path_rate=0.0,
    out_indices=(0, 1),
)
SIZES = dict(embed_dims=(8, 16), depths=(1, 2), stem_convs=0)
SHUNTED_TRANSFORMER = dict(
    type='ShuntedTransformer',
    arch=dict(SIZES, num_heads=(2, 2)),
    reductions=(4, 2),
    mlp_ratios=(2, 2),
    stem='convolution',
    drop_path_rate=0.0,
    out_indices=(0, 1),
)
RESNET = dict(
    type='GSAResNet',
    depth=dict(depths=(1, 1, 2), stem_channels=16, base_channels=8, expansion=4),
    gsa_stages=(),
    num_heads=2,
    img_size=96,
    zero_init_residual=False,
    out_indices=(1, 2),
)
#: name -> source, what differs in the graft, and the exchanged blocks
GRAFTS = {
    'elsa-swin': (
        SWIN,
        dict(attention=[ELSA, ELSA, WINDOW]),
        ['layers.0.blocks.0', 'layers.1.blocks.0', 'layers.1.blocks.1'],
    ),
    'one block of swin': (SWIN, dict(attention=[WINDOW, [NEAR, dict(WINDOW, block=1)], WINDOW]), ['layers.1.blocks.0']),
    'near vit': (VIT, dict(attention=[None, NEAR, None, NEAR]), ['blocks.1', 'blocks.3']),
    'near vit, all': (VIT, dict(attention=NEAR, class_token=False, registers=0), [f'blocks.{i}' for i in range(4)]),
    'msf vit': (VIT, dict(attention=MSF), [f'blocks.{i}' for i in range(4)]),
    'shunted vit': (VIT, dict(attention=[None, None, SHUNTED, None]), ['blocks.2']),
    'nat': (
        NAT,
        dict(attention=[dict(NEAR, kernel_size=5), [NEAR, SHUNTED]]),
        ['levels.0.blocks.0', 'levels.1.blocks.1'],
    ),
    'near shunted': (SHUNTED_TRANSFORMER, dict(attention=[NEAR, None]), ['block1.0']),
    'shunted of pvt': (
        dict(SHUNTED_TRANSFORMER, attention=PVT, arch=dict(SIZES, num_heads=(1, 2))),
        dict(attention=None, arch=dict(SIZES, num_heads=(2, 2))),
        ['block1.0', 'block2.0', 'block2.1'],
    ),
    'gsa-resnet': (RESNET, dict(gsa_stages=(1, 2)), ['layer2.0', 'layer3.0', 'layer3.1']),
}
FAMILIES = dict(
    swin=SWIN, vit=VIT, nat=NAT, shunted=SHUNTED_TRANSFORMER, gsa=dict(RESNET, gsa_stages=(1, 2), norm_eval=True)
)


def graft(source, changes=None, seed=0, **settings) -> BlockDistiller:
    """A BlockDistiller whose teacher's weights are large enough that each block matters."""
    torch.manual_seed(seed)
    teacher = dict(model=source, **settings.pop('of_teacher', {}))
    model = MODELS.build(
        dict(
            dict(type='BlockDistiller', backbone=dict(source, **changes or {}), teacher=teacher),
            data_preprocessor=dict(type='ViewPreprocessor'),
            **settings,
        )
    )
    with torch.no_grad():
        for name, parameter in model.source.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, parameter[0].numel() ** -0.5)
            elif name.endswith('gamma'):
                parameter.fill_(1.0)
            else:
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.init_weights()
    return model


def seen(model, height=64, width=96, batch=2):
    """Images as the model gets them: normalised for the student, raw for the teacher."""
    raw = images(height, width, batch).round()
    return model.data_preprocessor(dict(inputs=raw.byte().flip(1), data_samples=samples(batch)))


@pytest.mark.parametrize('name', GRAFTS)
def test_start(name):
    """The blocks whose token mixers differ are found, and all else is the teacher's, to the bit: other blocks, too."""
    source, changes, blocks = GRAFTS[name]
    model = graft(source, changes)
    assert model.blocks == blocks
    given = model.source.state_dict()
    for key, value in model.backbone.state_dict().items():
        if not key.startswith(tuple(f'{block}.attn' for block in blocks)):
            assert torch.equal(value, given[key]), key


def test_projections_are_taken_over():
    """New token mixers start with the projections of the same meaning: MSF is close to the source at once."""
    model = graft(VIT, dict(attention=MSF)).eval()
    assert max(model(**seen(model), mode='predict')[0].errors.values()) < 0.2
    model = graft(VIT, dict(attention=[None, NEAR, None, NEAR]))
    assert torch.equal(model.backbone.blocks[1].attn.qkv.weight, model.source.blocks[1].attn.qkv.weight)
    assert torch.equal(model.backbone.blocks[1].attn.proj.weight, model.source.blocks[1].attn.proj.weight)


@pytest.mark.parametrize('distance', ['l1', 'mse'])
def test_losses_equal_plain_loops(distance):
    """The loss of a block is the mean distance from what the replaced token mixer gives for the same input, divided by
    the mean size of that, as loops over the teacher's blocks compute it."""
    model = graft(SWIN, GRAFTS['elsa-swin'][1], distance=distance)
    batch = seen(model)
    found = model(**batch, mode='loss')
    wanted, x = {}, model.source.patch_embed(batch['inputs'])
    for i, (stage, new) in enumerate(zip(model.source.layers, model.backbone.layers)):
        for j, block in enumerate(stage.blocks):
            inputs = block.norm1(x)
            old = block.attn(inputs)
            if i < 2:
                power = 1 if distance == 'l1' else 2
                difference = (new.blocks[j].attn(inputs) - old).abs() ** power
                wanted[f'loss_layers.{i}.blocks.{j}'] = difference.mean() / (old.abs() ** power).mean()
            x = block(x)
        x = x if stage.downsample is None else stage.downsample(x)
    torch.testing.assert_close(found, wanted)


def test_size_is_an_average():
    """The size that losses are divided by is the mean over the steps, and evaluation leaves it as it is."""
    model = graft(SWIN, GRAFTS['one block of swin'][1])
    sizes = []
    for height in (64, 32, 48):
        with model.recording() as recorded:
            model.teachers[0](seen(model, height)['teacher_inputs'])
        sizes.append(recorded['layers.1.blocks.0'][1].abs().mean())
        model(**seen(model, height), mode='loss')
    torch.testing.assert_close(model.sizes[0].mean[0], sum(sizes) / 3)
    model.eval()(**seen(model, 80), mode='loss')
    torch.testing.assert_close(model.sizes[0].mean[0], sum(sizes) / 3)


@pytest.mark.parametrize('name', GRAFTS)
def test_exchanges_make_the_graft(name):
    """The teacher with all new token mixers in it has the maps of the grafted backbone, and with none its own."""
    source, changes, _ = GRAFTS[name]
    model = graft(source, changes).eval()
    x = seen(model)['inputs']
    with torch.no_grad():
        own = model.source(x)
        with model.grafted([]):
            assert all(torch.equal(a, b) for a, b in zip(model.source(x), own))
        with model.grafted(model.blocks):
            found = model.source(x)
        assert not torch.allclose(found[-1], own[-1], rtol=1e-3)
        torch.testing.assert_close(found, model.backbone(x), rtol=1e-4, atol=1e-4)
        assert all(torch.equal(a, b) for a, b in zip(model.source(x), own))  # The hooks are gone.


@pytest.mark.parametrize('name', FAMILIES)
def test_graft_onto_itself(name):
    """Token mixers that are replaced by the same ones have no error at once. If they are changed, they come back."""
    model = graft(FAMILIES[name], distance='mse', self_graft=True)
    assert model.blocks == attention_blocks(model.source) and not model.changed
    batch = seen(model)
    losses = model(**batch, mode='loss')
    assert len(losses) == len(model.blocks) and max(loss.item() for loss in losses.values()) < 1e-12
    sample = model.eval()(**batch, mode='predict')[0]
    assert max(sample.errors.values()) < 1e-6 and min(sample.cosines.values()) > 1 - 1e-5

    model.train()
    parameters = [p for block in model.blocks for p in model.backbone.get_submodule(block).attn.parameters()]
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(0.1 * parameter.std(correction=0) * torch.randn_like(parameter))
    optimizer = torch.optim.Adam(parameters, 3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 25)
    first = float(sum(model(**batch, mode='loss').values()))
    for _ in range(25):
        optimizer.zero_grad()
        sum(model(**batch, mode='loss').values()).backward()
        optimizer.step()
        schedule.step()
    assert float(sum(model(**batch, mode='loss').values())) < 0.2 * first


@pytest.mark.parametrize('name', ['elsa-swin', 'msf vit', 'gsa-resnet'])
def test_only_new_token_mixers_learn_at_first(name):
    """While blocks learn, nothing but the new token mixers has a gradient; later everything has one. Statistics of the
    maps, by which validation compares them, are the same in both parts."""
    source, changes, blocks = GRAFTS[name]
    model = graft(source, changes)
    batch = seen(model)
    sum(model(**batch, mode='loss').values()).backward()
    learns = {key for key, p in model.named_parameters() if p.grad is not None}
    new = tuple(f'backbone.{block}.attn' for block in blocks)
    assert learns == {key for key, _ in model.named_parameters() if key.startswith(new)}
    means = [buffer.clone() for buffer in model.statistics.buffers()]
    model.whole = True
    model.statistics.apply(lambda each: each.steps.zero_() if hasattr(each, 'steps') else None)
    losses = model(**batch, mode='loss')
    assert set(losses) == {*(f'loss_{stage}' for stage in model.stages), 'loss_global'}
    sum(losses.values()).backward()
    assert not [key for key, p in model.named_parameters() if p.grad is None]
    torch.testing.assert_close(list(model.statistics.buffers()), means)


def test_teacher_stays():
    """Steps of both parts change nothing of the teacher, and checkpoints have none of it."""
    model = graft(SWIN, GRAFTS['elsa-swin'][1])
    before = copy.deepcopy(model.source.state_dict())
    for model.whole in (False, True):
        sum(model(**seen(model), mode='loss').values()).backward()
        torch.optim.SGD(model.parameters(), 0.1).step()
    assert all(torch.equal(value, before[key]) for key, value in model.source.state_dict().items())
    assert {key.split('.')[0] for key in model.state_dict()} == {'backbone', 'statistics', 'sizes'}


def test_errors():
    """The error of an image is the norm of the difference, divided by the norm of the target."""
    a, b = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 5)
    found = relative_errors(dict(x=(a, b)))['x']
    wanted = [math.sqrt(float((a[i] - b[i]).square().sum() / b[i].square().sum())) for i in range(2)]
    assert found.tolist() == pytest.approx(wanted, rel=1e-5)


def test_block_of_zeros():
    """A block of the teacher that gives zeros, as after pruning, has a finite loss that goes to 0, and images of one
    colour or of one pixel have finite losses."""
    model = graft(SWIN, GRAFTS['one block of swin'][1], distance='mse')
    with torch.no_grad():
        for parameter in model.source.layers[1].blocks[0].attn.proj.parameters():
            parameter.zero_()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        losses += model(**seen(model), mode='loss').values()
        losses[-1].backward()
        optimizer.step()
    assert all(loss.isfinite() for loss in losses) and losses[-1] < 0.1 * losses[0]
    for raw in (torch.zeros(1, 3, 32, 32), torch.full((1, 3, 1, 1), 255.0)):
        batch = model.data_preprocessor(dict(inputs=raw.byte(), data_samples=samples(1)))
        assert all(loss.isfinite() for loss in model(**batch, mode='loss').values())
        errors = model.eval()(**batch, mode='predict')[0].errors
        assert all(math.isfinite(error) for error in errors.values())


@pytest.mark.parametrize(
    'settings, sentence',
    [
        (dict(), 'token mixers of backbone are the teacher'),
        (dict(changes=dict(attention=ELSA, mlp_ratio=2)), 'they differ in layers.0.blocks.0.mlp'),
        (dict(changes=dict(attention=ELSA, out_indices=(0, 2))), 'their channels are'),
        (dict(of_teacher=dict(cache='features')), 'has no cache'),
        (
            dict(of_teacher=dict(mean=(0.5, 0.5, 0.5)), changes=dict(attention=ELSA)),
            'must see the same images, but mean',
        ),
        (dict(source=dict(type='mmdet.ResNet', depth=18)), 'backbones of mmattn, not ResNet'),
    ],
)
def test_refused(settings, sentence):
    """What cannot be grafted ends in one sentence that says why."""
    with pytest.raises((InputError, ValueError), match=sentence) as caught:
        graft(settings.pop('source', SWIN), **settings)
    assert '\n' not in str(caught.value)


def test_training_by_steps():
    """It has one epoch, so the whole backbone would never learn."""
    with pytest.raises(InputError, match='WholeModelHook counts epochs, and the training is by steps'):
        WholeModelHook(1).before_train(SimpleNamespace(train_loop=object()))


@pytest.mark.parametrize('teacher', [[dict(model=SWIN)]])
def test_teacher_must_be_a_backbone(teacher):
    """Models of timm and several teachers have no blocks that could be exchanged."""
    with pytest.raises(InputError, match='must be one dict, whose model is the config of a backbone'):
        MODELS.build(dict(type='BlockDistiller', backbone=SWIN, teacher=teacher))


def test_shift_matters():
    """A window that is not shifted where the source's is counts as another token mixer, so it is not kept silently."""
    stages = [WINDOW, [NEAR, WINDOW], WINDOW]
    assert graft(SWIN, dict(attention=stages)).blocks == ['layers.1.blocks.0', 'layers.1.blocks.1']


@pytest.mark.parametrize('name', ['near vit', 'gsa-resnet'])
def test_teacher_in_half_precision(name):
    """What a teacher in bfloat16 gives, as on a GPU, is compared in float32: validation is not in mixed precision."""
    source, changes, _ = GRAFTS[name]
    model = graft(source, changes).eval()
    with torch.no_grad(), model.recording() as recorded, torch.autocast('cpu', torch.bfloat16):
        model.source(seen(model)['inputs'])
    given = [output if isinstance(output, torch.Tensor) else output[0] for _, output in recorded.values()]
    assert all(output.dtype == torch.bfloat16 for output in given)
    assert all(a.dtype == b.dtype == torch.float32 for a, b in model.pairs(recorded).values())


def test_scale_of_attention_beside_a_convolution():
    """It is no part of the token mixer: with its initial value, 0, the graft would be without attention."""
    model = graft(dict(RESNET, gsa_stages=(1, 2), keep_conv=True), dict(attention=NEAR))
    own, given = model.backbone.state_dict(), model.source.state_dict()
    scales = [name for name in own if name.endswith('attn_scale')]
    assert len(scales) == len(model.blocks)
    assert all(given[name].abs().min() > 0 and torch.equal(own[name], given[name]) for name in scales)
