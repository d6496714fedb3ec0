import pytest
import torch

from mmattn.backbones import ELSASwin

TABLE = 'relative_position_bias_table'


def from_golden(data) -> ELSASwin:
    c = data['config']
    backbone = ELSASwin(
        arch={key: c[key] for key in ('embed_dim', 'depths', 'num_heads', 'group_width')},
        kernel_size=c['elsa_kernel'],
        window_size=c['window_size'],
        lam=c['lam'],
        gamma=c['gamma'],
    )
    backbone.load_state_dict(data['state_dict'])
    return backbone.eval()


@pytest.mark.parametrize('name', ['elsa_swin_k7', 'elsa_swin_k5_ghostmul'])
@pytest.mark.parametrize(
    'backend',
    # Triton's interpreter is slow.
    ['reference', 'shifted', pytest.param('triton', marks=pytest.mark.slow)],
)
def test_computes_what_the_release_computes(golden, request, name, backend):
    """All four maps of both released settings, at even and odd sizes, by every backend."""
    device = 'cpu'
    if backend == 'triton':
        request.getfixturevalue('triton_runs')
        device = 'cuda' if torch.cuda.is_available() else 'cpu'
    data = golden(name)
    backbone = from_golden(data).to(device)
    backbone.set_backend(backend)
    for x, outputs in zip(data['inputs'], data['outputs'], strict=True):
        with torch.no_grad():
            for out, expected in zip(backbone(x.to(device)), outputs, strict=True):
                torch.testing.assert_close(out.cpu(), expected, atol=1e-5, rtol=0)


def as_released(weights):
    """Weights with window attention as the release has it: values first, and the table by key minus query."""
    released = {}
    for name, value in weights.items():
        if name.endswith(TABLE):
            name, value = name.replace(TABLE, 'rb'), value.flip(0).t()
        elif '.attn.qkv.' in name:
            q, k, v = value.chunk(3)
            name, value = name.replace('qkv', 'pre_proj'), torch.cat((v, q, k))
        released[name.replace('.attn.proj.', '.attn.post_proj.')] = value
    return released


@pytest.mark.parametrize(
    'arch, layout',
    [
        ('tiny', 'elsa_swin_tiny_imagenet'),
        ('small', 'elsa_swin_small_imagenet'),
        ('base', 'elsa_swin_base_imagenet'),
        ('tiny', 'elsa_swin_tiny_dense_backbone'),
    ],
)
def test_released_layouts(release, arch, layout):
    """Each release fills its variant; only its classifier is left out, only output norms are not filled."""
    state_dict = release(layout)
    with torch.device('meta'):
        backbone = ELSASwin(arch=arch)
    backbone.to_empty(device='cpu').load_state_dict(state_dict, strict=True)
    own = as_released(backbone.state_dict())
    assert all(torch.equal(own[name], state_dict[name]) for name in own if name in state_dict)
    over, short = set(state_dict) - set(own), set(own) - set(state_dict)
    assert all(name.startswith(('norm.', 'head.')) or name.endswith('relative_id') for name in over)
    assert all(name[:5] in ('norm0', 'norm1', 'norm2', 'norm3') for name in short)


@pytest.mark.parametrize(
    'wrong, message',
    [
        (dict(elsa_stages=(), lam=0.5), 'lam must be a whole number >= 0, not 0.5'),
        (dict(elsa_stages=(4,)), 'elsa_stages'),
        (dict(arch=dict(embed_dim=8, depths=(1, 1), num_heads=(1,), group_width=4)), 'depths and num_heads'),
        (dict(arch=dict(embed_dim=8, depths=(1,), num_heads=(3,), group_width=4)), 'num_heads 3 does not divide'),
    ],
)
def test_impossible_settings_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        ELSASwin(**wrong)


def test_tables_are_resized_between_pixel_centres():
    """Of a table that rises by 1 from column to column, a larger one has the values at its own pixel centres."""
    arch = dict(embed_dim=8, depths=(1,), num_heads=(1,), group_width=4)
    small, large = (ELSASwin(arch, elsa_stages=(), window_size=w, out_indices=(0,)) for w in (7, 14))
    weights = small.state_dict()
    weights[f'layers.0.blocks.0.attn.{TABLE}'] = torch.arange(13.0).repeat(13)[:, None]
    large.load_state_dict(weights)
    inner = torch.arange(3, 24)  # at the border, pixels are repeated
    rows = getattr(large.layers[0].blocks[0].attn, TABLE).detach().view(27, 27)
    expected = ((inner + 0.5) * 13 / 27 - 0.5).expand(27, -1)
    torch.testing.assert_close(
        rows[:, inner], expected, atol=0.1, rtol=0
    )  # torch's cubic is not a straight line either
