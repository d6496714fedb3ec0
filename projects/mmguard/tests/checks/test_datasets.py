"""Data is checked before a run, before its first step and when it is read."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from mmdet.datasets import CocoDataset
from mmdet.registry import DATASETS, METRICS
from mmengine.config import Config
from mmengine.dataset import Compose, ConcatDataset, RepeatDataset
from mmengine.registry import DefaultScope
from mmengine.runner import IterBasedTrainLoop, Runner
from mmengine.runner.runner import _SlicedDataset
from mmseg.datasets import BaseSegDataset
from mmseg.datasets.transforms import LoadAnnotations
from mmseg.models import SegDataPreProcessor
from mmseg.models.decode_heads import FCNHead, STDCHead
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader

from mmguard.checks.coco import CheckedCocoDataset, CheckedCocoMetric
from mmguard.checks.datasets import (
    CheckedPipeline,
    MetricCheckHook,
    check_built_datasets,
    check_dataset,
    check_files,
    ignored_labels,
    inner_datasets,
    use_checked_datasets,
)
from mmguard.errors import InputError
from projects.mmguard.tests.checks.test_coco import COCO, changed, coco_config
from projects.mmguard.tests.checks.test_images import Images, Maps

AB = dict(classes=('a', 'b'))


def detector(split='train', **dataset):
    """The config of a detector with a dataset."""
    return Config({'default_scope': 'mmdet', 'train_dataloader': {}, f'{split}_dataloader': dict(dataset=dataset)})


def refused(message):
    """What refuses something in a sentence, or nothing for no sentence."""
    return pytest.raises(InputError, match=message) if message else nullcontext()


@pytest.mark.parametrize('kind', ['mmdet.CocoDataset', CocoDataset], ids=['name', 'class'])
def test_coco_datasets_are_checked(tmp_path, kind):
    """The datasets of a config are replaced, however deep they stand, and the registry finds the new type."""
    several = dict(
        type='ConcatDataset', datasets=[dict(type=kind, **coco_config(tmp_path)), dict(type='LVISV1Dataset')]
    )
    cfg = detector(type='RepeatDataset', times=2, dataset=several)
    use_checked_datasets(cfg)
    first, second = cfg.train_dataloader.dataset.dataset.datasets
    assert type(DATASETS.build(first)) is CheckedCocoDataset and second.type == 'LVISV1Dataset'


@pytest.mark.parametrize('several', [False, True], ids=['list', 'metrics'])
def test_coco_metrics_are_checked(tmp_path, several):
    """The metrics of a config are replaced. An annotation file that is missing is named before anything is read."""
    metric = dict(type='CocoMetric', ann_file=str(tmp_path / 'a.json'))
    metrics = [metric, dict(metric, type='CocoOccludedSeparatedMetric'), dict(metric, ann_file='https://host/a.json')]
    cfg = Config(dict(default_scope='mmdet', val_evaluator=dict(metrics=metrics) if several else metrics))
    use_checked_datasets(cfg)
    with pytest.raises(InputError, match=r'val_evaluator.*: there is no annotation file .*/a.json: set ann_file'):
        check_files(cfg, 'val')
    coco_config(tmp_path)
    check_files(cfg, 'val')
    first, second, _ = cfg.val_evaluator.metrics if several else cfg.val_evaluator
    assert type(METRICS.build(first)) is CheckedCocoMetric and second.type == 'CocoOccludedSeparatedMetric'


@pytest.mark.parametrize(
    'settings, message',
    [
        (dict(type='CocoDataset'), None),
        (dict(type='CocoDataset', ann_file='b.json'), 'there is no annotation file .*/b.json: set data_root'),
        (dict(type='CocoDataset', data_prefix=dict(img='no')), 'there is no image folder .*/no: set data_root'),
        (dict(type='CocoDataset', ann_file='b.json', backend_args=dict(backend='petrel')), None),
        (dict(type='CocoDataset', data_prefix=dict(img='s3://bucket/images')), None),
        (dict(type='mmpretrain.BaseDataset', ann_file='b.pkl'), 'ann_file b.pkl is a pickle or YAML, which'),
        (dict(type='mmpretrain.BaseDataset', ann_file='b.yaml'), 'ann_file b.yaml is a pickle or YAML, which'),
        # MMSegmentation's assertion has no text
        (
            dict(type='mmseg.PascalVOCDataset', ann_file='b.txt', data_prefix=dict(img_path='no')),
            'not find its files: set',
        ),
        (dict(type='mmseg.ADE20KDataset', ann_file='', data_prefix=dict(img_path='.')), r'\*.jpg: set .* are .json'),
        (dict(type='mmseg.ADE20KDataset', ann_file='images/none.txt'), 'none.txt lists no image'),
        (dict(type='mmseg.ADE20KDataset', metainfo=dict(classes=('cow',))), 'new classes .* is not a subset'),
        (dict(type='VOCDataset', ann_file='https://host/a.txt'), None),
        (dict(type='VOCDataset', ann_file='a.txt'), 'there is no file .*/a.txt: set data_root and ann_file'),
    ],
)
def test_files_are_there(tmp_path, settings, message):
    """Missing files are named before anything is read, of those dataloaders that the run uses."""
    (tmp_path / 'images').mkdir()
    (tmp_path / 'images' / 'none.txt').touch()
    cfg = detector('val', **{**coco_config(tmp_path), 'metainfo': None, **settings})
    check_files(cfg, 'train')
    with pytest.raises(InputError, match='the config has no test_dataloader: it has nothing to test'):
        check_files(cfg, 'test')
    with refused(message and f'val_dataloader.dataset: .*{message}'):
        check_files(cfg, 'val')


def test_inner_datasets():
    """Datasets are found below whatever wraps them, also below MMEngine's wrapper for num_batch_per_epoch."""
    a, b = Images(serialize_data=False), Images(serialize_data=False)
    for dataset, inner in ((ConcatDataset([a, b]), [a, b]), (RepeatDataset(b, 2), [b]), (a, [a])):
        assert list(inner_datasets(dataset)) == list(inner_datasets(_SlicedDataset(dataset, 1))) == inner
    assert list(inner_datasets(None)) == []


