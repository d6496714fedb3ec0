"""Every mechanism refuses impossible arguments when it is built."""

import inspect
import math
import re

import pytest

from mmattn.backbones import SwinFrame, ViTFrame
from mmattn.layers import MECHANISMS

DIM, HEADS = 12, 2
NAN, INF = math.nan, math.inf
NO_NUMBERS = ('3', (3, 3), [3], NAN, True)
NO_SIZES = (0, -3, 3.5, None, *NO_NUMBERS)
NO_ODD_SIZES = (4, *NO_SIZES)
NO_RATES = (1, 1.5, -0.1, INF, None, *NO_NUMBERS)
NO_WORDS = ('huge', '', 3, None, True, ['qk'])
NO_FLAGS = (0, 1, 'yes', None, ())

#: argument -> what no mechanism takes, or (mechanism, argument) -> what this one does not take. A new argument of any
#: mechanism needs a row.
WRONG = {
    'dim': NO_SIZES,
    'num_heads': (5, 24, *NO_SIZES),
    'attn_drop_rate': NO_RATES,
    'drop_rate': NO_RATES,
    'kernel_size': NO_ODD_SIZES,
    'window_size': NO_SIZES,
    'shift': (-1, 7, 1.5, None, *NO_NUMBERS),
    'shift_small_maps': NO_FLAGS,
    'ghost_size': tuple(size for size in NO_ODD_SIZES if size != 0),
    'stride': NO_SIZES,
    'img_size': NO_SIZES,
    'lam': (-1, 0.5, INF, None, *NO_NUMBERS),
    'gamma': (INF, None, *NO_NUMBERS),
    'dilation': (1025, 10**30, *NO_SIZES),
    'group_width': NO_SIZES,
    'hadamard': NO_WORDS,
    'qkv_bias': NO_FLAGS,
    'rope': (0, 0.5, -1, INF, *NO_NUMBERS),
    'multiple': (5, *NO_SIZES),
    'filters': (5, 24, *(size for size in NO_SIZES if size is not None)),
    'combination': NO_WORDS,
    'norm_cfg': (dict(type='LN'), dict(), 'BN', None, True),
    'terms': ((), ('qk', 'kq'), ('b', 'b'), 'b', 'qk', 3, None),
    'area': NO_WORDS,
    'norm': NO_WORDS,
    'shared_tables': NO_FLAGS,
    'scale_tables': NO_FLAGS,
    'form': NO_WORDS,
    'sharing': ('QKVW', 'QKVPX', 'QK', '', 5, list('QKVPW'), True),
    'groups': (5, 24, *NO_SIZES),
    'group_mode': NO_WORDS,
    'proj_bias': NO_FLAGS,
    'steps': NO_SIZES,
    'step_size': (-0.5, INF, None, *NO_NUMBERS),
    'landmarks': (-1, 3.5, None, *NO_NUMBERS),
    'rel_pos_length': tuple(size for size in NO_SIZES if size is not None),
    'neighbourhood': tuple(size for size in NO_ODD_SIZES if size is not None),
    'content': ('rows', 1, 0, None),
    'column': NO_FLAGS,
    'row': NO_FLAGS,
    'axial_softmax': NO_FLAGS,
    'softmax_queries': NO_FLAGS,
    'beyond': NO_WORDS,
    'project': NO_FLAGS,
    'aggregation': NO_WORDS,
    ('DecoupledDynamicFilter', 'kernel_size'): (1, *NO_ODD_SIZES),
    ('DecoupledDynamicFilter', 'reduction'): (0, 0.05, -1, INF, None, *NO_NUMBERS),
    ('DynamicDepthwiseConv', 'dim'): (3, *NO_SIZES),
    ('ELSA', 'dim'): (2, *NO_SIZES),
    'block': (-1, 3.5, None, *NO_NUMBERS),
    'rel_pos_bias': NO_FLAGS,
    ('NeighbourhoodAttention', 'kernel_size'): (65, 2**62 + 1, *NO_ODD_SIZES),
    ('NeighbourhoodAttention', 'dilation'): (0, -3, 3.5, None, '3', NAN, True, 1025, 10**30, (), [1, 0], (2.0,), {2}),
    ('SpatialReductionAttention', 'reduction'): tuple(size for size in NO_SIZES if size is not None),
    ('ShuntedAttention', 'reduction'): (3, 0, -2, 2.5, True, '4', [], [4, 0], [4, 2, 1], [2.0], [True, 1]),
}


def directly(name, settings):
    mechanism = MECHANISMS.get(name)
    given = dict(dim=DIM, num_heads=HEADS)
    takes = inspect.signature(mechanism).parameters
    return mechanism(**{**{key: value for key, value in given.items() if key in takes}, **settings})


