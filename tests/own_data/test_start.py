"""mmattn.start: what lies in a folder becomes a config that the guards take, or one sentence says what is wrong."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from mmengine.registry import DATASETS, DefaultScope
from PIL import Image

import mmattn
from mmattn.errors import InputError
from mmattn.own_data import HEADS
from mmattn.own_data.folder import in_parts
from mmguard.checks.datasets import check_files
from mmguard.runs.configs import check_pretrained, load_config
from tests.own_data.makers import CLASSES, class_folders, coco, image, label_maps
from tests.test_own_data import class_numbers

LABELS = ('label 0', 'label 1', 'label 2')


def coco_in_parts(folder: Path) -> None:
    """COCO's own layout. Both parts have images of the same names."""
    for part, count in (('train', 4), ('val', 3)):
        coco(folder / 'annotations' / f'instances_{part}2017.json', folder / f'{part}2017', count)


def coco_by_folder(folder: Path) -> None:
    """One file, in which the folder of an image is its part."""
    names = [f'{part}/{number}.jpg' for part in ('train', 'val', 'test') for number in range(3)]
    coco(folder / 'all.json', folder / 'photos', names=names)


def maps_in_parts(folder: Path) -> None:
    for part, count in (('training', 4), ('validation', 3)):
        label_maps(folder / 'images' / part, folder / 'annotations' / part, count, palette=True)


def maps_with_lists(folder: Path) -> None:
    """VOC's layout: its lists are elsewhere, and maps of objects are beside those of classes."""
    label_maps(folder / 'JPEGImages', folder / 'SegmentationClass', 5, palette=True)
    label_maps(folder / 'JPEGImages', folder / 'SegmentationObject', 5)
    (folder / 'ImageSets' / 'Segmentation').mkdir(parents=True)
    for part, names in (('train', '0\n1\n2'), ('val', '3\n4')):
        (folder / 'ImageSets' / 'Segmentation' / f'{part}.txt').write_text(names)


def classes_in_parts(folder: Path) -> None:
    class_folders(folder / 'train', 3)
    class_folders(folder / 'valid', 1)


#: kind -> what makes it, a head, a backbone, the images of each part, the classes
KINDS = {
    'COCO': (lambda f: coco(f / 'a.json', f / 'images'), 'mask-rcnn', 'nat-tiny', (5, 1), CLASSES),
    'COCO without masks': (lambda f: coco(f / 'a.json', f, masks=False), 'faster-rcnn', 'nat-t', (5, 1), CLASSES),
    'COCO in parts': (coco_in_parts, 'retinanet', 'shunted-s', (4, 3), CLASSES),
    'COCO by folder': (coco_by_folder, 'mask-rcnn', 'shunted_tiny', (3, 3, 3), CLASSES),
    'maps': (lambda f: label_maps(f / 'images', f / 'labels'), 'upernet', 'nat-m', (5, 1), LABELS),
    'maps in parts': (maps_in_parts, 'fpn', 'elsa-swin-t', (4, 3), LABELS),
    'maps with lists': (maps_with_lists, 'segformer', 'shunted-s', (3, 2), LABELS),
    'maps with endings': (
        lambda f: label_maps(f / 'images', f / 'masks', ends=('_rgb.png', '_mask.png')), 'fpn', 'swin-t', (5, 1), LABELS
    ),
    'folders': (class_folders, 'classifier', 'nat-t', (3, 3), CLASSES),
    'folders in parts': (classes_in_parts, 'classifier', 'msf-vit-s', (9, 3), CLASSES),
}  # fmt: skip


