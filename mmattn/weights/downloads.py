"""Downloads of checkpoints, each once: to the folder of torch.hub, or for the Hugging Face Hub to the Hub's folder.

A file is used only when it is complete. Its SHA-256 is compared where the server or the name of the file has it.
"""

import hashlib
import http.client
import io
import os
import re
import socket
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import torch
from filelock import FileLock, Timeout
from mmengine.dist import is_main_process
from mmengine.logging import print_log
from tqdm import tqdm

from ..errors import CheckpointError, describe, warn
from ..privacy import without_secrets
from .shards import files_of_index, is_index

#: the beginning of a file's SHA-256 at the end of its name, as torchvision, timm and OpenMMLab write it. What begins
#: with eight decimal digits is a date or a counter, and what follows two groups of four digits is part of a UUID
CHECKSUM = re.compile(r'(?<!-[0-9a-f]{4}-[0-9a-f]{4})-(?!\d{8})([0-9a-f]{8,})\.')
#: an address on the Hub; a slash in the name of a revision is written %2F, but not in these two kinds
HUB = re.compile(r'hf://([\w.-]+/[\w.-]+)(?:@(refs/pr/\d+|refs/convert/\w+|[^/]+))?(?:/(.*))?')
#: files of weights on the Hub, in the order in which they are looked for
HUB_FILES = tuple(
    f'{name}{index}' for name in ('model.safetensors', 'pytorch_model.bin') for index in ('', '.index.json')
)
#: seconds to wait for a server that sends nothing
PATIENCE = 60
#: seconds to wait for another process that downloads the same file, as long as its file does not grow
LOCK_PATIENCE = 600


def from_server(address: str, read: Callable[[Path], object]) -> object:
    """The contents of a file at an address http(s)://..., which is downloaded if it was not before.

    Args:
        read: reads a file; what it refuses is not kept.

    Raises:
        CheckpointError: if it cannot be downloaded, has another checksum than its name says, or cannot be read.
    """
    shown, parts = shortened(address), urllib.parse.urlsplit(address)
    if parts.scheme not in ('http', 'https'):
        raise CheckpointError(f'{shown} cannot be read without running code: download the file and give its path')
    if '@' in parts.netloc:
        raise CheckpointError(f'{shown} has a user or a password, which are not sent: download it and give its path')
    name = Path(parts.path).name
    if name in ('', '..'):
        raise CheckpointError(f'{shown} names no file: give the address of the file itself')
    folder, checksum = Path(torch.hub.get_dir(), 'checkpoints'), CHECKSUM.search(name)
    if not checksum:  # Files of several addresses may have one name.
        folder /= hashlib.sha256(address.encode()).hexdigest()[:16]
    kept = folder / name
    if not kept.is_file():
        with _writing(kept, shown) as part:
            if not kept.is_file():  # Another process may have downloaded it.
                _remove_leftovers(Path(torch.hub.get_dir(), 'checkpoints'), part)
                print_log(f'downloading {shown} to {kept}', logger='current')
                with part.open('wb') as opened, closing(_sent(address, kept)) as chunks:
                    for chunk in chunks:
                        opened.write(chunk)
                _check_sha256(part, checksum, shown)
                contents = read(part)
                os.replace(part, kept)
                return contents
    try:
        _check_sha256(kept, checksum, shown)
        return read(kept)
    except CheckpointError as error:
        raise CheckpointError(f'{error}. It is kept as {kept}: remove this file to download it again') from error


@contextmanager
def _writing(kept: Path, shown: str) -> Iterator[Path]:
    """The file that a download is written to; one process at a time has it. It is removed at the end.

    Args:
        kept: where the file is kept after the download.
        shown: how error messages name the download.

    Raises:
        CheckpointError: if another process has it and does nothing, or if the system refuses to write.
    """
    part, lock = _part_and_lock(kept)
    with ExitStack() as stack:
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            try:
                _acquire(lock, lambda: [part], shown)
                stack.callback(lock.release)
                stack.callback(part.unlink, missing_ok=True)
            except (NotImplementedError, OSError):  # a disk without locks: each process downloads for itself
                part = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=kept.parent)), kept.name)
            yield part
        except OSError as error:
            raise CheckpointError(
                f'{shown} cannot be kept in {kept.parent} ({describe(error)}): make room there, or set TORCH_HOME to '
                'another folder'
            ) from error


def _part_and_lock(kept: Path) -> tuple[Path, FileLock]:
    """The unfinished file of a download, which has the suffix of the finished one, and its lock."""
    return kept.with_name(f'.part.{kept.name}'), FileLock(kept.with_name(f'.{kept.name}.lock'))


