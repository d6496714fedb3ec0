"""tools/browse.py, in this process."""

import shutil
from pathlib import Path

import pytest

from tests import ROOT
from tests.tools.in_process import run_tool

DETECTOR = 'projects/lab/configs/toy/mask-rcnn_shunted-toy_fpn.py'
SEGMENTOR = 'projects/lab/configs/toy/shunted-toy_fpn.py'
CLASSIFIER = 'projects/lab/configs/toy/elsa-swin-toy_in1k.py'


@pytest.fixture(scope='module')
def toy(tmp_path_factory):
    root = tmp_path_factory.mktemp('browse') / 'toy'
    assert run_tool('make_toy_data', root, '--train', 3, '--val', 2).returncode == 0
    return root


@pytest.fixture
def browse(toy, tmp_path):
    """A function that runs the tool on the toy data, or on a copy of it."""

    def run(config, *arguments, data=toy):
        folders = dict(COCO_ROOT='coco', ADE20K_ROOT='ADEChallengeData2016', IMAGENET_ROOT='imagenet')
        environment = {name: str(data / folder) for name, folder in folders.items()}
        return run_tool('browse', config, '--out', tmp_path / 'look', *arguments, **environment)

    return run


def counts(printed: str) -> dict[str, tuple[int, int]]:
    """Class name -> number of objects or pixels, number of images. Classes without any are left out."""
    rows = [line.split() for line in printed.splitlines() if ' in ' in line and line.rstrip().endswith('images')]
    return {row[1]: (int(row[-5]), int(row[-2])) for row in rows if int(row[-5])}


def test_detector(browse, toy, tmp_path):
    """Images are drawn, and the objects of each class counted. A class without objects has a line too."""
    done = browse(DETECTOR, '--draw', 2)
    found = counts(done.stdout)
    assert set(found) <= {'frisbee', 'kite', 'book', 'donut', 'scissors'}
    from pycocotools.coco import COCO

    annotated = COCO(toy / 'coco' / 'annotations' / 'instances_train2017.json')
    assert sum(number for number, _ in found.values()) == len(annotated.anns)
    assert len(list((tmp_path / 'look').glob('train_*.jpg'))) == 2
    assert done.sentence is None and ' person ' in done.stdout


def test_segmentor(browse, toy, tmp_path):
    """The validation images are drawn whole, and enlarged to be read, and the pixels of each class counted."""
    done = browse(SEGMENTOR, '--split', 'val')
    found = counts(done.stdout)
    import cv2

    maps = [cv2.imread(str(file), -1) for file in (toy / 'ADEChallengeData2016/annotations/validation').iterdir()]
    assert done.sentence is None and found['sky'] == (sum((labels == 3).sum() for labels in maps), 2)
    files = sorted((tmp_path / 'look').glob('val_*.jpg'))
    assert len(files) == 2
    original = toy / 'ADEChallengeData2016' / 'images' / 'validation' / '000000000001.jpg'
    drawn, image = cv2.imread(str(files[0])), cv2.imread(str(original))
    assert drawn.shape[0] == 3 * image.shape[0] and drawn.shape[1] == 3 * image.shape[1]


def test_classifier(browse, toy, tmp_path):
    """The images are drawn with their classes, and the images of each class counted."""
    done = browse(CLASSIFIER, '--split', 'val', '--draw', 3)
    assert done.sentence is None
    rows = [line.split() for line in done.stdout.splitlines() if line.endswith(' images')][1:]
    per_folder = [len(list(folder.iterdir())) for folder in sorted((toy / 'imagenet' / 'val').iterdir())]
    assert [int(row[-2]) for row in rows] == per_folder + [0] * (1000 - len(per_folder))
    assert len(list((tmp_path / 'look').glob('val_*.jpg'))) == 3


def test_label_that_is_no_class(browse):
    """One sentence for all label maps says what to set, with their number; the pixels of the label are counted."""
    dataset = 'train_dataloader.dataset'
    options = f'{dataset}.type=BaseSegDataset', f'{dataset}.metainfo.classes=[a,b]', 'model.decode_head.num_classes=2'
    done = browse(SEGMENTOR, '--cfg-options', *options)
    assert done.sentence == '3 of 3 images cannot be used.'
    sentences = [line for line in done.stderr.splitlines() if 'where the dataset has 2 classes' in line]
    assert sum(int(line.split()[0]) for line in sentences) == 3
    assert all('set ignore_index=' in line for line in sentences)
    assert ' is no class ' in done.stdout


def test_all_broken_images_are_named(browse, toy, tmp_path):
    """A broken image does not stop the tool: all are named, and the tool ends with an error."""
    shutil.copytree(toy, tmp_path / 'toy')
    for number in (1, 3):
        Path(tmp_path / 'toy/coco/train2017' / f'{number:012d}.jpg').write_bytes(b'')
    done = browse(DETECTOR, data=tmp_path / 'toy')
    assert done.sentence == '2 of 3 images cannot be used.'
    assert all(f'{number:012d}.jpg cannot be used' in done.stderr for number in (1, 3))
    assert [file.name for file in (tmp_path / 'look').iterdir()] == ['train_000001_000000000002.jpg']


