"""Read and write model files in the text format of LIBSVM 3.24, which svm-train writes and svm-predict reads.

:func:`save_model` writes a header of keys, such as svm_type and rho, and the line SV. A line for each support vector
follows, with its coefficients and features. :func:`load_model` reads such a file.

A damaged file raises ValueError with the message ``FILE: got ..., expected ...``. A message about a line of support
vectors names the line's number. A failed system call raises OSError.
"""

from __future__ import annotations

import io
from array import array
from typing import Any, BinaryIO, NoReturn

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils.validation import check_is_fitted

from clsvm import files, kernels
from clsvm.files import PathLike
from clsvm.gram.layouts.record import Plan
from clsvm.kernels import PRECOMPUTED, Kernel
from clsvm.models.model import KernelModel
from clsvm.models.svmlight import MAX_INDEX, WORD, Form, Lines, T, diagnose, load, shown
from clsvm.system import explained
from clsvm.tasks import CLASSES, ONE_CLASS, TASKS, of_libsvm

_KERNELS = {"linear": "linear", "polynomial": "poly", "rbf": "rbf", "sigmoid": "sigmoid"}  # LIBSVM's, then clsvm's name
_NAMES = {ours: theirs for theirs, ours in _KERNELS.items()} | {"precomputed": "precomputed"}
_KEYS = ("svm_type", "kernel_type", "degree", "gamma", "coef0", "nr_class", "total_sv", "rho", "label", "nr_sv")
Vector = NDArray[np.float64]
ESTIMATES = ("probA", "probB", "prob_density_marks")  # probability parameters, in the order of LIBSVM's file


# Save


def model_of(model: Any) -> KernelModel:
    """Return ``model`` if it is a KernelModel, or the KernelModel of a fitted estimator.

    Raises TypeError for another object, and NotFittedError for an estimator that is not fitted.
    """
    if not isinstance(model, KernelModel) and hasattr(model, "fit"):
        check_is_fitted(model)
        model = getattr(model, "model_", model)
    if not isinstance(model, KernelModel):
        raise TypeError(f"model must be a KernelModel or a fitted estimator of clsvm, got {model!r}")
    return model


def check_savable(model: KernelModel) -> None:
    """Raise ValueError unless LIBSVM's format can hold the model.

    The format holds the kernel functions linear, poly, rbf and sigmoid, and precomputed kernels. The task must be one
    that LIBSVM has. Labels must be 32-bit integers. A model of more than two classes must have a problem for each pair
    of classes.
    """
    if model.kernel.name not in _NAMES:
        supported = ", ".join(_KERNELS.values())
        raise ValueError(f"LIBSVM's model format has no kernel {model.kernel.name!r}; it holds {supported}")
    labels, problems = np.asarray(model.classes), len(model.dual_coef)
    k = len(labels)
    if model.task not in of_libsvm() or (TASKS[model.task].kind == CLASSES) != (k >= 2):
        raise ValueError(f"LIBSVM's model format cannot store a model with task {model.task!r} and {k} classes")
    if problems != max(1, k - 1):
        raise ValueError(f"LIBSVM's format needs a problem for each pair of classes, got one for each of {k} classes")
    if labels.dtype.kind not in "iuf" or not np.all((np.abs(labels) <= MAX_INDEX) & (labels == np.rint(labels))):
        raise ValueError(f"LIBSVM's model format holds integer labels only, got {labels.tolist()}")


def class_order(model: KernelModel) -> list[int]:
    """Return the indices of the model's classes in the order in which LIBSVM's file lists the classes.

    The file of a model with two classes lists classes[1] first, the class of positive decision values. If
    ``model.smaller_first`` is set, this file lists classes[0] first. The file of a model with more than two classes
    lists the classes in the order of ``model.classes``.
    """
    order = list(range(len(model.classes)))
    return order[::-1] if len(order) == 2 and not model.smaller_first else order


