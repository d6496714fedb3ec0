"""Mistakes in configs are refused before anything is built, and valid configs are not."""

import copy
import functools
import re
from contextlib import nullcontext
from pathlib import Path

import mmdet
import mmseg
import pytest
from mmengine.config import Config

from mmattn.backbones import ShuntedTransformer
from mmguard.checks import config_values
from mmguard.checks.config_values import check_config
from mmguard.errors import InputError
from tests import ROOT

DETECTOR = ROOT / 'projects/lab/configs/toy' / 'mask-rcnn_shunted-toy_fpn.py'
SEGMENTOR = ROOT / 'projects/lab/configs/toy' / 'shunted-toy_fpn.py'
CLASSIFIER = ROOT / 'projects/lab/configs/toy' / 'elsa-swin-toy_in1k.py'
SETR = ROOT / 'projects/lab/configs/toy' / 'msf-vit-toy_setr.py'
MASK2FORMER = ROOT / 'projects/lab/configs/toy' / 'shunted-toy_mask2former.py'
PANOPTIC = ROOT / 'configs' / 'elsa_swin' / 'mask2former_elsa-swin-t_8xb2-lsj-50e_coco-panoptic.py'
pytestmark = pytest.mark.usefixtures('any_weights')
CONFIGS = [path for path in sorted((ROOT / 'configs').rglob('*.py')) if '_base_' not in path.parts]
TOY = sorted((ROOT / 'projects/lab/configs/toy').glob('*.py'))
LOADING = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations', with_bbox=True)]
WITH_MASKS = [LOADING[0], dict(LOADING[1], with_mask=True)]
MIXUP, CUTMIX = dict(type='Mixup', alpha=0.8), dict(type='CutMix', alpha=1.0)


def mixed(loading, *pipeline):
    """The config of a dataset that mixes images of another."""
    dataset = dict(type='CocoDataset', pipeline=loading)
    return dict(_delete_=True, type='MultiImageMixDataset', dataset=dataset, pipeline=list(pipeline))


read = functools.cache(Config.fromfile)


def check(path, options={}, **how):
    """Check a config, with settings by dotted key."""
    cfg = copy.deepcopy(read(path))
    cfg.merge_from_dict(copy.deepcopy(options), **how)  # which takes _delete_ out
    check_config(cfg, path)


@pytest.mark.parametrize('path', TOY, ids=lambda path: path.stem)
def test_toy_configs_pass(path):
    """A valid config is never refused."""
    check(path)


@pytest.mark.slow
def test_all_our_configs_pass():
    """The same for all configs."""
    for path in CONFIGS:
        check(path)


#: configs of MMDetection and MMSegmentation that are refused with good reason: what is wrong in them
REFUSED = (
    'there is no model',  # parts of configs
    'the package mmpretrain is not installed',
    'has an unknown type MOTChallengeMetrics: did you mean MOTChallengeMetric',
    'val_evaluator (CocoMetric) has no argument eval_mode',
    'model.neck (FPN) has no argument force_grad_on_level',
    'train_dataloader must be set too',
)


@pytest.mark.slow
@pytest.mark.parametrize('package', [mmdet, mmseg], ids=lambda package: package.__name__)
def test_configs_of_openmmlab_pass(package):
    """Every tenth config of MMDetection and MMSegmentation passes, as far as it can be read here."""
    paths = sorted((Path(package.__file__).parent / '.mim' / 'configs').rglob('*.py'))
    paths = [path for path in paths if '_base_' not in path.parts][::10]
    passed = 0
    for path in paths:
        try:
            cfg = Config.fromfile(path)
        except Exception:  # a package or a file is missing
            continue
        try:
            check_config(cfg, path)
            passed += 1
        except InputError as error:
            assert any(reason in str(error) for reason in REFUSED), str(error)
    assert passed > 0.8 * len(paths) > 40


