"""The tuner and its file: what it may hold, who reads it, and that every tile it may choose computes the same."""

import json
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from clsvm import SVC
from clsvm.cli.app import app
from clsvm.gram import layouts
from clsvm.gram.products import Gram, Update
from clsvm.kernels import make
from clsvm.opencl import devices, profiles
from clsvm.opencl.profiles import PROFILES, SEARCH, Profile, shape_class
from clsvm.opencl.stream import Stream
from clsvm.tools import tune
from tests.conftest import noisy, take_profile, thrifty


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    where = tmp_path / "folder" / "tuned.json"
    monkeypatch.setenv("CLSVM_TUNED", str(where))
    profiles._warn_ignored.cache_clear()
    return where


def write(file: Path, device: str, profile: dict[str, Any], **more: Any) -> None:
    key = devices.tuning_key(devices.find(device))
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"clsvm": profiles.VERSION, "devices": {key: {"profile": profile, **more}}}))


def test_a_record_is_used(device: str, file: Path) -> None:
    start = devices.default_profile(devices.find(device))
    assert start == devices.untuned_profile(devices.find(device))
    write(file, device, {"panel": 64, "chunks": 32, "tiles": {"two": SEARCH[start.style]["tiles"]["two"][0]}})
    with Stream(device) as stream:
        assert (stream.profile.chunks, stream.profile.panel) == (32, 64)
        assert stream.profile.tiles["two"] == SEARCH[start.style]["tiles"]["two"][0]
        assert stream.profile.tiles["many"] == start.tiles["many"]
    write(file, device, {"chunks": 32, "csr_cost": 2.5})  # (with a rate, which an earlier version measured)
    info = devices.find(device)
    assert devices.default_profile(info) == replace(start, chunks=32)
    for other in ({"driver": "other"}, {"name": "other"}):  # are not meant
        assert devices.default_profile(replace(info, **other)).chunks != 32
    X, y = noisy(100, 3)
    assert SVC(device=device).fit(X, y).fit_report_.converged


