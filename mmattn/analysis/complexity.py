"""Parameters and operations of models, counted as papers count them. Operations are multiply-adds everywhere."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import yaml
from mmengine.config import Config, ConfigDict
from mmengine.registry import MODELS, DefaultScope
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.overrides import BaseTorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from .. import backbones  # noqa: F401, registers them
from ..errors import InputError
from ..layers import MeanShiftAttention
from ..packages import require

#: reads the config of a file and a row
Reader = Callable[[Path, str | None], Config]
#: width x height at which papers count a model of each scope
INPUT_SIZES = {'mmpretrain': (224, 224), 'mmdet': (1280, 800), 'mmseg': (2048, 512)}
#: how far a count may be from the paper's figure
PARAMETER_TOLERANCE, OPERATION_TOLERANCE = 0.02, 0.03
#: settings of a backbone that do not change the size of its ImageNet classifier
_NOT_SIZE = 'out_indices drop_path_rate norm_cfg norm_eval frozen_stages with_cp init_cfg shift_small_maps'.split()
#: PyTorch's fused attention on the CPU, which its counter of operations leaves out; torch 2.1 has none
_CPU_ATTENTION = getattr(torch.ops.aten, '_scaled_dot_product_flash_attention_for_cpu', None)
_CPU_ATTENTION_BACKWARD = getattr(torch.ops.aten, '_scaled_dot_product_flash_attention_for_cpu_backward', None)


@dataclass
class Comparison:
    """The size of a model beside the figures that its paper prints, which are None where it prints none."""

    name: str
    input_size: tuple[int, int]  #: width, height
    parameters: int
    operations: float | None  #: multiply-adds; None with deformable attention, which meta tensors cannot run
    printed_parameters: float | None
    printed_operations: float | None  #: multiply-adds, whatever the paper's unit is
    notes: list[str]  #: what the paper left out, and so does this count
    same_digits: bool | None = None  #: whether the counts, rounded, are the printed figures; None: not compared
    unknown: str = ''  #: what the paper leaves open, so that the operations, or any digits, cannot be expected to agree

    @property
    def wrong(self) -> int:
        """How many figures are farther from the paper's than the tolerances allow; 1 where digits must agree, but do
        not."""
        if self.same_digits is not None:
            return int(not self.unknown and not self.same_digits)
        return sum(
            None not in (printed, counted) and abs(counted / printed - 1) > tolerance
            for counted, printed, tolerance in (
                (self.parameters, self.printed_parameters, PARAMETER_TOLERANCE),
                (self.operations, None if self.unknown else self.printed_operations, OPERATION_TOLERANCE),
            )
        )


def compare_with_paper(config: str | Path, read: Reader, rows: Sequence[str] | None = None) -> Iterator[Comparison]:
    """Count the models of a config and compare them with the metafile beside it.

    The first row is the config's backbone as an ImageNet classifier. If the config is of a classifier, the classes are
    the config's. Otherwise the whole detector or segmentor follows. Without figures of a paper, the image size is that
    of :func:`input_size`. Those of a config of ablations are compared with printed.yml.

    Args:
        read: reads a config and its row, or its default for None. It is asked for some configs several times.
        rows: of a config with rows; None: all of them.

    Raises:
        MissingPackage: if a package that the config needs is missing.
        InputError: if the config has no default_scope, or no model with a backbone.
    """
    config = Path(config)
    rows = rows or _load(read, config).get('rows')
    if rows and config.with_name('printed.yml').is_file():
        yield from _compare_ablations(config, read, rows)
        return
    for row in rows or [None]:
        cfg = _load(read, config, row)
        own = _own_entry(config, cfg)
        name = own.get('Name', ' '.join(filter(None, (config.stem, row))))
        is_classifier = cfg.default_scope == 'mmpretrain'
        entry = own if is_classifier else _classifier_entry(config, cfg.model.backbone, read)
        counted = cfg if is_classifier or not entry else _load_entry(config, entry, read)
        channels = image_channels(counted)
        yield count_model(f'{name} (backbone)', _classifier_of(counted), 'mmpretrain', entry, channels)
        if not is_classifier:
            yield count_model(name, build(cfg), cfg.default_scope, own, image_channels(cfg))


def _compare_ablations(config: Path, read: Reader, rows: Iterable[str]) -> Iterator[Comparison]:
    """The classifiers of a config's rows. printed.yml gives millions and 10^9, in the digits that the paper has."""
    printed = yaml.safe_load(config.with_name('printed.yml').read_text('utf-8'))[config.stem]
    figures_of = printed.pop('Rows')
    for row in rows:
        figures = figures_of.get(row, {})
        params, flops = figures.get('params'), figures.get('flops')
        entry = dict(printed, Parameters=params and 1e6 * float(params), FLOPs=flops and 1e9 * float(flops))
        cfg = _load(read, config, row)
        found = count_model(row, _classifier_of(cfg), 'mmpretrain', dict(Printed=entry), image_channels(cfg))
        unit = 1e9 / printed.get('Operations per Multiply-Add', 1)
        pairs = [(found.parameters / 1e6, params), (found.operations / unit, flops)]
        same = [f'{count:.{len(str(text).partition(".")[2])}f}' == str(text) for count, text in pairs if text]
        found.same_digits = all(same) if same else None
        found.unknown = figures.get('unknown', '')
        if same:
            found.notes.append('=' if all(same) else found.unknown or 'other digits')
        yield found


