import pytest
import torch

from mmattn.errors import CheckpointError, InputError, describe, near_misses
from mmguard import errors as guard


@pytest.mark.parametrize(
    'error, line',
    [
        (InputError('a sentence'), 'a sentence'),
        (ValueError('two\n  lines'), 'ValueError: two lines'),
        (AssertionError(), 'AssertionError'),
    ],
)
def test_one_line(error, line):
    assert describe(error) == line


class Broken(torch.utils.data.Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        raise CheckpointError('1.jpg: cut short')


def test_sentence_of_a_worker():
    """A DataLoader raises a worker's error again with a traceback as its text; the sentence is found in it."""
    with pytest.raises(CheckpointError, match='(?s)Traceback.*1.jpg') as raised:
        next(iter(torch.utils.data.DataLoader(Broken(), num_workers=1)))
    assert describe(raised.value) == '1.jpg: cut short'


def test_near_misses():
    assert near_misses('AdmW', ['Adam', 'AdamW', 'SGD']) == ': did you mean AdamW or Adam?'
    assert near_misses('SGD', ['layers']) == ''
    assert near_misses('miou', ['mIoU', 'coco/bbox_mAP']) == ': did you mean mIoU?'
    assert near_misses('mAP', ['mIoU', 'coco/bbox_mAP']) == ': did you mean coco/bbox_mAP?'


def test_one_class_in_both_houses():
    """mmguard has a link to errors.py: who catches an error of one catches that of the other."""
    assert guard.InputError is InputError and guard.CheckpointError is CheckpointError
