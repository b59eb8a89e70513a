"""What compilers say of kernels for devices that are not here, and how their words are read."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest

from clsvm.errors import BuildError, ClsvmError
from clsvm.gram import programs
from clsvm.gram.units import UNITS
from clsvm.kernels.records import BUILTIN
from clsvm.opencl import sources
from clsvm.opencl.profiles import PROFILES
from clsvm.solvers.programs import subproblem
from clsvm.tools import audit
from clsvm.tools.audit import TARGETS, Finding, Target
from clsvm.tools.loops import busiest
from clsvm.tools.registry import of_units

GFX90A, SM_80 = TARGETS[1], TARGETS[3]
NAMES = [target.name for target in TARGETS]


@pytest.fixture
def compilers() -> None:
    """Tests that compile are skipped where nothing does."""
    if words := audit.missing():
        pytest.skip(words)


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


@pytest.mark.parametrize("target", TARGETS, ids=NAMES)
def test_local_memory_is_what_a_kernel_declares(compilers: None, target: audit.Target) -> None:
    for sort, size in (("float", 4), ("double", 8)):
        (found,) = audit.compile("turn", TURN, [f"-DSORT={sort}", "-DSIZE=100"], target)
        assert (found.program, found.entry, found.target) == ("turn", "turn", target)
        assert (found.local_memory, found.spills, found.scratch, found.problems) == (100 * size, 0, 0, ())
        assert (found.occupancy is None) == (target.family == "ptx")


@pytest.mark.parametrize("target", TARGETS, ids=NAMES)
def test_a_kernel_of_ours(compilers: None, target: audit.Target) -> None:
    (found,) = audit.compile("rowcache", sources.cl("solvers/rowcache"), ["-DWG=256"], target)
    assert (found.entry, found.local_memory) == ("plan", (256 + 16) * 4)
    assert found.scratch == found.spills == 0


def test_tiles_multiply_and_steps_do_not_wait(compilers: None) -> None:
    """Of the main loop of a wide tile 85 % are multiply-adds; a pair step passes five barriers."""
    for target in TARGETS[1:]:
        profile = PROFILES[target.profile]
        tile = programs.gram(BUILTIN["rbf"], "rows", "dense", "float32", profile, shape="wide")
        step = subproblem(profile, "float32", profile.working_set)
        (found,) = audit.compile(tile.label, tile.text, tile.options, target)
        assert (found.multiply_adds > 0.85, found.spills, found.scratch) == (True, 0, 0)
        (found,) = audit.compile(step.label, step.text, step.options, target)
        assert (found.barriers, found.spills, found.scratch) == (5, 0, 0)


@pytest.mark.parametrize("target", TARGETS, ids=NAMES)
def test_a_kernel_function_with_an_integer(compilers: None, target: Target) -> None:
    tile = programs.gram(BUILTIN["poly"], "both", "csr", "float32", PROFILES[target.profile])
    (found,) = audit.compile(tile.label, tile.text, tile.options, target)
    assert found.problems == ()


@pytest.mark.parametrize("target", [GFX90A, SM_80], ids=["mfma", "tf32"])
def test_matrix_units(compilers: None, target: Target) -> None:
    """Compilers know the instructions, and registers hold a tile."""
    (one,) = (one for one in UNITS if one.name == target.units)
    made = list(of_units(one, [BUILTIN["rbf"], BUILTIN["laplacian"]], PROFILES[target.profile]))
    labels = [
        f"rbf {product} dense float32 {one.name}"
        for product in ("rows", "rows, slabs", "update", "both", "both, slabs")
    ]
    assert [variant.label for variant in made] == [f"norms {one.name}", *labels]
    for variant in made:
        (found,) = audit.compile(variant.label, variant.text, variant.options, target)
        assert found.problems == ()


def test_the_busiest_loop() -> None:
    """The inner one of two, less what stands in a loop within it; a packed instruction is two."""
    text = """
f:
        s_mov_b32 s0, 0
.LBB0_1:                                ; =>
        v_exp_f32 v0, v1
        v_fma_f32 v0, v1, v2, v3
        v_fma_f32 v0, v1, v2, v3
