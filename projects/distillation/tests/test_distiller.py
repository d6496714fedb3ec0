import copy

import pytest
import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from mmpretrain.structures import DataSample

from mmattn.errors import InputError
from mmattn_distillation import FeatureDistiller
from mmattn_distillation import distiller as module
from mmattn_distillation.distiller import Standardisation, kept_teachers, resized
from projects.distillation.tests.test_teacher import TINY, images

STUDENT = dict(TINY, out_indices=(1, 2, 3))
TEACHER = dict(model='vit_tiny_patch16_dinov3_qkvb', pretrained=False)
OTHER = dict(model='convnext_atto', pretrained=False)


def distiller(teacher=TEACHER, **settings) -> FeatureDistiller:
    torch.manual_seed(settings.pop('seed', 0))
    return MODELS.build(dict(dict(type='FeatureDistiller', backbone=STUDENT, teacher=teacher), **settings))


def samples(count=2, **fields):
    return [DataSample(metainfo={key: f'{value}{i}' for key, value in fields.items()}) for i in range(count)]


def loss_of(prediction, target):
    """Equation of FeatureLoss for one position."""
    return 0.5 * (1 - F.cosine_similarity(prediction, target, dim=0)) + 0.5 * F.smooth_l1_loss(prediction, target)


@pytest.mark.parametrize('global_weight', [0.5, 0.2])
def test_losses_equal_plain_loops(global_weight):
    """The losses of a step are those of loops over images, maps and positions: standardised features of the teacher,
    maps resized to its grid, one linear layer per map, and the shares of maps and of the whole image."""
    model, x, raw = distiller(global_weight=global_weight), images(64, 96) / 255, images(64, 96)
    found = model(x, samples(), raw, mode='loss')
    last, vector = model.teachers[0](raw)
    maps, layers = model.backbone(x), model.projectors[0]
    wanted = dict.fromkeys(found, 0.0)
    # On the first step, statistics are those of the batch.
    mean, std = last.mean((0, 2, 3)), (last.var((0, 2, 3), unbiased=False) + 1e-6).sqrt()
    shares = dict(global_=global_weight)
    for name, x_map in zip(('stage1', 'stage2', 'stage3'), maps):
        rows, columns = last.shape[2:]
        grid = resized(x_map, last)
        for image in range(2):
            for row in range(rows):
                for column in range(columns):
                    layer = layers[name]
                    prediction = layer.weight[:, :, 0, 0] @ grid[image, :, row, column] + layer.bias
                    target = (last[image, :, row, column] - mean) / std
                    share = (1 - global_weight) / 3 / (2 * rows * columns)
                    wanted[f'loss_{name}'] += share * loss_of(prediction, target)
    mean, std = vector.mean(0), (vector.var(0, unbiased=False) + 1e-6).sqrt()
    for image in range(2):
        layer = layers['global']
        prediction = layer.weight[:, :, 0, 0] @ maps[-1][image].mean((1, 2)) + layer.bias
        target = (vector[image] - mean) / std
        wanted['loss_global'] += shares['global_'] / 2 * loss_of(prediction, target)
    torch.testing.assert_close(found, {name: torch.as_tensor(value) for name, value in wanted.items()})


def test_resized():
    """A finer map becomes the mean over cells, a coarser one is interpolated as by OpenMMLab, an equal one stays."""
    x, like = torch.randn(1, 2, 4, 6), torch.empty(1, 5, 2, 3)
    wanted = torch.stack([x[:, :, i : i + 2, j : j + 2].mean((2, 3)) for i in (0, 2) for j in (0, 2, 4)], -1)
    torch.testing.assert_close(resized(x, like).flatten(2), wanted)
    up = resized(x[:, :, :2, :3], torch.empty(1, 1, 4, 6))
    torch.testing.assert_close(up[0, 0, 0, 1], 0.75 * x[0, 0, 0, 0] + 0.25 * x[0, 0, 0, 1])
    assert resized(x, x) is x


