"""Check every image and annotation of a data set, draw the first images, and count what each class has.

    python tools/browse.py configs/elsa_swin/mask-rcnn_elsa-swin-t_fpn_ms-1x_coco.py --out look

It counts objects for a detector, pixels for a segmentor, images for a classifier. The checks are the same as in
training, see docs/robustness.md of mmguard. Images are not resized, cropped or flipped. For each image that cannot be
used, the tool prints a sentence and continues; for a label that is no class, it prints one for all label maps. Then the
exit status is 1.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.registry import EVALUATOR, MODELS, DefaultScope
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement
from rich.console import Console
from rich.progress import track

from mmguard.checks.datasets import check_batches, check_dataset, check_files, check_metrics, ignored_labels
from mmguard.checks.images import CheckedPipeline, unknown_label
from mmguard.errors import InputError, describe
from mmguard.outputs import check_output
from mmguard.prediction.drawing import colors_of, draw_sample, write_image
from mmguard.prediction.predict import class_names
from mmguard.runs.configs import SCOPES, add_config, load_config, package_of
from mmguard.runs.running import run_tool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_config(parser)
    parser.add_argument('--out', type=Path, required=True, help='folder for the drawn images')
    parser.add_argument('--split', choices=('train', 'val', 'test'), default='train', help='default: train')
    parser.add_argument('--draw', type=int, default=50, metavar='NUMBER', help='number of images to draw (default: 50)')
    args = parser.parse_args()
    if args.draw < 0:
        raise InputError(f'--draw must be 0 or more, not {args.draw}')

    cfg = load_config(args.config, args.cfg_options, row=args.row)
    scope = package_of(cfg)
    if scope not in SCOPES:
        sys.exit(f'{args.config} is not for a detector, segmentor or classifier: its default_scope names no package.')
    check_output(args.out / 'drawn.jpg')
    check_split(cfg, args.split)
    with DefaultScope.overwrite_default_scope(scope):
        datasets = read_datasets(cfg, args.split)
    wrong = sum(browse(*dataset, args) for dataset in datasets)
    if wrong:
        sys.exit(f'{wrong} of {sum(len(dataset) for dataset, *_ in datasets)} images cannot be used.')


def check_split(cfg: Config, split: str) -> None:
    """Check the files of a split. Those of training and validation are compared, as a training does, if both are there.

    Raises:
        InputError: see :func:`mmguard.checks.datasets.check_files`.
    """
    if cfg.get(f'{split}_dataloader') is None:
        raise InputError(f'the config has no {split}_dataloader: name another --split')
    check_files(cfg, split)
    other = dict(train='val', val='train').get(split)
    if other and cfg.get(f'{other}_dataloader') is not None:
        try:
            check_files(cfg, 'train', 'val')
        except InputError as error:
            if not str(error).startswith(f'{other}_'):
                raise
            print(f'{split} is not compared with {other}: {describe(error)}', file=sys.stderr)


def read_datasets(cfg: Config, split: str) -> list[tuple[BaseDataset, list[str], list[int]]]:
    """The checked datasets of a split, each with the names of its classes and the labels that are ignored.

    Their pipelines only load and pack images and annotations, and let all labels pass, so that they can be counted.
    """
    if cfg.get('data_preprocessor'):  # a classifier's, as a Runner hands it over
        cfg.model.setdefault('data_preprocessor', cfg.data_preprocessor)
    model = MODELS.build(cfg.model)
    dataloader = Runner.build_dataloader(cfg[f'{split}_dataloader'])
    found = list(packed_datasets(dataloader.dataset))
    for dataset, _ in found:
        check_dataset(dataset, model)
    check_batches(dataloader)
    evaluator = cfg.get(f'{split}_evaluator')
    if evaluator:
        if 'metrics' not in evaluator:
            evaluator = dict(metrics=evaluator)
        check_metrics(EVALUATOR.build(dict(evaluator), default_args=dict(type='Evaluator')), dataloader.dataset)
    datasets = []
    for dataset, pack in found:
        if not pack:
            raise InputError(
                f'{split}_dataloader: no transform of its dataset packs what it loads, as PackDetInputs, PackSegInputs '
                'and PackInputs do: add one to the end of the pipeline'
            )
        load = [t for t in dataset.pipeline.transforms if type(t).__name__.startswith('Load')]
        dataset.pipeline.transforms = load + pack
        dataset.pipeline = CheckedPipeline(dataset.pipeline, dataset, ignored=range(256))
        classes = [str(name) for name in dataset.metainfo.get('classes') or class_names(model)[0]]
        datasets.append((dataset, classes, ignored_labels(model)))
    return datasets


def packed_datasets(dataset: object, pack: Sequence[object] = ()) -> Iterator[tuple[BaseDataset, list[object]]]:
    """Each dataset that reads data, below all that wrap them, and the transform that packs what it reads: its own, or
    that of a wrapper such as MultiImageMixDataset, whose datasets only load."""
    dataset = getattr(dataset, '_dataset', dataset)  # of MMEngine's wrapper for num_batch_per_epoch
    pipeline = getattr(dataset, 'pipeline', None) or ()
    transforms = getattr(pipeline, 'transforms', pipeline)  # MultiImageMixDataset has a list
    pack = [t for t in transforms if type(t).__name__.startswith('Pack')] or list(pack)
    if isinstance(dataset, BaseDataset):
        yield dataset, pack
    for part in getattr(dataset, 'datasets', None) or [getattr(dataset, 'dataset', None)]:
        if part is not None:
            yield from packed_datasets(part, pack)


def browse(dataset: BaseDataset, classes: list[str], ignored: list[int], args: argparse.Namespace) -> int:
    """Check and draw the images of a dataset, print a line for each class, and return the number of unusable images."""
    sizes, images, wrong = Counter(), Counter(), 0
    name = dataset.ann_file or next(iter(dataset.data_prefix.values()))
    colors = colors_of(dataset.metainfo.get('palette'), len(classes))
    unknown = Counter()  # label maps by the first of their labels that is no class
    for index in track(range(len(dataset)), name, console=Console(stderr=True)):
        try:
            sample = dataset[index]
        except InputError as error:
            print(describe(error), file=sys.stderr)
            wrong += 1
            continue
        labels, image, annotated = read(sample, args.split)
        sizes.update(labels)
        images.update(set(labels))
        unknown.update(sorted(label for label in labels if label >= len(classes) and label not in ignored)[:1])
        if index < args.draw:
            stem = Path(annotated.get('img_path', '')).stem[:50]  # a longer name may not fit behind the number
            write_image(
                args.out / f'{args.split}_{index:06d}_{stem}', draw_sample(image, annotated, 'gt', classes, colors)
            )
    unit = 'pixels' if hasattr(dataset, 'label_map') else '' if hasattr(type(dataset), 'class_to_idx') else 'objects'
    print(f'{name}: {len(dataset)} images')
    others = [
        (label, 'is ignored' if label in ignored else 'is no class') for label in sorted(sizes) if label >= len(classes)
    ]
    for label, text in [*enumerate(classes), *others]:
        count = f'{sizes[label]:12d} {unit} in ' if unit else ''
        print(f'{label:4d} {text:30s} {count}{images[label]:6d} images')
    for label, number in unknown.items():
        print(f'{number} label maps of {name} have {unknown_label(label, len(classes), ignored)}', file=sys.stderr)
    return wrong + unknown.total()


def read(sample: dict, split: str) -> tuple[Counter, np.ndarray, BaseDataElement]:
    """How many objects, pixels or images each label has, the image, BGR or grey, and the annotations to draw.

    Raises:
        InputError: if there are no annotations.
    """
    annotated = sample['data_samples']
    image = sample['inputs'].permute(1, 2, 0).contiguous().numpy()
    if 'gt_label' in annotated:
        return Counter(annotated.gt_label.tolist()), image, annotated
    if 'gt_sem_seg' in annotated and 'gt_instances' not in annotated:
        pixels = annotated.gt_sem_seg.data.flatten().bincount().tolist()  # unique() would sort a copy
        return +Counter(dict(enumerate(pixels))), image, annotated
    if 'labels' in annotated.get('gt_instances', ()):
        return Counter(annotated.gt_instances.labels.tolist()), image, annotated
    raise InputError(
        f'{split}_dataloader loads no annotations: add LoadAnnotations to its pipeline, or name another --split'
    )


if __name__ == '__main__':
    run_tool(main)
