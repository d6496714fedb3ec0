import contextlib
import functools
import hashlib
import http.server
import io
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import safetensors.torch
import torch
from filelock import FileLock
from huggingface_hub import constants as hub_constants

from mmattn.backbones import ViTFrame
from mmattn.weights import CheckpointError, downloads, read_checkpoint, read_file
from mmattn.weights.downloads import from_hub
from tests.weights.test_files import WEIGHTS, Call

COMMIT = 'c' * 40


def packed(contents):
    torch.save(contents, buffer := io.BytesIO())
    return buffer.getvalue()


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """A function that starts a server of answers by path, and returns its address. An answer is the body; the length
    that the server says, None if it is true; what it sends every tenth of a second after that; and headers. The list
    ``asked`` of the function has the requests. The Hub's headers are there."""
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
                body, length, drop, headers = (*answers[self.path], *(b'', {})[len(answers[self.path]) - 2 :])
                if length != 'never':
                    headers = {
                        'Content-Length': str(len(body) if length is None else length),
                        'ETag': f'"{hashlib.sha256(body).hexdigest()}"',
                        'X-Repo-Commit': COMMIT,
                        **headers,
                    }
                    self.send_response(302 if 'Location' in headers else 200)
                    for header in headers.items():
                        self.send_header(*header)
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
        ((packed(WEIGHTS)[:100], 10**6, b'x'), 'the server sends less than 1 kB per second'),
        ((b'', None, b'', {'Location': '/c.pth'}), 'cannot be downloaded .* would lead to an infinite loop'),
        ((packed(WEIGHTS)[:-100], len(packed(WEIGHTS))), r'the server sent \d+ of \d+ bytes'),
        ((packed(WEIGHTS)[:-100], None), 'it is cut short or damaged'),
    ],
    ids=['silent', 'drips', 'redirects to itself', 'ends early', 'cut'],
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
    """Two addresses that end in the same name are two files, each downloaded once. A query is part of an address, and
    the scheme may have capitals."""
    first, second, third = (packed({'a': torch.full((1,), number)}) for number in (1.0, 2.0, 3.0))
    answers = {'/c.pth': (first, None), '/c.pth?v=3': (third, None)}
    here, there = serve(answers), serve({'/c.pth': (second, None)})
    addresses = [f'{here}/c.pth', f'{there}/c.pth', f'{here}/c.pth?v=3', f'{here}/c.pth'.replace('http', 'HTTP')]
    for _ in range(2):
        assert [read_file(address)['a'].item() for address in addresses] == [1, 2, 3, 1]
        answers.clear()


def test_checksums_in_names(tmp_path, serve):
    """A name with a checksum, as torchvision and OpenMMLab write it, is compared with the file after the download, and
    again when it is read: other programs keep their downloads there unchecked."""
    body, other = (packed({'a': torch.full((1,), number)}) for number in (1.0, 2.0))
    digest = hashlib.sha256(body).hexdigest()
    names = [f'c-{digest[:8]}.pth', f'c_20200131-{digest[:10]}.pth', f'c-20240131-{digest}.pth']
    here = serve({f'/{name}': (body, None) for name in (*names, 'c-0123abcd.pth')})
    for name in names:
        assert read_file(f'{here}/{name}')['a'] == 1
        kept = tmp_path / 'hub' / 'checkpoints' / name  # where torch.hub and torchvision keep it
        kept.write_bytes(other)
        message = rf'its SHA-256 is \w{{64}}, but its name says .*It is kept as {kept}: remove this file to download it'
        with pytest.raises(CheckpointError, match=message):
            read_file(f'{here}/{name}')
    with pytest.raises(CheckpointError, match=r'its SHA-256 is \w{64}, but its name says 0123abcd'):
        read_file(f'{here}/c-0123abcd.pth')


