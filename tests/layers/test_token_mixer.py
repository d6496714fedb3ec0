"""How a config names a token mixer, and what a user's own needs."""

import inspect
import sys

import pytest
import torch
from mmengine.registry import MODELS
from torch import Tensor, nn

from mmattn.backbones import GSAResNet, SwinFrame, ViTFrame
from mmattn.layers import ELSA, TOKEN_MIXERS, MeanShiftAttention, build_token_mixer

ARCH = dict(embed_dim=8, depths=(2, 1), num_heads=(1, 2))


class Gate(nn.Module):
    """A token mixer that asks for everything that SwinFrame knows."""

    def __init__(self, dim, num_heads, shift, stride, *, window_size, shift_small_maps, factor=1.0) -> None:
        super().__init__()
        self.given = dim, num_heads, shift, stride, window_size, shift_small_maps, factor
        self.scale = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale(x)


class Wants(nn.Module):
    def __init__(self, dim, colour) -> None:
        super().__init__()


class Plain:
    """No module: torch does not see its parameters."""

    def __init__(self, dim) -> None:
        self.weight = nn.Parameter(torch.ones(dim))


class Noted(nn.Module):
    def __init__(self, settings) -> None:
        super().__init__()
        self.settings = settings


class Returns(nn.Module):
    def __init__(self, what) -> None:
        super().__init__()
        self.what = what

    def forward(self, x: Tensor) -> object:
        return self.what(x)


@pytest.fixture
def gate():
    TOKEN_MIXERS.register_module('Gate', module=Gate)
    yield
    TOKEN_MIXERS.module_dict.pop('Gate')


def test_gets_what_it_asks_for(gate):
    """Each block gets its channels, heads, shift and stride. A value in the config replaces the backbone's."""
    stages = [dict(type='Gate', window_size=5), dict(type=Gate, factor=2.0)]
    backbone = SwinFrame(arch=ARCH, attention=stages, window_size=3, shift_small_maps=False, out_indices=(0, 1))
    assert [block.attn.given for stage in backbone.layers for block in stage.blocks] == [
        (8, 1, 0, 4, 5, False, 1.0),
        (8, 1, 2, 4, 5, False, 1.0),
        (16, 2, 0, 8, 3, False, 2.0),
    ]
    assert backbone.settings['attention[0]'] == backbone.settings['attention[1]'] == 'Gate'
    assert [tuple(out.shape) for out in backbone(torch.zeros(1, 3, 9, 13))] == [(1, 8, 3, 4), (1, 16, 2, 2)]


def test_blocks_have_token_mixers_in_turn(gate):
    """A stage may have a list. Windows are shifted in every second block of those that have them."""
    arch = dict(ARCH, depths=(5, 1))
    several = [dict(type='Gate', window_size=5), dict(type='ELSA', kernel_size=3, group_width=4)]
    backbone = SwinFrame(arch, [several, dict(type='Gate')], out_indices=(0, 1))
    attns = [block.attn for block in backbone.layers[0].blocks]
    assert [type(attn).__name__ for attn in attns] == ['Gate', 'ELSA', 'Gate', 'ELSA', 'Gate']
    assert [attn.given[2] for attn in attns[::2]] == [0, 2, 0]
    noted = {
        'attention[0][0]': 'Gate',
        'attention[0][1]': 'ELSA',
        'attention[0][1].dilation': 1,
        'attention[1]': 'Gate',
    }
    assert noted.items() <= backbone.settings.items()


@pytest.mark.parametrize('name', sorted(TOKEN_MIXERS.module_dict))
def test_every_token_mixer_in_both_frames(name):
    """The example of the docs names no arguments but the type. Odd sizes; every parameter learns."""
    cfg = dict(type=name)
    arch = dict(embed_dim=12, depths=(2, 1), num_heads=(2, 2))
    swin = SwinFrame(arch=arch, attention=cfg, out_indices=(0, 1))
    vit = ViTFrame(arch=dict(embed_dim=12, depth=2, num_heads=2), attention=cfg, patch_size=8)
    for backbone in (swin, vit):
        out = backbone(torch.randn(2, 3, 41, 31))
        sum(part.square().sum() for part in out).backward()
        unused = [name for name, parameter in backbone.named_parameters() if parameter.grad is None]
        assert not unused


@pytest.mark.parametrize(
    'name',
    sorted(n for n, c in TOKEN_MIXERS.module_dict.items() if 'attn_drop_rate' in inspect.signature(c).parameters),
)
def test_attention_dropout_only_in_training(name):
    layer = build_token_mixer(dict(type=name, attn_drop_rate=0.5), dim=12, num_heads=2)
    x = torch.randn(1, 6, 6, 12)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


@pytest.mark.parametrize('name', ['mmattn.layers.elsa.ELSA', 'mmattn.ELSA'])
def test_place_of_a_class(name):
    """What MMEngine writes for the class, in the copy of a config in the work folder. Settings have the short name."""
    backbone = SwinFrame(ARCH, dict(type=name, kernel_size=3, group_width=4), out_indices=(0,))
    assert isinstance(backbone.layers[0].blocks[0].attn, ELSA) and backbone.settings['attention[0]'] == 'ELSA'


@pytest.mark.parametrize('name', ['os.system', 'loud.registry.Gate', 'mmdet.ELSA'])
def test_names_import_nothing(monkeypatch, tmp_path, name):
    """A name may come from a file. MMEngine's registry would import "loud.registry", and call any function."""
    (tmp_path / 'loud').mkdir()
    (tmp_path / 'loud' / 'registry.py').write_text('')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=f'there is no token mixer {name}; there are .*custom_imports'):
        build_token_mixer(dict(type=name), dim=8, num_heads=2)
    assert 'loud' not in sys.modules


