"""The cross-compilation of kernels for devices that are not here, how compilers' words are read, and the command."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clsvm.errors import BuildError, ClsvmError
from clsvm.estimators.svm import SVC
from clsvm.gram import layouts, programs
from clsvm.gram.cross import Sums
from clsvm.gram.products import Gram
from clsvm.kernels import BUILTIN, make
from clsvm.opencl import devices, sources
from clsvm.opencl.profiles import PROFILES
from clsvm.opencl.stream import Stream
from clsvm.problem import Constraint
from clsvm.solvers.state import subproblem
from tests.conftest import calls_of, noisy, take_profile
from tools import audit, compilers, registry
from tools.compilers import TARGETS, Finding, Target

GFX90A, SM_80 = TARGETS[1], TARGETS[3]
on_every_target = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
on_both_families = pytest.mark.parametrize("target", [GFX90A, SM_80], ids=lambda target: target.name)


@pytest.fixture
def compiled() -> None:
    """Tests that compile are skipped where nothing does."""
    if words := compilers.missing():
        pytest.skip(words)


needs_clang = pytest.mark.usefixtures("compiled")
TURN = """
kernel __attribute__((reqd_work_group_size(64, 1, 1))) void turn(global SORT *x) {
  local SORT rows[SIZE];
  rows[get_local_id(0)] = exp(x[get_global_id(0)]);
  barrier(CLK_LOCAL_MEM_FENCE);
  x[get_global_id(0)] = rows[63 - get_local_id(0)];
}
"""
FAR = """
kernel void far(global float *x, const int n) {
  float a[1000];
  for (int i = 0; i < 1000; ++i) a[i] = x[i * n];
  for (int i = 0; i < n; ++i) a[(int)x[i]] += a[(int)x[i + 1]];
  for (int i = 0; i < 1000; ++i) x[i] = a[i];
}
"""


@needs_clang
@on_every_target
def test_figures_and_problems_of_small_kernels(target: Target) -> None:
    """Local memory is what a kernel declares, up to the limit; a private array without registers is scratch."""
    for sort, size in (("float", 4), ("double", 8)):
        turn, far = compilers.compile(TURN + FAR, [f"-DSORT={sort}", "-DSIZE=100"], target)
        assert (turn.entry, turn.target, far.entry) == ("turn", target, "far")
        assert (turn.local_memory, turn.spills, turn.scratch, turn.problems) == (100 * size, 0, 0, ())
        assert (turn.occupancy is None) == (target.family == "ptx")
        assert 4000 <= far.scratch < 4100
        assert far.problems == (f"{far.scratch} bytes of scratch a work-item",)
    if target.family == "amd":  # five groups, of one wavefront each, have room in 64 KiB: 5 wavefronts for 4 SIMDs
        (large,) = compilers.compile(TURN, ["-DSORT=float", "-DSIZE=3072"], target)
        assert large.occupancy == target.local_memory // 12288 * (64 // target.wavefront) / 4
        assert large.occupancy < (turn.occupancy or 0)  # which registers limit
    limit = target.limit // 4
    (fits,) = compilers.compile(TURN, ["-DSORT=float", f"-DSIZE={limit}"], target)
    (over,) = compilers.compile(TURN, ["-DSORT=float", f"-DSIZE={limit + 1}"], target)
    assert fits.problems == ()
    words = over.problems[:1] if target.family == "ptx" else over.problems  # (ptxas has its own)
    assert words == (f"{target.limit + 4} bytes of local memory, more than {target.limit}",)


@needs_clang
def test_tiles_multiply_and_steps_do_not_wait() -> None:
    """Of the main loop of a wide tile 85 % are multiply-adds; an iteration with eight pairs passes eight barriers."""
    for target in TARGETS[1:]:
        profile = PROFILES[target.profile]
        tile = programs.gram(BUILTIN["rbf"], "rows", "dense", "float32", profile, shape="wide")
        step = subproblem(profile, "float32", profile.working_set, Constraint.BIAS)
        (found,) = compilers.compile(tile.text, tile.options, target)
        assert (found.multiply_adds > 0.85, found.spills, found.scratch) == (True, 0, 0)
        (found,) = compilers.compile(step.text, step.options, target)
        assert (found.barriers, found.spills, found.scratch) == (8, 0, 0)


@needs_clang
@on_both_families
def test_matrix_units(target: Target) -> None:
    """Compilers know the instructions, and registers hold a tile."""
    made = list(registry.of_units(target.units, [BUILTIN["rbf"], BUILTIN["laplacian"]], PROFILES[target.profile]))
    products = "rows", "rows, slabs", "update", "both", "both, slabs"
    labels = [f"rbf {product} dense float32 {target.units}" for product in products]
    assert [variant.label for variant in made] == [f"norms {target.units}", *labels]
    for variant in (made[0], made[3], made[-1]):  # (the last one does what the others do)
        (found,) = compilers.compile(variant.text, variant.options, target)
        assert found.problems == ()


@needs_clang
@on_both_families
def test_faults_of_a_text(target: Target) -> None:
    """What clang refuses comes with its words; a function that nobody defines is a problem."""
    with pytest.raises(BuildError) as caught:
        compilers.compile("kernel void f(global float *x) {\n  x[0] = nobody;\n}", (), target)
    assert caught.value.device == target.name
    assert "undeclared identifier 'nobody'" in caught.value.log
    assert "   2   x[0] = nobody;" in caught.value.source
    text = "float other(float); kernel void f(global float *x) { x[0] = other(x[1]); }"
    (found,) = compilers.compile(text, (), target)
    assert any(words.startswith("calls other,") for words in found.problems)


@needs_clang
def test_an_audit_keeps_the_order_and_stops_at_what_is_refused() -> None:
    good, bad = (TURN, ("-DSORT=float", "-DSIZE=64")), ("kernel", ())
    variants = [sources.Variant(label, *what, "turn") for label, what in zip("abc", (good, good, bad), strict=True)]
    found = audit.audit([*variants, variants[0]], GFX90A)
    assert [(label, one.target) for label, one in (next(found), next(found))] == [("a", GFX90A), ("b", GFX90A)]
    with pytest.raises(BuildError, match="gfx90a"):
        next(found)


@pytest.mark.parametrize(("name", "said"), [("clang-of-nobody", "no clang-of-nobody was found"), ("false", "false")])
def test_missing_compilers(name: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("CLSVM_CLANG", name)
    assert said in compilers.missing()
    assert "libclc" in compilers.missing()
    with pytest.raises(ClsvmError, match=said):
        compilers.compile(FAR, (), GFX90A)
    assert audit.main(["--kernels", "rbf", "--targets", "gfx906"]) == 1
    assert said in capsys.readouterr().err


# The command


NONE = Finding("f", GFX90A, 20, 20)


def test_the_worst_kernel_comes_first(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    asked: dict[str, Any] = {}

    def found(variants: Any, target: Target, jobs: int) -> Any:
        assert jobs == 3
        asked[target.name] = {one.label: one for one in variants}
        assert len(asked[target.name]) == len(variants) == len({(one.text, one.options) for one in variants})
        if target.name == "gfx906":
            yield "other", replace(NONE, target=target, occupancy=4.0)
            return
        yield "easy", replace(NONE, target=target, occupancy=8.0)
        yield "close", replace(NONE, target=target, occupancy=1.5)
        yield "broken", replace(NONE, target=target, occupancy=2.0, problems=("spills 3 registers",))

    monkeypatch.setattr(compilers, "missing", lambda: "")
    monkeypatch.setattr(audit, "audit", found)
    assert audit.main(["--targets", "sm_80,gfx906", "--kernels", "rbf,laplacian", "--jobs", "3"]) == 1
    out, err = capsys.readouterr()
    assert err == ""
    assert re.findall(r"^│ \S+ +│ (\w+) ", out, re.MULTILINE) == ["other", "broken", "close", "easy"]
    assert "spills 3 registers" in out
    assert out.splitlines()[-1].endswith("2 targets, 4 kernels: 1 with problems")
    other, nvidia = asked["gfx906"], asked["sm_80"]
    assert any("tf32" in label for label in nvidia.keys() - other.keys())
    depths = [one["rbf rows dense float32 wide"].options for one in (other, nvidia)]  # of each target's profile
    assert ["-DDEPTH=8" in depths[0], "-DDEPTH=16" in depths[1]] == [True, True]
    parts = "rbf rows dense float32", "laplacian zero sums", "extremes, count", "stored", "subproblem"
    for part in (*parts, "pack", "zero"):
        assert any(label.startswith(part) for label in other), part
    assert not any(label.startswith("poly") for label in other)


@pytest.mark.parametrize("words", [["--targets", "gfx906,spam"], ["--kernels", "spam"], ["--jobs", "0"]])
def test_wrong_words(words: list[str], capsys: Any) -> None:
    with pytest.raises(SystemExit):
        audit.main(words)
    assert ", expected " in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.parametrize(("profile_name", "dtype"), [("cpu", "float64"), ("gpu", "float32")])
def test_the_fixed_programs_are_those_that_a_fit_builds(
    device: str, profile_name: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every program of a fit and its predictions is in the list, or has the kernel function in it."""
    take_profile(profile_name, device, monkeypatch)
    calls = calls_of(monkeypatch, Stream, "kernel")
    X, y = noisy(300, 6)
    fitted = SVC(kernel="rbf", device=device, dtype=dtype, working_set_size=64, cache_size=1).fit(X, y)
    fitted.predict(X)
    with Stream(device) as stream:  # and of products that a binary fit has no use for
        rows = layouts.build(stream, X, layouts.choose(stream.profile, X, BUILTIN["rbf"]), dtype)
        gram = Gram(stream, rows, make("rbf"))
        panel = gram.panel(4)
        gram.gather(panel, stream.zeros(16), stream.upload(np.array([4], np.int32)))
        Sums(gram, panel, 4, 1).forward_back(np.zeros((1, 4)))
    profile = devices.default_profile(devices.find(device))
    fixed = [*registry.fixed(profile), subproblem(profile, dtype, fitted.fit_report_.working_set_size, Constraint.BIAS)]
    known = {(v.text, v.options) for v in fixed}
    built = {(text, tuple(options), name) for _, text, options, name in (call.given for call in calls)}
    assert {name for text, options, name in built if (text, options) not in known} <= {"gram", "forward_back"}
    expected = {"extremes", "update", "subproblem", "pack", "gather", "zero", "plan", "back"}
    assert {name for _, _, name in built} >= expected
    for v in fixed:
        assert re.search(rf"\bvoid {v.entry}\(", v.text), v.label


