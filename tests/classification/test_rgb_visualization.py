"""Images of predictions have the colours of the files."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

pytest.importorskip('mmpretrain')


@pytest.mark.parametrize('to_rgb', [True, False])
def test_colours(tmp_path, to_rgb):
    """Red is drawn as red, whether the loaded image is BGR, as of most data sets, or RGB, as of CIFAR."""
    from mmpretrain.structures import DataSample
    from mmpretrain.visualization import UniversalVisualizer

    from mmattn.classification import RGBVisualizationHook

    UniversalVisualizer.get_instance(str(tmp_path))
    model = nn.Module()
    model.data_preprocessor = SimpleNamespace(to_rgb=to_rgb)
    image = torch.zeros(3, 64, 64, dtype=torch.uint8)
    image[2 if to_rgb else 0] = 255
    hook = RGBVisualizationHook(enable=True, interval=1, out_dir=str(tmp_path))
    hook.after_test_iter(SimpleNamespace(model=model), 0, dict(inputs=[image]), [DataSample(img_path='a.JPEG')])
    drawn = np.array(Image.open(tmp_path / 'a.JPEG_0.png').convert('RGB'))
    assert (drawn[-8:, -8:] == [255, 0, 0]).all()
