"""Every config resolves, its parts fit together, and it starts from what its paper or MMDetection says."""

import inspect
import re
from collections import Counter
from copy import deepcopy
from importlib import import_module
from pathlib import Path

import mmseg
import numpy as np
import pytest
import torch
import yaml
from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, DefaultScope
from mmengine.structures import BaseDataElement, InstanceData, PixelData
from torch import nn

from mmattn.layers import NeighbourhoodAttention
from mmattn.weights import StrictModule, compare_settings, misfits
from mmguard.checks.channels import check_channels
from mmguard.checks.config_values import dataset_configs
from mmguard.runs.configs import _plain
from mmguard.runs.rows import merge_row, read_row
from tests import ROOT
from tests.configs import CONFIGS, METAFILES, like_example, named

FILES = sorted([*CONFIGS.rglob('*.py'), *ROOT.glob('projects/*/configs/**/*.py')])
LEAVES = [path for path in FILES if path.is_relative_to(CONFIGS) and '_base_' not in path.parts]
Case = tuple[Path, str | None]  #: a config and its row
CASES = [(path, None) for path in LEAVES]
#: of other packages, with their own heads
BASELINES = [case for case in CASES if case[0].parent.name == 'baselines' and case[0].stem.endswith('_in1k')]
CLASSIFIERS = [
    case for case in CASES if re.search(r'_(in1k|inat\d+|cifar100)$', case[0].stem) and case not in BASELINES
]
DOWNSTREAM = [case for case in CASES if case not in {*CLASSIFIERS, *BASELINES}]
EXAMPLES = [
    path.stem
    for path in sorted((CONFIGS / 'elsa_swin').glob('*.py'))
    if re.search('dino|detr|mask2former|rtmdet|voc', path.stem)
]
#: in the name of a detector or segmentor -> the type of its backbone, of its model, or of its head
NAMES = {
    r'(^|_)elsa-swin-': r'mmattn\.ELSASwin',
    r'(^|_)msf-swin-': r'mmattn\.MSFSwin',
    r'(^|_)msf-vit-': r'mmattn\.MSFViT',
    r'(^|_)shunted-': r'mmattn\.ShuntedTransformer',
    r'(^|_)transnext-': r'mmattn\.TransNeXt',
    r'(^|_)gsa-r': r'mmattn\.GSAResNet',
    r'^cascade-mask-rcnn_': 'CascadeRCNN',
    r'^mask-rcnn_': 'MaskRCNN',
    r'^retinanet_': 'RetinaNet',
    r'_fpn_.*ade20k': 'FPNHead',
    r'_upernet_': 'UPerHead',
    r'_setr-': 'SETR(UP|MLA)Head',
}
#: what a whole config has, among others
WHOLE = ('train_dataloader', 'val_dataloader', 'test_evaluator', 'optim_wrapper')


def names(value: object) -> str | None:
    """The id of a parameter that is a config or a case."""
    parts = value if isinstance(value, tuple) else (value,)
    return ' '.join(getattr(part, 'stem', part) for part in parts if part) or None


def missing_imports(cfg: Config) -> list[str]:
    """Classes that a config neither names with their package nor imports. In this process, others may import them."""
    packages = 'mmattn.backbones', 'mmattn.classification', 'mmattn.detection', 'mmattn.segmentation', 'mmguard.runs'
    text, imported = str(cfg.to_dict()), cfg.get('custom_imports', {}).get('imports', ())
    return [
        kind
        for name in (*packages, 'mmattn_distillation', 'mmattn_lab')
        if name not in imported
        for kind in import_module(name).__all__
        if f"'type': '{kind}'" in text
    ]


def kind(case: Case) -> tuple[str, ...]:
    """The folder and bases of a config without its variant: cases of one kind differ in widths and depths."""
    path, row = case
    bases = re.findall(r"'([^']*)\.py'", path.read_text().partition('_base_ = ')[2].partition('\nmodel')[0])
    if row or not bases:
        return (str(path),)
    if len(bases) == 1 and '_base_' not in bases[0]:  # another model
        return kind((path.parent / f'{bases[0]}.py', None))
    return (str(path.parent), *(bases[1:] or bases))