.LBB0_2:
        ds_read_b128 v[0:3], v4
        v_pk_fma_f32 v[0:1], v[2:3], v[4:5], v[6:7]
        v_fmac_f32 v0, v1, v2
        s_barrier
        s_cbranch_scc1 .LBB0_2
        s_barrier
        s_branch .LBB0_1
        s_endpgm
    """
    assert busiest(text) == (pytest.approx(3 / 6), 2)
    ptx = "$L_1:\n  fma.rn.f32 %f1, %f2, %f3, %f4;\n  bar.sync 0;\n @%p1 bra $L_1;\n  bra.uni $L_2;\n$L_2:\n  ret;"
    assert busiest(ptx) == (pytest.approx(1 / 3), 1)
    assert busiest("f:\n  v_fma_f32 v0, v1, v2, v3\n  s_endpgm") == (0, 0)


@pytest.mark.parametrize("target", TARGETS, ids=NAMES)
def test_a_private_array_without_registers_is_scratch(compilers: None, target: audit.Target) -> None:
    turn, far = audit.compile("two", TURN + FAR, ["-DSORT=float", "-DSIZE=64"], target)
    assert (turn.entry, turn.problems) == ("turn", ())
    assert far.entry == "far"
    assert 4000 <= far.scratch < 4100
    assert far.problems == (f"{far.scratch} bytes of scratch a work-item",)


@pytest.mark.parametrize("target", TARGETS, ids=NAMES)
def test_local_memory_above_the_limit_is_a_problem(compilers: None, target: audit.Target) -> None:
    limit = target.limit // 4
    (fits,) = audit.compile("", TURN, ["-DSORT=float", f"-DSIZE={limit}"], target)
    (over,) = audit.compile("", TURN, ["-DSORT=float", f"-DSIZE={limit + 1}"], target)
    assert fits.problems == ()
    words = over.problems[:1] if target.family == "ptx" else over.problems  # (ptxas has its own)
    assert words == (f"{target.limit + 4} bytes of local memory, more than {target.limit}",)


@pytest.mark.parametrize("target", [GFX90A, SM_80], ids=["amd", "ptx"])
def test_what_clang_refuses_comes_with_its_words(compilers: None, target: audit.Target) -> None:
    with pytest.raises(BuildError) as caught:
        audit.compile("", "kernel void f(global float *x) {\n  x[0] = nobody;\n}", (), target)
    error = caught.value
    assert error.device == target.name
    assert "undeclared identifier 'nobody'" in error.log
    assert "   2   x[0] = nobody;" in error.source


@pytest.mark.parametrize("target", [GFX90A, SM_80], ids=["amd", "ptx"])
def test_a_function_that_nobody_defines_is_a_problem(compilers: None, target: audit.Target) -> None:
    text = "float other(float); kernel void f(global float *x) { x[0] = other(x[1]); }"
    (found,) = audit.compile("", text, (), target)
    assert any(words.startswith("calls other,") for words in found.problems)


def test_an_audit_keeps_the_order_and_stops_at_what_is_refused(compilers: None) -> None:
    good, bad = (TURN, ["-DSORT=float", "-DSIZE=64"]), ("kernel", ())
    found = audit.audit([("a", *good), ("b", *good), ("c", *bad), ("d", *good)], GFX90A)
    assert [(one.program, one.target) for one in (next(found), next(found))] == [("a", GFX90A), ("b", GFX90A)]
    with pytest.raises(BuildError, match="gfx90a"):
        next(found)


def test_an_audit_compiles_the_same_thing_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def compile_(label: str, text: str, options: tuple[str, ...], target: audit.Target) -> list[Finding]:
        assert target == GFX90A
        calls.append((text, options))
        return [finding(program=label, entry=text, target=target)]

    monkeypatch.setattr(audit, "compile", compile_)
    programs = [("a", "s", ["-DX"]), ("b", "t", ["-DX"]), ("c", "s", ("-DX",)), ("d", "s", [])]
    found = [(one.program, one.entry) for one in audit.audit(iter(programs), GFX90A, jobs=3)]
    assert found == [(label, text) for label, text, _ in programs]
    assert sorted(calls) == [("s", ()), ("s", ("-DX",)), ("t", ("-DX",))]


def test_what_is_missing_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, said in (("clang-of-nobody", "no clang-of-nobody was found"), ("false", "false")):
        monkeypatch.setenv("CLSVM_CLANG", name)
        assert said in audit.missing()
        assert "libclc" in audit.missing()
        with pytest.raises(ClsvmError, match=said):
            audit.compile("", FAR, (), GFX90A)


# Reading what compilers write.


def finding(**figures: object) -> Finding:
    none = Finding("", "f", GFX90A, 20, 20, spills=0, scalar_spills=0, scratch=0, local_memory=0)
    return replace(none, **figures)  # type: ignore[arg-type]


def test_what_counts_as_a_problem() -> None:
    assert audit.problems(finding(local_memory=GFX90A.limit, registers=256)) == ()
    assert audit.problems(finding(spills=3)) == ("spills 3 registers",)
    assert audit.problems(finding(scalar_spills=4)) == ()
    assert len(audit.problems(finding(spills=1, scalar_spills=1, scratch=1, local_memory=1 << 16))) == 3


GCN = """
	.amdhsa_kernel turn
	.end_amdhsa_kernel
; Kernel info:
; NumVgprs: 7
; Occupancy: 8
	.amdhsa_kernel far
	.end_amdhsa_kernel