def count_model(name: str, model: nn.Module, scope: str, entry: dict, channels: int = 3) -> Comparison:
    """Count a model as the paper of a metafile's entry does.

    Args:
        name: what to call the row.
        model: on any device, "meta" included.
        scope: 'mmpretrain', 'mmdet' or 'mmseg', which sets the input size if the entry does not.
        entry: model of a metafile. ``Printed`` holds the paper's figures. With ``Parameters Counted: matrices`` the
            paper counts no biases, norms and tables; ``Attention Counted`` is the share of attention's products that
            it counts; ``Operations per Multiply-Add`` is its unit; ``Unknown`` says why its operations cannot agree.
        channels: of the images, see :func:`image_channels`.
    """
    printed = entry.get('Printed', {})
    width, height = entry.get('Input Size', INPUT_SIZES[scope])
    matrices = printed.get('Parameters Counted') == 'matrices'
    share = printed.get('Attention Counted', 1)
    unknown, note = printed.get('Unknown', ''), printed.get('Note', '')
    image = torch.empty(1, channels, height, width, device=next(model.parameters()).device)
    flops = printed.get('FLOPs')
    deformable = any(type(module).__name__ == 'MultiScaleDeformableAttention' for module in model.modules())
    with unpadded(model):
        operations = None if deformable else count_operations(lambda: _forward_as_counted(model, image), share)
    return Comparison(
        name,
        (width, height),
        count_parameters(model, matrices_only=matrices),
        operations,
        printed.get('Parameters'),
        flops and flops / printed.get('Operations per Multiply-Add', 1),
        ['matrices'] * matrices + [f'attention x {share}'] * (share != 1) + [text for text in (unknown, note) if text],
        unknown=unknown,
    )


def input_size(cfg: Config) -> tuple[int, int]:
    """Width and height of the images of a config: its ``input_size``, or that of papers."""
    return tuple(cfg.get('input_size') or INPUT_SIZES[cfg.default_scope])


def image_channels(cfg: Config) -> int:
    """Channels of the images of a config: ``in_channels`` of its backbone, or one per mean of its preprocessor, or 3.

    A built backbone does not say it: in MMPretrain's EfficientNet, ``in_channels`` is of an inner layer.
    """
    backbone = cfg.model.get('backbone', {})
    preprocessor = cfg.model.get('data_preprocessor') or cfg.get('data_preprocessor') or {}
    return backbone.get('in_channels') or len(preprocessor.get('mean') or (0, 0, 0))


@contextmanager
def unpadded(model: nn.Module) -> Iterator[None]:
    """Mean-shift attention without the channels that a form adds to each head, which papers do not count."""
    layers = [layer for layer in model.modules() if isinstance(layer, MeanShiftAttention) and layer.backend is None]
    for layer in layers:
        layer.backend = 'bias'
    try:
        yield
    finally:
        for layer in layers:
            layer.backend = None


def count_config(cfg: Config, size: tuple[int, int] | None = None) -> tuple[int, float | None]:
    """All parameters and multiply-adds of a config's classifier, detector or segmentor.

    Multiply-adds are None for models with deformable attention, because meta tensors cannot run it.

    Args:
        size: width and height of the images; None: see :func:`input_size`.

    Raises:
        MissingPackage: if a package that the config needs is missing.
    """
    model = _classifier_of(cfg) if cfg.default_scope == 'mmpretrain' else build(cfg)
    counted = count_model('', model, cfg.default_scope, {'Input Size': size or input_size(cfg)}, image_channels(cfg))
    return counted.parameters, counted.operations


