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
    other = dict(type='CocoOccludedSeparatedMetric', ann_file=metric['ann_file'])
    evaluator = several((metric, other)) if several is list else several(metric, other)
    cfg = Config(dict(default_scope='mmdet', val_evaluator=evaluator))
    use_checked_datasets(cfg)
    with pytest.raises(InputError, match=r'val_evaluator.*: there is no annotation file .*/a.json: set ann_file'):
        check_files(cfg, 'val')
    coco_config(tmp_path)
    check_files(cfg, 'val')
    on_a_server = dict(type='CocoMetric', ann_file='https://host/a.json')
    check_files(Config(dict(default_scope='mmdet', val_evaluator=on_a_server)), 'val')
    metrics = cfg.val_evaluator.get('metrics', cfg.val_evaluator) if several is not list else cfg.val_evaluator
    first, *rest = metrics if isinstance(metrics, list) else [metrics]
    assert type(METRICS.build(first)) is CheckedCocoMetric and all(one.type == other['type'] for one in rest)


@pytest.mark.parametrize(
    'settings, message',
    [
        (dict(type='CocoDataset'), None),
        (dict(type='CocoDataset', ann_file='b.json'), 'there is no annotation file .*/b.json: set data_root'),
        (dict(type='mmguard.checks.coco.CheckedCocoDataset', ann_file='b.json'), 'there is no annotation file'),
        (dict(type='CocoDataset', data_prefix=dict(img='no')), 'there is no image folder .*/no: set data_root'),
        (dict(type='CocoDataset', ann_file='b.json', backend_args=dict(backend='petrel')), None),
        (dict(type='CocoDataset', ann_file='https://host/b.json'), None),
        (dict(type='CocoDataset', data_prefix=dict(img='s3://bucket/images')), None),
        (dict(type='mmpretrain.CustomDataset', data_root='', ann_file='', data_prefix='s3://bucket/images'), None),
        (dict(type='mmpretrain.BaseDataset', ann_file='b.pkl'), 'ann_file b.pkl is a pickle or YAML, which'),
        (dict(type='CocoDataset', proposal_file='s3://b/c.YAML'), 'proposal_file s3://b/c.YAML is a pickle or YAML'),
        (dict(type='CrowdHumanDataset', ann_file='b.odgt'), 'there is no file .*/b.odgt: set data_root and ann_file'),
        (
            # MMSegmentation's assertion has no text.
            dict(type='mmseg.PascalVOCDataset', ann_file='b.txt', data_prefix=dict(img_path='no')),
            "PascalVOCDataset does not find its files: set data_root='.*', ann_file='b.txt', .*'no'",
        ),
        (dict(type='mmseg.ADE20KDataset', ann_file='', data_prefix=dict(img_path='images')), 'images has no image'),
        (
            dict(type='mmseg.ADE20KDataset', ann_file='', data_prefix=dict(img_path='.')),
            r'no image \*.jpg: set data_prefix or img_suffix, there are .json',
        ),
        (dict(type='mmseg.ADE20KDataset', ann_file='', data_prefix=dict(img_path='no')), 'there is no image folder'),
        (dict(type='mmseg.ADE20KDataset', ann_file='images/none.txt'), 'none.txt lists no image'),
        (dict(type='mmseg.ADE20KDataset', metainfo=dict(classes=('cow',))), 'new classes .* is not a subset'),
    ],
)
def test_files_are_there(tmp_path, settings, message):
    """Missing files are named before anything is read, of those dataloaders that the run uses."""
    settings = {'metainfo': None, **settings}
    (tmp_path / 'images').mkdir()
    (tmp_path / 'images' / 'none.txt').touch()
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


def test_inner_datasets():
    """Datasets are found below whatever wraps them."""
    a, b = Images(serialize_data=False), Images(serialize_data=False)
    assert list(inner_datasets(ConcatDataset([a, b]))) == [a, b] and list(inner_datasets(RepeatDataset(b, 2))) == [b]
    assert list(inner_datasets(None)) == []
    # num_batch_per_epoch
    assert list(inner_datasets(_SlicedDataset(a, 1))) == [a]
    assert list(inner_datasets(_SlicedDataset(ConcatDataset([a, b]), 1))) == [a, b]
    assert list(inner_datasets(_SlicedDataset(RepeatDataset(b, 2), 1))) == [b]


