"""Predictions of detectors, segmentors and classifiers on images and videos, by OpenMMLab's inferencers."""

import glob
import json
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, groupby, islice
from pathlib import Path
from pkgutil import resolve_name
from typing import NamedTuple

import cv2
import numpy as np
import PIL.Image
import torch
from mmcv import VideoReader, frames2video
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.logging import print_log
from mmengine.registry import DATASETS, TRANSFORMS, DefaultScope
from rich.progress import Progress

from ..checks.classes import saved_meta
from ..checks.config_types import type_name
from ..checks.datasets import class_numbers
from ..checks.images import IMAGES, LOADERS, image_suffixes, load_image
from ..errors import InputError, describe, refusing, warn
from ..outputs import check_output, whole_file
from ..runs.configs import package_of
from ..runs.resuming import check_complete, whole_model_weights
from ..runs.running import running
from ..weights import first_names, read_file
from .drawing import colors_of, draw_detections, draw_label_map, draw_texts, in_bgr, write_image
from .tiles import Detection, Tile, cut, detections, join_detections, join_maps

VIDEOS = ('.mp4', '.avi', '.mov', '.mkv', '.webm', '.m4v')
#: frames that a video may have less than its header says: some encoders count a few too many
MISSING_FRAMES = 2


class Image(NamedTuple):
    """An image, or a frame of a video."""

    name: str  # of what is written of it, without a suffix
    file_name: str  # in predictions.json
    pixels: np.ndarray  # (H, W, 3) in BGR or (H, W), as the config's LoadImageFromFile reads it
    position: int  # among all images and frames, counted from 1
    path: str  # of the image or video


