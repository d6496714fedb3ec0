"""The views of an image in test-time augmentation: sizes around the test size, each also flipped."""

from collections.abc import Sequence
from numbers import Real

from mmengine.config import Config

from ..checks.config_types import nested, type_name
from ..checks.config_values import dataset_configs
from ..errors import InputError

#: settings of a test pipeline's steps that are sizes, by a part of the type
SIZES = {'Resize': ('scale', 'scale_factor', 'max_size', 'width', 'height'), 'Pad': ('size',), 'Crop': ('crop_size',)}
#: an explicit size of a view is far from the test size if it is more than this many times larger or smaller
FAR = 2


def views_pipeline(
    test_pipeline: Sequence[dict], factors: Sequence[float] = (1.0,), long_side: int | None = None
) -> list[dict]:
    """The pipeline that makes several views of each image, for a ``tta_model``.

    Each view is made as in the test, with all sizes multiplied by one factor, and once more flipped. Without a resize
    in the test, factors are of the image's own size. Ground truth is loaded as in the test.

    Args:
        test_pipeline: steps of a config.
        factors: one for each size.
        long_side: this limit of long sides, in pixels, stays in every view of a test whose scale has it.

    Raises:
        InputError: for an empty pipeline, and factors that are not numbers above 0.
    """
    factors = [factors] if isinstance(factors, Real) else list(factors or ())
    if not factors or not all(isinstance(one, Real) and one > 0 for one in factors):
        raise InputError(f'tta_views.factors must be numbers above 0, as (0.75, 1.0, 1.25), not {factors}')
    if not test_pipeline:
        raise InputError('--tta needs a pipeline in the dataset of test_dataloader')
    steps, last = list(test_pipeline), len(test_pipeline) - 1
    sized = [i for i, step in enumerate(steps) if _sizes(step)]
    after = sized[-1] + 1 if sized else 0
    # Annotations come after the flip, so that they stay those of the image.
    end = next((i for i in range(after, last) if 'Annotation' in type_name(steps[i].get('type'))), last)
    choices = [[dict(type='RandomFlip', prob=0.0), dict(type='RandomFlip', prob=1.0)]]
    choices += [[_with_flip(step)] for step in steps[end:]]
    start = end
    if factors != [1]:
        start = sized[0] if sized else end
        made = steps[start:end] or [dict(type='Resize', scale_factor=1.0, keep_ratio=True)]
        views = [[_multiplied(step, factor, long_side) for step in made] for factor in factors]
        choices.insert(0, [view[0] if len(view) == 1 else dict(type='Compose', transforms=view) for view in views])
    return [*steps[:start], dict(type='TestTimeAug', transforms=choices)]


def far_sizes(tta_pipeline: Sequence[dict], test_pipeline: Sequence[dict]) -> tuple[list[int], int] | None:
    """Short sides to which views are resized that are far from the test's, and the test's; None if none is far."""
    views, tests = (_short_sides(pipeline) for pipeline in (tta_pipeline, test_pipeline))
    far = [side for side in views if tests and not tests[0] / FAR <= side <= tests[0] * FAR]
    return (far, tests[0]) if far else None


def image_size(cfg: Config) -> tuple[int, int] | None:
    """Width and height of the images of a config's test, or else of its validation, see :func:`pipeline_size`."""
    pipelines = (node.get('pipeline') for split in ('test', 'val') for _, node in dataset_configs(cfg, split))
    return pipeline_size(next(filter(None, pipelines), ()))


def pipeline_size(test_pipeline: Sequence[dict]) -> tuple[int, int] | None:
    """Width and height that the last step with a size gives images, or their limits if it keeps the ratio; None if no
    step has a size."""
    for _, step in reversed(list(nested(list(test_pipeline), ''))):
        size = next((step[key] for key in _sizes(step) if key in ('scale', 'size', 'crop_size')), None)
        if step.get('width') and step.get('height'):  # of MMDetection's FixShapeResize
            size = step['width'], step['height']
        if size is not None:
            return (size, size) if isinstance(size, Real) else tuple(size)
    return None


def _short_sides(pipeline: Sequence[dict]) -> list[int]:
    steps = [step for _, step in nested(list(pipeline), '') if 'Resize' in type_name(step.get('type'))]
    scales = [step['scale'] for step in steps if step.get('scale')]
    return [scale if isinstance(scale, Real) else min(scale) for scale in scales]


def _sizes(step: dict) -> list[str]:
    """The settings of a step that are sizes."""
    name = type_name(step.get('type'))
    return [key for part, keys in SIZES.items() if part in name for key in keys if step.get(key)]


def _multiplied(step: dict, factor: float, long_side: int | None) -> dict:
    def times(value: object, key: str) -> object:
        if isinstance(value, Real):
            return float(value * factor) if key == 'scale_factor' else round(value * factor)
        kept = long_side if key == 'scale' and max(value) == long_side else None
        return tuple(one if one == kept else times(one, key) for one in value)

    return dict(step, **{key: times(step[key], key) for key in _sizes(step)})


def _with_flip(step: dict) -> dict:
    """A step that packs must pass on the flip, which is undone in what is predicted."""
    if not step.get('meta_keys'):
        return step
    return dict(step, meta_keys=tuple(dict.fromkeys((*step['meta_keys'], 'flip', 'flip_direction'))))
