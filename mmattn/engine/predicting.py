"""Predictions of detectors, segmentors and classifiers on images and videos, by OpenMMLab's inferencers."""

import glob
import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.logging import print_log
from mmengine.registry import DATASETS, TRANSFORMS, DefaultScope
from rich.progress import Progress

from ..errors import InputError, describe
from ..weights import read_file
from .datasets import class_numbers
from .images import load_image
from .resuming import check_complete, whole_model_weights
from .runs import running
from .tiles import Detection, Tile, cut, detections, join_detections, join_maps

IMAGES = ('.jpg', '.jpeg', '.png', '.bmp', '.ppm', '.pgm', '.tif', '.tiff', '.webp')
VIDEOS = ('.mp4', '.avi', '.mov', '.mkv', '.webm', '.m4v')


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
) -> None:
    """Predict on images and videos, and write what docs/predict.md describes.

    Args:
        cfg: of the model, from :func:`mmattn.engine.configs.load_config`.
        checkpoint: file or address of its weights.
        inputs: see :func:`find_files`.
        out: folder to write to; it is new or empty.
        tile: side in pixels of the tiles that larger images are cut into; None for whole images.
        overlap: pixels that neighbouring tiles share.
        score_thr: score above which detections are drawn.
        batch_size: images or tiles that the model takes at once.
        device: of the model. The default is an accelerator, if there is one.
        trusted: see :func:`mmattn.engine.runs.running`.

    Raises:
        InputError: if nothing can be predicted, or, after the rest was written, naming the files that cannot be read.
        CheckpointError: if the checkpoint does not have all weights of the model.
    """
    files = find_files(inputs)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f'{out} is no empty folder: name another one, or remove it')
    with running(cfg, trusted):
        load, model = _model(cfg, checkpoint, device, trusted)
    if tile and isinstance(model, _Classifier):
        raise InputError('--tile is for detectors and segmentors: a class is of a whole image')
    contents = dict(
        images=[], categories=[dict(id=id, name=name) for id, name in zip(model.ids, model.classes)], annotations=[]
    )
    problems, videos = [], {}
    with Progress() as progress:
        task = progress.add_task('Predicting', total=sum(_length(path) for *_, path in files))
        advance = partial(progress.advance, task)
        reader = _read(files, load, problems, videos)
        for batch in _batches(reader, 1 if tile else batch_size, model.one_shape):
            predicted = partial(_results, model, tile=tile, overlap=overlap, size=batch_size, advance=advance)
            for (name, file_name, image), result in _one_by_one(predicted, batch, problems):
                height, width = image.shape[:2]
                entry = dict(id=len(contents['images']) + 1, file_name=file_name, height=height, width=width)
                contents['images'].append(entry)
                contents['annotations'] += model.write(result, entry, out, name)
                model.draw(image, result, score_thr)
                _write_image(out / 'images' / f'{name}.jpg', image)
    for name, (fps, frames) in videos.items():
        _write_video(out / 'images' / name, fps, frames)
    _write(out / 'predictions.json', json.dumps(contents).encode())
    print_log(f'{out}: predictions on {len(contents["images"])} images', logger='current')
    if problems:
        raise InputError(f'{len(problems)} of {len(files)} files could not be used: {"; ".join(problems)}')


def find_files(inputs: Iterable[str]) -> list[tuple[str, str, str]]:
    """Images and videos: the name of what is written of each, its path below the folder of all, and its path.

    The name is the second without its suffix; with it, if two files would get one name.

    Args:
        inputs: files, folders, of which the folders within are read too, and patterns as of a shell, with ** for any
            folders. In folders and among matches, files that have no suffix of images or videos are left out, and the
            log says how many.

    Raises:
        InputError: if one of them names nothing, or has no image and no video.
    """
    files, others = {}, 0
    for given in inputs:
        if os.path.isfile(given):
            files[os.path.abspath(given)] = None
            continue
        matches = [given] if os.path.isdir(given) else sorted(glob.glob(given, recursive=True))
        if not matches:
            raise InputError(f'there is no file or folder {given}, and it matches none as a pattern')
        below = [
            file for path in matches for file in ([path], sorted(map(str, Path(path).rglob('*'))))[os.path.isdir(path)]
        ]
        below = [os.path.abspath(file) for file in below if os.path.isfile(file)]
        known = [file for file in below if file.lower().endswith(IMAGES + VIDEOS)]
        if not known:
            raise InputError(f'{given} has no image and no video: their names end with {", ".join(IMAGES + VIDEOS)}')
        files.update(dict.fromkeys(known))
        others += len(below) - len(known)
    if others:
        print_log(f'{others} files are left out, which have no suffix of images or videos.', logger='current')
    root = os.path.commonpath([os.path.dirname(file) for file in files])
    full = [os.path.relpath(file, root) for file in files]
    names = [os.path.splitext(name)[0] for name in full]
    frames = tuple(f'{os.path.splitext(name)[0]}_' for name in full if _is_video(name))
    unique = len(set(names)) == len(names) and not any(name.startswith(frames) for name in names)
    return list(zip(names if unique else full, full, files))


