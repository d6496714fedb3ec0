"""Train models at several rates and with several seeds, and compare them in a table and a plot.

    python projects/lab/tools/compare.py --jobs 2                                    # configs/toy/compare
    python projects/lab/tools/compare.py projects/lab/configs/toy/compare/fpn_ade20k.py --row swin elsa-swin
    python projects/lab/tools/compare.py A.py B.py --rates 1e-4 --seeds 0 1 2 3 4    # any configs, at one rate
    python projects/lab/tools/compare.py configs/elsa_swin/ablations/swin-t_in1k.py --row net6 net7 --rates 1e-3

Each model gets its own best rate. The rates between the first and the last one are tried with the first seed; the first
or the last one too if its neighbour is the best. The best rate is then repeated with the other seeds. A config may have
a ``sweep``: settings of shorter runs that choose among several rates; the best is then trained with every seed.
table.md and plot.png in the work folder have the result; they are written again after every run. A second call leaves
out what is finished, and resumes what was interrupted from its last checkpoint, if the config writes any.

Runs are compared by the metric of the last evaluation. A detector that finds nothing has no metrics: it counts as 0.
"""

import argparse
import copy
import hashlib
import json
import math
import multiprocessing
import os
import statistics
import threading
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import timedelta
from numbers import Real
from pathlib import Path

from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.logging import MessageHub
from mmengine.runner import Runner

from mmattn.analysis.complexity import INPUT_SIZES, build, count_model, image_channels
from mmattn_lab.results import mean_and_spread, read_result
from mmguard.checks.config_types import type_name
from mmguard.checks.config_values import KNOWN_KEYS, metric_configs
from mmguard.curves import epoch_length, read_curves
from mmguard.errors import InputError, describe, near_misses
from mmguard.outputs import check_output, whole_file
from mmguard.runs.configs import OptionsAction, add_row, load_config
from mmguard.runs.divergence import DivergedError
from mmguard.runs.running import run_tool, train
from mmguard.runs.screen import escape_unknown_characters
from mmguard.runs.views import image_size
from mmguard.text import in_figure

CONFIGS = sorted((Path(__file__).resolve().parents[1] / 'configs' / 'toy' / 'compare').glob('*.py'))
RATES = [1e-4, 3e-4, 1e-3, 3e-3, 1e-2]
#: type of val_evaluator -> metric, its title, and the factor to percent
METRICS = {
    'Accuracy': ('accuracy/top1', 'top-1 accuracy', 1),
    'CocoMetric': ('coco/bbox_mAP_50', 'box AP50', 100),
    'VOCMetric': ('pascal_voc/mAP', 'box AP50', 100),
    'IoUMetric': ('mIoU', 'mIoU', 1),
}
MINUTES_BETWEEN_LINES = 5  #: between the lines that say how long is left

Run = tuple[float, int | None]  #: rate, and seed; None: a run with the settings of ``sweep`` and the first seed


