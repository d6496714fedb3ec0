"""From a config file to a config that this machine can run."""

import argparse
import logging
import re
from importlib.util import find_spec
from pathlib import Path

from mmengine.config import Config, ConfigDict, DictAction
from mmengine.device import get_device
from mmengine.logging import print_log
from mmengine.registry import DefaultScope
from mmengine.utils import import_modules_from_strings

from ..checks.config_types import find_type, nested, places_of, type_name
from ..checks.config_values import KNOWN_KEYS, check_config, dataset_configs, metric_configs
from ..checks.datasets import use_checked_datasets
from ..errors import InputError, near_misses, refusing
from ..outputs import check_output
from ..packages import mmseg_bases, require, require_models, require_ops, require_sharding
from ..weights import check_source, is_pretrained
from .checkpoints import use_atomic_checkpoints
from .rows import merge_row, read_row
from .variables import check_variables
from .views import far_sizes, views_pipeline

#: default_scope -> packages that its models need
SCOPES = {'mmdet': ('mmcv', 'mmdet'), 'mmseg': ('mmcv', 'mmseg'), 'mmpretrain': ('mmcv', 'mmpretrain')}
#: a dict in the text of a value, as "dict(a=1)" or "{'a': 1}"
DICT = re.compile(r"""(?:^|[\[(,])\s*(?:dict\(|\{\s*(?:\}$|['"]?\w+['"]?\s*:))""")
#: what --tta reads from a config
TTA_KEYS = ('tta_model', 'tta_pipeline', 'tta_views')


class OptionsAction(DictAction):
    """MMEngine's DictAction, which refuses in a sentence what it cannot read, or would take for text."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: list[str],
        option_string: str | None = None,
    ) -> None:
        for given in values:
            key, equals, value = given.partition('=')
            if not equals or not all(key.split('.')):
                raise argparse.ArgumentError(self, f'{given} is not of the form key.key=value')
            if DICT.search(value):
                raise argparse.ArgumentError(
                    self, f'{given} has a dict as its value: set the keys of a dict one by one, as in {key}.key=value'
                )
            try:
                super().__call__(parser, namespace, [given], option_string)
            except (AssertionError, RecursionError) as error:
                raise argparse.ArgumentError(
                    self, f'the value of {given} cannot be read: lists are [1,2,3] and [[1,2],[3,4]]'
                ) from error


class RowsAction(argparse.Action):
    """Prints the rows of the configs and ends, as soon as ``--list-rows`` and the configs are both known."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | list[str],
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, values)
        if namespace.config and namespace.list_rows is not None:
            for path in namespace.config if isinstance(namespace.config, list) else [namespace.config]:
                print(*read_row(path, import_custom_modules=False).get('rows', ()), sep='\n')
            parser.exit()


def add_row(parser: argparse.ArgumentParser, several: bool = False, default: list | None = None) -> None:
    """Add the config and its row; or, for tools that take ``several``, configs and rows.

    Args:
        default: configs that are taken if none is named.
    """
    number = dict(nargs='*' if default else '+', default=default) if several else {}
    parser.add_argument(
        'config', action=RowsAction, help='config of MMDetection, MMSegmentation or MMPretrain', **number
    )
    parser.add_argument(
        '--row',
        nargs='+' if several else None,
        help=f'of --list-rows (default: {"all" if several else "none, the model of the file"})',
    )
    parser.add_argument('--list-rows', nargs=0, action=RowsAction, help='print the rows of the config, and end')


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add the config, its row, and the settings that override it, named as in OpenMMLab's own tools."""
    add_row(parser)
    parser.add_argument(
        '--cfg-options', nargs='+', action=OptionsAction, help='settings to override, key.key=value ...'
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that training and testing have in common, named as in OpenMMLab's own tools."""
    add_config(parser)
    parser.add_argument('--work-dir', help='folder for logs and checkpoints (default: work_dirs/CONFIG, or CONFIG/ROW)')
    parser.add_argument('--trust-checkpoint', action='store_true', help='run the code in the checkpoint, if any')
    parser.add_argument('--launcher', choices=('none', 'pytorch', 'slurm', 'mpi'), default='none')
    # passed by torch.distributed.launch
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0, help=argparse.SUPPRESS)