; Kernel info:
; NumVgprs: 101
; Occupancy: 4
	.amdgpu_metadata
---
amdhsa.kernels:
  - .args:
      - .address_space:  global
        .name:           x
        .size:           8
        .value_kind:     global_buffer
      - .address_space:  local
        .size:           4
        .value_kind:     dynamic_shared_pointer
    .group_segment_fixed_size: 12288
    .language:       OpenCL C
    .language_version:
      - 1
      - 2
    .max_flat_workgroup_size: 64
    .name:           turn
    .private_segment_fixed_size: 0
    .reqd_workgroup_size:
      - 64
      - 1
      - 1
    .sgpr_count:     14
    .sgpr_spill_count: 0
    .symbol:         turn.kd
    .vgpr_count:     7
    .vgpr_spill_count: 0
    .wavefront_size: 64
  - .args:
      - .offset:         8
        .size:           4
        .type_name:      int
        .value_kind:     by_value
    .group_segment_fixed_size: 0
    .max_flat_workgroup_size: 256
    .name:           far
    .private_segment_fixed_size: 404
    .sgpr_count:     32
    .sgpr_spill_count: 2
    .symbol:         far.kd
    .vgpr_count:     101
    .vgpr_spill_count: 3
    .wavefront_size: 64
amdhsa.target:   amdgcn-unknown-amdhsa--gfx90a
amdhsa.version:
  - 1
  - 1
...
	.end_amdgpu_metadata
"""


def test_the_assembly_of_amd() -> None:
    turn, far = audit.parse("both", GCN, GFX90A)
    # five groups of one wavefront have room in 64 KiB: 5 wavefronts for 4 SIMDs
    assert turn == Finding("both", "turn", GFX90A, 7, 14, 0, 0, scratch=0, local_memory=12288, occupancy=5 / 4)
    assert far == Finding("both", "far", GFX90A, 101, 32, 3, 2, scratch=404, local_memory=0, occupancy=4)
    assert audit.parse("", GCN.replace("12288", "512"), GFX90A)[0].occupancy == 8  # registers are what limits


PTX = """
.visible .entry turn(
	.param .u64 turn_param_0,
	.param .u64 .ptr .shared .align 4 turn_param_1
)
{
	.reg .b32 	%r<8>;
	// demoted variable
	.shared .align 8 .b8 turn_$_rows[512];
	// demoted variable
	.shared .align 4 .u32 turn_$_count;
	ld.shared.u32 	%r7, [turn_$_count];
	mov.u64 	%rd9, turn_$_rows;
	ret;

}
	// .globl	far
.visible .entry far(
	.param .u64 far_param_0
)
{
	.local .align 4 .b8 	__local_depot1[400];
	.reg .b64 	%SPL;
	mov.u64 	%SPL, __local_depot1;
	ret;

}
"""
SAID = """
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'far' for 'sm_75'
ptxas info    : Function properties for far
    632 bytes stack frame, 604 bytes spill stores, 608 bytes spill loads
ptxas info    : Used 255 registers, used 0 barriers, 632 bytes cumulative stack size, 364 bytes cmem[0]
ptxas info    : Compiling entry function 'turn' for 'sm_75'
ptxas info    : Function properties for turn
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 16 registers, used 1 barriers, 516 bytes smem, 368 bytes cmem[0]
"""


def test_ptx_and_what_ptxas_says_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "_toolchain", lambda asked: ("clang", {"ptx": "libclc"}, ""))
    monkeypatch.setattr(audit, "_run", lambda *given: subprocess.CompletedProcess([], 0, PTX, ""))
    monkeypatch.setattr(audit, "_ptxas", lambda: None)
    turn, far = audit.compile("both", FAR, (), SM_80)
    assert turn == Finding("both", "turn", SM_80, None, None, 0, 0, scratch=0, local_memory=516)
    assert replace(far, problems=()) == Finding("both", "far", SM_80, None, None, 0, 0, scratch=400, local_memory=0)

    monkeypatch.setattr(audit, "_ptxas", lambda: "ptxas")
    monkeypatch.setattr(audit, "_assemble", lambda *given: (SAID, True))
    turn, far = audit.compile("both", FAR, (), SM_80)
    assert turn == Finding("both", "turn", SM_80, 16, None, 0, 0, scratch=0, local_memory=516)
    assert (far.registers, far.spills, far.scratch) == (255, 151, 632)
    assert far.problems == ("spills 151 registers", "632 bytes of scratch a work-item")

    monkeypatch.setattr(audit, "_assemble", lambda *given: ("ptxas error   : too much shared data\n", False))
    turn, far = audit.compile("both", FAR, (), SM_80)
    assert turn.problems == ("ptxas: ptxas error   : too much shared data",)
    assert far.scratch == 400