def test_a_file_that_cannot_be_read_is_none(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below another user's home, say: fits go on without it."""
    (tmp_path / "a file").touch()
    monkeypatch.setenv("CLSVM_TUNED", str(tmp_path / "a file" / "tuned.json"))
    info = devices.find(device)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert devices.default_profile(info) == devices.untuned_profile(info)


DAMAGED: list[str | dict[str, Any]] = [  # a file's text, or the numbers that it has for the device
    "",
    "[]",
    '{"clsvm": 2, "devices": {}}',
    '{"clsvm": 1, "devices": []}',
    '{"clsvm": 1, "devices": {"a": {}}}',
    "[" * 100000,
    b"\x80\x04\x95".decode("latin-1") * 9,
    *(
        {"lanes": 7},
        {"lanes": 16.0},
        {"lanes": True},
        {"style": "workgroup"},
        {"tiles": 3},
        {"chunks": 4, "block": 10**9},
    ),
    {"cache_cost": 3.0},
    {"tiles": {"many": {"COLUMNS": 5, "GROUPS": 1, "AHEAD": 0}}},
    {"tiles": {"other": {"COLUMNS": 16, "GROUPS": 1, "AHEAD": 0}}},
    {"tiles": {"many": {"COLUMNS": 16, "GROUPS": 1, "AHEAD": 0, "X; }": 1}}},
]


@pytest.mark.parametrize("content", DAMAGED, ids=lambda content: ascii(content)[:40])
def test_what_no_search_wrote_is_ignored_with_one_warning(content: Any, device: str, file: Path) -> None:
    write(file, device, {} if isinstance(content, str) else content)
    if isinstance(content, str):
        file.write_text(content, "latin-1")
    info = devices.find(device)
    with pytest.warns(UserWarning, match=r"tuned\.json is ignored: .*'clsvm tune' makes it anew"):
        assert devices.default_profile(info) == devices.untuned_profile(info)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert devices.default_profile(info) == devices.untuned_profile(info)


def test_keep_adds_and_reset_deletes(file: Path) -> None:
    assert profiles.read_tuned() == {}
    profiles.write_tuned("a", {"profile": {"chunks": 4}})
    profiles.write_tuned("b", {"profile": {}})
    profiles.write_tuned("b", {"profile": {"chunks": 8}})
    assert profiles.read_tuned() == {"a": {"profile": {"chunks": 4}}, "b": {"profile": {"chunks": 8}}}
    assert [path.name for path in file.parent.iterdir()] == ["tuned.json"]
    assert profiles.delete_tuned()
    assert not profiles.delete_tuned()
    assert profiles.read_tuned() == {}


def choose(*tiles: Any) -> Any:
    def candidates(profile: Profile) -> Iterator[Profile]:
        yield profile
        for tile in tiles:
            yield replace(profile, tiles={**profile.tiles, "two": tile})

    return candidates


def others(device: str) -> list[Any]:
    """Four tiles for two right-hand rows that the device's profile may have, and has not."""
    own = devices.untuned_profile(devices.find(device))
    return [tile for tile in SEARCH[own.style]["tiles"]["two"] if tile != own.tiles["two"]][:4]


class Clock:
    """perf_counter() of the tuner, which stands still but for what passes; what began when the time was over."""

    def __init__(self) -> None:
        self.now, self.end, self.late = 0.0, 0.0, 0

    def begins(self, seconds: float) -> None:
        self.end, self.late = self.now + seconds, 0

    def passes(self, seconds: float) -> None:
        self.late += self.now >= self.end
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the tuner."""
    clock = Clock()
    monkeypatch.setattr(tune, "perf_counter", lambda: clock.now)
    return clock


def test_the_fastest_is_kept(device: str, file: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate that is clearly faster wins, one that cannot run or is as fast as the default does not."""
    taken: list[Any] = []
    large, quick, other, last = others(device)

    def prepare(stream: Stream, n: int) -> Any:
        tile = stream.profile.tiles["two"]
        if tile == large:
            raise ValueError("too large")
        taken.append(tile)
        return lambda: clock.passes(0.1 if tile == quick else 1.0)

    clock.begins(60.0)
    family = tune.Family("sleep", choose(quick, large, other), prepare)
    alike = tune.Family("alike", choose(other, last), lambda stream, n: lambda: clock.passes(1.0))
    monkeypatch.setattr(tune, "FAMILIES", (family,))
    said: list[str] = []
    (found,) = tune.tune(device, 60.0, lambda words, share: said.append(words))
    assert (found.family, found.choice) == ("sleep", {"tiles": {"two": quick}})
    assert said == ["sleep"]
    assert large not in taken
    assert quick in taken
    assert other in taken
    record = json.loads(file.read_text())["devices"][devices.tuning_key(devices.find(device))]
    assert record["profile"] == {"tiles": {"two": quick}}
    assert devices.default_profile(devices.find(device)).tiles["two"] == quick
    before = file.read_bytes()
    assert not any(one.searched for one in tune.tune(device, 0.0))
    assert file.read_bytes() == before  # what was kept stays where there is no time
    monkeypatch.setattr(tune, "_CLEARLY", 0.0)  # nothing is clear
    monkeypatch.setattr(tune, "FAMILIES", (family, alike))
    assert [found.choice for found in tune.tune(device, 60.0)] == [{}, {}]
    assert devices.default_profile(devices.find(device)) == devices.untuned_profile(devices.find(device))


@pytest.mark.parametrize("seconds", [0.0, 5.0, 40.0, 75.0, 1000.0])
def test_compiles_count_as_time(seconds: float, device: str, file: Path, clock: Clock, monkeypatch: Any) -> None:
    """Ten seconds for each compile, one for each launch: no candidate begins when the time is over, and what had no
    time for the default and another one is not searched."""
    compiled: list[str] = []

    def family(name: str) -> tune.Family:
        def prepare(stream: Stream, n: int) -> Any:
            clock.passes(10.0)
            compiled.append(name)
            return lambda: setattr(clock, "now", clock.now + 1)

        return tune.Family(name, choose(*others(device)[:3]), prepare)

    monkeypatch.setattr(tune, "FAMILIES", (family("one"), family("two")))
    clock.begins(seconds)
    found = tune.tune(device, seconds)
    assert [one.family for one in found] == ["one", "two"]
    assert clock.late == 0
    for one in found:
        assert one.searched == (compiled.count(one.family) > 1)
    assert sum(one.searched for one in found) == {0.0: 0, 5.0: 0, 40.0: 1, 75.0: 2, 1000.0: 2}[seconds]
    assert len(compiled) == 8 or seconds < 1000
    assert file.exists() == any(one.searched for one in found)


@pytest.mark.parametrize("family", tune.FAMILIES, ids=lambda family: family.name)
@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_each_family_runs_its_default(device: str, name: str, family: tune.Family, monkeypatch: Any) -> None:
    take_profile(name, device, monkeypatch)
    with Stream(device) as stream:
        candidates = list(family.candidates(stream.profile))
        assert candidates[0] == stream.profile
        family.prepare(stream, 64)()


TILES = [
    (name, shape, tile)
    for name, of in (("cpu", "simd"), ("gpu", "workgroup"))
    for shape, tiles in SEARCH[of]["tiles"].items()
    for tile in tiles
]


@pytest.mark.full
@pytest.mark.parametrize(("name", "shape", "tile"), TILES, ids=lambda value: str(value).replace(" ", ""))
def test_every_tile_gives_the_same_bits(device: str, name: str, shape: str, tile: dict[str, int]) -> None:
    """Whatever the tuner chooses: one chain of multiply-adds for every pair, and the update's sum but for rounding."""
    if thrifty(device) and tile.get("GROUPS", 1) * tile.get("BLOCKS", 1) > 2:
        pytest.skip("the largest tiles take this compiler ten seconds each")
    rng = np.random.default_rng(3)
    X, working = rng.normal(size=(77, 9)), {"two": 2, "few": 11}.get(shape, 70)
    assert shape_class(working) == ("many" if shape == "wide" else shape)
    kernel, profile = make("rbf", gamma=0.1), replace(PROFILES[name], tiles={**PROFILES[name].tiles, shape: tile})
    with Stream(device, profile=profile) as stream:
        stream.compute_units = 1  # (one tile is enough for wide ones)
        rows = layouts.build(stream, X, layouts.choose(profile, X, kernel.spec, "dense"), "float32")
        gram = Gram(stream, rows, kernel)
        panel = gram.panel(working)
        K = gram.values(gram.of_all(working), 77) if working == 70 else None
        at, count = stream.upload(np.arange(working, dtype=np.int32)), stream.upload(np.array([working], np.int32))
        gram.gather(panel, at, count)
        c, D = stream.wide(np.zeros((1, rows.n_pad))), np.zeros((1, panel.capacity))
        D[:, :working] = rng.normal(size=working)
        gram.accumulate(panel, count, None, Update(1, rows.n_pad, c, stream.wide(D), panel.capacity))
        sums = stream.read_wide(c, rows.n_pad)[:77]
    expected = kernel(X, X)
    np.testing.assert_allclose(sums, expected[:, :working] @ D[0, :working], rtol=0, atol=working * 1e-6)
    if K is not None:
        np.testing.assert_allclose(K, expected, rtol=0, atol=1e-6)
        np.testing.assert_array_equal(K, K.T)


def test_the_command(device: str, file: Path, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    family = tune.Family("sleep", choose(others(device)[0]), lambda stream, n: lambda: clock.passes(1.0))
    monkeypatch.setattr(tune, "FAMILIES", (family,))
    monkeypatch.setattr(tune, "_CLEARLY", 0.0)
    for words, expected in (
        (["--show"], f"{file}: there is none"),
        (["--device", device, "--seconds", "0"], "nothing is stored: give --seconds more than 0"),
        (["--device", device, "--seconds", "60"], f"stored in {file}"),
        (["--show"], f"{file}:\n"),
        (["--reset"], "deleted"),
        (["--reset"], "there was none"),
    ):
        done = CliRunner().invoke(app, ["tune", *words])
        assert (done.exit_code, expected in done.stdout) == (0, True), done.output
    assert not file.exists()
    assert CliRunner().invoke(app, ["tune", "--show", "--reset"]).exit_code == 2
    for wrong in (file.parent, tmp_path / "a file" / "tuned.json"):  # they cannot be written, which it finds at once
        (tmp_path / "a file").touch()
        monkeypatch.setenv("CLSVM_TUNED", str(wrong))
        done = CliRunner().invoke(app, ["tune", "--device", device, "--seconds", "60"])
        assert (done.exit_code, done.stdout) == (1, "")
        assert str(wrong.parent if wrong.name == "tuned.json" else wrong) in done.stderr
