"""The configs of this repository."""

from pathlib import Path

import yaml
from mmengine.config import Config

from mmguard.runs.rows import read_row
from tests import ROOT

CONFIGS = ROOT / 'configs'
METAFILES = sorted(CONFIGS.glob('*/metafile.yml'))
#: name of a model in a metafile -> its entry, and its config
ENTRIES = {entry['Name']: entry for file in METAFILES for entry in yaml.safe_load(file.read_text())['Models']}
PAPERS = {name: ROOT / entry['Config'] for name, entry in ENTRIES.items()}
#: variant of a backbone -> its folder, the other bases of its detectors and of its segmentors, and other settings
VARIANTS = {
    'elsa-swin-t': ('elsa_swin', [], [], ''),
    'msf-swin-t': ('msf', [], [], ''),
    'shunted-s': ('shunted', ['../_base_/sync_norm.py'], [], 'norm_cfg=_base_.sync_norm, '),
    'gsa-r50': (
        'gsa',
        ['./_base_/coco.py', '../_base_/sync_norm.py'],
        ['./_base_/ade20k.py'],
        'norm_cfg=_base_.sync_norm, **_base_.settings, ',
    ),
}


def named(name: str) -> Config:
    """The config of a model of a metafile."""
    return read_row(PAPERS[name])


def like_example(folder: Path, variant: str, example: str) -> Path:
    """An example of elsa_swin written for another variant, in a folder, as configs/README.md says."""
    paper, for_detectors, for_segmentors, settings = VARIANTS[variant]
    text = (CONFIGS / 'elsa_swin' / f'{example}.py').read_text()
    others = for_detectors if '_delete_' in text else for_segmentors
    bases = ', '.join(f"'{base}'" for base in (f'./_base_/{variant}.py', *others))
    text = text.replace("'./_base_/elsa-swin-t.py'", bases).replace('drop_path_rate=', f'{settings}drop_path_rate=')
    path = folder / f'{example.replace("elsa-swin-t", variant)}.py'
    path.write_text(text.replace("'./", f"'{CONFIGS / paper}/").replace("'../", f"'{CONFIGS}/"))
    return path


#: a classifier of grey images
GREY = f"""
_base_ = {str(ROOT / 'projects/lab/configs/toy/elsa-swin-toy_in1k.py')!r}
model = dict(backbone=dict(in_channels=1))
data_preprocessor = dict(mean=[127.5], std=[58.0], to_rgb=False)
test_dataloader = dict(dataset=dict(pipeline=[dict(type='LoadImageFromFile', color_type='grayscale')]
    + _base_.test_pipeline[1:]))
"""

#: a segmentor of images with four bands, which its pipelines normalise
FOUR_BANDS = f"""
_base_ = {str(ROOT / 'projects/lab/configs/toy/shunted-toy_fpn.py')!r}
read = [
    dict(type='LoadImageFromFile', color_type='unchanged'),
    dict(type='Normalize', mean=[90.0, 100.0, 110.0, 120.0], std=[40.0, 50.0, 60.0, 70.0], to_rgb=False),
]
train_dataloader = dict(dataset=dict(pipeline=read + _base_.train_pipeline[1:]))
val_dataloader = dict(dataset=dict(pipeline=read + _base_.test_pipeline[1:]))
test_dataloader = val_dataloader
model = dict(
    data_preprocessor=dict(_delete_=True, type='SegDataPreProcessor', size=(128, 128)), backbone=dict(in_channels=4)
)
"""
#: a segmentor of grey images
GREY_MAPS = f"""
_base_ = {str(ROOT / 'projects/lab/configs/toy/shunted-toy_fpn.py')!r}
read = [dict(type='LoadImageFromFile', color_type='grayscale')]
train_dataloader = dict(dataset=dict(pipeline=read + _base_.train_pipeline[1:]))
val_dataloader = dict(dataset=dict(pipeline=read + _base_.test_pipeline[1:]))
test_dataloader = val_dataloader
model = dict(data_preprocessor=dict(mean=[127.5], std=[58.0], bgr_to_rgb=False), backbone=dict(in_channels=1))
"""
