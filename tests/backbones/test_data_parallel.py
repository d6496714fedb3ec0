"""Every backbone in two processes, each with half of the batch. tests/tools/test_dist_and_resume.py trains models."""

import pytest
import torch
from mmengine.optim import OptimWrapper
from mmengine.registry import FUNCTIONS
from torch import distributed, multiprocessing, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from mmattn.packages import version_numbers
from mmguard.runs.sharding import clip_all_shards, wrap_blocks
from tests.backbones.cases import CASES, every_backbone

STAGES = 4
#: (name, frozen_stages, with_cp): all trains, the stem and a stage are frozen, nothing of the backbone trains
RUNS = [(name, *run) for name in CASES for run in ((-1, False), (1, True))] + [('ELSASwin', STAGES, False)]
SHARDED = [('sharded', name, 1, True) for name in CASES] if version_numbers(torch.__version__) >= (2, 6) else []


def slow_if_of_another(runs):
    """Runs of a backbone whose code is that of others are slow."""
    return [pytest.param(run, marks=pytest.mark.slow if CASES[run[-3]].of_another else ()) for run in runs]


class Model(nn.Module):
    """A backbone and a head that trains even if all of the backbone is frozen."""

    def __init__(self, name, frozen_stages, with_cp):
        super().__init__()
        torch.manual_seed(0)
        case = CASES[name]
        # Batch norm with running statistics, because half a batch has other statistics than the whole.
        norm_eval = dict(norm_eval=True) if case.batch_norm else {}
        self.backbone = case.build(
            case.small, drop_path_rate=0.0, frozen_stages=frozen_stages, with_cp=with_cp, **norm_eval
        )
        for key, parameter in self.backbone.named_parameters():
            if 'gamma' in key:  # DiNAT's start at 1e-5, which hides the gradients of its blocks
                nn.init.ones_(parameter)
        self.head = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.head.sum() * sum((out - wanted(out)).square().mean() for out in self.backbone(x))


def wanted(out):
    """A map to learn. After a layer norm the mean of squares alone is constant, and nearly all gradients are zero."""
    return torch.arange(out[0].numel(), dtype=out.dtype).sin().view_as(out[0])


def images():
    return torch.randn(4, 3, 33, 40, generator=torch.Generator().manual_seed(1))


def gradients(model):
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.requires_grad}


def train(rank, folder, runs):
    torch.set_num_threads(1)
    distributed.init_process_group('gloo', init_method=f'file://{folder}/rendezvous', rank=rank, world_size=2)
    results = {}
    for run in filter(runs.__contains__, RUNS):
        model = Model(*run)
        parallel = DistributedDataParallel(model.train())
        loss = parallel(images()[2 * rank :][:2])
        loss.backward()
        results[run] = loss.item(), gradients(model)
        parallel(images())  # fails if a parameter had no gradient in that step
    for run in filter(runs.__contains__, SHARDED):
        parallel = FullyShardedDataParallel(
            Model(*run[1:]).train(), auto_wrap_policy=wrap_blocks, use_orig_params=True, device_id='cpu'
        )
        loss = parallel(images()[2 * rank :][:2])
        loss.backward()
        with FullyShardedDataParallel.summon_full_params(parallel, with_grads=True):
            results[run] = (
                loss.item(),
                {
                    name.replace('_fsdp_wrapped_module.', ''): gradient.clone()
                    for name, gradient in gradients(parallel).items()
                },
            )
        optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
        clip_all_shards(OptimWrapper(optimizer, clip_grad=dict(max_norm=0.01)), parallel)._clip_grad()
        with FullyShardedDataParallel.summon_full_params(parallel, with_grads=True):
            results['clipped', run] = nn.utils.get_total_norm(list(gradients(parallel).values()))
    torch.save(results, folder / f'{rank}.pt')
    distributed.barrier()
    distributed.destroy_process_group()


@pytest.fixture(scope='module')
def ranks(request, tmp_path_factory):
    """What both processes give, of the runs that are tested now."""
    tested = [item for item in request.session.items if item.path == request.path and 'ranks' in item.fixturenames]
    runs = {item.callspec.params['run'] for item in tested}
    folder = tmp_path_factory.mktemp('ranks')
    # A forked process imports nothing, but cannot use CUDA after its parent.
    method = 'spawn' if torch.cuda.is_initialized() else 'fork'
    multiprocessing.start_processes(train, (folder, runs), 2, start_method=method)
    return [torch.load(folder / f'{rank}.pt', weights_only=True) for rank in range(2)]


@pytest.mark.parametrize('run', slow_if_of_another(RUNS + SHARDED), ids=lambda run: '-'.join(map(str, run)))
def test_two_processes_are_one(ranks, run):
    """Both processes have the loss and the gradients of one process on the joint batch, and every parameter that trains
    has a gradient, with frozen stages, recomputed blocks and FSDP."""
    name, frozen_stages, _ = run[-3:]
    model = Model(name, frozen_stages, False).train()
    loss = model(images())
    loss.backward()
    (loss0, gradients0), (loss1, gradients1) = (results[run] for results in ranks)
    assert (loss0 + loss1) / 2 == pytest.approx(loss.item(), rel=1e-5)
    assert gradients0.keys() == gradients(model).keys() and 'head' in gradients0
    for key, gradient in gradients(model).items():
        assert gradient is not None
        assert torch.equal(gradients0[key], gradients1[key])
        torch.testing.assert_close(gradients0[key], gradient, msg=lambda message, key=key: f'{key}: {message}')


@pytest.mark.parametrize('run', slow_if_of_another(SHARDED), ids=lambda run: run[1])
def test_clipped_shards(ranks, run):
    """After clip_grad, the whole gradient has the norm, and not the part of each process."""
    assert [float(results['clipped', run]) for results in ranks] == pytest.approx([0.01, 0.01], rel=1e-3)


@every_backbone
def test_units_of_sharding_are_the_blocks(case):
    """FSDP wraps exactly the blocks that a backbone passes through ``run``."""
    backbone, blocks = case.build(case.small).eval(), []
    backbone.run = lambda block, *inputs: blocks.append(block) or block(*inputs)
    backbone(images())
    policy = FUNCTIONS.get('wrap_blocks')
    assert blocks == [module for module in backbone.modules() if policy(module, recurse=False, nonwrapped_numel=0)]
    assert all(type(block).is_block for block in blocks)