HOOK = dict(type='EMAHook')
NECK = Config.fromfile(DETECTOR).model.neck
PLATEAU = dict(type='ReduceOnPlateauLR', monitor='coco/segm_mAP', rule='greater')
STOPPING = dict(type='EarlyStoppingHook', monitor='coco/kite_precision', rule='greater')
BEST, LOSS, PIPELINE = 'default_hooks.checkpoint.save_best', 'model.decode_head.loss_decode', 'dataset.pipeline'


@pytest.mark.parametrize(
    'path, options',
    [
        (
            DETECTOR,
            {
                'model.backbone.type': ShuntedTransformer,
                'model.neck': [dict(NECK), dict(type='mmdet.DyHead')],
                'model.roi_head.bbox_head.loss_cls.bg_cls_weight': 0.1,  # DETR's heads take it out
                'model.roi_head.bbox_head.loss_cls.class_weight': [1.0] * 81,
                'model_small': {},  # a variable, and so is custom_hook
                'custom_hook': HOOK,
                'custom_hooks': [dict(HOOK, priority=49), STOPPING],
                'model.test_cfg.note': 1,
                'optim_wrapper.paramwise_cfg': dict(norm_decay_mult=None),
                'optim_wrapper.optimizer.fused': True,
                'optim_wrapper.clip_grad': dict(max_norm=float('inf'), _delete_=True),
                'default_hooks.timer': None,
                'default_hooks.checkpoint': dict(save_optimizer=False, by_epoch=True, interval=-1),
                BEST: ['coco/bbox_mAP_50', 'coco/segm_mAP'],
                'train_cfg': dict(by_epoch=True, max_epochs=12.0, val_interval=float('inf'), _delete_=True),
                'param_scheduler': [dict(type='MultiStepLR', milestones=[1], convert_to_iter_based=True), PLATEAU],
                'randomness.seed': None,
                'log_level': 10,
                'env_cfg.mp_cfg.mp_start_method': 'spawn',
                'train_dataloader.prefetch_factor': None,
                'train_dataloader.sampler.seed': 3,
                'train_dataloader.dataset': mixed(LOADING, dict(type='Mosaic'), dict(type='MixUp')),
                'val_evaluator': [dict(type='CocoMetric', ann_file='a'), dict(type='DumpResults')],
            },
        ),
        (
            DETECTOR,
            {
                'model.backbone.type': 'mmengine.ShuntedTransformer',
                'optim_wrapper': dict(_delete_=True, constructor='Mine', first={}, second={}),
                'train_dataloader.dataset.pipeline': [*WITH_MASKS, dict(type='CachedMosaic')],
                'val_evaluator': dict(type='LVISMetric'),
                BEST: 'lvis/accuracy',
            },
        ),
        (DETECTOR, {'model.backbone._scope_': 'mmdet'}),
        (
            SEGMENTOR,
            {
                'mode': 'slide',  # a variable
                'model.decode_head.ignore_index': None,
                f'{LOSS}.class_weight': [1.0] * 150,
                'model.test_cfg': dict(mode='slide', crop_size=(64, 64), stride=[64, 32]),
                'val_evaluator': dict(iou_metrics='mDice', prefix='mine'),
                BEST: ['mine/aAcc', 'mine/mAcc'],
            },
        ),
        (SETR, {'model.decode_head.in_index': -2, 'data_preprocessor': dict(type='SegDataPreProcessor'), BEST: 'auto'}),
        (
            CLASSIFIER,
            {
                'data_preprocessor': dict(_delete_=True, num_classes=5, batch_augments=dict(augments=MIXUP)),
                'model.train_cfg': dict(augments=[MIXUP, CUTMIX], probs=[0.5, 0.5]),
                'model.neck': None,
                'model.head': dict(type='VisionTransformerClsHead', num_classes=5),
                'train_dataloader.sampler': dict(type='RepeatAugSampler', num_repeats=3),
                'train_dataloader.dataset.pipeline': [dict(type='torchvision/RandomResizedCrop', size=3)],
                'custom_hooks': [dict(HOOK, momentum=4e-5, update_buffers=True)],
                BEST: 'accuracy/top5',
            },
        ),
    ],
    ids=['detector', 'other detector', 'scope', 'segmentor', 'transformer', 'classifier'],
)
def test_unusual_configs_pass(path, options):
    """What MMEngine takes is not refused."""
    check(path, options)