def load_config(
    path: str | Path,
    options: dict | None = None,
    *,
    row: str | None = None,
    work_dir: str | Path | None = None,
    launcher: str = 'none',
    amp: bool = False,
    backbone_only: bool = False,
) -> Config:
    """Read a config, check it, and fit it to this machine.

    Args:
        options: values to set, by dotted key, as of ``--cfg-options``.
        row: one of ``rows`` in the config, which is merged before the options; None: the model of the file.
        work_dir: folder for logs and checkpoints. The default is what the config says, or work_dirs/NAME_OF_CONFIG,
            or work_dirs/NAME_OF_CONFIG/ROW.
        launcher: "none", "pytorch", "slurm" or "mpi", what starts the processes.
        amp: train in mixed precision, see ``enable_amp``. ``options`` may then set the arguments of its wrapper.
        backbone_only: leave neck and heads out of the model, which then need not fit the backbone.

    Raises:
        MissingPackage: if a package that the config needs is missing or too old.
        InputError: if the config is missing or cannot be read, or has a mistake that can be seen before a run.
    """
    if not Path(path).is_file():
        raise InputError(f'there is no config {path}')
    # A config is a program, which can raise any error.
    with refusing(f'{path} cannot be read'), mmseg_bases():
        try:
            check_variables(path)
            cfg = Config.fromfile(path, import_custom_modules=False)
        except RecursionError as error:
            raise InputError(f'{path} cannot be read: it is its own _base_, or nested too deeply') from error
        except InputError:
            raise
        except Exception as error:
            if 'tta_pipeline' in str(error):
                raise InputError(
                    f'{path} cannot be read: its bases have no tta_pipeline, since --tta makes the views from the test '
                    'pipeline: leave tta_pipeline out, or make it with views_pipeline as in docs/openmmlab_tools.md'
                ) from error
            raise
    merge_row(cfg, row, path)
    known = {*KNOWN_KEYS, *TTA_KEYS, *cfg}
    variables = {key.partition('.')[0] for key in options or {}}.intersection(cfg) - {*KNOWN_KEYS, *TTA_KEYS}
    before = {key: _plain(cfg[key]) for key in variables}
    with refusing(f'--cfg-options cannot be set in {path}'):  # MMEngine raises several kinds of errors.
        cfg.merge_from_dict(options or {})
    for key in set(cfg) - known:
        raise InputError(f'--cfg-options sets {key}, which nothing reads{near_misses(key, known)}')
    for key, value in before.items():
        places = [place for name in sorted(KNOWN_KEYS) for place in places_of(value, _plain(cfg.get(name)), name)]
        if _plain(cfg[key]) != value and places:
            raise InputError(
                f'--cfg-options sets {key}, a variable that was read with the config: set what still has its old '
                f'value, {", ".join(places[:4])}'
            )
    for key in ('default_scope', 'work_dir', 'load_from', 'experiment_name'):
        if not isinstance(cfg.get(key), (str, Path, type(None))):
            raise InputError(f'{path}: {key} must be text, not {cfg[key]!r}')
    scope = cfg.get('default_scope')
    if scope and scope not in (*SCOPES, 'mmengine') and find_spec(scope) is None:
        raise InputError(f'{path}: no package is named {scope}, the default_scope{near_misses(scope, SCOPES)}')
    for package in SCOPES.get(scope, ()):
        require(package, f'{path} ({scope})')
    if scope == 'mmdet':
        require_ops(str(path))
    if scope in SCOPES:
        require_models(scope, str(path))
    todo = 'install the package, or add its folder to PYTHONPATH'
    with refusing(f'{path}: custom_imports cannot be imported ({todo})'):  # after the packages, which it may need
        import_modules_from_strings(**cfg.get('custom_imports') or dict(imports=[]))
    if backbone_only and isinstance(cfg.get('model'), dict):
        if 'backbone' not in cfg.model:
            raise InputError(f'{path}: its model, a {type_name(cfg.model.get("type"))}, has no setting "backbone"')
        cfg.model = ConfigDict({key: cfg.model[key] for key in ('type', 'backbone') if key in cfg.model})
    if amp:
        enable_amp(cfg)
    check_config(cfg, path)
    use_checked_datasets(cfg)
    use_atomic_checkpoints(cfg)
    cfg.launcher = launcher
    # MMEngine cannot write a config with a Path.
    cfg.work_dir = str(work_dir or cfg.get('work_dir') or Path('work_dirs') / Path(path).stem / (row or ''))
    if get_device() == 'cpu':
        _fit_cpu(cfg)
    return cfg


def _plain(node: object) -> object:
    """A copy of a node of a config, without the package that MMEngine notes in what it takes from another package."""
    if isinstance(node, dict):
        return {key: _plain(value) for key, value in node.items() if key != '_scope_'}
    return type(node)(map(_plain, node)) if isinstance(node, (list, tuple)) else node