def test_statistics():
    """Statistics are the mean over the steps, later a moving average; deviations are from the mean so far. Evaluation
    leaves them as they are."""
    torch.manual_seed(0)
    standardise, means, variances = Standardisation(3, 0.25).double(), [], []
    steps = [torch.randn(4, 3, 2, 2, dtype=torch.float64) * 3 + 1 for _ in range(4)]
    for x in steps:
        standardise(x)
        means.append(x.mean((0, 2, 3)))
        so_far = torch.stack(means).mean(0).view(3, 1, 1)
        variances.append((x - so_far).square().mean((0, 2, 3)))
    torch.testing.assert_close(standardise.mean, torch.stack(means).mean(0))
    torch.testing.assert_close(standardise.var, torch.stack(variances).mean(0))
    standardise(steps[0])  # The fifth step has a part of 0.25, and not 0.2.
    mean = torch.stack(means).mean(0).lerp(means[0], 0.25)
    torch.testing.assert_close(standardise.mean, mean)
    x = standardise.eval()(torch.ones(1, 3, dtype=torch.float64) * 7)
    torch.testing.assert_close(x[0], (7 - mean) / (standardise.var + 1e-6).sqrt())
    torch.testing.assert_close(standardise.mean, mean)


def test_teacher_dropping():
    """The teacher with the largest loss of an image is always kept, others with the given probability."""
    torch.manual_seed(0)
    losses = torch.rand(3, 4000)
    kept = kept_teachers(losses, 0.3)
    largest = losses == losses.amax(0)
    assert kept[largest].all()
    assert abs(kept[~largest].mean() - 0.7) < 0.03
    assert torch.equal(kept_teachers(losses, 0.0), torch.ones_like(losses))


def test_two_teachers():
    """Two teachers have losses and similarities of their own. If none is dropped, each counts the same."""
    model = distiller([TEACHER, OTHER], teacher_drop_prob=0.0)
    x, raw = images() / 255, images()
    losses = model(x, samples(), raw, mode='loss')
    names = ['vit_tiny_patch16_dinov3_qkvb', 'convnext_atto']
    parts = ['stage1', 'stage2', 'stage3', 'global']
    single = distiller()
    single.projectors.load_state_dict(model.projectors[:1].state_dict())
    alone = single(x, samples(), raw, mode='loss')
    torch.testing.assert_close({key.split('.')[-1]: 2 * losses[key] for key in list(losses)[:4]}, alone)
    assert list(losses) == [f'{name}.loss_{part}' for name in names for part in parts]
    found = model.eval()(x, samples(), raw, mode='predict')
    assert set(found[0].cosines) == {f'{name}.{part}' for name in names for part in parts}


def test_a_dropped_teacher_has_no_loss():
    """Of an image that leaves out each teacher but the one with the largest loss."""
    model, x = distiller([TEACHER, OTHER], teacher_drop_prob=1.0), images(batch=1)
    losses = model(x / 255, samples(1), x, mode='loss')
    totals = [sum(float(loss) for key, loss in losses.items() if key.startswith(name)) for name in model.names]
    assert min(totals) == 0 < max(totals)


def test_weight_of_a_teacher():
    """The weight of a teacher is a factor of its losses."""
    x, raw = images() / 255, images()
    one, three = (distiller(dict(TEACHER, weight=w))(x, samples(), raw, mode='loss') for w in (1.0, 3.0))
    torch.testing.assert_close({key: 3 * value for key, value in one.items()}, three)


def test_teacher_is_not_trained_or_saved():
    """A step changes student and projectors only, and the state dict has no teacher. Teachers move with the
    model."""
    model = distiller()
    before = {key: value.clone() for key, value in model.teachers[0].state_dict().items()}
    sum(model(images() / 255, samples(), images(), mode='loss').values()).backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    for key, value in model.teachers[0].state_dict().items():
        assert torch.equal(value, before[key])
    assert {key.split('.')[0] for key in model.state_dict()} == {'backbone', 'projectors', 'statistics'}
    assert all(p.grad is not None for p in model.parameters())
    assert next(model.to('meta').teachers[0].parameters()).is_meta


def test_copies_share_the_weights_of_the_teacher():
    """A copy of a model, as of EMAHook, does not hold the teacher's weights twice; a copy that moves to another device
    or dtype, as for an export, leaves the original's teacher where it is."""
    model = distiller()
    (teacher,), (copied,) = model.teachers, copy.deepcopy(model).teachers
    tensors = [(*each.parameters(), *each.buffers()) for each in (teacher, copied)]
    assert [x.data_ptr() for x in tensors[0]] == [x.data_ptr() for x in tensors[1]]
    assert not copied.training and not any(p.requires_grad for p in copied.parameters())
    expected = teacher(images())
    torch.testing.assert_close(copied(images()), expected)
    moved = copy.deepcopy(model).to('meta').teachers[0]
    copy.deepcopy(model).double()
    assert all(x.is_meta for x in (*moved.parameters(), *moved.buffers()))
    torch.testing.assert_close(teacher(images()), expected)


