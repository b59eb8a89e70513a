"""A finished kernel machine: support vectors, coefficients, offset; and its decision values on a device."""

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
from clsvm.errors import RowError
from clsvm.gram import exact, layouts
from clsvm.gram.layouts.record import Plan
from clsvm.gram.precision import Reach, measures
from clsvm.gram.responses import ALL, Support, whole_tiles
from clsvm.kernels import Kernel, Precomputed
from clsvm.models import decoder
from clsvm.models.decoder import Decoder, Strip
from clsvm.opencl.devices import first
from clsvm.opencl.memory import DeviceCache, parse_bytes
from clsvm.opencl.stream import Stream
from clsvm.system import explained
from clsvm.tasks import ONE_CLASS, TASKS

Vector = NDArray[np.float64]


PIECE, SHARE = 64 << 20, 4  # bytes of values of pairs at a time: at most, and as a share of the memory limit
COPIES = 4  # numbers for each value of a block: sums of both classes, on the device and here


class _Responding(NamedTuple):
    """Rows that meet the support vectors: how many there are, bytes of the memory limit, and sums of kernel values.

    ``respond`` takes rows, classes of support vectors and rows of dual_coef, and returns (classes * problems, rows).
    """

    n: int
    limit: float
    respond: Callable[[slice, slice, slice], Vector]