def test_fewer_images_than_a_batch(tmp_path):
    """With drop_last there is no batch, and a training by epochs would end in an assertion of MMEngine."""
    dataset = dict(coco_config(tmp_path), type=CheckedCocoDataset)
    Image.new('RGB', (20, 10)).save(tmp_path / 'images' / 'a.jpg')
    runner = SimpleNamespace(build_dataloader=Runner.build_dataloader, model=nn.Identity())
    check_built_datasets(runner)
    loader = dict(dataset=dataset, batch_size=2, num_workers=0, drop_last=True)
    runner.build_dataloader(dict(loader, sampler=dict(type='InfiniteSampler')))
    with pytest.raises(InputError, match='a dataloader has 1 images, which is less than a batch'):
        runner.build_dataloader(dict(loader, sampler=dict(type='DefaultSampler')))


@pytest.mark.parametrize('workers', [0, 1])
def test_a_runner_checks_what_it_builds(tmp_path, workers):
    """A dataset is checked when its dataloader is built, and its images when they are read, by data workers too. A loop
    by iterations may start its workers before any hook is called."""
    settings = dict(coco_config(tmp_path), type=CheckedCocoDataset, pipeline=[dict(type='LoadImageFromFile')])
    runner = SimpleNamespace(
        build_dataloader=Runner.build_dataloader, model=nn.Identity(), visualizer=SimpleNamespace()
    )
    check_built_datasets(runner)
    loader = dict(dataset=settings, batch_size=1, num_workers=workers, sampler=dict(type='DefaultSampler'))
    with pytest.raises(InputError, match='names 1 files that are not there'):
        runner.build_dataloader(loader)
    (tmp_path / 'images' / 'a.jpg').write_bytes(b'no image')
    loop = IterBasedTrainLoop(runner, runner.build_dataloader(loader), max_iters=1)
    with pytest.raises(InputError, match='a.jpg cannot be used'):
        next(loop.dataloader_iterator)


def test_a_model_that_is_built_later(tmp_path):
    """MMEngine's FlexibleRunner, which FSDP needs, builds its model after its dataloaders."""
    built = nn.ModuleDict(dict(bbox_head=nn.Identity()))
    built.bbox_head.num_classes = 7
    strategy = SimpleNamespace(build_model=lambda model: built)
    runner = SimpleNamespace(build_dataloader=Runner.build_dataloader, model=dict(type='RetinaNet'), strategy=strategy)
    check_built_datasets(runner)
    dataset = dict(coco_config(tmp_path), type=CheckedCocoDataset)
    with pytest.raises(InputError, match='classes and bbox_head of the model 7'):
        runner.build_dataloader(dict(dataset=dataset, batch_size=1, sampler=dict(type='DefaultSampler')))
    assert runner.model is built


def test_the_hook_checks_metrics(tmp_path):
    """The annotations of an evaluator are compared with the dataset before the first step."""
    dataset = CheckedCocoDataset(**coco_config(tmp_path))
    metric = CheckedCocoMetric(str(tmp_path / 'a.json'))
    loop = SimpleNamespace(
        dataloader=SimpleNamespace(dataset=dataset), evaluator=SimpleNamespace(metrics=[object(), metric])
    )
    runner = SimpleNamespace(_train_loop=None, _val_loop=loop, _test_loop=None, model=nn.Identity())
    MetricCheckHook().before_run(runner)
    metric.images = {}
    with pytest.raises(InputError, match='is of other images than the dataset'):
        MetricCheckHook().before_run(runner)


