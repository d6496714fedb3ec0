"""Folders and lists of images with labels are checked before MMPretrain reads them."""

import os
import re

import pytest
from mmengine.config import Config

from mmguard.checks.datasets import check_files
from mmguard.errors import InputError

pytest.importorskip('mmpretrain')
CLASSES = ['ant', 'bee', 'cow']


def folders(root, names=CLASSES, suffix='JPEG'):
    for name in names:
        (root / name).mkdir(parents=True)
        for number in range(2):
            (root / name / f'{number}.{suffix}').touch()


def listed(root, text='', split='val'):
    (root / 'meta').mkdir(exist_ok=True)
    text = text or ''.join(f'{name}/{number}.JPEG {label}\n' for label, name in enumerate(CLASSES) for number in (0, 1))
    (root / 'meta' / f'{split}.txt').write_bytes(text.encode() if isinstance(text, str) else text)


@pytest.fixture
def check(tmp_path):
    """Check the training and validation data of an ImageNet of three classes, after it was changed."""
    folders(tmp_path / 'train')
    folders(tmp_path / 'val')

    def check(damage=None, splits=('train', 'val'), num_classes=3, **settings):
        if damage:
            damage(tmp_path)
        classes = None if settings.get('type') else CLASSES
        common = dict(type='ImageNet', data_root=str(tmp_path), metainfo=dict(classes=classes) if classes else None)
        loaders = {
            f'{split}_dataloader': dict(
                dataset={**common, 'split': split, **settings}
                if not settings.get('type')
                else {**common, 'data_prefix': split, **settings}
            )
            for split in ('train', 'val')
        }
        model = dict(type='ImageClassifier', head=dict(num_classes=num_classes))
        evaluator = dict(type='Accuracy')
        check_files(Config(dict(default_scope='mmpretrain', model=model, val_evaluator=evaluator, **loaders)), *splits)

    return check


def outside(root):
    """Folders of classes may be links, and so may images."""
    (root / 'val/ant').rename(root / 'ants')
    (root / 'val/ant').symlink_to('../ants')
    (root / 'val/ant/0.JPEG').rename(root / '0.JPEG')
    (root / 'val/ant/0.JPEG').symlink_to('../0.JPEG')


def unlinked(path):
    for file in path.iterdir():
        file.unlink()


@pytest.mark.parametrize(
    'damage',
    [
        None,
        listed,
        lambda root: (folders(root / 'val' / 'more', ['a']), listed(root, 'more/a/0.JPEG 1\r\nant/1.JPEG 0\r\n')),
        lambda root: (unlinked(root / 'val' / 'ant'), folders(root / 'val' / 'ant', ['deeper'], 'PNG')),
        outside,
    ],
    ids=['folders', 'list', 'deeper list', 'deeper folder', 'links'],
)
def test_valid_data_passes(check, damage):
    check(damage)


@pytest.mark.parametrize(
    'damage, message',
    [
        (lambda root: folders(root / 'val', ['dog']), 'val has 4 folders, from ant to dog, and there are 3 classes'),
        (lambda root: unlinked(root / 'train' / 'bee'), '1 of the 3 folders of .*train have no image .* being bee'),
        (lambda root: (root / 'val' / 'bee').rename(root / 'val' / 'dog'), 'of different classes: only .* has bee'),
        (lambda root: (root / 'val' / '1.JPEG').touch(), 'val has images outside of folders, as 1.JPEG:'),
        (lambda root: [(unlinked(path), path.rmdir()) for path in (root / 'val').iterdir()], 'val has no folders of'),
        (lambda root: listed(root, 'ant/0.JPEG 0\nant/9.JPEG 0\nfly/9.JPEG 0\n'), 'names 2 images .* being ant/9.JPEG'),
        (lambda root: listed(root, 'ant/0.JPEG 0\ncow/0.JPEG 3\n'), 'line 2 .* has label 3: labels of 3 classes are'),
        (lambda root: listed(root, 'ant/0.JPEG -1\n'), 'line 1 .* has label -1'),
        (lambda root: listed(root, 'ant/0.JPEG\n'), 'line 1 of .* must be the path of an image, a .*, not'),
        (lambda root: (root / 'meta').mkdir() or (root / 'meta' / 'val.txt').touch(), 'val.txt lists no image'),
        (lambda root: listed(root, 'ant/0.JPEG 0\n'.encode('utf-16')), 'val.txt cannot be read: UnicodeDecodeError'),
        (lambda root: listed(root, 'ant/0.JPEG 0\nant/0.JPEG 1\n'), 'line 2 of .*val.txt gives ant/0.JPEG a second'),
        (lambda root: (root / 'val/bee/all').symlink_to('..'), 'bee/all is a link to .*val, so all images there'),
        (lambda root: (root / 'val/bee/more').symlink_to(root / 'train/ant'), 'bee/more is a link to .*train.ant, so'),
        (
            lambda root: (unlinked(root / 'val/cow'), (root / 'val/cow').rmdir(), (root / 'val/cow').symlink_to('bee')),
            'val/cow is a link to .*val/bee, so its images would be read twice',
        ),
        (lambda root: listed(root, 'ant/0.JPEG 0\nbee/0.JPEG 2\n'), 'in the folder bee have label 1 in train_.* and'),
    ],
)
def test_broken_data_is_named(check, damage, message):
    """The sentence names the dataset and the file, folder or line. MMPretrain would assert, warn or mix up labels."""
    with pytest.raises(InputError, match=message):
        check(damage)


