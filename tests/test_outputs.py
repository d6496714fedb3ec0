"""What cannot be written is refused before the work, and no file is ever a part of one."""

import os
import stat

import pytest

from mmattn.errors import InputError
from mmattn.outputs import check_name, check_output, whole_file


@pytest.mark.parametrize(
    'output, why',
    [
        ('file/sub/a.png', 'Not a directory'),
        ('/proc/mmattn/a.png', 'No such file or directory'),
        ('n' * 252 + '.png', 'too long'),
        ('folder/a.png', 'is a folder'),
    ],
)
def test_what_cannot_be_written(tmp_path, monkeypatch, output, why):
    """The sentence has the file and what the system says, and nothing is left."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'file').touch()
    (tmp_path / 'folder' / 'a.png').mkdir(parents=True)
    before = sorted(tmp_path.rglob('*'))
    with pytest.raises(InputError, match=f'[an].png cannot be written.*{why}'):
        check_output(output)
    assert sorted(tmp_path.rglob('*')) == before


def test_system_refuses(tmp_path, monkeypatch):
    """A read-only folder and a full disk show in the first byte that is written; root may write to any folder."""

    def refuse(*_):
        raise PermissionError(13, 'Permission denied', os.fspath(tmp_path))

    monkeypatch.setattr('pathlib.Path.write_bytes', refuse)
    with pytest.raises(InputError, match='a.png cannot be written .*Permission denied'):
        check_output(tmp_path / 'new' / 'a.png')
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('output', ['new/folder/a.png', 'old.png', 'n' * 251 + '.png'])
def test_what_can_be_written(tmp_path, monkeypatch, output):
    """An earlier file stays as it is, and neither file nor folder is left of the trial."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'old.png').write_text('earlier')
    check_output(output)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [('old.png', 'earlier')]
    with whole_file(output) as part:
        part.write_text('new')
    assert (tmp_path / output).read_text() == 'new'


@pytest.mark.parametrize('error, kind', [(OSError(28, 'No space left on device'), InputError), (KeyError(), KeyError)])
def test_nothing_half_written(tmp_path, error, kind):
    """After an error, the earlier file is there and no part of the new one. Errors of ours keep their kind."""
    file = tmp_path / 'a.png'
    file.write_text('earlier')
    with pytest.raises(kind), whole_file(file) as part:
        part.write_text('half')
        raise error
    assert [path.read_text() for path in tmp_path.iterdir()] == ['earlier']


@pytest.mark.parametrize('mode', [0o640, 0o400])
def test_mode_stays(tmp_path, mode):
    """A file that others must not read stays so when it is written again, and while it is written."""
    file = tmp_path / 'a.json'
    file.write_text('earlier')
    file.chmod(mode)
    with whole_file(file) as part:
        part.write_text('new')
        assert not stat.S_IMODE(part.stat().st_mode) & ~(mode | 0o600)
    assert file.read_text() == 'new' and stat.S_IMODE(file.stat().st_mode) == mode


def test_mode_of_a_new_file(tmp_path):
    """It is that of any other new file: what the umask leaves."""
    before = os.umask(0o027)
    try:
        with whole_file(tmp_path / 'a.json') as part:
            part.write_text('new')
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / 'a.json').stat().st_mode) == 0o640


@pytest.mark.parametrize('name, encoding, fits', [('wörk', 'utf-8', True), ('wörk', 'ascii', False)])
def test_names_in_a_locale(monkeypatch, name, encoding, fits):
    """MMEngine notes the last checkpoint in a text file, hours after the start: its folder must be a text before."""
    monkeypatch.setattr('locale.getpreferredencoding', lambda *_: encoding)
    if fits:
        check_name(name)
    else:
        with pytest.raises(InputError, match=f'has characters that Python cannot write in this locale .{encoding}'):
            check_name(name)
