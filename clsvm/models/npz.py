"""Save and load models as .npz archives, which can hold any kernel function and any labels.

:func:`load_model` also reads the text files of LIBSVM's svm-train (libsvm.py). An archive holds plain arrays without
compression and without pickle, so that ``np.load`` shows them.

The table lists the keys of an archive. n_SV, k and d are the numbers of support vectors, classes and features. p is the
number of problems: k if each class has a problem, the number of outputs of a Nyström regression, else 1.

    format, version                       "clsvm model", 1
    kernel                                Kernel.record() as JSON, which Kernel.from_record checks and reads
    dtype                                 dtype of kernel values, "float32" or "float64"
    task                                  a name of clsvm.tasks.TASKS
    dual_coef, intercept                  (p, n_SV) and (p,); if each pair of k > 2 classes has a problem,
                                          (k - 1, n_SV) and (k (k - 1) / 2,), as in LIBSVM
    classes (k,)                          labels of the classes; for a model without classes, an empty array
    n_support (k,)                        numbers of support vectors of the classes; for a model without classes, the
                                          number of all support vectors, (1,)
    probA, probB (k (k - 1) / 2,)         parameters of Platt's sigmoid for each pair of classes
    probA (1,)                            in place of probA and probB for a regression: scale of the errors' Laplace
                                          distribution
    prob_density_marks (10,)              probability marks of a one-class model
    support_vectors (n_SV, d)             dense support vectors
    data, indices, indptr, shape (2,)     CSR support vectors
    layout                                storage format of the support vectors on a device
    centre (d,)                           point that is subtracted from all rows on a device
    reason                                why the storage format was chosen
    order (d,), dense                     for formats that store some columns densely: order of all columns, number of
                                          dense columns

A Nyström model has its inducing points in place of support vectors. If no storage format was chosen, layout and reason
are empty strings, and centre is an empty array.

Files are untrusted input. No pickle is opened. The keys, dtypes and shapes of all arrays are checked. Numbers must
be finite and indices valid. A damaged file raises ValueError with the message ``FILE: got ..., expected ...``. A failed
system call raises OSError.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from clsvm import arrays as checked_rows
from clsvm import files
from clsvm.files import PathLike
from clsvm.gram import layouts
from clsvm.gram.layouts.record import Plan
from clsvm.gram.partition import Partition
from clsvm.kernels import Kernel
from clsvm.models import libsvm
from clsvm.models.libsvm import ESTIMATES, estimates_of
from clsvm.models.model import KernelModel
from clsvm.system import explained
from clsvm.tasks import CLASSES, TASKS

FORMAT, VERSION = "clsvm model", 1
_COMMON = (
    *("format", "version", "kernel", "dtype", "task", "dual_coef", "intercept", "classes", "n_support"),
    *("layout", "centre", "reason"),  # every model file has these entries, so a file that lacks one is damaged
)
_PARTITION = {"order", "dense"}
_DENSE, _CSR = ("support_vectors",), ("data", "indices", "indptr", "shape")
_ARCHIVE = b"PK"  # first bytes of a zip archive; no model file of LIBSVM begins with them
_NO_PLAN = Plan("", np.zeros(0), "")
_MAX_COLUMN = 2**31 - 1  # largest column number


def save_model(model: Any, path: PathLike) -> None:
    """Write a model to a file that :func:`load_model` reads.

    After an error no partial file is left.

    Parameters
    ----------
    model : KernelModel or fitted estimator of clsvm
        The model. Its labels must be numbers, truth values or text. An array of Python objects is written as text if
        all of them are text.
    path : str or path
        Name of the file.

    Raises
    ------
    ValueError
        If :func:`load_model` would refuse the file, for example because a number of the model is not finite.
    TypeError
        If ``model`` is neither a model nor an estimator of clsvm.
    NotFittedError
        If the estimator is not fitted.
    OSError
        If the file cannot be written.
    """
    arrays = _arrays(libsvm.model_of(model))
    _checked(path, arrays)
    with files.atomic_write(path) as stream:
        np.savez(stream, **arrays)


def load_model(path: PathLike) -> KernelModel:
    """Read a model that :func:`save_model`, ``clsvm train`` or LIBSVM's svm-train wrote.

    A model that :func:`save_model` wrote predicts the same as before, bit for bit. The format is recognised by the
    content of the file, not by its name.

    Parameters
    ----------
    path : str or path
        Name of the file.

    Returns
    -------
    model : KernelModel
        The model. Support vectors from a file of LIBSVM are CSR, see :func:`clsvm.libsvm.load_model`.

    Raises
    ------
    ValueError
        If the file is damaged. The message names the file, what was read and what was expected.
    OSError
        If the file cannot be read.
    """
    with explained(f"reading {path}"), open(path, "rb") as stream:
        if not stream.peek().startswith(_ARCHIVE):  # a LIBSVM file: the stream stays open, since a pipe opens only once
            return libsvm.read_model(path, files.text_stream(stream, path, "a model"))
        content = stream.read()
    try:
        arrays = _archive_arrays(content)
    except files.DAMAGED_ARCHIVE as error:
        raise ValueError(f"{path}: got a damaged file ({str(error)[:300]}), expected one that clsvm wrote") from None
    return _checked(path, arrays)


# Save


def _arrays(model: KernelModel) -> dict[str, Any]:
    """Return all arrays of the model's file as a dict by key. The arrays are little-endian and contiguous."""
    if not isinstance(model.kernel, Kernel):
        raise ValueError(
            f"clsvm's model files hold only models whose kernel is a clsvm.Kernel, got the kernel {model.kernel!r}: "
            "save this model with pickle"
        )
    record = json.dumps(model.kernel.record())
    made: dict[str, Any] = {"format": FORMAT, "version": VERSION, "kernel": record, "dtype": model.dtype}
    made |= {"task": model.task, "dual_coef": model.dual_coef, "intercept": model.intercept}
    made |= {"classes": _labels(model.classes), "n_support": np.asarray(model.n_support, np.int32)}
    made |= {name: value for name in ESTIMATES if (value := getattr(model, name)) is not None}
    vectors = model.support_vectors
    if sparse.issparse(vectors):
        vectors = vectors.tocsr()
        if not vectors.has_canonical_format:
            vectors = vectors.copy()
            vectors.sum_duplicates()
        made |= {"data": vectors.data, "indices": vectors.indices.astype(np.int32), "indptr": vectors.indptr}
        made["shape"] = np.array(vectors.shape, np.int64)
    else:
        made["support_vectors"] = vectors
    plan = model.plan or _NO_PLAN
    made |= {"layout": plan.kind, "centre": plan.centre, "reason": plan.reason}
    if plan.partition and _splits(plan.kind):
        made |= {"order": plan.partition.order, "dense": np.int32(plan.partition.dense)}
    arrays = {name: np.asarray(value) for name, value in made.items()}
    return {name: np.asarray(array, array.dtype.newbyteorder("<"), "C") for name, array in arrays.items()}