#: what is wrong -> places that must refuse it, and what they are set to
PLACES = {
    'must be a dict, not': (
        'text',
        'default_hooks model.neck model.panoptic_head optim_wrapper.optimizer optim_wrapper.paramwise_cfg '
        'optim_wrapper.clip_grad optim_wrapper.paramwise_cfg.custom_keys custom_hooks[0] param_scheduler[0] '
        'val_evaluator train_dataloader.dataset train_dataloader.dataset.pipeline[0] env_cfg.mp_cfg randomness',
    ),
    'must be a whole number': (
        2.5,
        'train_cfg.max_epochs train_cfg.val_begin default_hooks.checkpoint.interval optim_wrapper.accumulative_counts '
        'default_hooks.checkpoint.max_keep_ckpts default_hooks.logger.interval train_dataloader.num_workers '
        'train_dataloader.batch_size train_dataloader.prefetch_factor train_dataloader.sampler.seed randomness.seed '
        'log_processor.window_size auto_scale_lr.base_batch_size env_cfg.resource_limit',
    ),
    'must be True or False': ('False', 'randomness.deterministic train_dataloader.pin_memory env_cfg.cudnn_benchmark'),
    'must be a finite number': (
        'a',
        'optim_wrapper.clip_grad.max_norm train_dataloader.timeout optim_wrapper.paramwise_cfg.bias_lr_mult',
    ),
    'has an unknown type': (
        dict(type='Nothing'),
        'model.neck model.roi_head.bbox_head.loss_cls model.train_cfg.rpn.assigner train_dataloader.sampler '
        'val_dataloader.dataset train_dataloader.dataset.pipeline[0] custom_hooks[0] train_cfg val_evaluator '
        'visualizer.vis_backends[0] param_scheduler[0] optim_wrapper.optimizer tta_model',
    ),
    'has no type': (
        dict(_delete_=True, a=1),
        'model model.rpn_head.anchor_generator model.data_preprocessor model.roi_head.bbox_head.loss_cls',
    ),
    'has no argument': (
        dict(nothing=1),
        'train_dataloader optim_wrapper.clip_grad randomness env_cfg.mp_cfg val_evaluator',
    ),
}


@pytest.mark.parametrize(
    'kind, place', [(kind, place) for kind, (_, places) in PLACES.items() for place in places.split()]
)
def test_each_place_is_checked(kind, place):
    """One check is asked at many places, which the sentence names."""
    key, is_list, _ = place.partition('[')
    value = PLACES[kind][0]
    with pytest.raises(InputError) as error:
        check(DETECTOR, {key: [value] if is_list else value}, allow_list_keys=False)
    assert str(error.value).startswith(f'{DETECTOR}: {place}') and kind in str(error.value)


@pytest.mark.parametrize(
    'line, sentence',
    [
        ('modle = dict(backbone=dict(frozen_stages=1))', 'reads the key modle: did you mean model?'),
        ('train_cfgs = dict(max_epochs=1)  # train_cfgs', 'reads the key train_cfgs: did you mean train_cfg?'),
        ('train_dataloder = dict(batch_size=2)', 'reads the key train_dataloder: did you mean train_dataloader?'),
        ("optimizer = dict(type='SGD', lr=1.0)", None),
        ("optimizer = dict(type='AdamW', lr=1.0)\noptim_wrapper = dict(optimizer=optimizer)", None),
        ('models = dict(small=dict())\nsmall = models["small"]', None),
    ],
)
def test_keys_that_nothing_reads(tmp_path, monkeypatch, line, sentence):
    """A key that looks like one of MMEngine's is refused, and one of older versions is named, if no file of the config
    has it as a value."""
    warned, file = [], tmp_path / 'c.py'
    monkeypatch.setattr(config_values, 'warn', warned.append)
    file.write_text(f'_base_ = {str(DETECTOR)!r}\n{line}\n')
    with nullcontext() if sentence is None else pytest.raises(InputError, match=re.escape(f'nothing {sentence}')):
        check_config(Config.fromfile(file), file)
    assert len(warned) == (line.count('optimizer') == 1)


