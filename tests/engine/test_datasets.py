"""Data is checked before a run, before its first step and when it is read."""

import io
import subprocess
import sys
import zlib
from types import SimpleNamespace

import numpy as np
import pytest
from mmcv import transforms
from mmcv.transforms import LoadImageFromFile
from mmdet.datasets import CocoDataset
from mmdet.registry import DATASETS, METRICS
from mmengine.config import Config
from mmengine.dataset import BaseDataset, Compose, ConcatDataset, RepeatDataset
from mmseg.datasets.transforms import LoadAnnotations
from mmseg.models.decode_heads import FCNHead, STDCHead
from PIL import Image
from torch import nn

from mmattn.engine.coco import CheckedCocoDataset, CheckedCocoMetric
from mmattn.engine.datasets import (
    CheckedPipeline,
    InputCheckHook,
    check_dataset,
    check_files,
    check_image,
    check_label_map,
    ignored_labels,
    inner_datasets,
    use_checked_datasets,
)
from mmattn.errors import InputError
from tests import ROOT
from tests.engine.test_coco import changed, coco_config


def test_the_engine_imports_without_mmdetection():
    """MMDetection is imported when a config has a dataset of its own."""
    code = 'import sys; sys.modules.update(mmcv=None, mmdet=None, mmseg=None); import mmattn.engine.runs'
    subprocess.run([sys.executable, '-c', code], cwd=ROOT, check=True)


@pytest.mark.parametrize('kind', ['CocoDataset', 'mmdet.CocoDataset', CocoDataset])
def test_coco_datasets_are_checked(tmp_path, kind):
    """The datasets of a config are replaced, however deep they stand, and the registry finds the new type."""
    plain, other = dict(type=kind, **coco_config(tmp_path)), dict(type='LVISV1Dataset')
    wrapped = dict(type='RepeatDataset', times=2, dataset=dict(type='ConcatDataset', datasets=[plain, other]))
    cfg = Config(dict(default_scope='mmdet', train_dataloader=dict(dataset=wrapped), val_dataloader=None))
    use_checked_datasets(cfg)
    first, second = cfg.train_dataloader.dataset.dataset.datasets
    assert type(DATASETS.build(first)) is CheckedCocoDataset and second.type == 'LVISV1Dataset'


@pytest.mark.parametrize('several', [lambda *metrics: metrics[0], list, lambda *metrics: dict(metrics=list(metrics))])
def test_coco_metrics_are_checked(tmp_path, several):
    """The metrics of a config are replaced. An annotation file that is missing is named before anything is read."""
    metric = dict(type='CocoMetric', ann_file=str(tmp_path / 'a.json'))
    other = dict(type='LVISMetric', ann_file=metric['ann_file'])
    evaluator = several((metric, other)) if several is list else several(metric, other)
    cfg = Config(dict(default_scope='mmdet', val_evaluator=evaluator))
    use_checked_datasets(cfg)
    with pytest.raises(InputError, match='val_evaluator: there is no annotation file .*/a.json: set ann_file'):
        check_files(cfg, 'val')
    coco_config(tmp_path)
    check_files(cfg, 'val')
    metrics = cfg.val_evaluator.get('metrics', cfg.val_evaluator) if several is not list else cfg.val_evaluator
    first, *rest = metrics if isinstance(metrics, list) else [metrics]
    assert type(METRICS.build(first)) is CheckedCocoMetric and all(one.type == 'LVISMetric' for one in rest)


@pytest.mark.parametrize(
    'settings, message',
    [
        (dict(type='CocoDataset'), None),
        (dict(type='CocoDataset', ann_file='b.json'), 'there is no annotation file .*/b.json: set data_root'),
        (dict(type='mmattn.engine.coco.CheckedCocoDataset', ann_file='b.json'), 'there is no annotation file'),
        (dict(type='CocoDataset', data_prefix=dict(img='no')), 'there is no image folder .*/no: set data_root'),
        (dict(type='CocoDataset', ann_file='b.json', backend_args=dict(backend='petrel')), None),
        (dict(type='LVISV1Dataset', ann_file='b.json'), None),  # reads its file in its own way
        (dict(type='mmseg.ADE20KDataset', ann_file='', data_prefix=dict(img_path='images')), 'images has no image'),
        (dict(type='mmseg.ADE20KDataset', ann_file='', data_prefix=dict(img_path='no')), 'there is no image folder'),
        (dict(type='mmseg.ADE20KDataset', metainfo=dict(classes=('cow',))), 'new classes .* is not a subset'),
    ],
)
def test_files_are_there(tmp_path, settings, message):
    """Missing files are named before anything is read, of those dataloaders that the run uses."""
    settings = {'metainfo': None, **settings}
    cfg = Config(dict(default_scope='mmdet', val_dataloader=dict(dataset={**coco_config(tmp_path), **settings})))
    cfg.train_dataloader = {}
    check_files(cfg, 'train')
    with pytest.raises(InputError, match='the config has no test_dataloader: it has nothing to test'):
        check_files(cfg, 'test')
    if message is None:
        check_files(cfg, 'val')
    else:
        with pytest.raises(InputError, match=f'val_dataloader.dataset: .*{message}'):
            check_files(cfg, 'val')


