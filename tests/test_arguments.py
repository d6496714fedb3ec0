"""Each check of arguments refuses what it should, in a sentence that names the argument, and takes what is right."""

import math

import pytest

from mmattn.arguments import (
    check_arch,
    check_choice,
    check_finite,
    check_flags,
    check_heads,
    check_odd,
    check_rates,
    check_whole,
    hidden_channels,
    stage_numbers,
)

NO_NUMBERS = '3', None, [3], math.nan, True
ARCH = dict(width=8, depths=(2, 2))
RIGHT = [('flags', True), ('arch-stages', [3])]  #: of NO_NUMBERS

#: how each check is called -> its sentence, what it refuses and what it takes
CHECKS = {
    'whole': (lambda x: check_whole('x', x), 'x must be a whole number of at least 1, not', (0, 3.5), (1, 10**30)),
    'whole-from-to': (
        lambda x: check_whole('x', x, 0, 4),
        'x must be a whole number from 0 to 4, not',
        (-1, 5),
        (0, 4),
    ),
    'odd': (lambda x: check_odd('x', x), 'x must be (odd|a whole number of at least 1), not', (0, 4, 1.5), (1, 7)),
    'finite': (lambda x: check_finite('x', x), 'x must be a finite number, not', (math.inf, -math.inf), (-1e9, 0, 0.5)),
    'finite-from': (lambda x: check_finite('x', x, 0), 'x must be a finite number of at least 0, not', (-0.1,), (0, 9)),
    'finite-to': (lambda x: check_finite('x', x, 0, 1), 'x must be a finite number from 0 to 1', (-0.1, 1.1), (0, 1)),
    'heads': (lambda x: check_heads(12, x, 'x'), 'x (must be a whole|5 does not divide the 12)', (0, 5), (1, 12)),
    'dim': (lambda x: check_heads(x, 1), 'dim must be a whole number', (0, 1.5), (1,)),
    'flags': (lambda x: check_flags(x=x), 'x must be True or False, not', (0, 1, 'yes'), (False,)),
    'choice': (lambda x: check_choice('x', x, dict(a=1, b=2)), 'x must be one of a, b, not', ('', 'c', ['a']), ('b',)),
    'rates': (lambda x: check_rates(x=x), r'x must be in \[0, 1\), not', (-0.1, 1), (0, 0.99)),
    'hidden': (
        lambda x: hidden_channels(8, x, 'x'),
        'x must make at least 1 of 8 channels',
        (0.1, math.inf),
        (1 / 8, 3),
    ),
    'stages': (lambda x: stage_numbers('x', [x], 3), 'x must be stage numbers from 0 to 2', (-1, 3, 0.0), (0, 2)),
    'arch': (
        lambda x: check_arch('x', 'arch', dict(ARCH, width=x), [ARCH]),
        'x: width must be a whole',
        (0, 1.5),
        (3,),
    ),
    'arch-stages': (
        lambda x: check_arch('x', 'arch', dict(ARCH, depths=x), [ARCH]),
        'x: depths',
        ((), (1, 0)),
        ((1,),),
    ),
}


@pytest.mark.parametrize('name', CHECKS)
def test_checks(name):
    check, sentence, wrong, right = CHECKS[name]
    for value in right:
        check(value)
    for value in (*wrong, *(each for each in NO_NUMBERS if (name, each) not in RIGHT)):
        with pytest.raises(ValueError, match=f'^{sentence}'):
            check(value)


def test_keys_of_an_architecture():
    with pytest.raises(ValueError, match='^arch lacks width and has unknown wide; its keys are depths, width$'):
        check_arch('x', 'arch', dict(wide=8, depths=(2,)), [ARCH])


def test_what_is_returned():
    assert hidden_channels(8, 0.3) == 2 and stage_numbers('x', [2, 0], 3) == (2, 0)