def _fit_cpu(cfg: Config) -> None:
    """Replace what runs on an accelerator only, and log what was replaced."""
    if cfg.launcher in ('slurm', 'mpi'):
        raise InputError(
            f'--launcher {cfg.launcher} needs accelerators, and there is none here: tools/dist_train.sh and '
            'dist_test.sh start several processes on the CPU'
        )
    changes = []
    if type_name((cfg.get('optim_wrapper') or {}).get('type')) == 'AmpOptimWrapper':
        _replace_amp(cfg, 'OptimWrapper')
        changes.append('mixed precision is off')
    norms = [
        node for _, node in nested(cfg.model, 'model') if type_name(node.get('type')) in ('SyncBN', 'SyncBatchNorm')
    ]
    for norm in norms:
        norm['type'] = 'BN'
    if norms:
        changes.append('SyncBN became BN')
    if cfg.launcher == 'pytorch':
        # MMEngine's default wrapper passes the number of a GPU.
        cfg.model_wrapper_cfg = cfg.get('model_wrapper_cfg') or dict(
            type='MMDistributedDataParallel',
            device_ids=None,
            broadcast_buffers=False,
            find_unused_parameters=cfg.get('find_unused_parameters', False),
        )
        changes.append('processes talk through gloo')
    if is_sharded(cfg):
        cfg.strategy.model_wrapper.device_id = 'cpu'
    if changes:
        print_log(f'No accelerator here: {", ".join(changes)}.', logger='current')


def is_sharded(cfg: Config) -> bool:
    """Whether a config shards the model over processes, as configs/_base_/fsdp.py does."""
    return type_name((cfg.get('strategy') or {}).get('type')) == 'ShardedStrategy'


def check_pretrained(cfg: Config) -> None:
    """Check that the weights are there, or published under a known name, which ``load_from`` and the ``init_cfg`` of
    parts of the model name, before anything is built.

    Raises:
        CheckpointError: see :func:`mmguard.weights.check_source`; a missing file is named with its place in the config.
    """
    for place, node in nested(cfg.get('model'), 'model'):
        file = node.get('checkpoint') if is_pretrained(node) else None
        if isinstance(file, str):
            check_source(file, f'{place}=None')
    if cfg.get('load_from'):
        check_source(cfg.load_from, 'load_from=None')


def check_sharding(cfg: Config) -> None:
    """Check that sharded training can run as the config says. Configs without sharding pass.

    Raises:
        InputError: for MMEngine's FSDPStrategy, a missing launcher, a torch that is too old, and averaged weights.
    """
    if type_name((cfg.get('strategy') or {}).get('type')) == 'FSDPStrategy':
        raise InputError('training with FSDPStrategy cannot be resumed: use ShardedStrategy of configs/_base_/fsdp.py')
    if not is_sharded(cfg):
        return
    if cfg.launcher == 'none':
        raise InputError('the config shards the model over processes: start it with tools/dist_train.sh')
    require_sharding('sharded training')
    if any('EMAHook' in str(hook) for hook in cfg.get('custom_hooks') or ()):
        raise InputError("sharded training cannot average weights: remove EMAHook from the config's custom_hooks")


def enable_amp(cfg: Config) -> None:
    """Train in mixed precision: on an accelerator in float16, with scaled losses, on a CPU in bfloat16.

    Raises:
        InputError: for a detector of two stages on a CPU, or without an optim_wrapper.
    """
    if not cfg.get('optim_wrapper'):
        raise InputError('--amp needs optim_wrapper in the config, which it changes')
    if get_device() == 'cpu':
        if 'rpn_head' in (cfg.get('model') or {}):
            raise InputError(
                "--amp cannot train a detector with an rpn_head on a CPU, where MMCV's NMS takes float32 only: "
                'leave out --amp'
            )
        if removed := _replace_amp(cfg, 'BFloat16OptimWrapper'):
            print_log(f'No accelerator here: --amp trains in bfloat16, without {", ".join(removed)}.', logger='current')
        return
    cfg.optim_wrapper.type = 'AmpOptimWrapper'
    cfg.optim_wrapper.loss_scale = 'dynamic'


def _replace_amp(cfg: Config, wrapper: str) -> list[str]:
    """Take another wrapper, and remove the arguments that only AmpOptimWrapper has. Return their names."""
    cfg.optim_wrapper.type = wrapper
    removed = [key for key in ('loss_scale', 'dtype', 'use_fsdp') if key in cfg.optim_wrapper]
    for key in removed:
        cfg.optim_wrapper.pop(key)
    return removed


def enable_auto_scale_lr(cfg: Config) -> None:
    """Scale the learning rate with the batch size.

    Raises:
        InputError: if the config has no ``auto_scale_lr.base_batch_size``.
    """
    if not (cfg.get('auto_scale_lr') or {}).get('base_batch_size'):
        raise InputError('--auto-scale-lr needs auto_scale_lr.base_batch_size, the batch size that the rate is for')
    cfg.auto_scale_lr.enable = True


