"""How the pixels of a model's images are prepared."""

import re

import numpy as np
import pytest
import timm
import torch
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.registry import MODELS, DefaultScope
from torch import nn

from mmguard.checks.pixels import check_pixels, other_normalisation, pixels_of
from mmguard.errors import InputError
from tests.tools.in_process import run_tool

RGB = dict(mean=[120.0, 110.0, 100.0], std=[60.0, 50.0, 40.0])
FOUR = dict(mean=[90.0, 100.0, 110.0, 120.0], std=[40.0, 50.0, 60.0, 70.0])
#: name -> scope, channels of the images, settings of Normalize in the pipeline, if any, and of the data preprocessor
CASES = {
    'preprocessor of a segmentor': ('mmseg', 3, None, dict(RGB, bgr_to_rgb=True)),
    'preprocessor of a detector': ('mmdet', 3, None, RGB),
    'preprocessor of a classifier': ('mmpretrain', 3, None, dict(RGB, to_rgb=True)),
    'pipeline': ('mmseg', 3, RGB, {}),
    'one in the pipeline, the other in the preprocessor': ('mmseg', 3, dict(RGB, to_rgb=False), dict(bgr_to_rgb=True)),
    'both, each with its swap': ('mmdet', 3, RGB, dict(mean=[3.0, 2.0, 1.0], std=[3.0, 5.0, 7.0], bgr_to_rgb=True)),
    'four bands': ('mmseg', 4, FOUR, {}),
}
PREPROCESSORS = dict(mmseg='SegDataPreProcessor', mmdet='DetDataPreprocessor', mmpretrain='ClsDataPreprocessor')


@pytest.mark.parametrize('case', CASES)
def test_pixels_are_what_the_model_gets(case):
    """The numbers undo what the pipeline and the preprocessor do with an image."""
    scope, number, normalize, settings = CASES[case]
    steps = [dict(type='Normalize', **normalize)] if normalize else []
    cfg = Config(dict(test_dataloader=dict(dataset=dict(pipeline=[dict(type='LoadImageFromFile'), *steps]))))
    image = np.random.default_rng(0).integers(0, 256, (4, 5, number), np.uint8)
    with DefaultScope.overwrite_default_scope(scope):
        preprocessor = MODELS.build(dict(type=PREPROCESSORS[scope], **settings))
        loaded = torch.from_numpy(Compose(steps)(dict(img=image))['img']).permute(2, 0, 1)
        x = preprocessor(dict(inputs=[loaded]))['inputs'][0].permute(1, 2, 0).numpy()
    pixels = pixels_of(cfg, preprocessor)
    found = x * pixels.std + pixels.mean
    channels = pixels.channels(number)
    np.testing.assert_allclose(found[..., ::-1] if channels == 'RGB' else found, image, atol=1e-3)
    assert channels in {3: ['RGB', 'BGR'], 4: [4]}[number]
    assert len(pixels.switches) == (normalize is not None) + ('mean' in settings)


LOAD, UNCHANGED = ({'type': 'LoadImageFromFile', **more} for more in ({}, dict(color_type='unchanged')))
NORM = dict(type='Normalize', **RGB)


@pytest.mark.parametrize(
    'train, test, sentence',
    [
        ([LOAD, NORM], [dict(LOAD, color_type='color_ignore_orientation'), NORM], None),
        ([UNCHANGED], [LOAD], "color_type='unchanged' in train_dataloader, but color_type='color' in test_dataloader"),
        ([LOAD, NORM], [LOAD, dict(NORM, to_rgb=False)], 'to_rgb=True in train_dataloader, but .*to_rgb=False in test'),
        ([LOAD, dict(type='RandomApply', transforms=[NORM])], [LOAD, NORM], None),
        ([dict(type='LoadOfTheUser'), NORM], [LOAD], None),
    ],
    ids=['orientation', 'read', 'order', 'nested', 'loaded by another'],
)
def test_training_and_test_prepare_alike(train, test, sentence):
    """A model is not tested on other pixels than it has learned from."""
    parts = zip(('train_dataloader', 'test_dataloader'), (train, test))
    cfg = Config({key: dict(dataset=dict(pipeline=pipeline)) for key, pipeline in parts})
    if sentence:
        with pytest.raises(InputError, match=sentence):
            check_pixels(cfg)
    else:
        check_pixels(cfg)


@pytest.mark.parametrize(
    'settings, start, sentence',
    [
        (dict(mean=[127.5] * 3, std=[127.5] * 3, bgr_to_rgb=True), True, ''),
        (dict(RGB, bgr_to_rgb=True), True, r'test_vit expect RGB .* mean=\[127.5, .* RGB with mean=\[120.0, 110'),
        (dict(mean=[127.5] * 3, std=[127.5] * 3, bgr_to_rgb=False), True, 'gets BGR'),
        (RGB, False, ''),
    ],
    ids=['the same', 'other mean', 'other order', 'without weights'],
)
def test_normalisation_of_timms_weights(settings, start, sentence):
    """What timm notes of a model is compared with what the images get, if the training starts from weights."""
    init_cfg = dict(type='Pretrained', checkpoint='timm:test_vit') if start else None
    cfg = Config(dict(model=dict(backbone=dict(init_cfg=init_cfg)), train_dataloader=dict(dataset=dict(pipeline=[]))))
    model = nn.Module()
    with DefaultScope.overwrite_default_scope('mmdet'):
        model.data_preprocessor = MODELS.build(dict(type='DetDataPreprocessor', **settings))
    model.backbone = nn.Module()
    model.backbone.model = timm.create_model('test_vit')
    (found,) = [*other_normalisation(cfg, model)] or ['']
    assert bool(found) == bool(sentence) and re.search(sentence, found)


@pytest.mark.parametrize('tool', ['train', 'doctor'])
def test_tools_compare_pixels(tool):
    """Before anything is read or built."""
    option = 'train_dataloader.dataset.pipeline.0.color_type=grayscale'
    sentence = run_tool(tool, 'projects/lab/configs/toy/shunted-toy_fpn.py', '--cfg-options', option).sentence
    assert "color_type='grayscale' in train_dataloader, but color_type='color' in val_dataloader" in sentence
