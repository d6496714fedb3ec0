"""Mistakes in configs are refused before anything is built, and valid configs are not."""

from pathlib import Path

import mmdet
import mmseg
import pytest
from mmengine.config import Config

from mmattn.backbones import ShuntedTransformer
from mmguard.checks.config_values import check_config
from mmguard.errors import InputError
from tests import ROOT

DETECTOR = ROOT / 'projects/lab/configs/toy' / 'mask-rcnn_shunted-toy_fpn.py'
SEGMENTOR = ROOT / 'projects/lab/configs/toy' / 'shunted-toy_fpn.py'
CLASSIFIER = ROOT / 'projects/lab/configs/toy' / 'elsa-swin-toy_in1k.py'
SETR = ROOT / 'projects/lab/configs/toy' / 'msf-vit-toy_setr.py'
DINO = ROOT / 'projects/lab/configs/toy' / 'dino_elsa-swin-toy.py'
MASK2FORMER = ROOT / 'projects/lab/configs/toy' / 'shunted-toy_mask2former.py'
PANOPTIC = ROOT / 'configs' / 'elsa_swin' / 'mask2former_elsa-swin-t_8xb2-lsj-50e_coco-panoptic.py'
CONFIGS = [path for path in sorted((ROOT / 'configs').rglob('*.py')) if '_base_' not in path.parts]
TOY = sorted((ROOT / 'projects/lab/configs/toy').glob('*.py'))
LOADING = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations', with_bbox=True)]
WITH_MASKS = [LOADING[0], dict(LOADING[1], with_mask=True)]
MIXUP, CUTMIX = dict(type='Mixup', alpha=0.8), dict(type='CutMix', alpha=1.0)


def mixed(loading, *pipeline):
    """The config of a dataset that mixes images of another."""
    dataset = dict(type='CocoDataset', pipeline=loading)
    return dict(_delete_=True, type='MultiImageMixDataset', dataset=dataset, pipeline=list(pipeline))


def check(path, **options):
    """Check a config; '__' in the name of an option stands for '.'."""
    cfg = Config.fromfile(path)
    cfg.merge_from_dict({key.replace('__', '.'): value for key, value in options.items()})
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


