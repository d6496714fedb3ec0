"""The examples of docs/timm.md: models of other libraries, with our backbones inside, learn one batch."""

import re

import pytest
import torch
from torch import nn

from tests import ROOT

pytestmark = pytest.mark.slow
TEXT = (ROOT / 'docs' / 'timm.md').read_text().partition('## Inside other libraries\n')[2].partition('\n## ')[0]
DETECTOR, UNET, UPERNET = re.findall(r'```python\n(.*?)```', TEXT, re.DOTALL)
SIDE, STEPS = 64, 15


def built(example: str) -> nn.Module:
    """The model that an example builds."""
    names = {}
    torch.manual_seed(0)
    exec(example, names)
    return names['model'].train()


def squares() -> tuple[torch.Tensor, torch.Tensor]:
    """Images (2, 3, 64, 64) with a bright or dark square, and its corners (2, 4)."""
    images, boxes = torch.full((2, 3, SIDE, SIDE), 0.5), torch.tensor([[8.0, 8, 40, 40], [20, 16, 60, 56]])
    for image, (left, top, right, bottom), value in zip(images, boxes.int(), (1, 0)):
        image[:, top:bottom, left:right] = value
    return images, boxes


def masks() -> torch.Tensor:
    """The classes (2, 64, 64) of the pixels of ``squares``: 0 is the ground."""
    images, _ = squares()
    return (2 * images[:, 0]).long().sub(1).remainder(3)


def learn(model: nn.Module, backbone: nn.Module, loss_of) -> None:
    """Train, and see that the loss falls to two thirds, and that all parameters of the backbone take part."""
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
    losses = []
    for _ in range(STEPS):
        loss = loss_of()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f'{type(model).__name__}: {losses[0]:.3f} -> {losses[-1]:.3f}')
    assert losses[-1] < 2 / 3 * losses[0], losses
    assert not [name for name, parameter in backbone.named_parameters() if not parameter.grad.any()]


def test_torchvision():
    """Faster R-CNN of torchvision learns two boxes."""
    model = built(DETECTOR)
    model.transform.min_size, model.transform.max_size = (SIDE,), SIDE
    images, boxes = squares()
    targets = [dict(boxes=box[None], labels=torch.tensor([label])) for label, box in enumerate(boxes, start=1)]
    learn(model, model.backbone.body, lambda: sum(model(list(images), targets).values()))


def test_segmentation_models_pytorch():
    """A U-Net of segmentation-models-pytorch learns two masks."""
    pytest.importorskip('segmentation_models_pytorch')
    model = built(UNET)
    learn(model, model.encoder.model, lambda: nn.functional.cross_entropy(model(squares()[0]), masks()))


def test_transformers():
    """A UperNet of transformers learns two masks, through TimmBackbone."""
    transformers = pytest.importorskip('transformers')
    model = built(UPERNET)
    assert isinstance(model.backbone, transformers.TimmBackbone)
    learn(model, model.backbone._backbone, lambda: model(squares()[0], labels=masks()).loss)
