"""Parameters and multiply-adds of models, beside the figures that their papers print.

    python tools/complexity.py configs/elsa_swin/*.py

The first row of a config is its backbone as an ImageNet classifier (224 x 224, 1000 classes). If the config is of a
classifier, the classes are the config's. A detector (1280 x 800) or segmentor (2048 x 512) gets one more row for the
whole model. These sizes are those of papers, whose figures come from metafile.yml beside the config. A config without
such figures is counted at the size that its test pipeline gives images, or at its limits if it keeps the ratio. Where
a paper left something out, the count leaves it out too, and the end of the row says so. A "!" marks a figure that is
more than 2 % (parameters) or 3 % (operations) off; the tool then exits with 1. Operations are not compared where the
end of the row says what the paper leaves open.

A config with rows gives all of them. Those of ablations (configs/*/ablations) stand beside the figures of printed.yml.
There "=" means that the counts, rounded to the paper's digits, are the printed figures. Elsewhere the end of the row
says what the paper leaves open, or "other digits", and then the tool exits with 1.

Nothing is computed: models are built on PyTorch's meta device. Deformable attention does not run there, so the
operations of DINO, Deformable DETR and Mask2Former are not counted.
"""

import argparse
import functools
import sys
from pathlib import Path

from mmengine.config import Config
from mmengine.logging import MMLogger

from mmattn.analysis import compare_with_paper
from mmattn.analysis.complexity import OPERATION_TOLERANCE, PARAMETER_TOLERANCE, Comparison
from mmguard.checks.config_values import check_config
from mmguard.errors import InputError
from mmguard.runs.configs import add_row
from mmguard.runs.rows import read_row
from mmguard.runs.running import run_tool
from mmguard.runs.views import image_size


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_row(parser, several=True)
    args = parser.parse_args()
    configs = [Path(config) for config in args.config]
    for config in configs:
        if not config.is_file():
            sys.exit(f'There is no config {config}.')
    MMLogger.get_current_instance().setLevel('WARNING')  # MMEngine logs every row that it reads
    print(
        f'{"model":54s} {"input":>11s} {"params/M":>9s} {"paper":>6s} {"off":>6s} '
        f'{"ops/G":>8s} {"paper":>6s} {"off":>6s}'
    )
    wrong = 0
    for config in configs:
        check_config(read(config), config)
        try:
            for row in compare_with_paper(config, read, args.row):
                print(as_line(row), flush=True)
                wrong += row.wrong
        except InputError as error:
            raise InputError(f'{config}: {error}') from error
    if wrong:
        print(
            f'{wrong} figures are off: by more than {PARAMETER_TOLERANCE:.0%} (parameters) or '
            f'{OPERATION_TOLERANCE:.0%} (operations), or, in rows of ablations, in their digits.'
        )
    return int(wrong > 0)


@functools.cache
def read(config: Path, row: str | None = None) -> Config:
    """A config with a row, and the size of its images as ``input_size``."""
    cfg = read_row(config, row)
    cfg.setdefault('input_size', image_size(cfg))
    return cfg


def as_line(row: Comparison) -> str:
    """A row of the table."""
    cells = [f'{row.name:54s} {row.input_size[0]:5d}x{row.input_size[1]:<5d}']
    for counted, printed, unit, tolerance in (
        (row.parameters, row.printed_parameters, 1e6, PARAMETER_TOLERANCE),
        (row.operations, row.printed_operations, 1e9, OPERATION_TOLERANCE),
    ):
        if counted is None:
            cells.append(f'{"-":>8s} {"-":>6s} {"":7s}')
        elif printed is None:
            cells.append(f'{counted / unit:8.2f} {"-":>6s} {"":7s}')
        else:
            off = counted / printed - 1
            is_compared = row.same_digits is None and not (unit == 1e9 and row.unknown)
            is_off = is_compared and abs(off) > tolerance
            cells.append(f'{counted / unit:8.2f} {printed / unit:6.5g} {off:+6.1%}{"!" if is_off else " "}')
    return ' '.join(cells + row.notes)


if __name__ == '__main__':
    run_tool(lambda: sys.exit(main()))