@pytest.mark.parametrize(
    'path, options',
    [
        (DETECTOR, dict(model__backbone__type=ShuntedTransformer)),
        (DETECTOR, dict(model__backbone__type='mmengine.ShuntedTransformer')),
        (DETECTOR, dict(model__backbone___scope_='mmdet')),
        (DETECTOR, dict(model__roi_head__bbox_head__loss_cls__bg_cls_weight=0.1)),  # DETR's heads take it out
        (DETECTOR, dict(model_small=dict(), model__test_cfg__note=1)),
        # variables
        (SEGMENTOR, dict(mode='slide')),
        (DETECTOR, dict(custom_hook=dict(type='EMAHook'), custom_hooks=[dict(type='EMAHook')])),
        (DETECTOR, dict(custom_hook=dict(type='EMAHook'), custom_hooks=[dict(type='EMAHook', priority=49)])),
        (DETECTOR, dict(optim_wrapper__paramwise_cfg=dict(norm_decay_mult=None))),
        (DETECTOR, dict(default_hooks__timer=None, custom_hooks=[dict(type='EMAHook', priority=49)])),
        (DETECTOR, dict(default_hooks__checkpoint__save_optimizer=False, default_hooks__checkpoint__by_epoch=True)),
        (DETECTOR, dict(train_cfg=dict(by_epoch=True, max_epochs=1, _delete_=True))),
        (DETECTOR, dict(train_cfg__max_epochs=12.0, train_cfg__val_interval=float('inf'))),
        (DETECTOR, dict(default_hooks__checkpoint__interval=-1)),
        (DETECTOR, dict(randomness__seed=None, log_level=10, env_cfg__mp_cfg__mp_start_method='spawn')),
        (DETECTOR, dict(train_dataloader__prefetch_factor=None, train_dataloader__sampler__seed=3)),
        (CLASSIFIER, dict(data_preprocessor=dict(_delete_=True, num_classes=5))),
        (DETECTOR, dict(param_scheduler=[dict(type='MultiStepLR', milestones=[1], convert_to_iter_based=True)])),
        (DETECTOR, dict(optim_wrapper=dict(_delete_=True, constructor='Mine', first=dict(), second=dict()))),
        (DETECTOR, dict(optim_wrapper__optimizer__fused=True)),
        (DETECTOR, dict(optim_wrapper__clip_grad=dict(max_norm=float('inf'), _delete_=True))),
        (DETECTOR, dict(optim_wrapper__clip_grad=dict(type='value', clip_value=0.1, _delete_=True))),
        (DETECTOR, dict(val_evaluator=[dict(type='CocoMetric', ann_file='a'), dict(type='DumpResults')])),
        (DETECTOR, dict(model__neck=[dict(Config.fromfile(DETECTOR).model.neck), dict(type='mmdet.DyHead')])),
        (SEGMENTOR, dict(model__decode_head__ignore_index=None)),
        (SETR, dict(model__decode_head__in_index=-2)),
        (SETR, dict(data_preprocessor=dict(type='SegDataPreProcessor'))),
        (CLASSIFIER, dict(model__train_cfg=dict(augments=[MIXUP, CUTMIX], probs=[0.5, 0.5]))),
        (CLASSIFIER, dict(data_preprocessor__batch_augments=dict(augments=MIXUP))),
        (CLASSIFIER, dict(train_dataloader__sampler=dict(type='RepeatAugSampler', num_repeats=3))),
        (CLASSIFIER, dict(custom_hooks=[dict(type='EMAHook', momentum=4e-5, update_buffers=True)])),
        (CLASSIFIER, dict(train_dataloader__dataset__pipeline=[dict(type='torchvision/RandomResizedCrop', size=3)])),
        (CLASSIFIER, dict(model__neck=None, model__head__type='VisionTransformerClsHead')),
        (CLASSIFIER, dict(model__head__num_classes=5)),
        # names of metrics
        (SEGMENTOR, dict(default_hooks__checkpoint__save_best='auto')),
        (SEGMENTOR, dict(default_hooks__checkpoint__save_best=['aAcc', 'mAcc'], val_evaluator__iou_metrics='mDice')),
        (SEGMENTOR, dict(default_hooks__checkpoint__save_best='of_mine/mIoU', val_evaluator__prefix='of_mine')),
        (DETECTOR, dict(default_hooks__checkpoint__save_best=['coco/bbox_mAP_50', 'coco/segm_mAP'])),
        (DETECTOR, dict(custom_hooks=[dict(type='EarlyStoppingHook', monitor='coco/kite_precision', rule='greater')])),
        (DETECTOR, dict(param_scheduler=[dict(type='ReduceOnPlateauLR', monitor='coco/segm_mAP', rule='greater')])),
        (CLASSIFIER, dict(default_hooks__checkpoint__save_best='accuracy/top5')),
        (DETECTOR, dict(val_evaluator=dict(type='LVISMetric'), default_hooks__checkpoint__save_best='lvis/accuracy')),
        # values that are read late
        (SEGMENTOR, dict(model__test_cfg=dict(mode='slide', crop_size=(64, 64), stride=[64, 32]))),
        (SEGMENTOR, dict(model__decode_head__loss_decode__class_weight=[1.0] * 150)),
        (DETECTOR, dict(model__roi_head__bbox_head__loss_cls__class_weight=[1.0] * 81)),
        (DETECTOR, dict(train_dataloader__dataset=mixed(LOADING, dict(type='Mosaic'), dict(type='MixUp')))),
        (DETECTOR, dict(train_dataloader__dataset__pipeline=[*WITH_MASKS, dict(type='CachedMosaic')])),
    ],
)
def test_unusual_configs_pass(path, options):
    """What MMEngine takes is not refused."""
    check(path, **options)