@dataclass(eq=False)
class Entry:
    """A row of the table: a config, perhaps with a row of --row, and its scores so far."""

    config: Path
    model: str | None
    metric: str
    title: str  #: of the metric
    factor: float  #: from the metric to the score
    digest: str  #: of the config
    input_size: tuple[int, int]  #: width and height, for the operations
    parameters: int
    operations: float | None  #: multiply-adds; None with deformable attention
    steps: tuple[int, int]  #: or epochs, of a training, and of a run of ``sweep``
    sweep: bool = False  #: whether the config has one
    scores: dict[Run, float] = field(default_factory=dict)
    seconds: dict[Run, float] = field(default_factory=dict)  #: of the training steps of a finished run

    @property
    def name(self) -> str:
        return self.model or self.config.stem

    def folder(self, work_dir: Path) -> Path:
        return work_dir / self.config.stem / (self.model or '')

    def place(self, work_dir: Path, run: Run) -> Path:
        """The folder of a run."""
        rate, seed = run
        return self.folder(work_dir) / (f'rate{rate}_sweep' if seed is None else f'rate{rate}_seed{seed}')

    def order(self, seeds: Sequence[int]) -> list[int | None]:
        """The seeds, in the order of the runs: the first one chooses the rate."""
        return [None, *seeds] if self.sweep else list(seeds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_row(parser, several=True, default=CONFIGS)
    parser.add_argument('--metric', help='key of the evaluation (default: by the scope of the config)')
    parser.add_argument('--rates', nargs='+', type=float, default=RATES, help='ascending learning rates')
    parser.add_argument('--seeds', nargs='+', type=int, default=[0, 1, 2])
    parser.add_argument('--jobs', type=int, default=1, help='trainings side by side, with one thread each')
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs') / 'compare')
    parser.add_argument(
        '--cfg-options', nargs='+', action=OptionsAction, default={}, help='settings, key.key=value ...'
    )
    args = parser.parse_args()
    if args.rates != sorted(set(args.rates)) or not all(0 < rate < math.inf for rate in args.rates):
        raise InputError(f'--rates must be positive, finite and ascending, not {" ".join(map(str, args.rates))}')
    if len(args.seeds) != len(set(args.seeds)):
        raise InputError(f'--seeds names a seed twice: {" ".join(map(str, args.seeds))}')
    if not all(0 <= seed < 2**31 for seed in args.seeds):
        raise InputError(f'--seeds must be from 0 to 2147483647, not {" ".join(map(str, args.seeds))}')
    if args.jobs < 1:
        raise InputError(f'--jobs must be 1 or more, not {args.jobs}')
    check_output(*(args.work_dir / name for name in ('table.md', 'plot.png', 'log.txt')))
    configs = [Path(config) for config in args.config]
    pairs = [(config, model) for config in configs for model in args.row or default_models(config)]
    if len({(config.stem, model) for config, model in pairs}) < len(pairs):
        raise InputError('two configs or models have the same name: their runs would have the same folder')
    entries = [make_entry(config, model, args) for config, model in pairs]
    for entry in entries:
        read_finished(entry, args.work_dir)
    args.work_dir.mkdir(parents=True, exist_ok=True)
    train_all(entries, args)
    print(write_results(entries, args))


def default_models(config: Path) -> list[str | None]:
    """The rows of a config, [None] if it has none."""
    return list(read_config(config, None, {}).get('rows') or [None])


def make_entry(config: Path, model: str | None, args: argparse.Namespace) -> Entry:
    """Check a config and count its model.

    Raises:
        InputError: if the config has a mistake, or if nothing says what to compare.
    """
    cfg = read_config(config, model, args.cfg_options)
    if cfg.get('val_dataloader') is None or 'lr' not in (cfg.get('optim_wrapper') or {}).get('optimizer', {}):
        raise InputError(f'{config} has no val_dataloader or no optim_wrapper.optimizer.lr: it cannot be compared')
    scope, metrics = cfg.get('default_scope'), [metric for _, metric in metric_configs(cfg, 'val')]
    evaluator = type_name(metrics[0].get('type')).removeprefix('Checked') if metrics else None
    if args.metric is None and evaluator not in METRICS:
        raise InputError(f'{config}: no metric is known for the evaluator {evaluator}: name one with --metric')
    metric, title, factor = (args.metric, args.metric, 1) if args.metric else METRICS[evaluator]
    size = tuple(cfg.get('input_size') or image_size(cfg) or INPUT_SIZES[scope])
    read = {key: value for key, value in cfg.to_dict().items() if key in KNOWN_KEYS | {'sweep'}}
    digest = hashlib.sha256(json.dumps(read, sort_keys=True, default=str).encode()).hexdigest()
    counted = count_model(config.stem, build(cfg), scope, {'Input Size': size}, image_channels(cfg))
    sweep = 'sweep' in cfg and len(args.rates) > 1  # a single rate is not chosen
    steps = tuple(of.train_cfg.get('max_iters') or of.train_cfg.max_epochs for of in (cfg, with_sweep(cfg)))
    return Entry(
        config, model, metric, title, factor, digest, size, counted.parameters, counted.operations, steps, sweep
    )


def with_sweep(cfg: Config) -> Config:
    """A copy with the settings of ``sweep``."""
    cfg = copy.deepcopy(cfg)
    cfg.merge_from_dict(cfg.pop('sweep', {}))
    return cfg


def read_config(config: Path, model: str | None, options: dict) -> Config:
    """A config, with the row ``model``."""
    return load_config(config, options, row=model)


def read_finished(entry: Entry, work_dir: Path) -> None:
    """Read the scores of finished runs. A run whose file cannot be read is not finished.

    Raises:
        InputError: if they are of another config.
    """
    for file in entry.folder(work_dir).glob('*/result.json'):
        try:
            result = read_result(file)
        except InputError as error:
            why = describe(error).removeprefix(f'{file} cannot be read: ')
            print(f'{file} cannot be read ({why}): the run counts as not finished')
            continue
        if result.digest != entry.digest:
            raise InputError(
                f'{file.parent} was trained with other settings than {entry.config} has now, options and paths in the '
                'environment included: name another --work-dir, or set them as before'
            )
        run = result.rate, result.seed
        entry.scores[run], entry.seconds[run] = score(entry, result.metrics), result.seconds


def score(entry: Entry, metrics: dict[str, float]) -> float:
    """What a run is compared by, in percent if the metric is one of ``METRICS``.

    Raises:
        InputError: if the evaluation has no such metric.
    """
    if metrics and all(map(math.isnan, metrics.values())):  # the run diverged, perhaps with another --metric
        return math.nan
    if metrics and entry.metric not in metrics:
        hint = near_misses(entry.metric, metrics) or f': it has {", ".join(sorted(metrics))}'
        raise InputError(f'{entry.config} has no metric {entry.metric}{hint}')
    return entry.factor * metrics.get(entry.metric, 0.0)


def wanted(scores: dict[Run, float], rates: Sequence[float], seeds: Sequence[int | None]) -> list[Run]:
    """The runs of a model to do next; none if all are done.

    First the inner rates with the first seed, then an outer rate if its neighbour is the best, then the best rate with
    the other seeds. Of two rates or one, all are inner.
    """
    missing = [(rate, seeds[0]) for rate in rates[1:-1] or rates if (rate, seeds[0]) not in scores]
    if missing:
        return missing
    best = best_rate(scores, rates, seeds)
    for outer, neighbour in ((rates[0], rates[1:2]), (rates[-1], rates[-2:-1])):
        if [best] == neighbour and (outer, seeds[0]) not in scores:
            missing.append((outer, seeds[0]))
    return missing or [(best, seed) for seed in seeds if (best, seed) not in scores]


def best_rate(scores: dict[Run, float], rates: Sequence[float], seeds: Sequence[int | None]) -> float | None:
    """The rate of the best score with the first seed, the lower one of equals; None before the first score. NaN is
    worse than any score."""
    tried = [(scores[rate, seeds[0]], rate) for rate in rates if (rate, seeds[0]) in scores]
    return max(tried, key=lambda one: -math.inf if math.isnan(one[0]) else one[0], default=(0, None))[1]


def train_all(entries: list[Entry], args: argparse.Namespace) -> None:
    """Train until no run is wanted. An error in one of them ends all."""
    os.environ['OMP_NUM_THREADS'] = '1'  # for torch in the processes of the pool
    most = len(entries) * len(args.rates) * len(args.seeds)
    log = args.work_dir / 'log.txt'
    spawn = multiprocessing.get_context('spawn')
    pool = ProcessPoolExecutor(min(args.jobs, most), spawn, initializer=begin, initargs=(log,))
    under_way: dict[Future, tuple[Entry, Run]] = {}

    def submit() -> None:
        for entry in entries:
            for run in wanted(entry.scores, args.rates, entry.order(args.seeds)):
                if len(under_way) < args.jobs and (entry, run) not in under_way.values():
                    under_way[pool.submit(train_one, entry, run, args)] = entry, run

    try:
        submit()
        while under_way:
            print(time_left(entries, list(under_way.values()), args), flush=True)
            done = wait(under_way, timeout=60 * MINUTES_BETWEEN_LINES, return_when=FIRST_COMPLETED).done
            for future in done:
                entry, run = under_way.pop(future)
                seed = 'sweep' if run[1] is None else f'seed {run[1]}'
                name = f'{entry.config.stem}, {entry.name}, rate {run[0]:g}, {seed}'
                try:
                    metrics, entry.seconds[run] = future.result()
                    entry.scores[run] = score(entry, metrics)
                except InputError as error:
                    raise InputError(f'{name}: {describe(error)}') from error
                except BrokenExecutor as error:
                    raise InputError(f'{name}: its process was killed, often for want of memory; see {log}') from error
                print(f'{name}: {entry.title} {entry.scores[run]:.1f} ({entry.seconds[run]:.0f} s)', flush=True)
                submit()
                write_results(entries, args)
    except BaseException:
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def begin(log: Path) -> None:
    """Write the output of this process of the pool to the end of a file, and end it when the first process ends."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    escape_unknown_characters()


def end_with_parent() -> None:
    """End this process when its parent does, even if that is killed: it would train on, and hold the lock."""
    multiprocessing.parent_process().join()
    os._exit(1)


def time_left(entries: list[Entry], under_way: list[tuple[Entry, Run]], args: argparse.Namespace) -> str:
    """A line: how many runs there are, and how long they will take, by the time of the steps so far."""
    paces = defaultdict(list)  # of a config: seconds of a step, or of an epoch
    for entry in entries:  # One that diverged has no time.
        paces[entry.config] += [each / entry.steps[run[1] is None] for run, each in entry.seconds.items() if each]
    shares = {}  # of a run that is under way: the part that is done
    for entry, run in under_way:
        place = entry.place(args.work_dir, run)
        times, epoch = read_curves(place)['time'], epoch_length(place)
        times = {step: time for step, time in times.items() if math.isfinite(time)}
        shares[id(entry), run] = max(times, default=0) / (epoch * entry.steps[run[1] is None])
        paces[entry.config] += [epoch * statistics.mean(times.values())] if times else []
    left, unknown, seconds = 0, 0, 0.0
    for entry in entries:
        for run in expected(entry.scores, args.rates, entry.order(args.seeds)):
            left += 1
            if paces[entry.config]:
                share = shares.get((id(entry), run), 0)
                seconds += statistics.mean(paces[entry.config]) * entry.steps[run[1] is None] * (1 - share)
            else:
                unknown += 1
    done = sum(len(entry.scores) for entry in entries)
    when = f'about {timedelta(minutes=round(seconds / 60 / args.jobs))}'[:-3] + ' h'
    if unknown:
        when = f'{when} and an unknown time for {unknown} of them' if unknown < left else 'an unknown time'
    return f'Runs done: {done}. Left: {left} or a few more, {when}.'


def expected(scores: dict[Run, float], rates: Sequence[float], seeds: Sequence[int | None]) -> list[Run]:
    """All runs of a model that are to come, if each of them is worse than those before."""
    scores, runs = dict(scores), []
    while missing := wanted(scores, rates, seeds):
        runs += missing
        scores.update(dict.fromkeys(missing, -math.inf))
    return runs


class LastEvaluation(Hook):
    """Keeps the metrics of the last evaluation. MMEngine's message hub keeps a metric that the last one did not give,
    and those that a resumed training had before."""

    metrics: dict[str, object] | None = None

    def before_val(self, runner: Runner) -> None:
        self.metrics = None

    def after_val_epoch(self, runner: Runner, metrics: dict[str, object] | None = None) -> None:
        self.metrics = dict(metrics or {})

    def after_train(self, runner: Runner) -> None:
        if self.metrics is None:  # The last evaluation was interrupted; the last checkpoint was written before it.
            runner.val_loop.run()


def train_one(entry: Entry, run: Run, args: argparse.Namespace) -> tuple[dict[str, float], float]:
    """The metrics of the last evaluation of a run, and the seconds of its steps. They are kept in result.json.

    Raises:
        InputError: as :func:`mmguard.runs.running.train`.
    """
    rate, seed = run
    place = entry.place(args.work_dir, run)
    cfg = read_config(entry.config, entry.model, args.cfg_options)
    if seed is None:
        cfg, seed = with_sweep(cfg), args.seeds[0]
    for key in {*cfg} - KNOWN_KEYS | {'test_dataloader', 'test_cfg', 'test_evaluator'}:
        cfg.pop(key, None)  # MMEngine formats all of a config four times, which takes seconds
    cfg.work_dir = str(place)
    cfg.optim_wrapper.optimizer.lr = rate
    cfg.randomness = dict(cfg.get('randomness') or {}, seed=seed)
    # MMEngine keeps loggers and visualizers by name for the life of the process.
    cfg.experiment_name = f'{entry.config.stem}-{entry.name}-{place.name}'
    cfg.visualizer = dict(cfg.get('visualizer') or dict(type='Visualizer'), name=cfg.experiment_name)
    try:
        train(cfg, 'auto', hooks=[evaluation := LastEvaluation()])
        scalars, last = MessageHub.get_current_instance().log_scalars, evaluation.metrics
        seconds = float(scalars['train/time'].data[0].sum()) if 'train/time' in scalars else 0.0
    except DivergedError as error:  # as the largest rate may; the others go on
        print(describe(error))
        last, seconds = {entry.metric: math.nan}, 0.0
    metrics = {key: float(value) for key, value in last.items() if isinstance(value, Real)}
    metrics = {key: value if math.isfinite(value) else math.nan for key, value in metrics.items()}
    with whole_file(place / 'result.json') as part:
        part.write_text(
            json.dumps(dict(rate=rate, seed=run[1], metrics=metrics, digest=entry.digest, seconds=seconds)), 'utf-8'
        )
    return metrics, seconds


def write_results(entries: list[Entry], args: argparse.Namespace) -> str:
    """Write table.md and plot.png; the table."""
    table = '\n'.join(make_table(rows, args.rates, args.seeds) for rows in tables(entries))
    with whole_file(args.work_dir / 'table.md') as part:
        part.write_text(table, 'utf-8')
    with whole_file(args.work_dir / 'plot.png') as part:
        draw(entries, args.rates, args.seeds, part)
    return table


def tables(entries: list[Entry]) -> list[list[Entry]]:
    """The entries of each table: those of one config if there are models, or else those with the same columns."""
    found: dict[object, list[Entry]] = {}
    for entry in entries:
        found.setdefault(
            (entry.config if entry.model else None, entry.metric, entry.input_size, entry.sweep), []
        ).append(entry)
    return list(found.values())


def make_table(entries: list[Entry], rates: Sequence[float], seeds: Sequence[int]) -> str:
    """A row per entry: its size, the scores of the rates with the first seed, and those of the seeds at the best rate
    with their mean and sample standard deviation."""
    title, (width, height) = entries[0].title, entries[0].input_size
    head = ['model', 'parameters / M', f'multiply-adds / M at {width} x {height}']
    first, *others = entries[0].order(seeds)
    head += [f'{rate:g}' for rate in rates] + [f'seed {seed}' for seed in others] + [f'{title}, mean ± spread']
    lines = [head, ['---'] + ['---:'] * (len(head) - 1)]
    for entry in entries:
        best = best_rate(entry.scores, rates, entry.order(seeds))
        swept = [number(entry.scores.get((rate, first))) for rate in rates]
        lines.append(
            [
                entry.name,
                f'{entry.parameters / 1e6:.2f}',
                number(entry.operations and entry.operations / 1e6),
                *(f'**{text}**' if rate == best else text for rate, text in zip(rates, swept)),
                *(number(entry.scores.get((best, seed))) for seed in others),
                mean_and_spread([entry.scores[best, seed] for seed in seeds if (best, seed) in entry.scores]),
            ]
        )
    name = entries[0].config.stem if entries[0].model else 'configs'
    return f'### {name}\n\n' + ''.join(f'| {" | ".join(line)} |\n' for line in lines)


def number(value: float | None) -> str:
    return '-' if value is None else f'{value:.1f}'


def draw(entries: list[Entry], rates: Sequence[float], seeds: Sequence[int], file: Path) -> None:
    """Plot, per table, the scores of all seeds at the best rate (above) and of the rates (below)."""
    import matplotlib

    matplotlib.use('Agg')
    import matplotlib.pyplot as plt

    groups = tables(entries)
    figure, axes = plt.subplots(2, len(groups), figsize=(4.5 * len(groups), 7.5), squeeze=False, layout='constrained')
    for rows, above, below in zip(groups, *axes):
        for index, entry in enumerate(rows):
            color = f'C{index % 10}'
            first = entry.order(seeds)[0]
            best = best_rate(entry.scores, rates, [first])
            scores = [entry.scores[best, seed] for seed in seeds if (best, seed) in entry.scores]
            if scores:
                above.plot(scores, [index] * len(scores), 'o', color=color, alpha=0.6)
                above.plot(statistics.mean(scores), index, '|', color=color, ms=22, mew=2)
            swept = [(rate, entry.scores[rate, first]) for rate in rates if (rate, first) in entry.scores]
            if swept:
                below.plot(*zip(*swept), '.-', color=color, label=in_figure(entry.name))
        title = in_figure(rows[0].title)
        above.set(title=in_figure(rows[0].config.stem) if rows[0].model else '', xlabel=title)
        above.set_yticks(range(len(rows)), [in_figure(entry.name) for entry in rows])
        above.invert_yaxis()
        below.set(xscale='log', xlabel='rate', ylabel=f'{title}, seed {seeds[0]}' + ', sweep' * rows[0].sweep)
        for axis in (above, below):
            axis.grid(alpha=0.3)
    axes[1][0].legend(fontsize=8)
    figure.savefig(file, dpi=90)
    plt.close(figure)


if __name__ == '__main__':
    run_tool(main)
