"""Feature norms, effective receptive fields and subspace similarity."""

import math

import pytest
import torch
from torch import nn

from mmattn.analysis.features import (
    blocks_of,
    feature_norms,
    projections,
    receptive_field,
    side_of_share,
    stride_of,
    subspace_similarity,
)
from mmattn.errors import InputError
from mmattn.layers import (
    ELSA,
    EnhancedAttention,
    MeanShiftAttention,
    MeanShiftWindowAttention,
    NeighbourhoodAttention,
    WindowAttention,
)
from tests.backbones.cases import CASES, every_backbone


@every_backbone
def test_norms(case):
    """A number per block and one before them, of each image by itself."""
    backbone = case.build(case.small).eval()
    images = torch.randn(2, 3, 65, 97)
    norms = feature_norms(backbone, images)
    blocks = sum(map(len, blocks_of(backbone)))
    assert norms.shape == (1 + blocks, 2) and (norms > 0).all()
    torch.testing.assert_close(feature_norms(backbone, images[1:])[:, 0], norms[:, 1])


@pytest.mark.parametrize('name', ['MSFViT', 'GSAResNet'])
def test_norms_are_those_of_the_maps(name):
    """Figure 4: position by position, after the last block of each stage. These backbones have no output norms."""
    backbone, image = CASES[name].build(CASES[name].small).eval(), torch.randn(1, 3, 65, 97)
    norms = feature_norms(backbone, image)[:, 0]
    ends = torch.tensor([len(blocks) for blocks in blocks_of(backbone)]).cumsum(0)
    with torch.no_grad():
        expected = [torch.stack([position.norm() for position in x[0].flatten(1).T]).mean() for x in backbone(image)]
    torch.testing.assert_close(norms[ends], torch.stack(expected))


@every_backbone
def test_receptive_fields(case):
    backbone = case.build(case.small).eval()
    image = torch.randn(1, 3, 64, 96)
    for stage in range(len(blocks_of(backbone))):
        field, (row, column) = receptive_field(backbone, image, stage)
        assert field.shape == (64, 96) and field.isfinite().all() and field.sum() > 0
        assert 0 <= row < 64 and 0 <= column < 96
    assert not any(parameter.grad is not None for parameter in backbone.parameters())


def test_receptive_field_of_neighbourhoods():
    """One block of ELSA after patches of 4 x 4 sees a square: its two 3 x 3 neighbourhoods, of p and of the values."""
    case = CASES['ELSASwin']
    backbone = case.build(case.small).eval()
    field, centre = receptive_field(backbone, torch.randn(1, 3, 64, 96), 0)
    rows, columns = (field > 0).nonzero().T
    assert centre == (34, 50)
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (28, 39, 44, 55)
    assert side_of_share(field, centre, 1.0) == 13  # the centre of 12 pixels is between two


def test_side_of_share():
    field = torch.zeros(9, 9)
    field[4, 4], field[4, 5], field[1, 4] = 5, 3, 2
    assert [side_of_share(field, (4, 4), share) for share in (0.5, 0.6, 0.8, 0.9)] == [1, 3, 3, 7]


@pytest.mark.parametrize(
    ('stride', 'image'), [(4, (65, 97)), (32, (65, 97)), (14, (224, 98)), (1, (5, 7)), (8, (1, 9))]
)
def test_strides(stride, image):
    shape = [math.ceil(side / stride) for side in image]
    found = stride_of(image, shape)
    assert [math.ceil(side / found) for side in image] == shape
    assert found == stride or min(image) == 1


@pytest.mark.parametrize('side', [28, 42, 98])
def test_known_strides(side):
    """Several strides fit small images: that of the backbone is taken, such as 14 where 16 fits as well."""
    shape = [math.ceil(side / 14)] * 2
    assert (stride_of((side, side), shape), stride_of((side, side), shape, (14,))) == (16, 14)
    assert stride_of((side, side), shape, (4,)) == 16  # one that does not fit is passed over


def test_similarity():
    """Equation 13: same, orthogonal and tilted subspaces, and random ones; scaling a matrix changes nothing."""
    x = torch.eye(6)[:, :2]
    angle = torch.tensor(0.3)
    tilted = torch.stack((x[:, 0], angle.cos() * x[:, 1] + angle.sin() * torch.eye(6)[:, 4]), 1)
    mixed = x @ torch.tensor([[3.0, 1.0], [0.0, -2.0]])
    pairs = [(x, mixed, 1.0), (x, torch.eye(6)[:, 3:5], 0.0), (x, tilted, (1 + float(angle.cos()) ** 2) / 2)]
    for one, other, expected in [*pairs, (x, torch.zeros(6, 2), 0.0)]:
        assert float(subspace_similarity(one, other)) == pytest.approx(expected, abs=1e-6)
    random = subspace_similarity(torch.randn(500, 12, 3), torch.randn(500, 12, 3))
    assert random.shape == (500,) and float(random.mean()) == pytest.approx(3 / 12, abs=0.02)


def test_similarity_of_meanshift_projections():
    """Shared matrices are the same subspace, the weight's transpose included; groups keep their channels."""
    layer = MeanShiftAttention(8, 2, sharing='QKKQQ')
    found = projections(layer)
    assert list(found) == ['Q', 'K', 'V', 'P', 'W'] and found['Q'].shape == (2, 8, 4)
    torch.testing.assert_close(found['Q'][1], layer.pre_proj.weight[4:8].T)
    for one, other, same in [('Q', 'P', True), ('Q', 'W', True), ('K', 'V', True), ('Q', 'K', False)]:
        similar = subspace_similarity(found[one], found[other])
        assert bool((similar > 0.999).all()) == same
    grouped = projections(MeanShiftAttention(8, 2, groups=2, group_mode='block'))
    assert (grouped['V'][0, 4:] == 0).all() and (grouped['V'][1, :4] == 0).all()


@pytest.mark.parametrize(
    ('layer', 'names'),
    [
        (WindowAttention(8, 2), 'QKVW'),
        (EnhancedAttention(8, 2), 'QKVW'),
        (NeighbourhoodAttention(8, 2), 'QKVW'),
        (MeanShiftWindowAttention(8, 2, form='gauss'), 'QKVW'),
        (MeanShiftWindowAttention(8, 2), 'QKVPW'),
    ],
)
def test_projections(layer, names):
    """Each head's queries read the subspace of Q: other features change nothing."""
    found = projections(layer)
    assert ''.join(found) == names and all(matrix.shape == (2, 8, 4) for matrix in found.values())
    layer = layer.attn if isinstance(layer, MeanShiftWindowAttention) else layer
    rows = next(getattr(layer, name).weight for name in ('qkv', 'pre_proj') if hasattr(layer, name))
    torch.testing.assert_close(found['Q'].mT.flatten(0, 1), rows[:8])


def test_others():
    assert projections(ELSA(8, 2)) is None
    with pytest.raises(InputError, match='only backbones of mmattn'):
        blocks_of(nn.Linear(1, 1))
