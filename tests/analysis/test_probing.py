"""Probes of frozen maps."""

import torch

from mmattn.analysis.probing import at, components, joined, learn, neighbours


def test_places():
    """Features at points and means in boxes are those of their places, whatever the stride."""
    for height, width in ((8, 12), (16, 24)):
        x, y = (torch.arange(side) for side in (width, height))
        dense = torch.stack([(x + 0.5).div(width).expand(height, -1), (y[:, None] + 0.5).div(height).expand(-1, width)])
        points = torch.tensor([[0.5, 0.5], [0.25, 0.75], [0.9, 0.1]])
        assert torch.allclose(at(dense[None], points), points, atol=1e-5)
        boxes = torch.tensor([[0.25, 0.25, 0.75, 0.5], [0.1, 0.5, 0.3, 0.9]])
        assert torch.allclose(at(dense[None], boxes), (boxes[:, :2] + boxes[:, 2:]) / 2, atol=1e-5)


def test_joined():
    """All channels, in the size of the first map of stride 8 or more, or the last."""
    maps = [torch.rand(1, 2, 64 // stride, 96 // stride) for stride in (4, 8, 16)]
    assert joined(maps, (64, 96)).shape == (1, 6, 8, 12)
    assert torch.equal(joined(maps[1:2], (64, 96)), maps[1])
    assert joined(maps[:1], (64, 96)).shape == (1, 2, 16, 24)


def test_heads_learn_what_is_there():
    """Neighbours and a linear head find the classes of clusters, and no more than chance in noise."""
    torch.manual_seed(0)
    y = torch.arange(3).repeat(40)
    noise = torch.randn(120, 8)
    clear = noise + 6 * torch.eye(3, 8)[y]
    for x, least, most in ((clear, 0.95, 1.0), (noise, 0.1, 0.6)):
        for predicted in (neighbours(x[:60], y[:60], x[60:], 3), learn(x[:60], y[:60], 3, 100)(x[60:]).argmax(1)):
            assert least <= (predicted == y[60:]).float().mean() <= most


def test_components():
    """Places with the same features have the same colour, places with others another one."""
    maps = [torch.zeros(1, 16, 6, 8), torch.zeros(1, 16, 4, 4)]
    for one in maps:
        one[:, :, :, 2:] = torch.randn(16, generator=torch.Generator().manual_seed(1))[:, None, None]
    first, second = components(maps)
    assert first.shape == (6, 8, 3) and second.shape == (4, 4, 3)
    assert (first[:, :2] == first[0, 0]).all() and (second[:, 2:] == first[0, 5]).all()
    assert (first[0, 0] != first[0, 5]).any()
