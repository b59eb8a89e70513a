"""The tuner and its file: what it may hold, who reads it, and that every tile it may choose computes the same."""

import json
import re
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
    write(file, device, {"chunks": 32})
    info = devices.find(device)
    assert devices.default_profile(info) == replace(start, chunks=32)
    for other in ({"driver": "other"}, {"name": "other"}):  # are not meant
        assert devices.default_profile(replace(info, **other)).chunks != 32
    X, y = noisy(100, 3)
    assert SVC(device=device).fit(X, y).fit_report_.converged


@pytest.mark.parametrize("error", [PermissionError(13, "no"), OSError(5, "the disk fails")])
def test_a_file_that_cannot_be_read_is_none(error: OSError, device: str, file: Path, monkeypatch: Any) -> None:
    """Another user's home, say: fits go on without it."""
    write(file, device, {"chunks": 32})
    real = Path.stat

    def stat(path: Path, **kwargs: Any) -> Any:
        if path == file:
            raise error
        return real(path, **kwargs)

    monkeypatch.setattr(Path, "stat", stat)
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
    *({"csr_cost": 3}, {"csr_cost": float("nan")}, {"clustered_cost": 0.1}, {"cache_cost": 3.0}),
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


def choose(*values: int) -> Any:
    def candidates(profile: Profile) -> Iterator[Profile]:
        yield profile
        for value in values:
            yield replace(profile, chunks=value)

    return candidates


