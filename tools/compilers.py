"""Cross-compilers for GPUs that are not here, and the figures that they state of each kernel.

clang and libclc translate a program for AMD's GPUs, whose assembly states the registers and spills of each kernel, and
into PTX. NVIDIA's ``ptxas`` adds PTX's registers and spills where it is installed. Drivers have compilers of their own,
so the figures are estimates. They leave out local memory that is an argument of a kernel.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from clsvm.errors import BuildError, ClsvmError
from tools.loops import busiest

LOCAL_LIMIT = 32 << 10  # bytes of local memory a work-group: the least that OpenCL 1.2 allows a device to have
LARGER_LIMIT = 48 << 10  # bytes that every device of NVIDIA has, and AMD's that have matrix units
SIMDS = 4  # of an AMD compute unit (RDNA: of the pair of units that share local memory)
# A variable in PTX: its space, the bits of an item, its name, the number of items
_DECLARED = r"\.(local|shared) +(?:\.align \d+ )?\.[a-z](\d+)\s+([\w$]+)(?:\[(\d+)\])?;"
_PTXAS_FIGURE = r"(\d+) (?:bytes )?(registers|stack|spill stores)"


@dataclass(frozen=True)
class Target:
    """A device to compile for.

    name: clang's and ptxas's name of the device. wavefront: work-items that run in step. family: "amd" or "ptx".
    local_memory: bytes of a compute unit, for all work-groups on its SIMDS SIMDs. limit: bytes of local memory that a
    work-group may have. profile: the name of its record in clsvm.opencl.profiles. units: the name of its matrix units
    in clsvm.gram.programs, or "".
    """

    name: str
    wavefront: int
    family: str
    local_memory: int = 0
    limit: int = LOCAL_LIMIT
    profile: str = "gpu"
    units: str = ""


TARGETS = (
    Target("gfx906", 64, "amd", 64 << 10),
    Target("gfx90a", 64, "amd", 64 << 10, limit=LARGER_LIMIT, units="mfma float32"),
    Target("gfx1030", 32, "amd", 128 << 10),
    Target("sm_80", 32, "ptx", limit=LARGER_LIMIT, profile="nvidia", units="tf32 x 3"),
)


@dataclass(frozen=True)
class Finding:
    """The figures of one kernel on one target; None where the compilers do not state one.

    entry: the kernel's name. registers, scalar_registers: 32-bit vector registers a work-item, scalar registers a
    wavefront. spills: vector registers that had no room. (Scalar registers spill into lanes of vector registers.)
    scratch: bytes a work-item of private memory outside of registers. local_memory: bytes a work-group. occupancy:
    wavefronts that a SIMD holds on average, of groups of the size that the kernel requires, else of the largest size
    that the compiler allows for. multiply_adds, barriers: of its busiest loop (tools.loops). problems: its faults.
    """

    entry: str
    target: Target
    registers: int | None = None
    scalar_registers: int | None = None
    spills: int = 0
    scratch: int = 0
    local_memory: int = 0
    occupancy: float | None = None
    multiply_adds: float = 0.0
    barriers: int = 0
    problems: tuple[str, ...] = ()


def problems(finding: Finding) -> Iterator[str]:
    """Yield the faults that the figures show: spilled registers, scratch, local memory above the target's limit."""
    memory, limit = finding.local_memory, finding.target.limit
    if finding.spills:
        yield f"spills {finding.spills} registers"
    if finding.scratch:
        yield f"{finding.scratch} bytes of scratch a work-item"
    if memory > limit:
        yield f"{memory} bytes of local memory, more than {limit}"