@pytest.mark.parametrize(
    'damage, message',
    [
        (
            lambda root: (
                [(root / 'val' / 'ant' / name).touch() for name in ('a.gif', 'b.GIF', 'c.webp', 'd', '.e.jpg', 'f.tif')]
                + [(root / 'val' / 'ant' / 'g.jpg').symlink_to('nothing')]
            ),
            '6 files in .*val are left out: 2 .gif, 1 .webp, 1 hidden, 1 links to nothing, 1 without a suffix; the',
        ),
        (
            lambda root: listed(root, f'{root}/val/ant/0.JPEG 0\n../train/bee/1.JPEG 1\ncow/0.JPEG 2\n'),
            '2 images of .* are outside of',
        ),
        (lambda root: listed(root, 'bee/0.JPEG 1\n'), 'val.txt has no image of 2 of its 3 classes: ant, cow'),
        (
            lambda root: folders(root / 'train', ['Bee']) or folders(root / 'val', ['Bee']),
            "folders 'Bee' and 'bee': they",
        ),
    ],
)
def test_what_the_log_says(check, log, damage, message):
    """Files that are not read are counted by reason, and classes without images named; MMPretrain is silent."""
    kind = dict(type='CustomDataset', num_classes=4) if 'Bee' in message else {}
    check(damage, **kind)
    lines = [line for line in log if 'val_dataloader' in line]
    assert len(lines) == 1 and re.search(message, lines[0])


@pytest.mark.parametrize(
    'settings, message',
    [
        (dict(split='tran'), "The split must be one of .*'tran'"),
        (dict(ann_file='no.txt'), 'there is no annotation file .*no.txt'),
        (dict(with_label=False), 'train_dataloader.dataset has no labels to train with'),
        (dict(type='CustomDataset', num_classes=4), 'train has 3 folders, from ant to cow, and there are 4 classes'),
        (dict(type='CustomDataset', metainfo=dict(classes=['bee', 'ant', 'cow'])), 'in another order'),
        (dict(type='CustomDataset', metainfo=dict(classes='cow')), "must be a list of names, .* not 'cow'"),
    ],
)
def test_settings_that_do_not_fit(check, settings, message):
    """Classes are the dataset's, or else the model's."""
    with pytest.raises(InputError, match=message):
        check(**settings)


def test_labels_are_needed_where_they_are_read(check):
    """A validation without labels is refused, as its accuracy is asked for."""
    with pytest.raises(InputError, match='val_dataloader.dataset has no labels to evaluate with'):
        check(splits=['val'], with_label=False)


def test_files_are_not_looked_at_one_by_one(check, tmp_path, monkeypatch):
    """ImageNet has 1.28 million."""
    listed(tmp_path)
    seen, stat = [], os.stat
    monkeypatch.setattr('os.stat', lambda path, *args, **kwargs: seen.append(str(path)) or stat(path, *args, **kwargs))
    check()
    assert str(tmp_path / 'val') in seen and not any(path.endswith('.JPEG') for path in seen)


def test_cifar(tmp_path):
    """CIFAR-100 is complete, or MMPretrain may download it."""
    dataset = dict(type='CIFAR100', data_root=str(tmp_path), split='train', download=True)
    cfg = Config(dict(default_scope='mmpretrain', model=dict(), train_dataloader=dict(dataset=dataset)))
    check_files(cfg, 'train')
    cfg.train_dataloader.dataset.download = False
    with pytest.raises(InputError, match='the files of CIFAR100 in .*cifar-100-python are missing'):
        check_files(cfg, 'train')
