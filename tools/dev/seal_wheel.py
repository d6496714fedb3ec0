"""Write the checksum of the C++ library again, in all wheels of a folder: auditwheel changes the library.

python tools/dev/seal_wheel.py FOLDER
"""

import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

(folder,) = sys.argv[1:]
for wheel in Path(folder).glob('*.whl'):
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run([sys.executable, '-m', 'wheel', 'unpack', '-d', scratch, wheel], check=True)
        (content,) = Path(scratch).iterdir()
        ops = content / 'mmattn' / 'ops'
        runpy.run_path(str(ops / 'seal.py'))['seal'](ops / '_cpu.abi3.so')
        subprocess.run([sys.executable, '-m', 'wheel', 'pack', '-d', folder, content], check=True)