def predict(
    cfg: Config,
    checkpoint: str,
    inputs: Iterable[str],
    out: Path,
    *,
    tile: int | None = None,
    overlap: int = 0,
    score_thr: float = 0.3,
    batch_size: int = 1,
    device: str | None = None,
    trusted: bool = False,
    draw: bool = True,
) -> None:
    """Predict on images and videos, and write what docs/predict.md describes.

    Args:
        cfg: of the model, from :func:`mmguard.runs.configs.load_config`.
        checkpoint: its weights, see :mod:`mmguard.weights.sources`.
        inputs: see :func:`find_files`.
        out: folder to write to; it is new or empty.
        tile, overlap, score_thr, batch_size, device, trusted: see tools/predict.py.
        draw: whether images and videos are drawn.

    Raises:
        InputError: if nothing can be predicted, or, after the rest was written, naming the files that cannot be read.
        CheckpointError: if the checkpoint does not have all weights of the model.
    """
    kind = type_name(cfg.model.get('type'))
    if kind in ('FeatureDistiller', 'BlockDistiller'):
        raise InputError(f'a {kind} predicts features: tools/analyze.py --what distillation draws them')
    files = find_files(inputs, image_suffixes(cfg))
    names = [name + '_000000' * _is_video(path) for name, _, path in files]
    check_output(out / 'predictions.json', *(out / 'images' / f'{name}.jpg' for name in names))
    if out.is_dir() and any(out.iterdir()):
        raise InputError(f'{out} is not an empty folder: name another one, or remove it')
    with running(cfg, trusted):
        load, model = build(cfg, checkpoint, device, trusted)
    if tile and isinstance(model, _Classifier):
        raise InputError('--tile is for detectors and segmentors: leave it out for a classifier')
    if isinstance(model, _Detector) and not model.finds_objects:
        raise InputError(f'a {kind} with these settings predicts panoptic maps alone, and no objects')
    try:
        (out / 'images').mkdir(parents=True)
    except FileExistsError:
        raise InputError(f'{out} is in use by another prediction: name another folder') from None
    categories = [dict(id=id, name=name) for id, name in zip(model.ids, model.classes)]
    images, annotations, videos = [], [], []
    problems: dict[str, str] = {}  # path -> the first of its file
    drawn: Counter[str] = Counter()  # path -> images
    lengths = [_length(path) for *_, path in files]
    with Progress() as progress:
        task = progress.add_task('Predicting', total=sum(lengths))

        def infer(batch: list[Image]) -> list[tuple[Image, object]]:
            """The images of a batch and their results, without the images that cannot be prepared."""
            height, width = batch[0].pixels.shape[:2]
            try:
                if not tile or max(height, width) <= tile:
                    return list(zip(batch, model.infer([image.pixels for image in batch])))
                tiles, results = cut(height, width, tile, overlap), []
                for start in range(0, len(tiles), batch_size):
                    boxes = [box for box, _ in tiles[start : start + batch_size]]
                    results += model.infer([batch[0].pixels] * len(boxes), boxes)
                    progress.advance(task, len(boxes) / len(tiles))
                return [(batch[0], model.join(results, tiles, height, width))]
            except InputError as error:
                if len(batch) > 1:
                    return list(chain.from_iterable(infer([image]) for image in batch))
                problems.setdefault(batch[0].path, f'{batch[0].file_name}: {error}')
                return []

        reader = _read(files, lengths, load, problems, videos)
        for batch in _batches(reader, 1 if tile else batch_size, model.one_shape):
            for image, result in infer(batch):
                height, width = image.pixels.shape[:2]
                entry = dict(id=len(images) + 1, file_name=image.file_name, height=height, width=width)
                images.append(entry)
                annotations += model.write(result, entry, out, image.name)
                if draw:
                    drawn_on = in_bgr(image.pixels)
                    model.draw(drawn_on, result, score_thr)
                    write_image(out / 'images' / image.name, drawn_on)
                    drawn[image.path] += 1
                progress.update(task, completed=image.position)
        progress.update(task, completed=sum(lengths))
        for path, *video in videos:
            if drawn[path] == video[-1]:
                _write_video(out, *video)
    if not draw:  # So far, the folder has refused other predictions.
        (out / 'images').rmdir()
    with whole_file(out / 'predictions.json') as part:
        part.write_text(json.dumps(dict(images=images, categories=categories, annotations=annotations)), 'utf-8')
    print_log(f'{out}: predictions on {len(images)} images', logger='current')
    best = max((annotation['score'] for annotation in annotations if 'score' in annotation), default=None)
    if isinstance(model, _Detector) and draw and images and (best is None or best < score_thr):
        found = 'there is no object' if best is None else f'the best score is {best:.2f}: set a lower --score-thr'
        warn(f'No object is drawn, which needs a score of {score_thr}, and {found}.')
    if problems:
        raise InputError(f'{len(problems)} of {len(files)} files could not be used: {"; ".join(problems.values())}')


def find_files(inputs: Iterable[str], suffixes: tuple[str, ...] = IMAGES) -> list[tuple[str, str, str]]:
    """Of each image and video: the name of what is written, the path below the folder of all, and the path.

    The name is the second without its suffix; with it, if two files would get one name.

    Args:
        inputs: files, folders, and patterns as of a shell, with ** for any folders; docs/predict.md says what is read.
        suffixes: of images, in lower case.

    Raises:
        InputError: if one of them does not exist, or has neither images nor videos.
    """
    files, others = {}, set()
    for given in inputs:
        matches = [given] if os.path.exists(given) else sorted(glob.glob(given, recursive=True))
        if not matches:
            raise InputError(f'there is no file or folder {given}, and it matches no file as a pattern')
        below = chain.from_iterable([path, *sorted(map(str, Path(path).rglob('*')))] for path in matches)
        below = [path for path in below if not os.path.isdir(path)]
        found = [path for path in below if os.path.isfile(given) or path.lower().endswith(suffixes + VIDEOS)]
        if not found:
            raise InputError(f'{given} has neither images nor videos, which end with {", ".join(suffixes + VIDEOS)}')
        others.update(set(below) - set(found))
        for path in found:
            folder, name = os.path.split(os.path.abspath(path))
            # ** follows links to folders, also to one that it is in.
            files.setdefault((os.path.realpath(folder), name), os.path.join(folder, name))
    if others:
        print_log(f'Left out, without a suffix of images or videos: {first_names(sorted(others))}', logger='current')
    paths = list(files.values())
    root = os.path.commonpath([os.path.dirname(path) for path in paths])
    full = [os.path.relpath(path, root) for path in paths]
    names = [os.path.splitext(name)[0] for name in full]
    frames = tuple(f'{name}_' for name, path in zip(names, paths) if _is_video(path))
    unique = len(set(names)) == len(names) and not any(name.startswith(frames) for name in names)
    return list(zip(names if unique else full, full, paths))


