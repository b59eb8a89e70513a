"""Cross-compile programs for GPUs that this machine does not have, and read the figures of each kernel.

clang and libclc translate a program for AMD GPUs, and into PTX for NVIDIA GPUs. AMD assembly states the registers and
spills of each kernel. For PTX, NVIDIA's ``ptxas`` states them if it is installed. Drivers have compilers of their own,
so the figures are estimates. They exclude local memory that is an argument of a kernel.
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

LOCAL_LIMIT = 32 << 10  # bytes of local memory for a work-group that every OpenCL 1.2 device has
LARGER_LIMIT = 48 << 10  # bytes that all NVIDIA devices have, and AMD devices with matrix units (tensor cores)
SIMDS = 4  # SIMDs of an AMD compute unit, for RDNA of the two units that share local memory
# Variable in PTX: memory space, bits of an item, name, number of items
_DECLARED = r"\.(local|shared) +(?:\.align \d+ )?\.[a-z](\d+)\s+([\w$]+)(?:\[(\d+)\])?;"
_PTXAS_FIGURE = r"(\d+) (?:bytes )?(registers|stack|spill stores)"


@dataclass(frozen=True)
class Target:
    """Describe a device to compile for.

    Attributes
    ----------
    name
        name of the device for clang and ptxas.
    wavefront
        work-items that run in lockstep.
    family
        "amd" or "ptx".
    local_memory
        bytes of local memory of a compute unit, shared by the work-groups on its SIMDS SIMDs.
    limit
        most bytes of local memory of a work-group.
    profile
        name of its record in clsvm.opencl.profiles.
    units
        name of its matrix units (tensor cores) in clsvm.gram.programs, or "".
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
    """Hold the figures of one kernel on one target; None for a figure that the compilers do not state.

    Attributes
    ----------
    entry
        name of the kernel.
    target
        the target.
    registers, scalar_registers
        32-bit vector registers of a work-item, and scalar registers of a wavefront.
    spills
        vector registers that were spilled to memory. Scalar registers spill to lanes of vector registers.
    scratch
        bytes of private memory of a work-item outside registers.
    local_memory
        bytes of local memory of a work-group.
    occupancy
        average wavefronts on a SIMD, for work-groups of the required size, or of the largest allowed size.
    multiply_adds, barriers
        figures of the busiest loop (tools.loops).
    problems
        faults in words.
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
    """Yield the faults in words: spilled registers, scratch memory, local memory above the target's limit."""
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
        clang rejects the text. A rejection by ptxas is a problem in the findings.
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
    """Return the findings in clang's ``assembly``, with no problems yet."""
    return list((_parse_amd if target.family == "amd" else _parse_ptx)(assembly, target))


def _parse_amd(assembly: str, target: Target) -> Iterator[Finding]:
    stated = re.findall(r"^\s*\.amdhsa_kernel (\S+)$.*?^; Occupancy: (\d+)$", assembly, re.M | re.S)
    waves = {name: float(occupancy) for name, occupancy in stated}  # as limited by registers and the group's size
    metadata = re.search(r"^amdhsa\.kernels:\n((?: .*\n)*)", assembly, re.M)
    for block in re.split(r"^  - ", metadata[1] if metadata else "", flags=re.M)[1:]:  # keys begin in column 4
        values = dict(re.findall(r"^    \.(\w+): +(\S+)$", "    " + block, re.M))
        name = values.pop("name").strip("'\"")
        number = {key: int(value) for key, value in values.items() if value.isdecimal()}
        local, occupancy = number["group_segment_fixed_size"], waves.get(name)
        if local and occupancy:  # LLVM limits a SIMD by the wavefronts of a whole compute unit
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
    """Return the findings with the registers, spills and stack that ``ptxas -v`` states."""
    sections = re.split(r"Compiling entry function '([^']+)'", log)
    words, made = dict(zip(sections[1::2], sections[2::2], strict=True)), []
    for found in findings:
        said = {name: int(n) for n, name in re.findall(_PTXAS_FIGURE, words.get(found.entry, ""))}
        spills, scratch = said.get("spill stores", 0) // 4, said.get("stack", found.scratch)
        made.append(replace(found, registers=said.get("registers"), spills=spills, scratch=scratch))
    return made


def _undefined(assembly: str) -> list[str]:
    """Return the names of functions that are called but not defined."""
    called = re.findall(r"([\w.$]+)@(?:gotpcrel|rel)32", assembly)  # AMD
    called += re.findall(r"^\.extern \.func [^;]*?([\w$]+)\s*\(", assembly, re.M)  # PTX
    return sorted(name for name in set(called) if not re.search(rf"^{re.escape(name)}:", assembly, re.M))


# Compilers


def missing() -> str:
    """Return in words the programs that the audit needs and that are not installed, or "" if all are."""
    return _toolchain(os.environ.get("CLSVM_CLANG", ""))[2]


def _run(command: Sequence[str], text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, input=text, capture_output=True, encoding="utf-8", errors="replace", check=False)


def _command(clang: str, library: str, target: Target, options: Sequence[str]) -> list[str]:
    triple = "amdgcn--amdhsa" if target.family == "amd" else "nvptx64--nvidiacl"
    to_compiler = ["-finclude-default-header", "-mlink-builtin-bitcode", library, "-target-cpu", target.name]
    made = [clang, "-x", "cl", "-cl-std=CL1.2", "-nogpulib", "-target", triple, *options]
    return [*made, *(word for flag in to_compiler for word in ("-Xclang", flag)), "-O3", "-S", "-o", "-", "-"]


def _assemble(ptxas: str, assembly: str, target: Target) -> tuple[str, bool]:
    """Return ptxas's log, and whether it succeeded. Use its default device if it does not support ``target``."""
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
    """Return the path of NVIDIA's assembler, on the PATH or in a package that pip installed, or None."""
    packaged = (path for entry in sys.path for path in sorted(Path(entry).glob("nvidia/*/bin/ptxas")))
    return shutil.which("ptxas") or next(map(str, packaged), None)


@cache
def _toolchain(asked: str) -> tuple[str, dict[str, str], str]:
    """Return the first clang that compiles a trial program, libclc's file for each family, and in words any
    missing program.
    """
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
    """Return libclc's files for ``family``: first those next to ``clang``, then those in system folders."""
    pattern = "amdgcn-*amdhsa*.bc" if family == "amd" else "nvptx64-*nvidiacl*.bc"
    roots = [Path(clang).resolve().parents[1], *map(Path, ("/usr", "/usr/local")), *Path("/usr/lib").glob("llvm-*")]
    folders = [root / part / "clc" for root in roots for part in ("lib", "lib64", "share")]
    return list(dict.fromkeys(str(file) for folder in folders for file in sorted(folder.glob(pattern))))