SAID = """
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'far' for 'sm_75'
    632 bytes stack frame, 604 bytes spill stores, 608 bytes spill loads
ptxas info    : Used 255 registers, used 0 barriers, 632 bytes cumulative stack size, 364 bytes cmem[0]
ptxas info    : Compiling entry function 'turn' for 'sm_75'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 16 registers, used 1 barriers, 516 bytes smem, 368 bytes cmem[0]
"""


@needs_clang
def test_what_ptxas_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilers, "_ptxas", lambda: "ptxas")
    monkeypatch.setattr(compilers, "_assemble", lambda *given: (SAID, True))
    turn, far = compilers.compile(TURN + FAR, ["-DSORT=float", "-DSIZE=129"], SM_80)
    assert (turn.registers, turn.local_memory, turn.problems) == (16, 516, ())
    assert (far.registers, far.spills, far.scratch) == (255, 151, 632)
    assert far.problems == ("spills 151 registers", "632 bytes of scratch a work-item")
    monkeypatch.setattr(compilers, "_assemble", lambda *given: ("ptxas error   : too much shared data\n", False))
    turn, far = compilers.compile(TURN + FAR, ["-DSORT=float", "-DSIZE=129"], SM_80)
    assert turn.problems == ("ptxas: ptxas error   : too much shared data",)