def _is_video(path: str) -> bool:
    return path.lower().endswith(VIDEOS)


def _length(path: str) -> int:
    """How many images a file has, by what a video says of itself; 1 if it cannot be read."""
    opens = _is_video(path) and os.path.exists(path)  # a link may lead to no file
    return max(VideoReader(path).frame_cnt, 1) if opens else 1


def _read(
    files: list[tuple], lengths: list[int], load: Callable, problems: dict[str, str], videos: list
) -> Iterator[Image]:
    """Each image and frame.

    What cannot be read is added to ``problems``; path, name, rate and number of frames of each video to ``videos``.
    """
    done = 0
    for (name, file_name, path), length in zip(files, lengths):
        if _is_video(path):
            number, video = 0, VideoReader(path) if os.path.exists(path) else ()
            for number, pixels in enumerate(video, 1):
                if getattr(load, 'color_type', '').startswith('grayscale'):
                    pixels = cv2.cvtColor(pixels, cv2.COLOR_BGR2GRAY)
                yield Image(f'{name}_{number:06d}', f'{name}_{number:06d}.jpg', pixels, done + number, path)
            if number == 0:
                problems[path] = f'{path} cannot be read as a video'
            else:
                videos.append((path, name, video.fps, number))
            if 0 < number < length - MISSING_FRAMES:
                problems.setdefault(path, f'{path} ends after {number} of {length} frames')
        else:
            try:
                pixels = load_image(load, dict(img_path=path))['img']
            except InputError as error:
                problems[path] = describe(error)
            else:
                yield Image(name, file_name, pixels, done + 1, path)
        done += length


def _batches(reader: Iterable[Image], size: int, one_shape: bool) -> Iterator[list[Image]]:
    for _, images in groupby(reader, lambda image: one_shape and image.pixels.shape):
        while batch := list(islice(images, size)):
            yield batch


def _write_video(out: Path, name: str, fps: float, frames: int) -> None:
    """Make a video of the drawn frames."""
    template = name.replace('{', '{{').replace('}', '}}') + '_{:06d}.jpg'
    with whole_file(out / 'images' / f'{name}.mp4') as part:
        frames2video(str(out / 'images'), str(part), fps or 25, 'mp4v', template, 1, frames + 1, show_progress=False)
        written = VideoReader(str(part)).frame_cnt if part.is_file() else 0
        if written < frames:  # OpenCV says nothing about a full disk.
            raise OSError(f'it has {max(written, 0)} of {frames} frames')


def build(cfg: Config, checkpoint: str, device: str | None, trusted: bool) -> tuple[Callable, 'Model']:
    """What loads an image, for :func:`mmguard.checks.images.load_image`, and the model of a config with the weights of
    a checkpoint. Errors are those of :func:`predict`."""
    scope = package_of(cfg)
    if scope not in MODELS:
        raise InputError(f'the default_scope of the config is {scope}, but it must be one of {", ".join(MODELS)}')
    node = (cfg.get('test_dataloader') or {}).get('dataset') or {}
    pipeline = node.get('pipeline') or ()
    loaders = [step for step in pipeline if type_name(step.get('type')).endswith(tuple(LOADERS))]
    if not loaders:
        raise InputError('test_dataloader.dataset.pipeline of the config needs LoadImageFromFile, which reads images')
    device = device or get_device()
    with refusing(f'--device {device} cannot be used here', (RuntimeError, AssertionError)):
        torch.empty(1, device=device)
    kind = MODELS[scope]
    cfg.default_scope = scope
    cfg.visualizer = dict(type='DetLocalVisualizer' if scope == 'mmdet' else 'SegLocalVisualizer')  # writes nothing
    with DefaultScope.overwrite_default_scope(scope), warnings.catch_warnings():
        warnings.simplefilter('ignore')  # The inferencers warn that there are no weights. They come next.
        load = TRANSFORMS.build(loaders[0])
        dataset = DATASETS.build(dict(node, pipeline=[], lazy_init=True))
        _name_types(node, scope)
        inferencer = resolve_name(kind.inferencer_class)(cfg, device=device, **kind.inferencer_arguments)
    contents = read_file(checkpoint, trusted=trusted)
    weights = whole_model_weights(contents, inferencer.model, checkpoint)
    check_complete(weights, inferencer.model, checkpoint)
    inferencer.model.load_state_dict(weights, strict=False)
    classes, palette = class_names(inferencer.model, *saved_meta(contents), dataset.metainfo)
    return load, kind(cfg, inferencer, classes, palette, _category_ids(dataset, classes))