class Images(BaseDataset):
    def load_data_list(self):
        return [dict(img_path='a.jpg')]


def test_inner_datasets():
    """Datasets are found below whatever wraps them."""
    a, b = Images(serialize_data=False), Images(serialize_data=False)
    assert list(inner_datasets(ConcatDataset([a, b]))) == [a, b] and list(inner_datasets(RepeatDataset(b, 2))) == [b]
    assert list(inner_datasets(None)) == []


@pytest.mark.parametrize('suffix', ['jpg', 'png'])
def test_images_cut_short(tmp_path, suffix):
    """OpenCV up to 4.10 makes the rest grey. Bytes after a complete image do no harm."""
    path = tmp_path / f'a.{suffix}'
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).save(path)
    whole = path.read_bytes()
    for contents in (whole, whole + b'more' * 100):
        path.write_bytes(contents)
        check_image(str(path))
    for share in (0.3, 0.9):
        path.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(InputError, match=f'a.{suffix} cannot be used: the image is cut short'):
            check_image(str(path))


def pipeline(*transforms):
    dataset = Images(serialize_data=False, metainfo=dict(classes=('a',)))
    return CheckedPipeline(Compose(transforms), dataset)


def test_files_that_cannot_be_loaded_are_named(tmp_path):
    """An image that cannot be read is a mistake in the data."""
    with pytest.raises(InputError, match='b.jpg cannot be used: FileNotFoundError'):
        pipeline(LoadImageFromFile())(dict(img_path=str(tmp_path / 'b.jpg')))


def test_the_hook_checks_metrics(tmp_path):
    """The annotations of an evaluator are compared with the dataset before the first step, and images when read."""
    dataset = CheckedCocoDataset(**coco_config(tmp_path))
    Image.new('RGB', (20, 10)).save(tmp_path / 'images' / 'a.jpg')
    metric = CheckedCocoMetric(str(tmp_path / 'a.json'))
    loop = SimpleNamespace(
        dataloader=SimpleNamespace(dataset=dataset), evaluator=SimpleNamespace(metrics=[object(), metric])
    )
    runner = SimpleNamespace(_train_loop=None, _val_loop=loop, _test_loop=None, model=nn.Identity())
    InputCheckHook().before_run(runner)
    assert isinstance(dataset.pipeline, CheckedPipeline)
    metric.images = {}
    with pytest.raises(InputError, match='is of other images than the dataset'):
        InputCheckHook().before_run(runner)


def test_a_metric_per_dataset(tmp_path):
    """Each metric of MMDetection's MultiDatasetsEvaluator evaluates one of several datasets."""
    datasets, metrics = [], []
    for image_id in (7, 8):
        contents = changed('images', id=image_id)
        contents['annotations'][0]['image_id'] = image_id
        (tmp_path / str(image_id)).mkdir()
        datasets.append(CheckedCocoDataset(**coco_config(tmp_path / str(image_id), contents)))
        metrics.append(CheckedCocoMetric(str(tmp_path / str(image_id) / 'a.json')))
        Image.new('RGB', (20, 10)).save(tmp_path / str(image_id) / 'images' / 'a.jpg')
    loop = SimpleNamespace(
        dataloader=SimpleNamespace(dataset=ConcatDataset(datasets)),
        evaluator=SimpleNamespace(metrics=metrics, dataset_prefixes=['a', 'b']),
    )
    runner = SimpleNamespace(_train_loop=None, _val_loop=loop, _test_loop=None, model=nn.Identity())
    InputCheckHook().before_run(runner)
    metrics.reverse()
    with pytest.raises(InputError, match='is of other images than the dataset'):
        InputCheckHook().before_run(runner)


def turned(folder, orientation, size=(20, 10), suffix='jpg'):
    """An image of a size as it is stored, with an EXIF orientation."""
    path, exif = folder / f'a.{suffix}', Image.Exif()
    exif[0x0112] = orientation
    Image.new('RGB', size).save(path, exif=exif)
    return str(path)