def save_model(model: Any, path: PathLike) -> None:
    """Write a model in LIBSVM's text format, which svm-predict reads.

    The value rho in the file is the negative of the intercept. With two classes, the file lists classes[1] first, the
    class of positive decision values. If the model's ``smaller_first`` is set, the file lists classes[0] first, and the
    signs of the coefficients, of rho and of probB are changed. Numbers have as many digits as their float64 value
    needs. If the last feature is zero in all support vectors, one of its zeros is written, so that a reader finds the
    number of features. A model without support vectors loses the number of features.

    Parameters
    ----------
    model : KernelModel or fitted estimator of clsvm
        The model.
    path : str or path
        Name of the file. After an error no partial file is left.

    Raises
    ------
    ValueError
        If LIBSVM's format cannot hold the kernel function, its degree, the labels, or the form of the model; or if a
        number of the model is not finite.
    TypeError
        If ``model`` is neither a model nor an estimator of clsvm.
    NotFittedError
        If the estimator is not fitted.
    OSError
        If the file cannot be written.

    References
    ----------
    svm_save_model of LIBSVM.
    """
    model = model_of(model)
    check_savable(model)
    precomputed, classes = not isinstance(model.kernel, Kernel), np.asarray(model.classes)[class_order(model)]
    params = dict(getattr(model.kernel, "params", {}))
    if params.get("degree", 0) != int(params.get("degree", 0)):
        raise ValueError(f"LIBSVM's model format needs an integer degree, got {params['degree']!r}")
    counts = np.asarray(model.n_support)
    order = np.arange(int(counts.sum()))
    if len(classes) == 2 and not model.smaller_first:
        order, counts = np.roll(order, -counts[0]), counts[::-1]
    if precomputed:  # a support vector is written as 0:i, where i is its column of K, counted from 1
        vectors = sparse.csr_matrix(np.asarray(model.support_vectors, np.int64)[:, None] + 1)[order]
    else:
        vectors = sparse.csr_matrix(model.support_vectors, dtype=np.float64)[order]
    vectors.sum_duplicates()
    coef = np.asarray(model.dual_coef, dtype=np.float64).T[order]
    rho, estimates = 0.0 - np.asarray(model.intercept, dtype=np.float64), _estimates(model)
    if model.smaller_first:
        coef, rho, estimates = _flip_signs(coef, rho, estimates)
    if not all(np.isfinite(part).all() for part in (vectors.data, coef, rho, *estimates.values())):
        raise ValueError("the model holds numbers that are not finite; it was not written")
    head: dict[str, Any] = {name: params[name] for name in ("degree", "gamma", "coef0") if name in params}
    head |= {"nr_class": len(classes) or 2, "total_sv": len(coef), "rho": rho}
    head |= ({"label": classes.astype(np.int64)} if len(classes) else {}) | estimates
    head |= {"nr_sv": counts} if len(classes) else {}
    lines = [f"svm_type {model.task}", f"kernel_type {_NAMES[model.kernel.name]}"]
    lines += [f"{key} {_digits(np.atleast_1d(value))}" for key, value in head.items()]
    with files.atomic_write(path) as stream:
        stream.write("\n".join([*lines, "SV", ""]).encode())
        for row in range(len(coef)):
            begin, end = int(vectors.indptr[row]), int(vectors.indptr[row + 1])
            indices = (vectors.indices[begin:end] + (not precomputed)).tolist()
            cells = zip(indices, vectors.data[begin:end].tolist(), strict=True)
            words = [_digits(coef[row]), *(f"{index}:{value!r}" for index, value in cells)]
            if row == 0 and vectors.shape[1] and not np.any(vectors.indices == vectors.shape[1] - 1):
                words.append(f"{vectors.shape[1]}:0")
            stream.write((" ".join(words) + " \n").encode())


def _estimates(model: KernelModel) -> dict[str, Any]:
    """Return the probability parameters that the model has, such as probA, as a dict of arrays by name.

    ESTIMATES lists the possible names. Raises ValueError if names or shapes do not fit the model's task.
    """
    found = {key: np.asarray(value) for key in ESTIMATES if (value := getattr(model, key)) is not None}
    lengths = estimates_of(model.task, len(model.classes))
    if found and {key: values.shape for key, values in found.items()} != {key: (n,) for key, n in lengths.items()}:
        shown = ", ".join(f"{key} {values.shape}" for key, values in found.items())
        raise ValueError(f"got {shown}, expected {lengths} of {model.task}")
    return found


