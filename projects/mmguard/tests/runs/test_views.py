"""Pipelines of views for test-time augmentation."""

import numpy as np
import pytest
from mmengine.dataset import Compose
from mmengine.registry import DefaultScope

from mmguard.runs.views import pipeline_size, views_pipeline

LOAD, LABELS, PACK = dict(type='LoadImageFromFile'), dict(type='LoadAnnotations'), dict(type='PackDetInputs')


def scales(pipeline):
    return [step['scale'] for step in pipeline[1]['transforms'][0]]


def resized(*scale):
    return [LOAD, dict(type='Resize', scale=scale, keep_ratio=True), LABELS, PACK]


def test_sizes_follow_the_test_size():
    """COCO's limit of long sides stays in COCO's protocol. At every other test size, both sides change."""
    coco = dict(factors=(0.75, 1.0, 1.25), long_side=1333)
    assert scales(views_pipeline(resized(1333, 800), **coco)) == [(1333, 600), (1333, 800), (1333, 1000)]
    assert scales(views_pipeline(resized(128, 128), **coco)) == [(96, 96), (128, 128), (160, 160)]
    assert scales(views_pipeline(resized(667, 400), **coco)) == [(500, 300), (667, 400), (834, 500)]


def test_steps_are_those_of_the_test():
    """Images are loaded and resized as in the test. Each view comes flipped too, and annotations after the flip."""
    load = dict(LOAD, color_type='unchanged')
    resize = dict(type='mmdet.Resize', scale=64, keep_ratio=False, backend='pillow')
    pack = dict(PACK, meta_keys=('img_id',))
    first, views = views_pipeline([load, resize, LABELS, pack], (0.5, 2))
    sizes, flips, labels, packs = views['transforms']
    assert first == load and sizes == [dict(resize, scale=32), dict(resize, scale=128)]
    assert [step['prob'] for step in flips] == [0, 1] and labels == [LABELS]
    assert packs == [dict(pack, meta_keys=('img_id', 'flip', 'flip_direction'))]
    assert views_pipeline([load, resize, pack])[:2] == [load, resize]  # one size, which is the test's


def test_all_sizes_of_a_test_have_one_factor():
    """An image is resized and padded together; there are two sizes and not four."""
    pad = dict(type='Pad', size=(640, 640))
    first, views = views_pipeline([LOAD, dict(type='Resize', scale=(640, 640)), pad, LABELS, PACK], (0.5, 1))
    sizes = [[step.get('scale', step.get('size')) for step in one['transforms']] for one in views['transforms'][0]]
    assert sizes == [[(320, 320)] * 2, [(640, 640)] * 2]


def test_a_test_without_a_resize():
    """Factors are of the image's own size."""
    pipeline = views_pipeline([dict(type='PackSegInputs')], (0.5, 1.0))
    data = dict(img=np.zeros((40, 60, 3), np.uint8), img_shape=(40, 60), ori_shape=(40, 60))
    with DefaultScope.overwrite_default_scope('mmseg'):
        views = Compose(pipeline)(data)
    assert [tuple(view.shape[1:]) for view in views['inputs']] == [(20, 30)] * 2 + [(40, 60)] * 2
    assert [sample.flip for sample in views['data_samples']] == [False, True] * 2


@pytest.mark.parametrize(
    'steps, size',
    [
        ([dict(type='ResizeEdge', scale=256), dict(type='CenterCrop', crop_size=224)], (224, 224)),
        ([dict(type='mmdet.FixShapeResize', width=64, height=32), dict(type='Pad', size_divisor=32)], (64, 32)),
        ([dict(type='Resize', scale_factor=0.5)], None),
    ],
    ids=['crop', 'fixed', 'factor'],
)
def test_size_of_a_pipeline(steps, size):
    """The last step that has one decides."""
    assert pipeline_size([LOAD, *steps, PACK]) == size
