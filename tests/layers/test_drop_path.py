import torch

from mmattn.layers import DropPath


def test_drops_whole_samples_and_keeps_the_mean():
    """Each sample is either zero or scaled by 1 / (1 - p); in eval mode nothing happens."""
    layer, x = DropPath(0.25), torch.ones(4000, 2, 2, 3)
    out = layer(x).flatten(1)
    kept = out[:, 0] > 0
    assert (out == out[:, :1]).all() and torch.allclose(out[kept], torch.tensor(4 / 3))
    assert abs(kept.float().mean() - 0.75) < 0.05
    assert layer.eval()(x) is x