@pytest.mark.parametrize('line, warns', [('', True), ('train_dataloader = dict(batch_size=size)', False)])
def test_variables_that_come_too_late(tmp_path, monkeypatch, line, warns):
    """A variable that only the bases of a config have as a value is named, unless the value has reached its place."""
    warned, file = [], tmp_path / 'c.py'
    monkeypatch.setattr(config_values, 'warn', warned.append)
    (tmp_path / 'b.py').write_text(f'_base_ = {str(DETECTOR)!r}\nsize = 2\ntrain_dataloader = dict(batch_size=size)\n')
    file.write_text(f'_base_ = "b.py"\nsize = 3\n{line}\n')
    check_config(Config.fromfile(file), file)
    assert [sentence.startswith('size has no effect') for sentence in warned] == [True] * warns


ALL_1 = [1] * 4
MISTAKES = [
    # keys and types
    (DETECTOR, {'model': None}, 'there is no model'),
    (DETECTOR, {'custom_hooks': [dict(interval=1)]}, 'custom_hooks[0] has no type'),
    (DETECTOR, {'auto_scal_lr': {}}, 'nothing reads the key auto_scal_lr: did you mean auto_scale_lr'),
    (DETECTOR, {'val_cfg': None}, 'val_cfg must be set too'),
    (DETECTOR, {'sync_bn': dict(type='SyncBN')}, 'sync_bn must be "torch" or "mmcv"'),
    (DETECTOR, {'model.backbone.type': 'nowhere.ResNet'}, 'the package nowhere is not installed'),
    (DETECTOR, {'model.backbone.type': r'.*ResNet'}, 'model.backbone has an unknown type .*ResNet'),
    (DETECTOR, {'model.backbone.type': '../ResNet'}, 'model.backbone has an unknown type ../ResNet'),
    (CLASSIFIER, {'default_scope': None}, '(it has no default_scope): model has an unknown type ImageClassifier'),
    (DETECTOR, {'model.backbone.type': 'MixVisionTransformer'}, 'did you mean mmseg.MixVisionTransformer?'),
    # arguments that look misspelt, where there may be others
    (DETECTOR, {'model.rpn_head.in_chanels': 3}, 'model.rpn_head (RPNHead) has no argument in_chanels'),
    (DETECTOR, {'optim_wrapper.paramwise_cfg.norm_decay_mul': 0}, 'norm_decay_mul: did you mean norm_decay_mult'),
    (DETECTOR, {'val_dataloader.dataset.filter_cgf': 3}, 'no argument filter_cgf: did you mean filter_cfg'),
    (DETECTOR, {'env_cfg.cudnn_benchmrk': True}, 'env_cfg has no argument cudnn_benchmrk'),
    (CLASSIFIER, {'custom_hooks': [dict(HOOK, momntum=4e-5)]}, 'momntum: did you mean momentum?'),
    # channels
    (DETECTOR, {'model.backbone.arch': 'tinny'}, 'arch of ShuntedTransformer must be one of'),
    (DETECTOR, {'model.rpn_head.in_channels': 7}, 'in_channels is 7, but the neck returns maps of 64 channels'),
    (DETECTOR, {'model.neck.in_channels': [256, 128, 64, 32]}, 'set it to [32, 64, 128, 256]'),
    (SEGMENTOR, {'model.decode_head.in_channels': ALL_1}, 'the neck returns maps of [64, 64, 64, 64]'),
    (SEGMENTOR, {'model.decode_head.in_index': [0, 1, 2]}, 'has 4 in_channels, but 3 in_index'),
    (SEGMENTOR, {'model.decode_head.in_index': [0, 1, 2, 4]}, 'but the neck returns 4 maps'),
    (SETR, {'model.decode_head.in_channels': 7}, 'the backbone returns maps of 96 channels: set it to 96'),
    (MASK2FORMER, {'model.decode_head.in_channels': ALL_1}, 'the backbone returns maps of [32, 64, 128, 256]'),
    (PANOPTIC, {'model.panoptic_head.in_channels': ALL_1}, 'maps of [96, 192, 384, 768] channels'),
    (CLASSIFIER, {'model.head.in_channels': 7}, 'the neck returns maps of 256 channels: set it to 256'),
    # numbers of classes, and labels that are ignored
    (MASK2FORMER, {'model.decode_head.num_classes': 3}, 'class_weight has 151 numbers for 3 classes'),
    (PANOPTIC, {'model.panoptic_head.num_stuff_classes': 3}, 'class_weight has 134 numbers for 83 classes'),
    (SEGMENTOR, {LOSS: [dict(type='CrossEntropyLoss', class_weight=[1.0])]}, 'loss_decode[0].class_weight has 1 num'),
    (DETECTOR, {'model.roi_head.bbox_head.loss_cls.class_weight': [1.0] * 80}, 'class_weight has 80 numbers for 80'),
    (CLASSIFIER, {'model.head.loss': dict(type='CrossEntropyLoss', class_weight=[1.0])}, '1 numbers for 1000 classes'),
    (CLASSIFIER, {'model.head.num_classes': 3}, 'val_evaluator asks for the top 5 of 3 classes: set topk'),
    (SEGMENTOR, {'model.decode_head.ignore_index': 11}, 'ignore_index is 11, but val_evaluator.ignore_index is 255'),
    # data
    (DETECTOR, {'train_dataloader.num_workers': 0}, 'persistent_workers option needs num_workers > 0'),
    (
        DETECTOR,
        {f'train_dataloader.{PIPELINE}': [dict(type='RandomApply', transforms=[dict(type='Resize', x=1)])]},
        'pipeline[0].transforms[0] (Resize) has no argument x',
    ),
    (
        CLASSIFIER,
        {f'train_dataloader.{PIPELINE}': [dict(type='torchvision/RandomResizedCrop', sise=3)]},
        'pipeline[0] (torchvision/RandomResizedCrop) has no argument sise: did you mean size?',
    ),
    (
        DETECTOR,
        {'train_dataloader.dataset': dict(_delete_=True, type='RepeatDataset', dataset=dict(type='Coco'))},
        'train_dataloader.dataset.dataset has an unknown type Coco',
    ),
    (DETECTOR, {f'train_dataloader.{PIPELINE}': [*LOADING, dict(type='Mosaic')]}, 'dataset.pipeline[2] (Mosaic)'),
    (
        DETECTOR,
        {'train_dataloader.dataset': mixed(LOADING, dict(type='RandomApply', transforms=[dict(type='MixUp')]))},
        'pipeline[0].transforms[0] (MixUp) takes other images from a MultiImageMixDataset',
    ),
    (SEGMENTOR, {f'train_dataloader.{PIPELINE}': [dict(type='RandomMosaic', prob=1)]}, '(RandomMosaic) takes other'),
    (DETECTOR, {'train_dataloader.dataset': mixed(WITH_MASKS, dict(type='Mosaic'))}, 'not change masks: use CachedMo'),
    # batch augmentations
    (CLASSIFIER, {'model.train_cfg': dict(augments=[dict(MIXUP, alpha=1)])}, 'augments[0]: one of these values is'),
    (CLASSIFIER, {'model.train_cfg': dict(augment=[MIXUP])}, 'model.train_cfg has no argument augment: did you'),
    (CLASSIFIER, {'model.train_cfg': dict(augments=[MIXUP], probs=[0.5, 0.5])}, 'must have same lengths'),
    (CLASSIFIER, {'data_preprocessor.batch_augments': dict(augments=[dict(type='CutMx')])}, 'did you mean CutMix'),
    # the run
    (DETECTOR, {'train_cfg': dict(max_epochs=3, _delete_=True)}, 'train_cfg needs a type'),
    (DETECTOR, {'train_cfg.val_interval': 0}, 'val_interval must be a whole number of at least 1, not 0'),
    (DETECTOR, {'custom_hooks': HOOK}, "custom_hooks must be a list of dicts, not {'type'"),
    (DETECTOR, {'optim_wrapper.clip_grad.type': [3]}, 'clip_grad.type must be one of norm, value, not [3]'),
    (DETECTOR, {'optim_wrapper.optimizer.weight_decay': -1}, 'Invalid weight_decay value: -1'),
    (DETECTOR, {'optim_wrapper.optimizer.lr': '1e-4x'}, "optim_wrapper.optimizer.lr must be a number, not '1e-4x'"),
    (DETECTOR, {'optim_wrapper.paramwise_cfg.layer_decay_rate': 0.9}, 'layer_decay_rate: add optim_wrapper.con'),
    (DETECTOR, {'randomness.seed': 2**32}, 'randomness.seed must be a whole number from 0 to 4294967295'),
    (DETECTOR, {'log_level': 'info'}, 'log_level must be DEBUG, INFO, WARNING, ERROR, CRITICAL or a whole number, not'),
    (DETECTOR, {'env_cfg.mp_cfg.mp_start_method': 'frok'}, 'mp_start_method must be one of fork, spawn, forkserver'),
    # names of metrics, which MMEngine compares after the first validation
    (SEGMENTOR, {BEST: 'miou'}, "'miou', but no metric of val_evaluator has this name: did you mean mIoU?"),
    (SEGMENTOR, {BEST: 'mDice'}, 'this name: there are aAcc, mAcc, mIoU'),
    (SEGMENTOR, {BEST: True}, 'checkpoint: "save_best" should be a str'),
    (DETECTOR, {BEST: ['coco/bbox_mAP', 'mAP']}, "save_best[1] is 'mAP', but no metric of val_evaluator has this name"),
    (DETECTOR, {'custom_hooks': [dict(STOPPING, monitor='coco/bbox')]}, "custom_hooks[0].monitor is 'coco/bbox', but"),
    (DETECTOR, {'param_scheduler': [dict(type='ReduceOnPlateauLR')]}, "param_scheduler[0].monitor is 'loss', but"),
    (
        DETECTOR,
        {'param_scheduler': [dict(type='ReduceOnPlateauLR', monitor='coco/bbox_mAP')]},
        "param_scheduler[0] lowers the rate while coco/bbox_mAP rises: set rule='greater'",
    ),
    (CLASSIFIER, {BEST: 'top1'}, 'did you mean accuracy/top1?'),
    (PANOPTIC, {BEST: 'PQ'}, 'did you mean coco_panoptic/PQ?'),
    (
        SEGMENTOR,
        {BEST: 'mIoU', 'val_evaluator': None, 'val_cfg': None, 'val_dataloader': None},
        "save_best is 'mIoU', but there is no validation",
    ),
    (SEGMENTOR, {'test_evaluator.iou_metrics': ['miou']}, 'iou_metrics[0] must be one of mIoU, mDice, mFscore'),
    (DETECTOR, {'val_evaluator.metric_items': ['mAP50']}, 'val_evaluator.metric_items[0] must be one of mAP, mAP_'),
    (DETECTOR, {'model.roi_head.mask_head': None}, 'val_evaluator evaluates masks, but model.roi_head has no mask'),
    # values that are read in the first step or the first validation
    (SEGMENTOR, {'model.test_cfg': None}, "model.test_cfg.mode must be 'whole', or 'slide' with crop_size and"),
    (SEGMENTOR, {'model.test_cfg': dict(mode='slide', crop_size=(64, 64))}, 'model.test_cfg.stride must be height'),
    (
        SEGMENTOR,
        {'model.test_cfg': dict(mode='slide', crop_size=(64, 64), stride=(64, 65))},
        'model.test_cfg.stride (64, 65) leaves out pixels between windows of (64, 64)',
    ),
    (SEGMENTOR, {'model.data_preprocessor.test_cfg': dict(a=1)}, 'data_preprocessor.test_cfg must have either'),
    (DETECTOR, {'model.data_preprocessor.mean': [1.0] * 4}, 'mean has 4 numbers, but DetDataPreprocessor takes 1 or'),
]


