import pytest
import torch
import torch.nn.functional as F

from mmattn.backbones import TransNeXt
from mmattn.errors import CheckpointError
from tests.backbones.cases import CASES


def of_release(config, **settings):
    sizes = {key: config[key] for key in ('embed_dims', 'depths', 'num_heads')}
    return TransNeXt(
        sizes, config['sr_ratios'], config['mlp_ratios'], pretrain_size=config['pretrain_size'], **settings
    ).eval()


@pytest.mark.parametrize('backend', [None, 'reference'])
@torch.no_grad()
def test_computes_what_the_release_computes(golden, backend):
    """All four maps and the logits. The released detectors interpolate the bias by position, on a map that no pool
    divides; with extrapolation they make it for the map; on the map of ``img_size``, both do as the classifiers."""
    data = golden('transnext')
    head = [data['state_dict'][f'head.{kind}'] for kind in ('weight', 'bias')]
    for x, img_size, outputs in zip(data['inputs'], data['img_sizes'], data['outputs'], strict=True):
        backbone = of_release(data['config'], img_size=img_size or None)
        backbone.load_state_dict(data['state_dict'])
        backbone.set_backend(backend)
        maps = backbone(x)
        for out, expected in zip((*maps, F.linear(maps[-1].mean((2, 3)), *head)), outputs):
            torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)


def test_only_the_classifier_is_left_out(golden):
    """A release fills all tensors. A backbone that ends earlier leaves out the later stages."""
    data = golden('transnext')
    first = of_release(data['config'], out_indices=(0, 1))
    dropped = first.from_release(data['state_dict']).dropped
    assert {name.partition('.')[0][:-1] for name in dropped} == {'patch_embed', 'block', 'norm', 'hea'}
    del data['state_dict']['block1.0.attn.temperature']
    with pytest.raises(CheckpointError, match='1 missing: block1.0.attn.temperature'):
        first.load_state_dict(data['state_dict'])


def test_weights_of_others_are_named():
    """The tensors of TransNeXt are not taken for PVTv2's, all of whose names they have."""
    case, of_pvt = CASES['TransNeXt'], dict(type='SpatialReductionAttention')
    pvt = CASES['ShuntedTransformer'].build(CASES['ShuntedTransformer'].small, stem='convolution', attention=of_pvt)
    with pytest.raises(CheckpointError, match='they look like a TransNeXt'):
        pvt.load_state_dict(case.build(case.small).state_dict())


def test_reductions_are_a_list():
    """As those of the Shunted Transformer are."""
    with pytest.raises(ValueError, match='reductions must be a list of whole numbers, one per stage, not 8'):
        TransNeXt('micro', reductions=8)