def _is_video(path: str) -> bool:
    return path.lower().endswith(VIDEOS)


def _length(path: str) -> int:
    from mmcv import VideoReader

    return max(VideoReader(path).frame_cnt, 1) if _is_video(path) else 1


def _read(files: list[tuple], load: Callable, problems: list[str], videos: dict) -> Iterator[tuple]:
    """Name, file name and pixels of each image and frame.

    What cannot be read is added to ``problems``; the rate and the number of frames of each video to ``videos``.
    """
    from mmcv import VideoReader

    for name, file_name, path in files:
        if not _is_video(path):
            try:
                image = load_image(load, dict(img_path=path))['img']
            except InputError as error:
                problems.append(describe(error))
            else:
                yield name, file_name, image
            continue
        number, video = 0, VideoReader(path)
        for number, image in enumerate(video, 1):
            yield f'{name}_{number:06d}', f'{name}_{number:06d}.jpg', image
        if number:
            videos[name] = video.fps, number
        if number < max(video.frame_cnt, 1):
            problems.append(f'{path} ends after {number} of {video.frame_cnt} frames')


def _batches(reader: Iterator[tuple], size: int, one_shape: bool) -> Iterator[list[tuple]]:
    batch = []
    for item in reader:
        if batch and (len(batch) == size or one_shape and item[-1].shape != batch[0][-1].shape):
            yield batch
            batch = []
        batch.append(item)
    if batch:
        yield batch


def _one_by_one(predicted: Callable, batch: list[tuple], problems: list[str]) -> list[tuple]:
    """The images of a batch and their results, without those that cannot be prepared; these go to ``problems``."""
    try:
        return list(zip(batch, predicted([image for *_, image in batch])))
    except InputError as error:
        if len(batch) > 1:
            return [pair for one in batch for pair in _one_by_one(predicted, [one], problems)]
        problems.append(f'{batch[0][1]}: {error}')
        return []


def _results(
    model: '_Model', images: list[np.ndarray], tile: int | None, overlap: int, size: int, advance: Callable
) -> list:
    height, width = images[0].shape[:2]
    tiles = cut(height, width, tile, overlap) if tile else []
    if len(tiles) > 1:
        return [model.join(_in_tiles(model, images[0], tiles, size, advance), tiles, height, width)]
    results = model(images)
    advance(len(images))
    return results


def _in_tiles(model: '_Model', image: np.ndarray, tiles: list[Tile], size: int, advance: Callable) -> Iterator:
    for start in range(0, len(tiles), size):
        boxes = [box for box, _ in tiles[start : start + size]]
        yield from model(
            [np.ascontiguousarray(image[y1:y2, x1:x2]) for x1, y1, x2, y2 in boxes],
            [(x, y, *image.shape[:2]) for x, y, *_ in boxes],
        )
        advance(len(boxes) / len(tiles))