@pytest.mark.parametrize('path, options, message', MISTAKES)
def test_mistakes_are_named(path, options, message):
    """The sentence has the file, the place in the config and what is known there."""
    with pytest.raises(InputError) as error:
        check(path, options)
    assert message in str(error.value) and str(error.value).startswith(str(path))


@pytest.mark.parametrize(
    'path, constructor',
    [
        (DETECTOR, 'mmdet.LearningRateDecayOptimizerConstructor'),
        (SEGMENTOR, 'LayerDecayOptimizerConstructor'),
        (SEGMENTOR, 'mmpretrain.LearningRateDecayOptimWrapperConstructor'),
    ],
)
def test_other_layer_decay(path, constructor):
    """Constructors of layer-wise decay that do not support our backbones are refused. MMPretrain's supports them in a
    classifier. Other backbones, such as ConvNeXt, are not checked."""
    with pytest.raises(
        InputError, match=f"{constructor} does not support .*='mmattn.LayerDecayOptimWrapperConstructor'"
    ):
        check(path, {'optim_wrapper.constructor': constructor})
    other = dict(_delete_=True, type='mmpretrain.ConvNeXt')
    check(path, {'optim_wrapper.constructor': constructor, 'model.backbone': other})
    check(CLASSIFIER, {'optim_wrapper.constructor': 'LearningRateDecayOptimWrapperConstructor'})


