"""Folders of images without labels, whatever is in them, and batches of several sizes."""

import copy
import functools
import os
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import DefaultSampler
from mmengine.runner import Runner
from PIL import Image
from torch import nn

pytest.importorskip('mmpretrain')

from mmattn.errors import InputError
from mmattn_distillation import unlabelled
from mmattn_distillation.unlabelled import MultiScaleBatchSampler, UnlabelledImages, is_held_out
from mmattn_distillation.views import FixedViews, PackViews, StudentColors, ViewCrop, ViewPreprocessor
from mmguard.checks.datasets import check_built_datasets, check_dataset, check_files
from mmguard.runs.seeds import SeedHook
from projects.mmguard.tests.runs.small_training import Killed, Model, build

LOAD, PACK = dict(type='LoadImageFromFile'), dict(type='PackViews')
CROP = dict(type='ViewCrop', scale=16)
COLORS = dict(type='StudentColors', transforms=[dict(type='mmpretrain.ColorJitter', brightness=0.9)])
SIZES = [dict(size=16, share=0.5), dict(size=(32, 32), share=0.5, crop_ratio_range=(0.5, 1))]


def write(path, seed=0, size=(24, 18), mode='RGB', **options):
    """Write an image of random pixels; returns its path as text."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 4), np.uint8)
    Image.fromarray(pixels[..., :3]).convert(mode).save(path, **options)
    return str(path)


@pytest.fixture(scope='module')
def photos(tmp_path_factory):
    """A folder of 24 images in three folders."""
    root = tmp_path_factory.mktemp('photos')
    for number in range(24):
        write(root / f'day{number % 3}' / f'{number:02}.png', number)
    return str(root)


@pytest.fixture
def log(tmp_path, monkeypatch):
    """Returns the lines in the log, those of data workers too."""
    path = tmp_path / 'log'
    path.touch()

    def warn(sentence):
        with path.open('a') as file:
            file.write(sentence + '\n')

    monkeypatch.setattr(unlabelled, 'warn', warn)
    return lambda: path.read_text().splitlines()


def names(root, **arguments):
    """The names of the images that a dataset lists."""
    return [info['name'] for info in UnlabelledImages(str(root), lazy_init=True, **arguments).load_data_list()]


def test_any_folder(tmp_path):
    """Images are found however deep they lie and whatever they are called, each once; hidden files are left out."""
    root, odd = (
        tmp_path / 'a b',
        ['z.JPG', 'deep/er/ä é.Png', 'deep/er/日 本\n1.jpeg', os.fsdecode(b'deep/\xff\xfe.TIF')],
    )
    for number, name in enumerate(odd):
        write(root / name, number, format='PNG')
    for name in ('.hidden/a.jpg', 'deep/._b.jpg', 'c.gif'):
        write(root / name)
    (root / 'deep' / 'notes.txt').write_text('none')
    (root / 'deep' / 'round').symlink_to(root)
    (root / 'deep' / 'again').symlink_to(root / 'deep' / 'er')
    write(tmp_path / 'other' / 'a.bmp')
    (root / 'linked').symlink_to(tmp_path / 'other')
    dataset = UnlabelledImages(str(root), [LOAD, CROP, PACK])
    found = [name.replace('again', 'er') for name in names(root)]
    assert found == sorted(found) == sorted([*odd, 'linked/a.bmp'])
    assert [dataset[index]['inputs'].shape for index in range(len(dataset))] == [(3, 16, 16)] * 5


def test_broken_files_are_named(tmp_path, log):
    """The log has the number of files that are not images and the first six names; only the others are read."""
    root = tmp_path / 'photos'
    good = [write(root / name) for name in ('b.jpg', 'd/e.png')]
    (root / 'a.jpg').touch()
    (root / 'c.png').write_text('no image')
    for name in ('d/f.jpg', 'd/g.png'):
        write(root / name, size=(64, 64))
        os.truncate(root / name, os.path.getsize(root / name) // 2)
    (root / 'h.jpg').symlink_to(root / 'nothing')
    os.mkfifo(root / 'i.jpg')
    (root / 'j.jpg').write_bytes(b'\xff\xd8\xff\xd9')
    (root / os.fsdecode(b'k\xff\n.jpg')).touch()
    (root / 'l.png').mkdir()
    assert [str(root / name) for name in names(root)] == good
    (line,) = log()
    assert line == (
        f'{root}: 8 of 10 images cannot be used and are left out: a.jpg (empty), c.png (no image), '
        'd/f.jpg (cut short), d/g.png (cut short), h.jpg (no file), i.jpg (no file), ...'
    )


def test_folders_without_images(tmp_path):
    """A folder that is missing, empty or full of broken files is refused in a sentence."""
    with pytest.raises(InputError, match='there is no image folder .*/photos: set data_root'):
        UnlabelledImages(str(tmp_path / 'photos'))
    (tmp_path / 'notes.txt').touch()
    with pytest.raises(InputError, match=r'has no image \(.jpg, .*\): set data_root'):
        UnlabelledImages(str(tmp_path))
    (tmp_path / 'a.jpg').touch()
    with pytest.raises(InputError, match=r': none of 1 images can be used: a.jpg \(empty\)$'):
        UnlabelledImages(str(tmp_path))


def spoil(root, *numbers):
    """Spoil images in a way that only loading finds: the header is that of an image OpenCV does not know."""
    for path in sorted(root.rglob('*.png')):
        if int(path.stem) in numbers:
            write(path, format='PCX')


@pytest.fixture
def spoilt(tmp_path):
    """A folder of six images; 2 and 5 cannot be loaded."""
    for number in range(6):
        write(tmp_path / 'photos' / f'{number}.png', number)
    spoil(tmp_path / 'photos', 2, 5)
    return tmp_path / 'photos'


@pytest.mark.parametrize('workers, checked', [(0, False), (0, True), (2, True)])
def test_images_that_cannot_be_loaded(spoilt, log, workers, checked):
    """The next one takes the place, the log names each once, and nothing is drawn, with or without the check hook."""
    loader = dict(batch_size=1, num_workers=workers, sampler=dict(type='DefaultSampler', shuffle=False))
    loader['dataset'] = dict(type='UnlabelledImages', data_root=str(spoilt), pipeline=[LOAD, PACK])
    loader = Runner.build_dataloader(loader, seed=0)
    if checked:
        check(loader)
    state = np.random.get_state()[1].tolist()
    for _ in range(2):
        paths = [batch['data_samples'][0].img_path for batch in loader]
        assert [os.path.basename(path)[0] for path in paths] == list('013340')
    assert np.random.get_state()[1].tolist() == state
    lines = log()
    assert all('cannot be used: ' in line and line.endswith('; the next image takes its place') for line in lines)
    assert sorted(line.split('.png')[0][-1] for line in lines) == list('25')


def check(loader):
    """Check the dataset of a dataloader as a run does."""
    runner = SimpleNamespace(build_dataloader=lambda: loader, model=nn.Identity())
    check_built_datasets(runner)
    runner.build_dataloader()


def test_no_image_can_be_loaded(spoilt, log, monkeypatch):
    """A run ends if images cannot be loaded one after the other; it does not try a million."""
    monkeypatch.setattr(unlabelled, 'TRIES', 4)
    spoil(spoilt, *range(6))
    dataset = copy.deepcopy(UnlabelledImages(str(spoilt), [LOAD, PACK]))  # as MMEngine's get_subset copies it
    with pytest.raises(InputError, match='4 images in a row cannot be loaded, the first being: .*3.png cannot be'):
        dataset[3]
    with pytest.raises(InputError, match='2 images in a row'):
        dataset[3]
    with pytest.raises(InputError, match='no image can be loaded, and the log says why'):
        dataset[3]
    assert len(log()) == 6


def test_mistakes_in_the_pipeline_end_the_run(photos):
    """Only errors of loading are taken for broken images."""
    with pytest.raises(ZeroDivisionError):
        UnlabelledImages(photos, [LOAD, lambda data: 1 / 0])[0]
    with pytest.raises(InputError, match='24 images in a row .* a transform returned None'):
        UnlabelledImages(photos, [lambda data: None])[0]


def test_held_out_images(tmp_path):
    """Both splits are disjoint and complete, and stay as they are when images are added or the folder is moved."""
    for number in range(40):
        write(tmp_path / 'a' / f'{number}.png')
    splits = [names(tmp_path / 'a', held_out=0.3, split=split) for split in ('train', 'held_out')]
    assert sorted(splits[0] + splits[1]) == names(tmp_path / 'a') and 6 < len(splits[1]) < 18
    (tmp_path / 'a').rename(tmp_path / 'b')
    write(tmp_path / 'b' / '0' / '0.png')
    moved = names(tmp_path / 'b', held_out=0.3, split='held_out')
    assert set(splits[1]) == set(moved) - {'0/0.png'}
    assert [number for number in range(30) if is_held_out(f'{number}.jpg', 0.1)] == [2, 5, 21, 23]
    with pytest.raises(InputError, match="has 41 images, but none for split='held_out' with held_out=1e-09"):
        names(tmp_path / 'b', held_out=1e-9, split='held_out')


@pytest.mark.parametrize(
    'wrong, message',
    [
        (dict(split='held_out'), "held_out must be above 0 for split='held_out'"),
        (dict(indices=0), 'indices must be whole numbers'),
        (dict(indices=[3, 24]), 'has 24 images that can be used, too few for indices'),
    ],
)
def test_wrong_arguments_of_datasets(photos, wrong, message):
    """They are named."""
    with pytest.raises(ValueError, match=message):
        UnlabelledImages(**{'data_root': photos, **wrong})


def test_note_of_a_training(tmp_path):
    """The note that --resume compares names another folder and other images."""
    for folder, files in (('a', '12'), ('b', '12'), ('c', '13')):
        for name in files:
            write(tmp_path / folder / f'{name}.png')
    one, two, three = (UnlabelledImages(str(tmp_path / folder)).training_note for folder in 'abc')
    assert [key for key in one if one[key] != two[key]] == ['data_root']
    assert [key for key in two if two[key] != three[key]] == ['data_root', 'names']


def test_checks_before_a_run(photos, tmp_path):
    """A missing folder or a wrong argument is refused before anything is built. Checks of a run take the dataset."""
    dataset = dict(type='UnlabelledImages', data_root=photos, pipeline=[LOAD, PACK])
    cfg = Config(dict(default_scope='mmpretrain', train_dataloader=dict(dataset=dataset)))
    check_files(cfg, 'train')
    for change, message in ((dict(data_root='no'), 'there is no image folder no'), (dict(held_out=2), 'held_out must')):
        cfg.train_dataloader.dataset = dict(dataset, **change)
        with pytest.raises(InputError, match=f'^train_dataloader.dataset: {message}'):
            check_files(cfg, 'train')
    check_dataset(UnlabelledImages(photos, [LOAD, PACK]), nn.Identity())


listed = functools.cache(UnlabelledImages)


def sampler(photos, batch_size=8, sizes=SIZES, rank=0, processes=1, seed=1, epoch=0, count=None):
    """A batch sampler in one of several processes."""
    inner = DefaultSampler(listed(photos, indices=count), seed=seed)
    inner.rank, inner.world_size = rank, processes
    inner.num_samples = -(-len(inner.dataset) // processes)
    inner.total_size = inner.num_samples * processes
    inner.set_epoch(epoch)
    return MultiScaleBatchSampler(inner, batch_size, sizes)


def test_batches_of_an_epoch(photos):
    """Each batch has one size and about as many pixels, and no image comes twice. The length is that of each epoch."""
    sizes = [dict(size=16, share=0.5), dict(size=(16, 32), share=0.3), dict(size=32, share=0.2)]
    orders, images = set(), set()
    for epoch in range(4):
        found = sampler(photos, 4, sizes, epoch=epoch)
        batches = list(found)
        order = [batch[0][1]['size'] for batch in batches]
        assert len(found) == 8 and sorted(order) == [(16, 16)] * 4 + [(16, 32)] * 2 + [(32, 32)] * 2
        assert all(view['size'] == size for size, batch in zip(order, batches) for _, view in batch)
        assert all(len(batch) * np.prod(size) == 4 * 16 * 16 for size, batch in zip(order, batches))
        indices = [index for batch in batches for index, _ in batch]
        assert len(set(indices)) == len(indices) == 22
        orders.add(tuple(order))
        images.add(tuple(indices))
    assert len(orders) == len(images) == 4


@pytest.mark.parametrize('count, batch_size, processes', [(24, 8, 2), (23, 4, 3), (2, 2, 1)])
def test_order_depends_on_seed_and_epoch(photos, count, batch_size, processes):
    """The same seed and epoch give the same batches. At each step, all processes have one size, and other images."""
    make = lambda **changes: [
        list(sampler(photos, batch_size, rank=rank, processes=processes, count=count, **changes))
        for rank in range(processes)
    ]
    first = make()
    assert first == make() and [len(part) for part in first] == [len(first[0])] * processes
    if count > 9:
        assert first != make(epoch=1) and first != make(seed=5)
    for batches in zip(*first):
        assert len({(view['size'], len(batch)) for batch in batches for _, view in batch}) == 1
    indices = [index for part in first for batch in part for index, _ in batch]
    assert len(set(indices)) == len(indices) <= count


def test_sizes_without_a_batch(photos, log):
    """The log says so; too few images for any batch are refused."""
    sampler(photos, 8, [dict(size=16, share=0.9), dict(size=32, share=0.1)])
    (line,) = log()
    assert line == 'no batch of size (32, 32) fits in an epoch of 3 batches: raise its share'
    with pytest.raises(InputError, match='24 images for 2 processes are too few .*: lower batch_size from 13'):
        sampler(photos, 13, [dict(size=16)], processes=2)


@pytest.mark.parametrize(
    'wrong, message',
    [
        (dict(batch_size=0), 'batch_size must be a whole number of at least 1'),
        (dict(sizes=[dict(share=1)]), r'sizes\[0\] has no size'),
        (dict(sizes=[dict(size=16.5)]), r'sizes\[0\].size must be'),
        (dict(sizes=[dict(size=16), dict(size=32, share=0.5)]), 'sizes must have shares with a sum of 1, not 1.5'),
    ],
)
def test_wrong_arguments_of_samplers(photos, wrong, message):
    """They are named."""
    with pytest.raises(ValueError, match=message):
        sampler(photos, **wrong)


class Seen(Model):
    """Keeps what it has seen of each step."""

    def __init__(self):
        super().__init__()
        self.data_preprocessor, self.seen = ViewPreprocessor(), []

    def forward(self, inputs, data_samples=None, teacher_inputs=None, mode='tensor'):
        self.seen.append([(tuple(x.shape), x.double().sum().item(), s.view_key) for x, s in zip(inputs, data_samples)])
        return super().forward(inputs.mean((2, 3)), mode)


def test_resumed_views(tmp_path, photos):
    """A resumed training sees what an uninterrupted one sees, to the last bit: images, sizes, crops and colours."""

    def train(folder, **changes):
        pipeline = [LOAD, dict(type='FixedViews', transforms=[CROP], views=3), COLORS, PACK]
        loader = dict(batch_size=8, num_workers=2, sampler=dict(type='DefaultSampler'))
        loader['dataset'] = dict(type='UnlabelledImages', data_root=photos, pipeline=pipeline)
        loader['batch_sampler'] = dict(type='MultiScaleBatchSampler', sizes=SIZES)
        torch.manual_seed(0)
        model = Seen()
        runner = build(tmp_path / folder, True, model=model, train_dataloader=loader, **changes)
        check_built_datasets(runner)
        runner.register_hook(SeedHook(), 'HIGHEST')
        try:
            runner.train()
        except Killed:
            assert len(model.seen) == 5
        return model

    train('killed', seed=1, killed=True)
    resumed, whole = train('killed'), train('whole', seed=1)
    assert len(whole.seen) == 8 and len(resumed.seen) == 4 and resumed.seen == whole.seen[4:]
    assert whole.seen[:4] != whole.seen[4:]
    own = resumed.state_dict()
    for name, value in whole.state_dict().items():
        assert torch.equal(own[name], value), name


def coordinates(height, width):
    """An image whose pixels have their row and column."""
    y, x = np.mgrid[:height, :width]
    return np.stack([y, x, 0 * x], -1).astype(np.uint8)


def test_view_crop():
    """The view decides on the size, on the area and, as the ratio of the size, on the shape of the crop."""
    for view, size, low, high in (
        (None, (10, 20), 0.1, 0.2),
        (dict(size=(20, 10)), (20, 10), 0.1, 0.2),
        (dict(size=[10, 20], crop_ratio_range=(0.01, 0.02)), (10, 20), 0.01, 0.02),
    ):
        crop = ViewCrop((10, 20), (0.1, 0.2), (0.8, 1.25), interpolation='nearest')
        for _ in range(20):
            data = crop(dict(img=coordinates(250, 250), **(dict(view=view) if view else {})))
            rows, columns = (np.ptp(data['img'][..., i]) + 1.0 for i in range(2))
            # The nearest pixels leave out up to one cell at each end.
            rows, columns = rows * size[0] / (size[0] - 1), columns * size[1] / (size[1] - 1)
            assert data['img'].shape[:2] == size and crop.scale == (10, 20)
            assert (
                0.65 < columns / rows / (size[1] / size[0]) < 1.55 and low * 0.6 < rows * columns / 250**2 < high * 1.6
            )


def test_fixed_views():
    """A view has the same pixels and key whenever it is drawn, others differ, and nothing else draws other numbers."""
    fixed = [CROP, dict(type='RandomFlip', prob=0.5), noise]
    pack, steps = PackViews(), FixedViews(fixed, views=3)
    pixels = np.random.default_rng(0).integers(0, 255, (40, 40, 3), np.uint8)

    def views(name, seed, size=16):
        seed_all(seed)
        data = [
            dict(img=pixels, img_path=f'/data{seed}/{name}', name=name, view=dict(size=(size, size))) for _ in range(20)
        ]
        return {s['data_samples'].view_key: s['inputs'] for s in (pack(steps(d)) for d in data)}

    first, again = views('a.jpg', 0), views('a.jpg', 1)
    assert len(first) == 3 and first.keys() == again.keys() and all(first[k].equal(again[k]) for k in first)
    assert not first.keys() & views('b.jpg', 0).keys() and not first.keys() & views('a.jpg', 0, size=24).keys()

    states = []
    for transform in (lambda data: np.random.randint(3), FixedViews(fixed, views=3)):
        seed_all(0)
        transform(dict(img=pixels, img_path='a.jpg'))
        states.append((random.random(), np.random.rand(), torch.rand(1).item()))
    assert states[0] == states[1]
    with pytest.raises(ValueError, match='views must be a whole number of at least 1, not 0'):
        FixedViews([], 0)


def seed_all(seed):
    for generator in (random, np.random):
        generator.seed(seed)
    torch.manual_seed(seed)


def noise(data):
    """Draws by all generators."""
    added = random.random() + np.random.rand() + torch.rand(1).item()
    return dict(data, img=(data['img'] + int(added * 80)).astype(np.uint8))


def test_loading_within_fixed_views_is_checked(tmp_path, log):
    """A broken image is skipped wherever the pipeline loads it."""
    write(tmp_path / 'photos' / '0.png', format='PCX')
    write(tmp_path / 'photos' / '1.png')
    dataset = UnlabelledImages(
        str(tmp_path / 'photos'), [dict(type='FixedViews', transforms=[LOAD, CROP], views=1), PACK]
    )
    assert dataset[0]['data_samples'].img_path.endswith('1.png') and len(log()) == 1


def darken(data):
    """Works in place, as no transform should."""
    data['img'] //= 2
    return data


def test_student_colors():
    """The teacher sees the image as it was. A transform that changes its size is refused."""
    data = dict(img=coordinates(20, 30), img_path='a.jpg')
    packed = PackViews()(StudentColors([darken])(copy.deepcopy(data)))
    assert packed['teacher_inputs'].equal(torch.from_numpy(data['img']).permute(2, 0, 1))
    assert packed['inputs'].equal(packed['teacher_inputs'] // 2)
    assert 'teacher_inputs' in PackViews()(StudentColors([])(dict(data)))  # all items of a batch have the same keys
    assert 'teacher_inputs' not in PackViews()(dict(data))
    with pytest.raises(ValueError, match=r'StudentColors changed an image of shape \(20, 30, 3\) to \(16, 16, 3\)'):
        StudentColors([CROP])(dict(data))


def test_keys_are_of_the_teachers_pixels():
    """The colours of the student do not change the key; other pixels or another shape do."""
    make = lambda image, *steps: (
        PackViews()(StudentColors(list(steps))(dict(img=image, img_path='a.jpg', fixed_view=0)))[
            'data_samples'
        ].view_key
    )
    key = make(coordinates(20, 30))
    assert key == make(coordinates(20, 30), darken) != make(coordinates(20, 30) + 1)
    assert make(np.zeros((20, 30, 3), np.uint8)) != make(np.zeros((30, 20, 3), np.uint8))
    assert 'view_key' not in PackViews()(dict(img=coordinates(2, 2), img_path='a.jpg'))['data_samples']


@pytest.mark.parametrize('shape, kind', [((4, 5, 4), 'uint8')])
def test_images_that_cannot_be_packed(shape, kind):
    """They are named, with what to do."""
    with pytest.raises(InputError, match=r"a.png has become .* but PackViews takes three channels of uint8: .*'color'"):
        PackViews()(dict(img=np.zeros(shape, kind), img_path='a.png'))


def test_preprocessor():
    """The student's pixels are RGB and normalised, the teacher's RGB from 0 to 255."""
    bgr, other = torch.randint(256, (2, 2, 3, 4, 5), dtype=torch.uint8)
    model = ViewPreprocessor(mean=(1, 2, 3), std=(4, 5, 6))
    batch = model(dict(inputs=list(bgr), teacher_inputs=list(other), data_samples=['a', 'b']), training=True)
    for channel in range(3):
        expected = (bgr[:, 2 - channel].float() - (1, 2, 3)[channel]) / (4, 5, 6)[channel]
        assert batch['inputs'][:, channel].equal(expected)
    assert batch['teacher_inputs'].equal(other.flip(1).float()) and batch['data_samples'] == ['a', 'b']
    alone = model(dict(inputs=bgr))
    assert alone['teacher_inputs'].equal(bgr.flip(1).float()) and alone['inputs'].equal(batch['inputs'])
    assert alone['data_samples'] is None
    assert ViewPreprocessor(bgr_to_rgb=False)(dict(inputs=bgr))['teacher_inputs'].equal(bgr.float())
    with pytest.raises(InputError, match='a batch has images of 4 x 5 and 4 x 6 pixels: .* batch_size must be 1'):
        model(dict(inputs=[torch.zeros(3, 4, 6), torch.zeros(3, 4, 5)]))
    nan = float('nan')
    for wrong in (dict(mean=(1, 2)), dict(std=(1, 0, 1)), dict(std=(1, nan, 1)), dict(std=(0.229, 0.224, 0.225))):
        with pytest.raises(ValueError, match=f'{next(iter(wrong))} must be three numbers'):
            ViewPreprocessor(**wrong)