def _acquire(lock: FileLock, parts: Callable[[], Iterable[Path]], shown: str) -> None:
    """Wait for a lock as long as the process that holds it writes to its unfinished files, ``parts``."""
    state, patience = None, 0
    while True:
        try:
            lock.acquire(timeout=patience)
            return
        except Timeout:
            before, state = state, [(part.stat().st_size, part.stat().st_mtime) for part in parts() if part.is_file()]
        if before is None:
            print_log(f'waiting for another process, which downloads {shown} and holds {lock.lock_file}', 'current')
        elif before == state:
            raise CheckpointError(
                f'another process holds {lock.lock_file} and has downloaded nothing of {shown} for {patience} s: end '
                'it and try again'
            )
        patience = LOCK_PATIENCE


def _remove_leftovers(folder: Path, own: Path) -> None:
    """Remove the unfinished files of processes that were killed: nobody holds their locks."""
    for part in (*folder.glob('.part.*'), *folder.glob('*/.part.*')):
        _, lock = _part_and_lock(part.with_name(part.name.removeprefix('.part.')))
        if part != own:
            with suppress(NotImplementedError, OSError), lock.acquire(timeout=0):
                part.unlink()


def _check_sha256(file: Path, checksum: re.Match | None, shown: str) -> None:
    """Compare a file's SHA-256 with what its name has of it.

    Raises:
        CheckpointError: if it is another.
    """
    if checksum and not (found := _sha256(file)).startswith(checksum[1]):
        raise CheckpointError(
            f'{shown} is not the file that it should be: its SHA-256 is {found}, but its name says {checksum[1]}... '
            '(if this means something else, download it in another way and give its path)'
        )


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open('rb') as opened:
        while chunk := opened.read(2**20):
            digest.update(chunk)
    return digest.hexdigest()


def _sent(address: str, kept: Path) -> Iterator[bytes]:
    """What a server sends, in chunks.

    Raises:
        CheckpointError: if the server does not answer, is too slow, or sends another length than it says.
    """
    request = urllib.request.Request(address, headers={'User-Agent': 'torch.hub'})  # Some servers refuse Python's.
    got = 0
    try:
        with urllib.request.build_opener(_Http, _Https).open(request, timeout=PATIENCE) as answer:
            length = answer.headers.get('Content-Length')
            length = None if length is None else int(length)
            # The bar is shown on a terminal only, as the Hub's is, and only by the main process.
            hidden = None if is_main_process() else True
            with tqdm(
                desc=kept.name, total=length, unit='B', unit_scale=True, unit_divisor=1024, disable=hidden
            ) as bar:
                while chunk := answer.read1(2**20):
                    yield chunk
                    got += len(chunk)
                    bar.update(len(chunk))
        if length not in (None, got):
            raise ValueError(f'the server sent {got} of {length} bytes')
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise CheckpointError(
            f'{shortened(address)} cannot be downloaded ({shortened(error)}): try again, or download the file in '
            f'another way, and give its path or put it there as {kept}'
        ) from error


class _Timed(io.RawIOBase):
    """What a server sends, headers and body. It ends in an error after ``PATIENCE`` if the server sends less than 1 kB
    per second: the time limit of a socket begins again with each byte."""

    def __init__(self, received: io.RawIOBase) -> None:
        super().__init__()
        self.received, self.count, self.start = received, 0, time.monotonic()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int | None:
        if time.monotonic() - self.start > PATIENCE + self.count / 1000:
            raise TimeoutError('the server sends less than 1 kB per second')
        count = self.received.readinto(buffer)
        self.count += count or 0
        return count

    def close(self) -> None:
        self.received.close()
        super().close()


class _Answer(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: object, **options) -> None:
        super().__init__(sock, *args, **options)
        self.fp = io.BufferedReader(_Timed(self.fp.detach()))


class _TimedConnections:
    """For handlers of urllib: the answers of their connections are timed."""

    def do_open(self, kind: type, request: urllib.request.Request, **options) -> _Answer:
        def connection(*args: object, **options) -> http.client.HTTPConnection:
            made = kind(*args, **options)
            made.response_class = _Answer
            return made

        return super().do_open(connection, request, **options)


class _Http(_TimedConnections, urllib.request.HTTPHandler):
    pass


class _Https(_TimedConnections, urllib.request.HTTPSHandler):
    pass