def builds_checked(model=None, **attributes):
    """A runner that checks the datasets of the dataloaders that it builds."""
    runner = SimpleNamespace(build_dataloader=Runner.build_dataloader, model=model or nn.Identity(), **attributes)
    check_built_datasets(runner)
    return runner


def loader(folder, sampler='DefaultSampler', workers=0, pipeline=(), **settings):
    dataset = dict(coco_config(folder), type=CheckedCocoDataset, pipeline=list(pipeline))
    return dict(dataset=dataset, num_workers=workers, sampler=dict(type=sampler), **{'batch_size': 1, **settings})


def test_a_runner_checks_what_it_builds(tmp_path):
    """A dataset is checked when its dataloader is built, and its images when they are read, by data workers too. A loop
    by iterations may start its workers before any hook is called."""
    runner = builds_checked(visualizer=SimpleNamespace())
    settings = loader(tmp_path, workers=1, pipeline=[dict(type='LoadImageFromFile')])
    with pytest.raises(InputError, match='names 1 files that are not there'):
        runner.build_dataloader(settings)
    (tmp_path / 'images' / 'a.jpg').write_bytes(b'no image')
    loop = IterBasedTrainLoop(runner, runner.build_dataloader(settings), max_iters=1)
    with pytest.raises(InputError, match='a.jpg cannot be used'):
        next(loop.dataloader_iterator)


def test_fewer_images_than_a_batch(tmp_path):
    """With drop_last there is no batch, and a training by epochs would end in an assertion of MMEngine."""
    coco_config(tmp_path)
    Image.new('RGB', (20, 10)).save(tmp_path / 'images' / 'a.jpg')
    runner = builds_checked()
    runner.build_dataloader(loader(tmp_path, 'InfiniteSampler', batch_size=2, drop_last=True))
    with pytest.raises(InputError, match='a dataloader has 1 images, which is less than a batch'):
        runner.build_dataloader(loader(tmp_path, batch_size=2, drop_last=True))


