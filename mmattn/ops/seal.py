"""The last bytes of the compiled library: a checksum of the bytes before them and of the code in csrc/.

setup.py writes them, and library.py compares them before it loads the library, because loading a damaged one ends the
process, and one of other code may take other arguments. This file imports nothing but the standard library: setup.py
and tools/dev/setup_env.py run it where torch is not installed.
"""

import hashlib
from pathlib import Path

SOURCES = Path(__file__).with_name('csrc')
SIZE = 32


def seal(library: Path) -> None:
    """Append the checksum to a library that was compiled from ``SOURCES``."""
    content = library.read_bytes()
    library.write_bytes(content + _checksum(content))


def is_sealed(library: Path) -> bool:
    """Whether a library is whole, and was compiled from ``SOURCES``."""
    content = library.read_bytes()
    return content[-SIZE:] == _checksum(content[:-SIZE])


def _checksum(content: bytes) -> bytes:
    code = b''.join(path.read_bytes() for path in sorted([*SOURCES.glob('*.cpp'), *SOURCES.glob('*.h')]))
    return hashlib.sha256(content + code).digest()
