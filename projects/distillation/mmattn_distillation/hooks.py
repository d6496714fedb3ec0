"""What a distillation shows and writes while it trains: similarity with the teachers, pictures of features, and the
student's weights."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from mmengine.dist import is_main_process, master_only
from mmengine.evaluator import BaseMetric
from mmengine.hooks import EMAHook, Hook
from mmengine.registry import HOOKS, METRICS
from mmengine.runner import BaseLoop, EpochBasedTrainLoop, FlexibleRunner, Runner, save_checkpoint
from torch import Tensor

from mmattn.arguments import check_whole
from mmattn.errors import InputError
from mmattn.weights import plain_names
from mmguard.runs.checkpoints import ATOMIC, backbone_settings, unwrapped, writing_checkpoints
from mmguard.text import write_text

#: part ('stage1', ..., 'global') -> the student's prediction and the teacher's standardised features
Compared = Mapping[str, tuple[Tensor, Tensor]]
#: of a sheet: pixels between pictures, and of the line of text above each
GAP, LINE = 6, 18


@METRICS.register_module()
class TeacherSimilarity(BaseMetric):
    """Mean cosine similarity of the student's predictions with the features of the teachers.

    It averages what :class:`FeatureDistiller` gives each image as ``cosines``: per part of each teacher, and over all
    parts as "mean".

    Raises:
        InputError: if the model gives none.
    """

    default_prefix, field, model = 'similarity', 'cosines', 'FeatureDistiller'

    def process(self, data_batch: object, data_samples: Sequence[dict]) -> None:
        for sample in data_samples:
            if self.field not in sample:
                raise InputError(f'{type(self).__name__} is for {self.model}: take it out of the evaluator')
            self.results.append(sample[self.field])

    def compute_metrics(self, results: list[dict[str, float]]) -> dict[str, float]:
        means = {part: float(np.mean([one[part] for one in results])) for part in results[0]}
        return dict(means, mean=float(np.mean(list(means.values()))))


def cosines(compared: Compared) -> dict[str, float]:
    """Cosine similarity of each part, mean over images and positions; see :class:`TeacherSimilarity`."""
    return {
        part: F.cosine_similarity(prediction.float(), target.float(), dim=1).mean().item()
        for part, (prediction, target) in compared.items()
    }


def components(target: Tensor, *predictions: Tensor) -> list[np.ndarray]:
    """Three principal components of a teacher's map as colours, and the same components of the student's predictions.

    All have the range of the teacher's, of which 1 % is cut at either end. A component without variance is grey. The
    largest weight of each component is positive, so that pictures of several epochs have the same colours.

    Args:
        target, predictions: (C, h, w).

    Returns:
        colours of the teacher and of each prediction, uint8 (h, w, 3), RGB.
    """
    teacher, *others = (x.detach().double().cpu().flatten(1).t().nan_to_num(0, 0, 0) for x in (target, *predictions))
    mean = teacher.mean(0)
    # Eigenvectors of the covariance: large maps would take seconds with an SVD.
    directions = torch.linalg.eigh((teacher - mean).t() @ (teacher - mean)).eigenvectors[:, -3:].flip(1).t()
    directions = directions * directions.gather(1, directions.abs().argmax(1, keepdim=True)).sign()
    # A map of fewer than three channels has fewer components.
    shades = [F.pad((x - mean) @ directions.t(), (0, 3 - len(directions))) for x in (teacher, *others)]
    low, high = shades[0].quantile(torch.tensor([0.01, 0.99], dtype=torch.double), 0)
    varies = high - low > 1e-6
    shades = [torch.where(varies, (x - low) / (high - low).clamp(min=1e-6), 0.5).clamp(0, 1) for x in shades]
    return [(255 * x).round().byte().view(*target.shape[1:], 3).numpy() for x in shades]


def component_sheet(
    image: Tensor, compared: Sequence[Compared], names: Sequence[str] = ('',), side: int = 224
) -> np.ndarray:
    """An image beside the features of teachers and student: the picture that shows whether a student learns.

    A row per teacher: the image with the cosine of the global term, the teacher's :func:`components`, and for each map
    of the student its prediction of them with the cosine. With ``same_maps``, each map stands beside the teacher's.

    Args:
        image: RGB from 0 to 255, (3, H, W).
        compared: of each teacher, what ``FeatureDistiller.paired_features`` returns for this image alone.
        names: of the teachers.
        side: pixels of the longer side of each picture.

    Returns:
        uint8 (height, width, 3), RGB.
    """
    size = [max(1, round(side * length / max(image.shape[1:]))) for length in image.shape[1:]]
    picture = image.detach().clamp(0, 255).byte().permute(1, 2, 0).cpu().numpy()
    rows = []
    for name, parts in zip(names, compared):
        maps = {part: pair for part, pair in parts.items() if part != 'global'}
        similar = cosines(parts)
        titles, shown = [f'image, global {similar["global"]:.2f}'], [picture]
        predicted = {}  # target -> the maps that predict it, all of them or one
        for part, (_, target) in maps.items():
            predicted.setdefault(target, []).append(part)
        for target, names_of_maps in predicted.items():
            titles += [name or 'teacher', *(f'{part} {similar[part]:.2f}' for part in names_of_maps)]
            shown += components(target[0], *(maps[part][0][0] for part in names_of_maps))
        rows.append(np.concatenate([_tile(*each, size, side) for each in zip(titles, shown)], 1))
    return np.concatenate(rows)


def _tile(title: str, picture: np.ndarray, size: Sequence[int], side: int) -> np.ndarray:
    """A picture resized to ``size``, height and width, on white below its title."""
    tile = np.full((size[0] + LINE + GAP, side + GAP, 3), 255, np.uint8)
    # The positions of a map stay visible as squares.
    way = cv2.INTER_AREA if picture.shape[0] > size[0] else cv2.INTER_NEAREST
    tile[LINE : LINE + size[0], : size[1]] = cv2.resize(picture, (size[1], size[0]), interpolation=way)
    write_text(tile, title, 0, 1, 12)
    return tile


@HOOKS.register_module()
class FeatureImagesHook(Hook):
    """Shows :func:`component_sheet` of the first validation images after every epoch that is validated.

    The pictures features_1, features_2 ... go to the visualizer: TensorboardVisBackend shows them in TensorBoard,
    LocalVisBackend writes PNG files to the work folder. They are of what is validated: of the averaged model, with
    EMAHook.

    Args:
        images: their number. With several processes, they are the first that the first process validates.

    Raises:
        ValueError: if it is not a whole number of at least 1.
        InputError: if the model is not a :class:`FeatureDistiller`.
    """

    def __init__(self, images: int = 4) -> None:
        check_whole('images', images)
        self.images = images

    def before_val_epoch(self, runner: Runner) -> None:
        self.shown = 0

    @torch.no_grad()
    def after_val_iter(
        self, runner: Runner, batch_idx: int, data_batch: dict | None = None, outputs: Sequence | None = None
    ) -> None:
        if not is_main_process() or self.shown == self.images:
            return
        model = unwrapped(runner.model)
        if not hasattr(model, 'paired_features'):
            raise InputError('FeatureImagesHook is for FeatureDistiller: take it out of custom_hooks')
        loop, step = runner._train_loop, 0  # The property would build a loop for a validation alone.
        if isinstance(loop, BaseLoop):
            step = loop.epoch if isinstance(loop, EpochBasedTrainLoop) else loop.iter
        for i in range(min(len(data_batch['inputs']), self.images - self.shown)):
            one = model.data_preprocessor({name: values[i : i + 1] for name, values in data_batch.items()}, False)
            compared = model.paired_features(one['inputs'], one['teacher_inputs'])
            sheet = component_sheet(one['teacher_inputs'][0], compared, model.names)
            self.shown += 1
            runner.visualizer.add_image(f'features_{self.shown}', sheet, step)


@HOOKS.register_module()
class BackboneCheckpointHook(Hook):
    """Writes the weights of the model's backbone alone, backbone_epoch_N.pth, beside the states of the training.

    ``init_cfg=dict(type='Pretrained', checkpoint=...)`` of the same backbone in a detector, a segmentor or a classifier
    takes the file strictly. With EMAHook, the weights are the averaged ones. The file also has the config of the
    training and, in ``meta['mmattn']``, the settings of the backbone, which are compared when it is loaded.

    A file is complete or does not exist, as those of :class:`mmguard.runs.AtomicCheckpointHook`. It is written after
    the state of its epoch. If a training was killed in between, it writes the file when it resumes.

    Args:
        interval: epochs between files. The last epoch always has one.
        max_keep_ckpts: number of files that are kept; -1 keeps all.

    Raises:
        ValueError: if one of them is not a whole number in its range.
        InputError: if the model has no backbone, or the training is sharded or not by epochs.
        CheckpointError: if a file cannot be written, while training.
    """

    priority = 'LOWEST'  # after CheckpointHook

    def __init__(self, interval: int = 1, max_keep_ckpts: int = 3) -> None:
        check_whole('interval', interval)
        if max_keep_ckpts != -1:
            check_whole('max_keep_ckpts', max_keep_ckpts)
        self.interval, self.max_keep_ckpts = interval, max_keep_ckpts

    def before_train(self, runner: Runner) -> None:
        problem = ''
        if not hasattr(unwrapped(runner.model), 'backbone'):
            problem = f'{type(unwrapped(runner.model)).__name__} has no backbone'
        elif isinstance(runner, FlexibleRunner):
            problem = 'no process of a sharded training has the whole backbone'
        elif not isinstance(runner.train_loop, EpochBasedTrainLoop):
            problem = 'it writes after epochs, and the training is by steps'
        if problem:
            raise InputError(f'BackboneCheckpointHook cannot work, because {problem}: take it out of custom_hooks')
        if runner.epoch and not self._file(runner, runner.epoch).exists():
            self._write(runner, runner.epoch)

    def after_train_epoch(self, runner: Runner) -> None:
        self._write(runner, runner.epoch + 1)

    def _file(self, runner: Runner, epoch: int) -> Path:
        return Path(runner.work_dir, f'backbone_epoch_{epoch}.pth')

    @master_only
    def _write(self, runner: Runner, epoch: int) -> None:
        """Write the file of an epoch, if it is to have one, and remove old ones."""
        if epoch % self.interval and epoch != runner.max_epochs:
            return
        averaged = [hook.ema_model.module for hook in runner.hooks if isinstance(hook, EMAHook)]
        backbone = (averaged or [unwrapped(runner.model)])[0].backbone
        weights = plain_names(backbone.state_dict(), 'the backbone')
        weights = {name: tensor.cpu() for name, tensor in weights.items()}
        meta = dict(epoch=epoch, cfg=runner.cfg.pretty_text, mmattn=backbone_settings(backbone))
        file = self._file(runner, epoch)
        with writing_checkpoints(runner.work_dir):
            save_checkpoint(dict(meta=meta, state_dict=weights), str(file), backend_args=dict(backend=ATOMIC))
            # A training that resumes from an older state comes to later files again.
            names = [re.fullmatch(r'backbone_epoch_(\d+)\.pth', path.name) for path in file.parent.iterdir()]
            numbers = sorted(number for name in names if name and (number := int(name[1])) <= epoch)
            for number in numbers[: -self.max_keep_ckpts] if self.max_keep_ckpts > 0 else ():
                self._file(runner, number).unlink(missing_ok=True)