def enable_tta(cfg: Config) -> None:
    """Turn a config's test into a test of several views of each image, whose predictions are merged.

    The views are those of ``tta_pipeline``. Without it, they are made from the test pipeline by
    :func:`mmguard.runs.views.views_pipeline`, whose ``factors`` and ``long_side`` are in ``tta_views``.

    Raises:
        InputError: if ``tta_model`` is missing or cannot merge what the model predicts, or for wrong ``tta_views``.
    """
    if cfg.get('tta_model') is None:
        raise InputError(
            '--tta needs tta_model in the config, as in configs/_base_/datasets/coco_tta.py for a detector'
        )
    settings = cfg.get('tta_views') or {}
    for key in set(settings) - {'factors', 'long_side'}:
        raise InputError(f'tta_views has factors and long_side, not {key}{near_misses(key, ("factors", "long_side"))}')
    roi_head = cfg.model.get('roi_head') or {}
    if any('segm' in evaluator.get('metric', ()) for evaluator in _test_metrics(cfg)):
        with DefaultScope.overwrite_default_scope(package_of(cfg)):
            check = getattr(find_type(cfg.tta_model), 'check_classes', None)
            if check is None:
                raise InputError(
                    f'tta_model {cfg.tta_model.type} cannot merge masks: use '
                    'mmattn.detection.MaskTTAModel, as configs/_base_/datasets/coco_tta.py does'
                )
            check(find_type(cfg.model), find_type(roi_head))
    elif 'mask_head' in roi_head:
        roi_head.mask_head = roi_head.mask_roi_extractor = None
    head = cfg.model.get('decode_head') or {}
    head = head[-1] if isinstance(head, (list, tuple)) else head  # of a cascade
    if 1 in (head.get('out_channels'), head.get('num_classes')) and type_name(cfg.tta_model.type) == 'SegTTAModel':
        raise InputError(
            'tta_model SegTTAModel takes the sigmoid of one channel twice: use mmattn.segmentation.MapTTAModel, as '
            'configs/_base_/datasets/ade20k.py does'
        )
    for _, dataset in dataset_configs(cfg, 'test'):
        if not {'dataset', 'datasets'} & set(dataset):  # does not wrap others
            test_pipeline = dataset.get('pipeline') or ()
            if cfg.get('tta_pipeline') is None:
                dataset.pipeline = views_pipeline(test_pipeline, **settings)
                continue
            dataset.pipeline = cfg.tta_pipeline
            if far := far_sizes(cfg.tta_pipeline, test_pipeline):
                print_log(
                    f'tta_pipeline resizes short sides to {", ".join(map(str, far[0]))} pixels, far from the {far[1]} '
                    'of the test: with tta_pipeline=None, sizes are those of the test, multiplied by tta_views.factors',
                    logger='current',
                    level=logging.WARNING,
                )
    cfg.model = ConfigDict(**cfg.tta_model, module=cfg.model)


def write_predictions(cfg: Config, file: Path) -> None:
    """Make a test write its predictions to a .pkl file.

    Raises:
        InputError: if no metric can be added to the config's evaluator, or if the file cannot be written.
    """
    check_output(file)
    dump = 'DumpDetResults' if package_of(cfg) == 'mmdet' else 'DumpResults'  # The first packs masks.
    add_metric(cfg, '--out', dict(type=dump, out_file_path=str(file)))


def add_metric(cfg: Config, option: str, metric: dict) -> None:
    """Add the metric of an option to those of a test.

    Raises:
        InputError: if the config's evaluator has a type of its own, to which none can be added.
    """
    metrics = _test_metrics(cfg)
    if 'metrics' in cfg.test_evaluator:
        kind = cfg.test_evaluator.get('type')
        raise InputError(f'{option} needs a metric or a list of metrics as test_evaluator, not {kind}')
    cfg.test_evaluator = [*metrics, metric]


def package_of(cfg: Config) -> str | None:
    """The package of a config's model: its default_scope; without one, that of the model's class, a key of SCOPES."""
    scope = cfg.get('default_scope')
    if scope not in (None, 'mmengine'):
        return scope
    with DefaultScope.overwrite_default_scope('mmengine'):
        classes = getattr(find_type(cfg.model), '__mro__', ())
    packages = [base.__module__.partition('.')[0] for base in classes]
    return next((package for package in packages if package in SCOPES), scope)


def _test_metrics(cfg: Config) -> list[dict]:
    metrics = [metric for _, metric in metric_configs(cfg, 'test')]
    if not metrics:
        raise InputError('the config has no test_evaluator: it has nothing to test')
    return metrics