def count_parameters(model: nn.Module, matrices_only: bool = False) -> int:
    """Number of parameters, or of the matrices and filters of layers: no biases, no norms, no tables of positions."""
    return sum(
        parameter.numel()
        for name, parameter in model.named_parameters()
        if not matrices_only or (parameter.dim() > 1 and name.endswith('weight'))
    )


def count_operations(forward: Callable[[], object], attention_share: float = 1) -> float:
    """Multiply-adds of convolutions, matrix products, attention, Cholesky's factor and the C++ operators in a function.

    The count is the same with and without gradients, in training and evaluation, on all devices and under autocast.

    Args:
        forward: what to count. It runs once; on the "meta" device nothing is computed.
        attention_share: share of attention's products that is counted.
    """
    torch.clear_autocast_cache()  # Casts of weights are to be seen.
    with (
        torch.inference_mode(False),  # which has other operators
        torch.no_grad(),
        BaseTorchFunctionMode(),  # Without it and without gradients, PyTorch's own attention is one unknown operator.
        FlopCounterMode(display=False, custom_mapping=operator_formulas()) as counter,
        _AttentionCounter(counter) as attention,
    ):
        forward()
    return (counter.get_total_flops() - (1 - attention_share) * attention.flops) / 2


class _AttentionCounter(TorchDispatchMode):
    """How many of the operations of a counter are of attention: of its own operators, and of matrix products in which
    neither factor is made of weights alone.

    The operator does not tell a linear layer from attention. PyTorch computes a linear layer of many dimensions by
    ``addmm``, ``mm`` or, without gradients and for some strides, ``bmm``.
    """

    #: matrix product -> the places of its factors among the arguments
    factors = {'mm': (0, 1), 'bmm': (0, 1), 'addmm': (1, 2), 'baddbmm': (1, 2)}
    operators = 'scaled_dot_product', 'axial_sum', 'neighbourhood_attention', 'aggregated_attention'

    def __init__(self, counter: FlopCounterMode) -> None:
        super().__init__()
        self.counter = counter
        self.flops = 0
        self.weights: dict[int, object] = {}  # address of a storage -> the storage, which keeps the address in use

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        before = self.counter.get_total_flops()
        out = func(*args, **(kwargs or {}))
        flops = self.counter.get_total_flops() - before
        name = func._overloadpacket.__name__
        if name in self.factors:
            is_attention = not any(self._is_weight(args[place]) for place in self.factors[name])
        else:
            is_attention = any(part in name for part in self.operators)
        if name == 'aggregated_attention':  # As in the steps that it replaces, those with pooled tokens are products.
            flops = 2 * 2 * math.prod(args[0].shape) * math.prod(args[2].shape[1:3])
        if is_attention:
            self.flops += flops
        elif not flops:  # a view, a cast or a copy
            tensors = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, Tensor)]
            if tensors and all(map(self._is_weight, tensors)):
                for made in tree_flatten(out)[0]:
                    if isinstance(made, Tensor):
                        self.weights[made.untyped_storage()._cdata] = made.untyped_storage()
        return out

    def _is_weight(self, x: Tensor) -> bool:
        return isinstance(x, nn.Parameter) or x.untyped_storage()._cdata in self.weights


def operator_formulas() -> dict:
    """Formulas for torch's ``FlopCounterMode`` of operators that it does not count, or not right: the steps of the ELSA
    operators, the C++ operators, the CPU's fused attention, Cholesky's factors, and gradients. They count two
    operations for each multiply-add."""
    steps = torch.ops.aten.addcmul_, torch.ops.aten.addcmul
    formulas = dict.fromkeys(steps, lambda *shapes, out_shape=None, **_: 2 * math.prod(out_shape))
    formulas.update(
        {
            torch.ops.mmattn.neighbourhood_sum: _neighbourhood_flops,
            # the gradients of weights and values, of factors and summands
            torch.ops.mmattn.neighbourhood_sum_backward: lambda _, *shapes, **__: 2 * _neighbourhood_flops(*shapes),
            torch.ops.mmattn.aggregated_attention: _aggregated_flops,
            torch.ops.mmattn.aggregated_attention_backward: lambda _, *shapes, **__: (
                5 * _aggregated_flops(*shapes) // 2
            ),
            torch.ops.mmattn.relu_of_pairs: _pairs_flops,
            # the gradients of weights and of the hidden map, those of the layer before left out, as its input has none
            torch.ops.mmattn.relu_of_pairs_backward: lambda _, *shapes, **__: 2 * _pairs_flops(*shapes),
            torch.ops.mmattn.neighbourhood_attention: _neighbourhood_attention_flops,
            # as of fused attention: the scores again, and four gradients
            torch.ops.mmattn.neighbourhood_attention_backward: lambda _, *shapes, **__: (
                5 * _neighbourhood_attention_flops(*shapes) // 2
            ),
            torch.ops.mmattn.grouped_conv: _grouped_conv_flops,
            # the gradients of input and weights
            torch.ops.mmattn.grouped_conv_backward: lambda _, *shapes, **__: 2 * _grouped_conv_flops(*shapes),
            torch.ops.mmattn.depthwise_conv_weight_backward: lambda _, x, k, **__: 2 * math.prod(x) * k**2,
            torch.ops.mmattn.axial_sum: _axial_flops,
            torch.ops.mmattn.axial_sum_backward: _axial_backward_flops,
            torch.ops.aten.convolution_backward: _convolution_backward_flops,  # torch's is of one group
            torch.ops.aten.linalg_cholesky_ex: lambda matrix, *_, **__: math.prod(matrix) * matrix[-1] / 3,
            torch.ops.aten.cholesky_solve: lambda right, *_, **__: 2 * math.prod(right) * right[-2],
        }
    )
    if _CPU_ATTENTION is not None:
        formulas[_CPU_ATTENTION] = lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v)
        formulas[_CPU_ATTENTION_BACKWARD] = lambda _, q, k, v, *__, **___: 5 * sdpa_flop_count(q, k, v) // 2
    return formulas


