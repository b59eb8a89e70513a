"""Hold a fitted kernel model, and compute its decision values, predictions and probabilities on a device.

The decision function of problem p, with the kernel function K, is

    f_p(x) = sum_j dual_coef[p, j] K(x, support_vectors[j]) + intercept[p]

Estimators make a :class:`KernelModel` when a fit ends. Model files (npz.py, libsvm.py) hold such a model. The sums over
support vectors come from gram/exact.py, and decoder.py turns them into predictions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from clsvm import arrays
from clsvm.arrays import Data
from clsvm.gram import exact, layouts
from clsvm.gram.layouts.record import Plan
from clsvm.gram.precision import RowPrecision, measures
from clsvm.gram.responses import ALL, Support, whole_tiles
from clsvm.kernels import Kernel, Precomputed
from clsvm.models import decoder
from clsvm.models.decoder import Decoder, Strip
from clsvm.opencl.devices import first_device
from clsvm.opencl.memory import DeviceCache, parse_bytes
from clsvm.opencl.stream import Stream
from clsvm.system import explained
from clsvm.tasks import ONE_CLASS, TASKS

Vector = NDArray[np.float64]
# A Reduction f(strips, n, k) computes an array of n rows from the decision values of n samples for pairs of k classes.
# The argument ``strips`` of a Reduction iterates over Strip objects, which together cover all pairs of the k classes.
# A Strip has decision values of the n samples for pairs (i, j) of classes: one class i, and a range of classes j > i.
Reduction = Callable[[Iterator[Strip], int, int], NDArray[Any]]

# Decision values of pairs of classes take at most MAX_BYTES bytes, and at most 1 / SHARE of the memory limit.
MAX_BYTES, SHARE = 64 << 20, 4
# For a row and classes i and j, device and host each allocate two sums: over support vectors of i, and of j.
COPIES = 4


class _Sums(NamedTuple):
    """Compute sums of coefficients times kernel values, over the support vectors, for rows X.

    Attributes
    ----------
    n
        number of rows of X.
    limit
        memory limit in bytes.
    respond
        function respond(rows, classes, problems) that returns the sums. Its arguments are slices: ``rows`` selects rows
        of X, ``classes`` selects the classes whose support vectors are summed, and ``problems`` selects rows of
        dual_coef. The result for r rows, c classes and p rows of dual_coef has the shape (c * p, r). Its row i * p + j
        is for class i and row j of dual_coef. If the model does not have more than two classes and a problem for each
        pair of them, all support vectors count as one class, so c is 1.
    """

    n: int
    limit: float
    respond: Callable[[slice, slice, slice], Vector]


@dataclass(frozen=True)
class KernelModel:
    """Hold a fitted kernel model: support vectors, coefficients and intercepts.

    A problem is an optimization problem with one decision function as its result. A model has one of these forms:

    - two classes: one problem;
    - k classes, one problem for each class;
    - k > 2 classes, one problem for each pair of classes (:attr:`of_pairs`);
    - regression or one-class: no classes and one problem;
    - Nyström kernel machine: the inducing points take the place of support vectors. A regression may have several
      outputs, each of which is a problem.

    Attributes
    ----------
    kernel
        kernel function, or Precomputed if callers pass kernel values.
    support_vectors
        (n_SV, d) float64, dense or CSR, grouped by class in the order of ``classes``. For a precomputed kernel: column
        numbers of X, (n_SV,) int.
    dual_coef
        coefficients (problems, n_SV), float64. For two classes they are y * alpha, where alpha is the dual variable of
        a support vector, and y is +1 for classes[1] and -1 for classes[0]. With more than two classes and a problem for
        each pair of them, y is +1 for the first class of a pair and -1 for the second. The shape is then (k - 1, n_SV),
        as in scikit-learn and LIBSVM: a column has the coefficients of a support vector against each of the other
        classes, in the order of ``classes``.
    intercept
        (problems,) float64. With a problem for each pair of classes: (k * (k - 1) / 2,).
    classes
        labels (k,), or (0,) without classes. The labels ascend, except in some models with a problem for each pair of
        classes. If several classes win equally many pairs, the first of these classes in ``classes`` is predicted.
    n_support
        int32, number of support vectors of each class, (k,). Without classes: (1,), the number of all support vectors.
    plan
        layout of the support vectors on the device. If it is None, a layout is chosen from the support vectors.
    dtype
        dtype of kernel values, "float32" or "float64".
    task
        name of a record of clsvm.tasks.TASKS, such as "c_svc".
    probA
        (pairs,) float64, or None without probabilities. Let f be a decision value. The class for which f is positive
        has the probability 1 / (1 + exp(probA * f + probB)). For a regression: (1,), scale of the prediction errors.
    probB
        (pairs,) float64, or None without probabilities and for a regression.
    prob_density_marks
        (10,) float64, decision values of a one-class model at which its probability changes, or None. See
        :func:`clsvm.probability.density_marks`.
    smaller_first
        whether LIBSVM's file of a model with two classes lists classes[0] first.

    The first call of decision_function may keep a copy of the support vectors on the device. The copy takes at most a
    quarter of memory_limit. The host's support vectors then become read-only. Later calls with the same device and
    memory_limit, from any thread, send only their rows. :class:`DeviceCache` says when the device's copy is freed.
    """

    kernel: Kernel | Precomputed
    support_vectors: Any
    dual_coef: Vector
    intercept: Vector
    classes: NDArray[Any]
    n_support: NDArray[np.int32]
    plan: Plan | None = None
    dtype: str = "float32"
    task: str = "c_svc"
    probA: Vector | None = None  # noqa: N815  (LIBSVM's and scikit-learn's names)
    probB: Vector | None = None  # noqa: N815
    prob_density_marks: Vector | None = None
    smaller_first: bool = False
    _kept: DeviceCache = field(default_factory=DeviceCache, init=False, repr=False, compare=False)

    def decision_function(
        self, X: Data, device: Any = None, memory_limit: int | str | None = None, shape: str = "ovo"
    ) -> Vector:
        """Return the decision values of each row x of X.

        The value of problem p is sum_j dual_coef[p, j] K(x, support_vectors[j]) + intercept[p]. If there is a problem
        for each pair of classes, the sum is over the support vectors of the two classes of problem p.

        Parameters
        ----------
        X : array or CSR (n, d)
            Rows, or for a precomputed kernel the kernel values (n, m) with the m training rows.
        device : str, int, list or None
            Device to compute on, as :func:`clsvm.opencl.devices.find` takes it. A list stands for its first device.
        memory_limit : int, str or None
            Limit of the device memory to use: bytes, or text such as "2GB".
        shape : str
            For a model with a problem for each pair of classes: "ovo" returns the value of each pair, "ovr" a value
            for each class, as scikit-learn computes it. Other models ignore it.

        Returns
        -------
        values : array of float64
            (n,) for a single problem, else (n, problems) or (n, pairs). With shape="ovr" (n, k).

        Raises
        ------
        ValueError
            If X has another number of features than the support vectors, if X has negative values for which the kernel
            function is not defined, or if memory_limit is too small.
        """
        k, count = len(self.classes), len(self.intercept)
        with self._sums_for(X, device, memory_limit) as sums:
            if self.of_pairs and shape == "ovr":
                return self._reduce_pairs(sums, decoder.ovr_values, (k,), 2 * k)
            if self.of_pairs:
                return self._reduce_pairs(sums, decoder.pair_values, (count,), count)
            values: Vector = np.add(sums.respond(ALL, ALL, ALL).T, self.intercept, order="C")
        single = len(self.dual_coef) == 1 and k in (0, 2)
        return values[:, 0] if single else values

    def _reduce_pairs(
        self, sums: _Sums, reduce: Reduction, shape: tuple[int, ...], numbers_per_row: int, dtype: Any = np.float64
    ) -> NDArray[Any]:
        """Compute an array (n, *shape) of type ``dtype`` from the decision values of all pairs of classes.

        To save memory, the array is computed for m rows at a time. The function ``reduce(strips, m, k)`` returns the
        part (m, *shape) of the array, for k classes. ``strips`` yields the decision values of the m rows as
        :class:`Strip` tuples, each with the values of one class against later classes. The function ``reduce`` may
        allocate at most ``numbers_per_row`` numbers for each row.
        """
        k, out = len(self.classes), np.empty((sums.n, *shape), dtype)
        budget = min(MAX_BYTES, sums.limit // SHARE)
        tile = whole_tiles(1)
        max_classes = int(np.sqrt(budget // (8 * COPIES * tile)))
        blocks = decoder.blocks(k, max_classes if sums.n <= tile else min(max_classes, decoder.CLASSES))
        step = int(budget // (8 * (COPIES * blocks[0][0].stop ** 2 + numbers_per_row)))
        step = whole_tiles(step) if step >= tile else max(1, step)
        for start in range(0, sums.n, step):
            rows = slice(start, min(start + step, sums.n))
            out[rows] = reduce(self._strips(sums, rows, blocks), rows.stop - start, k)
        return out

    def _strips(self, sums: _Sums, rows: slice, blocks: list[tuple[slice, slice]]) -> Iterator[Strip]:
        """Yield the decision values of all pairs of classes for ``rows``, as :class:`Strip` tuples.

        A strip holds the decision values of one class against a range of later classes. The decision values are
        computed in blocks. Each entry (firsts, others) of ``blocks`` describes one block by two slices of class numbers
        (:func:`decoder.blocks`). The block has the pairs of a class in ``firsts`` with each later class in ``others``.
        """
        k = len(self.classes)
        for firsts, others in blocks:
            if firsts == others and firsts.stop - firsts.start == 1:
                continue
            # The coefficients of class i against class j are in row j - 1 of dual_coef if j > i, and in row j if j < i.
            first = others.start - (firsts != others)
            first_sums = other_sums = sums.respond(rows, firsts, slice(first, others.stop - 1))
            if firsts != others:
                other_sums = sums.respond(rows, others, firsts)
            yield from decoder.strips_of_block(firsts, others, first_sums, other_sums, self.intercept, k)

    @contextmanager
    def _sums_for(self, X: Data, device: Any, memory_limit: int | str | None) -> Iterator[_Sums]:
        """Check the rows X, and yield the object that computes sums over the support vectors for X."""
        X = arrays.canonical(X)
        if isinstance(self.kernel, Precomputed):
            needed = self.support_vectors.max(initial=-1) + 1
            if X.ndim != 2 or X.shape[1] < needed:
                raise ValueError(f"X must hold kernel values in at least {needed} columns, got the shape {X.shape}")
            limit = parse_bytes(memory_limit) or np.inf
            with explained("decision values"):
                yield _Sums(X.shape[0], limit, lambda rows, *some: self._host_sums(X[rows], *some))
            return
        d = self.support_vectors.shape[1]
        if X.ndim != 2 or X.shape[1] != d:
            raise ValueError(f"X must be rows of {d} features, of shape (n, {d}), got {X.shape}")
        self.kernel.check_domain(X)
        with explained("decision values"), Stream(first_device(device), memory_limit) as stream:
            support, X = self._on_device(stream, self.kernel, X)

            def respond(rows: slice, groups: slice, problems: slice) -> Vector:
                some = X if rows == ALL else X[rows]
                return exact.decision_values(support, stream, some, self.dual_coef[problems], groups)

            yield _Sums(X.shape[0], stream.limit, respond)

    @property
    def of_pairs(self) -> bool:
        """Return whether the model has one problem for each pair of classes."""
        return len(self.classes) > 2 and len(self.intercept) != len(self.dual_coef)

    def _host_sums(self, K: Data, groups: slice, problems: slice) -> Vector:
        """Return sums of coefficients times kernel values K (n, m), computed on the host.

        K has the kernel values of n rows with the m training rows. ``groups`` selects c classes. A model with more than
        two classes and a problem for each pair of them (one-vs-one) groups its support vectors by class. In every other
        model, all support vectors form one class, so c = 1. ``problems`` selects p rows of dual_coef. Row i * p + j of
        the result (c * p, n) has a sum for each row of K. It is the sum over the support vectors of the selected class
        i, with the coefficients in the selected row j of dual_coef. The sums of a row of K do not depend on the other
        rows of K, bit for bit.
        """
        cuts = np.cumsum([0, *(self.n_support if self.of_pairs else [len(self.support_vectors)])])
        parts = list(itertools.pairwise(cuts))[groups]
        coefficients = self.dual_coef[problems]
        out = np.zeros((len(parts), len(coefficients), K.shape[0]))
        for c, (begin, end) in zip(out, parts, strict=True):
            columns = self.support_vectors[begin:end]
            step = max(1, exact.HOST // max(1, len(columns)))
            for start in range(0, K.shape[0], step):
                values = arrays.gathered_columns(K[start : start + step], columns)
                for p, weights in enumerate(coefficients[:, begin:end]):
                    c[p, start : start + step] = (values * weights).sum(axis=1)
        return out.reshape(-1, K.shape[0])

    def _on_device(self, stream: Stream, kernel: Kernel, X: Data) -> tuple[Support, Data]:
        """Return the support vectors on the device, and the rows X with columns numbered as in the support vectors.

        If most columns of the support vectors are empty, the empty columns are removed, and the columns of X are
        renumbered (:func:`clsvm.arrays.renumbered`).
        """
        support, vectors = self._kept.get(stream), self.support_vectors
        columns = support.columns if support else None
        if support is None and sp.issparse(vectors) and kernel.of_entries and arrays.mostly_empty(vectors):
            columns = arrays.columns(arrays.checked(vectors))
        if columns is not None:
            X = arrays.renumbered(sp.csr_matrix(X), columns)
        if support is None or X.shape[1] > support.vectors.shape[1]:
            support = self._lay_out(stream, kernel, columns, X.shape[1])
        return support, arrays.widened(X, support.vectors.shape[1]) if columns is not None else X

    def _lay_out(self, stream: Stream, kernel: Kernel, columns: NDArray[np.int32] | None, width: int) -> Support:
        """Store the support vectors on the device, and return them.

        ``columns`` are the columns to keep, or None for all. ``width`` is the number of columns of the rows to predict.
        The copy on the device stays for later calls if it takes at most a quarter of the memory that the stream can
        still allocate.
        """
        self._kept.empty()
        checked = arrays.checked(self.support_vectors)
        vectors, plan = checked, self.plan
        if columns is not None:
            vectors, plan = arrays.widened(arrays.renumbered(checked, columns), 1 << (width - 1).bit_length()), None
        plan = plan or layouts.choose(stream.profile, vectors, kernel.spec)
        ends = np.cumsum(self.n_support).tolist() if self.of_pairs else ()
        weight = float(np.abs(self.dual_coef).sum(axis=1).max(initial=0.0))
        precision = RowPrecision(kernel, measures(kernel, vectors, plan).extent, weight, vectors.shape[1])
        dtype = self.dtype if precision.sufficient or stream.profile.wide == "pair" else "float64"
        support = Support(stream, kernel, plan, vectors, dtype, ends, keep=True)
        support.precision, support.columns = precision, columns
        if support.buffers:
            for array in (checked.data, checked.indices, checked.indptr) if sp.issparse(checked) else (checked,):
                array.flags.writeable = False  # refuses changes on the host, which would not reach the device's copy
            self._kept.put(stream, support, support.buffers)
        return support

    def predict(self, X: Data, device: Any = None, memory_limit: int | str | None = None) -> NDArray[Any]:
        """Return the prediction for each row of X.

        - two classes: classes[1] if the decision value is positive, else classes[0];
        - a problem for each class: the class of the largest decision value;
        - a problem for each pair of classes: the class that wins most pairs, or the first of several such classes;
        - regression: the decision value;
        - one-class: +1 if the decision value is positive, else -1.

        Parameters
        ----------
        X : array or CSR (n, d)
            Rows, or for a precomputed kernel the kernel values (n, m) with the m training rows.
        device : str, int, list or None
            Device to compute on, as :func:`clsvm.opencl.devices.find` takes it. A list stands for its first device.
        memory_limit : int, str or None
            Limit of the device memory to use: bytes, or text such as "2GB".

        Returns
        -------
        y : array (n,)
            Labels, or numbers for a task without classes. A regression of several outputs returns (n, outputs).

        Raises
        ------
        ValueError
            For the reasons that :meth:`decision_function` gives.
        """
        if self.of_pairs:
            k = len(self.classes)

            def winners(strips: Iterator[Strip], n: int, k: int) -> NDArray[np.intp]:
                return decoder.votes(strips, n, k).argmax(axis=1)

            with self._sums_for(X, device, memory_limit) as sums:
                return np.asarray(self.classes[self._reduce_pairs(sums, winners, (), 2 * k, np.intp)])
        values = self.decision_function(X, device, memory_limit)
        return Decoder(TASKS[self.task].kind, self.classes).by_value(values)

    @property
    def has_probabilities(self) -> bool:
        """Return whether the model has probability parameters or, for a regression, the scale of its errors."""
        return (self.prob_density_marks if TASKS[self.task].kind == ONE_CLASS else self.probA) is not None

    def predict_proba(self, X: Data, device: Any = None, memory_limit: int | str | None = None) -> Vector:
        """Return the probability of each class as LIBSVM computes it (:mod:`clsvm.probability`).

        Parameters
        ----------
        X : array or CSR (n, d)
            Rows, or for a precomputed kernel the kernel values (n, m) with the m training rows.
        device : str, int, list or None
            Device to compute on, as :func:`clsvm.opencl.devices.find` takes it. A list stands for its first device.
        memory_limit : int, str or None
            Limit of the device memory to use: bytes, or text such as "2GB".

        Returns
        -------
        probabilities : array of float64 (n, k)
            Probability of each class. A one-class model has two columns: that a row is normal, and that it is an
            outlier.

        Raises
        ------
        ValueError
            If the model was not fitted for probabilities, if it is a regression, or for the reasons that
            :meth:`decision_function` gives. A regression has a scale ``probA`` of its errors instead of probabilities.
        """
        A, B, marks, k = self.probA, self.probB, self.prob_density_marks, len(self.classes)
        if marks is None and (A is None or B is None):
            words = "no probabilities" if A is None else f"the probabilities of {self.task}'s errors alone"
            raise ValueError(f"got a model with {words}, expected a classifier fitted for probabilities")
        if k > 2 and A is not None and B is not None:

            def coupled(strips: Iterator[Strip], n: int, k: int) -> Vector:
                return decoder.of_pairs(decoder.pair_values(strips, n, k), A, B, k)

            with self._sums_for(X, device, memory_limit) as sums:
                return self._reduce_pairs(sums, coupled, (k,), decoder.COUPLING_NUMBERS * k**2)
        values = self.decision_function(X, device, memory_limit)
        if A is None or B is None:
            return decoder.of_one_class(values, np.asarray(marks))
        return decoder.of_pairs(values[:, None], A, B, k)[:, ::-1]