def slow_but_for_one_row(cases: list[Case]) -> list:
    """A case of a kind, tiny if one is, shows that the parts fit together. Frozen forms of a config, the second
    detectors on the pyramid of ViTDet, NAT, Shunted and MSF-Swin, and DiNAT-L repeat what another one shows. CaiT-M has
    271 M parameters: it takes as long as all other baselines."""
    tiny_first = sorted(cases, key=lambda case: '-t_' not in case[0].stem)
    first = {kind(case): case for case in reversed(tiny_first)}
    others = (
        '-frozen_(?!linear)|dino-4scale_dinov3|cascade.*_(nat|shunted|msf)|retinanet_msf|dinat-l|baselines.*3x|cait-m'
    )
    repeats = [first[kind(case)] != case or re.search(others, case[0].stem) for case in cases]
    return [pytest.param(case, marks=pytest.mark.slow) if slow else case for case, slow in zip(cases, repeats)]


@pytest.mark.usefixtures('any_weights')
@pytest.mark.parametrize('case', slow_but_for_one_row(CLASSIFIERS), ids=names)
def test_classifier_builds(case):
    """Every config of a classifier is whole, is for the classes of its data, and builds with the channels of the
    backbone's only map. It imports what it uses. The head takes what the map has, and gives a score to each class."""
    check_classifier(case)


def check_classifier(case: Case) -> None:
    """What test_classifier_builds says of a config."""
    cfg = read_row(*case)
    assert not missing_imports(cfg)
    for key in (*WHOLE, 'tta_model'):
        assert key in cfg
    assert cfg.default_scope == 'mmpretrain' and cfg.data_preprocessor.num_classes == cfg.model.head.num_classes
    with torch.no_grad(), DefaultScope.overwrite_default_scope('mmpretrain'):
        check_channels(cfg.model, 'model')
        model = MODELS.build(cfg.model).eval()
        if isinstance(model.backbone, StrictModule):
            assert len(model.backbone.out_channels) == 1
        assert model(torch.zeros(1, 3, 64, 64)).shape == (1, cfg.model.head.num_classes)
    if 'toy' not in case[0].parts and any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules()):
        # otherwise each process would have statistics of its own images
        assert any(hook.type == 'SyncBuffersHook' for hook in cfg.get('custom_hooks', ()))


@pytest.mark.parametrize(
    'path',
    [
        path if re.search('_dataloader|_pipeline', path.read_text()) else pytest.param(path, marks=pytest.mark.slow)
        for path in FILES
        if '_base_' not in path.parts
    ],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_pipeline_variables_are_those_of_the_loaders(path):
    """A printed config shows the pipeline that its loaders have, and not that of a base."""
    cfg = read_row(path, import_custom_modules=False)
    for name, splits in (('train_pipeline', ('train',)), ('test_pipeline', ('val', 'test'))):
        nodes = [node for split in splits for _, node in dataset_configs(cfg, split)]
        assert name not in cfg or _plain(cfg[name]) in [_plain(node.get('pipeline')) for node in nodes], name


@pytest.mark.usefixtures('any_weights')
@pytest.mark.parametrize('case', slow_but_for_one_row(BASELINES), ids=names)
def test_baseline_builds(case):
    """A classifier of another library is whole, and takes the images of its pipelines."""
    cfg = read_row(*case)
    assert not missing_imports(cfg) and all(key in cfg for key in WHOLE)
    size = cfg.train_dataloader.dataset.pipeline[1].scale
    assert cfg.test_dataloader.dataset.pipeline[2].crop_size == size
    with torch.no_grad(), DefaultScope.overwrite_default_scope('mmpretrain'):
        model = MODELS.build({**cfg.model, 'data_preprocessor': cfg.data_preprocessor}).eval()
        assert model(torch.zeros(1, 3, size, size)).shape == (1, 1000)


@pytest.mark.parametrize(
    'name',
    [
        'elsa-swin-t_setr-pup_8xb2-160k_ade20k-512x512',
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in (
                'msf-swin-t_setr-pup_8xb2-160k_ade20k-512x512',
                'shunted-s_setr-pup_8xb2-160k_ade20k-512x512',
                'gsa-r50_setr-pup_8xb2-160k_ade20k-512x512',
                'msf-vit-s_setr-naive_8xb2-160k_ade20k-512x512',
                'msf-vit-s_setr-mla_8xb2-160k_ade20k-512x512',
                'msf-swin-t_fpn_8xb2-80k_ade20k-512x512',
                'cascade-mask-rcnn_msf-vit-s_fpn_ms-1x_coco',
                'mask-rcnn_r50_fpn_1x_coco',
                'retinanet_pvtv2-b2_fpn_1x_coco',
                'twins-svt-s_upernet_8xb2-160k_ade20k-512x512',
                'mit-b2_segformer_8xb2-160k_ade20k-512x512',
                'deformable-detr-refine-twostage_elsa-swin-t_8xb2-12e_coco',
            )
        ),
        'retinanet_msf-vit-s_fpn_ms-1x_coco',
    ],
)
def test_every_parameter_learns(name):
    """In a training step, every parameter gets a gradient: one that does not would stop a training with several
    processes. Then the model predicts."""
    cfg = named(name)
    cfg.model.backbone.init_cfg = None
    if 'drop_path_rate' in cfg.model.backbone:
        cfg.model.backbone.drop_path_rate = 0.0
    if cfg.default_scope == 'mmseg':
        cfg.model.data_preprocessor.size = (128, 128)
    elif 'roi_head' in cfg.model:  # otherwise thousands of proposals take minutes
        cfg.model.train_cfg.rpn_proposal.max_per_img = cfg.model.test_cfg.rpn.max_per_img = 20
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        model = revert_sync_batchnorm(MODELS.build(cfg.model))  # SyncBN does not run on the CPU
        model.init_weights()
        sample = detection_sample if cfg.default_scope == 'mmdet' else segmentation_sample
        data = dict(inputs=[torch.randint(256, (3, 128, 128), dtype=torch.uint8) for _ in range(2)])
        data['data_samples'] = [sample() for _ in range(2)]
        losses, _ = model.parse_losses(model(**model.data_preprocessor(data, True), mode='loss'))
        losses.backward()
        learn = {key: param for key, param in model.named_parameters() if param.requires_grad}
        assert losses.isfinite() and not [key for key, param in learn.items() if param.grad is None]
        with torch.no_grad():
            found = model.eval()(**model.data_preprocessor(data), mode='predict')
    assert len(found) == 2


