import pytest
import torch
import torch.nn.functional as F

from mmattn.backbones import MSFViT
from mmattn.ops.mean_shift import mean_shift_attention_reference

FORMS = {'orig': dict(attention='plain'), 'msf': dict(), 'msf-g2': dict(groups=2)}


@pytest.mark.parametrize('name', FORMS)
@pytest.mark.parametrize('path', ['fast', 'reference'])
def test_computes_what_the_release_computes(golden, monkeypatch, name, path):
    """The stream after every block and, through a head, the logits."""
    if path == 'reference':
        monkeypatch.setattr('mmattn.ops.mean_shift._select', lambda key, bias: mean_shift_attention_reference)
    data = golden(f'msf_vit_{name}')
    c, weights = data['config'], data['state_dict']
    backbone = MSFViT(
        arch=dict(embed_dim=c['dim'], depth=c['depth'], num_heads=c['heads']), patch_size=c['patch_size'],
        mlp_ratio=c['mlp_dim'] / c['dim'], out_indices=range(c['depth']), **FORMS[name]).eval()
    backbone.load_state_dict(weights)
    for x, outputs in zip(data['inputs'], data['outputs'], strict=True):
        with torch.no_grad():
            maps = backbone(x)
            pooled = F.layer_norm(maps[-1].mean((2, 3)), (c['dim'], ), *(
                weights[f'linear_head.0.{kind}'] for kind in ('weight', 'bias')))
            logits = F.linear(pooled, weights['linear_head.1.weight'], weights['linear_head.1.bias'])
        for out, expected in zip((*maps, logits), outputs, strict=True):
            torch.testing.assert_close(out, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize('name', FORMS)
@pytest.mark.parametrize('container', ['model', 'model_ema'])
def test_released_layouts(tmp_path, release, name, container):
    """Each layout fills its variant, as torchvision's trainer saves it; only the classifier has no counterpart. The
    filled model takes pictures of any size."""
    weights = release(f'msf_vit_small_{name}_imagenet')
    torch.save({container: {f'module.{k}': v for k, v in weights.items()}, 'epoch': 99}, tmp_path / 'c.pth')
    backbone = MSFViT(arch='small', init_cfg=dict(type='Pretrained', checkpoint=str(tmp_path / 'c.pth')), **FORMS[name])
    backbone.init_weights()
    own, renamed = backbone.state_dict(), backbone.released_names(weights)
    assert set(renamed) - set(own) == {f'linear_head.{i}.{kind}' for i in (0, 1) for kind in ('weight', 'bias')}
    assert all(torch.equal(value, renamed[name]) for name, value in own.items())
    with torch.no_grad():
        assert backbone.eval()(torch.randn(1, 3, 97, 130))[0].shape == (1, 384, 7, 9)
