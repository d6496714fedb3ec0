"""Pictures of annotations and predictions."""

from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from mmcv.transforms import LoadImageFromFile
from mmdet.structures import DetDataSample
from mmdet.structures.bbox import HorizontalBoxes
from mmdet.structures.mask import BitmapMasks
from mmengine.config import Config
from mmengine.dataset import BaseDataset, ConcatDataset
from mmengine.structures import InstanceData, PixelData
from mmpretrain.structures import DataSample
from mmseg.datasets import BaseSegDataset
from mmseg.structures import SegDataSample
from PIL import Image
from pycocotools import mask
from scipy.ndimage import binary_erosion
from torch import nn

from mmguard.checks.images import CheckedPipeline
from mmguard.errors import InputError
from mmguard.prediction import drawing
from mmguard.prediction.drawing import colors_of, draw_detections, draw_label_map, draw_sample, draw_texts, in_bgr
from mmguard.prediction.hook import DrawingHook
from mmguard.prediction.tiles import detections
from mmguard.text import text_size, write_text

NAMES, COLORS = ['one', 'two'], np.array([(255, 0, 0), (0, 0, 255)], np.uint8)


@pytest.fixture
def texts(monkeypatch):
    """What is written in pictures: each text and its place x1, y1, x2, y2."""
    found, rectangle = [], cv2.rectangle
    boxes = []

    def record(image, start, end, color, thickness=1):
        if thickness == cv2.FILLED:
            boxes.append((*start, *end))
        return rectangle(image, start, end, color, thickness)

    def write(image, text, *_):
        found.append((text, boxes[-1]))

    monkeypatch.setattr(drawing.cv2, 'rectangle', record)
    monkeypatch.setattr(drawing, 'write_text', write)
    return found


def test_detector(texts):
    """Truth, as a pipeline packs it, has no scores; of predictions, those above the threshold are drawn with theirs.
    Boxes and masks grow with a small image."""
    masks = np.zeros((2, 60, 40), np.uint8)
    masks[0, 10:20, 10:20] = 1
    boxes = torch.tensor([[10.0, 10, 20, 20], [1, 30, 5, 40]])
    sample = DetDataSample(
        gt_instances=InstanceData(
            bboxes=HorizontalBoxes(boxes), labels=torch.tensor([0, 1]), masks=BitmapMasks(masks, 60, 40)
        ),
        pred_instances=InstanceData(bboxes=boxes, labels=torch.tensor([0, 1]), scores=torch.tensor([0.9, 0.2])),
    )
    image = np.full((60, 40, 3), 100, np.uint8)
    truth = draw_sample(image, sample, 'gt', NAMES, COLORS)
    assert truth.shape == (480, 320, 3) and (image == 100).all()
    assert (truth[130, 130] == [146, 70, 70]).all() and (truth[170, 130] == 100).all()
    assert [text for text, _ in texts] == ['one', 'two']
    del texts[:]
    draw_sample(image, sample, 'pred', NAMES, COLORS)
    assert [text for text, _ in texts] == ['one 0.90']


class OnGPU(torch.Tensor):
    """A tensor that NumPy cannot read."""

    def __array__(self, *_, **__):
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def cpu(self):
        return self.as_subclass(torch.Tensor)


def test_masks_on_a_gpu():
    """A test leaves its predictions where the model is."""
    masks = torch.zeros(1, 60, 40, dtype=torch.bool)
    masks[0, 10:20, 10:20] = True
    found = dict(bboxes=torch.tensor([[10.0, 10, 20, 20]]), labels=torch.tensor([0]), scores=torch.tensor([0.9]))
    sample = DetDataSample(pred_instances=InstanceData(**found, masks=masks.as_subclass(OnGPU)))
    drawn = draw_sample(np.full((60, 40, 3), 100, np.uint8), sample, 'pred', NAMES, COLORS)
    assert (drawn[130, 130] == [146, 70, 70]).all()