@pytest.mark.parametrize('suffix', ['jpg', 'png'])
@pytest.mark.parametrize('backend', ['cv2', 'pillow'])
@pytest.mark.parametrize(
    'orientation, colour, height, width, message',
    [
        (1, 'color', 10, 20, None),
        (1, 'color', 10, 21, '20 x 10 pixels as it is read, but 21 x 10 in its annotations: correct the width'),
        (1, 'color', 20, 10, '20 x 10 pixels as it is read, but 10 x 20 in its annotations: correct the width'),
        (6, 'color', 20, 10, None),
        (6, 'color', 10, 20, '10 x 20 pixels as it is read, but 20 x 10 .* its EXIF orientation is 6, so they must'),
        (6, 'color_ignore_orientation', 10, 20, None),
        (6, 'color_ignore_orientation', 20, 10, 'its EXIF orientation is 6, so they must be of the image as it is di'),
        (3, 'color', 10, 20, None),
        (99, 'color', 10, 20, None),
    ],
)
def test_sizes_of_images(tmp_path, suffix, backend, orientation, colour, height, width, message):
    """Images are turned by their EXIF orientation. Boxes and masks for another size would not be at their objects."""
    data = dict(img_path=turned(tmp_path, orientation, suffix=suffix), height=height, width=width)
    load = pipeline(LoadImageFromFile(color_type=colour, imdecode_backend=backend))
    if message is None:
        assert load(data)['img'].shape == (height, width, 3)
    else:
        with pytest.raises(InputError, match=message):
            load(data)


@pytest.mark.parametrize('orientation, size, lines', [(3, (20, 10), 1), (6, (9, 9), 1), (99, (9, 9), 0)])
def test_turns_that_keep_the_size(tmp_path, log, orientation, size, lines):
    """Nobody can see whether annotations are of the turned image. The log names one image of a folder."""
    load = pipeline(LoadImageFromFile())
    for _ in range(2):
        load(dict(img_path=turned(tmp_path, orientation, size), height=size[1], width=size[0]))
    assert len(log) == lines
    assert all(f'a.jpg has EXIF orientation {orientation}, which does not change its size' in line for line in log)


def test_deep_images(tmp_path):
    """OpenCV scales 16 bits to 8. Pillow cuts them off."""
    path = str(tmp_path / 'a.png')
    Image.fromarray(np.full((10, 20), 256 * 77, np.uint16)).save(path)
    assert (pipeline(LoadImageFromFile())(dict(img_path=path))['img'] == 77).all()
    with pytest.raises(InputError, match="a.png has more than 8 bits per channel: read it with imdecode_backend='cv2'"):
        pipeline(LoadImageFromFile(imdecode_backend='pillow'))(dict(img_path=path))


class Maps(Images):
    """A dataset of MMSegmentation, for the pipeline."""

    label_map = None


@pytest.mark.parametrize(
    'labels, kind, form, message',
    [
        ([[0, 1, 255]], 'uint8', 'png', None),
        ([[0, 1, 255]], 'uint16', 'png', None),
        ([[0, 1, 255]], 'float32', 'tiff', None),
        ([[False, True, True]], 'bool', 'png', None),
        ([[0, 256, 1]], 'uint16', 'png', 'has label 256, but labels are whole numbers from 0 to 254'),
        ([[0, 1, 65535]], 'uint16', 'png', 'has label 65535'),
        ([[0, -1, 1]], 'int32', 'tiff', 'has label -1'),
        ([[0, 257, 1]], 'int32', 'tiff', 'has label 257'),
        ([[0, 1.5, 1]], 'float32', 'tiff', 'has label 1.5'),
        ([[0, 'nan', 1]], 'float32', 'tiff', 'has label nan'),
        ([[0, 1, 1]], 'uint8', 'jpeg', 'is a JPEG file, which does not keep the labels'),
        ([[0, 2, 1]], 'uint8', 'png', 'has label 2 where the dataset has 2 classes'),
        ([[0, 1], [1, 0]], 'uint8', 'png', 'is 2 x 2 and its image 1 x 3: a label map has a number per pixel'),
    ],
)
@pytest.mark.parametrize('nested', [False, True])
def test_labels(tmp_path, labels, kind, form, message, nested):
    """MMSegmentation casts labels to 8 bits, so that 256 would be learned as 0. So do those in TestTimeAug."""
    labels = np.array(labels, kind)
    Image.fromarray(labels).save(tmp_path / 'map', form)
    data = dict(img_path='a', seg_map_path=str(tmp_path / 'map'), reduce_zero_label=False, seg_fields=[])
    transform = LoadAnnotations()
    transform = (
        transforms.TestTimeAug([[transform], [lambda data: {'seg': data['gt_seg_map']}]]) if nested else transform
    )
    dataset = Maps(serialize_data=False, metainfo=dict(classes=('a', 'b')))
    load = CheckedPipeline(Compose([transform]), dataset)
    if message is None:
        loaded = load({**data, 'ori_shape': (1, 3)})
        assert np.array_equal(np.ravel(loaded['seg'] if nested else loaded['gt_seg_map']), labels.ravel())
    else:
        with pytest.raises(InputError, match=message):
            load({**data, 'ori_shape': (1, 3)})


