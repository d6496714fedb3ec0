"""Every rival refuses impossible arguments when it is built."""

import inspect
import math
import re

import pytest

import mmattn_lab
from mmattn.layers import TOKEN_MIXERS
from tests.layers.test_arguments import WRONG, build

#: argument -> what no rival takes, or (rival, argument) -> what this one does not take. A new argument needs a row.
OWN = {
    'share': 0,
    'coarse_stride': 0,
    'key_ratio': 1.5,
    'value_ratio': 0.95,
    'min_key_width': 0,
    'key_width': 0,
    'block_size': 0,
    'halo_size': -3,
    'mode': 'huge',
    'recurrence': 0,
    ('CompactNonLocal', 'groups'): 0,
    ('CrissCrossAttention', 'dim'): 7,
    ('EfficientAttention', 'reduction'): 5,
}
RIVALS = [name for name in mmattn_lab.__all__ if name in TOKEN_MIXERS.module_dict]


@pytest.mark.parametrize('name', RIVALS)
def test_impossible_values(name):
    """One sentence that names the argument. Without a check, a wrong value gave maps of NaN, or an error of torch in
    the forward pass."""
    for argument in inspect.signature(TOKEN_MIXERS.get(name)).parameters:
        wrong = OWN.get((name, argument), OWN.get(argument, WRONG.get(argument, [math.nan])[0]))
        with pytest.raises(ValueError) as error:
            build(name, **{argument: wrong})
        assert re.fullmatch(rf'.*\b{argument}\b.*', str(error.value)), (argument, wrong)


@pytest.mark.parametrize(
    'name, wrong, message',
    [
        ('AttentionAugmentedConv', dict(value_ratio=1), 'with num_heads 2 leaves none of 12 channels'),
        ('EfficientAttention', dict(reduction=4), 'num_heads 2 does not divide the 3 channels after reduction 4'),
    ],
)
def test_combinations(name, wrong, message):
    """Arguments that are impossible together."""
    with pytest.raises(ValueError, match=message):
        build(name, **wrong)