@pytest.mark.parametrize('name', ['iter-00080000.pth', 'c-20240131b.pth', 'c-550e8400-e29b-41d4-a716-44665544abcd.pth'])
def test_dates_and_counters_are_no_checksums(serve, name):
    """They are not compared, and files of several addresses are kept apart."""
    addresses = [f'{serve({f"/{name}": (packed({"a": torch.tensor(i)}), None)})}/{name}' for i in range(2)]
    for _ in range(2):
        assert [read_file(address)['a'] for address in addresses] == [0, 1]


def test_secrets_in_addresses(serve, log):
    """The query of a signed address and a password are neither in the log nor in a sentence. A password is not sent."""
    query = '?X-Amz-Signature=53cret'
    address = serve({f'/c.pth{query}': (packed(WEIGHTS), None)})
    backbone = ViTFrame(arch=dict(embed_dim=8, depth=1, num_heads=1), img_size=32)
    with_password = f'{address}/c.pth'.replace('//', '//me:53cret@')
    for load, bad, message in (
        (backbone.load_pretrained, f'{address}/c.pth{query}', r'/c.pth\?\*\*\*: '),
        (functools.partial(read_checkpoint, prefix='x'), f'{address}/c.pth{query}', r'/c.pth\?\*\*\* holds no weights'),
        (read_file, f'{address}/no.pth{query}', r'/no.pth\?\*\*\* cannot be downloaded'),
        (read_file, with_password, '/c.pth has a user or a password'),
    ):
        with pytest.raises(CheckpointError, match=message) as error:
            load(bad)
        assert '53cret' not in str(error.value)
    assert any('downloading' in line for line in log) and not any('53cret' in line for line in log)


def test_disk_that_cannot_keep_a_download(tmp_path, monkeypatch, serve):
    """A full disk and a folder that cannot be made are named, and nothing is left."""
    address = f'{serve({"/c-0123abcd.pth": (packed(WEIGHTS), None)})}/c-0123abcd.pth'
    folder = tmp_path / 'hub' / 'checkpoints'
    folder.mkdir(parents=True)
    (folder / '.part.c-0123abcd.pth').symlink_to('/dev/full')
    with pytest.raises(CheckpointError, match=f'cannot be kept in {folder} .*No space left.* set TORCH_HOME'):
        read_file(address)
    assert not list(folder.glob('*.pth'))
    (tmp_path / 'file').touch()
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path / 'file'))
    with pytest.raises(CheckpointError, match=f'cannot be kept in {tmp_path / "file"}/checkpoints .*Not a directory'):
        read_file(address)


def test_leftovers_of_killed_processes(tmp_path, serve):
    """The next download removes them, but not the unfinished files of processes that run."""
    folder = tmp_path / 'hub' / 'checkpoints'
    left, running = folder / '0123' / '.part.a.pth', folder / '4567' / '.part.b.pth'
    for part in (left, running):
        part.parent.mkdir(parents=True)
        part.touch()
    with FileLock(running.with_name('.b.pth.lock')):
        read_file(f'{serve({"/c.pth": (packed(WEIGHTS), None)})}/c.pth')
    assert not left.exists() and running.exists()


def test_lock_that_another_process_holds(tmp_path, monkeypatch, serve, log):
    """The log says what is waited for, and a sentence ends it if that process does nothing."""
    monkeypatch.setattr(downloads, 'LOCK_PATIENCE', 0.05)
    folder = tmp_path / 'hub' / 'checkpoints'
    folder.mkdir(parents=True)
    lock = folder / '.c-0123abcd.pth.lock'
    address = f'{serve({})}/c-0123abcd.pth'
    with (
        FileLock(lock),
        pytest.raises(CheckpointError, match=f'another process holds {lock} and has downloaded nothing'),
    ):
        read_file(address)
    assert f'waiting for another process, which downloads {address} and holds {lock}' in log
    assert serve.asked == []


def test_waiting_for_a_long_download(tmp_path, monkeypatch):
    """It goes on as long as the other process writes."""
    monkeypatch.setattr(downloads, 'LOCK_PATIENCE', 0.05)
    part, lock = tmp_path / 'part', FileLock(tmp_path / 'lock')
    held = FileLock(lock.lock_file)
    held.acquire()

    def written():
        with part.open('ab') as file:
            file.write(b'.')
        if part.stat().st_size == 4:
            held.release()
        return [part]

    downloads._acquire(lock, written, 'it')
    assert lock.is_locked
    lock.release()


