import contextlib
import hashlib
import http.server
import io
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import safetensors.torch
import torch
from huggingface_hub import constants as hub_constants

from mmattn.weights import CheckpointError, downloads, read_checkpoint, read_file
from tests.weights.test_files import WEIGHTS, Call


def packed(contents):
    torch.save(contents, buffer := io.BytesIO())
    return buffer.getvalue()


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """A function that starts a server of answers by path, and returns its address. An answer is the body; the length
    that the server says, None if it is true; and what it sends every tenth of a second after that. The list ``asked``
    of the function has the requests. The Hub's headers are there."""
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path / 'hub'))
    monkeypatch.setattr(downloads, 'PATIENCE', 0.3)
    servers, asked, over = [], [], threading.Event()

    def start(answers):
        class Handler(http.server.BaseHTTPRequestHandler):
            def handle(self):
                with contextlib.suppress(OSError):  # the other side has gone
                    super().handle()

            def do_GET(self, head=False):
                asked.append(f'{self.command} {self.path}')
                if self.path not in answers:
                    self.send_response(404)
                    self.send_header('X-Error-Code', 'EntryNotFound')  # of the Hub
                    self.send_header('Content-Length', '0')
                    return self.end_headers()
                body, length, drop = (*answers[self.path], b'')[:3]
                if length != 'never':
                    self.send_response(200)
                    self.send_header('Content-Length', str(len(body) if length is None else length))
                    self.send_header('ETag', f'"{hashlib.sha256(body).hexdigest()}"')
                    self.send_header('X-Repo-Commit', 'c' * 40)
                    self.end_headers()
                    if not head:
                        self.wfile.write(body)
                for _ in range(50 if length in ('never', 10**6) and not head else 0):
                    if not over.wait(0.1):
                        self.wfile.write(drop)

            def do_HEAD(self):
                self.do_GET(head=True)

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs=dict(poll_interval=0.01), daemon=True).start()
        return f'http://127.0.0.1:{server.server_port}'

    start.asked = asked
    yield start
    over.set()
    for server in servers:
        server.shutdown()
        server.server_close()


def test_addresses_are_read_like_files(tmp_path, monkeypatch, serve):
    """Downloads pass the same checks as files; names of torchvision are translated to addresses."""
    evil = packed({'state_dict': Call(open, str(tmp_path / 'proof'), 'w')})
    address = serve({'/good.pth': (packed({'state_dict': WEIGHTS}), None), '/evil.pth': (evil, None)})
    monkeypatch.setattr('mmengine.runner.checkpoint.get_torchvision_models', lambda: {'r': f'{address}/good.pth'})
    for good in (f'{address}/good.pth', 'torchvision://r'):
        assert read_checkpoint(good)[0].keys() == WEIGHTS.keys()
    for bad, message in (
        (f'{address}/evil.pth', 'code in a file is not run'),
        (f'{address}/no.pth', 'cannot be downloaded .*404'),
        ('torchvision://no', 'no weights no'),
        ('s3://there/good.pth', 'download the file'),
    ):
        with pytest.raises(CheckpointError, match=message):
            read_checkpoint(bad)
    assert not (tmp_path / 'proof').exists()


@pytest.mark.parametrize(
    'answer, message',
    [
        ((b'', 'never'), 'cannot be downloaded .*timed out'),
        ((packed(WEIGHTS)[:100], 10**6), 'cannot be downloaded .*timed out'),
        ((packed(WEIGHTS)[:100], 10**6, b'x'), 'the server sends less than 1 kB per second'),
        ((packed(WEIGHTS)[:-100], len(packed(WEIGHTS))), r'the server sent \d+ of \d+ bytes'),
        ((packed(WEIGHTS)[:-100], None), 'it is cut short or damaged'),
        ((b'<html>log in</html>', None), 'it is a web page'),
        ((b'', None), 'it is empty'),
        ((packed({'a': torch.tensor([float('nan')])}), None), 'has NaN in a'),
    ],
    ids=['silent', 'stalls', 'drips', 'ends early', 'cut', 'page', 'empty', 'NaN'],
)
def test_bad_answers_are_not_kept(tmp_path, serve, answer, message):
    """A server that is silent, or sends something else, is named, and asked again the next time."""
    answers = {'/c.pth': answer}
    address = f'{serve(answers)}/c.pth'
    with pytest.raises(CheckpointError, match=message) as error:
        read_file(address)
    assert address in str(error.value) and not list(tmp_path.rglob('*.pth'))
    answers['/c.pth'] = packed(WEIGHTS), None
    assert read_file(address).keys() == WEIGHTS.keys()


