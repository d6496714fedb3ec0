"""NAT, DiNAT and DiNAT_s with their authors' weights. Made of the authors' own code with NATTEN 0.14.6, the same maps
come out: they differ by 2e-15 of the largest value in float64."""

import pytest
import torch

from mmattn.backbones import NAT, DiNAT, SwinFrame
from mmattn.weights import CheckpointError
from mmattn.weights.first_pass import build_source

DEPTHS, HEADS = (2, 1), (1, 2)
ARCH = dict(embed_dim=8, depths=DEPTHS, num_heads=HEADS, mlp_ratio=3, layer_scale=1)
BLOCK = ['norm1', 'attn.qkv', 'attn.proj', 'norm2', 'mlp.fc1', 'mlp.fc2']


def release(stem, stages, norms, scales, reduction):
    """Random tensors of a release: names of its code, and shapes."""
    both = lambda name, *shape: {f'{name}.weight': shape, f'{name}.bias': shape[:1]}
    shapes = dict(stem)
    for i, depth in enumerate(DEPTHS):
        dim = 8 * 2**i
        out = dict(zip(BLOCK, [(dim,), (3 * dim, dim), (dim, dim), (dim,), (3 * dim, dim), (dim, 3 * dim)]))
        for j in range(depth):
            block = f'{stages}.{i}.blocks.{j}.'
            for name, shape in out.items():
                shapes |= both(block + name, *shape)
            shapes[f'{block}attn.rpb'] = (HEADS[i], 5, 5)
            shapes |= {f'{block}gamma{n}': (dim,) for n in (1, 2) if scales}
    shapes |= {f'{stages}.0.downsample.reduction.weight': reduction}
    shapes |= both(f'{stages}.0.downsample.norm', 16 if len(reduction) == 4 else 32)
    for name, dim in norms.items():
        shapes |= both(name, dim)
    return {name: torch.randn(shape) for name, shape in shapes.items()}


NORM = {f'patch_embed.norm.{kind}': (8,) for kind in ('weight', 'bias')}
STEM = {
    'patch_embed.proj.0.weight': (4, 3, 3, 3),
    'patch_embed.proj.0.bias': (4,),
    'patch_embed.proj.1.weight': (8, 4, 3, 3),
    'patch_embed.proj.1.bias': (8,),
    **NORM,
}
PATCHES = {'patch_embed.proj.weight': (8, 3, 4, 4), 'patch_embed.proj.bias': (8,), **NORM}


def taken(backbone, released):
    """The backbone's tensors after it has loaded a release, under the release's names."""
    backbone.load_state_dict(released)
    return {
        name.replace('ls1.gamma', 'gamma1').replace('ls2.gamma', 'gamma2'): x
        for name, x in backbone.state_dict().items()
    }


@pytest.mark.parametrize('kind', ['detector', 'classifier'])
def test_released_nat(kind):
    """Every tensor has its place. A classifier's norm is that of the last map."""
    of_detector = kind == 'detector'
    norms = dict(norm0=8, norm1=16) if of_detector else dict(norm=16)
    released = release(STEM, 'levels', norms, True, (16, 8, 3, 3))
    head = {} if of_detector else {'head.weight': torch.randn(5, 16), 'head.bias': torch.randn(5)}
    backbone = DiNAT(dict(ARCH, dilations=(2, 1)), kernel_size=3, out_indices=(0, 1) if of_detector else (1,))
    found = taken(backbone, {**released, **head})
    expected = {name.replace('norm.', 'norm1.') if name[:5] == 'norm.' else name: x for name, x in released.items()}
    assert found.keys() == expected.keys()
    assert all(found[name].equal(expected[name]) for name in expected)


def test_released_dinat_s():
    """Swin's frame takes DiNAT_s as it is."""
    released = release(PATCHES, 'layers', dict(norm0=8, norm1=16), False, (16, 32))
    arch = dict(embed_dim=8, depths=DEPTHS, num_heads=HEADS)
    stages = dict(type='NeighbourhoodAttention', kernel_size=3, dilation=(1, 2))
    found = taken(SwinFrame(arch, stages, mlp_ratio=3, out_indices=(0, 1)), released)
    assert found.keys() == released.keys() and all(found[name].equal(x) for name, x in released.items())