@pytest.mark.parametrize('kind', KINDS)
def test_each_kind(kind, tmp_path):
    """The config passes the guards, its datasets have all images of their part, and its heads the number of classes."""
    make, head, backbone, counts, classes = KINDS[kind]
    make(tmp_path)
    cfg = mmattn.start(tmp_path, head, backbone)
    config = Path(cfg.filename)
    assert config.parent == tmp_path and (*cfg.metainfo.classes,) == classes
    assert 15 <= len(config.read_text().splitlines()) <= 45
    checked = load_config(config)
    check_files(checked, 'train', 'val')
    numbers = class_numbers(checked.model)
    assert numbers == {len(classes)}
    seen = []
    with DefaultScope.overwrite_default_scope(checked.default_scope):
        for part, count in zip(('train', 'val', 'test'), counts):
            dataset = DATASETS.build(checked[f'{part}_dataloader'].dataset)
            assert len(dataset) == count and (*dataset.metainfo['classes'],) == classes
            seen += [dataset.get_data_info(i)['img_path'] for i in range(count)]
            sample = dataset[0]['data_samples']
            if 'maps' in kind:
                assert set(sample.gt_sem_seg.data.unique().tolist()) <= {0, 1, 2, 255}
                if 'endings' not in kind and kind != 'maps':
                    assert dataset.metainfo['palette'][2] == [200, 0, 0]
            elif 'COCO' in kind:
                assert len(sample.gt_instances) == 1
            else:
                assert classes[sample.gt_label.item()] in sample.img_path
    assert len(set(seen)) == sum(counts)


def changed(folder: Path, change: Callable[[dict], object], part: str = 'val') -> None:
    """COCO's layout, with a change of the file of a part."""
    coco_in_parts(folder)
    file = folder / 'annotations' / f'instances_{part}2017.json'
    contents = json.loads(file.read_text())
    change(contents)
    file.write_text(json.dumps(contents))


def give_other_ids(contents: dict) -> None:
    """Most ids are those of other classes now, and there is one more category."""
    for category in contents['categories']:
        category['id'] = 10 - category['id']
    for annotation in contents['annotations']:
        annotation['category_id'] = 10 - annotation['category_id']
    contents['categories'].insert(0, dict(id=3, name='more'))


def move_kite(contents: dict) -> None:
    """The category "none" is before "kite"."""
    contents['categories'].append(contents['categories'].pop(2))


@pytest.mark.parametrize(
    'make, wanted, classes',
    [
        pytest.param(KINDS['COCO'][0], ['kite', 'book'], ['book', 'kite'], id='in the order of the file'),
        pytest.param(lambda f: changed(f, give_other_ids), [], [*CLASSES], id='other ids'),
        pytest.param(
            lambda f: changed(f, move_kite), ['kite', 'book'], ['book', 'kite'], id='another order of the rest'
        ),
        pytest.param(lambda f: coco(f / 'val.json', f / 'images'), [], [*CLASSES], id='one file named val'),
    ],
)
def test_numbers_of_classes(make, wanted, classes, tmp_path):
    """MMDetection alone, without the guards, gives the objects of all parts their names."""
    make(tmp_path)
    cfg = mmattn.start(tmp_path, 'faster-rcnn', 'nat-t', wanted)
    assert cfg.metainfo.classes == classes
    seen = set()
    for part in ('train', 'val'):
        with DefaultScope.overwrite_default_scope('mmdet'):
            dataset = DATASETS.build(dict(cfg[f'{part}_dataloader'].dataset, type='CocoDataset', pipeline=[]))
        for info in map(dataset.get_data_info, range(len(dataset))):
            true = CLASSES[int(Path(info['img_path']).stem) % 3]
            names = [dataset.metainfo['classes'][one['bbox_label']] for one in info['instances']]
            assert names == [true] * (true in classes)
            seen.update(names)
    assert seen == {*classes}


#: a backbone that each head has a config for
HEAD_BACKBONES = dict.fromkeys(HEADS, 'nat-t') | dict.fromkeys(('retinanet', 'dino', 'fpn', 'setr-pup'), 'elsa-swin-t')


@pytest.mark.parametrize('head', HEADS)
def test_each_head(head, tmp_path):
    """All heads of the model get the number of classes."""
    make = dict(boxes=KINDS['COCO'][0], maps=KINDS['maps'][0], folders=class_folders)[HEADS[head].needs]
    make(tmp_path)
    backbone = 'shunted-s' if head == 'segformer' else HEAD_BACKBONES[head]
    assert class_numbers(load_config(mmattn.start(tmp_path, head, backbone).filename).model) == {3}


