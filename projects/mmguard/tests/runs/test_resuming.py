import functools
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import BaseDataset, RepeatDataset
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.runner import FlexibleRunner, ValLoop
from torch import nn

from mmattn.backbones.base import Backbone
from mmguard.errors import InputError
from mmguard.runs import resuming
from mmguard.runs.resuming import CheckpointCheckHook, check_complete, check_unused, prepare_resume
from mmguard.weights import CheckpointError

from .small_training import Data, Killed, Model, train


def training_state(path, iteration=1, **contents):
    state = dict(meta=dict(epoch=0, iter=iteration, seed=iteration), state_dict={'w': torch.zeros(1000)}, optimizer={})
    torch.save(dict(state, message_hub=dict(log_scalars={}, runtime_info={}, resumed_keys={}), **contents), path)


@pytest.mark.parametrize('by_epoch', [False, True])
def test_goes_on_as_if_uninterrupted(tmp_path, by_epoch):
    """A resumed training gives the weights of one that was not interrupted, also if the config has no seed."""
    with pytest.raises(Killed):
        train(tmp_path / 'killed', by_epoch, killed=True)
    last = torch.load((tmp_path / 'killed' / 'last_checkpoint').read_text(), weights_only=False)
    assert last['meta']['iter'] == 4
    resumed = train(tmp_path / 'killed', by_epoch)
    whole = train(tmp_path / 'whole', by_epoch, seed=last['meta']['seed'])
    assert all(torch.equal(resumed[name], value) for name, value in whole.items())


@pytest.fixture
def four(tmp_path):
    """A work folder with four checkpoints, and names that resemble those of checkpoints."""
    for i in (90, 100, 110, 120):
        training_state(tmp_path / f'iter_{i}.pth', i)
        os.utime(tmp_path / f'iter_{i}.pth', (-i, -i))  # The clock went backwards.
    for name in ('iter_1.5.pth', 'iter_.pth', 'iter_130.pth.1a.part', 'iter_-140.pth', 'my_iter_150.pth'):
        (tmp_path / name).write_bytes(b'none')
    (tmp_path / 'last_checkpoint').write_text(str(tmp_path / 'iter_110.pth'))  # 120 is of an older training
    return tmp_path


def resumed_from(folder, **settings):
    cfg = Config(dict(work_dir=str(folder), **settings))
    prepare_resume(cfg)
    return Path(cfg.load_from)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1000])