def test_classifier_without_names(toy, tmp_path):
    """Of a list of annotations: classes are numbers, as many as the model has."""
    folder = sorted((toy / 'imagenet' / 'val').iterdir())[0]
    (tmp_path / 'list.txt').write_text(''.join(f'{file.name} 2\n' for file in sorted(folder.iterdir())))
    config = tmp_path / 'config.py'
    config.write_text(
        f"""_base_ = {str(ROOT / CLASSIFIER)!r}
dataset = dict(type='CustomDataset', data_root={str(tmp_path)!r}, ann_file='list.txt', data_prefix={str(folder)!r})
val_dataloader = dict(dataset=dict(_delete_=True, **dataset, pipeline=_base_.test_pipeline))
"""
    )
    done = run_tool('browse', config, '--split', 'val', '--out', tmp_path / 'look')
    assert done.sentence is None
    rows = [line.split() for line in done.stdout.splitlines() if line.endswith(' images')][1:]
    assert [row[1] for row in rows] == [str(number) for number in range(1000)]
    assert [int(row[-2]) for row in rows[:4]] == [0, 0, len(list(folder.iterdir())), 0]


def test_mosaic(browse, toy, tmp_path):
    """The dataset of a MultiImageMixDataset only loads; the transform that packs is of the wrapper."""
    config = tmp_path / 'config.py'
    config.write_text(
        f"""_base_ = {str(ROOT / DETECTOR)!r}
inner = dict(_base_.train_dataloader.dataset)
inner['pipeline'] = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations', with_bbox=True)]
mix = [dict(type='Mosaic', img_scale=(64, 64)), dict(type='RandomFlip', prob=0.5), dict(type='PackDetInputs')]
wrapper = dict(_delete_=True, type='MultiImageMixDataset', dataset=inner, pipeline=mix)
train_dataloader = dict(dataset=wrapper)
"""
    )
    done = browse(config)
    assert done.sentence is None and counts(done.stdout) == counts(browse(DETECTOR).stdout)


@pytest.mark.parametrize(
    ('config', 'pack', 'sentence'),
    [
        (DETECTOR, 'PackDetInputs', 'loads no annotations'),
        (CLASSIFIER, None, 'no transform of its dataset packs what it loads'),
    ],
)
def test_nothing_to_count(browse, tmp_path, config, pack, sentence):
    """Images without annotations, as those of a challenge, and a pipeline that is not complete."""
    pipeline = [dict(type='LoadImageFromFile'), *([dict(type=pack)] if pack else [])]
    test = dict(dataset=dict(pipeline=pipeline))
    (tmp_path / 'config.py').write_text(f'_base_ = {str(ROOT / config)!r}\ntest_dataloader = {test!r}')
    done = browse(tmp_path / 'config.py', '--split', 'test')
    assert done.returncode == 1 and sentence in done.sentence


def test_val_is_checked_as_in_training(browse, toy, tmp_path):
    """What the metric evaluates with must be of the images of the split."""
    contents = (toy / 'coco' / 'annotations' / 'instances_val2017.json').read_text()
    (tmp_path / 'other.json').write_text(contents.replace('000000000002.jpg', 'other.jpg'))
    done = browse(DETECTOR, '--split', 'val', '--cfg-options', f'val_evaluator.ann_file={tmp_path / "other.json"}')
    assert 'other.json of the evaluator is of other images than the dataset: its image 2 is other.jpg' in done.sentence


def test_val_is_compared_with_train(browse, toy, tmp_path):
    """Folders of other classes than in training would be evaluated with wrong labels. Without the images of the
    training, a line says that nothing was compared."""
    data = tmp_path / 'toy'
    shutil.copytree(toy, data)
    folder = data / 'imagenet' / 'val'
    first = sorted(folder.iterdir())[0]
    for other in (data / 'imagenet' / 'train').iterdir():
        if not (folder / other.name).exists():
            shutil.rmtree(other)
    config = tmp_path / 'config.py'
    classes = dict(num_classes=len(list(folder.iterdir())))
    text = f'_base_ = {str(ROOT / CLASSIFIER)!r}\nmodel = dict(head={classes})\ndata_preprocessor = {classes}\n'
    for split in ('train', 'val'):
        dataset = f"type='CustomDataset', data_prefix={str(folder.with_name(split))!r}, pipeline=_base_.test_pipeline"
        text += f'{split}_dataloader = dict(dataset=dict(_delete_=True, {dataset}))\n'
    config.write_text(text)
    first.rename(first.with_name('zzz'))
    done = browse(config, '--split', 'val')
    assert f'are of different classes: only train_dataloader.dataset has {first.name}' in done.sentence
    shutil.rmtree(data / 'imagenet' / 'train')
    done = browse(config, '--split', 'val')
    assert done.sentence is None and 'val is not compared with train: train_dataloader.dataset' in done.stderr