def _write(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all."""
    part = path.with_name(f'{path.name}.part')
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        part.write_bytes(content)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _write_image(path: Path, image: np.ndarray) -> None:
    from cv2 import imencode

    _write(path, imencode(path.suffix, image)[1].tobytes())


def _write_video(frames: Path, fps: float, number: int) -> None:
    """Make a video of numbered images."""
    from mmcv import frames2video

    part = frames.with_name(f'{frames.name}.part.mp4')
    template = f'{frames.name.replace("{", "{{").replace("}", "}}")}_{{:06d}}.jpg'
    frames2video(str(frames.parent), str(part), fps or 25, 'mp4v', template, 1, number + 1, show_progress=False)
    os.replace(part, frames.with_name(f'{frames.name}.mp4'))


def _model(cfg: Config, checkpoint: str, device: str | None, trusted: bool) -> tuple[Callable, '_Model']:
    """What loads an image, and the model of a config with the weights of a checkpoint."""
    scope = cfg.get('default_scope')
    if scope not in MODELS:
        raise InputError(f'the default_scope of the config is {scope}: predictions are of {", ".join(MODELS)}')
    node = (cfg.get('test_dataloader') or {}).get('dataset') or {}
    loaders = [step for step in node.get('pipeline') or () if str(step.get('type')).endswith('LoadImageFromFile')]
    if not loaders:
        raise InputError(
            'the config has no test_dataloader.dataset.pipeline with LoadImageFromFile, which reads images'
        )
    if device:
        try:
            torch.empty(1, device=device)
        except (RuntimeError, AssertionError) as error:
            raise InputError(f'--device {device} cannot be used here: {describe(error).splitlines()[0]}') from error
    cfg.visualizer = dict(type='DetLocalVisualizer' if scope == 'mmdet' else 'SegLocalVisualizer')
    with DefaultScope.overwrite_default_scope(scope), warnings.catch_warnings():
        warnings.simplefilter('ignore')  # The inferencers warn that there are no weights. They come next.
        load = TRANSFORMS.build(loaders[0])
        dataset = DATASETS.build(dict(node, pipeline=[], lazy_init=True))
        inferencer = MODELS[scope].build(cfg, device)
    contents = read_file(checkpoint, trusted=trusted)
    weights = whole_model_weights(contents, inferencer.model, checkpoint)
    check_complete(weights, inferencer.model, checkpoint)
    inferencer.model.load_state_dict(weights, strict=False)

    numbers = [number for _, number in class_numbers(inferencer.model)]
    meta = contents.get('meta')
    saved = meta.get('dataset_meta') if isinstance(meta, dict) else None
    for source in (saved, dataset.metainfo):
        source = {str(key).lower(): value for key, value in source.items()} if isinstance(source, dict) else {}
        classes, palette = source.get('classes'), source.get('palette')
        if isinstance(classes, (list, tuple)) and (not numbers or len(classes) in numbers):
            break
    else:
        classes = range(max(numbers, default=1000))
        print_log(f'Neither {checkpoint} nor the config has names of the classes: they are numbers.', logger='current')
    palette = palette if isinstance(palette, (list, tuple)) and len(palette) == len(classes) else None
    palette = palette or np.random.RandomState(0).randint(0, 256, (len(classes), 3)).tolist()
    classes = [str(name) for name in classes]
    return load, MODELS[scope](cfg, inferencer, classes, palette, _category_ids(dataset, classes))


def _category_ids(dataset: object, classes: list[str]) -> list[int]:
    """The ids that COCO annotations of a dataset give its classes; without them, the numbers of the classes."""
    file = getattr(dataset, 'ann_file', None) or ''
    if file.endswith('.json') and os.path.isfile(file):
        ids = {one['name']: one['id'] for one in json.loads(Path(file).read_bytes()).get('categories', ())}
        if set(classes) <= set(ids):
            return [ids[name] for name in classes]
    return list(range(len(classes)))


class _Model:
    """A model that predicts on images of uint8 (H, W, 3), BGR.

    Args:
        inferencer: with the weights.
        classes, colors, ids: names of the classes, RGB, and their ids in predictions.json.
    """

    one_shape = False  # of all images of a batch

    def __init__(self, cfg: Config, inferencer: object, classes: list[str], colors: list, ids: list[int]) -> None:
        self.cfg, self.inferencer, self.classes, self.ids = cfg, inferencer, classes, ids
        self.colors = np.array(colors, np.uint8)[:, ::-1]

    def __call__(self, images: list[np.ndarray], places: list[tuple] | None = None) -> list:
        """The results of images, which are whole or at places x, y of an image of some height and width."""
        samples = []
        try:
            prepared = list(self.inferencer.preprocess(images, len(images)))
        except Exception as error:  # A transform can raise any error, as for an image of one row.
            raise InputError(f"the config's test pipeline cannot prepare it: {describe(error)}") from error
        for data in prepared:
            # DetInferencer adds the images.
            samples += self.inferencer.forward(data if isinstance(data, dict) else data[1])
        return [
            self.result(sample, *place)
            for sample, place in zip(samples, places or [(0, 0, *image.shape[:2]) for image in images])
        ]

    def put_text(self, image: np.ndarray, text: str, x: float, y: float, label: int) -> None:
        """Write on an image, on the color of a class; x, y is the upper left corner."""
        import cv2

        scale = min(0.6, max(0.35, max(image.shape) / 2500))
        font = cv2.FONT_HERSHEY_SIMPLEX, scale
        thickness = 1
        (width, height), base = cv2.getTextSize(text, *font, thickness)
        x, y = int(max(0, min(x, image.shape[1] - width))), int(max(0, min(y, image.shape[0] - height - base)))
        color = self.colors[label].tolist()
        cv2.rectangle(image, (x, y), (x + width, y + height + base), color, -1)
        ink = (0, 0, 0) if sum(color) > 380 else (255, 255, 255)
        cv2.putText(image, text, (x, y + height), *font, ink, thickness, cv2.LINE_AA)


class _Detector(_Model):
    @staticmethod
    def build(cfg: Config, device: str | None) -> object:
        from mmdet.apis import DetInferencer

        return DetInferencer(cfg, device=device, show_progress=False)

    def result(self, sample: object, x: int, y: int, height: int, width: int) -> list[Detection]:
        return detections(sample.pred_instances.cpu(), x, y, height, width)

    def join(self, found: Iterator[list[Detection]], tiles: list[Tile], height: int, width: int) -> list[Detection]:
        settings = self.cfg.model.get('test_cfg') or {}
        nms = settings.get('rcnn', settings).get('nms') or {}
        return join_detections(list(found), tiles, height, width, nms.get('iou_threshold', 0.5))

    def write(self, result: list[Detection], entry: dict, out: Path, name: str) -> list[dict]:
        annotations = []
        for (x1, y1, x2, y2), label, score, mask in result:
            one = dict(image_id=entry['id'], category_id=self.ids[label], bbox=[x1, y1, x2 - x1, y2 - y1], score=score)
            if mask:
                one['segmentation'] = dict(mask, counts=mask['counts'].decode())
            annotations.append(one)
        return annotations

    def draw(self, image: np.ndarray, result: list[Detection], score_thr: float) -> None:
        import cv2

        drawn = [one for one in reversed(result) if one.score >= score_thr]  # the best one on top
        for one in drawn:
            color = self.colors[one.label].tolist()
            if one.mask:
                from pycocotools.mask import decode, toBbox

                x, y, width, height = map(int, toBbox(one.mask))
                part = image[y : y + height, x : x + width]
                mask = decode(one.mask)[y : y + height, x : x + width].astype(bool)
                part[mask] = (0.5 * part[mask] + 0.5 * np.array(color)).astype(np.uint8)
            x1, y1, x2, y2 = map(round, one.box)
            cv2.rectangle(image, (x1, y1), (x2, y2), color, 2 if max(image.shape) > 1000 else 1)
        for one in drawn:
            self.put_text(image, f'{self.classes[one.label]} {one.score:.2f}', *one.box[:2], one.label)


class _Segmentor(_Model):
    one_shape = True
    join = staticmethod(join_maps)

    @staticmethod
    def build(cfg: Config, device: str | None) -> object:
        from mmseg.apis import MMSegInferencer

        return MMSegInferencer(cfg, device=device)

    def result(self, sample: object, *place: int) -> np.ndarray:
        kind = np.uint8 if len(self.classes) <= 256 else np.uint16
        return sample.pred_sem_seg.data[0].cpu().numpy().astype(kind)

    def write(self, result: np.ndarray, entry: dict, out: Path, name: str) -> list[dict]:
        entry['label_map'] = f'labels/{name}.png'
        _write_image(out / entry['label_map'], result)
        return []

    def draw(self, image: np.ndarray, result: np.ndarray, score_thr: float) -> None:
        import cv2

        cv2.addWeighted(image, 0.4, self.colors[result], 0.6, 0, dst=image)
        for label in np.unique(result).tolist():
            inside = cv2.distanceTransform((result == label).astype(np.uint8), cv2.DIST_L2, 3)
            y, x = np.unravel_index(inside.argmax(), inside.shape)
            self.put_text(image, self.classes[label], x, y, label)


class _Classifier(_Model):
    @staticmethod
    def build(cfg: Config, device: str | None) -> object:
        from mmpretrain import ImageClassificationInferencer

        return ImageClassificationInferencer(cfg, pretrained=False, device=device or get_device())

    def result(self, sample: object, *place: int) -> list[tuple[int, float]]:
        scores, labels = sample.pred_score.cpu().topk(min(5, len(sample.pred_score)))
        return list(zip(labels.tolist(), scores.tolist()))

    def write(self, result: list[tuple[int, float]], entry: dict, out: Path, name: str) -> list[dict]:
        return [dict(image_id=entry['id'], category_id=self.ids[label], score=score) for label, score in result]

    def draw(self, image: np.ndarray, result: list[tuple[int, float]], score_thr: float) -> None:
        label, score = result[0]
        self.put_text(image, f'{self.classes[label]} {score:.2f}', 0, 0, label)


#: default_scope -> how its models predict
MODELS = dict(mmdet=_Detector, mmseg=_Segmentor, mmpretrain=_Classifier)
