"""The config for a folder of images and annotations, in the lines of docs/own_data.md."""

import colorsys
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mmengine.config import Config
from PIL import Image

from ..errors import CheckpointError, InputError, near_misses, refusing
from ..outputs import check_output, whole_file
from ..packages import mmseg_bases
from ..weights import check_source
from .folder import OTHER_IMAGES, Data, read_coco, read_folders, read_maps

READERS = dict(boxes=read_coco, maps=read_maps, folders=read_folders)
#: images that a detector sees in its training, at least
SEEN = 10000
#: a palette of more colours is not written, if the data has none
MOST_COLOURS = 40
#: the sizes of backbones, which the names of configs shorten
SIZES = re.compile('(?<=-)(tiny|small|base|large|mini)(?=-|$)')


class Head(NamedTuple):
    """A head that configs exist for."""

    configs: str  #: a pattern of their names; its group is the backbone
    needs: str  #: a key of ``READERS``
    model: str  #: how the head gets ``heads``, its number of classes, in ``model``


RCNN = r'mask-rcnn_(.+?)_(?:simple-)?fpn_.*_coco'
HEADS = {
    'mask-rcnn': Head(RCNN, 'boxes', 'roi_head=dict(bbox_head=heads, mask_head=heads)'),
    'faster-rcnn': Head(
        RCNN, 'boxes', "type='FasterRCNN', roi_head=dict(bbox_head=heads, mask_head=None, mask_roi_extractor=None)"
    ),
    'cascade-mask-rcnn': Head(f'cascade-{RCNN}', 'boxes', 'roi_head=dict(bbox_head=BBOX_HEADS, mask_head=heads)'),
    'retinanet': Head(r'retinanet_(.+?)_fpn_.*_coco', 'boxes', 'bbox_head=heads'),
    'dino': Head(r'dino-4scale_(.+?)_(?:simple-fpn_)?8xb2-12e_coco', 'boxes', 'bbox_head=heads'),
    'upernet': Head(r'(.+)_upernet_.*_ade20k-.*', 'maps', 'decode_head=heads, auxiliary_head=heads'),
    'fpn': Head(r'(.+)_fpn_.*_ade20k-.*', 'maps', 'decode_head=heads'),
    'segformer': Head(r'(.+)_segformer_.*_ade20k-.*', 'maps', 'decode_head=heads'),
    'setr-pup': Head(r'(.+)_setr-pup_.*_ade20k-.*', 'maps', 'decode_head=heads, auxiliary_head=AUXILIARY'),
    'classifier': Head(r'(.+)_in1k', 'folders', 'head=heads'),
}
#: a name in ``Head.model`` -> the list of heads in the base
SEVERAL = dict(BBOX_HEADS='roi_head.bbox_head', AUXILIARY='auxiliary_head')
BOXES_ONLY = """\
boxes = dict(LoadAnnotations=dict(with_mask=False))
train_pipeline = [dict(step, **boxes.get(step.type, {})) for step in _base_.train_pipeline]
test_pipeline = [dict(step, **boxes.get(step.type, {})) for step in _base_.test_pipeline]"""
FEW_IMAGES = """
# Few images: more epochs, and a warm-up that is a share of them.
epochs, interval = {epochs}, {interval}
train_cfg = dict(max_epochs=epochs, val_interval=interval)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, begin=0, end=epochs / 20, convert_to_iter_based=True),
    dict(type='MultiStepLR', begin=0, end=epochs, milestones=[epochs * 3 // 4, epochs * 11 // 12], gamma=0.1),
]
default_hooks = dict(checkpoint=dict(interval=interval, save_best='coco/bbox_mAP'))"""
SEGMENTOR = """
steps = 20000
train_cfg = dict(max_iters=steps, val_interval=steps // 10)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=steps // 40),
    dict(type='PolyLR', power=1.0, eta_min=0.0, by_epoch=False, begin=steps // 40, end=steps),
]
default_hooks = dict(checkpoint=dict(interval=steps // 10, save_best='mIoU'))"""
CLASSIFIER = """\
val_evaluator = dict(topk=(1,))
test_evaluator = val_evaluator

train_cfg = dict(max_epochs=30)
{schedule}
default_hooks = dict(checkpoint=dict(save_best='accuracy/top1'))"""
WARM_UP = 'param_scheduler = dict(t_initial=30, warmup_t=3)'
COSINE = """\
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, begin=0, end=3, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', begin=3, end=30, convert_to_iter_based=True),
]"""


