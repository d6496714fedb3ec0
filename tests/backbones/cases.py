"""What the tests need to know of each backbone. A new backbone adds a row to CASES."""

import copy
import dataclasses
from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from mmengine.registry import MODELS
from torch import nn

import mmattn  # noqa: F401, registers the backbones
from mmattn.backbones.vit import FEED_FORWARDS
from mmattn.layers import FEED_FORWARD
from mmattn.layers.mean_shift import COLUMNS, GROUP_MODES
from mmattn.layers.shunted import AGGREGATIONS
from mmattn.ops.global_self_attention import BEYOND


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A row of CASES. In all settings, ``arch`` stands for the argument that takes the architecture.

    Args:
        name: in the registry.
        small: settings of four stages with everything that the backbone can have in them.
        tiny: settings of two stages, for tests that trace graphs, which takes seconds per block.
        architectures: hypothesis strategy of any settings.
        channels: channels of all stages, from settings.
        half_precision: bound of the error in half precision, as a fraction of the norm of the feature maps, in units of
            the epsilon of the dtype: about twice what is seen.
        trained: settings for the training tests, with maps of ``trained_channels`` in four stages. Results must not
            depend on how a batch is split, so batch norm uses its running statistics.
        segmentors: config in projects/lab/configs/toy -> settings of the backbone that make it faster to export.
        strides: strides of all stages, from settings.
        batch_norm: whether it has batch norm, and so the argument ``norm_eval``.
        dropouts: settings of all dropouts.
        shifting: from the number of blocks per stage, a hypothesis strategy of (settings, step, reach). With these
            settings, a shift of the image by ``step`` pixels of the last map shifts that map, except near the border,
            because a block passes information over ``reach`` pixels. None if the backbone promises no such thing.
        of_another: whether other rows have nearly all of its code: ``make test`` leaves it out.
    """

    name: str
    small: dict
    tiny: dict
    architectures: SearchStrategy
    channels: Callable[[dict], list[int]]
    half_precision: float
    trained: dict
    segmentors: dict[str, dict]
    trained_channels: tuple[int, ...] = (16, 32, 64, 128)
    strides: Callable[[dict], list[int]] = lambda settings: [4 * 2**i for i in range(len(settings['arch']['depths']))]
    batch_norm: bool = False
    dropouts: dict = dataclasses.field(
        default_factory=lambda: dict(drop_path_rate=0.3, drop_rate=0.2, attn_drop_rate=0.2)
    )
    shifting: Callable[[list[int]], SearchStrategy] | None = None
    of_another: bool = False

    def config(self, form: dict, **settings) -> dict:
        """The config of the backbone with the settings of a form, some of them replaced."""
        settings = {**copy.deepcopy(form), **settings}
        settings[MODELS.get(self.name).arch_argument] = settings.pop('arch')
        return dict(type=self.name, **settings)

    def build(self, form: dict, **settings) -> nn.Module:
        """Likewise the backbone itself."""
        return MODELS.build(self.config(form, **settings))


def divisors(number, most=4):
    return st.sampled_from([d for d in range(1, most + 1) if number % d == 0])


def stages(value, count):
    return st.lists(value, min_size=count, max_size=count)


@st.composite
def swins(draw, depths):
    embed_dim = draw(st.sampled_from([4, 6, 8, 12]))
    return dict(
        arch=dict(
            embed_dim=embed_dim, depths=depths, num_heads=[draw(divisors(embed_dim * 2**i)) for i in range(len(depths))]
        ),
        window_size=draw(st.integers(1, 5)),
        mlp_ratio=draw(st.sampled_from([1, 2.5])),
    )


@st.composite
def elsa_swins(draw, depths):
    settings = draw(swins(depths))
    settings['arch']['group_width'] = draw(st.sampled_from([1, 2, 4]))
    return dict(
        settings,
        kernel_size=draw(st.sampled_from([1, 3, 5])),
        dilation=draw(st.integers(1, 2)),
        lam=draw(st.integers(0, 2)),
        gamma=draw(st.sampled_from([0, 0.5, 1])),
        elsa_stages=draw(st.sets(st.integers(0, len(depths) - 1))),
    )


@st.composite
def mean_shifts(draw, dim):
    form = draw(st.sampled_from(list(COLUMNS)))
    columns = COLUMNS[form]
    return dict(
        form=form,
        sharing=''.join(draw(stages(st.sampled_from(columns), len(columns)))),
        groups=draw(divisors(dim)),
        group_mode=draw(st.sampled_from(GROUP_MODES)),
        proj_bias=draw(st.booleans()),
    )


@st.composite
def msf_swins(draw, depths):
    settings = draw(swins(depths))
    return dict(settings, **draw(mean_shifts(settings['arch']['embed_dim'])))


@st.composite
def msf_vits(draw):
    dim = draw(st.sampled_from([8, 12, 16]))
    return dict(
        arch=dict(embed_dim=dim, depth=draw(st.integers(1, 3)), num_heads=draw(divisors(dim))),
        **draw(vit_forms()),
        **draw(mean_shifts(dim)),
    )


@st.composite
def vit_forms(draw):
    return dict(
        feed_forward=draw(st.sampled_from(list(FEED_FORWARDS))),
        embedding=draw(st.sampled_from(['simple', 'deit', 'patches'])),
        img_size=draw(st.integers(1, 60)),
        patch_size=draw(st.sampled_from([7, 8, 16])),
        final_norm=draw(st.sampled_from([False, True, 'all'])),
        norm_eps=draw(st.sampled_from([1e-6, 1e-2])),
        layer_scale=draw(st.sampled_from([None, 0.5])),
    )


@st.composite
def dino_vits(draw):
    version = draw(st.integers(2, 3))
    numbers = dict(registers=draw(st.integers(0, 2)), swiglu=draw(st.integers(0, 1)))
    arch = dict(embed_dim=16, depth=draw(st.integers(1, 3)), num_heads=draw(st.sampled_from([1, 2, 4])))
    return dict(arch=dict(arch, version=version, **numbers), **draw(prefix_forms(arch['depth'])), **draw(vit_forms()))


@st.composite
def prefix_forms(draw, depth):
    """Plain attention in the first block at least, and class tokens for it."""
    kinds = [None, None, dict(type='SelfAttention'), dict(type='DepthwiseConv', kernel_size=3)]
    return dict(
        attention=draw(st.sampled_from([None, [None, *draw(stages(st.sampled_from(kinds), depth - 1))]])),
        class_token=draw(st.booleans()),
        rope=draw(st.sampled_from([None, 10.0, 100.0])),
        qkv_bias=draw(st.booleans()),
    )


@st.composite
def swin_frames(draw, depths):
    """Every stage has a mechanism of its own."""
    kinds = [
        dict(type='WindowAttention'),
        dict(type='ELSA', kernel_size=3, group_width=1),
        dict(type='ELSA', kernel_size=3, group_width=1, hadamard='equation', qkv_bias=False),
        dict(type='MeanShiftWindow'),
        dict(type='LocalAttention', terms=['qr', 'rk']),
        dict(type='LocalAttention', area='neighbours', kernel_size=3),
        dict(type='Convolution'),
        dict(type='DepthwiseConv', kernel_size=3),
        dict(type='NeighbourhoodAttention', kernel_size=3, dilation=(1, 2)),
        dict(type='DecoupledDynamicFilter', kernel_size=3, reduction=0.3),
        dict(type='EnhancedAttention'),
    ]
    return dict(draw(swins(depths)), attention=draw(stages(st.sampled_from(kinds), len(depths))))


@st.composite
def nats(draw, depths):
    """Every stage has a mechanism of its own."""
    arch = draw(swins(depths))['arch']
    kinds = [
        dict(type='NeighbourhoodAttention', kernel_size=3),
        dict(type='NeighbourhoodAttention', kernel_size=5, dilation=(1, 2), rel_pos_bias=False, qkv_bias=False),
        dict(type='WindowAttention', window_size=3),
    ]
    return dict(
        arch=dict(arch, mlp_ratio=draw(st.integers(1, 2)), layer_scale=draw(st.integers(0, 1))),
        attention=draw(stages(st.sampled_from(kinds), len(depths))),
    )


@st.composite
def dinats(draw, depths):
    arch = draw(nats(depths))['arch']
    arch['dilations'] = draw(stages(st.integers(1, 3), len(depths)))
    return dict(arch=arch, kernel_size=draw(st.sampled_from([1, 3, 5])))


@st.composite
def vit_frames(draw):
    dim = draw(st.sampled_from([8, 16]))
    attentions = [
        None,
        dict(type='MeanShiftAttention', steps=2, step_size=0.5),
        dict(type='MeanShiftAttention', landmarks=3),
        dict(type='GhostHeadAttention', img_size=40),
        dict(type='GhostHeadAttention', lam=0, multiple=1),
    ]
    arch = dict(embed_dim=dim, depth=draw(st.integers(1, 3)), num_heads=draw(divisors(dim // 4, 2)))
    if draw(st.booleans()):
        forms = dict(draw(prefix_forms(arch['depth'])), registers=draw(st.integers(0, 2)))
    else:
        forms = dict(attention=draw(st.sampled_from(attentions)))
    return dict(arch=arch, **forms, **draw(vit_forms()))


@st.composite
def elsa_volos(draw):
    dim = draw(st.sampled_from([8, 12]))
    first = [
        dict(type='ELSA', kernel_size=3, group_width=1, qkv_bias=False),
        dict(type='OutlookAttention'),
        dict(type='WindowAttention', window_size=3),
    ]
    second = [None, dict(type='EnhancedAttention')]
    depths = draw(st.lists(st.integers(1, 2), min_size=2, max_size=4))
    return dict(
        arch=dict(
            embed_dim=dim,
            depths=depths,
            num_heads=(draw(divisors(dim)), draw(divisors(dim))),
            stem_dim=draw(st.integers(1, 8)),
            mlp_ratio=draw(st.integers(1, 3)),
        ),
        attention=[draw(st.sampled_from(first)), *[draw(st.sampled_from(second))] * (len(depths) - 1)],
        img_size=draw(st.integers(1, 100)),
        final_norm=draw(st.booleans()),
    )


@st.composite
def shunteds(draw, depths):
    count = len(depths)
    heads = draw(stages(st.sampled_from([2, 4]), count))
    mechanisms = [dict(type='WindowAttention', window_size=3), dict(type='ShuntedAttention', ghost_size=3)]
    return dict(
        arch=dict(
            embed_dims=[n * draw(st.sampled_from([2, 3, 4])) for n in heads],
            depths=depths,
            num_heads=heads,
            stem_convs=draw(st.integers(0, 2)),
        ),
        reductions=draw(stages(st.sampled_from([1, 2, 4, 8, [3], [3, 1]]), count)),
        mlp_ratios=draw(stages(st.sampled_from([1, 2.5]), count)),
        stem=draw(st.sampled_from(['overlap', 'patches'])),
        aggregation=draw(st.sampled_from(AGGREGATIONS)),
        feed_forward=draw(st.sampled_from(list(FEED_FORWARD))),
        attention=draw(stages(st.sampled_from([None, None, *mechanisms]), count)),
    )


@st.composite
def gsa_resnets(draw, depths):
    width = draw(st.sampled_from([2, 4, 6]))
    parts = draw(st.integers(1, 7))
    content = draw(st.sampled_from([True, 'axial'] if parts > 1 else [True])) if parts & 1 else False
    attention = draw(st.sampled_from([None, None, dict(type='WindowAttention', window_size=3)]))
    return dict(
        arch=dict(
            depths=depths, stem_channels=draw(st.integers(1, 8)), base_channels=width, expansion=draw(st.integers(1, 3))
        ),
        gsa_stages=draw(st.sets(st.integers(0, len(depths) - 1))),
        num_heads=draw(divisors(width)),
        content=content,
        column=bool(parts & 2),
        row=bool(parts & 4),
        img_size=draw(st.integers(1, 100)),
        zero_init_residual=False,  # a block that starts as its shortcut would show nothing
        beyond=draw(st.sampled_from(BEYOND)),
        axial_softmax=draw(st.booleans()),
        softmax_queries=content is True and draw(st.booleans()),
        neighbourhood=draw(st.sampled_from([None, 1, 5])),
        keep_conv=draw(st.booleans()),
        attention=attention,
    )


#: one to four stages of one or two blocks
depths = st.lists(st.integers(1, 2), min_size=1, max_size=4)


@st.composite
def shifting_elsa_swins(draw, depths):
    """Neighbourhoods shift by any number of pixels, windows by whole ones."""
    window_size = draw(st.integers(1, 3))
    settings = dict(draw(elsa_swins(depths)), window_size=window_size)
    return settings, window_size, max(window_size - 1, settings['kernel_size'] // 2 * settings['dilation'])


@st.composite
def shifting_msf_swins(draw, depths):
    """Windows shift by whole ones."""
    window_size = draw(st.integers(1, 3))
    return dict(draw(msf_swins(depths)), window_size=window_size), window_size, window_size - 1


@st.composite
def shifting_gsa_resnets(draw, depths):
    """Attention along columns and rows has a limited reach with ``beyond='mask'``; attention by content has not."""
    settings = dict(draw(gsa_resnets(depths)), content=False, softmax_queries=False)
    settings.update(attention=None)
    settings.update(beyond='mask', img_size=12, gsa_stages=range(len(depths)))
    settings['column'] = settings['column'] or not settings['row']
    return settings, 1, 2  # the reach is L - 1


def doubling_channels(settings):
    arch = settings['arch']
    return [arch['embed_dim'] * 2**i for i in range(len(arch['depths']))]


def resnet_channels(settings):
    arch = settings['arch']
    return [arch['base_channels'] * arch['expansion'] * 2**i for i in range(len(arch['depths']))]


CASES = {
    case.name: case
    for case in (
        Case(
            name='ELSASwin',
            small=dict(
                arch=dict(embed_dim=8, depths=(1, 1, 2, 2), num_heads=(1, 2, 4, 8), group_width=4),
                kernel_size=3,
                window_size=3,
            ),
            tiny=dict(
                arch=dict(embed_dim=8, depths=(1, 2), num_heads=(1, 2), group_width=4),
                kernel_size=3,
                window_size=3,
                elsa_stages=(0,),
                out_indices=(0, 1),
            ),
            architectures=depths.flatmap(elsa_swins),
            channels=doubling_channels,
            half_precision=3,
            trained=dict(arch=dict(embed_dim=16, depths=(1, 1, 1, 1), num_heads=(1, 1, 2, 2), group_width=4)),
            segmentors={
                'elsa-swin-toy_upernet': dict(
                    arch=dict(embed_dim=32, depths=(1, 1, 1, 1), num_heads=(1, 2, 4, 8), group_width=4), kernel_size=3
                )
            },
            shifting=shifting_elsa_swins,
        ),
        Case(
            name='ELSAVOLO',
            small=dict(
                arch=dict(embed_dim=8, depths=(1, 1, 2, 1), num_heads=(2, 4), stem_dim=8, mlp_ratio=2),
                attention=[dict(type='ELSA', kernel_size=3, group_width=2, qkv_bias=False), None, None, None],
                img_size=64,
            ),
            tiny=dict(
                arch=dict(embed_dim=8, depths=(1, 1), num_heads=(2, 4), stem_dim=4, mlp_ratio=2),
                attention=None,
                img_size=64,
                out_indices=(0, 1),
            ),
            architectures=elsa_volos(),
            channels=lambda settings: [
                settings['arch']['embed_dim'] * (1 + (i > 0)) for i in range(len(settings['arch']['depths']))
            ],
            half_precision=4,
            trained=dict(
                arch=dict(embed_dim=16, depths=(1, 1, 1, 1), num_heads=(2, 4), stem_dim=8, mlp_ratio=2), norm_eval=True
            ),
            trained_channels=(16, 32, 32, 32),
            segmentors={'elsa-volo-toy_upernet': dict()},
            strides=lambda settings: [8] + [16] * (len(settings['arch']['depths']) - 1),
            batch_norm=True,
        ),
        Case(
            name='GSAResNet',
            small=dict(
                arch=dict(depths=(1, 1, 2, 1), stem_channels=8, base_channels=4, expansion=2),
                gsa_stages=(0, 2, 3),
                num_heads=2,
                img_size=64,
                zero_init_residual=False,
            ),
            tiny=dict(
                arch=dict(depths=(1, 1), stem_channels=8, base_channels=4, expansion=2),
                gsa_stages=(1,),
                num_heads=2,
                img_size=64,
                zero_init_residual=False,
                out_indices=(0, 1),
            ),
            architectures=depths.flatmap(gsa_resnets),
            channels=resnet_channels,
            half_precision=5,
            # Attention is cubic in its input. Without batch statistics it needs smaller weights: torch's own.
            trained=dict(
                arch=dict(depths=(1, 1, 1, 1), stem_channels=16, base_channels=8, expansion=2),
                num_heads=2,
                img_size=64,
                norm_eval=True,
                zero_init_residual=False,
                init_cfg=None,
            ),
            segmentors={
                'gsa-resnet-toy_fpn': dict(
                    arch=dict(depths=(1, 1, 1, 1), stem_channels=32, base_channels=16, expansion=2)
                )
            },
            batch_norm=True,
            dropouts=dict(drop_path_rate=0.3),
            shifting=shifting_gsa_resnets,
        ),
        Case(
            name='ShuntedTransformer',
            small=dict(
                arch=dict(embed_dims=(8, 8, 16, 16), depths=(1, 1, 2, 1), num_heads=(2, 2, 4, 4), stem_convs=1),
                mlp_ratios=(2, 2, 2, 2),
            ),
            tiny=dict(
                arch=dict(embed_dims=(8, 8), depths=(1, 1), num_heads=(2, 2), stem_convs=0),
                mlp_ratios=(2, 2),
                reductions=(4, 1),
                out_indices=(0, 1),
            ),
            architectures=depths.flatmap(shunteds),
            channels=lambda settings: settings['arch']['embed_dims'],
            half_precision=4,
            trained=dict(
                arch=dict(embed_dims=(16, 32, 64, 128), depths=(1, 1, 1, 1), num_heads=(2, 2, 4, 4), stem_convs=0),
                norm_eval=True,
            ),
            segmentors={
                'shunted-toy_fpn': dict(
                    arch=dict(embed_dims=(32, 64, 128, 256), depths=(1, 1, 1, 1), num_heads=(2, 4, 8, 16), stem_convs=0)
                )
            },
            batch_norm=True,
        ),
        Case(
            name='MSFViT',
            small=dict(arch=dict(embed_dim=16, depth=4, num_heads=2), out_indices=(0, 1, 2, 3)),
            tiny=dict(arch=dict(embed_dim=16, depth=2, num_heads=2), out_indices=(0, 1)),
            architectures=msf_vits(),
            channels=lambda settings: [settings['arch']['embed_dim']] * settings['arch']['depth'],
            half_precision=2.5,
            trained=dict(arch=dict(embed_dim=16, depth=4, num_heads=2), patch_size=8, out_indices=(0, 1, 2, 3)),
            trained_channels=(16, 16, 16, 16),
            segmentors={'msf-vit-toy_setr': dict(), 'msf-vit-toy_upernet': dict()},
            strides=lambda settings: [settings['patch_size']] * settings['arch']['depth'],
        ),
        Case(
            name='DINOViT',
            small=dict(
                arch=dict(embed_dim=16, depth=4, num_heads=2, version=3, registers=2, swiglu=1),
                layer_scale=0.5,
                out_indices=(0, 1, 2, 3),
            ),
            tiny=dict(
                arch=dict(embed_dim=16, depth=2, num_heads=2, version=2, registers=0, swiglu=0),
                img_size=64,
                layer_scale=0.5,
                out_indices=(0, 1),
            ),
            architectures=dino_vits(),
            channels=lambda settings: [settings['arch']['embed_dim']] * settings['arch']['depth'],
            half_precision=2.5,
            trained=dict(
                arch=dict(embed_dim=16, depth=4, num_heads=2, version=3, registers=2, swiglu=0),
                patch_size=8,
                layer_scale=0.5,
                out_indices=(0, 1, 2, 3),
            ),
            trained_channels=(16, 16, 16, 16),
            segmentors={},
            strides=lambda settings: [settings['patch_size']] * settings['arch']['depth'],
            of_another=True,
        ),
        Case(
            name='NAT',
            small=dict(
                arch=dict(embed_dim=8, depths=(1, 1, 2, 2), num_heads=(1, 2, 4, 8), mlp_ratio=2, layer_scale=0),
                attention=dict(type='NeighbourhoodAttention', kernel_size=3),
            ),
            tiny=dict(
                arch=dict(embed_dim=8, depths=(1, 1), num_heads=(1, 2), mlp_ratio=1, layer_scale=0),
                attention=dict(type='NeighbourhoodAttention', kernel_size=5),
                out_indices=(0, 1),
            ),
            architectures=depths.flatmap(nats),
            channels=doubling_channels,
            half_precision=4,
            trained=dict(
                arch=dict(embed_dim=16, depths=(1, 1, 1, 1), num_heads=(1, 1, 2, 2), mlp_ratio=2, layer_scale=0)
            ),
            segmentors={
                'elsa-swin-toy_upernet': dict(
                    arch=dict(embed_dim=32, depths=(1, 1, 1, 1), num_heads=(1, 2, 4, 8), mlp_ratio=2, layer_scale=0)
                )
            },
            of_another=True,
        ),
        Case(
            name='DiNAT',
            small=dict(
                arch=dict(
                    embed_dim=8,
                    depths=(1, 1, 2, 2),
                    num_heads=(1, 2, 4, 8),
                    mlp_ratio=2,
                    layer_scale=0,
                    dilations=(1, 1, 2, 2),
                ),
                kernel_size=3,
            ),
            tiny=dict(
                arch=dict(embed_dim=8, depths=(1, 2), num_heads=(1, 2), mlp_ratio=1, layer_scale=1, dilations=(1, 3)),
                kernel_size=3,
                out_indices=(0, 1),
            ),
            architectures=depths.flatmap(dinats),
            channels=doubling_channels,
            half_precision=4,
            trained=dict(
                arch=dict(
                    embed_dim=16,
                    depths=(1, 1, 1, 1),
                    num_heads=(1, 1, 2, 2),
                    mlp_ratio=2,
                    layer_scale=0,
                    dilations=(2, 2, 2, 1),
                )
            ),
            segmentors={},
            of_another=True,
        ),
        Case(
            name='MSFSwin',
            small=dict(arch=dict(embed_dim=8, depths=(1, 1, 2, 2), num_heads=(1, 2, 4, 8)), window_size=3),
            tiny=dict(arch=dict(embed_dim=8, depths=(2, 1), num_heads=(1, 2)), window_size=3, out_indices=(0, 1)),
            architectures=depths.flatmap(msf_swins),
            channels=doubling_channels,
            half_precision=4,
            trained=dict(arch=dict(embed_dim=16, depths=(1, 1, 1, 1), num_heads=(1, 1, 2, 2))),
            segmentors={
                'elsa-swin-toy_upernet': dict(arch=dict(embed_dim=32, depths=(2, 1, 1, 1), num_heads=(1, 2, 4, 8)))
            },
            shifting=shifting_msf_swins,
        ),
        Case(
            name='SwinFrame',
            small=dict(
                arch=dict(embed_dim=8, depths=(1, 1, 2, 2), num_heads=(1, 2, 4, 8)),
                attention=[
                    dict(type='ELSA', kernel_size=3, group_width=4),
                    dict(type='MeanShiftWindow'),
                    dict(type='WindowAttention', window_size=2),
                    dict(type='EnhancedAttention'),
                ],
                window_size=3,
            ),
            tiny=dict(
                arch=dict(embed_dim=8, depths=(1, 2), num_heads=(1, 2)),
                attention=[dict(type='ELSA', kernel_size=3, group_width=4), dict(type='MeanShiftWindow')],
                window_size=3,
                out_indices=(0, 1),
            ),
            architectures=depths.flatmap(swin_frames),
            channels=doubling_channels,
            half_precision=4,
            trained=dict(
                arch=dict(embed_dim=16, depths=(1, 1, 1, 1), num_heads=(1, 1, 2, 2)),
                attention=[dict(type='ELSA', group_width=4), *[dict(type='MeanShiftWindow')] * 3],
            ),
            segmentors={
                'elsa-swin-toy_upernet': dict(
                    arch=dict(embed_dim=32, depths=(2, 1, 1, 1), num_heads=(1, 2, 4, 8)),
                    attention=[dict(type='WindowAttention')] * 3 + [dict(type='EnhancedAttention')],
                )
            },
        ),
        Case(
            name='ViTFrame',
            small=dict(
                arch=dict(embed_dim=16, depth=4, num_heads=2),
                attention=dict(type='GhostHeadAttention', img_size=64),
                feed_forward='detail',
                out_indices=(0, 1, 2, 3),
            ),
            tiny=dict(
                arch=dict(embed_dim=16, depth=2, num_heads=2),
                attention=[None, dict(type='GhostHeadAttention', img_size=64)],
                embedding='deit',
                img_size=64,
                class_token=True,
                rope=100.0,
                layer_scale=0.5,
                out_indices=(0, 1),
            ),
            architectures=vit_frames(),
            channels=lambda settings: [settings['arch']['embed_dim']] * settings['arch']['depth'],
            half_precision=2.5,
            trained=dict(arch=dict(embed_dim=16, depth=4, num_heads=2), patch_size=8, out_indices=(0, 1, 2, 3)),
            trained_channels=(16, 16, 16, 16),
            segmentors={'msf-vit-toy_setr': dict()},
            strides=lambda settings: [settings['patch_size']] * settings['arch']['depth'],
        ),
    )
}

every_backbone = pytest.mark.parametrize(
    'case',
    [pytest.param(case, marks=pytest.mark.slow if case.of_another else ()) for case in CASES.values()],
    ids=CASES,
)