def test_cosines():
    """The similarity of each image is the mean cosine over positions of prediction and standardised target."""
    model, x, raw = distiller().eval(), images() / 255, images()
    parts = model.paired_features(x, raw)[0]
    found = model(x, samples(), raw, mode='predict')
    for image, sample in enumerate(found):
        for part, (prediction, target) in parts.items():
            p, t = (
                F.normalize(each[image].detach().reshape(len(each[image]), -1), dim=0) for each in (prediction, target)
            )
            wanted = (p * t).sum(0).mean()
            assert sample.cosines[part] == pytest.approx(float(wanted), abs=1e-5)


def test_it_learns():
    """Some steps on two images make the student's predictions similar to the teacher. Stage 3 has fewer pixels."""
    model, raw = distiller(dict(model=TINY), momentum=1.0), images(64, 64)
    x = raw / 255
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(30):
        optimizer.zero_grad()
        sum(model(x, samples(), raw, mode='loss').values()).backward()
        optimizer.step()
    cosines = model.eval()(x, samples(), raw, mode='predict')[0].cosines
    assert min(cosines.values()) > 0.4


def test_cache_needs_keys(tmp_path):
    """A cache of views that never come again would fill the disk for nothing: it is refused."""
    model = distiller(dict(TEACHER, cache=str(tmp_path)))
    with pytest.raises(InputError, match='FixedViews'):
        model(images() / 255, samples(), images(), mode='loss')
    model(images() / 255, samples(view_key='k'), images(), mode='loss')
    assert len(list(tmp_path.rglob('*.features'))) == 2
    model(images() / 255, samples(), images(), mode='predict')


def test_any_backbone():
    """A backbone of MMDetection is a student, and its maps are named by its out_indices."""
    model = MODELS.build(
        dict(type='FeatureDistiller', backbone=dict(type='mmdet.ResNet', depth=18, out_indices=(1, 3)), teacher=OTHER)
    )
    assert model.stages == ['stage1', 'stage3']
    assert set(model(images(), samples(), images(), mode='loss')) == {'loss_stage1', 'loss_stage3', 'loss_global'}


@pytest.mark.parametrize(
    'settings',
    [dict(global_weight=1.5), dict(momentum=0), dict(teacher=[]), dict(teacher=dict(OTHER, chekpoint='a.pth'))],
)
def test_refuses(settings):
    """A wrong argument is named."""
    with pytest.raises(InputError, match=next(iter(settings))):
        distiller(**settings)


def test_grids_that_do_not_cover_the_image(monkeypatch):
    """Maps of a padded image lie beside those of the teacher: the log says so, once for each map."""
    lines = []
    monkeypatch.setattr(module, 'warn', lines.append)
    student = dict(type='mmdet.ResNet', depth=18, out_indices=(1, 3))
    model = distiller([OTHER, dict(model=TINY)], backbone=student)
    for height in (64, 72, 72):
        x = images(height, 64)
        model(x / 255, samples(), x, mode='loss')
    assert [line.split(',')[0] for line in lines] == [
        "the student's stage3 has 3 x 2 positions for images of 72 x 64",
        'the map of the teacher ELSASwin has 3 x 2 positions for images of 72 x 64',
    ]


@pytest.mark.parametrize(
    'changes, named',
    [
        (dict(), []),
        (dict(loss=dict(beta=2.0)), ['loss.beta']),
        (dict(teacher=dict(TEACHER, weight=2.0)), ['teacher 0.weight']),
        (dict(seed=1), ['teacher 0.weights']),
    ],
)
def test_note_of_a_training(changes, named):
    """The note that --resume compares names each setting that changes what is learned, and other teacher weights."""
    one, two = distiller(), distiller(**changes)
    assert [key for key, value in one.training_note.items() if two.training_note[key] != value] == named


def test_cache_of_channels_in_another_order(tmp_path):
    """The key of a view is of its pixels as they were loaded: what the teacher sees also depends on bgr_to_rgb."""
    for turned in (False, True):
        settings = dict(type='ViewPreprocessor', bgr_to_rgb=turned)
        model = distiller(dict(TEACHER, cache=str(tmp_path)), data_preprocessor=settings)
        data = dict(inputs=images().round().byte(), data_samples=samples(view_key='k'))
        model(**model.data_preprocessor(data), mode='loss')
    assert len(list(tmp_path.rglob('*.features'))) == 4