def test_other_labels_than_255_are_ignored(tmp_path):
    """What is ignored is what the heads of the model ignore."""
    Image.fromarray(np.array([[0, 1, 254]], np.uint8)).save(tmp_path / 'map.png')
    data = dict(img_path='a', seg_map_path=str(tmp_path / 'map.png'), reduce_zero_label=False, ori_shape=(1, 3))
    dataset = Maps(serialize_data=False, metainfo=dict(classes=('a', 'b')))
    model = nn.ModuleDict(dict(decode_head=FCNHead(in_channels=1, channels=1, num_classes=2, ignore_index=254)))
    assert ignored_labels(nn.Identity()) == [255]
    load = CheckedPipeline(Compose([LoadAnnotations()]), dataset, ignored_labels(model))
    assert load({**data, 'seg_fields': []})['gt_seg_map'].tolist() == [[0, 1, 254]]
    Image.fromarray(np.array([[0, 1, 255]], np.uint8)).save(tmp_path / 'map.png')
    with pytest.raises(InputError, match='has label 255 where .* and 254 for what is ignored'):
        load({**data, 'seg_fields': []})


def test_label_maps_without_classes():
    """MMSegmentation does without them until it evaluates."""
    with pytest.raises(InputError, match='has no classes: set its metainfo.classes'):
        check_dataset(Maps(serialize_data=False), nn.Identity())


@pytest.mark.parametrize('number, refused', [(2, False), (3, True)])
def test_heads_of_other_classes(tmp_path, number, refused):
    """STDC's auxiliary head tells boundaries from the rest. The other heads have the classes of the dataset."""
    Image.new('RGB', (1, 1)).save(tmp_path / 'a.jpg')
    dataset = Images(serialize_data=False, metainfo=dict(classes='abcde'), data_prefix=dict(img_path=str(tmp_path)))
    head = (STDCHead if number == 2 else FCNHead)(in_channels=1, channels=1, num_convs=1, num_classes=number)
    dataset.data_list = [dict(img_path=str(tmp_path / 'a.jpg'))]
    if refused:
        with pytest.raises(InputError, match='has 5 classes and auxiliary_head of the model 3'):
            check_dataset(dataset, nn.ModuleDict(dict(auxiliary_head=head)))
    else:
        check_dataset(dataset, nn.ModuleDict(dict(auxiliary_head=head)))


def test_label_maps_that_are_read_in_another_way(tmp_path):
    """Greys of less than 8 bits are scaled to 255, and label maps are not turned by their EXIF orientation."""
    file = io.BytesIO()
    Image.fromarray(np.array([[True]])).save(file, 'PNG')
    check_label_map('a.png', file.getvalue(), 'pillow')
    with pytest.raises(InputError, match='a.png has fewer than 8 bits per pixel'):
        check_label_map('a.png', file.getvalue(), 'cv2')
    content = file.getvalue()
    header = content[12:24] + bytes([4]) + content[25:29]  # 4 bits instead of 1
    content = content[:12] + header + zlib.crc32(header).to_bytes(4, 'big') + content[33:]
    with pytest.raises(InputError, match='a.png has fewer than 8 bits per pixel'):
        check_label_map('a.png', content, 'pillow')
    with open(turned(tmp_path, 6, suffix='png'), 'rb') as image, pytest.raises(InputError, match='EXIF orientation 6'):
        check_label_map('a.png', image.read(), 'pillow')


def test_errors_of_other_transforms_stay(log):
    """They may be mistakes in the code. The log names the image."""

    def broken(data):
        raise RuntimeError('too small')

    with pytest.raises(RuntimeError, match='^too small$'):
        pipeline(broken)(dict(img_path='a.jpg'))
    assert log == ['function failed on a.jpg']
