"""Check every image and annotation of a data set, draw the first images, and count the objects or pixels of each class.

    python tools/browse.py configs/elsa_swin/mask-rcnn_elsa-swin_fpn_ms-1x_coco.py --out look

The config must be for a detector or a segmentor. The checks are the same as in training, see docs/robustness.md. Images
are not resized, cropped or flipped. For each image that cannot be used, the tool prints a sentence and continues. Then
the exit status is 1.
"""

import argparse
import os
import sys
from collections import Counter
from pathlib import Path

import torch
from mmengine.config import Config, DictAction
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS, MODELS, VISUALIZERS, DefaultScope
from mmengine.structures import BaseDataElement
from mmengine.visualization import Visualizer

from mmattn.checks.datasets import check_dataset, check_files, ignored_labels, inner_datasets
from mmattn.checks.images import CheckedPipeline
from mmattn.errors import InputError, describe
from mmattn.runs.configs import load_config
from mmattn.runs.outputs import check_output, whole_file
from mmattn.runs.running import run_tool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help='config of MMDetection or MMSegmentation')
    parser.add_argument('--out', type=Path, required=True, help='folder for the drawn images')
    parser.add_argument('--split', choices=('train', 'val', 'test'), default='train', help='default: train')
    parser.add_argument('--draw', type=int, default=50, metavar='NUMBER', help='number of images to draw (default: 50)')
    parser.add_argument('--cfg-options', nargs='+', action=DictAction, help='settings to override, key.key=value ...')
    args = parser.parse_args()

    cfg = load_config(args.config, args.cfg_options)
    if cfg.get('default_scope') not in ('mmdet', 'mmseg'):
        sys.exit(f'{args.config} is not for a detector or segmentor: use browse_dataset.py of MMPretrain.')
    check_output(args.out / 'drawn.jpg')
    check_files(cfg, args.split)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        datasets = read_datasets(cfg, args.split)
        visualizer = VISUALIZERS.build(dict(cfg.visualizer, vis_backends=None))
    wrong = sum(browse(dataset, visualizer, args) for dataset in datasets)
    if wrong:
        sys.exit(f'{wrong} of {sum(map(len, datasets))} images cannot be used.')


def read_datasets(cfg: Config, split: str) -> list[BaseDataset]:
    """The checked datasets of a split. Their pipelines only load and pack images and annotations."""
    model = MODELS.build(cfg.model)
    datasets = list(inner_datasets(DATASETS.build(cfg[f'{split}_dataloader'].dataset)))
    for dataset in datasets:
        check_dataset(dataset, model)
        transforms = dataset.pipeline.transforms
        dataset.pipeline.transforms = [t for t in transforms if type(t).__name__.startswith(('Load', 'Pack'))]
        dataset.pipeline = CheckedPipeline(dataset.pipeline, dataset, ignored_labels(model))
    return datasets


def browse(dataset: BaseDataset, visualizer: Visualizer, args: argparse.Namespace) -> int:
    """Check and draw the images of a dataset, print a line for each class, and return the number of unusable images."""
    visualizer.dataset_meta = dataset.metainfo
    classes, sizes, images, wrong = dataset.metainfo['classes'], Counter(), Counter(), 0
    for index in range(len(dataset)):
        try:
            sample = dataset[index]
        except InputError as error:
            print(describe(error), file=sys.stderr)
            wrong += 1
            continue
        labels, image, annotated = read(sample)
        sizes.update(labels)
        images.update(set(labels))
        if index < args.draw:
            name = Path(annotated.img_path).stem[:50]  # a longer name may not fit behind the number
            with whole_file(args.out / f'{args.split}_{index:06d}_{name}.jpg') as part:
                visualizer.add_datasample(name, image, annotated, draw_pred=False, out_file=os.fspath(part))
    unit = 'pixels' if hasattr(dataset, 'label_map') else 'objects'
    print(f'{dataset.ann_file or dataset.data_prefix["img_path"]}: {len(dataset)} images')
    ignored = [(label, 'is ignored') for label in sorted(sizes) if label >= len(classes)]
    for label, name in [*enumerate(classes), *ignored]:
        print(f'{label:4d} {name:30s} {sizes[label]:12d} {unit} in {images[label]:6d} images')
    return wrong


def read(sample: dict) -> tuple[Counter, object, BaseDataElement]:
    """The number of objects or pixels of each label, the image (H, W, 3) in RGB, and the annotations to draw."""
    annotated = sample['data_samples']
    image = sample['inputs'].permute(1, 2, 0).flip(-1).contiguous().numpy()
    if 'gt_instances' not in annotated:
        labels, pixels = annotated.gt_sem_seg.data.unique(return_counts=True)
        return Counter(dict(zip(labels.tolist(), pixels.tolist()))), image, annotated
    objects = annotated.gt_instances
    objects.bboxes = torch.as_tensor(getattr(objects.bboxes, 'tensor', objects.bboxes))
    return Counter(objects.labels.tolist()), image, annotated


if __name__ == '__main__':
    run_tool(main)