def test_a_metric_per_dataset(tmp_path):
    """Each metric of MMDetection's MultiDatasetsEvaluator evaluates one of several datasets."""
    datasets, metrics = [], []
    for image_id in (7, 8):
        contents = changed('images', id=image_id)
        contents['annotations'][0]['image_id'] = image_id
        (tmp_path / str(image_id)).mkdir()
        datasets.append(CheckedCocoDataset(**coco_config(tmp_path / str(image_id), contents)))
        metrics.append(CheckedCocoMetric(str(tmp_path / str(image_id) / 'a.json')))
    loop = SimpleNamespace(
        dataloader=SimpleNamespace(dataset=ConcatDataset(datasets)),
        evaluator=SimpleNamespace(metrics=metrics, dataset_prefixes=['a', 'b']),
    )
    runner = SimpleNamespace(_train_loop=None, _val_loop=loop, _test_loop=None, model=nn.Identity())
    MetricCheckHook().before_run(runner)
    metrics.reverse()
    with pytest.raises(InputError, match='is of other images than the dataset'):
        MetricCheckHook().before_run(runner)


@pytest.mark.parametrize('with_seg', [False, True])
def test_label_maps_that_are_read(tmp_path, with_seg):
    """Label maps are needed if the pipeline reads them. MMDetection's Mask2Former for instances names some that it does
    not read."""
    load = dict(type='LoadAnnotations', with_bbox=True, with_seg=with_seg)
    settings = dict(coco_config(tmp_path), pipeline=[dict(type='LoadImageFromFile'), load])
    settings['data_prefix'] = dict(settings['data_prefix'], seg='maps')
    Image.new('RGB', (20, 10)).save(tmp_path / 'images' / 'a.jpg')
    dataset = CocoDataset(**settings)
    with pytest.raises(InputError, match='the first being .*/maps/a.png') if with_seg else nullcontext():
        check_dataset(dataset, nn.Identity())


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
    Image.fromarray(np.array([[0, 1, 254]], np.uint8)).save(tmp_path / 'map.png')
    data = dict(img_path='a', seg_map_path=str(tmp_path / 'map.png'), reduce_zero_label=False, ori_shape=(1, 3))
    dataset = Maps(serialize_data=False, metainfo=dict(classes=('a', 'b')))
    model = nn.ModuleDict(dict(decode_head=head(FCNHead, 2, ignore_index=254)))
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


def test_segmentor_of_one_class():
    """A segmentor with one class is refused: its softmax loss is always 0, so it would learn nothing."""
    with pytest.raises(InputError, match='has only one class, road, .* add the background'):
        check_dataset(Maps(serialize_data=False, metainfo=dict(classes=('road',))), nn.Identity())


@pytest.mark.parametrize('number, refused', [(2, False), (3, True)])
def test_heads_of_other_classes(tmp_path, number, refused):
    """STDC's auxiliary head tells boundaries from the rest. The other heads have the classes of the dataset."""
    Image.new('RGB', (1, 1)).save(tmp_path / 'a.jpg')
    dataset = Images(serialize_data=False, metainfo=dict(classes='abcde'), data_prefix=dict(img_path=str(tmp_path)))
    model = nn.ModuleDict(dict(auxiliary_head=head(STDCHead if number == 2 else FCNHead, number)))
    dataset.data_list = [dict(img_path=str(tmp_path / 'a.jpg'))]
    if refused:
        with pytest.raises(InputError, match='has 5 classes and auxiliary_head of the model 3'):
            check_dataset(dataset, model)
    else:
        check_dataset(dataset, model)


@pytest.mark.parametrize(
    'numbers, message',
    [
        (dict(num_classes=5), None),
        (dict(), None),  # without one-hot labels, nobody asks
        (dict(num_classes=4), 'has 5 classes and data_preprocessor of the model 4'),
        (dict(to_onehot=True), 'data_preprocessor of the model has no num_classes, .* set it to 5'),
    ],
)
def test_classes_of_one_hot_labels(numbers, message):
    """Mixup and CutMix mix one-hot labels of data_preprocessor.num_classes."""
    data_preprocessor = pytest.importorskip('mmpretrain.models').ClsDataPreprocessor(**numbers)
    dataset = Images(serialize_data=False, metainfo=dict(classes='abcde'))
    dataset.data_list = [dict(img=None)]
    model = nn.ModuleDict(dict(data_preprocessor=data_preprocessor))
    with nullcontext() if message is None else pytest.raises(InputError, match=message):
        check_dataset(dataset, model)