def test_a_model_that_is_built_later(tmp_path):
    """MMEngine's FlexibleRunner, which FSDP needs, builds its model after its dataloaders."""
    built = nn.ModuleDict(dict(bbox_head=nn.Identity()))
    built.bbox_head.num_classes = 7
    runner = builds_checked(dict(type='RetinaNet'), strategy=SimpleNamespace(build_model=lambda model: built))
    with pytest.raises(InputError, match='classes and bbox_head of the model 7'):
        runner.build_dataloader(loader(tmp_path))
    assert runner.model is built


def before_run(val_loop, model=None):
    loops = dict(_train_loop=None, _val_loop=val_loop, _test_loop=None)
    MetricCheckHook().before_run(SimpleNamespace(**loops, model=model or nn.Identity()))


def test_a_metric_per_dataset(tmp_path):
    """Each metric of MMDetection's MultiDatasetsEvaluator evaluates one of several datasets. They are compared before
    the first step."""
    datasets, metrics = [], []
    for image_id in (7, 8):
        contents = changed('images', id=image_id)
        contents['annotations'][0]['image_id'] = image_id
        (tmp_path / str(image_id)).mkdir()
        datasets.append(CheckedCocoDataset(**coco_config(tmp_path / str(image_id), contents)))
        metrics.append(CheckedCocoMetric(str(tmp_path / str(image_id) / 'a.json')))
    evaluator = SimpleNamespace(metrics=metrics, dataset_prefixes=['a', 'b'])
    loop = SimpleNamespace(dataloader=SimpleNamespace(dataset=ConcatDataset(datasets)), evaluator=evaluator)
    before_run(loop)
    metrics.reverse()
    with pytest.raises(InputError, match='is of other images than the dataset'):
        before_run(loop)
    loop.dataloader.dataset, loop.evaluator = datasets[0], SimpleNamespace(metrics=[object(), metrics[0]])
    with pytest.raises(InputError, match='is of other images than the dataset'):
        before_run(loop)


@pytest.mark.parametrize('with_seg, message', [(False, ''), (True, 'the first being .*/maps/a.png')])
def test_label_maps_that_are_read(tmp_path, log, with_seg, message):
    """Label maps are needed if the pipeline reads them. MMDetection's Mask2Former for instances names some that it does
    not read. A class of the config that nothing in the file has is named."""
    load = dict(type='LoadAnnotations', with_bbox=True, with_seg=with_seg)
    settings = dict(coco_config(tmp_path), pipeline=[dict(type='LoadImageFromFile'), load])
    settings['data_prefix'] = dict(settings['data_prefix'], seg='maps')
    Image.new('RGB', (20, 10)).save(tmp_path / 'images' / 'a.jpg')
    with refused(message):
        check_dataset(CocoDataset(**settings), nn.Identity())
        assert log[-1].endswith('a.json has no box of 1 of its 2 classes: cat')


def test_masks_that_are_read(tmp_path):
    """An annotation without a mask would end the training in the middle of an epoch."""
    contents = changed('annotations')
    del contents['annotations'][0]['segmentation']
    settings = coco_config(tmp_path, contents, pipeline=[dict(type='mmdet.LoadAnnotations', with_mask=True)])
    with pytest.raises(InputError, match='a.jpg has no segmentation, which LoadAnnotations with_mask=True needs'):
        check_dataset(CocoDataset(**settings), nn.Identity())


def head(cls, num_classes, **settings):
    loss = dict(type='mmseg.CrossEntropyLoss')
    return cls(in_channels=1, channels=1, num_convs=1, num_classes=num_classes, loss_decode=loss, **settings)