def test_weights(tmp_path, monkeypatch):
    """Published weights are in the config. Where they must be fetched by hand, or are none, the config starts without
    them and says so; with the file in its place, they are taken."""
    KINDS['COCO'][0](tmp_path)
    class_folders(tmp_path / 'classes')
    monkeypatch.chdir(tmp_path)
    starts = {
        'nat-t': r'# Weights: https://\S+/nat_tiny.pth\n',
        'shunted-t': '# Weights: none yet, there is no checkpoint checkpoints/ckpt_T.pth: download it .*OliverRensu',
        'gsa-r50': '# Weights: none are published',
    }
    for backbone, sentence in starts.items():
        for data, head in ((tmp_path, 'mask-rcnn'), (tmp_path / 'classes', 'classifier')):
            cfg = mmattn.start(data, head, backbone)
            assert re.search(sentence, Path(cfg.filename).read_text())
            assert (cfg.model.backbone.get('init_cfg') is not None) == (backbone == 'nat-t')
            check_pretrained(cfg)
    (tmp_path / 'checkpoints').mkdir()
    (tmp_path / 'checkpoints' / 'ckpt_T.pth').touch()
    Path(tmp_path / 'mask-rcnn_shunted-t.py').unlink()
    assert (
        mmattn.start(tmp_path, 'mask-rcnn', 'shunted-t').model.backbone.init_cfg.checkpoint == 'checkpoints/ckpt_T.pth'
    )


def test_nothing_is_replaced(tmp_path):
    """A second call gives the same config; one that was edited, or data that changed, is refused, and stays."""
    KINDS['COCO'][0](tmp_path)
    config = Path(mmattn.start(tmp_path, 'mask-rcnn', 'nat-t').filename)
    before = {file: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}
    mmattn.start(tmp_path, 'mask-rcnn', 'nat-t')
    assert before == {file: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}
    config.write_text('# mine')
    with pytest.raises(InputError, match='exists already'):
        mmattn.start(tmp_path, 'mask-rcnn', 'nat-t')
    assert config.read_text() == '# mine'


def test_many_images_keep_the_schedule(tmp_path, monkeypatch):
    """The schedule of the base stays where its epochs show enough images."""
    KINDS['COCO'][0](tmp_path)
    monkeypatch.setattr('mmattn.own_data.config.SEEN', 100)
    cfg = mmattn.start(tmp_path, 'mask-rcnn', 'nat-t')
    assert cfg.train_cfg.max_epochs == 36 and cfg.param_scheduler[0].end == 500


def test_classes(tmp_path):
    """Names of labels come from the argument or classes.txt; of annotations, the argument chooses, and a file may be
    named."""
    KINDS['COCO'][0](tmp_path / 'coco')
    assert mmattn.start(tmp_path / 'coco', 'mask-rcnn', 'nat-t', ['kite']).metainfo.classes == ['kite']
    two_files(tmp_path / 'two')
    assert mmattn.start(tmp_path / 'two' / 'b.json', 'mask-rcnn', 'nat-t').metainfo.classes == [*CLASSES]
    KINDS['maps'][0](tmp_path / 'maps')
    (tmp_path / 'maps' / 'classes.txt').write_text('sky\nroad\ntree\ncar\n\n')
    assert mmattn.start(tmp_path / 'maps', 'upernet', 'nat-t').metainfo.classes == ['sky', 'road', 'tree', 'car']
    assert mmattn.start(tmp_path / 'maps', 'upernet', 'nat-m', 'abc').metainfo.classes == ['a', 'b', 'c']


def test_a_file_of_a_part(tmp_path):
    """The file for training may be named: the one for validation beside it is taken, and nothing is split again."""
    for part in ('train', 'val'):
        coco(tmp_path / f'{part}.json', tmp_path / 'images')
    cfg = mmattn.start(tmp_path / 'train.json', 'mask-rcnn', 'nat-t')
    files = [Path(loader.dataset.ann_file).name for loader in (cfg.train_dataloader, cfg.val_dataloader)]
    assert files == ['train.json', 'val.json'] and len([*tmp_path.glob('*.json')]) == 2


@pytest.mark.parametrize('name', ['{{ fileBasename }}', '{{$HOME:x}}', '{{_base_.model}}', "a'], __import__('os')#"])
def test_names_are_no_code(name, tmp_path):
    """MMEngine replaces such names in a config, and a config is code."""
    KINDS['maps'][0](tmp_path)
    classes = [name, 'road', 'tree', 'car']
    assert mmattn.start(tmp_path, 'upernet', 'nat-t', classes).metainfo.classes == classes


