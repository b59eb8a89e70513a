"""Files that appear whole: on Ctrl-C, on a full disk, and after writers that were killed."""

import os
import stat
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from clsvm.files import atomic_write, check_writable

posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows deletes no file that is open, and needs no locks")


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
def test_a_full_disk_is_named(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/full")
    for path in ("/dev/full", tmp_path / "link"):
        with pytest.raises(OSError, match="No space left on device") as caught, atomic_write(path) as stream:
            stream.write(b"0" * 100000)
        assert caught.value.filename == str(path)


def test_an_error_names_the_file_but_not_in_place_of_another(tmp_path: Path) -> None:
    def full(*name: str) -> OSError:
        with pytest.raises(OSError, match="No space left") as caught, atomic_write(tmp_path / "model"):
            raise OSError(28, "No space left on device", *name)
        return caught.value

    assert full().filename == str(tmp_path / "model")
    assert full("other").filename == "other"
    with pytest.raises(OSError, match=r"^words$"), atomic_write(tmp_path / "model"):
        raise OSError("words")
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os, signal, sys
from clsvm.files import atomic_write
with atomic_write(sys.argv[1]) as stream:
    stream.write(b"half")
    stream.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@posix
@pytest.mark.parametrize("write", [atomic_write, check_writable])
def test_what_a_killed_writer_left_is_deleted_by_the_next_one(tmp_path: Path, write: Any) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    subprocess.run([sys.executable, "-c", KILLED, tmp_path / "model"], env=environment, check=False)
    (left,) = tmp_path.iterdir()
    assert left.read_bytes() == b"half"
    (tmp_path / ".clsvm-notes").touch()
    (tmp_path / "other.tmp").touch()
    with write(tmp_path / "another") or nullcontext():
        pass
    written = ["another"] * (write is atomic_write)  # (a check leaves nothing)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".clsvm-notes", *written, "other.tmp"]


@posix
def test_what_is_being_written_stays(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "one") as one:
        with atomic_write(tmp_path / "two") as two:
            two.write(b"2")
        check_writable(tmp_path / "three")
        one.write(b"1")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"one": b"1", "two": b"2"}


@posix
def test_a_file_swept_before_it_is_locked_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The moment between making a file and locking it: another process takes it for a killed writer's."""
    import fcntl

    lock, made = fcntl.flock, []

    def swept(stream: object, operation: int) -> None:
        made.extend(tmp_path.iterdir())
        if len(made) == 1:
            made[0].unlink()
        lock(stream, operation)  # type: ignore[arg-type]

    monkeypatch.setattr("fcntl.flock", swept)
    with atomic_write(tmp_path / "model") as stream:
        stream.write(b"whole")
    assert len(made) == 2
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"whole"]
