"""What the tests need to know of each backbone. A new backbone adds a row to CASES."""

import copy
import dataclasses
import inspect

import pytest
import torch
from hypothesis import strategies as st
from mmengine.registry import MODELS
from torch import nn

import mmattn  # noqa: F401, registers the backbones


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A row of CASES. In all settings, ``arch`` stands for the argument that takes the architecture.

    Args:
        name: in the registry.
        small: settings of four stages with what the backbone can have in them; what matters most is in the first two.
        trained: settings for the training tests. Results must not depend on how a batch is split, so batch norm uses
            its running statistics.
        arch: other values of the numbers of the architecture, for tests of properties.
        others: other values of all arguments that change the maps.
        of_another: whether other rows have nearly all of its code: ``make test`` leaves it out.
    """

    name: str
    small: dict
    trained: dict
    arch: dict[str, list]
    others: dict[str, list]
    of_another: bool = False

    @property
    def tiny(self) -> dict:
        """The first two stages of ``small``, for tests that trace graphs, which takes seconds per block."""
        return dict(self.small, out_indices=(0, 1))

    @property
    def arguments(self) -> set[str]:
        """The names of all arguments, those of the frame included."""
        names, backbone = set(inspect.signature(MODELS.get(self.name)).parameters), MODELS.get(self.name)
        while 'kwargs' in names:  # The frame's token mixers are not among them.
            backbone = backbone.__base__
            names = names - {'kwargs'} | set(inspect.signature(backbone).parameters) - {'attention'}
        return names

    @property
    def batch_norm(self) -> bool:
        """Whether it has batch norm, and so the argument ``norm_eval``."""
        return 'norm_eval' in self.arguments

    @property
    def dropouts(self) -> dict:
        """Settings of all dropouts."""
        return {name: 0.2 for name in sorted(self.arguments) if name.endswith('_rate')}

    @property
    def any_settings(self) -> st.SearchStrategy[dict]:
        """Settings of any number of stages, which go together."""
        known, free = ({key: self.others[key] for key in self.others if (key in self.small) == own} for own in (1, 0))
        return (
            st.fixed_dictionaries(
                {
                    **{key: st.sampled_from([self.small[key], *values]) for key, values in known.items()},
                    'arch': st.fixed_dictionaries(
                        {key: st.sampled_from([n, *self.arch.get(key, [])]) for key, n in self.small['arch'].items()}
                    ),
                    'out_indices': st.integers(1, 4).map(lambda count: tuple(range(count))),
                },
                optional={key: st.sampled_from(values) for key, values in free.items()},
            )
            .map(lambda drawn: {**self.small, **drawn})
            .filter(self.is_possible)
        )

    def is_possible(self, settings: dict) -> bool:
        try:
            with torch.device('meta'):
                self.build(settings)
        except ValueError:
            return False
        return True

    def config(self, form: dict, **settings) -> dict:
        """The config of the backbone with the settings of a form, some of them replaced."""
        settings = {**copy.deepcopy(form), **settings}
        settings[MODELS.get(self.name).arch_argument] = settings.pop('arch')
        return dict(type=self.name, **settings)

    def build(self, form: dict, **settings) -> nn.Module:
        """Likewise the backbone itself."""
        return MODELS.build(self.config(form, **settings))


STAGES = dict(embed_dim=8, depths=(1, 2, 1, 2), num_heads=(1, 2, 4, 8))
WIDE = dict(embed_dim=16, depths=(1, 1, 1, 1), num_heads=(1, 1, 2, 2))
ANY_STAGES = dict(embed_dim=[12], depths=[(2, 1, 2, 1)], num_heads=[(2, 1, 2, 1)])
BLOCKS = dict(embed_dim=16, depth=4, num_heads=2)
ALL = dict(out_indices=(0, 1, 2, 3))
NORMS = [dict(type='BN', eps=0.1)]

ELSA = dict(type='ELSA', kernel_size=3, group_width=4)
MEAN_SHIFT = dict(type='MeanShiftAttention')
NEAR = dict(type='NeighbourhoodAttention', kernel_size=3)
NO_TABLE = dict(NEAR, rel_pos_bias=False, qkv_bias=False)
WINDOW = dict(type='WindowAttention', window_size=3)
GHOST_HEAD = dict(type='GhostHeadAttention', img_size=64)
RANK_AUGMENTED = dict(type='RankAugmentedAttention', local_size=3)

ANY_SWIN = dict(window_size=[1, 4], mlp_ratio=[1, 2.5])
ANY_MEAN_SHIFT = dict(
    form=['residual', 'gauss', 'plain'],
    sharing=['QKVQW', 'QKVVW', 'QKKQW', 'QQQQQ'],
    groups=[2, 4],
    group_mode=['block'],
    proj_bias=[True],
)
ANY_VIT = dict(
    feed_forward=['conv', 'detail', 'swiglu'],
    embedding=['deit', 'patches'],
    img_size=[1, 40],
    patch_size=[7, 8],
    mlp_ratio=[2],
    final_norm=[True, 'all'],
    norm_eps=[1e-2],
    layer_scale=[None, 1],
)
ANY_PREFIX = dict(class_token=[False, True], registers=[0, 2], rope=[None, 10.0], qkv_bias=[False, True])

CASES = {
    case.name: case
    for case in (
        Case(
            'ELSASwin',
            small=dict(arch=dict(STAGES, group_width=4), kernel_size=3, window_size=3, elsa_stages=(0, 2)),
            trained=dict(arch=dict(WIDE, group_width=4)),
            arch=dict(ANY_STAGES, group_width=[1, 2]),
            others=dict(
                ANY_SWIN,
                kernel_size=[1, 5],
                dilation=[2],
                group_width=[1],
                lam=[1, 2],
                gamma=[0, 0.5],
                elsa_stages=[(), (0, 1, 2, 3)],
            ),
        ),
        Case(
            'ELSAVOLO',
            small=dict(
                arch=dict(embed_dim=8, depths=(2, 1, 2, 1), num_heads=(2, 4), stem_dim=8, mlp_ratio=2),
                attention=[[dict(ELSA, qkv_bias=False), None], None, None, None],
                img_size=64,
            ),
            trained=dict(
                arch=dict(embed_dim=16, depths=(1, 1, 1, 1), num_heads=(2, 4), stem_dim=8, mlp_ratio=2), norm_eval=True
            ),
            arch=dict(depths=[(2, 2, 1, 1)], num_heads=[(4, 2)], stem_dim=[4], mlp_ratio=[1]),
            others=dict(
                attention=[None, [WINDOW, dict(type='EnhancedAttention'), None, None]],
                img_size=[1, 100],
                final_norm=[True],
                norm_cfg=NORMS,
            ),
        ),
        Case(
            'GSAResNet',
            small=dict(
                arch=dict(depths=(1, 1, 2, 1), stem_channels=8, base_channels=4, expansion=2),
                num_heads=2,
                img_size=64,
                zero_init_residual=False,  # A block that starts as its shortcut would show nothing.
            ),
            # Attention is cubic in its input. Without batch statistics it needs smaller weights: torch's own.
            trained=dict(
                arch=dict(depths=(1, 1, 1, 1), stem_channels=16, base_channels=8, expansion=2),
                num_heads=2,
                img_size=64,
                norm_eval=True,
                zero_init_residual=False,
                init_cfg=None,
            ),
            arch=dict(depths=[(2, 1, 1, 2)], stem_channels=[3], base_channels=[8], expansion=[1]),
            others=dict(
                gsa_stages=[(), (0, 3)],
                num_heads=[1, 4],
                content=[False, 'axial'],
                column=[False],
                row=[False],
                img_size=[1, 100],
                beyond=['stretch'],
                axial_softmax=[True],
                softmax_queries=[True],
                neighbourhood=[1, 5],
                keep_conv=[True],
                attention=[WINDOW],
                norm_cfg=NORMS,
            ),
        ),
        Case(
            'ShuntedTransformer',
            small=dict(
                arch=dict(embed_dims=(8, 8, 16, 16), depths=(1, 1, 2, 1), num_heads=(2, 2, 4, 4), stem_convs=1),
                reductions=(4, 1, 2, 1),
                mlp_ratios=(2, 2, 2, 2),
            ),
            trained=dict(
                arch=dict(embed_dims=(16, 32, 64, 128), depths=(1, 1, 1, 1), num_heads=(2, 2, 4, 4), stem_convs=0),
                norm_eval=True,
            ),
            arch=dict(embed_dims=[(12, 8, 16, 24)], depths=[(2, 1, 1, 1)], num_heads=[(4, 4, 2, 4)], stem_convs=[0, 2]),
            others=dict(
                reductions=[(8, 4, 2, 1), ([3], [3, 1], 2, [1, 2])],
                mlp_ratios=[(1, 2.5, 2, 1)],
                stem=['patches', 'convolution'],
                stem_convs=[2],
                aggregation=['convolution', 'linear'],
                feed_forward=['plain', 'conv'],
                attention=[[None, WINDOW, dict(type='ShuntedAttention', ghost_size=3), None]],
                norm_cfg=NORMS,
            ),
        ),
        Case(
            'TransNeXt',
            small=dict(
                arch=dict(embed_dims=(8, 8, 16, 16), depths=(1, 1, 2, 1), num_heads=(2, 2, 4, 4)),
                reductions=(4, 1, 2, 1),
                mlp_ratios=(2, 2, 2, 2),
            ),
            trained=dict(arch=dict(embed_dims=(16, 32, 64, 128), depths=(1, 1, 1, 1), num_heads=(2, 2, 4, 4))),
            arch=dict(embed_dims=[(12, 8, 16, 24)], depths=[(2, 1, 1, 1)], num_heads=[(4, 4, 2, 4)]),
            others=dict(
                reductions=[(8, 4, 2, 2)],
                mlp_ratios=[(1, 2.5, 2, 1)],
                pretrain_size=[1, 96],
                img_size=[1, 64],
                attention=[[None, WINDOW, dict(type='AggregatedAttention', kernel_size=5), None]],
            ),
        ),
        Case(
            'MSFViT',
            small=dict(ALL, arch=BLOCKS),
            trained=dict(ALL, arch=BLOCKS, patch_size=8),
            arch=dict(embed_dim=[8], num_heads=[1, 4]),
            others={**ANY_VIT, **ANY_PREFIX, **ANY_MEAN_SHIFT, 'landmarks': [2]},
        ),
        Case(
            'DINOViT',
            small=dict(ALL, arch=dict(BLOCKS, version=3, registers=2, swiglu=1), layer_scale=0.5),
            trained=dict(ALL, arch=dict(BLOCKS, version=3, registers=2, swiglu=0), patch_size=8, layer_scale=0.5),
            arch=dict(num_heads=[1, 4], version=[2], registers=[0], swiglu=[0]),
            others={
                **ANY_VIT,
                **ANY_PREFIX,
                'attention': [[None, NO_TABLE, dict(type='SelfAttention'), dict(type='DepthwiseConv')]],
            },
            of_another=True,
        ),
        Case(
            'NAT',
            small=dict(arch=dict(STAGES, mlp_ratio=2, layer_scale=0), attention=NEAR),
            trained=dict(arch=dict(WIDE, mlp_ratio=2, layer_scale=0)),
            arch=dict(ANY_STAGES, mlp_ratio=[1], layer_scale=[1]),
            others=dict(attention=[dict(NO_TABLE, dilation=(1, 2)), NO_TABLE, [WINDOW, NEAR, WINDOW, NEAR]]),
            of_another=True,
        ),
        Case(
            'DiNAT',
            small=dict(arch=dict(STAGES, mlp_ratio=2, layer_scale=1, dilations=(1, 3, 2, 2)), kernel_size=3),
            trained=dict(arch=dict(WIDE, mlp_ratio=2, layer_scale=0, dilations=(2, 2, 2, 1))),
            arch=dict(ANY_STAGES, mlp_ratio=[1], layer_scale=[0], dilations=[(2, 1, 1, 3)]),
            others=dict(kernel_size=[1, 5], dilations=[(1, 2, 1, 2), ((1, 2), (2, 3), 1, 1)]),
            of_another=True,
        ),
        Case(
            'MSFSwin',
            small=dict(arch=dict(STAGES, depths=(2, 1, 1, 2)), window_size=3),
            trained=dict(arch=WIDE),
            arch=ANY_STAGES,
            others=dict(ANY_SWIN, **ANY_MEAN_SHIFT),
        ),
        Case(
            'SwinFrame',
            small=dict(
                arch=STAGES,
                attention=[
                    ELSA,
                    dict(type='MeanShiftWindow'),
                    dict(type='WindowAttention', window_size=2),
                    dict(type='EnhancedAttention'),
                ],
                window_size=3,
            ),
            trained=dict(arch=WIDE, attention=[dict(type='ELSA', group_width=4), *[dict(type='MeanShiftWindow')] * 3]),
            arch=ANY_STAGES,
            others=dict(
                ANY_SWIN,
                attention=[
                    None,
                    dict(type='WindowAttention', shift=1),
                    MEAN_SHIFT,
                    dict(MEAN_SHIFT, form='residual'),
                    dict(NEAR, dilation=(1, 2)),
                    NEAR,
                    dict(RANK_AUGMENTED, rope=100.0),
                    [
                        dict(ELSA, hadamard='equation', qkv_bias=False),
                        dict(type='LocalAttention', terms=['qr', 'rk']),
                        dict(type='LocalAttention', area='neighbours', kernel_size=3),
                        dict(type='Convolution'),
                    ],
                    [
                        dict(type='DecoupledDynamicFilter', kernel_size=3, reduction=0.3),
                        dict(type='DepthwiseConv', kernel_size=3),
                        WINDOW,
                        dict(type='SelfAttention', num_heads=4),
                    ],
                ],
            ),
        ),
        Case(
            'ViTFrame',
            small=dict(
                ALL,
                arch=BLOCKS,
                attention=[RANK_AUGMENTED, GHOST_HEAD, None, None],
                feed_forward='detail',
                embedding='deit',
                img_size=64,
                class_token=True,
                registers=1,
                rope=100.0,
                layer_scale=0.5,
            ),
            trained=dict(ALL, arch=BLOCKS, patch_size=8),
            arch=dict(num_heads=[1, 4]),
            others={
                **ANY_VIT,
                **ANY_PREFIX,
                'attention': [
                    None,
                    MEAN_SHIFT,
                    dict(MEAN_SHIFT, steps=2),
                    dict(MEAN_SHIFT, step_size=0.5),
                    dict(MEAN_SHIFT, landmarks=3),
                    dict(GHOST_HEAD, lam=0, multiple=1),
                    [None, dict(type='DepthwiseConv', kernel_size=3), None, None],
                ],
            },
        ),
    )
}

every_backbone = pytest.mark.parametrize(
    'case',
    [pytest.param(case, marks=pytest.mark.slow if case.of_another else ()) for case in CASES.values()],
    ids=CASES,
)