def test_starts_from_nat():
    """ELSA's ghost head in NAT's frame starts with NAT's maps. Another token mixer takes the projections that it has,
    and the source, which is compared in the log, is NAT."""
    released = release(STEM, 'levels', dict(norm0=8, norm1=16), True, (16, 8, 3, 3))
    x = torch.randn(2, 3, 40, 72)

    def started(**token_mixer):
        backbone = NAT(ARCH, token_mixer, out_indices=(0, 1)).eval()
        backbone.load_state_dict(backbone._warm_started(released))
        return backbone

    ours = started(type='NeighbourhoodAttention', kernel_size=3, dilation=(1, 2), ghost_size=5)
    source = build_source(ours, released).eval()
    source.load_state_dict(released)
    for own, expected in zip(ours(x), source(x), strict=True):
        torch.testing.assert_close(own, expected)
    mixed = NAT(ARCH, [[dict(type='NeighbourhoodAttention', dilation=2), dict(type='ELSA')], None], out_indices=(0, 1))
    assert [block.attn.dilation for block in build_source(mixed, released).levels[0].blocks] == [2, 1]
    other = started(type='MeanShiftAttention')
    assert other.levels[0].blocks[0].attn.post_proj.weight.equal(released['levels.0.blocks.0.attn.proj.weight'])
    assert not other(x)[1].allclose(source(x)[1])
    for shape in ((), (1, 4, 4), (1, 201, 201)):  # tables of no neighbourhood
        odd = {**released, 'levels.0.blocks.0.attn.rpb': torch.zeros(shape)}
        with pytest.raises(CheckpointError, match='1 of another shape: levels.0.blocks.0.attn.rpb'):
            build_source(other, odd).load_state_dict(odd)
    del released['levels.1.blocks.0.mlp.fc1.bias']
    with pytest.raises(CheckpointError, match='lack .levels.1.blocks.0.mlp.fc1.bias'):
        started(type='MeanShiftAttention')


def test_dinat_starts_from_nat(tmp_path, log):
    """The source that it is compared with in the log is a NAT, whose architecture has no dilations."""
    source = NAT(dict(ARCH, depths=(2, 2)), out_indices=(0, 1))
    torch.save(source.state_dict(), tmp_path / 'nat.pth')
    DiNAT(dict(ARCH, depths=(2, 2), dilations=(2, 1)), out_indices=(0, 1)).load_pretrained(
        tmp_path / 'nat.pth', warm_start=True
    )
    assert any('DiNAT, warm start: the first pass differs from that of a NAT or DiNAT by' in line for line in log)


def test_every_second_block_is_dilated():
    with torch.device('meta'):
        backbone = DiNAT('mini', kernel_size=3)
    dilations = [[block.attn.dilation for block in stage.blocks] for stage in backbone.levels]
    assert dilations == [[1, 8, 1], [1, 4, 1, 4], [1, 2, 1, 2, 1, 2], [1] * 5]


def test_dilations_grow_with_the_images(tmp_path, log):
    """A detector starts from a classifier with smaller dilations, and the log says so. Other settings are compared. The
    note of the classifier is an earlier one, which does not name what may change."""
    arch = dict(embed_dim=8, depths=(1,), num_heads=(2,), mlp_ratio=1, layer_scale=0)

    def build(heads=2, **stage):
        stage = dict(type='NeighbourhoodAttention', kernel_size=3, rel_pos_bias=False, **stage)
        return NAT(dict(arch, num_heads=(heads,)), stage, out_indices=(0,))

    classifier = build(dilation=(1, 2))
    file = tmp_path / 'classifier.pth'
    note = {name: value for name, value in classifier.settings_note.items() if 'changes_with_images' not in name}
    torch.save(dict(state_dict=classifier.state_dict(), meta=dict(mmattn={'': note})), file)
    detector = build(dilation=(1, 3))
    detector.load_pretrained(file)
    assert detector.levels[0].blocks[0].attn.qkv.weight.equal(classifier.levels[0].blocks[0].attn.qkv.weight)
    told = 'trained with attention[0].dilation=[1, 2] instead of [1, 3]'
    assert sum(told in message for message in log) == 1
    with pytest.raises(CheckpointError, match=r'trained with num_heads=\[2\] instead of \[1\], '):
        build(heads=1, dilation=(1, 3)).load_pretrained(file)
    build(dilation=3, ghost_size=3).load_pretrained(file, warm_start=True)
    log.clear()
    build(dilation=(1, 2)).load_pretrained(file)
    assert not any('trained with' in message for message in log)


def test_mistakes():
    for change, message in (
        (dict(layer_scale=2), 'arch: layer_scale must be 0 or 1, not 2'),
        (dict(num_heads=(1, 3)), 'arch: num_heads 3 does not divide the 16 channels'),
        (dict(embed_dim=1, num_heads=(1, 1)), 'arch: embed_dim must be a whole number of at least 2, not 1'),
        (dict(depths=(1, 1, 1)), 'arch: depths and num_heads must be of one length'),
    ):
        with pytest.raises(ValueError, match=message):
            NAT(dict(ARCH, **change), out_indices=(0,))
    for dilations in (2, (), (1, 2)):
        with pytest.raises(ValueError, match='dilations must be a list of 4, one per stage, not '):
            DiNAT('mini', dilations=dilations)
