"""A class has one label wherever classes are listed."""

import pytest

from mmguard.checks.classes import compare_classes, saved_meta
from mmguard.errors import InputError


@pytest.mark.parametrize(
    'others, message',
    [
        (('bee', 'ant', 'cow'), 'a and b have classes in different orders: ant is label 0 of the first and 1 of the'),
        (('ant', 'bee', 'cow'), None),
        (('bee', 'ant'), None),  # of another model, as in a dataset of the base that is not read
        (None, None),
    ],
)
def test_orders(others, message):
    """Where a class is listed at two places, one of the lists is wrong for a model, whatever the other names are."""
    sources = [('a', ('ant', 'bee', 'cow')), ('b', others)]
    if message is None:
        compare_classes(sources)
    else:
        with pytest.raises(InputError, match=message):
            compare_classes(sources)


@pytest.mark.parametrize('place', [0, 1, 2])
def test_each_pair_is_compared(place):
    """Two lists that share names with each other may share none with the first, or with the one between them."""
    sources = [('b', ('p', 'q')), ('c', ('q', 'p'))]
    sources.insert(place, ('a', ('x', 'y')))
    with pytest.raises(InputError, match='b and c have classes in different orders'):
        compare_classes(sources)


def test_other_names_are_logged(log):
    """Other names may be other words for the same classes, or a dataset that is not meant."""
    compare_classes([('a', ('ant', 'bee')), ('b', ('ant', 'wasp'))])
    assert log == ['b has other classes than a: wasp in place of bee']


def test_names_that_occur_twice():
    """ImageNet has two classes "crane" and two "maillot"."""
    compare_classes([('a', ('crane', 'crane', 'ant')), ('b', ('crane', 'crane', 'bee'))])
    with pytest.raises(InputError, match='crane is label 0 of the first and 0 of the second'):
        compare_classes([('a', ('crane', 'ant', 'crane')), ('b', ('crane', 'crane', 'ant'))])


@pytest.mark.parametrize(
    'meta, classes',
    [
        (dict(dataset_meta=dict(classes=('a', 'b'))), [('a', 'b')]),
        (dict(dataset_meta=[dict(classes=('a',)), dict(classes=('b',)), 3]), [('a',), ('b',)]),
        (dict(CLASSES=('a', 'b')), [('a', 'b')]),
        (None, []),
    ],
)
def test_classes_of_a_checkpoint(meta, classes):
    """MMEngine notes a dict, or a list of them for datasets that differ; older packages wrote capitals."""
    assert [each['classes'] for each in saved_meta(dict(meta=meta))] == classes
    assert list(saved_meta([])) == []
