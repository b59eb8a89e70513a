"""Damaged files, thousands of them: every reader gives what a file can mean, or one of its own errors; soon, and in
little memory.

The n-th file is always the same one. CLSVM_FUZZ=100000 reads so many in place of the few that a test run has time for,
and prints what it saw.
"""

import bz2
import gzip
import io
import lzma
import os
import re
import time
import tracemalloc
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from clsvm import Kernel, load_model, save_model
from clsvm.models import libsvm, svmlight
from clsvm.models.model import KernelModel
from tests.models.test_libsvm import MODELS, model_of, with_estimates

pytestmark = pytest.mark.full

FILES = int(os.environ.get("CLSVM_FUZZ", "600"))
SECONDS = 1.0  # of the processor, for one file
LARGEST = 300_000  # bytes of a file
FLOOR, TIMES = 1 << 20, 10  # bytes of memory: so many, or so many times the file
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lambda text: lzma.compress(text, preset=0),  # (the unpacker's tables are as large as the file says)
}
OPENERS: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.decompress, ".bz2": bz2.decompress, ".xz": lzma.decompress}
WORDS = (
    *b"nan inf -inf 1e999 -1e999 1e308 1e-400 -0 0 -1 1e9 0x10 1_0 +5 .5 5. 1e 1e5e5 - . e : :: 1: :1 1:1:1".split(),
    *b"2147483647 2147483648 -2147483649 9223372036854775808 99999999999999999999 # qid:1 qid:x SV label nr_sv".split(),
    *"\u0661 \u00bd \u221e \u2028 \ufeff".encode().split(b" "),
    *(b"\x00", b"\xff\xfe", b"\xc3", b"\x1a", b"\x0c", b"x" * 3000),
    *(b"9" * 400, b"0." + b"1" * 5000, b"1e" + b"9" * 50, b"7" * 5000 + b":1"),
)
EXPECTED = {"npz": r": got (?s:.*), expected ", "text": r"(, line \d+)?: got (?s:.*), expected "}  # after the path
Random = np.random.Generator
Bytes = Callable[[bytes, Random], bytes]


# What is damaged


def good_files(folder: Path) -> dict[str, bytes]:
    """Files by their names: models in LIBSVM's and our format of every type, with and without probabilities; data."""
    found: dict[str, bytes] = {}
    tasks = [*MODELS, ("c_svc", 2)]
    models: dict[str, KernelModel] = {f"{task}{k}.probable": with_estimates(task, k) for task, k in tasks}
    models |= {f"{task}{k}": model_of(task, k) for task, k in MODELS}
    for name, model in models.items():
        libsvm.save_model(model, folder / "m")
        found[f"{name}.model"] = (folder / "m").read_bytes()
        dense = model.support_vectors.toarray()
        for form, vectors in (("csr", model.support_vectors), ("dense", dense)):
            save_model(replace(model, support_vectors=vectors), folder / "m")
            found[f"{name}.{form}.npz"] = (folder / "m").read_bytes()
    own = Kernel("exp(-gamma * sqdist) + c * dot ** degree", gamma=0.3, c=0.1, degree=2)
    labels = np.array(["ham", "maybe", "no", "spam"])
    save_model(replace(model_of("c_svc", 4), kernel=own, classes=labels), folder / "m")
    found["text.npz"] = (folder / "m").read_bytes()
    rng = np.random.default_rng(2)
    X = rng.normal(size=(40, 12)) * (rng.random((40, 12)) < 0.5)
    for name, y in (("classes", rng.integers(0, 3, 40)), ("values", rng.normal(size=40))):
        rows = zip(X.tolist(), y.tolist(), strict=True)
        text = "".join(f"{v} " + " ".join(f"{j + 1}:{x!r}" for j, x in enumerate(row) if x) + "\n" for row, v in rows)
        found[f"{name}.data"] = ("# a comment\n\n" + text.replace("\n", " # of a row\n", 1)).encode()
    found |= {f"{name}.data{suffix}": pack(found["values.data"]) for suffix, pack in PACKERS.items() for name in "z"}
    return found


# Damage