def compile(text: str, options: Sequence[str], target: Target) -> list[Finding]:  # noqa: A001
    """Compile ``text`` for ``target`` and return a finding for each of its kernels, in their order.

    Raises
    ------
    BuildError
        clang refuses the text. (A refusal of ptxas is a problem of the findings.)
    ClsvmError
        clang or libclc is missing, see :func:`missing`.
    """
    clang, libraries, words = _toolchain(os.environ.get("CLSVM_CLANG", ""))
    if words:
        raise ClsvmError(words)
    done = _run(_command(clang, libraries[target.family], target, options), text)
    if done.returncode:
        raise BuildError(target.name, done.stderr, text)
    faults = [f"calls {name}, which libclc lacks: the figures do not hold" for name in _undefined(done.stdout)]
    findings = parse(done.stdout, target)
    if target.family == "ptx" and (assembler := _ptxas()) and not faults:
        log, ok = _assemble(assembler, done.stdout, target)
        findings, faults = _with_ptxas(findings, log), [] if ok else [f"ptxas: {log.strip()}"]
    return [replace(found, problems=(*problems(found), *faults)) for found in findings]


# Assembly


def parse(assembly: str, target: Target) -> list[Finding]:
    """Return the findings that clang's ``assembly`` states; their problems are left empty."""
    return list((_parse_amd if target.family == "amd" else _parse_ptx)(assembly, target))