# Of the C++ operators, from the shapes of their tensors: as the steps that they replace are counted.
def _neighbourhood_flops(weights: tuple, value: tuple, mul: tuple | None, add: tuple | None, *_, **__) -> int:
    return 2 * math.prod(value) * weights[-1] * (1 + (mul is not None) + (add is not None))


def _neighbourhood_attention_flops(
    query: tuple, key: tuple, value: tuple, bias: object, beyond: object, k: int, *_, **__
) -> int:
    return 2 * 2 * math.prod(query) * k**2


def _aggregated_flops(
    query: tuple, key_value: tuple, pooled: tuple, scale: tuple, embedding: tuple, bias: tuple, *_, **__
) -> int:
    """Neighbours also have products with the learnable tokens."""
    return 2 * math.prod(query) * (2 * math.prod(pooled[1:3]) + 3 * bias[1])


def _pairs_flops(rows: tuple, columns: tuple, weight: tuple, *_, **__) -> int:
    """Of both linear layers, the first one from two numbers."""
    return 2 * rows[0] * columns[0] * rows[1] * (2 + weight[0])


def _grouped_conv_flops(x: tuple, weight: tuple, *_, **__) -> int:
    return 2 * math.prod(x[:-1]) * math.prod(weight)


def _axial_flops(query: tuple, value: tuple, table: tuple, dim: int, *_, **__) -> int:
    return 2 * math.prod(query[:-1]) * query[dim] * (query[-1] + value[-1])


def _axial_backward_flops(grad: tuple, query: tuple, value: tuple, table: tuple, dim: int, *_, **__) -> int:
    """The scores again, and the gradients of scores, queries, values and table."""
    return 2 * math.prod(query[:-1]) * query[dim] * (3 * query[-1] + 2 * value[-1])


def _convolution_backward_flops(grad: tuple, x: tuple, weight: tuple, *arguments, **_) -> int:
    """The gradients of input and weights, each at the cost of the convolution."""
    _, _, _, _, transposed, _, _, wanted = arguments
    pixels = x if transposed else grad
    return 2 * sum(wanted[:2]) * pixels[0] * math.prod(pixels[2:]) * math.prod(weight)


def build(cfg: Config) -> nn.Module:
    """The whole model of a config, on the "meta" device.

    Raises:
        MissingPackage: if a package that the config needs is missing.
    """
    for package in ('mmcv', cfg.default_scope):
        require(package, f'{cfg.filename} ({cfg.default_scope})')
    with DefaultScope.overwrite_default_scope(cfg.default_scope), _device_to_build_on(cfg.model.get('backbone', {})):
        model = MODELS.build(cfg.model)
    # PyTorch's counter cannot follow the class token of a CaiT that has gradients.
    return model.eval().to('meta').requires_grad_(False)


