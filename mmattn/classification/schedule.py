from collections.abc import Sequence

from mmengine.optim import OptimWrapper
from mmengine.optim.scheduler.lr_scheduler import LRSchedulerMixin
from mmengine.optim.scheduler.param_scheduler import _ParamScheduler
from mmengine.registry import PARAM_SCHEDULERS
from timm.scheduler import CosineLRScheduler
from torch.optim import Optimizer

from ..arguments import check_finite, check_whole


@PARAM_SCHEDULERS.register_module()
class TimmCosineLR(LRSchedulerMixin, _ParamScheduler):
    """timm's cosine schedule, once per epoch: the schedule of ELSA's and Shunted's scripts.

    The rate rises linearly from ``warmup_lr_init`` in ``warmup_t`` epochs. The cosine is counted from epoch 0, not from
    the end of the warm-up as MMEngine's. From epoch ``t_initial`` on (the cool-down) the rate is ``lr_min``.

    Args:
        optimizer: whose ``lr`` is scheduled.
        t_initial: length of the cosine in epochs, without the cool-down.
        lr_min: rate at the end of the cosine.
        warmup_t: length of the warm-up in epochs.
        warmup_lr_init: rate of the first epoch.
        lag: epochs by which the schedule is late: 1 for scripts that call ``scheduler.step(epoch)`` after that epoch.
        kwargs: further arguments of MMEngine's schedulers.

    Raises:
        ValueError: if a number of epochs is not whole, a number is negative or not finite, or ``t_initial`` is 0.
    """

    def __init__(
        self,
        optimizer: Optimizer | OptimWrapper,
        t_initial: int,
        lr_min: float = 0.0,
        warmup_t: int = 0,
        warmup_lr_init: float = 0.0,
        lag: int = 0,
        **kwargs,
    ) -> None:
        check_whole('t_initial', t_initial)
        check_whole('warmup_t', warmup_t, least=0)
        check_whole('lag', lag, least=0)
        check_finite('lr_min', lr_min, least=0)
        check_finite('warmup_lr_init', warmup_lr_init, least=0)
        self.timm = dict(t_initial=t_initial, lr_min=lr_min, warmup_t=warmup_t, warmup_lr_init=warmup_lr_init)
        self.lag = lag
        super().__init__(optimizer, **kwargs)

    def _get_value(self) -> Sequence[float]:
        # It is made anew in each epoch: it has no state to keep, and a checkpoint cannot hold it as an object.
        CosineLRScheduler(self.optimizer, **self.timm, initialize=False).step(max(self.last_step - self.lag, 0))
        return [group['lr'] for group in self.optimizer.param_groups]