def start(data: str | Path, head: str = 'mask-rcnn', backbone: str = 'nat-t', classes: Sequence[str] = ()) -> Config:
    """Write a config for a folder of images and annotations into this folder, and read it.

    The config has about twenty lines, those that docs/own_data.md explains. If the data is not in parts, a fifth of the
    images, drawn at random, is for validation, and lists of the parts are written beside the annotations. Files that
    exist are not replaced.

    Args:
        data: a folder with annotations in COCO's format, label maps or folders of classes; or a file in COCO's format.
        head: a key of ``mmattn.own_data.HEADS``: mask-rcnn, faster-rcnn, retinanet, upernet, fpn, classifier ...
        backbone: as in the names of configs: nat-t or nat-tiny, elsa-swin-s, shunted-b ...
        classes: of label maps, the names of 0, 1, 2 ...; without them, the lines of classes.txt, if it is there.
            In COCO's format, the classes to learn, in any order; without them, all that have objects. The config has
            them in the order of the file.

    Returns:
        the config; ``filename`` is where it was written.

    Raises:
        InputError: if there is no such head or backbone, or the data is wrong, unclear or missing.
    """
    path = Path(data).expanduser().resolve()
    if not path.exists():
        raise InputError(f'there is no folder {data}')
    base, name = find_config(head, backbone)
    found = READERS[HEADS[head].needs](path, [*classes])
    if 'mask' in head and not found.masks:
        raise InputError(f'the annotations in {data} have no masks, which {head} learns: take faster-rcnn or retinanet')
    with refusing(f'{found.example} cannot be read ({OTHER_IMAGES})'), Image.open(found.example) as image:
        if image.mode[0] in 'IF':
            raise InputError(f'{found.example} has more than 8 bits: {OTHER_IMAGES}')
        if image.format == 'TIFF' and (bands := len(image.getbands())) > 3:
            raise InputError(f'{found.example} has {bands} bands: {OTHER_IMAGES}')
    folder = path if path.is_dir() else path.parent
    with refusing(f'{base} cannot be read'), mmseg_bases():
        cfg = Config.fromfile(base)
    lines = config_lines(cfg, base, head, name, folder, found)
    # MMEngine would replace {{...}} in a name, also by variables of the environment.
    text = '\n'.join(lines).replace('{{', '{\\x7b') + '\n'
    files = {**found.files, (config := folder / f'{head}_{name}.py'): text}
    check_output(*files)
    for file, text in files.items():
        if file.exists() and file.read_text('utf-8') != text:
            raise InputError(f'{file} exists already, with another content: take it as it is, or remove it')
    for file, text in files.items():
        with whole_file(file) as part:
            part.write_text(text, 'utf-8')
    with mmseg_bases():
        return Config.fromfile(config)


def find_config(head: str, backbone: str) -> tuple[Path, str]:
    """The config of a head on a backbone, and the name of the backbone in it.

    Raises:
        InputError: with the names that there are.
    """
    if head not in HEADS:
        raise InputError(f'there is no head {head!r}: take one of {", ".join(HEADS)}')
    package = Path(__file__).parents[1]
    folder = next(one for one in (package / '.mim' / 'configs', package.parent / 'configs') if one.is_dir())
    # those of few epochs first, of papers rather than of baselines, and of several scales
    preference = lambda file: ('3x' in file.stem, 'baselines' in file.parts, 'ms-' not in file.stem, file.stem)
    found: dict[str, dict[str, Path]] = {each: {} for each in HEADS}
    for file in sorted(folder.glob('*/*.py'), key=preference):
        for each, (configs, *_) in HEADS.items():
            # the classifiers of configs/baselines are timm's, for their figures
            match = re.fullmatch(configs, file.stem)
            if match and (each, file.parent.name) != ('classifier', 'baselines'):
                found[each].setdefault(match[1], file)
    for name, file in found[head].items():
        if short(name) == short(backbone):
            return file, name
    heads = [each for each, files in found.items() if short(backbone) in map(short, files)]
    hint = f'; {backbone} is there with {", ".join(heads)}' if heads else near_misses(backbone, found[head]).rstrip('?')
    raise InputError(
        f'there is no config of {head} with {backbone!r}{hint}; {head} is there with {", ".join(sorted(found[head]))}'
    )


def short(backbone: str) -> str:
    """One form of the names of a backbone: nat-t of NAT_tiny."""
    return SIZES.sub(lambda match: match[0][0], re.sub('[_ ]', '-', backbone.lower()))


def config_lines(cfg: Config, base: Path, head: str, backbone: str, folder: Path, found: Data) -> list[str]:
    """The lines of the config for what lies in a folder."""
    _, needs, model = HEADS[head]
    common = '_delete_=True, ' * (needs == 'folders') + f'{written(found.common)}, ' * bool(found.common)
    few = needs != 'folders' and len(found.classes) <= MOST_COLOURS
    palette = found.palette or (colours(found.classes) if few else [])
    counts = ', '.join(f'{number} for {part}' for part, number in found.images.items())
    comment, weights = weights_of(cfg)
    model = model if cfg.model.get('auxiliary_head') else model.replace(', auxiliary_head=heads', '')
    for name, place in SEVERAL.items():
        model = model.replace(name, f'[dict(head, **heads) for head in _base_.model.{place}]')
    return [
        f'# {head} with {backbone}, for {found.what} of {len(found.classes)} classes. Images: {counts}.',
        f'# Weights: {comment}',
        f'_base_ = {base.as_posix()!r}',
        '',
        *listed('classes', found.classes),
        *(listed('palette', palette) if palette else []),
        f'data_root = {folder.as_posix()!r}',
        f'metainfo = dict(classes=classes{", palette=palette" * bool(palette)})',
        f'data = dict({common}data_root=data_root, metainfo=metainfo)',
        *dict(boxes=detector, maps=segmentor, folders=classifier)[needs](cfg, found, 'mask' in head),
        '',
        'heads = dict(num_classes=len(classes))',
        f'model = dict({model}{weights})',
        *['data_preprocessor = heads'] * (needs == 'folders'),
        *['load_from = None'] * bool(cfg.get('load_from')),
    ]