def classifier(backbone: ConfigDict, num_classes: int, scope: str | None = None, image_channels: int = 3) -> nn.Module:
    """A backbone's config as a classifier, on the "meta" device: the mean of its last map and a linear layer.

    Args:
        scope: package of the registry that the backbone is looked for in first.
        image_channels: channels of the images.
    """
    backbone = backbone.copy()
    backbone.pop('out_indices', None)
    with DefaultScope.overwrite_default_scope(scope):
        with _device_to_build_on(backbone):
            last = MODELS.build(backbone.copy()).out_indices[-1:]
            backbone = MODELS.build(dict(backbone, out_indices=last))
        backbone.to('meta')
        backbone.eval()  # returns nothing with some backbones of MMDetection
        channels = backbone(torch.empty(1, image_channels, 224, 224, device='meta'))[-1].shape[1]
        head = nn.Linear(channels, num_classes, device='meta')
        return nn.ModuleDict(dict(backbone=backbone, head=head)).eval()


def _device_to_build_on(backbone: dict) -> torch.device:
    """Other packages' models read numbers from tensors while they are built, which "meta" does not have."""
    return torch.device('meta' if _is_ours(backbone) else 'cpu')


def _is_ours(backbone: dict) -> bool:
    kind = backbone.get('type')
    kind = MODELS.get(kind) if isinstance(kind, str) else kind
    return getattr(kind, '__module__', '').startswith('mmattn.')


def _classifier_of(cfg: Config) -> nn.Module:
    """The ImageNet classifier of a config. Other packages' models, and VOLO, are counted with their own heads."""
    head = cfg.model.get('head', {})
    backbone = cfg.model.get('backbone', {})  # MMPretrain's TimmClassifier has none
    is_foreign = cfg.default_scope == 'mmpretrain' and not _is_ours(backbone)
    if is_foreign or str(head.get('type')).rpartition('.')[2] == 'VOLOHead':
        return build(cfg)
    return classifier(backbone, head.get('num_classes', 1000), cfg.default_scope, image_channels(cfg))


def _forward_as_counted(model: nn.Module, image: Tensor) -> None:
    """What papers count of a model: of a detector 1000 proposals through the box heads and 100 through the mask heads,
    in every stage of a cascade."""
    if isinstance(model, nn.ModuleDict):
        model['head'](model['backbone'](image)[-1].mean((2, 3)))
        return
    if not any(hasattr(model, name) for name in ('bbox_head', 'roi_head')):  # a segmentor, or MMPretrain's classifier
        model(image)
        return
    maps = model.extract_feat(image)
    if not getattr(model, 'with_roi_head', False):
        model.bbox_head(maps)
        return
    model.rpn_head(maps)
    roi_head = model.roi_head
    channels = maps[0].shape[1]
    for bbox_head in _stages(roi_head.bbox_head):
        bbox_head(image.new_empty(1000, channels, 7, 7))
    for mask_head in _stages(roi_head.mask_head) if roi_head.with_mask else ():
        mask_head(image.new_empty(100, channels, 14, 14))


def _stages(head: nn.Module) -> list[nn.Module]:
    return list(head) if isinstance(head, nn.ModuleList) else [head]


def _entries(config: Path) -> list[dict]:
    """The models of the metafile beside a config, if there is one."""
    metafile = config.parent / 'metafile.yml'
    return yaml.safe_load(metafile.read_text('utf-8'))['Models'] if metafile.is_file() else []


def _own_entry(config: Path, cfg: Config) -> dict:
    """The entry of a config in the metafile beside it; without one, the size of its images alone."""
    found = (entry for entry in _entries(config) if Path(entry['Config']).name == config.name)
    return next(found, {'Input Size': input_size(cfg)})


def _load_entry(config: Path, entry: dict, read: Reader) -> Config:
    """The config, beside another one, that an entry of their metafile names."""
    return _load(read, config.parent / Path(entry['Config']).name)


def _classifier_entry(config: Path, backbone: dict, read: Reader) -> dict:
    """The entry beside a config of the ImageNet classifier with the same backbone; {} if there is none."""
    for entry in _entries(config):
        if entry['Name'].endswith('_in1k'):
            other = _load_entry(config, entry, read).model.get('backbone', {})  # MMPretrain's TimmClassifier has none
            if all(backbone.get(key) == other.get(key) for key in {*backbone, *other}.difference(_NOT_SIZE)):
                return entry
    return {}


def _load(read: Reader, config: Path, row: str | None = None) -> Config:
    """A config with a row, if it is of a model that can be counted."""
    cfg = read(config, row)
    model = cfg.get('model')
    whole = isinstance(model, dict) and ('backbone' in model or model.get('type') == 'TimmClassifier')
    if cfg.get('default_scope') not in INPUT_SIZES or not whole:
        raise InputError(
            f'{config} is not a complete config: it needs default_scope ({", ".join(INPUT_SIZES)}), and a model with a '
            'backbone'
        )
    return cfg