@pytest.mark.parametrize(
    'path, options, message',
    [
        (DETECTOR, dict(model=None), 'there is no model'),
        (DETECTOR, dict(model__type=None), 'model has no type'),
        (DETECTOR, dict(model__type='MaskRCN'), 'model has an unknown type MaskRCN: did you mean MaskRCNN'),
        (
            DETECTOR,
            dict(model__neck__type='mmdet.FPM'),
            'model.neck has an unknown type mmdet.FPM: did you mean RFP or FPN',
        ),
        (DETECTOR, dict(model__backbone__type='nowhere.ResNet'), 'the package nowhere is not installed'),
        (DETECTOR, dict(model__backbone__type=3), 'model.backbone has an unknown type 3'),
        (DETECTOR, dict(model__backbone__type=r'.*ResNet'), 'model.backbone has an unknown type .*ResNet'),
        (SEGMENTOR, dict(model__auxiliary_head=dict(num_classes=3)), 'model.auxiliary_head has no type, and inh'),
        (DETECTOR, dict(model__backbone__arch='tinny'), 'arch of ShuntedTransformer must be one of'),
        (DETECTOR, dict(model__rpn_head__in_chanels=3), 'model.rpn_head (RPNHead) has no argument in_chanels'),
        (DETECTOR, dict(model__roi_head__bbox_head__num_clases=3), 'has no argument num_clases: did you mean'),
        (DETECTOR, dict(model__roi_head__bbox_head__loss_cls__type='CrossEntrpyLoss'), 'did you mean CrossEntropyLoss'),
        (DETECTOR, dict(model__data_preprocessor__pad_size_divsor=3), 'no argument pad_size_divsor: did you mean'),
        (DETECTOR, dict(model__train_cfg__rpn__assigner__type='MaxIoUAssiner'), 'did you mean MaxIoUAssigner'),
        (DETECTOR, dict(model__train_cfg__rpn__assigner__pos_iou_th=3), 'pos_iou_th: did you mean pos_iou_thr'),
        (DETECTOR, dict(model__rpn_head__in_channels=7), 'in_channels is 7, but the neck returns maps of 64 channels'),
        (DETECTOR, dict(model__neck__in_channels=[32, 64, 128]), 'the backbone returns maps of [32, 64, 128, 256]'),
        (DETECTOR, dict(model__neck__in_channels=[256, 128, 64, 32]), 'set it to [32, 64, 128, 256]'),
        (SEGMENTOR, dict(model__decode_head__in_channels=[1] * 4), 'the neck returns maps of [64, 64, 64, 64]'),
        (SEGMENTOR, dict(model__decode_head__in_index=[0, 1, 2]), 'has 4 in_channels, but 3 in_index'),
        (SEGMENTOR, dict(model__decode_head__in_index=[0, 1, 2, 4]), 'but the neck returns 4 maps'),
        (
            SEGMENTOR,
            dict(model__decode_head__ignore_index=11),
            'model.decode_head.ignore_index is 11, but val_evaluator.ignore_index is 255: set both to the label',
        ),
        (SETR, dict(model__decode_head__in_channels=7), 'the backbone returns maps of 96 channels: set it to 96'),
        (DINO, dict(model__neck__in_channels=[1, 2, 3]), 'the backbone returns maps of [64, 128, 256] channels'),
        (
            MASK2FORMER,
            dict(model__decode_head__in_channels=[1] * 4),
            'model.decode_head.in_channels is [1, 1, 1, 1], but the backbone returns maps of [32, 64, 128, 256]',
        ),
        (MASK2FORMER, dict(model__decode_head__num_classes=3), 'class_weight has 151 numbers for 3 classes'),
        (PANOPTIC, dict(model__panoptic_head__in_channels=[1] * 4), 'maps of [96, 192, 384, 768] channels'),
        (PANOPTIC, dict(model__panoptic_head__num_stuff_classes=3), 'class_weight has 134 numbers for 83 classes'),
        (DETECTOR, dict(train_dataloader__batchsize=3), 'has no argument batchsize: did you mean batch_size'),
        (DETECTOR, dict(train_dataloader__num_workers=0), 'persistent_workers option needs num_workers > 0'),
        (DETECTOR, dict(train_dataloader__sampler__type='DefaltSampler'), 'did you mean DefaultSampler'),
        (DETECTOR, dict(val_dataloader__dataset__type='CocoDatset'), 'did you mean CocoDataset'),
        (DETECTOR, dict(val_dataloader__dataset__filter_cgf=3), 'has no argument filter_cgf: did you mean filter_cfg'),
        (DETECTOR, dict(train_dataloader__dataset__pipeline=[dict(type='Resise')]), 'pipeline[0] has an unknown type'),
        (
            DETECTOR,
            dict(train_dataloader__dataset__pipeline=[dict(type='RandomApply', transforms=[dict(type='Resize', x=1)])]),
            'pipeline[0].transforms[0] (Resize) has no argument x',
        ),
        (
            DETECTOR,
            dict(train_dataloader__dataset=dict(_delete_=True, type='RepeatDataset', dataset=dict(type='Coco'))),
            'train_dataloader.dataset.dataset has an unknown type Coco',
        ),
        (DETECTOR, dict(val_evaluator__metrc='bbox'), 'val_evaluator (CocoMetric) has no argument metrc'),
        (DETECTOR, dict(val_cfg=None), 'val_cfg must be set too'),
        (DETECTOR, dict(train_cfg=dict(max_epochs=3, _delete_=True)), 'train_cfg needs a type'),
        (DETECTOR, dict(train_cfg__max_epochs='12'), "max_epochs must be a whole number of at least 1, not '12'"),
        (DETECTOR, dict(train_cfg__val_interval=0), 'val_interval must be a whole number of at least 1, not 0'),
        (DETECTOR, dict(default_hooks__checkpoint__interval=0), 'checkpoint.interval must be a whole number'),
        (DETECTOR, dict(default_hooks__checkpoint__max_keep_ckpts=1.5), 'max_keep_ckpts must be a whole number'),
        (DETECTOR, dict(optim_wrapper__paramwise_cfg='a'), "optim_wrapper.paramwise_cfg must be a dict, not 'a'"),
        (DETECTOR, dict(optim_wrapper__optimizer='SGD'), "optim_wrapper.optimizer must be a dict, not 'SGD'"),
        (DETECTOR, dict(default_hooks=[1]), 'default_hooks must be a dict, not [1]'),
        (DETECTOR, dict(custom_hooks=['EMAHook']), "custom_hooks[0] must be a dict, not 'EMAHook'"),
        (DETECTOR, dict(model__neck='FPN'), "model.neck must be a dict, not 'FPN'"),
        (DETECTOR, dict(optim_wrapper__clip_grad=3), 'optim_wrapper.clip_grad must be a dict, not 3'),
        (DETECTOR, dict(optim_wrapper__clip_grad__max_norm='a'), 'clip_grad.max_norm must be a finite number of at le'),
        (DETECTOR, dict(optim_wrapper__clip_grad__norm_type='a'), 'optim_wrapper.clip_grad: '),
        (DETECTOR, dict(optim_wrapper__clip_grad__norm=3), 'optim_wrapper.clip_grad has no argument norm: did you'),
        (DETECTOR, dict(optim_wrapper__clip_grad__type=[3]), 'clip_grad.type must be one of norm, value, not [3]'),
        (
            DETECTOR,
            dict(optim_wrapper__accumulative_counts=0),
            'optim_wrapper.accumulative_counts must be a whole number',
        ),
        (DETECTOR, dict(optim_wrapper__paramwise_cfg=dict(custom_keys='a')), "custom_keys must be a dict, not 'a'"),
        (
            DETECTOR,
            dict(optim_wrapper__paramwise_cfg=dict(bias_lr_mult=float('nan'))),
            'bias_lr_mult must be a finite number, not nan',
        ),
        (DETECTOR, dict(param_scheduler=[3]), 'param_scheduler[0] must be a dict, not 3'),
        (DETECTOR, dict(val_evaluator='CocoMetric'), "val_evaluator must be a dict, not 'CocoMetric'"),
        (DETECTOR, dict(train_dataloader__dataset='Coco'), "train_dataloader.dataset must be a dict, not 'Coco'"),
        (DETECTOR, dict(train_dataloader__dataset__pipeline=['Resize']), "pipeline[0] must be a dict, not 'Resize'"),
        (DETECTOR, dict(train_cfg__type='EpochBasedLoop'), 'did you mean EpochBasedTrainLoop'),
        (DETECTOR, dict(default_hooks__mine=dict(interval=1)), 'default_hooks.mine has no type'),
        (DETECTOR, dict(custom_hooks=[dict(type='EMAHok')]), 'custom_hooks[0] has an unknown type EMAHok'),
        (DETECTOR, dict(param_scheduler=[dict(type='LinearLR', start_facter=3)]), 'did you mean start_factor'),
        (DETECTOR, dict(optim_wrapper__clip_grd=3), 'optim_wrapper (OptimWrapper) has no argument clip_grd'),
        (DETECTOR, dict(optim_wrapper__optimizer__weight_decay=-1), 'Invalid weight_decay value: -1'),
        (DETECTOR, dict(visualizer__vis_backends=[dict(type='LocalVis')]), 'did you mean LocalVisBackend'),
        (DETECTOR, dict(log_processor__windowsize=3), 'has no argument windowsize: did you mean window_size'),
        (CLASSIFIER, dict(model__head__in_channels=7), 'the neck returns maps of 256 channels: set it to 256'),
        (CLASSIFIER, dict(model__neck=None, model__head__in_channels=7), 'the backbone returns maps of 256 channels'),
        (CLASSIFIER, dict(model__head__loss=dict(type='LabelSmothLoss')), 'did you mean LabelSmoothLoss'),
        (
            CLASSIFIER,
            dict(model__train_cfg=dict(augments=dict(type='Mixpu'))),
            'train_cfg.augments has an unknown type',
        ),
        (
            CLASSIFIER,
            dict(model__train_cfg=dict(augments=[dict(MIXUP, alpha=1)])),
            'augments[0]: one of these values is',
        ),
        (CLASSIFIER, dict(model__train_cfg=dict(augments=[dict(MIXUP, alfa=1)])), '(Mixup) has no argument alfa'),
        (CLASSIFIER, dict(model__train_cfg=dict(augment=[MIXUP])), 'model.train_cfg has no argument augment: did you'),
        (CLASSIFIER, dict(model__train_cfg=dict(augments=[MIXUP], probs=[0.5, 0.5])), 'must have same lengths'),
        (
            CLASSIFIER,
            dict(data_preprocessor__batch_augments=dict(augments=[dict(type='CutMx')])),
            'did you mean CutMix',
        ),
        (CLASSIFIER, dict(custom_hooks=[dict(type='EMAHook', momntum=4e-5)]), 'momntum: did you mean momentum?'),
        (CLASSIFIER, dict(tta_model__type='AverageClsScorTTA'), 'did you mean AverageClsScoreTTA'),
        (CLASSIFIER, dict(model__head__num_classes=3), 'val_evaluator asks for the top 5 of 3 classes: set topk'),
        (CLASSIFIER, dict(default_scope=None), '(it has no default_scope): model has an unknown type ImageClassifier'),
        (
            CLASSIFIER,
            dict(train_dataloader__dataset__pipeline=[dict(type='torchvision/RandomResizedCrop', sise=3)]),
            'pipeline[0] (torchvision/RandomResizedCrop) has no argument sise: did you mean size?',
        ),
        (DETECTOR, dict(randomness__seed=-1), 'randomness.seed must be a whole number from 0 to 4294967295, not -1'),
        (DETECTOR, dict(randomness__seed=2**32), 'randomness.seed must be a whole number from 0 to 4294967295'),
        (
            DETECTOR,
            dict(randomness__seed='3a'),
            "randomness.seed must be a whole number from 0 to 4294967295, not '3a'",
        ),
        (DETECTOR, dict(randomness__deterministic='False'), "deterministic must be True or False, not 'False'"),
        (DETECTOR, dict(randomness=dict(sed=3)), 'randomness has no argument sed: did you mean seed?'),
        (DETECTOR, dict(train_dataloader__sampler__seed=-1), 'train_dataloader.sampler.seed must be a whole number'),
        (
            DETECTOR,
            dict(train_dataloader__num_workers=1.0),
            'num_workers must be a whole number of at least 0, not 1.0',
        ),
        (DETECTOR, dict(train_dataloader__batch_size=2.0), 'batch_size must be a whole number of at least 1, not 2.0'),
        (DETECTOR, dict(train_dataloader__prefetch_factor='a'), 'prefetch_factor must be a whole number of at least 1'),
        (DETECTOR, dict(train_dataloader__pin_memory='False'), "pin_memory must be True or False, not 'False'"),
        (DETECTOR, dict(train_dataloader__num_workers=0, train_dataloader__prefetch_factor=2), 'num_workers > 0'),
        (
            DETECTOR,
            dict(default_hooks__checkpoint__interval='1'),
            "checkpoint.interval must be a whole number, not '1'",
        ),
        (
            DETECTOR,
            dict(default_hooks__checkpoint__max_keep_ckpts=2.5),
            'max_keep_ckpts must be a whole number, not 2.5',
        ),
        (DETECTOR, dict(default_hooks__logger__interval='9'), 'default_hooks.logger.interval must be a whole number'),
        (DETECTOR, dict(custom_hooks=[dict(type='EMAHook', interval=1.5)]), 'custom_hooks[0].interval must be a whole'),
        (DETECTOR, dict(custom_hooks=dict(type='EMAHook')), "custom_hooks must be a list of dicts, not {'type'"),
        (
            DETECTOR,
            dict(train_dataloader__timeout='a'),
            'train_dataloader.timeout must be a finite number of at least 0',
        ),
        (DETECTOR, dict(log_processor__window_size='a'), "log_processor.window_size must be a whole number, not 'a'"),
        (DETECTOR, dict(auto_scale_lr__base_batch_size='a'), 'auto_scale_lr.base_batch_size must be a whole number'),
        (DETECTOR, dict(train_cfg__val_begin='a'), 'train_cfg.val_begin must be a whole number of at least 0'),
        (
            DETECTOR,
            dict(log_level='info'),
            'log_level must be DEBUG, INFO, WARNING, ERROR, CRITICAL or a whole number, not',
        ),
        (DETECTOR, dict(log_level=None), 'log_level must be DEBUG'),
        (
            DETECTOR,
            dict(env_cfg__mp_cfg__mp_start_method='frok'),
            'mp_start_method must be one of fork, spawn, forkserver',
        ),
        (DETECTOR, dict(env_cfg__mp_cfg__mp_start_metod='fork'), 'env_cfg.mp_cfg has no argument mp_start_metod'),
        (DETECTOR, dict(env_cfg__mp_cfg=None), 'env_cfg.mp_cfg must be a dict, not None'),
        (DETECTOR, dict(env_cfg__cudnn_benchmrk=True), 'env_cfg has no argument cudnn_benchmrk'),
        (DETECTOR, dict(env_cfg__resource_limit='a'), "env_cfg.resource_limit must be a whole number, not 'a'"),
        (
            SEGMENTOR,
            dict(model__decode_head__loss_decode=dict(_delete_=True, loss_weight=1.0)),
            'model.decode_head.loss_decode has no type, and inherits none',
        ),
        (
            DETECTOR,
            dict(model__rpn_head__anchor_generator=dict(_delete_=True, scales=[8])),
            'model.rpn_head.anchor_generator has no type, and inherits none',
        ),
        (DETECTOR, dict(model__data_preprocessor=dict(_delete_=True, mean=[1])), 'model.data_preprocessor has no type'),
        (DETECTOR, dict(auto_scal_lr=dict()), 'nothing reads the key auto_scal_lr: did you mean auto_scale_lr'),
        (DETECTOR, dict(optim_wraper=dict(clip_grad=None)), 'optim_wraper: did you mean optim_wrapper'),
        (DETECTOR, dict(sync_bn=dict(type='SyncBN')), 'sync_bn must be "torch" or "mmcv"'),
        (
            DETECTOR,
            dict(optim_wrapper__paramwise_cfg__layer_decay_rate=0.9),
            "layer_decay_rate: add optim_wrapper.constructor='mmattn.LayerDecayOptimWrapperConstructor'",
        ),
        (
            DETECTOR,
            dict(optim_wrapper__paramwise_cfg__norm_decay_mul=0),
            'norm_decay_mul: did you mean norm_decay_mult',
        ),
        # names of metrics, which MMEngine compares after the first validation
        (
            SEGMENTOR,
            dict(default_hooks__checkpoint__save_best='miou'),
            "checkpoint.save_best is 'miou', but no metric of val_evaluator has this name: did you mean mIoU?",
        ),
        (SEGMENTOR, dict(default_hooks__checkpoint__save_best='mDice'), 'this name: there are aAcc, mAcc, mIoU'),
        (SEGMENTOR, dict(default_hooks__checkpoint__save_best=True), 'checkpoint: "save_best" should be a str'),
        (
            DETECTOR,
            dict(default_hooks__checkpoint__save_best=['coco/bbox_mAP', 'mAP']),
            "save_best[1] is 'mAP', but no metric of val_evaluator has this name: did you mean coco/bbox_mAP or coco",
        ),
        (
            DETECTOR,
            dict(custom_hooks=[dict(type='EarlyStoppingHook', monitor='coco/bbox_mAP_5')]),
            "custom_hooks[0].monitor is 'coco/bbox_mAP_5', but no metric of val_evaluator has this name: did you mean",
        ),
        (DETECTOR, dict(param_scheduler=[dict(type='ReduceOnPlateauLR')]), "param_scheduler[0].monitor is 'loss', but"),
        (
            DETECTOR,
            dict(param_scheduler=[dict(type='ReduceOnPlateauLR', monitor='coco/bbox_mAP')]),
            "param_scheduler[0] lowers the rate while coco/bbox_mAP rises: set rule='greater'",
        ),
        (CLASSIFIER, dict(default_hooks__checkpoint__save_best='top1'), 'did you mean accuracy/top1?'),
        (PANOPTIC, dict(default_hooks__checkpoint__save_best='PQ'), 'did you mean coco_panoptic/PQ?'),
        (
            SEGMENTOR,
            dict(default_hooks__checkpoint__save_best='mIoU', val_evaluator=None, val_cfg=None, val_dataloader=None),
            "save_best is 'mIoU', but there is no validation",
        ),
        (SEGMENTOR, dict(test_evaluator__iou_metrics=['miou']), 'iou_metrics[0] must be one of mIoU, mDice, mFscore'),
        (
            DETECTOR,
            dict(val_evaluator__metric_items=['mAP50']),
            'val_evaluator.metric_items[0] must be one of mAP, mAP_',
        ),
        (
            DETECTOR,
            dict(model__roi_head__mask_head=None),
            'val_evaluator evaluates masks, but model.roi_head has no mask',
        ),
        # values that are read in the first step or the first validation
        (
            SEGMENTOR,
            dict(model__decode_head__loss_decode=[dict(type='CrossEntropyLoss', class_weight=[1.0, 2.0])]),
            'loss_decode[0].class_weight has 2 numbers for 150 classes: give one per class',
        ),
        (
            DETECTOR,
            dict(model__roi_head__bbox_head__loss_cls__class_weight=[1.0] * 80),
            'class_weight has 80 numbers for 80 classes: give one per class, and a last one for "no object"',
        ),
        (
            CLASSIFIER,
            dict(model__head__loss=dict(type='CrossEntropyLoss', class_weight=[1.0])),
            'model.head.loss.class_weight has 1 numbers for 1000 classes',
        ),
        (SEGMENTOR, dict(model__test_cfg=None), "model.test_cfg.mode must be 'whole', or 'slide' with crop_size and"),
        (
            SEGMENTOR,
            dict(model__test_cfg__mode='slid'),
            "model.test_cfg.mode must be 'whole', or 'slide' with crop_size",
        ),
        (
            SEGMENTOR,
            dict(model__test_cfg=dict(mode='slide', crop_size=(64, 64))),
            "model.test_cfg.stride must be height and width of mode='slide', as (512, 512), not None",
        ),
        (
            SEGMENTOR,
            dict(model__test_cfg=dict(mode='slide', crop_size=(64, 64), stride=(64, 65))),
            'model.test_cfg.stride (64, 65) leaves out pixels between windows of (64, 64)',
        ),
        (SEGMENTOR, dict(model__data_preprocessor__test_cfg=dict(a=1)), 'data_preprocessor.test_cfg must have either'),
        (
            DETECTOR,
            dict(model__data_preprocessor__mean=[1.0] * 4, model__data_preprocessor__std=[1.0] * 4),
            'mean has 4 numbers, but DetDataPreprocessor takes 1 or 3: leave out mean, std and bgr_to_rgb, and add',
        ),
        (
            DETECTOR,
            dict(train_dataloader__dataset__pipeline=[*LOADING, dict(type='Mosaic')]),
            'dataset.pipeline[2] (Mosaic) takes other images from a MultiImageMixDataset',
        ),
        (
            DETECTOR,
            dict(train_dataloader__dataset=mixed(LOADING, dict(type='RandomApply', transforms=[dict(type='MixUp')]))),
            'pipeline[0].transforms[0] (MixUp) takes other images from a MultiImageMixDataset',
        ),
        (
            SEGMENTOR,
            dict(train_dataloader__dataset__pipeline=[dict(type='RandomMosaic', prob=1)]),
            '(RandomMosaic) takes other images from a MultiImageMixDataset',
        ),
        (
            DETECTOR,
            dict(train_dataloader__dataset=mixed(WITH_MASKS, dict(type='Mosaic'))),
            'pipeline[0] (Mosaic) does not change masks: use CachedMosaic',
        ),
    ],
)
def test_mistakes_are_named(path, options, message):
    """The sentence has the file, the place in the config and what is known there."""
    with pytest.raises(InputError) as error:
        check(path, **options)
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
        check(path, optim_wrapper__constructor=constructor)
    check(path, optim_wrapper__constructor=constructor, model__backbone=dict(_delete_=True, type='mmpretrain.ConvNeXt'))
    check(CLASSIFIER, optim_wrapper__constructor='LearningRateDecayOptimWrapperConstructor')


