import math

import pytest

from mmattn_lab.results import read_result
from mmguard.errors import InputError


@pytest.mark.parametrize(
    'key, value',
    [
        ('mIoU', '1e400'),
        ('mIoU', '1' + '0' * 5000),
        ('mIoU', 'null'),
        ('seconds', '"60"'),
        ('seconds', '-1'),
        ('seed', '1.5'),
        ('digest', '1'),
    ],
)
def test_result_that_cannot_be_read(tmp_path, key, value):
    """A number that no training writes is refused with its name."""
    values = dict(mIoU='40.5', seconds='60', rate='0.001', seed='0', digest='"a"') | {key: value}
    text = '{{"metrics": {{"mIoU": {mIoU}}}, "seconds": {seconds}, "rate": {rate}, "seed": {seed}, "digest": {digest}}}'
    (tmp_path / 'result.json').write_text(text.format(**values))
    with pytest.raises(InputError, match=rf'result.json cannot be read: (ValueError|.*\b{key} )'):
        read_result(tmp_path / 'result.json')


def test_result(tmp_path):
    """Whole numbers count too, and NaN is the score of a training that diverged."""
    text = '{"metrics": {"mIoU": 40, "aAcc": NaN}, "seconds": 60, "rate": 1, "seed": null, "digest": "a"}'
    (tmp_path / 'result.json').write_text(text)
    result = read_result(tmp_path / 'result.json')
    assert result.metrics['mIoU'] == 40 and math.isnan(result.metrics['aAcc'])
    assert result[1:] == (60, 1, None, 'a')