def test_lora():
    """LoRA is refused for batch norms that update their statistics, because LoRAModel does not save these; with frozen
    stages, which would freeze its matrices; if no layer has the name of a target; with numbers that train nothing."""
    module = Config.fromfile(DETECTOR).model.backbone
    lora = dict(_delete_=True, type='mmpretrain.LoRAModel', module=module, rank=4, targets=[dict(type='fc1')])
    with pytest.raises(InputError, match='model.backbone.module must have norm_eval=True'):
        check(DETECTOR, {'model.backbone': lora})
    module.norm_eval = True
    check(DETECTOR, {'model.backbone': lora})
    with pytest.raises(InputError, match='model.backbone: .*No lora layer is replaced'):
        check(DETECTOR, {'model.backbone': dict(lora, targets=[dict(type='absent')])})
    with pytest.raises(
        InputError, match=r'model.backbone: targets\[0\]: rank must be a whole number of at least 1, not 0'
    ):
        check(DETECTOR, {'model.backbone': dict(lora, rank=0)})
    module.frozen_stages = 0
    with pytest.raises(InputError, match='model.backbone.module.frozen_stages would freeze matrices of LoRA'):
        check(DETECTOR, {'model.backbone': lora})


def test_mistakes_of_ours_are_raised_as_they_are(monkeypatch):
    """Only a ValueError of a backbone's constructor is the user's mistake; another error keeps its traceback."""

    def broken(*_, **__):
        raise KeyError('ours')

    monkeypatch.setattr('mmattn.backbones.shunted.drop_path_schedule', broken)
    with pytest.raises(KeyError, match='ours'):
        check(DETECTOR)


def test_deletion_of_nothing(tmp_path):
    """MMEngine keeps _delete_ where the base has no dict, and the class would get it as an argument."""
    (tmp_path / 'a.py').write_text(
        f"_base_ = '{CLASSIFIER}'\nmodel = dict(head=dict(loss=dict(loss_weight=1.0, other=dict(_delete_=True))))"
    )
    with pytest.raises(InputError, match='model.head.loss.other has _delete_, but its base has no dict there'):
        check(tmp_path / 'a.py')
