"""Files that appear whole: on Ctrl-C and on a full disk."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from clsvm.files import atomic_write, check_writable


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")], ids=["Ctrl-C", "full"])
def test_interrupted_write_leaves_the_old_file(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "model"

    def write() -> None:
        with atomic_write(path) as stream:
            stream.write(b"half")
            raise error

    with pytest.raises((KeyboardInterrupt, OSError)):
        write()
    assert list(tmp_path.iterdir()) == []
    path.write_text("old")
    with pytest.raises((KeyboardInterrupt, OSError)):
        write()
    assert [one.read_text() for one in tmp_path.iterdir()] == ["old"]


def test_replacing_keeps_mode_link_and_readers(tmp_path: Path) -> None:
    path, link = tmp_path / "model", tmp_path / "link"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    with path.open() as reader:
        with atomic_write(link) as stream:
            stream.write(b"new")
        assert reader.read() == "old", "who reads the old file meanwhile keeps it whole"
    assert sorted(tmp_path.iterdir()) == [link, path]
    assert link.is_symlink()
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_written_in_place(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE)
    check_writable(pipe)
    with atomic_write(pipe) as stream:
        stream.write(b"some bytes")
    assert reader.communicate(timeout=20)[0] == b"some bytes"
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("place", ["none/model", ".", "file/model"])
def test_unwritable_paths(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=str(tmp_path)) as caught:
        check_writable(tmp_path / place)
    assert caught.value.filename == str(tmp_path / place)
    with pytest.raises(OSError, match=str(tmp_path)), atomic_write(tmp_path / place):
        pass


@pytest.mark.skipif(os.name == "posix" and os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_folder_and_file(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("old")
    (tmp_path / "model").chmod(0o444)
    tmp_path.chmod(0o555)
    for name in ("model", "other"):
        with pytest.raises(PermissionError):
            check_writable(tmp_path / name)
    tmp_path.chmod(0o755)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_full_disk_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/full")
    for path in ("/dev/full", tmp_path / "link"):
        with pytest.raises(OSError, match="No space left on device"), atomic_write(path) as stream:
            stream.write(b"0" * 100000)
