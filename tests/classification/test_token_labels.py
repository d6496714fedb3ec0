"""Label maps are read safely, move with their images, and are cut to tokens as plain loops would."""

import numpy as np
import pytest
import torch
from mmcv.transforms import Compose
from mmengine.registry import DefaultScope

from mmattn.errors import InputError

pytest.importorskip('mmpretrain')

from mmattn.classification.token_labels import (  # noqa: E402
    CropTokenLabels,
    LoadTokenLabels,
    MoveTokenLabels,
    label_file,
    read_label_map,
    token_targets,
)

SIDE, CELL = 6, (20, 30)  # places of a map, and pixels of a place: images are not square


@pytest.fixture(autouse=True)
def scope():
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        yield


def coloured():
    """An image whose colour is the number of a place in its label map, and that map: the number of the place is its
    class, counted from 1."""
    numbers = np.arange(1, SIDE * SIDE + 1).reshape(SIDE, SIDE)
    image = np.kron(numbers, np.ones(CELL)).astype(np.uint8)[..., None].repeat(3, 2)
    label_map = torch.stack((torch.full((1, SIDE, SIDE), 50.0), torch.from_numpy(numbers)[None].float()))
    return dict(img=image, img_shape=image.shape[:2], label_map=label_map)


def middles(image):
    """The colours in the middle of each place."""
    return image[CELL[0] // 2 :: CELL[0], CELL[1] // 2 :: CELL[1], 0]


OPERATIONS = [
    dict(type='RandomFlip', prob=1.0, direction='horizontal'),
    dict(type='RandomFlip', prob=1.0, direction='vertical'),
    dict(type='RandomFlip', prob=1.0, direction='diagonal'),
    *[
        dict(type=kind, magnitude_range=(0, 0.45), direction=direction, **settings)
        for kind in ('Shear', 'Translate')
        for direction in ('horizontal', 'vertical')
        for settings in [dict(magnitude_level=7, magnitude_std=2.0, prob=1.0, pad_val=0, interpolation='nearest')]
    ],
    dict(type='Rotate', magnitude_range=(0, 30), magnitude_std=2.0, prob=1.0, pad_val=0, interpolation='nearest'),
]


@pytest.mark.parametrize('operation', OPERATIONS, ids=lambda step: f'{step["type"]}-{step.get("direction", "")}')
def test_labels_move_with_pixels(operation):
    """After each operation, the middle of a place has the colour of its label; outside of the image, logits are 0."""
    np.random.seed(0)
    move = MoveTokenLabels([operation])
    for _ in range(5):
        data = coloured()
        before = data['img'].copy()
        data = move(data)
        numbers, logits = data['label_map'][1, 0].numpy(), data['label_map'][0, 0].numpy()
        assert not np.array_equal(middles(data['img']), middles(before))
        agree = numbers == middles(data['img'])
        # a place's middle can lie at the border of two
        assert agree.mean() > (0.8 if operation['type'] in ('Rotate', 'Shear') else 0.95)
        np.testing.assert_array_equal(logits, 50 * (numbers > 0))


def test_rand_augment():
    """Random operations, colours too, and two motions after one another: where pixels move, labels do, with one
    interpolation of places."""
    np.random.seed(0)
    policies = [dict(step, prob=0.5) for step in OPERATIONS[3:]] + [dict(type='AutoContrast', prob=0.5)]
    augment = [dict(type='RandAugment', policies=policies, num_policies=3, magnitude_level=5, hparams=dict(pad_val=0))]
    move = MoveTokenLabels([OPERATIONS[0], dict(type='RandomChoice', transforms=[augment, augment])])
    moved = 0
    for _ in range(20):
        data = move(coloured())
        agree = data['label_map'][1, 0].numpy() == middles(data['img'])
        # AutoContrast stretches colours
        moved += agree.mean() > 0.7
    assert moved > 10


def test_crop():
    """The labels of a crop are those of the places that it shows."""
    np.random.seed(1)
    move = MoveTokenLabels([OPERATIONS[0]])
    crop = CropTokenLabels(scale=48, crop_ratio_range=(0.1, 0.4), interpolation='nearest')
    for _ in range(5):
        data = crop(move(coloured()))
        _, tokens = token_targets(data['label_map'][None], data['label_box'][None], 40, (6, 6))
        shown = data['img'][4::8, 4::8, 0]
        inner = np.stack([data['img'][y::8, x::8, 0] for y in range(8) for x in range(8)])
        whole = (inner == inner[0]).all(0)  # tokens within one place
        assert whole.any()
        probabilities = tokens[0].permute(1, 2, 0).numpy()
        found = np.take_along_axis(probabilities, shown[..., None].astype(int), 2)[..., 0]
        assert (found[whole] > 0.5).mean() > 0.9


def test_targets():
    """A crop of half a map of 4 x 3 places, at tokens of a place each, in plain loops: the softmax over logits, 0 for
    all classes that a place does not have; the class token's is of the mean logits."""
    torch.manual_seed(0)
    numbers = torch.stack([torch.randperm(9)[:2] for _ in range(12)], 1).view(2, 4, 3)
    label_map = torch.stack((torch.randn(2, 4, 3), numbers.float()))
    of_class, of_tokens = token_targets(label_map[None].half(), torch.tensor([[0, 0.5, 1, 1]]), 9, (2, 3))
    dense = np.zeros((9, 2, 3))
    for k, y, x in np.ndindex(2, 2, 3):
        dense[int(numbers[k, y + 2, x]), y, x] = label_map[0, k, y + 2, x].half()

    def target(logits):
        return np.exp(logits) / np.exp(logits).sum()

    for y, x in np.ndindex(2, 3):
        np.testing.assert_allclose(of_tokens[0, :, y, x], target(dense[:, y, x]), atol=1e-6)
    np.testing.assert_allclose(of_class[0], target(dense.mean((1, 2))), atol=1e-6)


def test_refuses_transforms():
    """What moves pixels in a way that labels cannot follow is refused when the pipeline is built."""
    with pytest.raises(ValueError, match='cannot move labels as CenterCrop moves an image'):
        MoveTokenLabels([dict(type='RandomChoice', transforms=[[dict(type='CenterCrop', crop_size=4)]])])
    with pytest.raises(ValueError, match='MoveTokenLabels must come before CropTokenLabels'):
        MoveTokenLabels([OPERATIONS[0]])(CropTokenLabels(scale=32)(coloured()))


def test_loads(tmp_path):
    """The published layout: a folder for each folder of images, float16."""
    label_map = coloured()['label_map']
    path = label_file(tmp_path, '/images/train/n01440764/n01440764_10026.JPEG')
    assert path == tmp_path / 'n01440764' / 'n01440764_10026.pt'
    path.parent.mkdir()
    torch.save(label_map.half(), path)
    load = Compose([dict(type=LoadTokenLabels, label_root=str(tmp_path))])
    found = load(dict(img_path='elsewhere/n01440764/n01440764_10026.JPEG'))['label_map']
    assert found.dtype == torch.float32 and torch.equal(found, label_map)


class Code:
    def __reduce__(self):
        return print, ('this code must not run',)


@pytest.mark.parametrize(
    'contents, sentence',
    [
        (None, 'there is no label map'),
        (b'PK', 'cannot be read as a label map'),
        (Code(), r'map.pt cannot be read as a label map: .* has more than a tensor \(code in a file is not run\)$'),
        (dict(label=1), 'is of type dict, not a tensor, but a label map is a tensor'),
        (torch.zeros(5, 2, 4, 4), r'is a tensor \(5, 2, 4, 4\) of torch.float32, but'),
        (torch.zeros(2, 5, 4, 4, dtype=torch.complex64), 'is a tensor .* of torch.complex64, but'),
        (torch.tensor([torch.nan, 3.0]).view(2, 1, 1, 1), 'not finite'),
        (torch.full((2, 1, 4, 4), 0.5), 'not different whole numbers'),
        (torch.full((2, 1, 4, 4), -1), 'not different whole numbers'),
        (torch.zeros(2, 5, 4, 4), 'not different whole numbers'),
    ],
    ids='missing cut code dict shape complex nan half negative equal'.split(),
)
def test_refuses_files(tmp_path, capsys, contents, sentence):
    """One sentence that names the file. No code in it is run."""
    path = tmp_path / 'map.pt'
    if isinstance(contents, bytes):
        path.write_bytes(contents)
    elif contents is not None:
        torch.save(contents, path)
    with pytest.raises(InputError, match=sentence) as error:
        read_label_map(path)
    assert str(path) in str(error.value) and '\n' not in str(error.value)
    assert 'must not run' not in capsys.readouterr().out