def place(content: bytes, rng: Random) -> slice:
    """Some bytes of the content, mostly few."""
    begin = int(rng.integers(len(content) + 1))
    return slice(begin, begin + int(rng.integers(1, 4 if rng.random() < 0.7 else 200)))


def flip(content: bytes, rng: Random) -> bytes:
    made = bytearray(content or b"x")
    for at in rng.integers(len(made), size=rng.integers(1, 6)):
        made[at] = rng.integers(256) if rng.random() < 0.5 else made[at] ^ 1 << rng.integers(8)
    return bytes(made)


def delete(content: bytes, rng: Random) -> bytes:
    part = place(content, rng)
    return content[: part.start] + content[part.stop :]


def insert(content: bytes, rng: Random) -> bytes:
    part = place(content, rng)
    what = rng.bytes(part.stop - part.start) if rng.random() < 0.3 else WORDS[rng.integers(len(WORDS))]
    return content[: part.start] + what + content[part.start :]


def new_word(content: bytes, rng: Random) -> bytes:
    """Another number or word where a number stands; in the first half more often, where counts and sizes stand."""
    words = list(re.finditer(rb"[-+.\w]*\d[-+.\w]*", content))
    if not words:
        return content
    word = words[int(len(words) * rng.random() ** 3)]
    number = f"{rng.integers(-3, 30)}" if rng.random() < 0.7 else f"{rng.normal() * 10.0 ** rng.integers(-320, 308)!r}"
    made = number.encode() if rng.random() < 0.7 else WORDS[rng.integers(len(WORDS))]
    return content[: word.start()] + made + content[word.end() :]


def long_line(content: bytes, rng: Random) -> bytes:
    at = place(content, rng).start
    count = int(rng.integers(1000, 8000))
    what = rng.choice(["1 ", "1:1 ", "x", " ", "9", "cells"])
    made = " ".join(f"{i}:1" for i in range(1, count)) if what == "cells" else what * count
    return content[:at] + made.encode() + content[at:]


DAMAGE: tuple[Bytes, ...] = (flip, delete, insert, new_word, new_word, new_word, long_line)


def damaged(content: bytes, rng: Random) -> bytes:
    for number in rng.integers(len(DAMAGE), size=rng.integers(1, 4)):
        content = DAMAGE[number](content, rng)[:LARGEST]
    return content


def new_element(member: bytes, rng: Random) -> bytes:
    """Another value in an array."""
    array = np.load(io.BytesIO(member))
    if array.size:
        values = {"f": (np.nan, np.inf, -np.inf, 0, -1, 1e308), "U": ("", "x", "rbf", "csr", "clsvm model")}
        chosen = values.get(array.dtype.kind, (-(2**31), -1, 0, 1, 3, 1000, 2**31 - 1))
        array.flat[rng.integers(array.size)] = chosen[rng.integers(len(chosen))]
    np.save(made := io.BytesIO(), array)
    return made.getvalue()


def damaged_archive(content: bytes, rng: Random) -> bytes:
    """Damage with the right checksums, much of it in the text of a kernel or in one number; or that of any bytes."""
    if rng.random() < 0.2:
        return damaged(content, rng)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    name = "kernel.npy" if rng.random() < 0.2 else list(members)[rng.integers(len(members))]
    packing, how = zipfile.ZIP_STORED, rng.random()
    if how < 0.5:
        members[name] = new_element(members[name], rng)
    elif how < 0.55:  # small, and large when unpacked
        packing, members[name] = zipfile.ZIP_DEFLATED, members[name] + bytes(3 << 20)
    elif how < 0.6:
        del members[name]
    elif name == "kernel.npy":
        text = damaged(str(np.load(io.BytesIO(members[name]))).encode(), rng).decode("utf-8", "replace")
        np.save(made := io.BytesIO(), np.array(text))
        members[name] = made.getvalue()
    else:
        members[name] = (flip if rng.random() < 0.7 else damaged)(members[name], rng)
    with zipfile.ZipFile(made := io.BytesIO(), "w", packing) as archive:
        for member, data in members.items():
            archive.writestr(member, data)
    return made.getvalue()