def weights_of(cfg: Config) -> tuple[str, str]:
    """A sentence on the weights that the backbone starts from, and how they are set, if the base does not do it."""
    own = cfg.model.backbone.get('init_cfg')
    checkpoint = (own or (cfg.get('pretrained') or {}).get('init_cfg') or {}).get('checkpoint')
    if not isinstance(checkpoint, str) or checkpoint.startswith('work_dirs/'):
        return 'none are published, the backbone starts from random numbers.', ', backbone=dict(init_cfg=None)'
    try:
        check_source(checkpoint, '')
    except CheckpointError as error:
        return f'none yet, {error}. Then leave out init_cfg=None.', ', backbone=dict(init_cfg=None)'
    return checkpoint, '' if own else ', backbone=dict(init_cfg=_base_.pretrained.init_cfg)'


def detector(cfg: Config, found: Data, masks: bool) -> list[str]:
    """Data, evaluation and schedule of a detector."""
    drop = not masks and any(step.get('with_mask') for step in cfg.train_pipeline)
    pipelines = [f', pipeline={part}_pipeline' * drop for part in ('train', 'test')]
    lines = [*[BOXES_ONLY] * drop, *loaders(found, 'batch_size=2', *pipelines)]
    for part in ('val', 'test'):
        metric = ", metric='bbox'" * drop
        file = f"f'{{data_root}}/{found.datasets.get(part, {}).get('ann_file')}'"
        lines.append(
            f'{part}_evaluator = ' + (f'dict(ann_file={file}{metric})' if part in found.datasets else 'val_evaluator')
        )
    epochs = -(-SEEN // found.images['train'])
    if epochs <= cfg.train_cfg.max_epochs:
        return [*lines, "default_hooks = dict(checkpoint=dict(save_best='coco/bbox_mAP'))"]
    interval = max(1, epochs // 12)
    return [*lines, FEW_IMAGES.format(epochs=epochs // interval * interval, interval=interval)]


def segmentor(cfg: Config, found: Data, _: bool) -> list[str]:
    """Data and schedule of a segmentor."""
    return [*loaders(found, 'batch_size=2'), SEGMENTOR]


def classifier(cfg: Config, found: Data, _: bool) -> list[str]:
    """Data and schedule of a classifier."""
    if cfg.model.type != 'ImageClassifier':
        raise InputError('this classifier learns label maps of its images, which are not there: take another backbone')
    batch = f'batch_size={min(32, found.images["train"])}'
    if cfg.train_dataloader.sampler.type != 'DefaultSampler':  # MMPretrain's for repeated images needs 256 of them
        batch += ", sampler=dict(_delete_=True, type='DefaultSampler', shuffle=True)"
    pipelines = [f', pipeline=_base_.{part}_dataloader.dataset.pipeline' for part in ('train', 'test')]
    schedule = WARM_UP if 't_initial' in cfg.param_scheduler else COSINE
    return [*loaders(found, batch, *pipelines), CLASSIFIER.format(schedule=schedule)]


def loaders(found: Data, batch: str, train: str = '', test: str = '') -> list[str]:
    """The lines of the dataloaders. ``train`` and ``test`` are more arguments of the datasets."""
    parts = {
        part: f'dict(**data, {written(given)}{train if part == "train" else test})'
        for part, given in found.datasets.items()
    }
    return [
        *(f'{part} = {dataset}' for part, dataset in parts.items()),
        f'train_dataloader = dict({batch}, dataset=train)',
        'val_dataloader = dict(dataset=val)',
        f'test_dataloader = {"dict(dataset=test)" if "test" in parts else "val_dataloader"}',
    ]


def colours(classes: Sequence[str]) -> list[list[int]]:
    """Contrasting colours: each hue is as far from all before it as the golden ratio puts it."""
    hues = [(0.6 + 0.618034 * number) % 1 for number, _ in enumerate(classes)]
    return [[round(255 * part) for part in colorsys.hsv_to_rgb(hue, 0.9, 1)] for hue in hues]


def written(arguments: dict[str, Any]) -> str:
    """Arguments as a config has them."""
    values = {key: f'dict({written(one)})' if isinstance(one, dict) else repr(one) for key, one in arguments.items()}
    return ', '.join(f'{key}={value}' for key, value in values.items())


def listed(name: str, values: Sequence[object]) -> list[str]:
    """The lines of a config that give a list a name."""
    rows = ['']
    for value in values:
        rows = [*rows, ''] if len(rows[-1]) + len(repr(value)) > 110 else rows
        rows[-1] += f'{value!r}, '
    if len(rows) == 1 and len(rows[0]) + len(name) < 110:
        return [f'{name} = [{rows[0].rstrip(", ")}]']
    return [f'{name} = [', *(f'    {row.rstrip()}' for row in rows), ']']