def test_lists_of_other_datasets(tmp_path):
    """The list of VOC's images must exist, unless it is an address."""
    list_of = dict(type='VOCDataset', data_root=str(tmp_path), ann_file='trainval.txt')
    cfg = Config(
        dict(default_scope='mmdet', train_dataloader=dict(dataset=dict(type='ConcatDataset', datasets=[list_of])))
    )
    with pytest.raises(InputError, match=r'datasets.0.*: there is no file .*/trainval.txt: set data_root and ann_file'):
        check_files(cfg, 'train')
    for file in ('https://host/trainval.txt', str(tmp_path)):
        cfg.train_dataloader.dataset.datasets[0].ann_file = file
        check_files(cfg, 'train')


@pytest.mark.parametrize('split, wrapper', [('train', 'ConcatDataset'), ('val', None), ('test', 'RepeatDataset')])
@pytest.mark.parametrize('reads_names', [False, True])
def test_classes_in_other_orders(tmp_path, split, wrapper, reads_names):
    """A file in another order fits its own classes, and the model would take one class for the other. A model that
    reads the names has no labels to mistake."""
    categories = [dict(id=5, name='dog'), dict(id=3, name='cat')]
    first, second = (dict(type='CocoDataset', return_classes=reads_names) for _ in range(2))
    first.update(coco_config(tmp_path))
    (tmp_path / 'other').mkdir()
    second.update(coco_config(tmp_path / 'other', {**COCO, 'categories': categories}))
    second['metainfo'] = dict(classes=('dog', 'cat'))
    cfg = Config(dict(default_scope='mmdet', train_dataloader=dict(dataset=first)))
    if wrapper == 'ConcatDataset':
        cfg.train_dataloader.dataset = dict(type=wrapper, datasets=[first, second])
    else:
        wrapped = dict(type=wrapper, times=2, dataset=second) if wrapper else second
        cfg[f'{split}_dataloader'] = dict(dataset=wrapped)
    message = rf'train_dataloader.dataset.* and {split}_dataloader.dataset.* cat is label 0 of the first and 1 of the'
    with nullcontext() if reads_names else pytest.raises(InputError, match=message):
        check_files(cfg, 'train')


def maps_of(folder, *contents, test_mode=False):
    """A dataset of two classes with label maps of one row."""
    dataset = Maps(serialize_data=False, metainfo=dict(classes=('ground', 'cell')), test_mode=test_mode)
    dataset.pipeline = Compose([LoadAnnotations()])
    dataset.data_list = []
    for index, content in enumerate(contents):
        path = folder / f'{index}.png'
        Image.fromarray(np.array([content], np.uint8)).save(path)
        dataset.data_list.append(
            dict(img_path=str(path), seg_map_path=str(path), reduce_zero_label=False, seg_fields=[])
        )
    return dataset


def test_maps_of_colours_are_named_as_such(tmp_path, log):
    """Their values may be 0 and 255, too. The check of each image says that they are colours."""
    dataset = maps_of(tmp_path, [0, 0])
    Image.fromarray(np.array([[[0, 255, 0]] * 2, [[0, 0, 255]] * 2], np.uint8)).save(tmp_path / '0.png')
    check_dataset(dataset, nn.Identity())
    assert not log


@pytest.mark.parametrize('test_mode', [False, True])
def test_masks_of_0_and_255(tmp_path, log, test_mode):
    """255 is ignored, so a model would learn one class and reach 100 % in it."""
    dataset = maps_of(tmp_path, [0, 255], [0, 0], test_mode=test_mode)
    message = (
        'have pixels of ground only, and of 255, which is ignored: convert masks of 0 and 255 by tools/convert_data'
    )
    if test_mode:
        check_dataset(dataset, nn.Identity())
        assert len(log) == 1 and message in log[0]
    else:
        with pytest.raises(InputError, match=message):
            check_dataset(dataset, nn.Identity())


def test_most_maps_of_one_class(tmp_path, log):
    """Defects are in few images: a dataset is refused for what is in all of its maps."""
    check_dataset(maps_of(tmp_path, *[[0, 0]] * 150, [0, 1]), nn.Identity())
    assert not log


def test_classes_without_a_box(tmp_path, log):
    """A class of the config that nothing in the file has is not learned."""
    settings = coco_config(tmp_path)
    Image.new('RGB', (20, 10)).save(tmp_path / 'images' / 'a.jpg')
    check_dataset(CocoDataset(**settings), nn.Identity())
    assert log[-1].endswith('a.json has no box of 1 of its 2 classes: cat')