def test_segmentor(texts):
    """Pixels that are ignored stay as they are. The second of two classes has an outline and lets the image be seen,
    the first is the background: it has less color and no outline."""
    labels = torch.full((1, 500, 500), 255)
    labels[:, :100], labels[:, 100:200] = 1, 0
    sample = SegDataSample(gt_sem_seg=PixelData(data=labels))
    drawn = draw_sample(np.full((500, 500, 3), 100, np.uint8), sample, 'gt', NAMES, COLORS)
    rows = {98: [70, 70, 146], 99: [0, 0, 255], 100: [116, 90, 90], 199: [116, 90, 90], 200: [100] * 3, 499: [100] * 3}
    assert all(np.abs(drawn[row, 499] - np.array(color)).max() <= 1 for row, color in rows.items())
    assert sorted(text for text, _ in texts) == ['one', 'two']


def test_first_class_is_the_background_by_its_name():
    """Of more than two classes, the first is one as any other, unless it is called background."""
    wall, background = np.full((2, 400, 400, 3), 100, np.uint8)
    draw_label_map(wall, np.zeros((400, 400), np.uint8), ['wall', 'sky', 'floor'], colors_of(None, 3))
    draw_label_map(background, np.zeros((400, 400), np.uint8), ['Background', 'sky', 'floor'], colors_of(None, 3))
    changes = [np.abs(one[399, 399].astype(int) - 100).sum() for one in (wall, background)]
    assert changes[0] > 2 * changes[1] > 0


def test_colors_of_classes():
    """Without a palette, colors are told apart; so are those of MMSegmentation, which are random. A palette is kept."""
    colors = colors_of(None, 12).astype(int)
    apart = np.abs(colors[:, None] - colors).sum(2)
    assert apart[:2, :2].max() > 400 and apart[~np.eye(12, dtype=bool)].min() > 75
    dataset = BaseSegDataset(metainfo=dict(classes=('background', 'cell')), lazy_init=True)
    assert (colors_of(dataset.metainfo['palette'], 2) == colors[:2]).all()
    assert colors_of([[1, 2, 3], [4, 5, 6]], 2).tolist() == [[3, 2, 1], [6, 5, 4]]


@pytest.mark.parametrize('kind, text', [('gt', 'one'), ('pred', 'two 0.75')])
def test_classifier(texts, kind, text):
    """Also of several views of an image, which have scores and no label."""
    sample = DataSample().set_gt_label(0).set_pred_score(torch.tensor([0.25, 0.75]))
    draw_sample(np.zeros((500, 500, 3), np.uint8), sample, kind, NAMES, COLORS)
    assert [found for found, _ in texts] == [text]


def test_grey(texts):
    """Of color_type='grayscale': the colors are on a picture of three channels."""
    sample = SegDataSample(gt_sem_seg=PixelData(data=torch.full((1, 500, 500), 1)))
    drawn = draw_sample(np.full((500, 500), 100, np.uint8), sample, 'gt', NAMES, COLORS)
    assert drawn.shape == (500, 500, 3) and (drawn[400:499] == [70, 70, 146]).all()


def test_other_values():
    """Images of 16 bits, of floats and of four channels can be drawn on; one that can be already is not copied."""
    assert (in_bgr(np.full((4, 4), 65535, np.uint16)) == 255).all()
    assert (in_bgr(np.full((4, 4, 3), 300.5, np.float32)) == 255).all()
    assert in_bgr(np.array([[1000, 2000, 3000]], np.uint16))[0, :, 0].tolist() == [0, 127, 255]  # 12 bits
    assert in_bgr(np.zeros((4, 4, 4), np.uint8)).shape == (4, 4, 3)
    image = np.zeros((4, 4, 3), np.uint8)
    assert np.shares_memory(in_bgr(image), image)


def test_nothing_to_draw():
    """A test pipeline without annotations packs empty instances."""
    sample = DetDataSample(gt_instances=InstanceData())
    assert draw_sample(np.zeros((500, 500, 3), np.uint8), sample, 'gt', NAMES, COLORS) is None


