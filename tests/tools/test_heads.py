"""The tools train and test DINO, Mask2Former and RTMDet, and models for Cityscapes, VOC and panoptic COCO."""

import json
import os
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from pycocotools import mask as coco_mask

from tests import ROOT
from tests.configs import like_example

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def toy(tmp_path_factory):
    """Toy COCO and ADE20K, and their images in the formats of Cityscapes, VOC and panoptic COCO."""
    folder = tmp_path_factory.mktemp('data') / 'toy'
    command = [sys.executable, ROOT / 'projects/lab/tools/make_toy_data.py', folder, '--train', '4', '--val', '4']
    subprocess.run(command, check=True, capture_output=True)
    for split, coco_split, ade_split in (('train', 'train2017', 'training'), ('val', 'val2017', 'validation')):
        contents = json.loads((folder / 'coco' / 'annotations' / f'instances_{coco_split}.json').read_text())
        write_cityscapes(folder / 'ADEChallengeData2016', folder / 'cityscapes', split, ade_split)
        write_voc(folder, contents, coco_split, ['VOC2007', 'VOC2012'] if split == 'train' else ['VOC2007'])
        write_panoptic(folder / 'coco', contents, coco_split)
    return folder


def write_cityscapes(ade: Path, root: Path, split: str, ade_split: str) -> None:
    for image in sorted((ade / 'images' / ade_split).glob('*.jpg')):
        labels = cv2.imread(str(ade / 'annotations' / ade_split / f'{image.stem}.png'), cv2.IMREAD_UNCHANGED)
        for kind, suffix, content in (
            ('leftImg8bit', 'leftImg8bit', cv2.imread(str(image))),
            ('gtFine', 'gtFine_labelTrainIds', np.where(labels == 3, 255, labels % 19).astype(np.uint8)),
        ):
            file = root / kind / split / 'town' / f'{image.stem}_{suffix}.png'
            file.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(file), content)


def write_voc(folder: Path, contents: dict, coco_split: str, years: list[str]) -> None:
    names = {entry['id']: ('car', 'dog', 'person')[entry['id'] % 3] for entry in contents['categories']}
    for year in years:
        root = folder / 'VOCdevkit' / year
        for name in ('ImageSets/Main', 'JPEGImages', 'Annotations'):
            (root / name).mkdir(parents=True, exist_ok=True)
        ids = []
        for image in contents['images']:
            stem = f'{coco_split}_{image["id"]:06d}'
            ids.append(stem)
            (root / 'JPEGImages' / f'{stem}.jpg').write_bytes(
                (folder / 'coco' / coco_split / image['file_name']).read_bytes()
            )
            objects = ''
            for entry in contents['annotations']:
                if entry['image_id'] == image['id']:
                    x, y, w, h = entry['bbox']
                    box = zip(('xmin', 'ymin', 'xmax', 'ymax'), (x + 1, y + 1, x + w, y + h))
                    box = ''.join(f'<{key}>{value:.0f}</{key}>' for key, value in box)
                    name = names[entry['category_id']]
                    objects += f'<object><name>{name}</name><difficult>0</difficult><bndbox>{box}</bndbox></object>'
            size = f'<size><width>{image["width"]}</width><height>{image["height"]}</height><depth>3</depth></size>'
            (root / 'Annotations' / f'{stem}.xml').write_text(f'<annotation>{size}{objects}</annotation>')
        split = 'trainval' if coco_split == 'train2017' else 'test'
        (root / 'ImageSets' / 'Main' / f'{split}.txt').write_text('\n'.join(ids))


def write_panoptic(coco: Path, contents: dict, split: str) -> None:
    """Write panoptic annotations: the objects of the instance annotations, and sky everywhere else."""
    from mmdet.datasets import CocoPanopticDataset

    stuff = {name: 101 + index for index, name in enumerate(CocoPanopticDataset.METAINFO['stuff_classes'])}
    folder = coco / 'annotations' / f'panoptic_{split}'
    folder.mkdir()
    annotations = []
    for image in contents['images']:
        segments = [
            dict(id=1, category_id=stuff['sky-other-merged'], iscrowd=0, bbox=[0, 0, image['width'], image['height']])
        ]
        ids = np.ones((image['height'], image['width']), np.uint8)
        for entry in contents['annotations']:
            if entry['image_id'] == image['id']:
                number = len(segments) + 1
                ids[coco_mask.decode(entry['segmentation']) > 0] = number
                keys = ('category_id', 'iscrowd', 'bbox')
                segments.append(dict({key: entry[key] for key in keys}, id=number))
        for segment in segments:
            segment['area'] = int((ids == segment['id']).sum())
        name = image['file_name'].replace('.jpg', '.png')
        cv2.imwrite(str(folder / name), np.stack([np.zeros_like(ids), np.zeros_like(ids), ids], -1))  # BGR
        annotations.append(dict(image_id=image['id'], file_name=name, segments_info=segments))
    categories = [dict(entry, isthing=1) for entry in contents['categories']]
    categories += [dict(id=number, name=name, isthing=0) for name, number in stuff.items()]
    (coco / 'annotations' / f'panoptic_{split}.json').write_text(
        json.dumps(dict(images=contents['images'], annotations=annotations, categories=categories))
    )