def test_lists_of_parts(tmp_path):
    """Names have spaces and dots, with folders and suffixes or without; a name in two lists is refused."""
    names = ['photos/a 1.x.jpg', 'photos/a 1.y.jpg', 'photos/b.jpg']
    lists = {part: tmp_path / f'{part}.txt' for part in ('train', 'val')}
    lists['train'].write_text('a 1.x\nb\n')
    lists['val'].write_text('./photos/a 1.y.jpg')
    assert in_parts(names, tmp_path, lists) == dict(train=[names[0], names[2]], val=[names[1]])
    lists['val'].write_text('a 1.y\nb')
    with pytest.raises(InputError, match='train.txt, .*val.txt: several have photos/b.jpg'):
        in_parts(names, tmp_path, lists)


def two_files(folder: Path) -> None:
    coco(folder / 'a.json', folder / 'images')
    coco(folder / 'b.json', folder / 'images')


def images_elsewhere(folder: Path) -> None:
    coco(folder / 'a.json', folder / 'images')
    (folder / 'images' / '0.jpg').unlink()


def broken_json(folder: Path) -> None:
    (folder / 'a.json').write_text('{"images": [')


def coloured_maps(folder: Path) -> None:
    for number in range(3):
        image(folder / 'images' / f'{number}.jpg', number)
        image(folder / 'masks' / f'{number}.png', number)


def black_and_white(folder: Path) -> None:
    for number in range(3):
        image(folder / 'images' / f'{number}.jpg', number)
        (folder / 'masks').mkdir(exist_ok=True)
        Image.new('L', (64, 48), 255).save(folder / 'masks' / f'{number}.png')


def map_without_image(folder: Path) -> None:
    label_maps(folder / 'images', folder / 'labels')
    (folder / 'images' / '3.jpg').unlink()


def name_missing(folder: Path) -> None:
    label_maps(folder / 'images', folder / 'labels')
    (folder / 'classes.txt').write_text('sky\n\nroad\ntree\n')


def other_classes(folder: Path) -> None:
    class_folders(folder / 'train')
    class_folders(folder / 'val')
    (folder / 'val' / 'kite').rename(folder / 'val' / 'kites')


def deep_images(folder: Path) -> None:
    for number in range(4):
        (folder / 'ab'[number % 2]).mkdir(exist_ok=True)
        Image.new('I;16', (64, 48), 900).save(folder / 'ab'[number % 2] / f'{number}.png')


def four_bands(folder: Path) -> None:
    label_maps(folder / 'images', folder / 'labels')
    for file in [*(folder / 'images').iterdir()]:
        Image.open(file).convert('RGBA').save(file.with_suffix('.tif'))
        file.unlink()


def arrays(folder: Path) -> None:
    label_maps(folder / 'images', folder / 'labels')
    for file in [*(folder / 'images').iterdir()]:
        file.rename(file.with_suffix('.npy'))


def many_photos(folder: Path) -> None:
    for number in range(3):
        image(folder / f'{number}.jpg')