def flip(path):
    contents = bytearray(path.read_bytes())
    contents[len(contents) // 2] ^= 1
    path.write_bytes(contents)


def test_last_checkpoint_is_used(four):
    cfg = Config(dict(work_dir=str(four), load_from='weights.pth', randomness=dict(seed=3, deterministic=True)))
    prepare_resume(cfg)
    assert cfg.resume and cfg.load_from == str(four / 'iter_110.pth')
    assert cfg.randomness == dict(seed=110, deterministic=True)


@pytest.mark.parametrize('damage', [truncate, flip])
def test_damaged_checkpoint_is_named_and_passed_over(four, log, damage):
    """The checkpoint with the next lower number is used, and the log names the damaged one."""
    damage(four / 'iter_110.pth')
    damage(four / 'iter_100.pth')
    assert resumed_from(four) == four / 'iter_90.pth'
    assert 'iter_110.pth' in log[0] and log[0].endswith(f'resuming from {four / "iter_90.pth"}')


def test_state_that_is_not_finite(four, log):
    """An infinite moment would keep a weight as it is for ever; the state before it is used."""
    broken = dict(state={0: dict(exp_avg_sq=torch.full((2,), torch.inf))}, param_groups=[])
    state = torch.load(four / 'iter_110.pth', weights_only=False)
    torch.save(dict(state, optimizer=broken), four / 'iter_110.pth')
    assert resumed_from(four) == four / 'iter_100.pth'
    assert 'iter_110.pth has a NaN or an infinity in optimizer state 0 exp_avg_sq: it is of a training' in log[0]


@pytest.mark.parametrize('elsewhere', ['/elsewhere', 'original'])
def test_folder_was_moved_or_copied(four, tmp_path_factory, elsewhere):
    """The note of the last checkpoint names another folder; the checkpoint of that name here is used."""
    original = tmp_path_factory.mktemp('original')
    training_state(original / 'iter_100.pth')
    (four / 'last_checkpoint').write_text(f'{original if elsewhere == "original" else elsewhere}/iter_100.pth')
    assert resumed_from(four) == four / 'iter_100.pth'


@pytest.mark.parametrize('note', [None, b'', b'\xff\xfe\x00', b'iter_95.pth'], ids=['none', 'empty', 'bytes', 'absent'])
def test_broken_note_is_no_note(four, note):
    """Whatever the note holds, the newest checkpoint is used. The note may be missing in a copy, or half written."""
    (four / 'last_checkpoint').unlink()
    if note is not None:
        (four / 'last_checkpoint').write_bytes(note)
    assert resumed_from(four) == four / 'iter_120.pth'


@pytest.mark.parametrize('iteration, newest', [(119, 'iter_120.pth'), (121, 'epoch_3.pth')])
def test_checkpoints_of_both_kinds(four, iteration, newest):
    """Without a note, the one of more steps is the newest."""
    (four / 'last_checkpoint').unlink()
    training_state(four / 'epoch_3.pth', iteration)
    training_state(four / 'epoch_12.pth')
    truncate(four / 'epoch_12.pth')
    assert resumed_from(four) == four / newest


def test_names_and_folder_of_the_hook(tmp_path):
    """Checkpoints named by filename_tmpl, in the folder that MMEngine makes in out_dir."""
    hook = dict(type='CheckpointHook', filename_tmpl='step_{:03d}.ckpt', out_dir=str(tmp_path / 'out'))
    (tmp_path / 'out' / 'work').mkdir(parents=True)
    for i in (7, 1200):
        training_state(tmp_path / 'out' / 'work' / f'step_{i:03d}.ckpt')
    hooks = dict(default_hooks=dict(checkpoint=hook))
    assert resumed_from(tmp_path / 'work', **hooks) == tmp_path / 'out' / 'work' / 'step_1200.ckpt'
    with pytest.raises(InputError, match='step_007.ckpt'):
        check_unused(Config(dict(work_dir=str(tmp_path / 'work'), **hooks)))


def test_nothing_whole_is_an_error(four):
    """A new training would overwrite the checkpoints that the user wants to keep."""
    for path in four.glob('iter_*0.pth'):
        truncate(path)
    with pytest.raises(CheckpointError, match='iter_110.pth cannot be read.*iter_90.*nothing to resume from'):
        resumed_from(four)


def test_nothing_yet(tmp_path, log):
    """Without a checkpoint, --resume starts a new training, from the config's load_from, and the log says so."""
    cfg = Config(dict(work_dir=str(tmp_path / 'none'), load_from='weights.pth'))
    prepare_resume(cfg)
    assert cfg.resume is False and cfg.load_from == 'weights.pth'
    assert 'no checkpoint to resume from' in log[0]


@pytest.mark.parametrize('name', ['iter_20.pth', 'best_coco_mAP_epoch_3.pth', 'backbone_epoch_3.pth'])
def test_folder_of_another_training(tmp_path, name):
    """A training that starts anew, or in another folder, refuses to overwrite checkpoints."""
    cfg = Config(dict(work_dir=str(tmp_path)))
    (tmp_path / 'final.pth').touch()
    check_unused(cfg)
    (tmp_path / name).touch()
    with pytest.raises(InputError, match=f'{tmp_path} has checkpoints of another training, as {name}: .*--resume'):
        check_unused(cfg)
    (tmp_path / 'other').mkdir()
    training_state(tmp_path / 'other' / 'iter_1.pth')
    with pytest.raises(InputError, match=name):
        prepare_resume(cfg, str(tmp_path / 'other' / 'iter_1.pth'))


@pytest.mark.parametrize(
    'spoil, message',
    [
        (truncate, 'damaged'),
        (Path.unlink, 'there is no checkpoint'),
        (lambda path: torch.save({'state_dict': {}}, path), 'holds no state of a training'),  # as a best checkpoint
    ],
    ids=['damaged', 'absent', 'no state'],
)
def test_named_checkpoint_must_be_whole(four, spoil, message):
    """No other checkpoint is used instead."""
    spoil(four / 'iter_100.pth')
    with pytest.raises(CheckpointError, match=f'iter_100.pth.*{message}|{message}.*iter_100.pth'):
        prepare_resume(Config(dict(work_dir=str(four))), str(four / 'iter_100.pth'))


def sequence(*layers):
    model = Model()
    model.layers = nn.Sequential(*layers)
    return model


def wide():
    return sequence(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def optimizer(type='AdamW', lr=0.1, **others):
    return dict(optim_wrapper=dict(optimizer=dict(type=type, lr=lr), **others))


EMA = dict(custom_hooks=[dict(type='EMAHook')])


@pytest.fixture(scope='module')
def half_way(tmp_path_factory):
    """The state of a training after half of its steps."""
    folder = tmp_path_factory.mktemp('half')
    train(folder, steps=4)
    return folder / 'iter_4.pth'


@pytest.mark.parametrize(
    'changes, message',
    [
        (dict(model=wide), r'2 of its tensors are of another shape, .* layers.2.weight \(1, 4\) instead of'),
        (optimizer('RMSprop'), 'only one of its optimizer and that of the config has alpha'),
        (optimizer(paramwise_cfg=dict(bias_lr_mult=2)), 'its optimizer has 6 parameters in 1 groups, .* 6 in 6'),
        (dict(param_scheduler=None), 'it has 1 schedulers, the config 0'),
        (dict(param_scheduler=dict(type='ConstantLR', by_epoch=False)), r'param_scheduler 0 \(ConstantLR\) of the'),
        (EMA, 'it has no averaged model, and the config has EMAHook'),
    ],
)
def test_state_of_another_training(half_way, tmp_path, changes, message):
    """MMEngine would go on with untrained heads, or with the optimizer's state at other tensors."""
    changes = {**changes, 'model': changes.get('model', Model)()}
    with pytest.raises(CheckpointError, match=f'iter_4.pth is the state of another training: {message}.*load_from'):
        train(tmp_path, resume=str(half_way), **changes)
    assert not list(tmp_path.glob('*.pth'))


def test_averaged_model_is_resumed(tmp_path):
    """With EMAHook the weights in a checkpoint are averaged ones, so they cannot be resumed without it."""
    with pytest.raises(Killed):
        train(tmp_path / 'half', seed=1, killed=True, **EMA)
    resumed, whole = train(tmp_path / 'half', **EMA), train(tmp_path / 'whole', seed=1, **EMA)
    assert all(torch.equal(resumed[name], value) for name, value in whole.items())
    with pytest.raises(CheckpointError, match='it has an averaged model, and the config has no EMAHook'):
        train(tmp_path / 'other', resume=str(tmp_path / 'half' / 'iter_4.pth'))


def changed(path, target, change):
    """A copy of a checkpoint, with a change of its contents."""
    contents = torch.load(path, weights_only=False)
    change(contents)
    torch.save(contents, target)
    return str(target)


INT8 = {'layers.0.weight': torch.ones(4, 3, dtype=torch.int8)}


@pytest.mark.parametrize(
    'how, change, message',
    [
        (
            'resume',
            lambda c: c['optimizer']['state'][0].update(exp_avg=torch.ones(3, 4)),
            'exp_avg of its optimizer fi',
        ),
        ('resume', lambda c: c.update(optimizer=dict(a=c['optimizer'])), 'it has no state of a single optimizer'),
        ('resume', lambda c: c.update(param_schedulers=dict(a=[])), 'its schedulers are not those of the config'),
        ('resume', lambda c: c['state_dict'].move_to_end('layers.0.weight'), 'its tensors are in another order'),
        ('resume', lambda c: c['state_dict'].update({'layers.0.bias': 1}), 'layers.0.bias is of type int, not a'),
        # MMEngine would train from random weights, with a warning
        ('load_from', lambda c: c['state_dict'].update(INT8), 'layers.0.weight is int8 for float32'),
        ('load_from', lambda c: c['state_dict'].clear(), 'it has no tensor of Model'),
        ('load_from', lambda c: c['state_dict'].update({1: torch.ones(1)}), 'names of tensors must be text'),
    ],
)
def test_state_that_does_not_fit(half_way, tmp_path, how, change, message):
    """Of another model or optimizer, though names and shapes may be the same."""
    with pytest.raises(CheckpointError, match=message):
        train(tmp_path / 'work', **{how: changed(half_way, tmp_path / 'a.pth', change)})


def test_several_optimizers():
    """The state of each is compared with the optimizer of its name."""

    def wrappers(**sizes):
        optimizers = {key: torch.optim.SGD([nn.Parameter(torch.ones(n))], 0.1, 0.9) for key, n in sizes.items()}
        return OptimWrapperDict(**{key: OptimWrapper(one) for key, one in optimizers.items()})

    saved = wrappers(a=1, b=2)
    sum(wrapper.optimizer.param_groups[0]['params'][0].sum() for wrapper in saved.values()).backward()
    for wrapper in saved.values():
        wrapper.step()
    compare = functools.partial(resuming._difference_of_optimizers, saved.state_dict())
    assert compare(wrappers(a=1, b=2)) == ''
    assert compare(wrappers(a=1, b=3)) == 'momentum_buffer of its optimizer fits no parameter'
    assert compare(wrappers(a=1)) == 'its optimizers are not those of the config, a'


def test_names_of_wrappers(half_way, tmp_path):
    """torch.compile and DistributedDataParallel add to names; what they wrote is resumed."""

    def wrap(contents):
        weights = contents['state_dict']
        for name in list(weights):
            weights['module.module._orig_mod.' + name] = weights.pop(name)

    resumed = train(tmp_path / 'a', resume=changed(half_way, tmp_path / 'a.pth', wrap))
    plain = train(tmp_path / 'b', resume=str(half_way))
    assert all(torch.equal(resumed[name], value) for name, value in plain.items())


def test_code_in_the_config_of_a_state_is_not_run(half_way, tmp_path):
    """MMEngine runs meta["config"] as Python when it resumes."""
    code = f'open({str(tmp_path / "proof")!r}, "w")'
    train(tmp_path / 'work', resume=changed(half_way, tmp_path / 'a.pth', lambda c: c['meta'].update(config=code)))
    assert not (tmp_path / 'proof').exists()


def test_settings_that_the_state_overrides(half_way, tmp_path, capsys):
    """MMEngine takes learning rate and schedule from the checkpoint; the log says what of the config it leaves out."""
    schedule = dict(type='CosineAnnealingLR', by_epoch=False, T_max=20)
    train(tmp_path, resume=str(half_way), param_scheduler=schedule, **optimizer(lr=0.2))
    log = capsys.readouterr().out
    assert 'initial_lr=0.1 instead of 0.2' in log and 'T_max=8 instead of 20' in log and 'eta_min' not in log


@pytest.mark.parametrize('noted', [True, False])
def test_noted_settings_that_differ(tmp_path, capsys, noted):
    """Settings that no tensor shows, as the teacher of a distillation or the number of images, go on as in the config,
    and the log says so. Checkpoints of MMEngine's own hook note none."""

    class Noted(Model):
        training_note = dict(teacher='a', weight=1.0)

    class Fewer(Data):
        def load_data_list(self):
            return super().load_data_list()[:4]

    train(tmp_path, model=Noted(), steps=4)
    file = str(tmp_path / 'iter_4.pth')
    if not noted:
        changed(file, file, lambda c: c['meta'].pop('mmattn_training'))
    Noted.training_note = dict(teacher='b', weight=1.0, another=2)
    loader = dict(batch_size=2, num_workers=0, sampler=dict(type='InfiniteSampler'), dataset=Fewer())
    train(tmp_path, model=Noted(), resume=file, train_dataloader=loader)
    line = 'with other settings than those of the checkpoint: images=4 instead of 8, teacher=b instead of a\n'
    assert (line in capsys.readouterr().out) is noted


@pytest.mark.parametrize('by_epoch', [False, True])
def test_nothing_left_to_train(tmp_path, by_epoch):
    """A training that is complete may be resumed and ends at once; one that the config ends earlier is refused."""
    train(tmp_path, by_epoch)
    train(tmp_path, by_epoch)
    with pytest.raises(InputError, match='the training ends at .: raise max_(iters|epochs)'):
        train(tmp_path, by_epoch, steps=4)


def test_processes_start_from_one_step(tmp_path, monkeypatch):
    """A work folder that is not shared has a checkpoint on one machine only."""
    monkeypatch.setattr(resuming, 'all_gather_object', lambda step: [step, 4])
    with pytest.raises(InputError, match=r'start from different steps \(0, 4\)'):
        train(tmp_path)


def test_middle_of_an_epoch(tmp_path, capsys):
    """MMEngine trains the epoch again from its start, while the schedule goes on: the log says so."""
    settings = dict(by_epoch=True, seed=0, checkpoint=dict(by_epoch=False, interval=3))
    with pytest.raises(Killed):
        train(tmp_path, killed=True, **settings)  # after iter_3.pth, in epochs of 4 steps
    train(tmp_path, **settings)
    assert 'epoch 0 and step 3, but 0 epochs have 0 steps here' in capsys.readouterr().out


class Dilated(Backbone):
    """A backbone with a setting that its tensors do not show."""

    def __init__(self, dilation):
        super().__init__(channels=[4], out_indices=[0])
        self.settings = dict(dilation=dilation)
        self.linear = nn.Linear(3, 4)

    def stage_modules(self):
        return [[], [self.linear]]

    def forward(self, x):
        return self.linear(x)


def test_settings_of_backbones_are_compared(tmp_path):
    """A checkpoint has the settings of its backbones, by the names of the modules."""

    def model(dilation):
        return sequence(Dilated(dilation), nn.BatchNorm1d(4), nn.Linear(4, 1))

    train(tmp_path / 'a', steps=4, model=model(1))
    checkpoint = str(tmp_path / 'a' / 'iter_4.pth')
    noted = torch.load(checkpoint, weights_only=False)['meta']['mmattn']
    assert noted == {'layers.0': dict(type='Dilated', dilation=1)}
    for how in ('resume', 'load_from'):
        with pytest.raises(CheckpointError, match='iter_4.pth: .*dilation=1 instead of 2'):
            train(tmp_path / 'b', model=model(2), **{how: checkpoint})
    train(tmp_path / 'c', model=model(1), resume=checkpoint)


class Resizing(nn.Linear):
    """A layer that resizes weights as it loads them, as MMPretrain's ViT does with its table of positions."""

    def __init__(self):
        super().__init__(2, 2)
        self._register_load_state_dict_pre_hook(self.resize)

    def resize(self, weights, prefix, *_):
        weights[f'{prefix}weight'] = weights[f'{prefix}weight'][:2, :2]


def test_weights_that_a_model_resizes():
    """They are complete, although their shapes are not the model's."""
    model = nn.Sequential(Resizing(), nn.Linear(2, 1))
    weights = dict(model.state_dict(), **{'0.weight': torch.ones(3, 3)})
    check_complete(weights, model, 'a.pth')
    assert weights['0.weight'].shape == (3, 3)
    with pytest.raises(CheckpointError, match='the first being 1.weight'):
        check_complete(dict(weights, **{'1.weight': torch.ones(3, 3)}), model, 'a.pth')


def test_weights_that_a_model_renames():
    """They are complete in a checkpoint of MMPretrain's TimmClassifier, whose names are timm's."""
    kind = pytest.importorskip('mmpretrain.models').TimmClassifier
    model = kind(model_name='resnet10t', num_classes=2, loss=nn.CrossEntropyLoss())
    weights = model.state_dict()
    check_complete(weights, model, 'a.pth')
    del weights['fc.weight']
    with pytest.raises(CheckpointError, match='1 tensors that are not there, .* model.fc.weight'):
        check_complete(weights, model, 'a.pth')


class Teacher(Model):
    """A model that takes weights of its parts, as SoftTeacher does."""

    def _load_from_state_dict(self, weights, prefix, *others):
        for name in [name for name in weights if name.startswith('student.')]:
            weights[name.removeprefix('student.')] = weights.pop(name)
        super()._load_from_state_dict(weights, prefix, *others)


def test_weights_of_a_part(half_way, tmp_path):
    """A model that knows the names of its parts starts from them; another is refused. Heads may be of another shape."""

    def rename(contents):
        contents['state_dict'] = {f'student.{name}': value for name, value in contents['state_dict'].items()}

    start = changed(half_way, tmp_path / 'a.pth', rename)
    with pytest.raises(CheckpointError, match='it has no tensor of Model'):
        train(tmp_path / 'b', load_from=start)
    train(tmp_path / 'c', model=Teacher(), load_from=start)
    weights = train(tmp_path, steps=2, model=wide(), load_from=str(half_way), **optimizer(lr=0.0, type='SGD'))
    assert torch.equal(
        weights['layers.0.weight'], torch.load(half_way, weights_only=False)['state_dict']['layers.0.weight']
    )


class Parts(Model):
    """A model with a backbone and one other part, of a given name."""

    def __init__(self, part):
        super().__init__()
        self.backbone = self.layers
        self.add_module(part, nn.Linear(1, 1))
        del self.layers

    def forward(self, x, mode='tensor'):
        return dict(loss=self.backbone(torch.stack(x)).square().mean())


def test_classifier_to_start_a_detector_from(tmp_path):
    """load_from would take the backbone and leave neck and heads at random: init_cfg says that this is meant."""
    train(tmp_path / 'a', steps=2, model=Parts('head'))
    checkpoint = str(tmp_path / 'a' / 'iter_2.pth')
    with pytest.raises(CheckpointError, match='iter_2.pth is of another model than Parts, .* model.backbone.init_cfg='):
        train(tmp_path / 'b', steps=2, model=Parts('roi_head'), load_from=checkpoint)
    train(tmp_path / 'c', steps=2, model=Parts('head'), load_from=checkpoint)


def loaded(checkpoint, **attributes):
    """Call the hook as MMEngine does when it has read a checkpoint."""
    runner = dict(model=Model(), _load_from='a.pth', _resume=False, _train_loop=None)
    weights = dict(state_dict=Model().state_dict())
    CheckpointCheckHook().after_load_checkpoint(SimpleNamespace(**{**runner, **attributes}), {**weights, **checkpoint})


def test_tested_weights_are_complete():
    """MMEngine would test a model with random values where the checkpoint has none."""
    loaded({})
    weights = Model().state_dict()
    del weights['layers.0.weight']
    with pytest.raises(CheckpointError, match='Model has 1 tensors that are not there'):
        loaded(dict(state_dict=weights))


def loop_of(*classes):
    loop = object.__new__(ValLoop)
    dataset = BaseDataset(serialize_data=False, lazy_init=True, metainfo=dict(classes=classes))
    loop.dataloader = SimpleNamespace(dataset=RepeatDataset(dataset, 2, lazy_init=True))
    return loop


CATS_AND_DOGS = dict(meta=dict(dataset_meta=dict(classes=['cat', 'dog'])))


@pytest.mark.parametrize('resume, split', [(False, 'test'), (True, 'train')])
def test_classes_of_a_checkpoint_in_another_order(resume, split):
    """The labels of the model would be other classes than those of the dataset that is tested or learned."""
    with pytest.raises(InputError, match=f'a.pth and {split}_dataloader have classes in different orders'):
        loaded(CATS_AND_DOGS, _resume=resume, **{f'_{split}_loop': loop_of('dog', 'cat')})


@pytest.mark.parametrize('classes, lines', [(('dog', 'cat'), 1), (('dog', 'cow'), 0)])
def test_classes_of_a_new_training_in_another_order(log, classes, lines):
    """It may learn other classes than those of load_from. The same in another order are probably a mistake."""
    loaded(CATS_AND_DOGS, _train_loop=loop_of(*classes))
    assert len([line for line in log if 'a.pth has the classes of train_dataloader in another order' in line]) == lines


def test_weights_of_another_model_for_a_sharded_training():
    """FSDP would train from initial weights, without a word."""
    runner = object.__new__(FlexibleRunner)
    runner.model, runner._load_from, runner._resume = Model(), 'a.pth', False
    hook = CheckpointCheckHook()
    hook.after_load_checkpoint(runner, dict(state_dict=Model().state_dict()))
    with pytest.raises(CheckpointError, match='a.pth is of another model: it has no tensor of Model'):
        hook.after_load_checkpoint(runner, dict(state_dict={'encoder.weight': torch.ones(2)}))
