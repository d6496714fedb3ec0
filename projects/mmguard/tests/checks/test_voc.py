"""Annotations of VOC are checked when MMDetection reads them."""

import pytest
from mmdet.registry import DATASETS
from mmengine.config import Config
from PIL import Image

from mmguard.checks.datasets import use_checked_datasets
from mmguard.checks.voc import CheckedXMLDataset
from mmguard.errors import InputError

SIZE = '<size><width>40</width><height>30</height></size>'


def thing(name='dog', corners=(5, 6, 15, 12), more=''):
    box = ''.join(f'<{key}>{value}</{key}>' for key, value in zip(('xmin', 'ymin', 'xmax', 'ymax'), corners))
    return f'<object><name>{name}</name>{more}<bndbox>{box}</bndbox></object>'


def build(folder, *files, kind='XMLDataset', classes=('dog', 'cat'), **settings):
    """A dataset of files 0.xml, 1.xml ... as a config of ours builds it."""
    for name in ('Annotations', 'JPEGImages'):
        (folder / name).mkdir(exist_ok=True)
    for number, text in enumerate(files):
        (folder / 'Annotations' / f'{number}.xml').write_text(f'<annotation>{text}</annotation>')
        Image.new('RGB', (40, 30)).save(folder / 'JPEGImages' / f'{number}.jpg')
    if not (folder / 'list.txt').exists():
        (folder / 'list.txt').write_text('\n'.join(map(str, range(len(files)))))
    dataset = dict(type=kind, data_root=str(folder), ann_file='list.txt', data_prefix=dict(sub_data_root=''))
    dataset.update(metainfo=dict(classes=classes), **settings)
    cfg = Config(dict(default_scope='mmdet', train_dataloader=dict(dataset=dataset)))
    use_checked_datasets(cfg)
    return DATASETS.build(cfg.train_dataloader.dataset)


@pytest.mark.parametrize('kind', ['XMLDataset', 'VOCDataset'])
def test_right_annotations_are_read(tmp_path, kind, log):
    """As MMDetection reads them; the log has what is left out, with the names of classes."""
    files = thing() + thing('cow') + thing('cat', (1, 1, 41, 31), '<difficult>1</difficult>'), SIZE + thing('cat')
    dataset = build(tmp_path, *files, kind=kind, filter_cfg=dict(bbox_min_size=1))
    assert isinstance(dataset, CheckedXMLDataset) and len(dataset) == 2
    first = dataset.get_data_info(0)['instances']
    assert [one['bbox'] for one in first] == [[4, 5, 14, 11], [0, 0, 40, 30]]
    left_out = "1 marked as difficult, 1 of classes that metainfo.classes does not have: 1 'cow'"
    assert f'list.txt: 2 objects are used, left out are {left_out}' in ' '.join(log)


@pytest.mark.parametrize(
    'files, settings, message',
    [
        ([SIZE + thing(corners=(15, 6, 5, 12))], {}, '0.xml: dog has swapped corners, 15, 6 and 5, 12: put the'),
        ([SIZE + thing(corners=(50, 6, 60, 12))], {}, r'0.xml: dog has bbox .*, outside of its image of 40 x 30'),
        ([SIZE + thing('dgo')], {}, "list.txt has no object to learn from, .* metainfo.classes does not have: 1 'dgo'"),
        ([SIZE + thing()], dict(filter_cfg=dict(min_size=32)), 'all are smaller than filter_cfg.min_size'),
        ([SIZE + thing(more='<difficult>a</difficult>')], {}, '0.xml: <difficult> is no number'),
        ([SIZE + '<object>'], {}, '0.xml: is not an XML file: ParseError'),
        ([thing()], dict(classes='dog'), "metainfo.classes for .* is 'dog', which should be a tuple"),
        ([thing()], dict(test_mode=True, filter_cfg=dict(bbox_min_size=1)), 'bbox_min_size leaves out objects for'),
    ],
)  # fmt: skip
def test_wrong_annotations_are_refused(tmp_path, files, settings, message):
    """A sentence names the file and what is wrong in it."""
    with pytest.raises(InputError, match=message):
        build(tmp_path, *files, **settings)


def test_missing_files_are_named(tmp_path):
    """The XML file of a name in the list, and its image, which must be .jpg."""
    (tmp_path / 'list.txt').write_text('0\nb')
    with pytest.raises(InputError, match=r'Annotations/b.xml: cannot be read: FileNotFoundError'):
        build(tmp_path, SIZE + thing())
    (tmp_path / 'Annotations' / 'b.xml').write_text(f'<annotation>{thing()}</annotation>')
    (tmp_path / 'JPEGImages' / 'b.png').touch()
    with pytest.raises(InputError, match=r'b.xml has no image JPEGImages/b.jpg: XMLDataset reads .jpg only'):
        build(tmp_path)
    (tmp_path / 'list.txt').write_text('')
    with pytest.raises(InputError, match='list.txt lists no image'):
        build(tmp_path)


def test_boxes_beyond_the_image_are_counted(tmp_path, log):
    """They may be of another image."""
    build(tmp_path, SIZE + thing(corners=(5, 6, 50, 12)))
    assert 'list.txt: 1 boxes reach out of their images' in ' '.join(log)