def _parse_amd(assembly: str, target: Target) -> Iterator[Finding]:
    stated = re.findall(r"^\s*\.amdhsa_kernel (\S+)$.*?^; Occupancy: (\d+)$", assembly, re.M | re.S)
    waves = {name: float(occupancy) for name, occupancy in stated}  # as registers and the size of a group limit them
    metadata = re.search(r"^amdhsa\.kernels:\n((?: .*\n)*)", assembly, re.M)
    for block in re.split(r"^  - ", metadata[1] if metadata else "", flags=re.M)[1:]:  # keys stand in column 4
        values = dict(re.findall(r"^    \.(\w+): +(\S+)$", "    " + block, re.M))
        name = values.pop("name").strip("'\"")
        number = {key: int(value) for key, value in values.items() if value.isdecimal()}
        local, occupancy = number["group_segment_fixed_size"], waves.get(name)
        if local and occupancy:  # LLVM compares wavefronts of a compute unit with those of a SIMD
            group = -(-number["max_flat_workgroup_size"] // target.wavefront)
            occupancy = min(occupancy, target.local_memory // local * group / SIMDS)
        body = re.search(rf"^{re.escape(name)}:.*?$(.*?)^\.Lfunc_end", assembly, re.M | re.S)
        registers, spills = (number["vgpr_count"], number["sgpr_count"]), number["vgpr_spill_count"]
        figures = (*registers, spills, number["private_segment_fixed_size"], local, occupancy)
        yield Finding(name, target, *figures, *busiest(body[1] if body else ""))


def _parse_ptx(assembly: str, target: Target) -> Iterator[Finding]:
    for entry, body in re.findall(r"\.entry ([\w$]+)(.*?)^}", assembly, re.M | re.S):
        memory, used = {"local": 0, "shared": 0}, set(re.findall(r"[\w$]+", body))
        for space, bits, name, count in re.findall(_DECLARED, assembly):
            if name in used:
                memory[space] += int(bits) // 8 * int(count or 1)
        loop = busiest(body)
        yield Finding(
            entry, target, scratch=memory["local"], local_memory=memory["shared"],
            multiply_adds=loop.multiply_adds, barriers=loop.barriers,
        )  # fmt: skip


def _with_ptxas(findings: list[Finding], log: str) -> list[Finding]:
    """Return the findings with the registers, spills and stack of ``ptxas -v``."""
    sections = re.split(r"Compiling entry function '([^']+)'", log)
    words, made = dict(zip(sections[1::2], sections[2::2], strict=True)), []
    for found in findings:
        said = {name: int(n) for n, name in re.findall(_PTXAS_FIGURE, words.get(found.entry, ""))}
        spills, scratch = said.get("spill stores", 0) // 4, said.get("stack", found.scratch)
        made.append(replace(found, registers=said.get("registers"), spills=spills, scratch=scratch))
    return made


def _undefined(assembly: str) -> list[str]:
    """Return the names of functions that are called and not defined."""
    called = re.findall(r"([\w.$]+)@(?:gotpcrel|rel)32", assembly)  # AMD
    called += re.findall(r"^\.extern \.func [^;]*?([\w$]+)\s*\(", assembly, re.M)  # PTX
    return sorted(name for name in set(called) if not re.search(rf"^{re.escape(name)}:", assembly, re.M))


# Programs that are run


def missing() -> str:
    """Return in words what the audit needs and is not installed, "" where nothing is missing."""
    return _toolchain(os.environ.get("CLSVM_CLANG", ""))[2]


def _run(command: Sequence[str], text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, input=text, capture_output=True, encoding="utf-8", errors="replace", check=False)


def _command(clang: str, library: str, target: Target, options: Sequence[str]) -> list[str]:
    triple = "amdgcn--amdhsa" if target.family == "amd" else "nvptx64--nvidiacl"
    to_compiler = ["-finclude-default-header", "-mlink-builtin-bitcode", library, "-target-cpu", target.name]
    made = [clang, "-x", "cl", "-cl-std=CL1.2", "-nogpulib", "-target", triple, *options]
    return [*made, *(word for flag in to_compiler for word in ("-Xclang", flag)), "-O3", "-S", "-o", "-", "-"]


def _assemble(ptxas: str, assembly: str, target: Target) -> tuple[str, bool]:
    """Return ptxas's log and whether it succeeded; for its default device where it no longer knows ``target``."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "program.ptx")
        file.write_text(assembly, "utf-8")
        command = [ptxas, "-v", "-o", str(file.with_suffix(".out")), str(file)]
        done = _run([*command, f"-arch={target.name}"])
        if done.returncode and "gpu-name" in done.stderr:
            done = _run(command)
    return done.stdout + done.stderr, not done.returncode


@cache
def _ptxas() -> str | None:
    """Return the path of NVIDIA's assembler: on the PATH, or in a package of NVIDIA's from pip."""
    packaged = (path for entry in sys.path for path in sorted(Path(entry).glob("nvidia/*/bin/ptxas")))
    return shutil.which("ptxas") or next(map(str, packaged), None)


@cache
def _toolchain(asked: str) -> tuple[str, dict[str, str], str]:
    """Return the first clang that compiles a trial program, libclc's file for each family, and what is missing."""
    names = [asked] if asked else ["clang", *(f"clang-{version}" for version in range(14, 21))]
    clangs = [clang for name in names if (clang := shutil.which(name))]
    said = "" if clangs else "no " + (asked or "clang") + " was found"
    trial = "kernel void trial(global float *x) { x[get_global_id(0)] = exp(x[0]); }"
    families = {target.family: target for target in TARGETS}
    for clang in clangs:
        libraries: dict[str, str] = {}
        for family, target in families.items():
            files = _libraries(clang, family)
            said = said or f"no libclc was found for {clang}" * (not files)
            for file in files:
                done = _run(_command(clang, file, target, ()), trial)
                if not done.returncode and not _undefined(done.stdout):
                    libraries[family] = file
                    break
                said = said or f"{clang} with {file}: {done.stderr.strip()}"
        if libraries.keys() == families.keys():
            return clang, libraries, ""
    needed = "clang with its OpenCL header and the targets AMDGPU and NVPTX, and libclc"
    return "", {}, f"the audit needs {needed} (Debian: clang-14 libclc-14; CLSVM_CLANG names another clang): {said}"


def _libraries(clang: str, family: str) -> list[str]:
    """Return libclc's files for ``family``: beside ``clang`` first, then where systems put them."""
    pattern = "amdgcn-*amdhsa*.bc" if family == "amd" else "nvptx64-*nvidiacl*.bc"
    roots = [Path(clang).resolve().parents[1], *map(Path, ("/usr", "/usr/local")), *Path("/usr/lib").glob("llvm-*")]
    folders = [root / part / "clc" for root in roots for part in ("lib", "lib64", "share")]
    return list(dict.fromkeys(str(file) for folder in folders for file in sorted(folder.glob(pattern))))
