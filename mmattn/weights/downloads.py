"""Downloads of checkpoints, each once: to the folder of torch.hub, or for the Hugging Face Hub to the Hub's folder.

A file is used only when it is complete. Its SHA-256 is compared where the server or the name of the file has it.
"""

import hashlib
import http.client
import os
import re
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import torch
from filelock import FileLock
from mmengine.dist import is_main_process
from mmengine.logging import print_log
from tqdm import tqdm

from ..errors import CheckpointError, describe, warn

#: the beginning of a file's SHA-256 at the end of its name, as torchvision writes it; a date is not taken for one
CHECKSUM = re.compile(r'-(?!20\d{6}\.)([0-9a-f]{8,})\.')
#: seconds to wait for a server that sends nothing
PATIENCE = 60
#: files of weights on the Hub, in the order in which they are looked for
HUB_FILES = ('model.safetensors', 'pytorch_model.bin')


def from_server(address: str, read: Callable[[Path], object]) -> object:
    """The contents of a file at an address http(s)://..., which is downloaded if it was not before.

    Args:
        read: reads a file; what it refuses is not kept.

    Raises:
        CheckpointError: if it cannot be downloaded, has another checksum than its name says, or cannot be read.
    """
    if not address.startswith(('http://', 'https://')):
        raise CheckpointError(
            f'{shortened(address)} cannot be read without running code: download the file and give its path'
        )
    name = Path(urllib.parse.urlparse(address).path).name
    if name in ('', '..'):
        raise CheckpointError(f'{shortened(address)} names no file: give the address of the file itself')
    folder, checksum = Path(torch.hub.get_dir(), 'checkpoints'), CHECKSUM.search(name)
    if not checksum:  # Files of several addresses may have one name.
        folder /= hashlib.sha256(address.encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / name
    with ExitStack() as stack:
        if not kept.is_file():
            with suppress(NotImplementedError, OSError):  # a disk without locks: each process downloads for itself
                stack.enter_context(FileLock(folder / f'.{name}.lock'))
        if kept.is_file():
            try:
                return read(kept)
            except CheckpointError as error:
                raise CheckpointError(
                    f'{error}. It is kept as {kept}: remove this file to download it again'
                ) from error
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            file = Path(temporary, name)
            print_log(f'downloading {address} to {kept}', logger='current')
            try:
                _download(address, file, checksum[1] if checksum else '')
            except (OSError, ValueError, http.client.HTTPException) as error:
                raise CheckpointError(
                    f'{shortened(address)} cannot be downloaded ({shortened(error)}): try again, or download the file '
                    f'in another way, and give its path or put it there as {kept}'
                ) from error
            contents = read(file)
            os.replace(file, kept)
    return contents


def _download(address: str, file: Path, checksum: str) -> None:
    """Download a file whole.

    Raises:
        OSError, ValueError, http.client.HTTPException: if the server does not answer, or sends another length than it
            says, or a file whose SHA-256 does not begin with ``checksum``.
    """
    request = urllib.request.Request(address, headers={'User-Agent': 'torch.hub'})  # Some servers refuse Python's.
    digest, start = hashlib.sha256(), time.monotonic()
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer, file.open('wb') as opened:
        length = answer.headers.get('Content-Length')
        length = None if length is None else int(length)
        # The bar is shown on a terminal only, as the Hub's is, and only by the main process.
        hidden = None if is_main_process() else True
        with tqdm(desc=file.name, total=length, unit='B', unit_scale=True, unit_divisor=1024, disable=hidden) as bar:
            while chunk := answer.read1(2**20):
                opened.write(chunk)
                digest.update(chunk)
                bar.update(len(chunk))
                if time.monotonic() - start > PATIENCE + opened.tell() / 1000:
                    raise TimeoutError('the server sends less than 1 kB per second')
        if length not in (None, opened.tell()):
            raise ValueError(f'the server sent {opened.tell()} of {length} bytes')
    if not digest.hexdigest().startswith(checksum):
        raise ValueError(f'its SHA-256 is {digest.hexdigest()}, but its name says {checksum}...')


def from_hub(address: str) -> Path:
    """The file of an address hf://OWNER/REPOSITORY[@REVISION][/FILE] in the Hub's folder of downloads.

    Raises:
        CheckpointError: if it is not there and cannot be downloaded.
    """
    try:
        from huggingface_hub import hf_hub_download, hf_hub_url
        from huggingface_hub.utils import EntryNotFoundError
    except ImportError as error:
        raise CheckpointError(f'{address} is on the Hugging Face Hub: pip install huggingface_hub') from error
    owner, _, rest = address.removeprefix('hf://').partition('/')
    name, _, file = rest.partition('/')
    name, _, revision = name.partition('@')
    asked = dict(repo_id=f'{owner}/{name}', revision=revision or None)
    candidates = [file] if file else HUB_FILES
    errors = []
    for candidate in candidates:
        try:
            found = Path(hf_hub_download(filename=candidate, **asked))
            if not _is_whole(found):
                warn(f'{found} is not as it was downloaded: it is downloaded again')
                found = Path(hf_hub_download(filename=candidate, force_download=True, **asked))
            return found
        except EntryNotFoundError as error:
            errors.append(error)
        except Exception as error:  # of networks, access rights and disks: many kinds
            errors.append(error)
            break
    try:
        place = hf_hub_url(filename=candidates[0], **asked)
    except ValueError:
        raise CheckpointError(f'{shortened(address)} names no model on the Hub: hf://OWNER/REPOSITORY does') from None
    raise CheckpointError(
        f'{place} cannot be downloaded ({shortened(describe(errors[0]))}): try again, or download the file in another '
        'way and give its path'
    ) from errors[0]


def _is_whole(file: Path) -> bool:
    """Whether a file in the Hub's folder has the SHA-256 that it should have.

    The Hub names large files by it, and links from the names of a revision to them.
    """
    if not file.is_symlink() or not re.fullmatch('[0-9a-f]{64}', expected := Path(os.readlink(file)).name):
        return True
    digest = hashlib.sha256()
    with file.open('rb') as opened:
        while chunk := opened.read(2**20):
            digest.update(chunk)
    return digest.hexdigest() == expected


def shortened(text: object) -> str:
    """The first line of a text, and not more than 300 characters of it."""
    text = str(text).partition('\n')[0]
    return text if len(text) <= 300 else f'{text[:300]} ...'
