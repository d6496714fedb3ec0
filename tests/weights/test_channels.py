"""Weights for images of three channels in backbones for other numbers of bands."""

import pytest
import timm
import torch
from torch import nn

from mmattn.backbones import ELSASwin, MSFViT, TimmBackbone
from mmattn.weights import CheckpointError
from mmattn.weights.channels import fitted
from tests.backbones.cases import CASES, every_backbone
from tests.backbones.test_timm_backbone import MODELS as TIMM
from tests.backbones.test_timm_backbone import saved


def filled(module, folder):
    """A module with random weights, norms included, and a file of it."""
    for name, value in module.state_dict().items():
        if value.is_floating_point():
            nn.init.uniform_(value, 0.5, 1.5) if 'var' in name else nn.init.normal_(value, std=0.2)
    torch.save(module.state_dict(), folder / 'three.pth')
    return module.eval(), str(folder / 'three.pth')


def start(backbone, file, way, **settings):
    backbone.init_cfg = dict(type='Pretrained', checkpoint=file, in_channels=way, **settings)
    backbone.init_weights()
    return backbone.eval()


@every_backbone
def test_zeros_are_an_exact_start(case, tmp_path):
    """With five bands, the maps of the first three are those of the model for three, whatever is in the others. Where a
    norm is over all channels of a patch, there is no such start. Without in_channels, the weights are refused."""
    three, file = filled(case.build(case.small), tmp_path)
    five = case.build(case.small, in_channels=5)
    with pytest.raises(CheckpointError, match='are for images of 3 channels, not 5: in_channels="zero", "mean" or "re'):
        five.load_pretrained(file)
    if case.name == 'MSFViT':
        with pytest.raises(CheckpointError, match='to 5, since the norm .* is over all channels'):
            five.load_pretrained(file, in_channels='zero')
        five.load_pretrained(file, in_channels='mean')
        return
    x = torch.randn(2, 5, 64, 96)
    with torch.no_grad():
        for own, expected in zip(start(five, file, 'zero')(x), three(x[:, :3]), strict=True):
            torch.testing.assert_close(own, expected)


def test_whole_models(tmp_path):
    """in_channels in init_cfg also holds for a whole model, as load_from gives it. Without it, the error says so."""
    case = CASES['NAT']
    three, file = filled(case.build(case.small), tmp_path)
    whole = nn.ModuleDict(dict(backbone=three, head=nn.Linear(2, 2)))
    four = nn.ModuleDict(dict(backbone=case.build(case.small, in_channels=4), head=nn.Linear(2, 2))).eval()
    with pytest.raises(CheckpointError, match='in init_cfg of the backbone fits them, also those of load_from'):
        four.load_state_dict(whole.state_dict())
    four.backbone.init_cfg = dict(type='Pretrained', checkpoint=file, in_channels='zero')
    four.load_state_dict(whole.state_dict())
    torch.testing.assert_close(four.head.weight, whole.head.weight)
    x = torch.randn(1, 4, 64, 96)
    with torch.no_grad():
        torch.testing.assert_close(four.backbone(x), three(x[:, :3]))


@pytest.mark.parametrize('name', TIMM)
def test_zeros_for_models_of_timm(name, tmp_path):
    """So it is for all filters that timm calls first, and there are two in RepVGG."""
    arguments, _, size = TIMM[name]
    _, file = saved(tmp_path, name, **arguments)
    three, five = TimmBackbone(name, **arguments).eval(), TimmBackbone(name, in_channels=5, **arguments)
    three.load_pretrained(file)
    with pytest.raises(CheckpointError, match='are for images of 3 channels, not 5'):
        five.load_pretrained(file)
    x = torch.randn(1, 5, *size)
    with torch.no_grad():
        for own, expected in zip(start(five, file, 'zero')(x), three(x[:, :3]), strict=True):
            torch.testing.assert_close(own, expected)


def test_means_and_repeats_are_timms():
    """A grey band has the sum of the filters. Others are repeated, and keep the size of the output. In a linear layer
    on patches, the channels of a pixel lie side by side."""
    kernel = torch.randn(4, 3, 2, 2)
    for channels in (1, 2, 4, 13):
        expected = timm.models.adapt_input_conv(channels, kernel.clone())
        torch.testing.assert_close(fitted('a', kernel, 3, channels, 'repeat'), expected)
        mean = fitted('a', kernel, 3, channels, 'mean')
        torch.testing.assert_close(mean, kernel.mean(1, keepdim=True).expand(4, channels, 2, 2) * 3 / channels)
        patches = fitted('a', kernel.permute(0, 2, 3, 1).flatten(1), 3, channels, 'repeat')
        torch.testing.assert_close(patches, expected.permute(0, 2, 3, 1).flatten(1))
    with pytest.raises(CheckpointError, match='to 1, since there are fewer channels'):
        fitted('a', kernel, 3, 1, 'zero')


SWIN = dict(embed_dim=8, depths=(1, 1, 2, 1), num_heads=(1, 2, 4, 8))
VIT = dict(embed_dim=16, depth=4, num_heads=2)


@pytest.mark.parametrize('way', ['zero', 'repeat'])
@pytest.mark.parametrize(
    'name, settings, backbone',
    [
        ('swin_tiny_patch4_window7_224', SWIN, lambda: ELSASwin(dict(SWIN, group_width=4), in_channels=4)),
        ('vit_tiny_patch16_224', VIT, lambda: MSFViT(VIT, in_channels=4)),
    ],
    ids=['Swin', 'ViT'],
)
def test_warm_starts(tmp_path, name, settings, backbone, way, log):
    """Weights of another architecture are fitted under their own names, and the first pass is compared with that of
    their architecture for the same bands."""
    whole, file = saved(tmp_path, name, **settings)
    kernel = fitted('', whole.patch_embed.proj.weight, 3, 4, way)
    built = start(backbone(), file, way, warm_start=True)
    own = built.patch_embed.proj.weight
    torch.testing.assert_close(own, kernel if own.dim() == 4 else kernel.permute(0, 2, 3, 1).flatten(1))
    assert any('the first pass differs from that of' in line for line in log)
    with pytest.raises(CheckpointError, match='are for images of 3 channels, not 4'):
        backbone().load_pretrained(file, warm_start=True)


def test_attention_beside_a_resnet(tmp_path):
    """Filters are fitted before the attention that starts untrained is scaled with images of four bands."""
    case = CASES['GSAResNet']
    _, file = filled(case.build(case.small, gsa_stages=()), tmp_path)
    built = start(case.build(case.small, in_channels=4), file, 'zero')
    assert built.conv1.weight[:, 3].eq(0).all() and built(torch.randn(1, 4, 64, 64))[-1].isfinite().all()


def test_weights_for_these_channels_stay(tmp_path, log):
    """As of a backbone that was trained with them before. A wrong word is refused."""
    case = CASES['ELSASwin']
    four, file = filled(case.build(case.small, in_channels=4), tmp_path)
    again = start(case.build(case.small, in_channels=4), file, 'zero')
    assert all(map(torch.equal, again.state_dict().values(), four.state_dict().values()))
    assert any("in_channels='zero' changes nothing" in line for line in log)
    with pytest.raises(ValueError, match="in_channels in init_cfg must be one of zero, mean, repeat, not 'copy'"):
        case.build(case.small, init_cfg=dict(type='Pretrained', checkpoint=file, in_channels='copy'))