def segmentation_sample() -> BaseDataElement:
    from mmseg.structures import SegDataSample

    sample = SegDataSample(metainfo=dict(img_shape=(128, 128), ori_shape=(128, 128), pad_shape=(128, 128)))
    sample.gt_sem_seg = PixelData(data=torch.randint(150, (1, 128, 128)))
    return sample


def detection_sample() -> BaseDataElement:
    from mmdet.structures import DetDataSample
    from mmdet.structures.mask import BitmapMasks

    sample = DetDataSample(metainfo=dict(img_shape=(128, 128), ori_shape=(128, 128), scale_factor=(1.0, 1.0)))
    masks = BitmapMasks(np.ones((1, 128, 128), np.uint8), 128, 128)
    boxes, labels = torch.tensor([[10.0, 20.0, 90.0, 110.0]]), torch.tensor([3])
    sample.gt_instances = InstanceData(bboxes=boxes, labels=labels, masks=masks)
    return sample


def loaders(cfg: Config) -> list:
    """The configs of all datasets that read images, without those that wrap others."""
    datasets = [node for split in ('train', 'val', 'test') for _, node in dataset_configs(cfg, split)]
    return [node for node in datasets if 'data_root' in node]


@pytest.mark.usefixtures('any_weights')
@pytest.mark.parametrize('case', slow_but_for_one_row(DOWNSTREAM), ids=names)
def test_config_builds(case):
    """Every config is complete, imports what it uses, and builds a model whose parts fit together. Its base_batch_size
    is the batch size of its name. A detector reads and evaluates masks if it predicts them. Only MMDetection's
    Mask2Former has no test-time augmentation. Neck and head take the maps that they get."""
    check_downstream(read_row(*case), case[0])


@pytest.mark.usefixtures('any_weights')
@pytest.mark.parametrize(
    'variant', [*(pytest.param(name, marks=pytest.mark.slow) for name in ('msf-swin-t', 'shunted-s')), 'gsa-r50']
)
@pytest.mark.parametrize('example', EXAMPLES)
def test_examples_fit_other_backbones(tmp_path, example, variant):
    """Every framework that has one example builds on the other backbones, as configs/README.md says."""
    path = like_example(tmp_path, variant, example)
    cfg = Config.fromfile(path)
    check_downstream(cfg, path)


@pytest.mark.usefixtures('any_weights')
@pytest.mark.parametrize('epochs', [12, 36])
def test_example_of_the_readme(tmp_path, epochs):
    """The config that configs/README.md shows is whole, is on GSA, and is the example for another backbone. The page
    names a base for 36 epochs."""
    page = (CONFIGS / 'README.md').read_text()
    (text,) = re.findall('```python\n(.*?)```', page, re.DOTALL)
    assert len(text.splitlines()) <= 5 and '`dino-4scale_36e_coco.py`' in page
    text = text.replace('_12e_', f'_{epochs}e_').replace("'./", f"'{CONFIGS}/gsa/").replace("'../", f"'{CONFIGS}/")
    path = tmp_path / 'dino-4scale_gsa-r50_8xb2_coco.py'
    path.write_text(text)
    cfg = Config.fromfile(path)
    check_downstream(cfg, path)
    other = Config.fromfile(like_example(tmp_path, 'gsa-r50', 'dino-4scale_elsa-swin-t_8xb2-12e_coco')).model.backbone
    del other['drop_path_rate']
    assert cfg.model.backbone == other and cfg.train_cfg.max_epochs == epochs


