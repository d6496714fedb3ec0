"""Grafting: blocks of a trained backbone get other token mixers, which first learn to do what the replaced ones did.

"Exploring Diffusion Transformer Designs via Grafting" (Chandrasegaran et al., NeurIPS 2025),
https://arxiv.org/abs/2506.05340
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.registry import HOOKS, METRICS, MODELS
from mmengine.runner import EpochBasedTrainLoop, Runner
from torch import Tensor, nn

from mmattn.arguments import check_choice, check_flags, check_whole
from mmattn.backbones.base import Backbone
from mmattn.errors import CheckpointError, InputError
from mmattn.layers import DropPath
from mmattn.layers.token_mixer import mix, mix_with_prefix, with_prefix
from mmattn.weights import first_names, is_pretrained
from mmguard.runs.checkpoints import unwrapped

from .distiller import FeatureDistiller, Standardisation
from .hooks import TeacherSimilarity

#: name of a loss -> the distance of two numbers that it is the mean of
DISTANCES: dict[str, Callable[[Tensor], Tensor]] = dict(l1=torch.abs, mse=torch.square)
#: block -> what its operator gets, and what it gives: a map, or a map and prefix tokens
Recorded = Mapping[str, tuple[tuple[Tensor, ...], Tensor | tuple[Tensor, ...]]]


@MODELS.register_module()
class BlockDistiller(FeatureDistiller):
    r"""Grafts token mixers into a trained backbone, the teacher: first block by block, then as a whole.

    The backbone is the teacher's, with other token mixers in some blocks. It starts with the teacher's weights. Other
    token mixers take what they can of them, as in a warm start. Then, as in Grafting
    (https://arxiv.org/abs/2506.05340):

    1. Each new token mixer learns to give what the replaced one gives for the same input (their "activation
       distillation"). All blocks learn from one forward pass of the teacher, each for itself. The loss of a block is
       the mean distance of both outputs, divided by the mean size of the replaced one's, a moving average. A token
       mixer that gives zeros has the loss 1.
    2. From the epoch of :class:`WholeModelHook` on, the whole backbone learns to return the teacher's maps, with the
       losses of :class:`FeatureDistiller` and ``same_maps``. There, the paper tunes with the labels of its task.

    Of a ResNet, what is replaced is the 3 x 3 convolution of a block. Where a token mixer takes no prefix tokens, it
    learns the map only. If none does, the backbone has no class token and no registers, whatever the teacher has.

    Args:
        backbone: config of the grafted backbone. Its token mixers say which blocks are exchanged: those that differ
            from the teacher's. Without weights in ``init_cfg``: they are the teacher's.
        teacher: arguments of a :class:`Teacher` whose ``model`` is the config of a trained backbone of mmattn.
        distance: 'l1' or 'mse', of the outputs of a block. The paper grafts attention with L1.
        self_graft: exchange blocks with the same token mixer, too, as a check. Their loss starts at 0.
        kwargs: further arguments of :class:`FeatureDistiller`, for the whole backbone.

    Attributes:
        blocks: names of the exchanged blocks, as "layers.2.blocks.0".
        whole: whether the whole backbone learns.

    Raises:
        InputError: if an argument is wrong, or the backbones differ in more than their token mixers.
    """

    def __init__(
        self, backbone: dict, teacher: dict, distance: str = 'l1', self_graft: bool = False, **kwargs: object
    ) -> None:
        check_choice('distance', distance, DISTANCES)
        check_flags(self_graft=self_graft)
        if not isinstance(teacher, dict) or not isinstance(teacher.get('model'), dict):
            raise InputError(
                f'teacher of BlockDistiller must be one dict, whose model is the config of a backbone, not {teacher!r}'
            )
        for key in {'cache', 'img_size'} & {key for key, value in teacher.items() if value is not None}:
            raise InputError(
                f'teacher of BlockDistiller has no {key}: its blocks are recorded as the images pass through it'
            )
        starts = backbone.get('init_cfg') or []
        starts = starts if isinstance(starts, (list, tuple)) else [starts]
        if any(is_pretrained(entry) for entry in starts):
            raise InputError("backbone of BlockDistiller starts with the teacher's weights: leave out its init_cfg")
        super().__init__(backbone, teacher, same_maps=True, **kwargs)
        self.distance, self.whole = distance, False
        own, theirs = self.backbone, self.source
        for each in (own, theirs):
            if not isinstance(each, Backbone):
                raise InputError(f'BlockDistiller grafts backbones of mmattn, not {type(each).__name__}')
        if tuple(own.out_indices) != tuple(theirs.out_indices):
            raise InputError(
                f'backbone and teacher must return the same maps, but their out_indices are {tuple(own.out_indices)} '
                f'and {tuple(theirs.out_indices)}'
            )
        mean = getattr(self.data_preprocessor, 'mean', None)
        if mean is not None and not mean.is_meta:
            for name in ('mean', 'std'):
                seen, taught = (getattr(x, name).flatten() for x in (self.data_preprocessor, self.teachers[0]))
                if not torch.allclose(seen.cpu(), taught.cpu(), atol=1e-2):
                    raise InputError(
                        f'backbone and teacher must see the same images, but {name} is {seen.tolist()} in '
                        f'data_preprocessor and {taught.tolist()} of the teacher, on the scale from 0 to 255'
                    )
        changed = changed_blocks(theirs, own)
        self.changed = tuple(f'{name}.attn.' for name in changed)  # not attn_scale and attn_after
        self.blocks = attention_blocks(own) if self_graft else changed
        if not self.blocks:
            raise InputError("the token mixers of backbone are the teacher's in all blocks: name others in its config")
        #: of each block, the mean size of what the replaced token mixer gives
        self.sizes = nn.ModuleList(Standardisation(1, self.momentum) for _ in self.blocks)

    @property
    def source(self) -> Backbone:
        """The teacher's backbone."""
        return self.teachers[0].model

    @property
    def training_note(self) -> dict[str, object]:
        return dict(super().training_note, distance=self.distance, blocks=list(self.blocks))

    def init_weights(self) -> None:
        """Initialise the backbone, then take over the teacher's weights."""
        super().init_weights()
        name, given = type(self.backbone).__name__, self.source.state_dict()
        print_log(f'{name}: token mixers of {len(self.blocks)} blocks are grafted: {", ".join(self.blocks)}', 'current')
        try:
            self.backbone.start_from(given)
        except CheckpointError as error:
            print_log(f'{name}: new token mixers take over no weights: {error}', 'current')
        with torch.no_grad():
            for key, value in self.backbone.state_dict().items():
                if not key.startswith(self.changed):
                    value.copy_(given[key])

    def forward(
        self,
        inputs: Tensor,
        data_samples: list | None = None,
        teacher_inputs: Tensor | None = None,
        mode: str = 'tensor',
    ) -> tuple[Tensor, ...] | dict[str, Tensor] | list:
        """As :meth:`FeatureDistiller.forward`. 'loss' has a loss per block, or those of the whole backbone; 'predict'
        also sets ``errors`` of the data samples: block -> norm of the difference, divided by the norm of the target."""
        if mode == 'loss' and not self.whole:
            return self._block_losses(teacher_inputs)
        if mode != 'predict':
            return super().forward(inputs, data_samples, teacher_inputs, mode)
        with self.recording() as recorded:
            data_samples = super().forward(inputs, data_samples, teacher_inputs, mode)
        errors = {name: each.tolist() for name, each in relative_errors(self.pairs(recorded)).items()}
        for i, sample in enumerate(data_samples):
            sample.set_field({name: each[i] for name, each in errors.items()}, 'errors')
        return data_samples

    def _block_losses(self, images: Tensor) -> dict[str, Tensor]:
        with self.recording() as recorded:
            features = self.teachers[0](images)
        if self.training:  # Validation compares the maps by these statistics.
            for standardise, x in zip(self.statistics[0].values(), features):
                standardise.update(x)
        losses, size = {}, DISTANCES[self.distance]
        for (name, (prediction, target)), sizes in zip(self.pairs(recorded).items(), self.sizes):
            if self.training:
                sizes.update(size(target).reshape(1, 1, -1))
            mean = sizes.mean[0]
            # A block of the teacher may give zeros.
            losses[f'loss_{name}'] = size(prediction - target).mean() / torch.where(mean > 0, mean, 1)
        return losses

    @contextmanager
    def recording(self) -> Iterator[Recorded]:
        """What the replaced operators get and give in forward passes of the teacher in this block.

        Inputs are float32: on a GPU, the teacher may compute in half precision where the new operators do not.
        """
        recorded: dict = {}

        def keep(name: str, _: nn.Module, inputs: tuple, output: Tensor | tuple) -> None:
            recorded[name] = tuple(x.float() for x in inputs), output

        with ExitStack() as hooks:
            for name in self.blocks:
                hooks.enter_context(self.operators(name)[0].register_forward_hook(partial(keep, name)))
            yield recorded

    @contextmanager
    def grafted(self, names: Sequence[str]) -> Iterator[None]:
        """In this block, the teacher computes with the new operators in the blocks of these names."""

        def exchange(name: str, _: nn.Module, inputs: tuple, output: Tensor | tuple) -> Tensor | tuple:
            mixed, prefix = self.mixed(name, inputs)
            # A token mixer that takes no prefix tokens leaves them as they are: it adds nothing.
            return mixed if isinstance(output, Tensor) else (mixed, output[1] * 0 if prefix is None else prefix)

        with ExitStack() as hooks:
            for name in names:
                hooks.enter_context(self.operators(name)[0].register_forward_hook(partial(exchange, name)))
            yield

    def operators(self, name: str) -> tuple[nn.Module, Callable[..., Tensor | tuple]]:
        """Of a block, the teacher's module that is replaced, and what is computed instead of it."""
        old, new = (model.get_submodule(name) for model in (self.source, self.backbone))
        return (old.conv2, new.inner) if old.attn is None else (old.attn, new.attn)

    def mixed(self, name: str, inputs: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        """What the new operator of a block gives: a map, and prefix tokens if it takes them."""
        new = self.operators(name)[1]
        if not isinstance(new, nn.Module):
            return new(*inputs), None
        return mix_with_prefix(new, *inputs) if len(inputs) > 1 else (mix(new, *inputs), None)

    def pairs(self, recorded: Recorded) -> dict[str, tuple[Tensor, Tensor]]:
        """Of each block, the output of the new operator and of the replaced one, both (B, ...) and float32."""
        pairs = {}
        for name in self.blocks:
            inputs, output = recorded[name]
            mixed, prefix = self.mixed(name, inputs)
            target, of_prefix = (output, None) if isinstance(output, Tensor) else output
            if prefix is not None and of_prefix is not None:
                mixed, target = with_prefix(prefix, mixed), with_prefix(of_prefix, target)
            pairs[name] = mixed.float(), target.float()
        return pairs


def relative_errors(pairs: Mapping[str, tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Norm of the difference of two tensors (B, ...) divided by the norm of the second, image by image: (B,) each."""
    return {
        name: (a - b).flatten(1).norm(dim=1) / b.flatten(1).norm(dim=1).clamp(min=1e-12)
        for name, (a, b) in pairs.items()
    }


def attention_blocks(backbone: nn.Module) -> list[str]:
    """The names of the blocks with attention, in the order of the forward pass."""
    units = {name: module for name, module in backbone.named_modules() if getattr(module, 'is_block', False)}
    return [name for name, unit in units.items() if getattr(unit, 'attn', None) is not None]


def changed_blocks(source: nn.Module, graft: nn.Module) -> list[str]:
    """The names of the blocks of ``graft`` whose token mixer is not that of ``source``.

    Modules differ if their types, their settings or the shapes of their parameters do. Dropout does not count.

    Raises:
        InputError: if other modules differ. The prefix tokens may, if no token mixer of ``graft`` takes them.
    """
    old, new = _forms(source), _forms(graft)
    if not any(getattr(module, 'takes_prefix', False) for module in graft.modules()):
        old['prefix'] = new.get('prefix')
    differing = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    blocks, modules = attention_blocks(graft), dict(source.named_modules())
    changed = [name for name in blocks if any(f'{each}.'.startswith(f'{name}.attn.') for each in differing)]
    inside = [f'{name}.attn.' for name in changed]
    for name in changed:
        if getattr(modules.get(name), 'attn', None) is None:  # a block of a ResNet
            inside += [f'{name}.conv2.']
            differing = [each for each in differing if each != name]
    others = [each for each in differing if not f'{each}.'.startswith(tuple(inside))]
    if others:
        raise InputError(
            f'backbone and teacher may differ in their token mixers only, but they differ in {first_names(others, 3)}: '
            'give both the same settings'
        )
    return changed


def _forms(model: nn.Module) -> dict[str, tuple]:
    """What makes the modules of a model compute what they do, but for their weights, by their names."""
    plain, hidden = (int, float, str, bool, tuple, type(None)), ('training', 'backend', 'init_cfg', 'attn_drop_rate')
    return {
        name: (
            type(module),
            {key: x for key, x in vars(module).items() if isinstance(x, plain) and key not in hidden and key[0] != '_'},
            {key: x if x is None else x.shape for key, x in module._parameters.items()},
        )
        for name, module in model.named_modules()
        if name and not isinstance(module, (nn.Dropout, DropPath))
    }


@HOOKS.register_module()
class WholeModelHook(Hook):
    """Lets the whole backbone of a :class:`BlockDistiller` learn from an epoch on; before, its blocks learn.

    Args:
        begin: number of epochs in which blocks learn.

    Raises:
        ValueError: if it is not a whole number of at least 0.
        InputError: if the model is not a :class:`BlockDistiller`, or the training is by steps.
    """

    def __init__(self, begin: int) -> None:
        check_whole('begin', begin, 0)
        self.begin = begin

    def before_train(self, runner: Runner) -> None:
        if not isinstance(runner.train_loop, EpochBasedTrainLoop):
            raise InputError('WholeModelHook counts epochs, and the training is by steps: set train_cfg.by_epoch=True')

    def before_train_epoch(self, runner: Runner) -> None:
        model = unwrapped(runner.model)
        if not isinstance(model, BlockDistiller):
            raise InputError('WholeModelHook is for BlockDistiller: take it out of custom_hooks')
        model.whole = runner.epoch >= self.begin
        if runner.epoch == self.begin:  # The log would go on with the last losses of the blocks.
            scalars = runner.message_hub.log_scalars
            for name in [name for name in scalars if name.startswith('train/loss_')]:
                del scalars[name]


@METRICS.register_module()
class BlockErrors(TeacherSimilarity):
    """Mean relative error of each block that a :class:`BlockDistiller` exchanges: 0 if its output is the teacher's, 1
    if it gives zeros."""

    default_prefix, field, model = 'error', 'errors', 'BlockDistiller'