def test_other_labels_than_255_are_ignored(tmp_path):
    """What is ignored is what the heads of the model ignore."""
    data = dict(img_path='a', seg_map_path=str(tmp_path / 'map.png'), reduce_zero_label=False, ori_shape=(1, 3))
    model = nn.ModuleDict(dict(decode_head=head(FCNHead, 2, ignore_index=254)))
    assert ignored_labels(nn.Identity()) == [255]
    dataset = Maps(serialize_data=False, metainfo=AB)
    load = CheckedPipeline(Compose([LoadAnnotations()]), dataset, ignored_labels(model))
    for label, message in ((254, None), (255, 'has label 255 where .* and 254 for what is ignored')):
        Image.fromarray(np.array([[0, 1, label]], np.uint8)).save(tmp_path / 'map.png')
        with refused(message):
            assert load({**data, 'seg_fields': []})['gt_seg_map'].tolist() == [[0, 1, 254]]


@pytest.mark.parametrize(
    'classes, message', [((), 'has no classes: set its'), (('road',), 'only one class, road, .* add')]
)
def test_segmentor_of_too_few_classes(classes, message):
    """The softmax loss of one class is always 0. MMSegmentation does without classes until it evaluates."""
    with pytest.raises(InputError, match=message):
        check_dataset(Maps(serialize_data=False, metainfo=dict(classes=classes)), nn.Identity())


def preprocessor(**settings):
    kind = pytest.importorskip('mmpretrain.models').ClsDataPreprocessor
    return dict(data_preprocessor=kind(**settings))


@pytest.mark.parametrize(
    'parts, message',
    [
        (lambda: dict(auxiliary_head=head(STDCHead, 2)), None),  # of boundaries and the rest
        (lambda: dict(auxiliary_head=head(FCNHead, 3)), 'has 5 classes and auxiliary_head of the model 3'),
        (lambda: preprocessor(), None),  # without one-hot labels, as for Mixup, nobody asks
        (lambda: preprocessor(num_classes=4), 'has 5 classes and data_preprocessor of the model 4'),
        (lambda: preprocessor(to_onehot=True), 'data_preprocessor of the model has no num_classes, .* set it to 5'),
    ],
    ids=['boundaries', 'head', 'none', 'mixed', 'one-hot'],
)
def test_heads_of_other_classes(parts, message):
    """The parts of a model have the classes of the dataset."""
    dataset = Images(serialize_data=False, metainfo=dict(classes='abcde'))
    dataset.data_list = [dict(img=None)]
    with refused(message):
        check_dataset(dataset, nn.ModuleDict(parts()))


@pytest.mark.parametrize('split', ['train', 'test'])
@pytest.mark.parametrize('reads_names', [False, True])
def test_classes_in_other_orders(tmp_path, split, reads_names):
    """A file in another order fits its own classes, and the model would take one class for the other. A model that
    reads the names has no labels to mistake."""
    (tmp_path / 'other').mkdir()
    reordered = coco_config(tmp_path / 'other', {**COCO, 'categories': COCO['categories'][::-1]})
    reordered['metainfo'] = dict(classes=('dog', 'cat'))
    first, second = (
        dict(type='CocoDataset', return_classes=reads_names, **one) for one in (coco_config(tmp_path), reordered)
    )
    cfg = detector(**first)
    wrapped = dict(type='ConcatDataset', datasets=[first, second] if split == 'train' else [second])
    cfg[f'{split}_dataloader'] = dict(dataset=wrapped)
    message = rf'train_dataloader.dataset.* and {split}_dataloader.dataset.* cat is label 0 of the first and 1 of the'
    with refused('' if reads_names else message):
        check_files(cfg, 'train')


def maps_of(folder, *contents, test_mode=False):
    """A dataset of two classes with label maps."""
    dataset = Maps(serialize_data=False, metainfo=dict(classes=('ground', 'cell')), test_mode=test_mode)
    dataset.pipeline, dataset.data_list = Compose([LoadAnnotations()]), []
    for index, content in enumerate(contents):
        path = str(folder / f'{index}.png')
        Image.fromarray(np.array(content, np.uint8)).save(path)
        dataset.data_list.append(dict(img_path=path, seg_map_path=path, reduce_zero_label=False, seg_fields=[]))
    return dataset