def run(tool: str, toy: Path, *arguments: object) -> subprocess.CompletedProcess:
    environment = dict(
        os.environ,
        COCO_ROOT=f'{toy}/coco',
        ADE20K_ROOT=f'{toy}/ADEChallengeData2016',
        CITYSCAPES_ROOT=f'{toy}/cityscapes',
        VOC_ROOT=f'{toy}/VOCdevkit',
        CUDA_VISIBLE_DEVICES='',
    )
    command = [sys.executable, ROOT / 'tools' / f'{tool}.py', *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done


def metrics(folder: Path) -> dict:
    return json.loads(max(folder.glob('*/*.json')).read_text())


def losses(folder: Path) -> list[float]:
    lines = max(folder.glob('*/vis_data/scalars.json')).read_text().splitlines()
    return [entry['loss'] for entry in map(json.loads, lines) if 'loss' in entry]


#: settings for small images in tests
SMALL = [
    'train_dataloader.batch_size=2',
    'model.backbone.init_cfg=None',
    'default_hooks.logger.interval=1',
    'test_dataloader.dataset.pipeline.1.scale=(128,128)',
    'val_dataloader.dataset.pipeline.1.scale=(128,128)',
]
TWO_STEPS = ['train_cfg.max_iters=2', 'train_cfg.val_interval=2', 'default_hooks.checkpoint.interval=2']
CROPPED = [
    'train_dataloader.dataset.pipeline.2.scales=[96]',
    'train_dataloader.dataset.pipeline.3.crop_size=(64,64)',
    'model.data_preprocessor.size=(64,64)',
]
FOUR_IMAGES = ['train_dataloader.dataset.indices=4', 'train_cfg.max_epochs=1']
LOADED = 'train_dataloader.dataset.pipeline'
#: a small image has fewer pixels than DINO has queries
FEW_QUERIES = ['model.num_queries=50', 'model.test_cfg.max_per_img=50']
TRAIN_SETS = 'train_dataloader.dataset.dataset.datasets'


@pytest.mark.parametrize(
    'variant, example, options, last, metric',
    [
        (
            'elsa-swin-t',
            'elsa-swin-t_mask2former_8xb2-90k_cityscapes-512x1024',
            TWO_STEPS + CROPPED,
            'iter_2.pth',
            'mIoU',
        ),
        (
            'elsa-swin-t',
            'dino-4scale_elsa-swin-t_8xb2-12e_coco',
            [
                *FOUR_IMAGES,
                *(f'{LOADED}.3.transforms.{place}.scales=[(96,96)]' for place in ('0.0', '1.0', '1.2')),
                *FEW_QUERIES,
            ],
            'epoch_1.pth',
            'coco/bbox_mAP',
        ),
        (
            'msf-swin-t',
            'rtmdet_l_elsa-swin-t_4xb32-100e_coco',
            [
                *FOUR_IMAGES,
                *(
                    f'{LOADED}.{step}=(96,96)'
                    for step in ('2.img_scale', '3.scale', '4.crop_size', '7.size', '8.img_scale')
                ),
            ],
            'epoch_1.pth',
            'coco/bbox_mAP',
        ),
        (
            'shunted-s',
            'retinanet_elsa-swin-t_fpn_1x_voc0712',
            [
                'train_cfg.max_epochs=1',
                'train_dataloader.dataset.times=1',
                *(f'{TRAIN_SETS}.{i}.{option}' for i in (0, 1) for option in ('indices=2', 'pipeline.2.scale=(96,96)')),
                *(f'{TRAIN_SETS}.{i}.filter_cfg.bbox_min_size=1' for i in (0, 1)),
            ],
            'epoch_1.pth',
            'pascal_voc/mAP',
        ),
        (
            'shunted-s',
            'mask2former_elsa-swin-t_8xb2-lsj-50e_coco-panoptic',
            [
                *TWO_STEPS,
                'train_dataloader.dataset.pipeline.3.scale=(96,96)',
                'train_dataloader.dataset.pipeline.4.crop_size=(96,96)',
                'model.data_preprocessor.batch_augments.0.size=(96,96)',
            ],
            'iter_2.pth',
            'coco_panoptic/PQ',
        ),
    ],
)
def test_two_steps(toy, tmp_path, variant, example, options, last, metric):
    """Models of full size train two steps on small images of each data set, and the checkpoint can be tested."""
    if 'panoptic' in example:
        pytest.importorskip('panopticapi')
    config = like_example(tmp_path, variant, example)
    run('train', toy, config, '--work-dir', tmp_path / 'work', '--cfg-options', *SMALL, *options)
    assert len(losses(tmp_path / 'work')) == 2 and np.isfinite(losses(tmp_path / 'work')).all()
    run(
        'test',
        toy,
        config,
        tmp_path / 'work' / last,
        '--work-dir',
        tmp_path / 'test',
        '--cfg-options',
        *SMALL,
        *options,
    )
    assert np.isfinite(metrics(tmp_path / 'test')[metric])