def test_processes_share_a_download(serve):
    """Of several processes that want a file, one downloads it and the others wait."""
    body = packed({'a': torch.zeros(10**6)})
    address = f'{serve({"/c.pth": (body, None)})}/c.pth'
    with ThreadPoolExecutor(3) as pool:
        assert all('a' in contents for contents in pool.map(read_file, [address] * 3))
    assert serve.asked == ['GET /c.pth']


def test_progress(serve, capsys, monkeypatch):
    """A terminal shows a bar with the name of the file; a log file has none."""
    for name, is_terminal in (('a.pth', True), ('b.pth', False)):
        address = serve({f'/{name}': (packed(WEIGHTS), None)})
        monkeypatch.setattr(sys.stderr, 'isatty', lambda is_terminal=is_terminal: is_terminal, raising=False)
        read_file(f'{address}/{name}')
        assert (f'{name}: 100%' in capsys.readouterr().err) == is_terminal


@pytest.fixture
def hub(tmp_path, monkeypatch, serve):
    """A function that starts a Hub with files by OWNER/NAME/FILE, in a revision. Headers are for all answers."""
    monkeypatch.setattr(hub_constants, 'HF_HUB_CACHE', str(tmp_path / 'hub'))
    monkeypatch.setattr(hub_constants, 'HF_HUB_OFFLINE', False)

    def start(files, revision='main', **headers):
        answers = {}
        for name, body in files.items():
            owner, repository, file = name.split('/', 2)
            answers[f'/{owner}/{repository}/resolve/{revision}/{file}'] = (body, None, b'', headers)
        address = serve(answers)
        monkeypatch.setattr(hub_constants, 'ENDPOINT', address)
        template = address + '/{repo_id}/resolve/{revision}/{filename}'
        monkeypatch.setattr(hub_constants, 'HUGGINGFACE_CO_URL_TEMPLATE', template)
        return answers

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


def test_no_network(hub, monkeypatch):
    """The sentence comes at once, and what was downloaded is read. huggingface_hub would try for a minute."""
    hub({'o/r/pytorch_model.bin': packed(WEIGHTS)})
    read_file('hf://o/r')
    nobody = 'http://127.0.0.1:9'
    monkeypatch.setattr(hub_constants, 'ENDPOINT', nobody)
    monkeypatch.setattr(
        hub_constants, 'HUGGINGFACE_CO_URL_TEMPLATE', nobody + '/{repo_id}/resolve/{revision}/{filename}'
    )
    monkeypatch.setattr('time.sleep', lambda _: pytest.fail('it tries again'))
    with pytest.raises(CheckpointError, match='model.safetensors cannot be downloaded .*refused.* give its path$'):
        read_file(TIMM)
    assert read_file('hf://o/r').keys() == WEIGHTS.keys()


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


def test_wrong_files_of_the_hub_are_not_kept(hub, tmp_path, log):
    """A file whose SHA-256 is wrong after the second download, too, is refused. What is right is asked for again."""
    name, body = f'{REPOSITORY}/model.safetensors', safetensors.torch.save(WEIGHTS)
    answers = hub({name: body}, ETag=f'"{"0" * 64}"')
    with pytest.raises(CheckpointError, match=r'model.safetensors cannot be downloaded .*another SHA-256 than the Hub'):
        read_file(TIMM)
    assert any('it is downloaded again' in line for line in log)
    assert not [*tmp_path.rglob('blobs/*'), *tmp_path.rglob('model.safetensors')]
    answers.update(dict.fromkeys(answers, (body, None)))
    assert read_file(TIMM).keys() == WEIGHTS.keys()