def test_masks_of_0_and_255(tmp_path, log):
    """255 is ignored, so a model would learn one class and reach 100 % in it. Defects are in few images: a dataset is
    refused for what is in all of its maps. Colours, of 0 and 255 too, are for the check of each image to name."""
    check_dataset(maps_of(tmp_path, *[[[0, 0]]] * 110, [[0, 1]]), nn.Identity())
    check_dataset(maps_of(tmp_path, [[[0, 255, 0]] * 2, [[0, 0, 255]] * 2]), nn.Identity())
    assert not log
    message = (
        'have pixels of ground only, and of 255, which is ignored: convert masks of 0 and 255 by tools/convert_dat'
    )
    with pytest.raises(InputError, match=message):
        check_dataset(maps_of(tmp_path, [[0, 255]], [[0, 0]]), nn.Identity())
    check_dataset(maps_of(tmp_path, [[0, 255]], [[0, 0]], test_mode=True), nn.Identity())
    assert len(log) == 1 and message in log[0]


@pytest.mark.parametrize(
    'split, settings, message',
    [
        ('train', dict(pipeline=[dict(type='RandomApply', transforms=[dict(type='Albu')])]), 'Albu .* albumentations'),
        ('train', dict(type='LVISV1Dataset'), 'LVISV1Dataset needs the package lvis'),
        ('val', dict(pipeline=[dict(type='Albu')]), None),
    ],
    ids=['transform', 'dataset', 'split that is not read'],
)
def test_missing_packages(tmp_path, monkeypatch, split, settings, message):
    """A package that a transform or dataset needs is named before anything is read."""
    monkeypatch.setattr('mmguard.checks.datasets.find_spec', lambda name: None)
    plain = dict(coco_config(tmp_path), type='CocoDataset')
    cfg = detector(**plain)
    cfg[f'{split}_dataloader'] = dict(dataset={**plain, **settings})
    with refused(message and f'{message}.*, which is not installed: pip install'):
        check_files(cfg, 'train')


@pytest.mark.parametrize(
    'sizes, batch, resize, several',
    [
        ([(8, 6), (8, 6), (6, 8)], 2, dict(scale=(8, 8), keep_ratio=True), True),
        ([(8, 6), (16, 12)], 2, dict(scale_factor=1.0), True),
        ([(8, 6), (6, 8)], 2, dict(scale=(8, 8), keep_ratio=False), False),
        ([(8, 6), (6, 8)], 1, dict(scale=(8, 8), keep_ratio=True), False),
    ],
    ids=['turned', 'larger', 'stretched', 'one by one'],
)
def test_images_of_several_sizes(tmp_path, sizes, batch, resize, several):
    """MMSegmentation stops in the first validation at images of two sizes in a batch."""
    steps = [dict(type='LoadImageFromFile'), dict(type='Resize', **resize), dict(type='PackSegInputs')]
    for index, size in enumerate(sizes):
        Image.new('RGB', size).save(tmp_path / f'{index}.png')
    settings = dict(data_prefix=dict(img_path=str(tmp_path)), img_suffix='.png')
    with DefaultScope.overwrite_default_scope('mmseg'):
        dataset = BaseSegDataset(metainfo=AB, pipeline=steps, **settings)
    model = nn.ModuleDict(dict(data_preprocessor=SegDataPreProcessor(size=(8, 8))))
    message = 'has images of several sizes, such as .* x .* and .* x .*, which .*: set batch_size=1'
    with refused(several and message):
        before_run(SimpleNamespace(dataloader=DataLoader(dataset, batch_size=batch), evaluator=None), model)


def test_padding_of_a_segmentor():
    """MMSegmentation pads the images of a batch in training only, to a size or to a multiple of a number."""
    cfg = Config(dict(default_scope='mmseg', train_dataloader={}, test_dataloader={}))
    for settings, fits in ((dict(), False), (dict(size=(8, 8), size_divisor=4), False), (dict(size_divisor=4), True)):
        cfg.model = dict(data_preprocessor=dict(type='SegDataPreProcessor', **settings))
        check_files(cfg, 'test')
        with refused('' if fits else 'must have either size, as .*'):
            check_files(cfg, 'train')
