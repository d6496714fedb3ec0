"""What a run writes has no secrets, and the run itself has them."""

import functools
import http.server
import logging
import threading

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import DATASETS, MODELS

from mmguard.runs.running import run_tool, train
from mmguard.runs.written import WrittenConfig, without_secrets_factory

from .small_training import Data, Model


@pytest.fixture
def address(tmp_path):
    """A signed address, with a login, of the weights of a model. The server wants the signature."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self):
            return super().do_GET() if self.path.endswith('?X-Amz-Signature=0f0f') else self.send_error(403)

        log_message = lambda *_: None  # noqa: E731

    (tmp_path / 'server').mkdir()
    torch.save(dict(state_dict=Model().state_dict()), tmp_path / 'server' / 'w.pth')
    handler = functools.partial(Handler, directory=tmp_path / 'server')
    with http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f'http://127.0.0.1:{server.server_port}/w.pth?X-Amz-Signature=0f0f'
        server.shutdown()


def test_run(address, tmp_path, monkeypatch, capfd):
    """A training starts from a signed address, and resumes. Log, written config, checkpoints and screen do not have the
    signature, and no token of a setting; an ordinary address stays."""
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path / 'hub'))
    for registry, kind in ((MODELS, Model), (DATASETS, Data)):
        registry.register_module(f'WrittenBy{kind.__name__}', force=True, module=kind)
    sampler, dataset = dict(type='InfiniteSampler'), dict(type='WrittenByData')
    folder = tmp_path / 'work'

    def config(steps):
        loader = dict(batch_size=2, num_workers=0, sampler=sampler, dataset=dataset)
        settings = dict(
            model=dict(type='WrittenByModel'),
            work_dir=str(folder),
            launcher='none',
            train_dataloader=loader,
            train_cfg=dict(by_epoch=False, max_iters=steps),
            optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.1)),
            default_hooks=dict(checkpoint=dict(type='AtomicCheckpointHook', by_epoch=False, interval=2)),
            load_from=address,
            service=dict(api_key='0f0f', page='https://a.b/c?download=1'),
        )
        (tmp_path / 'small.py').write_text('')
        return Config(settings, filename=str(tmp_path / 'small.py'))

    run_tool(lambda: train(config(2)))
    run_tool(lambda: train(config(4), resume='auto'))
    files = [file for file in folder.rglob('*') if file.is_file()]
    assert {'small.py', 'iter_4.pth', 'config.py'} <= {file.name for file in files}
    assert sum(file.suffix == '.log' for file in files) >= 1
    for file in files:
        assert b'0f0f' not in file.read_bytes(), file
    shown = capfd.readouterr()
    assert '0f0f' not in shown.out + shown.err and '/w.pth?***' in shown.out + shown.err
    written = Config.fromfile(folder / 'small.py')
    assert written.service == dict(api_key='***', page='https://a.b/c?download=1')
    assert torch.load(folder / 'iter_4.pth', weights_only=False)['meta']['iter'] == 4


def test_values_stay(tmp_path):
    """What is built from a written config has the secrets, also from a copy of it; a file of JSON has none."""
    cfg = WrittenConfig.of(Config(dict(a=['https://me:pass@a.b/c'], token='0f')))
    assert cfg.copy().a == ['https://me:pass@a.b/c'] and cfg.token == '0f'
    cfg.dump(tmp_path / 'c.json')
    assert Config.fromfile(tmp_path / 'c.json').to_dict() == dict(a=['https://***@a.b/c'], token='***')


def test_log_of_a_wrong_format():
    """It is still a record, which logging reports as ever, and no error of the run."""
    make = without_secrets_factory(logging.LogRecord)
    assert make('a', 20, 'f', 1, '%d of ?sig=0f', ('x',), None).args == ('x',)
    assert make('a', 20, 'f', 1, 'from %s', ('https://a.b/c?sig=0f',), None).getMessage() == 'from https://a.b/c?***'
