"""Processes that prepare side by side, and use the GPU in turn: what gpu_check.py starts."""

import os
import time
from pathlib import Path

from mmengine.hooks import Hook
from mmengine.registry import HOOKS


def wait_for_turn() -> None:
    """Say that this process is ready, and wait until gpu_check.py, if it started this process, gives it the GPU."""
    if turn := os.environ.get('MMATTN_GPU_TURN'):
        Path(f'{turn}.ready').touch()
        while not Path(f'{turn}.go').exists():
            time.sleep(0.05)


@HOOKS.register_module()
class TurnHook(Hook):
    """A training waits for its turn before its first step."""

    def before_train(self, runner) -> None:
        wait_for_turn()