def others(device: str) -> list[int]:
    """Four numbers of chunks that the device's profile may have, and has not."""
    own = devices.untuned_profile(devices.find(device))
    return [chunks for chunks in SEARCH[own.style]["chunks"] if chunks != own.chunks]


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
    """The clock of the tuner and of its rates, of which there are none unless a test has its own."""
    clock = Clock()
    monkeypatch.setattr(tune, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(tune, "RATES", ())
    return clock


def test_the_fastest_is_kept(device: str, file: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate that is clearly faster wins, one that cannot run or is as fast as the default does not."""
    taken: list[int] = []
    large, quick, other, last = others(device)

    def prepare(stream: Stream, n: int) -> Any:
        if stream.profile.chunks == large:
            raise ValueError("too large")
        taken.append(stream.profile.chunks)
        return lambda: clock.passes(0.1 if stream.profile.chunks == quick else 1.0)

    clock.begins(60.0)
    family = tune.Family("sleep", choose(quick, large, other), prepare)
    alike = tune.Family("alike", choose(other, last), lambda stream, n: lambda: clock.passes(1.0))
    monkeypatch.setattr(tune, "FAMILIES", (family,))
    said: list[str] = []
    (found,), _ = tune.tune(device, 60.0, lambda words, share: said.append(words))
    assert (found.family, found.choice) == ("sleep", {"chunks": quick})
    assert said == ["sleep"]
    assert large not in taken
    assert len(set(taken)) == 3
    record = json.loads(file.read_text())["devices"][devices.tuning_key(devices.find(device))]
    assert record["profile"] == {"chunks": quick}
    assert devices.default_profile(devices.find(device)).chunks == quick
    before = file.read_bytes()
    assert not tune.tune(device, 0.0).has_results
    assert file.read_bytes() == before  # what was kept stays where there is no time
    monkeypatch.setattr(tune, "_CLEARLY", 0.0)  # nothing is clear
    monkeypatch.setattr(tune, "FAMILIES", (family, alike))
    assert [found.choice for found in tune.tune(device, 60.0).families] == [{}, {}]
    assert devices.default_profile(devices.find(device)) == devices.untuned_profile(devices.find(device))


@pytest.mark.parametrize("seconds", [0.0, 5.0, 40.0, 75.0, 1000.0])
def test_compiles_count_as_time(seconds: float, device: str, file: Path, clock: Clock, monkeypatch: Any) -> None:
    """Ten seconds for each compile, one for each launch: no candidate begins when the time is over, and what had no
    time for the default and another one is not searched."""
    compiled: list[tuple[str, int]] = []

    def family(name: str) -> tune.Family:
        def prepare(stream: Stream, n: int) -> Any:
            clock.passes(10.0)
            compiled.append((name, stream.profile.chunks))
            return lambda: setattr(clock, "now", clock.now + 1)

        return tune.Family(name, choose(4, 16, 32), prepare)

    monkeypatch.setattr(tune, "FAMILIES", (family("one"), family("two")))
    clock.begins(seconds)
    found = tune.tune(device, seconds).families
    assert [one.family for one in found] == ["one", "two"]
    assert clock.late == 0
    for one in found:
        assert one.searched == (len([name for name, _ in compiled if name == one.family]) > 1)
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


RATIOS = {"csr_cost": 2.5, "clustered_cost": 1.5, "hybrid_cost": 0.7}


@pytest.fixture
def timed(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Products that take what RATIOS says: a dense cell a microsecond; hybrid rows have 30 entries beside 1000 cells,
    whose time is that of the rate which was measured before."""

    def work(cells: int, each: float, entries: int = 0, expected: float = 0.0) -> tune.Work:
        spent = 1e-6 * (cells * each + entries * RATIOS["csr_cost"])
        return tune.Work(lambda: clock.passes(spent), cells, entries * expected)

    def rate(field: str, cells: int, entries: int = 0) -> tune.Rate:
        return tune.Rate(field, field, lambda stream, n: work(cells, RATIOS[field], entries, stream.profile.csr_cost))

    made = rate("csr_cost", 100), rate("clustered_cost", 400), rate("hybrid_cost", 1000, 30)
    monkeypatch.setattr(tune, "dense", lambda stream, n: work(2000, 1.0))
    monkeypatch.setattr(tune, "RATES", made)
    monkeypatch.setattr(tune, "FAMILIES", ())
    clock.begins(1.0)
    return clock


def test_rates_are_kept_and_read_back(device: str, file: Path, timed: Clock) -> None:
    start = devices.default_profile(devices.find(device))
    found = tune.tune(device, 1.0)
    assert {one.field: one.ratio for one in found.rates} == RATIOS
    assert [one.default for one in found.rates] == [start.csr_cost, start.clustered_cost, start.hybrid_cost]
    (record,) = json.loads(file.read_text())["devices"].values()
    assert record["profile"] == RATIOS
    assert devices.default_profile(devices.find(device)) == replace(start, **RATIOS)
    shown = CliRunner().invoke(app, ["tune", "--show"]).stdout
    assert shown == f"{file}:\n{file.read_text()}\n"


@pytest.mark.parametrize(
    ("measured", "kept"), [(2.3456, 2.3), (23.456, 23.0), (0.23456, 0.23), (150.0, None), (0.1, None)]
)
def test_rates_have_two_digits_within_their_limits(
    device: str, file: Path, timed: Clock, monkeypatch: pytest.MonkeyPatch, measured: float, kept: float | None
) -> None:
    start = devices.default_profile(devices.find(device))
    monkeypatch.setitem(RATIOS, "clustered_cost", measured)
    assert [one.ratio for one in tune.tune(device, 60.0).rates][:2] == [RATIOS["csr_cost"], kept]
    after = devices.default_profile(devices.find(device)).clustered_cost
    assert after == (start.clustered_cost if kept is None else kept)


def test_a_rate_is_the_median_of_rounds(device: str, file: Path, timed: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the best times in each: neither a slow turn, nor a slow while of the machine, nor one lucky round counts."""
    turns, one = iter(range(10**6)), tune.RATES[0]

    def launch() -> None:
        turn = next(turns) - 1  # (the first one is not timed)
        lucky, slow = turn // tune._TURNS == 2, turn % tune._TURNS == 1
        timed.passes(1e-4 * RATIOS["csr_cost"] * (0.1 if lucky else 9.0 if slow else 1.0))

    monkeypatch.setattr(tune, "RATES", (replace(one, prepare=lambda stream, n: tune.Work(launch, 100, 0)),))
    assert tune.tune(device, 60.0).rates[0].ratio == RATIOS["csr_cost"]
    assert next(turns) == 1 + tune._REPEATS * tune._TURNS


def test_rates_that_have_no_time_stay(device: str, file: Path, timed: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    start = devices.default_profile(devices.find(device))
    assert not tune.tune(device, 0.0).has_results
    assert not file.exists()
    said = CliRunner().invoke(app, ["tune", "--device", device, "--seconds", "0"]).stdout
    assert re.search(rf"csr_cost .* {start.csr_cost:g} .* not measured", said)
    assert "a rate that is not measured had no time" in said
    one = tune.RATES[0]

    def slow(stream: Stream, n: int) -> tune.Work:  # the first alone is measured
        timed.passes(2.0)
        return one.prepare(stream, n)

    monkeypatch.setattr(tune, "RATES", (replace(one, prepare=slow), *tune.RATES[1:]))
    assert [found.ratio for found in tune.tune(device, 1.0).rates] == [RATIOS["csr_cost"], None, None]
    assert devices.default_profile(devices.find(device)) == replace(start, csr_cost=RATIOS["csr_cost"])


def test_rates_are_those_of_the_tiles_that_were_found(device: str, file: Path, timed: Clock, monkeypatch: Any) -> None:
    """The search comes first, leaves them time, and what it finds is in the profile that is measured."""
    seen: list[Profile] = []
    one = tune.RATES[0]

    def prepare(stream: Stream, n: int) -> tune.Work:
        seen.append(stream.profile)
        return one.prepare(stream, n)

    quick = others(device)[0]
    family = tune.Family(
        "sleep", choose(quick), lambda s, n: lambda: timed.passes(1 if s.profile.chunks == quick else 2)
    )
    monkeypatch.setattr(tune, "FAMILIES", (family,))
    monkeypatch.setattr(tune, "RATES", (replace(one, prepare=prepare),))
    assert tune.tune(device, 60.0).has_results
    assert [profile.chunks for profile in seen] == [quick]
    profile = devices.default_profile(devices.find(device))
    assert (profile.chunks, profile.csr_cost) == (quick, RATIOS["csr_cost"])


@pytest.mark.parametrize("rate", tune.RATES, ids=lambda rate: rate.field)
@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_each_rate_measures_its_layout(device: str, name: str, rate: tune.Rate, monkeypatch: Any) -> None:
    take_profile(name, device, monkeypatch)
    with Stream(device) as stream:
        if (name, rate.field) == ("gpu", "hit_cost"):
            with pytest.raises(ValueError, match="the profile 'gpu' has no kernels for rows as an inverted index"):
                rate.prepare(stream, 64)
            return
        of_dense, work = tune.dense(stream, 64), rate.prepare(stream, 64)
        assert of_dense.cells == 64 * 256
        seconds = [of_dense.cells + of_dense.overhead, 2.0 * work.cells + work.overhead]
        ran: list[tune.Launch] = []

        def best_of(*launches: tune.Launch, ran: list[tune.Launch] = ran, best: Any = seconds) -> Any:
            for launch in launches:
                launch()
                ran.append(launch)
            return best

        monkeypatch.setattr(tune, "best_of", best_of)
        assert tune.measure(stream, rate, 64) == 2.0
        assert len(ran) == 2 * tune._REPEATS


TILES = [
    (name, shape, tile)
    for name, of in (("cpu", "simd"), ("gpu", "workgroup"))
    for shape, tiles in SEARCH[of]["tiles"].items()
    for tile in tiles
]


@pytest.mark.full
@pytest.mark.parametrize(("name", "shape", "tile"), TILES, ids=lambda value: str(value).replace(" ", ""))
def test_every_tile_gives_the_same_bits(device: str, name: str, shape: str, tile: dict[str, int]) -> None:
    """Whatever the tuner chooses: f of the same chain of multiply-adds for every pair (and within one rounding of the
    sum of the update)."""
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
    family = tune.Family("sleep", choose(4), lambda stream, n: lambda: clock.passes(1.0))
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