def test_downloads_of_one_file_name(tmp_path, serve):
    """Two addresses that end in the same name are two files, each downloaded once. A name with a checksum, which a date
    is not, is compared with it. A kept file that is broken is named."""
    first, second = (packed({'a': torch.full((1,), number)}) for number in (1.0, 2.0))
    named = f'c-{hashlib.sha256(first).hexdigest()[:8]}.pth'
    answers = {f'/{name}': (first, None) for name in ('c.pth', named, 'c-20240131.pth', 'c-0123abcd.pth')}
    here, there = serve(answers), serve({'/c.pth': (second, None)})
    addresses = [f'{here}/c.pth', f'{there}/c.pth', f'{here}/{named}', f'{here}/c-20240131.pth']
    for _ in range(2):
        assert [read_file(address)['a'].item() for address in addresses] == [1, 2, 1, 1]
        answers.pop('/c.pth', None)
    with pytest.raises(CheckpointError, match=r'its SHA-256 is \w{64}, but its name says 0123abcd'):
        read_file(f'{here}/c-0123abcd.pth')
    kept = tmp_path / 'hub' / 'checkpoints' / named  # where torch.hub and torchvision keep it
    kept.write_bytes(b'broken')
    with pytest.raises(CheckpointError, match=f'It is kept as {kept}: remove this file to download it again'):
        read_file(f'{here}/{named}')


def test_processes_share_a_download(serve):
    """Of several processes that want a file, one downloads it and the others wait."""
    body = packed({'a': torch.zeros(10**6)})
    address = f'{serve({"/c.pth": (body, None)})}/c.pth'
    with ThreadPoolExecutor(3) as pool:
        assert all('a' in contents for contents in pool.map(read_file, [address] * 3))
    assert serve.asked == ['GET /c.pth']


@pytest.mark.parametrize('is_terminal', [True, False])
def test_progress(serve, capsys, monkeypatch, is_terminal):
    """A terminal shows a bar with the name of the file; a log file has none."""
    address = serve({'/c.pth': (packed(WEIGHTS), None)})
    monkeypatch.setattr(sys.stderr, 'isatty', lambda: is_terminal, raising=False)
    read_file(f'{address}/c.pth')
    assert ('c.pth: 100%' in capsys.readouterr().err) == is_terminal


@pytest.fixture
def hub(tmp_path, monkeypatch, serve):
    """A function that starts a Hub with files by OWNER/NAME/FILE."""
    monkeypatch.setattr(hub_constants, 'HF_HUB_CACHE', str(tmp_path / 'hub'))
    monkeypatch.setattr(hub_constants, 'HF_HUB_OFFLINE', False)

    def start(files):
        address = serve({f'/{Path(name).parent}/resolve/main/{Path(name).name}': (files[name], None) for name in files})
        monkeypatch.setattr(hub_constants, 'ENDPOINT', address)
        template = address + '/{repo_id}/resolve/{revision}/{filename}'
        monkeypatch.setattr(hub_constants, 'HUGGINGFACE_CO_URL_TEMPLATE', template)

    return start


TIMM = 'timm:swin_tiny_patch4_window7_224.ms_in1k'
REPOSITORY = TIMM.replace(':', '/')


@pytest.mark.parametrize('file', ['model.safetensors', 'pytorch_model.bin'])
def test_names_of_timm(hub, serve, monkeypatch, log, file):
    """A name of timm is looked up on the Hub, safetensors first, and downloaded once. Later it is read without a
    network. timm's default is taken if the name has no tag; the log says what it is."""
    body = safetensors.torch.save(WEIGHTS) if file.endswith('safetensors') else packed(WEIGHTS)
    hub({f'{REPOSITORY}/pytorch_model.bin': b'old', f'{REPOSITORY}/{file}': body})
    for source in (TIMM, TIMM.removesuffix('.ms_in1k'), f'hf://{REPOSITORY}', f'hf://{REPOSITORY}@main/{file}'):
        assert read_checkpoint(source)[0].keys() == WEIGHTS.keys()
    assert [request for request in serve.asked if request.startswith('GET /timm')] == [
        f'GET /{REPOSITORY}/resolve/main/{file}'
    ]
    assert any(f'{TIMM.removesuffix(".ms_in1k")} is hf://{REPOSITORY}' in line for line in log)
    monkeypatch.setattr(hub_constants, 'HF_HUB_OFFLINE', True)
    assert read_checkpoint(TIMM)[0].keys() == WEIGHTS.keys()


def test_the_hub_is_not_reached(hub, monkeypatch):
    """One sentence has the address of the file. It says the same of a file that is not there."""
    hub({})
    message = rf'http.*/{REPOSITORY}/resolve/main/model.safetensors cannot be downloaded .* give its path$'
    for offline in (False, True):
        monkeypatch.setattr(hub_constants, 'HF_HUB_OFFLINE', offline)
        with pytest.raises(CheckpointError, match=message):
            read_file(TIMM)
    with pytest.raises(CheckpointError, match='hf://timm names no model on the Hub'):
        read_file('hf://timm')
    monkeypatch.setitem(sys.modules, 'huggingface_hub', None)
    with pytest.raises(CheckpointError, match='pip install huggingface_hub'):
        read_file(TIMM)


def test_files_of_the_hub_are_whole(hub, serve, tmp_path, log):
    """A file in the Hub's folder that was changed or cut is downloaded again: safetensors have no checksum."""
    hub({f'{REPOSITORY}/model.safetensors': safetensors.torch.save(WEIGHTS)})
    read_file(TIMM)
    [kept] = tmp_path.rglob('model.safetensors')
    body = bytearray(kept.read_bytes())
    body[-1] ^= 1
    kept.resolve().write_bytes(body)
    assert torch.equal(read_file(TIMM)['b.bias'], WEIGHTS['b.bias'])
    assert any('it is downloaded again' in line for line in log)