def _name_types(dataset: dict, scope: str) -> None:
    """Make text of classes in the config of a dataset, where the inferencers take text only. They get images that were
    read, and look for ``LoadImageFromFile``."""
    names = []
    if scope == 'mmseg':  # Its inferencer removes these. Others build them, which needs the class.
        names += ['LoadAnnotations', 'LoadDepthAnnotation', 'LoadOneDLAnnotations']
    for step in dataset['pipeline']:
        name = type_name(step.get('type'))
        if name in LOADERS:
            step['type'] = 'LoadImageFromFile'
        elif name in names:
            step['type'] = name
    if isinstance(dataset['type'], type):
        dataset['type'] = f'{dataset["type"].__module__}.{dataset["type"].__name__}'


def class_names(model: torch.nn.Module, *sources: dict) -> tuple[list[str], list]:
    """The names of the classes and their colors, RGB, from the first source that has names for this model."""
    numbers = [number for _, number in class_numbers(model)]
    for source in sources:
        classes, palette = source.get('classes'), source.get('palette')
        if isinstance(classes, (list, tuple)) and (not numbers or len(classes) in numbers):
            break
    else:
        classes, palette = range(max(numbers, default=1000)), None
        print_log('Neither checkpoint nor config has names of the classes: they are numbers.', logger='current')
    return [str(name) for name in classes], palette


def _category_ids(dataset: object, classes: list[str]) -> list[int]:
    """The ids that COCO annotations of a dataset give its classes; without them, the numbers of the classes."""
    file = getattr(dataset, 'ann_file', None) or ''
    if file.endswith('.json') and os.path.isfile(file):
        with refusing(f'{file}, which the config names for the ids of the classes, cannot be read'):
            ids = {one['name']: one['id'] for one in json.loads(Path(file).read_bytes()).get('categories', ())}
        if set(classes) <= set(ids):
            print_log(f'Category ids are those of {file}.', logger='current')
            return [ids[name] for name in classes]
    print_log('Category ids are the numbers of the classes, counted from 0.', logger='current')
    return list(range(len(classes)))


class Model:
    """A model, and what becomes of its results: names, RGB colors and ids in predictions.json of its classes."""

    one_shape = False  # of all images of a batch
    inferencer_arguments = {}

    def __init__(self, cfg: Config, inferencer: object, classes: list[str], palette: list, ids: list[int]) -> None:
        self.cfg, self.inferencer, self.classes, self.ids = cfg, inferencer, classes, ids
        self.colors = colors_of(palette, len(classes))

    def prepare(self, images: list[np.ndarray]) -> dict:
        """A batch for the model: what the test pipeline makes of images, which its LoadImageFromFile has read."""
        with refusing("the config's test pipeline cannot prepare it"):  # any error, as for an image of one row
            (prepared,) = self.inferencer.preprocess(images, len(images))
        return prepared if isinstance(prepared, dict) else prepared[1]  # DetInferencer adds the images.

    def infer(self, images: list[np.ndarray], boxes: list[tuple] | None = None) -> list:
        """The results of images, or of a part of each, which a box x1, y1, x2, y2 gives."""
        boxes = boxes or [(0, 0, image.shape[1], image.shape[0]) for image in images]
        parts = [np.ascontiguousarray(image[y1:y2, x1:x2]) for image, (x1, y1, x2, y2) in zip(images, boxes)]
        results = zip(self.inferencer.forward(self.prepare(parts)), boxes, images)
        return [self.result(sample, box, *image.shape[:2]) for sample, box, image in results]