@dataclass(frozen=True)
class KernelModel:
    """A kernel machine: of two classes with one problem, of k classes with a problem each or one for each pair, or one
    without classes (regression, one-class; on centres, which are its support vectors, of any number of outputs).

    support_vectors (n_SV, d) float64 dense or CSR, grouped by class in the order of ``classes``; dual_coef
    (problems, n_SV) float64, for two classes = y alpha with y = +1 for classes[1]; intercept (problems,) float64;
    classes (2,), (k,) sorted or (0,); n_support int32, one for each class, or of all (1,). task: a name of tasks.TASKS.
    For pairs (:func:`pairs`, y = +1 for the first class) dual_coef is (k - 1, n_SV), scikit-learn's and LIBSVM's: a
    vector's coefficients against each other class in order; intercept is (k (k - 1) / 2,); classes are in any order,
    which decides between as many votes.
    For a precomputed kernel the support vectors are their columns of X, (n_SV,) ints.
    plan: the layout of its rows; None is chosen from the support vectors. dtype: of its kernel values.
    probA, probB (pairs,) float64 where it gives probabilities (:mod:`clsvm.probability`): P(class) = 1 / (1 + exp(probA
    f + probB)) of the class for which f is positive; of regression probA (1,) alone, the scale of the errors; of
    one_class prob_density_marks (10,). smaller_first: of two classes, whether LIBSVM's file lists classes[0] first.

    The first decision_function lays the support vectors out on the device and keeps them there, within a quarter of
    memory_limit, for later calls from any thread with the same device and memory_limit: those bring their rows alone.
    The host's support vectors become read-only with it. See :class:`DeviceCache` for how long that lasts.
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
        """Return sum_j dual_coef_pj K(x, sv_j) + intercept_p for the rows of X (n, d), dense or CSR.

        float64, (n,) for two classes or none with one problem, else (n, problems) or (n, pairs); of pairs with
        shape="ovr" scikit-learn's values (n, k), which are made of these a few rows at a time.

        For a precomputed kernel X is K (n, columns), dense or CSR, and the host adds up. Raises ValueError where X has
        another number of features, or negative values and the kernel function is not for them, or memory_limit is too
        small for one tile.
        """
        if self.of_pairs:
            k, count = len(self.classes), len(self.intercept)
            given = (decoder.against_rest, (k,), 2 * k) if shape == "ovr" else (decoder.side_by_side, (count,), count)
            return self._reduced(X, device, memory_limit, *given)
        with self._responding(X, device, memory_limit) as at:
            values: Vector = np.add(at.respond(ALL, ALL, ALL).T, self.intercept, order="C")
        return values[:, 0] if self._single else values

    def _reduced(
        self,
        X: Data,
        device: Any,
        memory_limit: int | str | None,
        reduce: Callable[[Iterator[Strip], int, int], NDArray[Any]],
        shape: tuple[int, ...],
        held: int,
        dtype: Any = np.float64,
    ) -> NDArray[Any]:
        """Return what ``reduce`` makes of strips, n rows and k classes: (n, *shape) in ``dtype``.

        Rows and classes come a few at a time, within a share of the memory limit. held: numbers that ``reduce`` holds
        for each row.
        """
        k = len(self.classes)
        with self._responding(X, device, memory_limit) as at:
            out = np.empty((at.n, *shape), dtype)
            room = min(PIECE, at.limit // SHARE)
            tile = whole_tiles(1)
            most = int(np.sqrt(room // (8 * COPIES * tile)))
            blocks = decoder.blocks(k, most if at.n <= tile else min(most, decoder.CLASSES))
            step = int(room // (8 * (COPIES * blocks[0][0].stop ** 2 + held)))
            step = whole_tiles(step) if step >= tile else max(1, step)
            for start in range(0, at.n, step):
                rows = slice(start, min(start + step, at.n))
                try:
                    out[rows] = reduce(self._strips(at, rows, blocks), rows.stop - start, k)
                except RowError as error:
                    raise error.moved(start) from None
        return out

    def _strips(self, at: _Responding, rows: slice, blocks: list[tuple[slice, slice]]) -> Iterator[Strip]:
        """Yield the strips of some rows, block by block."""
        k = len(self.classes)
        for own, others in blocks:
            if own == others and own.stop - own.start == 1:
                continue
            first = others.start - (own != others)  # (a class has no coefficients against itself)
            one = other = at.respond(rows, own, slice(first, others.stop - 1))
            if own != others:
                other = at.respond(rows, others, own)
            yield from decoder.strips_of_block(own, others, one, other, self.intercept, k)

    @contextmanager
    def _responding(self, X: Data, device: Any, memory_limit: int | str | None) -> Iterator[_Responding]:
        """Give sums over the support vectors for rows X, which are checked."""
        X = arrays.canonical(X)
        if isinstance(self.kernel, Precomputed):
            self._check_given(X)
            limit = parse_bytes(memory_limit) or np.inf
            with explained("decision values"):
                yield _Responding(X.shape[0], limit, lambda rows, *some: self._given_responses(X[rows], *some))
            return
        d = self.support_vectors.shape[1]
        if X.ndim != 2 or X.shape[1] != d:
            raise ValueError(f"X has {X.shape[1] if X.ndim == 2 else X.shape} features, the model expects {d}")
        self.kernel.check_domain(X)
        with explained("decision values"), Stream(first(device), memory_limit) as stream:
            support, X = self._met(stream, self.kernel, X)

            def respond(rows: slice, groups: slice, problems: slice) -> Vector:
                return exact.decided(support, stream, X if rows == ALL else X[rows], self.dual_coef[problems], groups)

            yield _Responding(X.shape[0], stream.limit, respond)

    @property
    def of_pairs(self) -> bool:
        """Return whether there is a problem for each pair of classes."""
        return len(self.classes) > 2 and len(self.intercept) != len(self.dual_coef)

    @property
    def _single(self) -> bool:
        return len(self.dual_coef) == 1 and len(self.classes) in (0, 2)

    def _check_given(self, K: Data) -> None:
        """Raise ValueError where K has no column for a support vector."""
        needed = self.support_vectors.max(initial=-1) + 1
        if K.ndim != 2 or K.shape[1] < needed:
            raise ValueError(f"X must be kernel values, {needed} columns or more; got {K.shape}")

    def _given_responses(self, K: Data, groups: slice, problems: slice) -> Vector:
        """Return :meth:`Support.responses` of given kernel values K (n, columns), computed for each row alone."""
        cuts = np.cumsum([0, *(self.n_support if self.of_pairs else [len(self.support_vectors)])])
        parts = list(itertools.pairwise(cuts))[groups]
        coefficients = self.dual_coef[problems]
        out = np.zeros((len(parts), len(coefficients), K.shape[0]))
        for c, (begin, end) in zip(out, parts, strict=True):
            columns = self.support_vectors[begin:end]
            step = max(1, exact.HOST // max(1, len(columns)))
            for start in range(0, K.shape[0], step):
                values = arrays.picked(K[start : start + step], columns)
                for p, weights in enumerate(coefficients[:, begin:end]):
                    c[p, start : start + step] = (values * weights).sum(axis=1)
        return out.reshape(-1, K.shape[0])

    def _met(self, stream: Stream, kernel: Kernel, X: Data) -> tuple[Support, Data]:
        """Return the support vectors on the device, and X as their layout numbers its columns."""
        support, vectors = self._kept.get(stream), self.support_vectors
        known = support.known if support else None
        if support is None and sp.issparse(vectors) and kernel.of_entries and arrays.by_far_empty(vectors):
            known = arrays.columns(arrays.checked(vectors))
        if known is not None:
            X = arrays.numbered(sp.csr_matrix(X), known)
        if support is None or X.shape[1] > support.vectors.shape[1]:
            support = self._laid_out(stream, kernel, known, X.shape[1])
        return support, arrays.widened(X, support.vectors.shape[1]) if known is not None else X

    def _laid_out(self, stream: Stream, kernel: Kernel, known: NDArray[np.int32] | None, width: int) -> Support:
        """Lay the support vectors out on the device, and keep them there if there is room, in place of earlier ones."""
        self._kept.empty()
        given = arrays.checked(self.support_vectors)
        vectors, plan = given, self.plan
        if known is not None:
            vectors, plan = arrays.widened(arrays.numbered(given, known), 1 << (width - 1).bit_length()), None
        plan = plan or layouts.choose(stream.profile, vectors, kernel.spec)
        ends = np.cumsum(self.n_support).tolist() if self.of_pairs else ()
        weight = float(np.abs(self.dual_coef).sum(axis=1).max(initial=0.0))
        reach = Reach(kernel, measures(kernel, vectors, plan).extent, weight, vectors.shape[1])
        dtype = self.dtype if reach.own or stream.profile.wide == "pair" else "float64"
        support = Support(stream, kernel, plan, vectors, dtype, ends)
        support.reach, support.known = reach, known
        if support.buffers:
            for array in (given.data, given.indices, given.indptr) if sp.issparse(given) else (given,):
                array.flags.writeable = False  # else the device's would differ from the host's
            self._kept.put(stream, support, support.buffers)
        return support

    def predict(self, X: Data, device: Any = None, memory_limit: int | str | None = None) -> NDArray[Any]:
        """Return the class of each row of X (n, d), (n,): classes[1] for a positive decision value, or the class of the
        largest value, or of the most pairs, the first one of equally many.

        Without classes: the decision values; of one_class +1 where they are positive and -1 elsewhere.
        """
        if self.of_pairs:
            k = len(self.classes)

            def most(found: Iterator[Strip], n: int, k: int) -> NDArray[np.intp]:
                return decoder.votes(found, n, k).argmax(axis=1)

            return np.asarray(self.classes[self._reduced(X, device, memory_limit, most, (), 2 * k, np.intp)])
        values = self.decision_function(X, device, memory_limit)
        return Decoder(TASKS[self.task].kind, self.classes).by_value(values)

    @property
    def has_probabilities(self) -> bool:
        """Return whether the model gives probabilities, or those of its errors for a regression."""
        return (self.prob_density_marks if TASKS[self.task].kind == ONE_CLASS else self.probA) is not None

    def predict_proba(self, X: Data, device: Any = None, memory_limit: int | str | None = None) -> Vector:
        """Return probabilities (n, k) float64 of the classes, as LIBSVM has them (:mod:`clsvm.probability`).

        A one_class model has two, of being normal and of being an outlier: (n, 2).

        Raises ValueError as :meth:`decision_function`, and where the model has none (regression has those of its
        errors: Laplace's with the scale probA).
        """
        A, B, marks, k = self.probA, self.probB, self.prob_density_marks, len(self.classes)
        if marks is None and (A is None or B is None):
            words = "no probabilities" if A is None else f"the probabilities of {self.task}'s errors alone"
            raise ValueError(f"got a model with {words}, expected one of classes, fitted for probabilities")
        if k > 2 and A is not None and B is not None:

            def coupled(found: Iterator[Strip], n: int, k: int) -> Vector:
                return decoder.of_pairs(decoder.side_by_side(found, n, k), A, B, k)

            return self._reduced(X, device, memory_limit, coupled, (k,), decoder.HELD * k**2)
        values = self.decision_function(X, device, memory_limit)
        if A is None or B is None:
            return decoder.of_one_class(values, np.asarray(marks))
        return decoder.of_pairs(values[:, None], A, B, k)[:, ::-1]