def damage(name: str, content: bytes, rng: Random) -> tuple[bytes, int]:
    """A damaged file and how many bytes there are to read."""
    suffix = Path(name).suffix
    if suffix == ".npz":
        made = damaged_archive(content, rng)
    elif suffix in PACKERS and rng.random() < 0.5:
        text = damaged(OPENERS[suffix](content), rng)
        return PACKERS[suffix](text), len(text)
    else:
        made = damaged(content, rng)
    return made, max(len(made), len(content))


# Readers


def read(path: Path, kind: str, rng: Random) -> Any:
    if kind == "model":
        return (libsvm.load_model if rng.random() < 0.5 else load_model)(path)
    if kind == "npz":
        return load_model(path)
    return svmlight.read_problem(path, None if rng.random() < 0.7 else int(rng.integers(1, 20)))


def check(found: Any) -> None:
    """What was read is what its documentation says."""
    if isinstance(found, KernelModel):
        vectors = found.support_vectors
        n, k = vectors.shape[0], len(found.classes)
        assert found.dual_coef.shape[1] == n == int(found.n_support.sum())
        numbers = [found.dual_coef, found.intercept, vectors.data if sparse.issparse(vectors) else vectors]
        numbers += [part for part in (found.probA, found.probB, found.prob_density_marks) if part is not None]
        assert all(np.isfinite(part).all() for part in numbers)
        assert len(np.unique(found.classes)) == k
        return
    if isinstance(found, tuple) and sparse.issparse(found[0]):
        X, y = found
        assert X.shape[0] == len(y) > 0
        assert np.isfinite(X.data).all()
        assert np.isfinite(y).all()
        assert X.has_sorted_indices
        assert not X.nnz or 0 <= X.indices.min() <= X.indices.max() < X.shape[1] < 2**31


def measured(path: Path, kind: str, number: int, size: int) -> tuple[str, str]:
    """Return how the reading of a file ended, "read" or "refused", and what is wrong with that."""
    tracemalloc.reset_peak()
    before, started = tracemalloc.get_traced_memory()[0], time.process_time()
    end = "read"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check(read(path, kind, np.random.default_rng([21, number])))
    except ValueError as error:
        end, text = "refused", str(error).removeprefix(str(path))
        form = "npz" if path.read_bytes()[:2] == b"PK" else "text"
        if not re.match(EXPECTED[form], text) or len(text) > 1000:
            return end, f"{len(text)} characters: {text[:300]}"
    except Exception as error:
        return end, f"{type(error).__name__}: {str(error)[:300]}"
    seconds, peak = time.process_time() - started, tracemalloc.get_traced_memory()[1] - before
    return end, f"{seconds:.2f} s" * (seconds > SECONDS) + f"{peak} bytes" * (peak > max(FLOOR, TIMES * size))


def test_damaged_files(tmp_path: Path) -> None:
    good = good_files(tmp_path)
    names = [name for name in good for _ in range(1 if name.endswith(".npz") else 3)]
    for name, content in good.items():  # (what is imported on first use is imported here)
        (tmp_path / name).write_bytes(content)
        check(read(tmp_path / name, kind_of(name), np.random.default_rng(0)))
    found, seen = list[str](), Counter[str]()
    tracemalloc.start()
    for number in range(FILES):
        rng = np.random.default_rng([20, number])
        name = names[rng.integers(len(names))]
        content, size = damage(name, good[name], rng)
        path, kind = tmp_path / f"{number}{Path(name).suffix}", kind_of(name)
        path.write_bytes(content)
        end, wrong = measured(path, kind, number, size)
        if wrong:  # what is not the file's own, the interpreter's say, does not come again
            end, wrong = measured(path, kind, number, size)
        path.unlink()
        found += [f"file {number}, {name} of {size} bytes: {wrong}"] * bool(wrong)
        seen[f"{kind} {end}"] += 1
    tracemalloc.stop()
    print(f"{FILES} files, {dict(seen)}")
    assert not found, f"{len(found)} of {FILES}:\n" + "\n".join(found[:20])
    assert all(seen[f"{kind} {end}"] for kind in ("model", "npz", "data") for end in ("read", "refused"))


def kind_of(name: str) -> str:
    """Model, npz or data."""
    return Path(name.removesuffix(Path(name).suffix) if Path(name).suffix in PACKERS else name).suffix[1:]