@pytest.mark.usefixtures('any_weights')
@pytest.mark.parametrize(
    'base, settings',
    [
        ('msf/_base_/msf-vit-s', 'out_indices=(5, 8, 11), final_norm=True, drop_path_rate=0.1'),
        ('elsa_volo/_base_/elsa-volo-d1', 'out_indices=(1, 2, 3), norm_cfg=_base_.sync_norm, drop_path_rate=0.1'),
    ],
)
def test_readme_says_how_to_make_a_pyramid(tmp_path, base, settings):
    """DINO takes the three maps that the lines in configs/README.md make of a backbone without a pyramid."""
    page = (CONFIGS / 'README.md').read_text()
    (pyramid,) = re.findall('`(pyramid = .*)`', page)
    (neck,) = re.findall(r'`(\[pyramid, .*)`', page)
    assert settings in page
    bases = [f'{CONFIGS}/{name}.py' for name in (base, '_base_/sync_norm', '_base_/recipes/dino-4scale_12e_coco')]
    path = tmp_path / 'dino-4scale_8xb2_coco.py'
    path.write_text(f"""
_base_ = {bases}
{pyramid}
backbone = dict(_base_.pretrained, _delete_=True, {settings})
model = dict(backbone=backbone, neck={neck})
""")
    check_downstream(Config.fromfile(path), path)


def check_downstream(cfg: Config, path: Path) -> None:
    """What test_config_builds says of a config."""
    assert not missing_imports(cfg)
    for key in WHOLE:
        assert key in cfg
    gpus = re.search(r'_(\d+)xb', path.stem)
    batch = cfg.train_dataloader.batch_size * (int(gpus[1]) if gpus else 8)
    assert 'toy' in path.parts or cfg.auto_scale_lr.base_batch_size == batch
    assert ('tta_model' in cfg) == ('tta_views' in cfg or 'tta_pipeline' in cfg) == ('panoptic_head' not in cfg.model)
    found = cfg.model.backbone.type, cfg.model.get('decode_head', cfg.model).type
    for part, kind in NAMES.items():
        assert not re.search(part, path.stem) or any(re.fullmatch(kind, each) for each in found), (part, found)
    with torch.no_grad(), DefaultScope.overwrite_default_scope(cfg.default_scope):
        check_channels(cfg.model, 'model')
        model = MODELS.build(deepcopy(cfg.model)).eval()  # MMDetection's DINO changes its config
        check_forward(model)
    norm_cfg = inspect.signature(type(model.backbone)).parameters.get('norm_cfg')
    with_batch_norm = norm_cfg and 'LN' not in str(norm_cfg.default)
    if 'toy' not in path.parts and with_batch_norm and not cfg.model.backbone.get('norm_eval'):
        assert cfg.model.backbone.norm_cfg.type == 'SyncBN'  # There are two images on a GPU.
    if cfg.default_scope == 'mmdet':
        masks = 'mask_head' in cfg.model.get('roi_head', ()) or 'panoptic_head' in cfg.model
        for dataset in loaders(cfg):
            (load,) = (step for step in dataset.pipeline if re.fullmatch(r'Load\w*Annotations', step.type))
            assert load.get('with_mask', 'Panoptic' in load.type) == masks
        metrics = cfg.test_evaluator if isinstance(cfg.test_evaluator, list) else [cfg.test_evaluator]
        assert any('segm' in metric.get('metric', ()) for metric in metrics) == masks