def _labels(classes: NDArray[Any]) -> NDArray[Any]:
    """Return the labels as an array of numbers or of text. Objects become text if all of them are text."""
    labels = np.asarray(classes)
    if labels.dtype == object and all(isinstance(label, str) for label in labels):
        labels = labels.astype(str)
        if labels.tolist() != classes.tolist():  # NumPy has dropped null characters at the end of a label
            raise ValueError(f"labels must not end with null characters, got {classes.tolist()}")
    if labels.dtype.kind not in "biufU" or (labels.dtype.itemsize > 8 and labels.dtype.kind != "U"):
        raise ValueError(f"labels must be numbers, truth values or text, got {labels.dtype} {labels.tolist()}")
    return labels


# Load


def _archive_arrays(content: bytes) -> dict[str, NDArray[Any]]:
    """Return all arrays of an archive as a dict by key, given the bytes ``content`` of its file. No pickle is opened.

    An array must be neither damaged nor compressed, and all arrays together must not be larger than the file. Otherwise
    an exception is raised. files.DAMAGED_ARCHIVE lists the types of this exception.
    """
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        members = archive.zip.infolist()
        if any(m.compress_type != zipfile.ZIP_STORED for m in members):
            raise ValueError("an array is compressed")
        if sum(m.file_size for m in members) > len(content):
            raise ValueError("arrays overlap")
        if damaged := archive.zip.testzip():  # checks all checksums: NumPy skips some
            raise ValueError(f"the array {damaged} is damaged")
        arrays = {name: np.asarray(archive[name]) for name in archive.files}
    return {name: np.require(array, array.dtype.newbyteorder("="), "C") for name, array in arrays.items()}


