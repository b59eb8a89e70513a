"""Folders that processes share: nothing is loaded from one that others can change, and nothing is left behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import clsvm
from clsvm import files
from clsvm.opencl import runtime

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
STRANGER = 4321
ENTRIES = {"one.icd": "libone.so", "two.icd": "/lib/libtwo.so"}


@contextmanager
def owned_by_a_stranger(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the path to another user, or where only root can, be another user."""
    if os.geteuid() == 0:
        os.chown(path, STRANGER, -1)
        yield
    else:
        with monkeypatch.context() as patch:
            patch.setattr(os, "geteuid", lambda: STRANGER)
            yield


@pytest.mark.parametrize("place", [".", "cache", "cache/clsvm"])
@pytest.mark.parametrize("mode", [0o777, 0o757, 0o775])
def test_a_path_that_others_can_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, mode: int) -> None:
    folder = tmp_path / "cache" / "clsvm"
    files.private_folder(folder)
    assert folder.stat().st_mode & 0o777 == folder.parent.stat().st_mode & 0o777 == 0o700
    assert files.exposed(folder) == ""
    (tmp_path / place).chmod(mode)
    monkeypatch.setattr(files, "_own_group", lambda group, user: False)
    words = files.exposed(folder)
    assert "can write to" in words
    assert str(tmp_path / place) in words
    monkeypatch.setattr(files, "_own_group", lambda group, user: True)  # as many systems make one for each user
    assert bool(files.exposed(folder)) == (mode != 0o775)
    (tmp_path / place).chmod(0o1777)  # where only owners move files
    assert bool(files.exposed(folder)) == (place == "cache/clsvm")
    with owned_by_a_stranger(tmp_path / place, monkeypatch):
        assert "belongs to user" in files.exposed(folder)


def test_a_link_counts_with_the_way_to_it_and_from_it(tmp_path: Path) -> None:
    link, folder = tmp_path / "way" / "link", tmp_path / "real" / "folder"
    for one in (link.parent, folder):
        files.private_folder(one)
    link.symlink_to(folder)
    assert files.exposed(link / ".") == files.exposed(link) == ""
    for one in (link.parent, folder.parent, folder):
        one.chmod(0o777)
        assert str(one) in files.exposed(link)
        one.chmod(0o700)


def test_a_cache_that_cannot_be_written_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in ("PYOPENCL_NO_CACHE", "POCL_CACHE_DIR"):
        monkeypatch.setenv(setting, "")
    monkeypatch.setattr(runtime, "user_cache_path", lambda name: tmp_path / name)
    monkeypatch.setattr(runtime, "fallback_folder", lambda: tmp_path / "spare")
    for name in ("pytools", "pocl"):
        (tmp_path / name).touch()  # (root may write to every folder, so a file stands for one that cannot be written)
    with pytest.warns(UserWarning, match=r"pytools' cannot be written .* XDG_CACHE_HOME can name") as caught:
        runtime.disable_unusable_caches()
    assert len(caught) == 1
    assert os.environ["PYOPENCL_NO_CACHE"] == "1"
    assert os.environ["POCL_CACHE_DIR"] == str(tmp_path / "spare" / "pocl")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a written folder of ENTRIES in the user's cache."""
    monkeypatch.setattr(runtime, "user_cache_path", lambda name: tmp_path / name)
    monkeypatch.setattr(runtime, "fallback_folder", lambda: tmp_path / "spare")
    made = runtime._folder(ENTRIES)
    assert made
    assert made.parent == tmp_path / "clsvm"
    return made


def content(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_what_others_planted_is_not_loaded(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert content(folder) == ENTRIES
    (folder / "zz.icd").write_text("/planted.so")
    (folder / "one.icd").unlink()
    (folder / "one.icd").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_text(ENTRIES["one.icd"])
    (folder / "two.icd").chmod(0o666)
    assert runtime._folder(ENTRIES) == folder
    assert content(folder) == ENTRIES
    assert not any(path.is_symlink() or path.stat().st_mode & 0o022 for path in folder.iterdir())
    with owned_by_a_stranger(folder / "two.icd", monkeypatch):
        if os.geteuid() == 0:
            assert runtime._folder(ENTRIES) == folder
            assert (folder / "two.icd").stat().st_uid == 0
    folder.chmod(0o777)  # a folder that others can change is left
    (folder / "zz.icd").write_text("/planted.so")
    other = runtime._folder(ENTRIES)
    assert other == tmp_path / "spare" / folder.name
    assert content(other) == ENTRIES
    folder.parent.chmod(0o777)
    assert runtime._folder(ENTRIES) == other


def test_what_is_written_is_read_again_whatever_the_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0)
    try:
        made = runtime._written(tmp_path / "deep" / "icd", ENTRIES)
    finally:
        os.umask(before)
    monkeypatch.setattr(files, "atomic_write", None)  # nothing is written again
    assert content(runtime._written(made, ENTRIES)) == ENTRIES


def test_nothing_is_left_where_no_cache_can_be_kept(tmp_path: Path) -> None:
    """After SIGTERM as after an end: one folder stays, which all processes share."""
    program = "import clsvm.opencl.runtime, time; print('there', flush=True); time.sleep(60)"
    env = {name: value for name, value in os.environ.items() if name not in ("OCL_ICD_VENDORS", "POCL_CACHE_DIR")}
    env |= {"TMPDIR": str(tmp_path), "XDG_CACHE_HOME": "/dev/null"}
    env |= {"PYTHONPATH": str(Path(clsvm.__file__).parents[1])}
    for _ in range(2):
        command = [sys.executable, "-W", "ignore", "-c", program]
        with subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stdout
            assert process.stdout.readline() == "there\n"
            process.send_signal(signal.SIGTERM)
        assert [path.name for path in tmp_path.iterdir()] == [f"clsvm-{os.geteuid()}"]