def test_lora():
    """LoRA is refused for batch norms that update their statistics, because LoRAModel does not save these; with frozen
    stages, which would freeze its matrices; if no layer has the name of a target; with numbers that train nothing."""
    module = Config.fromfile(DETECTOR).model.backbone
    lora = dict(_delete_=True, type='mmpretrain.LoRAModel', module=module, rank=4, targets=[dict(type='fc1')])
    with pytest.raises(InputError, match='model.backbone.module must have norm_eval=True'):
        check(DETECTOR, model__backbone=lora)
    module.norm_eval = True
    check(DETECTOR, model__backbone=lora)
    with pytest.raises(InputError, match='model.backbone: .*No lora layer is replaced'):
        check(DETECTOR, model__backbone=dict(lora, targets=[dict(type='qkv')]))
    for numbers, message in (
        (dict(rank=0), r'targets\[0\]: rank must be a whole number of at least 1, not 0'),
        (dict(targets=[dict(type='fc1', rank=2.5)]), 'rank must be a whole number of at least 1, not 2.5'),
        (dict(alpha=float('nan')), 'alpha must be a finite number, not nan'),
        (dict(alpha=0), 'alpha must not be 0'),
        (dict(drop_rate=1), r'drop_rate must be in \[0, 1\), not 1'),
        (dict(targets='fc1'), "targets must be a list of layers, such as .*, not 'fc1'"),
        (dict(targets=[dict(type='*fc1')]), 'nothing to repeat'),
    ):
        with pytest.raises(InputError, match=f'model.backbone: .*{message}'):
            check(DETECTOR, model__backbone={**lora, **numbers})
    module.frozen_stages = 0
    with pytest.raises(InputError, match='model.backbone.module.frozen_stages would freeze matrices of LoRA'):
        check(DETECTOR, model__backbone=lora)


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