def in_swin(name, settings):
    arch = dict(embed_dim=DIM, depths=(2,), num_heads=(HEADS,))
    return SwinFrame(arch, attention=dict(type=name, **settings), out_indices=(0,))


def in_vit(name, settings):
    return ViTFrame(dict(embed_dim=DIM, depth=1, num_heads=HEADS), attention=dict(type=name, **settings))


def refusal(build, name, settings):
    """The sentence with which a mechanism refuses its arguments; what happened instead, if it does not."""
    try:
        build(name, settings)
    except ValueError as error:
        return str(error)
    except Exception as error:
        return f'{type(error)} {error}'
    return 'nothing refused'


#: tests register mechanisms of their own
PACKAGED = [name for name, cls in MECHANISMS.module_dict.items() if cls.__module__.startswith('mmattn.')]


@pytest.mark.parametrize('name', sorted(PACKAGED))
def test_impossible_values(name):
    """Each argument by itself, directly and through both frames: one sentence that names the argument, and in a frame
    the mechanism. Without this check, a wrong value gave maps of NaN, or an error of torch in the forward pass."""
    silent = []
    for argument in inspect.signature(MECHANISMS.get(name)).parameters:
        assert argument in WRONG or (name, argument) in WRONG, f'WRONG has no row for {argument} of {name}'
        for value in WRONG.get((name, argument), WRONG.get(argument)):
            for build, start in ((directly, ''), (in_swin, f'mechanism {name}: '), (in_vit, f'mechanism {name}: ')):
                message = refusal(build, name, {argument: value})
                if not re.match(rf'{start}[^\n]*\b{argument}\b[^\n]*$', message):
                    silent.append((build.__name__, argument, value, message))
    assert not silent


@pytest.mark.parametrize(
    'name, wrong, message',
    [
        ('ELSA', dict(kernel_size=4), 'kernel_size must be odd, not 4'),
        ('ELSA', dict(lam=0.5), 'lam must be a whole number >= 0, not 0.5'),
        ('ELSA', dict(dilation=2000), 'dilation must be a whole number from 1 to 1024, not 2000'),
        ('ELSA', dict(gamma=NAN), 'gamma must be a finite number, not nan'),
        ('ELSA', dict(qkv_bias='no'), "qkv_bias must be True or False, not 'no'"),
        ('ELSA', dict(hadamard='gelu'), "hadamard must be one of released, equation, not 'gelu'"),
        ('WindowAttention', dict(window_size=5, shift=5), 'shift must be a whole number from 0 to 4, not 5'),
        ('WindowAttention', dict(num_heads=5), 'num_heads 5 does not divide the 12 channels'),
        ('DepthwiseConv', dict(filters=5), 'filters 5 does not divide the 12 channels'),
        ('DecoupledDynamicFilter', dict(reduction=0.05), 'reduction must make at least 1 of 12 channels, not 0.05'),
        ('GhostHeadAttention', dict(multiple=5), '2 heads times multiple 5 must divide the 12 channels'),
        ('GlobalSelfAttention', dict(content=False, column=False, row=False), 'one of content, column and row'),
        ('GlobalSelfAttention', dict(content='axial', column=False, row=False), 'axial content needs column or row'),
        ('GlobalSelfAttention', dict(content=False, softmax_queries=True), 'content must be True, not False'),
        ('LocalAttention', dict(norm='filter', window_size=1), 'needs an area of more than one pixel'),
        ('MeanShiftAttention', dict(form='plain', sharing='QKVPW'), "'plain' must be 4 letters of QKVW"),
        ('MeanShiftAttention', dict(groups=5), 'groups 5 does not divide the 12 channels'),
        ('MeanShiftAttention', dict(form='gauss', steps=2), "steps and step_size other than 1 need form 'msf'"),
        ('MeanShiftWindow', dict(form='plain', step_size=0.5), "other than 1 need form 'msf', not 'plain'"),
        ('MeanShiftAttention', dict(form='plain', landmarks=8), "form cannot be 'plain'"),
        ('ShuntedAttention', dict(reduction=3), 'reduction must be even, 1 or a list of one rate per group of heads'),
        ('ShuntedAttention', dict(reduction=[4, 2, 1]), 'num_heads must be a multiple of the 3 groups of reduction'),
    ],
)
def test_sentences(name, wrong, message):
    """What the sentences say, and values that are impossible only together."""
    assert message in refusal(directly, name, wrong)


@pytest.mark.parametrize('name', ['WindowAttention', 'ELSA'])
def test_channels_of_the_map(name):
    """A config cannot give a mechanism other channels than its map has."""
    assert 'dim must be that of the map, 12, not 24' in refusal(in_swin, name, dict(dim=24))
