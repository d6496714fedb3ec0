"""Every token mixer checks its arguments when it is built. tests/test_arguments.py has the checks."""

import inspect
import math
import re

import pytest

from mmattn.backbones import SwinFrame, ViTFrame
from mmattn.layers import TOKEN_MIXERS

DIM, HEADS = 12, 2
#: argument -> a value for each of its checks, or (token mixer, argument) -> those of this one. A new argument of any
#: token mixer needs a row.
WRONG = {
    'dim': [0],
    'num_heads': [5],
    'attn_drop_rate': [1],
    'drop_rate': [1],
    'kernel_size': [4],
    'window_size': [0],
    'shift': [-1, 7],
    'shift_small_maps': [1],
    'ghost_size': [4, None],
    'stride': [0],
    'img_size': [0],
    'lam': [0.5, '1'],
    'gamma': [math.nan],
    'dilation': [0, 1025],
    'group_width': [0],
    'hadamard': ['gelu'],
    'local_size': [4, None],
    'qkv_bias': ['no'],
    'rope': [0.5],
    'multiple': [0, 5],
    'filters': [5],
    'combination': ['max'],
    'norm_cfg': [dict(type='LN')],
    'terms': [(), ('qk', 'kq'), ('b', 'b'), 'b'],
    'area': ['map'],
    'norm': ['mean'],
    'shared_tables': [1],
    'scale_tables': [1],
    'form': ['cosine'],
    'sharing': ['QKVPX', 'QK', list('QKVPW')],
    'groups': [5],
    'group_mode': ['mixed'],
    'proj_bias': [1],
    'steps': [0],
    'step_size': [-0.5],
    'landmarks': [-1],
    'rel_pos_length': [0],
    'neighbourhood': [4],
    'content': ['rows', 1],
    'column': [1],
    'row': [1],
    'axial_softmax': [1],
    'softmax_queries': [1],
    'beyond': ['clip'],
    'project': [1],
    'aggregation': ['mean'],
    'block': [-1],
    'rel_pos_bias': [1],
    'pretrain_size': [0],
    ('AggregatedAttention', 'reduction'): [0],
    ('DecoupledDynamicFilter', 'kernel_size'): [1, 4],
    ('DecoupledDynamicFilter', 'reduction'): [0.05],
    ('DynamicDepthwiseConv', 'dim'): [3],
    ('ELSA', 'dim'): [2],
    ('NeighbourhoodAttention', 'kernel_size'): [4, 65],
    ('NeighbourhoodAttention', 'dilation'): [0, 1025, (), [1, 0]],
    ('SpatialReductionAttention', 'reduction'): [0],
    ('ShuntedAttention', 'reduction'): [3, 0, [], [4, 0], [4, 2, 1]],
}
#: tests register token mixers of their own
PACKAGED = [name for name, cls in TOKEN_MIXERS.module_dict.items() if cls.__module__.startswith('mmattn.')]


def build(name, **settings):
    token_mixer = TOKEN_MIXERS.get(name)
    takes = inspect.signature(token_mixer).parameters
    given = {key: value for key, value in dict(dim=DIM, num_heads=HEADS).items() if key in takes}
    return token_mixer(**{**given, **settings})


@pytest.mark.parametrize('name', sorted(PACKAGED))
def test_impossible_values(name):
    """One sentence that names the argument. Without a check, a wrong value gave maps of NaN, or an error of torch in
    the forward pass."""
    for argument in inspect.signature(TOKEN_MIXERS.get(name)).parameters:
        for value in WRONG.get((name, argument)) or WRONG[argument]:
            with pytest.raises(ValueError) as error:
                build(name, **{argument: value})
            assert re.fullmatch(rf'.*\b{argument}\b.*', str(error.value)), (argument, value)


@pytest.mark.parametrize(
    'name, wrong, message',
    [
        ('GlobalSelfAttention', dict(content=False, column=False, row=False), 'one of content, column and row'),
        ('GlobalSelfAttention', dict(content='axial', column=False, row=False), 'axial content needs column or row'),
        ('GlobalSelfAttention', dict(content=False, softmax_queries=True), 'content must be True, not False'),
        ('LocalAttention', dict(norm='filter', window_size=1), 'needs an area of more than one pixel'),
        ('MeanShiftAttention', dict(form='plain', sharing='QKVPW'), "'plain' must be 4 letters of QKVW"),
        ('MeanShiftAttention', dict(form='gauss', steps=2), "steps and step_size other than 1 need form 'msf'"),
        ('MeanShiftWindow', dict(form='plain', step_size=0.5), "other than 1 need form 'msf', not 'plain'"),
        ('MeanShiftAttention', dict(form='plain', landmarks=8), "form cannot be 'plain'"),
    ],
    ids=['gsa-parts', 'gsa-axial', 'gsa-queries', 'local', 'sharing', 'steps', 'step-size', 'landmarks'],
)
def test_values_that_are_impossible_together(name, wrong, message):
    with pytest.raises(ValueError, match=message):
        build(name, **wrong)


def test_frames_name_the_token_mixer():
    """A config cannot give a token mixer other channels than its map has."""
    swin, vit = dict(embed_dim=DIM, depths=(2,), num_heads=(HEADS,)), dict(embed_dim=DIM, depth=1, num_heads=HEADS)
    for frame, arch in ((SwinFrame, swin), (ViTFrame, vit)):
        with pytest.raises(ValueError, match='^token mixer ELSA: kernel_size must be odd, not 4$'):
            frame(arch, attention=dict(type='ELSA', kernel_size=4), out_indices=(0,))
        with pytest.raises(ValueError, match='^token mixer ELSA: dim must be that of the map, 12, not 24$'):
            frame(arch, attention=dict(type='ELSA', dim=24), out_indices=(0,))