@pytest.mark.usefixtures('any_weights')
@pytest.mark.parametrize(
    'name, dilations',
    [
        ('mask-rcnn_dinat-t_fpn_ms-3x_coco', [[1, 28, 1], [1, 7, 1, 14], [1, 3, 1, 5, 1, 7] * 3, [1, 3, 1, 3, 1]]),
        ('mask-rcnn_dinat_s-t_fpn_ms-3x_coco', [[1, 28], [1, 14], [1, 3, 1, 5, 1, 7], [1, 3]]),
        ('dinat_s-t_upernet_8xb2-160k_ade20k-512x512', [[1, 16], [1, 8], [1, 2, 1, 3, 1, 4], [1, 2]]),
        ('mask2former_dinat-l_8xb2-lsj-100e_coco', [[1, 14, 1], [1, 4, 1, 7], [*[1, 2, 1, 3] * 4, 1, 3], [1] * 5]),
    ],
)
def test_dilations_of_dinat(name, dilations):
    """The blocks have the dilations of the released configs, which no tensor shows."""
    cfg = read_row(CONFIGS / 'nat' / f'{name}.py', import_custom_modules=False)
    with torch.device('meta'):
        backbone = MODELS.build(dict(cfg.model.backbone, init_cfg=None))
    found = [m.dilation for m in backbone.modules() if isinstance(m, NeighbourhoodAttention)]
    assert found == sum(dilations, [])


def check_forward(model: nn.Module) -> None:
    """Compute the maps of a model, and what the first head makes of them."""
    maps = model.extract_feat(torch.zeros(1, 3, 64, 64))
    names = ('decode_head', 'panoptic_head', 'rpn_head', 'bbox_head')
    head = next(getattr(model, name) for name in names if hasattr(model, name))
    channels = [m.shape[1] for m in maps]
    # Heads with deformable attention take more than maps: test_every_parameter_learns and tests/tools/test_heads.py.
    if hasattr(head, 'pixel_decoder'):
        assert [conv.in_channels for conv in head.pixel_decoder.input_convs] == channels[:0:-1]
        assert head.pixel_decoder.lateral_convs[0].in_channels == channels[0]
    elif hasattr(model, 'encoder'):
        assert set(channels) == {model.embed_dims} and len(maps) == model.num_feature_levels
    else:
        head(maps)


@pytest.mark.usefixtures('any_weights')
@pytest.mark.parametrize(
    'case',
    [c for c in DOWNSTREAM if c[0].parent.name in ('msf', 'gsa', 'elsa_volo') and 'keep-conv' not in c[0].stem],
    ids=names,
)
@pytest.mark.every(3)
def test_downstream_starts_from_its_classifier(case):
    """MSF, GSA and ELSA-VOLO have no released weights. Their detectors and segmentors name the checkpoint that a
    classifier's config leaves after its last epoch, and it has all weights except output norms."""
    settings = read_row(*case).model.backbone
    folder, epoch = re.fullmatch(r'work_dirs/(.*)/epoch_(\d+)\.pth', settings.init_cfg.checkpoint).groups()
    cfg = read_row(case[0].with_name(f'{folder}.py'))
    assert cfg.get('train_cfg', {}).get('max_epochs', int(epoch)) == int(epoch)
    with torch.device('meta'):
        classifier, backbone = MODELS.build(cfg.model.backbone), MODELS.build(settings)
    compare_settings(classifier.settings_note, backbone.settings_note)
    weights = {
        name: torch.zeros((), dtype=value.dtype).expand(value.shape) for name, value in classifier.state_dict().items()
    }
    translation = backbone.from_release(weights)
    assert not misfits(translation, backbone.state_dict())
    assert all(name.startswith('norm') for name in (*translation.fresh, *translation.dropped))


@pytest.mark.parametrize('config, scale', [('in1k', 194), ('448_in1k', 389)])
def test_volo_d4_is_tested_as_d5(config, scale):
    """VOLO's script resizes test images of D4 and D5 to 1 / 1.15 of the crop, and those of others to 1 / 0.96."""
    d4 = read_row(CONFIGS / 'elsa_volo' / f'volo-d4_{config}.py').test_dataloader.dataset.pipeline
    d3 = read_row(CONFIGS / 'elsa_volo' / f'volo-d3_{config}.py').test_dataloader.dataset.pipeline
    assert (d4[1].scale, d4[3].type, d3[2].type) == (scale, 'torchvision/CenterCrop', 'CenterCrop')
    assert d3[1].scale == int(d4[3].size / 0.96)


