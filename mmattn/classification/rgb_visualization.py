from collections.abc import Sequence

from mmengine.registry import HOOKS
from mmengine.runner import Runner
from mmpretrain.engine.hooks import VisualizationHook

from ..runs.checkpoints import unwrapped


@HOOKS.register_module()
class RGBVisualizationHook(VisualizationHook):
    """MMPretrain's ``VisualizationHook``, with red and blue in their places.

    MMPretrain draws images as if they were RGB. Most pipelines load BGR. The channels are reversed here if the model's
    ``data_preprocessor`` reverses them (``to_rgb=True``). The arguments are those of MMPretrain's hook.
    """

    def after_val_iter(self, runner: Runner, batch_idx: int, data_batch: dict, outputs: Sequence) -> None:
        super().after_val_iter(runner, batch_idx, _as_rgb(runner, data_batch), outputs)

    def after_test_iter(self, runner: Runner, batch_idx: int, data_batch: dict, outputs: Sequence) -> None:
        super().after_test_iter(runner, batch_idx, _as_rgb(runner, data_batch), outputs)


def _as_rgb(runner: Runner, data_batch: dict) -> dict:
    if not getattr(unwrapped(runner.model).data_preprocessor, 'to_rgb', False):
        return data_batch
    return {**data_batch, 'inputs': [image.flip(0) for image in data_batch['inputs']]}
