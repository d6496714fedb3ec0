"""The lines of configs/msf/README.md that read an archive of iNaturalist."""

import json
import re

import cv2
import numpy as np
import pytest
from mmengine.registry import DATASETS, DefaultScope

from mmguard.runs.rows import read_row
from tests.configs import CONFIGS


def write_archive(folder, year):
    """An archive like iNaturalist's, whose annotations have another order than its images; file -> its label."""
    written = {}
    for split, classes in ((f'train{year}', (7, 0, 1009)), (f'val{year}', (3,))):
        images, annotations = [], []
        for number, label in enumerate(classes):
            name = f'train_val{year}/Amphibians/{label}/{split}{number}.jpg'
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(folder / name), np.zeros((40, 50, 3), np.uint8))
            images.append(dict(id=100 + number, file_name=name))
            annotations.append(dict(id=number, image_id=100 + number, category_id=label))
            written[str(folder / name)] = label
        content = dict(images=images, annotations=annotations[::-1], categories=[])
        (folder / f'{split}.json').write_text(json.dumps(content))
    return written


@pytest.mark.parametrize('year', ['2018', '2019'])
def test_lines_of_the_page(tmp_path, monkeypatch, year):
    """The lists that they write are what the configs of iNaturalist read: every image has its own label, and loads."""
    written = write_archive(tmp_path, year)
    (lines,) = re.findall('```python\n(.*?)```', (CONFIGS / 'msf' / 'README.md').read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(lines.replace('2018', year), {})
    monkeypatch.setenv(f'INAT{year}_ROOT', str(tmp_path))
    cfg, found = read_row(CONFIGS / 'msf' / f'msf-vit-s_inat{year}.py'), {}
    for loader in (cfg.train_dataloader, cfg.val_dataloader):
        with DefaultScope.overwrite_default_scope('mmpretrain'):
            dataset = DATASETS.build(loader.dataset)
        assert dataset[0]['inputs'].shape == (3, 224, 224)
        found.update((info['img_path'], info['gt_label']) for info in map(dataset.get_data_info, range(len(dataset))))
    assert found == written