@pytest.mark.parametrize(
    'address, revision, file',
    [
        ('o/r@refs/pr/12', 'refs%2Fpr%2F12', 'pytorch_model.bin'),
        ('o/r@work%2Fnew/folder/w.pth', 'work%2Fnew', 'folder/w.pth'),
        ('o/r/folder/', 'main', 'folder/pytorch_model.bin'),
    ],
    ids=['pull request', 'branch', 'folder'],
)
def test_revisions_and_folders_of_the_hub(hub, address, revision, file):
    """A revision may have a slash, in the forms that huggingface_hub has; files may be in folders."""
    hub({f'o/r/{file}': packed(WEIGHTS)}, revision)
    for scheme in ('hf', 'HF'):
        assert read_file(f'{scheme}://{address}').keys() == WEIGHTS.keys()


@pytest.mark.parametrize('address', ['o/r@..%2F..%2Fx/w.pth', 'o/r/../../w.pth', 'o/r@/w.pth'])
def test_addresses_that_leave_the_repository(hub, serve, address):
    """They are refused before the Hub is asked."""
    hub({})
    with pytest.raises(CheckpointError, match='names no model on the Hub'):
        read_file(f'hf://{address}')
    assert serve.asked == []


def test_weights_in_several_files(hub, serve):
    """All files that an index names are downloaded, of the commit that the index is of."""
    parts = {'a.safetensors': {'a.weight': torch.ones(1)}, 'b.safetensors': {'b.weight': torch.zeros(1)}}
    index = json.dumps(dict(weight_map={'a.weight': 'a.safetensors', 'b.weight': 'b.safetensors'})).encode()
    answers = hub({'o/r/x/model.safetensors.index.json': index})
    for name, tensors in parts.items():
        answers[f'/o/r/resolve/{COMMIT}/x/{name}'] = (safetensors.torch.save(tensors), None)
    assert read_file('hf://o/r/x/') == {'a.weight': 1, 'b.weight': 0}
    del answers[f'/o/r/resolve/{COMMIT}/x/b.safetensors']
    with pytest.raises(CheckpointError, match='x/b.safetensors cannot be downloaded'):
        from_hub('hf://o/r/x/', force_download=True)


def test_lock_in_the_folder_of_the_hub(hub, tmp_path, monkeypatch, serve, log):
    """huggingface_hub waits for it without end and a word. Here the log says it, and a sentence ends it; what is there
    already is read."""
    monkeypatch.setattr(downloads, 'LOCK_PATIENCE', 0.05)
    hub({'o/r/there.pth': packed(WEIGHTS)})
    read_file('hf://o/r/there.pth')
    lock = tmp_path / 'hub' / '.locks' / 'models--o--r' / f'{"0" * 64}.lock'
    with FileLock(lock):
        assert read_file('hf://o/r/there.pth').keys() == WEIGHTS.keys()
        with pytest.raises(CheckpointError, match='cannot be downloaded'):
            from_hub('hf://o/r/w.pth', local_files_only=True)
        for file, options in (('w.pth', {}), ('there.pth', dict(force_download=True))):
            with pytest.raises(CheckpointError, match=f'another process holds {lock} and has downloaded nothing'):
                from_hub(f'hf://o/r/{file}', **options)
    assert f'waiting for another process, which downloads hf://o/r/w.pth and holds {lock}' in log


def test_options_of_the_hub(hub, tmp_path, monkeypatch):
    """The token and the folder reach huggingface_hub, and local_files_only asks no server."""
    hub({'o/r/w.pth': packed(WEIGHTS)})
    found = from_hub('hf://o/r/w.pth', cache_dir=tmp_path / 'mine', token='hf_mine')
    assert found.is_relative_to(tmp_path / 'mine')
    monkeypatch.setattr(hub_constants, 'ENDPOINT', 'http://127.0.0.1:9')
    assert from_hub('hf://o/r/w.pth', cache_dir=tmp_path / 'mine', local_files_only=True) == found
    with pytest.raises(CheckpointError, match='w.pth cannot be downloaded'):
        from_hub('hf://o/r/w.pth', cache_dir=tmp_path / 'other', local_files_only=True)