@pytest.mark.parametrize(
    'split, settings, message',
    [
        ('train', dict(pipeline=[dict(type='RandomApply', transforms=[dict(type='Albu')])]), 'Albu .* albumentations'),
        ('train', dict(pipeline=[dict(type='InstaBoost')]), 'InstaBoost needs the package instaboostfast'),
        ('train', dict(type='LVISV1Dataset'), 'LVISV1Dataset needs the package lvis'),
        ('val', dict(pipeline=[dict(type='Albu')]), None),
    ],
    ids=['in a transform', 'transform', 'dataset', 'split that is not read'],
)
def test_missing_packages(tmp_path, monkeypatch, split, settings, message):
    """A package that a transform or dataset needs is named before anything is read."""
    monkeypatch.setattr('mmguard.checks.datasets.find_spec', lambda name: None)
    plain = dict(coco_config(tmp_path), type='CocoDataset')
    cfg = Config(dict(default_scope='mmdet', train_dataloader=dict(dataset=plain)))
    cfg[f'{split}_dataloader'] = dict(dataset={**plain, **settings})
    (tmp_path / 'images').mkdir(exist_ok=True)
    if message is None:
        check_files(cfg, 'train')
    else:
        with pytest.raises(InputError, match=f'{message}.*, which is not installed: pip install'):
            check_files(cfg, 'train')


@pytest.mark.parametrize(
    'sizes, batch, resize, refused',
    [
        ([(8, 6), (8, 6)], 2, dict(scale=(8, 8), keep_ratio=True), False),
        ([(8, 6), (8, 6), (6, 8)], 2, dict(scale=(8, 8), keep_ratio=True), True),
        ([(8, 6), (16, 12)], 2, dict(scale_factor=1.0), True),
        ([(8, 6), (16, 12)], 2, dict(scale=(8, 8), keep_ratio=True), False),
        ([(8, 6), (6, 8)], 2, dict(scale=(8, 8), keep_ratio=False), False),
        ([(8, 6), (6, 8)], 1, dict(scale=(8, 8), keep_ratio=True), False),
    ],
    ids=['same', 'turned', 'larger', 'larger, resized', 'stretched', 'one by one'],
)
def test_images_of_several_sizes(tmp_path, sizes, batch, resize, refused):
    """MMSegmentation stops in the first validation at images of two sizes in a batch."""
    steps = [dict(type='LoadImageFromFile'), dict(type='Resize', **resize), dict(type='PackSegInputs')]
    for index, size in enumerate(sizes):
        Image.new('RGB', size).save(tmp_path / f'{index}.png')
    settings = dict(data_prefix=dict(img_path=str(tmp_path)), img_suffix='.png')
    with DefaultScope.overwrite_default_scope('mmseg'):
        dataset = BaseSegDataset(metainfo=dict(classes=('a', 'b')), pipeline=steps, **settings)
    model = nn.ModuleDict(dict(data_preprocessor=SegDataPreProcessor(size=(8, 8))))
    message = 'has images of several sizes, such as .* x .* and .* x .*, which .*: set batch_size=1'
    with pytest.raises(InputError, match=message) if refused else nullcontext():
        loop = SimpleNamespace(dataloader=DataLoader(dataset, batch_size=batch), evaluator=None)
        loops = dict(_train_loop=None, _val_loop=loop, _test_loop=None)
        MetricCheckHook().before_run(SimpleNamespace(**loops, model=model))


def test_padding_of_a_segmentor(tmp_path):
    """MMSegmentation pads the images of a batch in training only, to a size or to a multiple of a number."""
    cfg = Config(dict(default_scope='mmseg', train_dataloader={}, test_dataloader={}))
    for settings, refused in ((dict(), True), (dict(size=(8, 8), size_divisor=4), True), (dict(size_divisor=4), False)):
        cfg.model = dict(data_preprocessor=dict(type='SegDataPreProcessor', **settings))
        check_files(cfg, 'test')
        with pytest.raises(InputError, match='must have either size, as .*') if refused else nullcontext():
            check_files(cfg, 'train')