def estimates_of(task: str, k: int) -> dict[str, int]:
    """Return the lengths of a task's probability parameters, such as probA, as a dict by name, for k classes."""
    kind = TASKS[task].kind
    if kind == CLASSES:
        return dict.fromkeys(("probA", "probB"), k * (k - 1) // 2)
    return {"prob_density_marks": 10} if kind == ONE_CLASS else {"probA": 1}


def _flip_signs(coef: Vector, rho: Vector, estimates: dict[str, Any]) -> tuple[Vector, Vector, dict[str, Any]]:
    """Exchange the classes of a two-class model: return -coef, -rho and a changed copy of ``estimates``.

    In the copy the signs of probB are changed, and probA is unchanged.
    """
    return -coef, 0.0 - rho, {key: 0.0 - values if key == "probB" else values for key, values in estimates.items()}


def _digits(values: Vector) -> str:
    return " ".join(f"{value:.17g}" for value in values.tolist())


# Load


def load_model(path: PathLike) -> KernelModel:
    """Read a model of any svm_type that svm-train or :func:`save_model` wrote.

    Parameters
    ----------
    path : str or path
        Name of the file.

    Returns
    -------
    model : KernelModel
        Labels are int64. A model of two classes has them in ascending order. If the file lists the smaller label
        first, the signs of the file's coefficients, rho and probB are changed, and ``smaller_first`` is set. A model of
        more classes keeps the order of the file, because the first of several classes with equally many votes is
        predicted. Support vectors are CSR (n_SV, d) float64, where d is the highest feature number in the file. If
        rows to predict have more columns, :func:`match_columns` adds columns of zeros to the support vectors.

    Raises
    ------
    ValueError
        If the file is damaged. The message names the text read and the text expected.
    OSError
        If the file cannot be read.

    References
    ----------
    svm_load_model of LIBSVM.
    """
    with explained(f"reading {path}"), files.text_stream(open(path, "rb"), path, "a model") as stream:
        return read_model(path, stream)


def read_model(path: PathLike, stream: BinaryIO) -> KernelModel:
    """Read a model as :func:`load_model` does, from a stream that :func:`clsvm.files.text_stream` returned."""
    header = _Header(path, stream)
    (task,) = header.words("svm_type", 1)
    if task not in of_libsvm():
        header.fault(f"svm_type {task}", ", ".join(of_libsvm()))
    (name,) = header.words("kernel_type", 1)
    if name not in _NAMES.values():
        header.fault(f"kernel_type {name}", f"a kernel function that is known here: {', '.join(_NAMES.values())}")
    precomputed, of_classes = name == PRECOMPUTED.name, TASKS[task].kind == CLASSES
    (k,) = header.numbers("nr_class", int, 1) if of_classes else [2]
    if k < 2:
        header.fault(f"{k} classes", "2 or more")
    kernel = PRECOMPUTED if precomputed else _kernel(header, _KERNELS[name])
    (total,) = header.numbers("total_sv", int, 1)
    rho = np.array(header.numbers("rho", float, k * (k - 1) // 2))
    labels, counts = _labels(header, k, total) if of_classes else ([], [total])
    estimates: dict[str, Any] = {}
    if (lengths := estimates_of(task, k)).keys() & header.lines.keys():
        estimates = {key: np.array(header.numbers(key, float, count)) for key, count in lengths.items()}
    vectors, coef = _support_vectors(header, stream, total, k - 1, int(not precomputed))
    if precomputed:
        vectors = _kernel_columns(header, vectors)
    smaller_first = len(labels) == 2 and labels[0] < labels[1]
    if smaller_first:
        coef, rho, estimates = _flip_signs(coef, rho, estimates)
    elif len(labels) == 2:
        order = np.roll(np.arange(total), -counts[0])
        vectors, coef = vectors[order], coef[:, order]
        labels, counts = labels[::-1], counts[::-1]
    return KernelModel(
        kernel=kernel,
        support_vectors=vectors,
        dual_coef=coef,
        intercept=0.0 - rho,
        classes=np.array(labels, dtype=np.int64 if labels else np.float64),
        n_support=np.array(counts, dtype=np.int32),
        plan=None if total else Plan("dense", np.zeros(0), "no support vectors"),
        task=task,
        smaller_first=smaller_first,
        **estimates,
    )


def _labels(header: _Header, k: int, total: int) -> tuple[list[int], list[int]]:
    """Return the k labels in a file's header, and the number of support vectors of each class."""
    labels, counts = header.numbers("label", int, k), header.numbers("nr_sv", int, k)
    if len(set(labels)) < k or max(map(abs, labels)) > MAX_INDEX:
        header.fault(f"labels {' '.join(map(str, labels))}", f"{k} different 32-bit integers")
    if min(counts) < 0 or sum(counts) != total:
        header.fault(" + ".join(map(str, counts)), f"{k} counts (nr_sv) whose sum is total_sv, {total}")
    return labels, counts


class _Header:
    """Read the header of a model file: the lines with keys above the line SV.

    Attributes
    ----------
    path
        name of the file.
    lines
        dict from each key to the text that follows it.
    end
        line number of the line SV.
    """

    def __init__(self, path: PathLike, stream: BinaryIO) -> None:
        self.path, self.lines = path, dict[str, bytes]()
        for self.end, line in enumerate(stream, 1):
            parts = line.split(None, 1)
            if parts == [b"SV"]:
                return
            key = parts[0].decode("ascii", "replace") if parts else ""
            if key not in (*_KEYS, *ESTIMATES) or key in self.lines:
                self.fault(f"{shown(line.rstrip())} in line {self.end}", "a key of LIBSVM's model format, once, or SV")
            self.lines[key] = b"".join(parts[1:])
        self.fault("the end of the file", "more keys and the line SV")

    def fault(self, got: str, expected: str) -> NoReturn:
        raise ValueError(f"{self.path}: got {got[:200]}, expected {expected}")

    def words(self, key: str, count: int) -> list[str]:
        if key not in self.lines:
            self.fault(f"no {key} above the line SV", f"'{key} ...'")
        line = self.lines[key]
        if (found := sum(1 for _ in WORD.finditer(line))) != count:  # a list would take 20 times the line's memory
            self.fault(f"{found} values of {key}", f"{count}")
        return [word.decode("ascii", "replace") for word in line.split()]

    def numbers(self, key: str, kind: type[T], count: int) -> list[T]:
        words = self.words(key, count)
        try:
            values = [kind(word) for word in words]
        except ValueError:
            values = []
        if not values or not all(abs(value) < 1e300 for value in values):
            expected = "an integer" if kind is int else "a finite number"
            self.fault(f"{key} {' '.join(words)!r}", expected + (f", {count} times" if count > 1 else ""))
        return values


def _kernel(header: _Header, name: str) -> kernels.Kernel:
    params: dict[str, float | int] = {}
    for key in kernels.make(name).params:
        params[key] = header.numbers(key, int, 1)[0] if key == "degree" else header.numbers(key, float, 1)[0]
    try:
        return kernels.make(name, **params)
    except ValueError as error:
        header.fault(f"the parameters {params}", f"others ({error})")


def _support_vectors(
    header: _Header, stream: BinaryIO, total: int, count: int, lowest: int
) -> tuple[sparse.csr_matrix, Vector]:
    """Read the ``total`` lines below the line SV; return support vectors (total, d) and coefficients (count, total).

    A line holds ``count`` coefficients, then index:value for each feature. Features are numbered from ``lowest``.
    Raises ValueError if the last line has no line break, since the file was then cut short.
    """
    if not total:
        if line := stream.readline():
            header.fault(shown(line.rstrip()), "the end of the file: total_sv is 0")
        return sparse.csr_matrix((0, 0)), np.zeros((count, 0))
    lines, form = Lines(stream), Form(None, lowest, "coefficient", count)
    try:
        if count == 1:
            vectors, first = load(lines, form)
            coef = first[np.newaxis]
        else:
            coef, features = _split(lines, count)
            vectors, _ = load(Lines(features), form)
    except (ValueError, OverflowError) as error:
        raise ValueError(diagnose(header.path, stream, form, str(error), header.end)) from None
    if coef.shape[1] != total:
        header.fault(f"{coef.shape[1]} support vectors", f"{total}, which total_sv says")
    if not lines.complete:
        header.fault("a last line with no line break", "one: the file seems cut short")
    return vectors, coef


def _kernel_columns(header: _Header, vectors: sparse.csr_matrix) -> NDArray[np.intp]:
    """Return, for each support vector of a precomputed kernel, its column in the kernel values, counted from 0.

    The file has 0:i for a support vector in column i - 1.
    """
    if not vectors.shape[0]:
        return np.zeros(0, np.intp)
    serials = vectors[:, 0].toarray()[:, 0]
    valid = (np.diff(vectors.indptr) == 1) & (serials >= 1) & (serials == np.rint(serials)) & (serials <= MAX_INDEX)
    if not valid.all():
        header.fault(f"support vector {np.argmin(valid) + 1} of other form", "0:serial, a whole number above 0")
    return np.asarray(serials, np.intp) - 1


def _split(lines: Lines, count: int) -> tuple[Vector, BinaryIO]:
    """Return the ``count`` coefficients at the start of each line, (count, rows), and a stream of the remaining text.

    In the stream each line begins with a 0, which scikit-learn's reader takes for a label.
    """
    found, rows, features = array("d"), 0, io.BytesIO()  # an array, because a list of floats would take too much memory
    for line in lines:
        words = line.partition(b"#")[0].split(None, count)
        if words:
            if len(words) < count:
                raise ValueError("too few coefficients")
            found.extend(map(float, words[:count]))
            rows += 1
            features.write(b"0 " + b"".join(words[count:]) + b"\n")
    features.seek(0)
    coef = np.frombuffer(found).reshape(rows, count) if rows else np.zeros((0, count))
    if not np.isfinite(coef).all():
        raise ValueError("a coefficient that is not finite")
    return np.ascontiguousarray(coef.T), features