@pytest.mark.parametrize(
    'config, shapes',
    [
        ('msf/msf-vit-s_fpn_8xb2-80k_ade20k-512x512', [(384, 7, 9)] * 4),
        ('msf/mask-rcnn_msf-vit-s_fpn_ms-1x_coco', [(384, 7, 9)] * 4),
        ('elsa_volo/elsa-volo-d1_fpn_8xb2-80k_ade20k-512x512', [(192, 13, 17), *[(384, 7, 9)] * 3]),
        ('elsa_volo/mask-rcnn_elsa-volo-d1_fpn_ms-1x_coco', [(192, 13, 17), *[(384, 7, 9)] * 3]),
    ],
)
def test_pyramids(config, shapes):
    """MMSegmentation's neck makes strides 4 to 32 of a ViT's maps, or of VOLO's, in either package and for odd sizes,
    and every map reaches the loss."""
    cfg = Config.fromfile(CONFIGS / f'{config}.py')
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        pyramid, fpn = (MODELS.build({**neck, 'norm_cfg': dict(type='BN')}) for neck in cfg.model.neck)  # no SyncBN
    maps = [torch.randn(2, *shape, requires_grad=True) for shape in shapes]
    sizes = [tuple(out.shape[2:]) for out in pyramid(maps)]
    assert sizes == [(28, 36) if len({*shapes}) == 1 else (26, 34), (14, 18), (7, 9), (3, 4)]
    sum(out.square().mean() for out in fpn(pyramid(maps))).backward()
    assert all(m.grad.abs().sum() > 0 for m in maps)


@pytest.mark.parametrize('slash', ['', '/'], ids=['no slash', 'slash'])
@pytest.mark.parametrize(
    'variable, config',
    [
        ('COCO_ROOT', 'elsa_swin/mask-rcnn_elsa-swin-t_fpn_ms-1x_coco'),
        ('COCO_ROOT', 'shunted/retinanet_shunted-s_fpn_1x_coco'),
        ('COCO_ROOT', 'elsa_swin/dino-4scale_elsa-swin-t_8xb2-12e_coco'),
        ('COCO_ROOT', 'elsa_swin/mask2former_elsa-swin-t_8xb2-lsj-50e_coco'),
        ('COCO_ROOT', 'elsa_swin/mask2former_elsa-swin-t_8xb2-lsj-50e_coco-panoptic'),
        ('COCO_ROOT', 'elsa_swin/rtmdet_l_elsa-swin-t_4xb32-100e_coco'),
        ('ADE20K_ROOT', 'elsa_swin/elsa-swin-t_upernet_8xb2-160k_ade20k-512x512'),
        ('CITYSCAPES_ROOT', 'elsa_swin/elsa-swin-t_mask2former_8xb2-90k_cityscapes-512x1024'),
        ('VOC_ROOT', 'elsa_swin/retinanet_elsa-swin-t_fpn_1x_voc0712'),
    ],
)
def test_root_moves_the_data(monkeypatch, tmp_path, variable, config, slash):
    """The environment variables, with and without a slash at the end, move every path of the datasets and the
    evaluators."""
    monkeypatch.setenv(variable, f'{tmp_path}{slash}')
    cfg = Config.fromfile(ROOT / 'configs' / f'{config}.py')
    for dataset in loaders(cfg):
        assert Path(dataset.data_root) == tmp_path
        for path in (*dataset.data_prefix.values(), dataset.get('ann_file', '')):
            assert not Path(path).is_absolute() and 'data' not in Path(path).parts  # MMEngine joins it to data_root
    for evaluator in (cfg.val_evaluator, cfg.test_evaluator):
        for metric in evaluator if isinstance(evaluator, list) else [evaluator]:
            paths = [metric[key] for key in ('ann_file', 'seg_prefix') if key in metric]
            assert all(Path(path).parent == tmp_path / 'annotations' for path in paths)
            assert bool(paths) == (variable == 'COCO_ROOT')


def test_a_checkpoint_is_named_once():
    """The path of ImageNet weights stands in one file, which all configs of that variant read."""
    pattern = re.compile(r"'((?:checkpoints|work_dirs)/[^']*)'")
    paths = Counter(name for path in FILES for name in pattern.findall(path.read_text()))
    assert len(paths) > 8 and set(paths.values()) == {1}


@pytest.mark.parametrize('schedule', ['ade20k_160k_segformer', 'ade20k_160k_setr'])
def test_rates_of_heads(schedule):
    """Heads learn ten times as fast as the backbone, ELSA's ghost_head included, whatever model a schedule is used
    for."""
    cfg = Config.fromfile(ROOT / 'configs' / '_base_' / 'schedules' / f'{schedule}.py')
    head = dict(type='FCNHead', in_channels=64, channels=8, in_index=1, num_convs=1, num_classes=3)
    model = dict(
        type='EncoderDecoder',
        backbone=dict(
            type='ELSASwin', arch=dict(embed_dim=32, depths=(1, 1, 1, 1), num_heads=(1, 2, 4, 8), group_width=4)
        ),
        decode_head=head,
        auxiliary_head=[head],
    )
    with DefaultScope.overwrite_default_scope('mmseg'):
        model = MODELS.build(model)
        wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    rates = {id(param): group['lr'] for group in wrapper.param_groups for param in group['params']}
    rates = {name: rates[id(param)] / cfg.optim_wrapper.optimizer.lr for name, param in model.named_parameters()}
    assert sum('ghost_head' in name for name in rates) == 3
    for name, rate in rates.items():
        assert rate == pytest.approx(1 if name.startswith('backbone.') else 10), name