@pytest.mark.parametrize(
    'cfg, message',
    [
        (dict(type='ELSSA'), 'there is no token mixer ELSSA; .*did you mean ELSA'),
        (dict(type='ELSA', kernel=3), 'token mixer ELSA has no argument kernel: did you mean kernel_size'),
        (dict(type=Wants), 'token mixer .*Wants.* needs colour'),
        (dict(type=3), "cfg must be a token mixer, such as .*, not {'type': 3}"),
        (dict(type=Plain), 'token mixer Plain must be an nn.Module, or its parameters would not train'),
        (dict(type=Noted, settings=dict(act=nn.GELU)), 'token mixer Noted: its settings must be a dict of numbers'),
    ],
    ids=['no name', 'no argument', 'needs', 'type', 'no module', 'settings'],
)
def test_mistakes(cfg, message):
    """One sentence each. Parameters outside of a module would not train, and our own reader of checkpoints would refuse
    settings of other classes."""
    with pytest.raises(ValueError, match=message):
        build_token_mixer(cfg, dim=8, num_heads=2)


@pytest.mark.parametrize(
    'what, message',
    [
        (lambda x: x.mean((1, 2), keepdim=True), r'not \(1, 1, 1, 8\)'),
        (lambda x: (x, None), 'not a value of type tuple'),
    ],
    ids=['shape', 'tuple'],
)
def test_what_it_returns(what, message):
    """The residual would broadcast a map of another shape, and train."""
    cfg = dict(type=Returns, what=what)
    resnet = dict(depths=(1,), stem_channels=8, base_channels=8, expansion=1)
    message = rf'token mixer Returns must return a tensor of the shape that it gets, \(1, 4, 4, 8\), {message}'
    for frame in (
        SwinFrame(ARCH, cfg, out_indices=(0,)),
        GSAResNet(resnet, gsa_stages=(0,), attention=cfg, out_indices=(0,)),
    ):
        with pytest.raises(ValueError, match=message):
            frame(torch.zeros(1, 3, 16, 16))


PARTS = dict(embed_dims=(8, 16), depths=(2, 1), num_heads=(1, 2), stem_convs=0)
RESNET = dict(depths=(2, 1), stem_channels=8, base_channels=8, expansion=1)
FRAMES = {
    'SwinFrame': dict(arch=dict(ARCH, depths=(2, 1))),
    'NAT': dict(arch=dict(ARCH, depths=(2, 1), mlp_ratio=2, layer_scale=0)),
    'ELSAVOLO': dict(arch=dict(ARCH, depths=(2, 1), stem_dim=8, mlp_ratio=2)),
    'ShuntedTransformer': dict(arch=PARTS, reductions=(1, 2), mlp_ratios=(2, 2)),
    'GSAResNet': dict(depth=RESNET, gsa_stages=(0, 1), num_heads=2),
}


@pytest.mark.parametrize('name', FRAMES)
def test_one_argument_in_every_frame(name):
    """None is the frame's own attention, in the place of a config, of a stage or of a block; blocks take turns."""
    mean_shift = dict(type='MeanShiftAttention')

    def attentions(attention):
        frame = MODELS.build(dict(FRAMES[name], type=name, out_indices=(0, 1), attention=attention))
        return [type(module.attn) for module in frame.modules() if hasattr(module, 'is_block')]

    plain = attentions(None)
    assert len(plain) == 3 and MeanShiftAttention not in plain
    assert attentions([None, [None]]) == plain
    assert attentions(mean_shift) == [MeanShiftAttention] * 3
    assert attentions([[None, mean_shift], None]) == [plain[0], MeanShiftAttention, plain[2]]


class Strided(nn.Conv2d):
    """A token mixer that asks for the stride of its map."""

    def __init__(self, dim, stride) -> None:
        super().__init__(dim, dim, 1)
        self.of_map = stride


@pytest.mark.parametrize('name', FRAMES)
def test_the_stride_of_a_map(name):
    """Every frame tells it. In GSA-ResNet, the first block of a stage works on the larger map."""
    frame = MODELS.build(dict(FRAMES[name], type=name, out_indices=(0, 1), attention=dict(type=Strided)))
    found = [module.of_map for module in frame.modules() if isinstance(module, Strided)]
    assert found == {'ELSAVOLO': [8, 8, 16], 'GSAResNet': [4, 4, 4]}.get(name, [4, 4, 8])


@pytest.mark.parametrize(
    'attention, message',
    [
        ('ELSA', 'attention must be a token mixer, such as'),
        ([dict(type='ELSA')], 'attention must be a token mixer, or a list of 2, one per stage, not a list of 1'),
        ([dict(kernel_size=3)] * 2, r'attention\[0\] must be a token mixer, such as'),
        ([None, dict(type=None)], r'attention\[1\] must be a token mixer, such as'),
        ([None, [None, None]], r'attention\[1\] must have from 1 to 1 token mixers, one per block, not 2'),
    ],
    ids=['text', 'too-few', 'no-type', 'type-none', 'more-than-blocks'],
)
def test_mistakes_in_attention(attention, message):
    with pytest.raises(ValueError, match=message):
        SwinFrame(arch=ARCH, attention=attention, out_indices=(0,))