class _Checks:
    """Check the arrays of one model file. A failed check raises ValueError with the name of the file."""

    def __init__(self, path: PathLike, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.path, self.arrays = path, arrays

    def require(self, ok: Any, got: str, expected: str) -> None:
        if not ok:
            raise ValueError(f"{self.path}: got {got}, expected {expected}")

    def array(self, name: str, dtypes: str, shape: tuple[int | None, ...]) -> NDArray[Any]:
        """Return the array with the key ``name``. Raises ValueError if its dtype, shape or values are wrong.

        ``dtypes`` lists the allowed dtypes, such as "int32 or int64". None in ``shape`` allows any length. All values
        must be finite.
        """
        self.require(name in self.arrays, f"no {name}", f"{name} ({dtypes})")
        array = self.arrays[name]
        fits = array.ndim == len(shape) and all(s in (None, n) for s, n in zip(shape, array.shape, strict=True))
        words = f"{dtypes} of shape {str(shape).replace('None', 'any')}"
        self.require(array.dtype.name in dtypes.split(" or ") and fits, _shown(name, array), words)
        self.require(np.isfinite(array).all(), f"{name} with a number that is not finite", "finite numbers")
        return array

    def text(self, name: str) -> str:
        array = self.arrays.get(name, np.zeros(0))
        self.require(array.dtype.kind == "U" and array.shape == (), _shown(name, array), "one text")
        return str(array)


def _shown(name: str, array: NDArray[Any]) -> str:
    return f"{name} {array.dtype} of shape {array.shape}"


def _checked(path: PathLike, arrays: Mapping[str, NDArray[Any]]) -> KernelModel:
    """Check every array of a model file, and return the model. Raises ValueError if an array is wrong."""
    file = _Checks(path, arrays)
    is_clsvm = str(arrays.get("format")) == FORMAT
    file.require(is_clsvm, f"an archive of {', '.join(arrays)[:200] or 'nothing'}", f"format {FORMAT!r}")
    version = int(file.array("version", "int64", ()))
    file.require(version == VERSION, f"version {version} of {FORMAT!r}", f"version {VERSION}")
    names = {*_COMMON, *(_CSR if "data" in arrays else _DENSE), *(arrays.keys() & set(ESTIMATES))}
    names |= _PARTITION if "layout" in arrays and _splits(str(arrays["layout"])) else set()
    file.require(names == arrays.keys(), f"the keys {', '.join(sorted(arrays))}"[:400], ", ".join(sorted(names)))

    dtype, task = file.text("dtype"), file.text("task")
    file.require(dtype in ("float32", "float64"), f"dtype {dtype[:40]!r}", "float32 or float64")
    file.require(task in TASKS, f"task {task[:40]!r}", ", ".join(TASKS))
    kernel, vectors = _kernel(file), _vectors(file)
    n, d = vectors.shape
    classes, first = file.arrays["classes"], file.arrays["dual_coef"].shape[:1]
    file.require(bool(first), _shown("dual_coef", file.arrays["dual_coef"]), "coefficients of shape (problems, n)")
    k, of_classes = classes.size, TASKS[task].kind == CLASSES
    words = "two labels or more" if of_classes else f"no labels for {task}"
    fits = classes.ndim == 1 and classes.dtype.kind in "biufU" and (k >= 2 if of_classes else k == 0)
    file.require(fits, _shown("classes", classes), words)
    if classes.dtype.kind != "U":
        file.array("classes", classes.dtype.name, (k,))
    counts = file.array("n_support", "int32", (max(1, k),))
    fits = counts.min() >= 0 and int(counts.sum(dtype=np.int64)) == n
    file.require(fits, f"n_support {counts.tolist()}"[:200], f"counts whose sum is the number of support vectors, {n}")
    problems = offsets = k
    if of_pairs := k > 2 and first == (k - 1,):
        problems, offsets = k - 1, k * (k - 1) // 2
    elif k == 0 and TASKS[task].number is None:
        problems = offsets = max(1, *first)  # the number of outputs
    elif k == 0 or (k == 2 and first == (1,)):
        problems = offsets = 1
    return KernelModel(
        kernel=kernel,
        support_vectors=vectors,
        dual_coef=file.array("dual_coef", "float64", (problems, n)),
        intercept=file.array("intercept", "float64", (offsets,)),
        classes=classes,
        n_support=counts,
        plan=_plan(file, kernel, d),
        dtype=dtype,
        task=task,
        **_estimates(file, task, k, of_pairs or problems == 1),
    )


def _estimates(file: _Checks, task: str, k: int, pairs: bool) -> dict[str, Any]:
    """Return the probability parameters of a model file, such as probA, as a dict of arrays by name.

    The dict is empty if the file has none. A file that has some parameters must have all that ``task`` needs.
    Otherwise ValueError is raised.

    task: the model's task, a name of clsvm.tasks.TASKS.
    k: number of classes.
    pairs: True if the model has a single problem, or a problem for each pair of classes. If False, the model cannot
        have probabilities, and a file with a probability parameter raises ValueError.
    """
    present, lengths = file.arrays.keys() & set(ESTIMATES), estimates_of(task, k) if pairs else {}
    expected = ", ".join(lengths) or "none"
    file.require(present in (set(), lengths.keys()), f"{', '.join(sorted(present))} of {task}", expected)
    return {name: file.array(name, "float64", (lengths[name],)) for name in present}


def _kernel(file: _Checks) -> Kernel:
    text = file.text("kernel")
    try:
        return Kernel.from_record(json.loads(text))
    except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
        words = f"the kernel {text[:200]!r} ({str(error)[:300]})"
        raise ValueError(f"{file.path}: got {words}, expected a JSON description of a kernel function") from None


def _vectors(file: _Checks) -> Any:
    """Return the support vectors (n_SV, d) of a model file, dense or CSR. Raises ValueError if they are damaged."""
    if "data" not in file.arrays:
        return file.array("support_vectors", "float64 or float32", (None, None))
    data, indices = file.array("data", "float64 or float32", (None,)), file.array("indices", "int32", (None,))
    indptr, shape = file.array("indptr", "int32 or int64", (None,)), file.array("shape", "int64", (2,))
    n, d = shape.tolist()
    file.require(n >= 0 and 0 <= d <= _MAX_COLUMN, f"shape {(n, d)}", f"rows and at most {_MAX_COLUMN} columns")
    try:
        vectors = checked_rows.checked(sparse.csr_matrix((data, indices, indptr), shape=(n, d)))
    except ValueError as error:
        file.require(False, f"support vectors that do not fit together ({error})", f"CSR of {n} rows and {d} columns")
    in_order = vectors.has_canonical_format and indptr[-1] == len(data)
    file.require(in_order, "indices out of order", "ascending columns in each row, each once")
    return vectors


def _splits(kind: str) -> bool:
    return kind in layouts.LAYOUTS and layouts.LAYOUTS[kind].splits


def _plan(file: _Checks, kernel: Kernel, d: int) -> Plan | None:
    kind, reason, supported = file.text("layout"), file.text("reason"), layouts.names(kernel.spec)
    if not kind:
        file.array("centre", "float64", (0,))
        return None
    expected = f"one that the kernel function has: {', '.join(supported)}"
    file.require(kind in supported, f"layout {kind[:40]!r}", expected)
    centre = file.array("centre", "float64", (d,))
    if not _splits(kind):
        return Plan(kind, centre, reason)
    order, dense = file.array("order", "int32", (d,)), int(file.array("dense", "int32", ()))
    fits = 0 <= dense <= d and (np.sort(order) == np.arange(d)).all()
    file.require(fits, f"{dense} dense columns, or an order that is not of all columns", f"0 to {d}, each once")
    return Plan(kind, centre, reason, Partition(order, dense))