@pytest.mark.usefixtures('any_weights')
@pytest.mark.parametrize(
    'variant, example, slow',
    [
        ('elsa-swin-t', 'dino-4scale_elsa-swin-t_8xb2-12e_coco', 0.1),
        ('shunted-s', 'dino-4scale_elsa-swin-t_8xb2-12e_coco', 0.1),
        ('msf-swin-t', 'deformable-detr-refine-twostage_elsa-swin-t_8xb2-12e_coco', 0.1),
        ('gsa-r50', 'mask2former_elsa-swin-t_8xb2-lsj-50e_coco', 0.1),
        ('gsa-r50', 'elsa-swin-t_mask2former_8xb2-160k_ade20k-512x512', 0.1),
        ('msf-swin-t', 'rtmdet_l_elsa-swin-t_4xb32-100e_coco', 1),
    ],
)
@pytest.mark.every(3)
def test_rates_of_recipes(tmp_path, variant, example, slow):
    """The backbone has the learning rate of the recipe, the heads the full one. Norms and position tables have no
    weight decay."""
    cfg = Config.fromfile(like_example(tmp_path, variant, example))
    with torch.device('meta'), DefaultScope.overwrite_default_scope(cfg.default_scope):
        model = MODELS.build(cfg.model)
        wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    groups = {id(param): group for group in wrapper.param_groups for param in group['params']}
    kinds = (nn.LayerNorm, nn.GroupNorm, nn.modules.batchnorm._BatchNorm)
    norms = {id(p) for module in model.modules() if isinstance(module, kinds) for p in module.parameters()}
    for name, param in model.named_parameters():
        if id(param) not in groups:  # frozen
            continue
        rate = groups[id(param)]['lr'] / cfg.optim_wrapper.optimizer.lr
        kept = slow if name.startswith('backbone.') else 1
        # Deformable DETR's own
        kept = 0.1 if 'deformable' in example and re.search('sampling_offsets|reference_points', name) else kept
        assert rate == pytest.approx(kept), name
        undecayed = id(param) in norms or re.search(r'\.(relative_position_bias_table|rel_\w+)$', name)
        other = re.search('query_|level_embed', name) or slow == 1 and name.endswith('.bias')
        if undecayed or not other:
            assert bool(groups[id(param)]['weight_decay']) == (not undecayed), name


@pytest.mark.parametrize(
    'config',
    [
        'elsa_swin/cascade-mask-rcnn_elsa-swin-t_fpn_ms-3x_coco',
        'elsa_swin/swin-t_upernet_8xb2-160k_ade20k-512x512',
        'nat/cascade-mask-rcnn_nat-t_fpn_ms-3x_coco',
        'nat/dinat-t_upernet_8xb2-160k_ade20k-512x512',
    ],
)
def test_decay_of_released_recipes(config):
    """As in the releases, norms of the backbone and the tables of Swin and NAT have no weight decay, and all else has
    it: ELSA's tables, its ghost heads and the norms of the heads."""
    cfg = read_row(CONFIGS / f'{config}.py')
    with torch.device('meta'), DefaultScope.overwrite_default_scope(cfg.default_scope):
        model = MODELS.build(cfg.model)
        wrapper = build_optim_wrapper(model, dict(cfg.optim_wrapper, type='OptimWrapper'))  # without mixed precision
    decayed = {id(param): group['weight_decay'] > 0 for group in wrapper.param_groups for param in group['params']}
    decayed = {name: decayed[id(param)] for name, param in model.named_parameters()}
    tables, norms = r'\.(relative_position_bias_table|rpb)$', r'^backbone\..*norm'
    assert any(re.search(tables, name) for name in decayed) and any('.bn.' in name for name in decayed)
    for name, has in decayed.items():
        assert has == (not re.search(norms if 'elsa-swin-t' in config else f'{norms}|{tables}', name)), name