def test_texts_are_where_the_rule_puts_them(texts):
    """The nearest free line below or above, else the first place, as every text compared with every earlier one."""
    rng = np.random.default_rng(0)
    given = [('name' * n, *rng.uniform(-9, 320, 2), COLORS[0]) for n in rng.integers(1, 5, 150)]
    draw_texts(np.zeros((300, 300, 3), np.uint8), given)
    line, taken, covering = text_size('', 11)[1], [], 0
    for text, x, y, _ in given:
        width, last = text_size(text, 11)[0], 300 - line
        x, y = int(max(0, min(x, 300 - width))), int(min(max(0, y - line), last))
        places = [y + step * line for n in range(last // line + 1) for step in (n, -n)]
        beside = [top for left, top, right in taken if x < right and left < x + width]
        free = [top for top in places if 0 <= top <= last and all(abs(top - other) >= line for other in beside)]
        covering += not free
        taken.append((x, free[0] if free else y, x + width))
    assert [(x1, y1, x2) for _, (x1, y1, x2, _) in texts] == taken and covering


def test_names_of_classes(texts):
    """Each name is where its class is widest, as of a distance computed in the whole image."""
    labels = np.random.default_rng(0).integers(0, 40, (12, 15)).repeat(40, 0).repeat(40, 1)
    labels[labels > 30] = 255
    draw_label_map(np.zeros((480, 600, 3), np.uint8), labels, [str(i) for i in range(40)], colors_of(None, 40))
    found = []
    for label in range(31):
        inside = np.pad((labels == label).astype(np.uint8), 1)
        distance = cv2.distanceTransform(inside, cv2.DIST_L2, 3)[1:-1, 1:-1]
        y, x = np.unravel_index(distance.argmax(), distance.shape)
        found += [(distance.max(), str(label), x, y)] * bool((labels == label).any())
    found.sort(key=lambda one: -one[0])
    assert [text for text, _ in texts] == [text for _, text, *_ in found]
    assert texts[0][1][:2] == (found[0][2], found[0][3] - text_size('', 11)[1])


def test_masks_are_drawn_in_their_box(monkeypatch):
    """The picture is that of masks of the size of the image, which take its time and memory each: none is made. A mask
    is faint, so that the object is seen, and has an outline."""
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (90, 120, 3), np.uint8)
    masks, corner = rng.random((3, 30, 40)) > 0.1, torch.tensor([[-70.0, -50, -70, -50]] * 3)
    instances = InstanceData(bboxes=corner, labels=torch.tensor([0, 1, 0]), masks=masks)
    found, expected = detections(instances, 70, 50, 90, 120), image.copy()
    for one in reversed(found):
        inside = mask.decode(one.mask).astype(bool)
        expected[inside] = 0.7 * expected[inside] + 0.3 * COLORS[one.label]
        expected[inside & ~binary_erosion(inside, np.ones((3, 3)))] = COLORS[one.label]
    monkeypatch.setattr('pycocotools.mask.decode', None)
    draw_detections(image, found, NAMES, COLORS)
    assert (image[50:, 70:] == expected[50:, 70:]).all()


def test_text():
    """A text has its color and its place, ends at the edge of the image, and may have letters beyond ASCII."""
    image = np.full((40, 30, 3), 255, np.uint8)
    write_text(image, 'Löffel', 10, 20, 14, (0, 0, 200))
    assert (image[:20] == 255).all() and (image[:, :10] == 255).all()
    assert (image[..., 2] >= 200).all() and (image[20:, 10:, 0] < 100).any()
    width, height = text_size('Löffel', 14)
    one, other = np.full((2, height, width, 3), 255, np.uint8)
    write_text(one, 'Löffel', 0, 0, 14)
    write_text(other, 'Loffel', 0, 0, 14)
    assert (one != other).any() and one[:, -4:].min() < 255 and 30 < width < 60


def hook_of(folder, number, dataset, **parts):
    """The hook before a test, and what it is called with."""
    model = nn.Module()
    for name, part in parts.items():
        setattr(model, name, part)
    runner = SimpleNamespace(model=model, cfg=Config(), test_dataloader=SimpleNamespace(dataset=dataset))
    hook = DrawingHook(folder / 'new', number)
    hook.before_test(runner)
    return hook, runner


def in_memory(number):
    return type('Images', (list,), dict(metainfo=dict(classes=['dog', 'cat'])))([None] * number)


@pytest.mark.parametrize('number, process, drawn', [(3, (0, 1), [0, 4, 7]), (50, (1, 2), range(1, 10, 2))])
def test_images_of_a_test(tmp_path, monkeypatch, number, process, drawn):
    """So many images, spread over the data set and the processes. Red of images without a file, as those of CIFAR, is
    drawn as red."""
    monkeypatch.setattr('mmguard.prediction.hook.get_dist_info', lambda: process)
    hook, runner = hook_of(tmp_path, number, in_memory(10), data_preprocessor=SimpleNamespace(to_rgb=True))
    image = torch.zeros(3, 8, 8, dtype=torch.uint8)
    image[2] = 255
    for i in range(5):
        samples = [DataSample().set_gt_label(0).set_pred_score(torch.tensor([0.25, 0.75])) for _ in range(2)]
        hook.after_test_iter(runner, i, dict(inputs=[image, image]), samples)
    files = sorted(path.name for path in (tmp_path / 'new').iterdir())
    assert files == [f'{index:06d}_image.jpg' for index in drawn]
    picture = cv2.imread(str(tmp_path / 'new' / files[0]))
    assert picture.shape == (502, 972, 3)  # both, enlarged
    assert np.abs(picture[-20, -20].astype(int) - [0, 0, 255]).max() < 20


def test_model_without_pictures(tmp_path):
    """What a distillation predicts cannot be drawn: a sentence says so."""
    hook, runner = hook_of(tmp_path, 1, in_memory(1), data_preprocessor=SimpleNamespace(to_rgb=True))
    with pytest.raises(InputError, match='Module predicts neither boxes .*: leave out --show-dir'):
        hook.after_test_iter(runner, 0, dict(inputs=[torch.zeros(3, 8, 8)]), [DataSample()])


class OneImage(BaseDataset):
    """A dataset of one image, which a transform reads as the config says."""

    def __init__(self, path: str, **settings: str) -> None:
        super().__init__(pipeline=[LoadImageFromFile(**settings)], data_prefix=dict(img_path=path))
        self.pipeline = CheckedPipeline(self.pipeline, self)  # as in a test

    def load_data_list(self) -> list[dict]:
        return [dict(self.data_prefix)]


def test_images_of_a_test_are_read_as_in_it(tmp_path):
    """Turned by their EXIF orientation, or not, as the dataset's own LoadImageFromFile says. Without names of classes,
    as of a list of annotations of MMPretrain, there are numbers for all classes of the model."""
    path, exif = str(tmp_path / 'a.jpg'), Image.Exif()
    exif[0x0112] = 6
    Image.new('RGB', (480, 240), 'red').save(path, exif=exif)
    head = nn.Linear(1, 1)
    head.num_classes = 3
    dataset = ConcatDataset([OneImage(path), OneImage(path, color_type='color_ignore_orientation')])
    hook, runner = hook_of(tmp_path, 2, dataset, head=head)
    samples = [DataSample(metainfo=dict(img_path=path)).set_pred_score(torch.tensor([0.1, 0.2, 0.7])) for _ in range(2)]
    hook.after_test_iter(runner, 0, {}, samples)
    sizes = [cv2.imread(str(tmp_path / 'new' / f'00000{index}_a.jpg')).shape[:2] for index in range(2)]
    assert sizes == [(502, 246), (262, 486)] and hook.classes == ['0', '1', '2']


@pytest.mark.parametrize('to_rgb, drawn, normalised', [(False, [0, 100, 200], True), (True, [200, 100, 0], False)])
def test_colors_of_images_without_a_file(tmp_path, to_rgb, drawn, normalised):
    """Images that a dataset has in memory, as CIFAR's, are drawn in their colors: they are RGB, or BGR where the
    preprocessor makes RGB of them. What Normalize of the pipeline did is undone."""
    model = SimpleNamespace(data_preprocessor=SimpleNamespace(to_rgb=to_rgb))
    pixels = torch.tensor([200, 100, 0], dtype=torch.uint8).view(3, 1, 1).expand(3, 4, 5)
    cfg = Config()
    if normalised:
        step = dict(type='Normalize', mean=[50.0] * 3, std=[2.0] * 3, to_rgb=False)
        cfg, pixels = Config(dict(test_dataloader=dict(dataset=dict(pipeline=[step])))), (pixels.float() - 50) / 2
    data = SimpleNamespace(model=model, cfg=cfg), DataSample(), dict(inputs=[pixels]), 0, 0
    image = DrawingHook(tmp_path, 1)._read(*data)
    assert image.shape == (4, 5, 3) and image[0, 0].tolist() == drawn