class _Detector(Model):
    inferencer_class = 'mmdet.apis.DetInferencer'

    @property
    def finds_objects(self) -> bool:
        """Whether it predicts boxes or masks of objects, not panoptic maps alone."""
        kinds = {base.__name__ for base in type(self.inferencer.model).__mro__}
        if 'MaskFormer' in kinds:  # a base of Mask2Former
            return (self.cfg.model.get('test_cfg') or {}).get('instance_on', False)
        return 'TwoStagePanopticSegmentor' not in kinds

    def result(self, sample: object, box: tuple, height: int, width: int) -> list[Detection]:
        return detections(sample.pred_instances.cpu(), *box[:2], height, width)

    def join(self, found: list[list[Detection]], tiles: list[Tile], height: int, width: int) -> list[Detection]:
        test_cfg = self.cfg.model.get('test_cfg') or {}
        nms = test_cfg.get('rcnn', test_cfg).get('nms') or {}  # one-stage detectors have no part "rcnn"
        return join_detections(found, tiles, height, width, nms.get('iou_threshold', 0.5))

    def write(self, result: list[Detection], entry: dict, out: Path, name: str) -> list[dict]:
        annotations = []
        for (x1, y1, x2, y2), label, score, mask in result:
            one = dict(image_id=entry['id'], category_id=self.ids[label], bbox=[x1, y1, x2 - x1, y2 - y1], score=score)
            if mask:
                one['segmentation'] = dict(mask, counts=mask['counts'].decode())
            annotations.append(one)
        return annotations

    def draw(self, image: np.ndarray, result: list[Detection], score_thr: float) -> None:
        draw_detections(image, [one for one in result if one.score >= score_thr], self.classes, self.colors)


class _Segmentor(Model):
    inferencer_class = 'mmseg.apis.MMSegInferencer'
    one_shape = True
    join = staticmethod(join_maps)

    def result(self, sample: object, *_: object) -> np.ndarray:
        kind = np.uint8 if len(self.classes) <= 256 else np.uint16
        return sample.pred_sem_seg.data[0].cpu().numpy().astype(kind)

    def write(self, result: np.ndarray, entry: dict, out: Path, name: str) -> list[dict]:
        entry['label_map'] = f'labels/{name}.png'
        with whole_file(out / entry['label_map']) as part:
            picture = PIL.Image.fromarray(result)
            if picture.mode == 'L':  # a palette has 256 colors
                picture.putpalette(np.resize(self.colors[:, ::-1], (256, 3)).tobytes())
            picture.save(part, 'PNG', compress_level=1)
        return []

    def draw(self, image: np.ndarray, result: np.ndarray, score_thr: float) -> None:
        draw_label_map(image, result, self.classes, self.colors)


class _Classifier(Model):
    inferencer_class = 'mmpretrain.ImageClassificationInferencer'
    inferencer_arguments = dict(pretrained=False)  # no weights yet

    def result(self, sample: object, *_: object) -> list[tuple[int, float]]:
        scores, labels = sample.pred_score.cpu().topk(min(5, len(sample.pred_score)))
        return list(zip(labels.tolist(), scores.tolist()))

    def write(self, result: list[tuple[int, float]], entry: dict, out: Path, name: str) -> list[dict]:
        return [dict(image_id=entry['id'], category_id=self.ids[label], score=score) for label, score in result]

    def draw(self, image: np.ndarray, result: list[tuple[int, float]], score_thr: float) -> None:
        label, score = result[0]
        draw_texts(image, [(f'{self.classes[label]} {score:.2f}', 0, 0, self.colors[label])])


#: default_scope -> how its models predict
MODELS = dict(mmdet=_Detector, mmseg=_Segmentor, mmpretrain=_Classifier)