@pytest.mark.parametrize('data', ['160k_ade20k-512x512', '90k_cityscapes-512x1024'])
def test_mask2former_is_mmsegmentations(data):
    """Mask2Former for ADE20K and Cityscapes has all values of MMSegmentation's config with Swin-T, except those of the
    backbone and of paramwise_cfg. An mmseg:: base would make this test unnecessary, but MMEngine does not find it on
    the stack onedl."""
    folder = Path(mmseg.__file__).parent / '.mim' / 'configs' / 'mask2former'
    theirs = Config.fromfile(folder / f'mask2former_swin-t_8xb2-{data}.py')
    ours = Config.fromfile(ROOT / 'configs' / 'elsa_swin' / f'elsa-swin-t_mask2former_8xb2-{data}.py')
    for cfg in (ours, theirs):
        cfg.model.pop('backbone')
        cfg.optim_wrapper.pop('paramwise_cfg')
        cfg.train_pipeline[1].pop('reduce_zero_label', None)  # Ours is that of the dataset.
    for key in ('model', 'train_pipeline', 'optim_wrapper', 'param_scheduler', 'train_cfg', 'auto_scale_lr'):
        assert ours._cfg_dict[key] == theirs._cfg_dict[key], key


@pytest.mark.parametrize('metafile', METAFILES, ids=lambda path: path.parent.name)
def test_metafile_is_complete(metafile):
    """A metafile lists every config of its folder once, and only those. A model is named as its config. The files that
    it names are those that the configs start from."""
    content = yaml.safe_load(metafile.read_text())
    assert Counter(ROOT / entry['Config'] for entry in content['Models']) == Counter(metafile.parent.glob('*.py'))
    for entry in content['Models']:
        assert entry['Name'] == Path(entry['Config']).stem
        file = entry.get('Released Weights', {}).get('File')
        if file:
            cfg = read_row(ROOT / entry['Config'])
            assert cfg.pretrained.init_cfg.checkpoint == f'checkpoints/{file}'
    (collection,) = content['Collections']
    assert (ROOT / collection['README']).is_file()
    assert {entry['In Collection'] for entry in content['Models']} == {collection['Name']}
    assert {pair['Model'] for pair in collection['Benchmark']} <= {entry['Name'] for entry in content['Models']}


def test_model_index_is_complete():
    """The index imports the metafiles of all folders."""
    (pattern,) = yaml.safe_load((ROOT / 'model-index.yml').read_text())['Import']
    assert sorted(ROOT.glob(pattern)) == METAFILES


@pytest.mark.parametrize(
    'path',
    [path for path in FILES if '_base_' not in path.parts and re.search('^rows = ', path.read_text(), re.M)],
    ids=names,
)
@pytest.mark.every(4)
def test_rows(path):
    """A config with rows is whole without one, every row can be merged into it, and no _delete_ is left."""
    cfg = read_row(path)
    for row in (None, *cfg.rows):
        merged = deepcopy(cfg)
        merge_row(merged, row, path)
        assert '_delete_' not in str(merged.model), row


def test_common_names_in_the_environment(monkeypatch):
    """Variables with common names, which other programs use, change no config."""
    paths = [path for path in FILES if '{{$' in path.read_text()]
    read = set(re.findall(r'\{\{\$(\w+)', ' '.join(path.read_text() for path in paths)))
    ours = re.compile(r'MMATTN_\w+|TOY_CLASSIFIER|\w+_ROOT')
    assert {'MMATTN_TEACHER', 'MMATTN_WEIGHTS', 'MMATTN_IMAGES', 'COCO_ROOT'} < read
    assert all(ours.fullmatch(name) for name in read) and 'IMAGES_ROOT' not in read
    tried = [
        CONFIGS / 'gsa' / 'gsa-r50-all_cifar100.py',
        *(
            ROOT / 'projects/lab/configs/toy' / f'{name}.py'
            for name in ('teacher_ade20k', 'compare_pretrained/fpn_ade20k')
        ),
        ROOT / 'projects/distillation/configs/students/gsa-r50.py',
    ]
    for name in ('MODEL', 'TEACHER', 'WEIGHTS', 'IMAGES_ROOT'):
        monkeypatch.setenv(name, 'foo')
    for path in tried:
        assert Config.fromfile(path)._cfg_dict == read_row(path)._cfg_dict


@pytest.mark.parametrize(
    'config',
    ['elsa_swin/mask2former_elsa-swin-t_8xb2-lsj-50e_coco', 'nat/mask2former_dinat-l_8xb2-lsj-100e_coco-panoptic'],
)
def test_scores_of_trainings_by_steps(config):
    """By epochs, MMEngine would log all of them at epoch 0: tools/curves.py and TensorBoard have the last one only."""
    cfg = Config.fromfile(CONFIGS / f'{config}.py')
    assert cfg.train_cfg.type == 'IterBasedTrainLoop' and cfg.default_hooks.logger.log_metric_by_epoch is False
