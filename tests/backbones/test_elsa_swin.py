import pytest
import torch

from mmattn.backbones import ELSASwin
from mmattn.layers import ELSA

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
    'settings, millions', [(dict(elsa_stages=()), 28.3), (dict(lam=0, gamma=0), 29.0), (dict(), 29.1)]
)
def test_ablations_of_table_4(settings, millions):
    """Arguments alone make Swin-T, Hadamard attention, and both with the ghost head; sizes are the table's."""
    with torch.device('meta'):
        classifier = torch.nn.Sequential(
            ELSASwin(arch='tiny', out_indices=(3,), **settings), torch.nn.Linear(768, 1000)
        )
    assert sum(p.numel() for p in classifier.parameters()) / 1e6 == pytest.approx(millions, abs=0.06)


def test_settings_reach_the_layers():
    """Every argument reaches its layer."""
    backbone = ELSASwin(
        arch='tiny',
        kernel_size=5,
        dilation=2,
        group_width=16,
        lam=1,
        gamma=0.25,
        window_size=4,
        mlp_ratio=2,
        drop_rate=0.1,
        attn_drop_rate=0.2,
        drop_path_rate=0.3,
        in_channels=1,
    )
    block = backbone.layers[2].blocks[-1]
    elsa, window = block.attn, backbone.layers[3].blocks[1].attn
    assert isinstance(elsa, ELSA) and elsa.attn[0].kernel_size == (5, 5) and elsa.attn[0].dilation == (2, 2)
    assert elsa.attn[0].weight.shape[1] == 16 and (elsa.lam, elsa.gamma, elsa.dilation) == (1, 0.25, 2)
    assert (window.window_size, window.shift) == (4, 2) and backbone.layers[3].blocks[0].attn.shift == 0
    assert block.mlp.fc1.out_features == 2 * 384 and block.mlp.drop1.p == elsa.drop.p == 0.1
    assert elsa.attn_drop_rate == window.attn_drop_rate == 0.2
    assert backbone.layers[3].blocks[1].drop_path.drop_prob == pytest.approx(0.3)
    assert backbone.layers[0].blocks[0].drop_path.drop_prob == 0
    assert backbone.patch_embed.proj.in_channels == 1


@pytest.mark.parametrize(
    'wrong, message',
    [
        (dict(elsa_stages=(), lam=0.5), 'lam must be a whole number >= 0, not 0.5'),
        (dict(window_size=0), 'window_size'),
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