#: what is wrong -> what makes it, arguments of start, and what the sentence has: what was found, and what to do
REFUSALS = {
    'no folder': (lambda f: None, ('mask-rcnn', 'nat-t'), 'there is no folder .*missing'),
    'unknown head': (many_photos, ('mask-cnn', 'nat-t'), "no head 'mask-cnn': take one of mask-rcnn, .*classifier"),
    'unknown backbone': (many_photos, ('mask-rcnn', 'nat-x'), "'nat-x'.*did you mean.*; mask-rcnn is there with .*"),
    'no config for both': (many_photos, ('retinanet', 'nat-t'), 'nat-t is there with mask.*; retinanet .*shunted-s'),
    'empty folder': (lambda f: f.mkdir(), ('mask-rcnn', 'nat-t'), 'has nothing, and not what was looked for: .*COCO'),
    'photos alone': (many_photos, ('upernet', 'nat-t'), r'has 3 \*.jpg, and not .* label'),
    'photos for a classifier': (many_photos, ('classifier', 'nat-t'), r'has 3 \*.jpg, and not .*train/CLASS'),
    'maps for a detector': (maps_in_parts, ('mask-rcnn', 'nat-t'), r'4 \*.png in annotations/training, .*COCO'),
    'maps for a classifier': (maps_in_parts, ('classifier', 'nat-t'), r'4 \*.jpg in images/training.*CLASS'),
    'boxes for masks': (KINDS['COCO without masks'][0], ('mask-rcnn', 'nat-t'), 'no masks, .*faster-rcnn'),
    'two files': (two_files, ('mask-rcnn', 'nat-t'), r'several files of annotations, a.json.*b.json'),
    'images elsewhere': (images_elsewhere, ('mask-rcnn', 'nat-t'), 'lists images that are not in .*images: 0.jpg'),
    'broken file': (broken_json, ('mask-rcnn', 'nat-t'), 'a.json cannot be read: JSONDecodeError'),
    'unknown class': (KINDS['COCO'][0], ('mask-rcnn', 'nat-t', ['boat']), 'no objects of boat: it has book'),
    'other order': (
        lambda f: changed(f, lambda c: c['categories'].reverse()), ('mask-rcnn', 'nat-t'),
        'val2017.json .* than .*train2017.json, first kite where the other has book, .*same order, their ids may stay'
    ),
    'no category': (
        lambda f: changed(f, lambda c: c['categories'].pop(0), 'train'), ('mask-rcnn', 'nat-t'),
        'train2017.json has no category book, of which'
    ),
    'no category in val': (
        lambda f: changed(f, lambda c: c['categories'].pop(0)), ('mask-rcnn', 'nat-t', ['kite', 'book']),
        'val2017.json has no category book, of which'
    ),
    'category twice': (
        lambda f: changed(f, lambda c: c['categories'].insert(0, dict(id=0, name='kite')), 'train'),
        ('mask-rcnn', 'nat-t'), 'train2017.json has kite twice in "categories", .*rename'
    ),
    'coloured maps': (coloured_maps, ('upernet', 'nat-t'), r'0.png is coloured \(mode RGB\).*convert_data.py masks'),
    'black and white': (black_and_white, ('upernet', 'nat-t'), r'labels \[\] and 255.*convert_data.py masks'),
    'map without image': (map_without_image, ('upernet', 'nat-t'), 'only one of images and labels has 3'),
    'too few names': (KINDS['maps'][0], ('upernet', 'nat-t', ['sky']), '3 labels, up to 2, and 1 names'),
    'other classes': (other_classes, ('classifier', 'nat-t'), 'kite, kites is a folder in only one of train and val'),
    'one image of a class': (lambda f: class_folders(f, 1), ('classifier', 'nat-t'), 'has 1 images, too few'),
    'empty name': (name_missing, ('upernet', 'nat-t'), 'classes.txt has no name for the number 1, but for later'),
    'names for folders': (class_folders, ('classifier', 'nat-t', ['a']), 'names of their folders'),
    'a baseline': (class_folders, ('classifier', 'deit-s'), "no config of classifier with 'deit-s'"),
    'token labels': (class_folders, ('classifier', 'volo-d1'), 'take another backbone'),
    '16 bits': (deep_images, ('classifier', 'nat-t'), 'png has more than 8 bits: docs/own_data.md'),
    'four bands': (four_bands, ('upernet', 'nat-t'), 'tif has 4 bands: docs/own_data.md'),
    'arrays': (arrays, ('upernet', 'nat-t'), r'\*.npy in images.*same name for each. docs/own_data.md'),
}  # fmt: skip


@pytest.mark.parametrize('wrong', REFUSALS)
def test_refusals(wrong, tmp_path):
    """One sentence says what was found, and nothing is written."""
    make, arguments, sentence = REFUSALS[wrong]
    data = tmp_path / ('missing' if wrong == 'no folder' else 'data')
    if wrong not in ('no folder', 'empty folder'):
        data.mkdir()
    make(data)
    before = sorted(tmp_path.rglob('*'))
    with pytest.raises(InputError, match=sentence) as refused:
        mmattn.start(data, *arguments)
    assert '\n' not in str(refused.value) and sorted(tmp_path.rglob('*')) == before