def from_hub(address: str, **options) -> Path:
    """The file of an address hf://OWNER/REPOSITORY[@REVISION][/FILE] in the Hub's folder of downloads.

    Without FILE, or with FOLDER/ instead of it, the first of ``HUB_FILES`` that is there. The files that an index names
    lie beside it.

    Args:
        options: ``token``, ``cache_dir``, ``force_download`` and ``local_files_only`` of huggingface_hub's
            ``hf_hub_download``.

    Raises:
        CheckpointError: if it is not there and cannot be downloaded, or has another SHA-256 than the Hub says.
    """
    try:
        from huggingface_hub import constants, get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache
        from huggingface_hub.file_download import repo_folder_name
        from huggingface_hub.utils import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError
    except ImportError as error:
        raise CheckpointError(f'{address} is on the Hugging Face Hub: pip install huggingface_hub') from error
    named = HUB.fullmatch(address)
    if not named or '..' in urllib.parse.unquote(address).split('/'):
        raise CheckpointError(f'{shortened(address)} names no model on the Hub: hf-hub:OWNER/REPOSITORY does')
    repository, revision, file = named[1], named[2] and urllib.parse.unquote(named[2]), named[3] or ''

    def refusal(file: str, error: Exception) -> CheckpointError:
        try:
            place = hf_hub_url(repository, file, revision=revision)
        except ValueError:
            return CheckpointError(f'{shortened(address)} names no model on the Hub: hf-hub:OWNER/REPOSITORY does')
        return CheckpointError(
            f'{place} cannot be downloaded ({shortened(describe(error))}): try again, or download the file in another '
            'way and give its path'
        )

    def downloaded(file: str) -> Path:
        asked = dict(options, repo_id=repository, filename=file, revision=revision)
        try:
            kept = try_to_load_from_cache(repository, file, options.get('cache_dir'), revision)
            if not options.get('local_files_only') and (options.get('force_download') or not isinstance(kept, str)):
                folder = Path(options.get('cache_dir') or constants.HF_HUB_CACHE).expanduser()
                _wait_for_the_hub(folder, repo_folder_name(repo_id=repository, repo_type='model'), shortened(address))
                place = hf_hub_url(repository, file, revision=revision)
                try:  # Without a network, hf_hub_download would try for a minute.
                    with suppress(HfHubHTTPError):  # an answer of the Hub
                        get_hf_file_metadata(place, token=options.get('token'))
                except Exception as error:
                    raise LocalEntryNotFoundError(describe(error)) from error
            found = Path(hf_hub_download(**asked))
            if not _is_whole(found):
                warn(f'{found} has another SHA-256 than the Hub says: it is downloaded again')
                found = Path(hf_hub_download(**{**asked, 'force_download': True}))
            if not _is_whole(found):
                for link in (found.resolve(), found.parent / os.readlink(found), found):
                    link.unlink(missing_ok=True)
                raise ValueError('twice it had another SHA-256 than the Hub says, and it is not kept')
            return found
        except (CheckpointError, EntryNotFoundError):
            raise
        except Exception as error:  # of networks, access rights and disks: many kinds
            raise refusal(file, error) from error

    missing = []
    for candidate in [file + each for each in HUB_FILES] if not file or file.endswith('/') else [file]:
        try:
            found = downloaded(candidate)
            break
        except EntryNotFoundError as error:
            missing.append((candidate, error))
            if isinstance(error, LocalEntryNotFoundError):  # The Hub is not reached: look for others in its folder.
                options = dict(options, local_files_only=True)
    else:
        raise refusal(*missing[0]) from missing[0][1]
    if is_index(found):
        revision = found.parents[candidate.count('/')].name  # the commit: all files are of one
        for name in files_of_index(found, address):
            part = candidate.removesuffix(found.name) + name
            try:
                downloaded(part)
            except EntryNotFoundError as error:
                raise refusal(part, error) from error
    return found


def _wait_for_the_hub(folder: Path, name: str, shown: str) -> None:
    """Wait for processes that download files of a repository. huggingface_hub waits too, but without end and a word.

    Args:
        folder: the Hub's folder of downloads.
        name: of the repository's folder in it.
        shown: how messages name the download.
    """
    for file in Path(folder, '.locks', name).glob('*.lock'):
        with suppress(NotImplementedError, OSError):  # a disk without locks
            lock = FileLock(file)
            _acquire(lock, lambda: Path(folder, name, 'blobs').glob('*.incomplete'), shown)
            lock.release()


def _is_whole(file: Path) -> bool:
    """Whether a file in the Hub's folder has the SHA-256 that it should have.

    The Hub names large files by it, and links from the names of a revision to them.
    """
    if not file.is_symlink() or not re.fullmatch('[0-9a-f]{64}', expected := Path(os.readlink(file)).name):
        return True
    return _sha256(file) == expected


def shortened(text: object) -> str:
    """The first line of a text without secrets, and not more than 300 characters of it."""
    text = without_secrets(text).partition('\n')[0]
    return text if len(text) <= 300 else f'{text[:300]} ...'
