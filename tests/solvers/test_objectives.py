"""Every objective of the solver, checked in float64, with every kernel function, dense and sparse. The rows that the
choice of a working set takes, against NumPy's, and the same steps where sub-groups find smallest values (least.cl)."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.datasets import make_classification

from clsvm import SVC, SVR, NuSVC, OneClassSVM, kernels
from clsvm.opencl import profiles
from clsvm.opencl.runtime import cl
from clsvm.opencl.stream import Stream
from clsvm.problem import Constraint, Problem
from clsvm.solvers import certificate
from clsvm.solvers import state as state_module
from clsvm.solvers.state import Selection
from tests.conftest import simulated, take_profile, thrifty
from tests.solvers.optimality import both_forms, draw, verify

TOL = 1e-3
NUMBERS: dict[str, float] = {"gamma": 0.3, "coef0": 0.5, "degree": 2, "alpha": 1.5}
OBJECTIVES = {
    "offset": {"bias": True},
    "no offset": {"bias": False},
    "Crammer-Singer": {"multi_class": "crammer_singer"},
}


def make(name: str) -> kernels.Kernel:
    return kernels.make(name, **{p.name: NUMBERS[p.name] for p in kernels.BUILTIN[name].parameters})


def rows(seed: int, n: int, d: int, objective: str) -> tuple[Any, np.ndarray, np.ndarray]:
    """Rows, labels of as many classes as suit an objective, weights."""
    X, y, rng = draw(seed, n, d, 3 + seed % 3 if objective == "Crammer-Singer" else 2)
    return X, y, rng.choice([0.5, 1.0, 2.0], n)


SHAPES: dict[str, Any] = {name: SVC(**given) for name, given in OBJECTIVES.items()}  # type: ignore[arg-type]
SHAPES |= {"pairs": SVC(), "regression": SVR(), "one class": OneClassSVM()}


@pytest.mark.oclgrind
@pytest.mark.parametrize("name", SHAPES)
def test_in_both_shapes(device: str, profile: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels as a CPU, a GPU and a GPU without double have them, with several pairs in an iteration on GPUs."""
    monkeypatch.setattr(state_module, "PART", 32)
    slow = simulated(device)
    if slow and (name not in ("no offset", "Crammer-Singer") or profile == "gpu-pair"):
        pytest.skip("tests/solvers/test_solver.py has the one, pairs of floats differ in arithmetic alone")
    X, y, weights = rows(1, 40 if slow else 150, 3, "Crammer-Singer" if name == "pairs" else name)
    kernel, target = make("rbf"), None if name == "one class" else y.astype(float)
    given: dict[str, Any] = {"kernel": kernel, "device": device, "tol": 0.3 if slow else TOL}
    model = clone(SHAPES[name]).set_params(**given, working_set_size=64 if slow else 128)
    model.fit(X, target, sample_weight=weights)
    assert model.fit_report_.converged
    if not slow:
        verify(model, kernel(X), target, weights, 1e-5 if profile == "gpu-pair" else 1e-12)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_duality_gap(device: str, objective: str) -> None:
    X, y, _ = rows(3, 500, 5, objective)
    model = SVC(kernel=make("rbf"), device=device, tol=1e-6, working_set_size=64, **OBJECTIVES[objective])
    steps = []
    for asked in (0.1, 1e-3):
        report = model.set_params(gap_tol=asked).fit(X, y).fit_report_
        steps.append(report.steps)
        assert "duality gap" in report.status
        assert 0 <= report.gap <= asked
        assert report.gap == pytest.approx(2 * (report.primal - report.dual) / (report.primal + report.dual))
        assert report.trace[-1].gap == pytest.approx(report.gap, rel=1e-6)
    assert steps[0] < steps[1]
    np.testing.assert_array_equal(clone(model).fit(X, y).dual_coef_, model.dual_coef_)


@pytest.mark.parametrize("k", [2, 4])
def test_decision_values_of_crammer_and_singer(device: str, k: int) -> None:
    """Of two classes one decision value a row, as scikit-learn expects of a binary classifier."""
    X, y, _ = draw(4, 200, 5, k)
    kernel = make("rbf")
    model = SVC(kernel=kernel, device=device, multi_class="crammer_singer").fit(X, np.array(["d", "a", "c", "b"])[y])
    expected = kernel(X[:30], model.support_vectors_) @ model.dual_coef_.T
    values = expected[:, 1] - expected[:, 0] if k == 2 else expected
    np.testing.assert_allclose(model.decision_function(X[:30]), values, atol=1e-4)
    np.testing.assert_array_equal(model.predict(X[:30]), model.classes_[expected.argmax(axis=1)])
    assert model.n_support_.sum() == len(model.support_)
    assert model.intercept_.shape == (k,)
    assert not model.intercept_.any()


ZERO: dict[str, Any] = {
    "whole": SVC(),
    "pairs with two sums": NuSVC(nu=0.7),
    **{name: SVC(gap_tol=0.05, tol=1e-6, **given) for name, given in OBJECTIVES.items()},
}


@pytest.mark.parametrize("text", ["dot / sqrt(xx * yy)", "dot / sqrt(xx) / sqrt(yy)"])
@both_forms
@pytest.mark.parametrize("name", ZERO)
def test_kernel_functions_without_a_value_at_zero(
    device: str, profile: str, name: str, sparse: bool, text: str
) -> None:
    """Padding is zero rows, of which such a function has no value: nothing of that may reach a sum."""
    y = np.arange(61) % (2 if name in ("whole", "offset", "no offset") else 3)
    X = np.random.default_rng(1).normal(size=(61, 4)) + 1 + np.eye(4)[y]
    X = sp.csr_matrix(X) if sparse else X
    model = clone(ZERO[name]).set_params(device=device, kernel=kernels.Kernel(text)).fit(X, y)
    assert model.fit_report_.converged
    if model.gap_tol:
        assert 0 <= model.fit_report_.gap <= 0.05
        assert all(np.isfinite(point.primal) for point in model.fit_report_.trace)
    else:
        known = clone(model).set_params(kernel="cosine").fit(X, y)
        np.testing.assert_allclose(model.decision_function(X), known.decision_function(X), atol=5e-3)


def sub_groups(device: str) -> bool:
    raw = [one for platform in cl.get_platforms() for one in platform.get_devices()][int(device)]
    return "subgroup" in raw.extensions and "NVIDIA" not in raw.platform.name


@pytest.mark.parametrize("profile", ["gpu", "nvidia"])
@pytest.mark.parametrize(
    "estimator",
    [
        SVC(C=10.0, gamma=0.05),
        NuSVC(nu=0.4, gamma=0.05),
        SVC(dtype="float64", gamma=0.1),
        SVC(multi_class="crammer_singer", gamma=0.1),
    ],
    ids=["pairs", "two sums", "float64", "coupled"],
)
def test_sub_groups_take_the_same_steps(
    device: str, profile: str, estimator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not sub_groups(device):
        pytest.skip("the device has no sub-groups by OpenCL's own functions")
    take_profile(profile, device, monkeypatch)
    classes = 3 if getattr(estimator, "multi_class", "") == "crammer_singer" else 2
    X, y = make_classification(1500, 12, n_informative=6, n_classes=classes, flip_y=0.1, random_state=1)
    expected, programs, before = clone(estimator).set_params(device=device).fit(X, y), [], Stream.kernel

    def kernel(self: Stream, text: str, options: Sequence[str], name: str) -> Any:
        if "SUBGROUPS" in text:
            programs.append(name)
            options = *options, "-DSUBGROUPS", "-cl-std=CL2.0"
        return before(self, text, options, name)

    monkeypatch.setattr(Stream, "kernel", kernel)
    found = clone(expected).fit(X, y)
    assert programs
    assert expected.fit_report_.converged
    assert found.fit_report_.steps == expected.fit_report_.steps
    np.testing.assert_array_equal(found.dual_coef_, expected.dual_coef_)


@pytest.mark.parametrize("estimator", [SVC(gamma=0.05), SVR(gamma=0.05, bias=False)])
def test_several_pairs_take_fewer_iterations(device: str, estimator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = make_classification(1500, 12, n_informative=6, flip_y=0.1, random_state=1)
    found = []
    for pairs in (1, 8):
        monkeypatch.setitem(profiles.PROFILES, "gpu", replace(profiles.PROFILES["gpu"], pairs=pairs))
        take_profile("gpu", device, monkeypatch)
        found.append(clone(estimator).set_params(tol=TOL, device=device).fit(X, y).fit_report_)
    assert found[1].steps < 0.7 * found[0].steps
    assert found[1].dual == pytest.approx(found[0].dual, rel=1e-6)


Rows = NDArray[np.float64]
BIN = 2.0**-7  # counting tells violations apart by this, relatively


def state(n: int, seed: int) -> tuple[Rows, Rows, Rows, Rows]:
    """f, b, lo, hi (1, n) on numbers that float32 holds: rows at each bound, free rows, inert rows at the end."""
    rng = np.random.default_rng(seed)
    lo, hi = -(rng.random(n) < 0.6).astype(np.float64), (rng.random(n) < 0.6).astype(np.float64)
    lo[-n // 8 :] = hi[-n // 8 :] = 0
    b = rng.choice([0.0, 0.5, 1.0], n)
    b = lo + b * (hi - lo)
    f = (rng.permutation(n) - n // 2) / 1024
    return f[None], b[None], lo[None], hi[None]


def violations(of: tuple[Rows, Rows, Rows, Rows], constraint: Constraint) -> tuple[Rows, Rows, certificate.Extremes]:
    """Each row's violation on either side, at most 0 where it does not stand; the optimality conditions."""
    f, b, lo, hi = of
    found = certificate.of(Problem(lo, hi, np.zeros_like(f), constraint), b, f)
    if constraint is Constraint.NONE:
        return np.maximum(-found.right, found.left), np.full(f.size, -1.0), found
    rise, fall = found.most[0] - found.right, found.left - found.least[0]
    return np.where(fall > rise, -1.0, rise), np.where(fall > rise, fall, -1.0), found


def chosen(device: str, of: tuple[Rows, ...], constraint: Constraint, W: int, kept: Rows) -> Rows:
    with Stream(device) as stream:
        n = of[0].shape[1]
        gram: Any = SimpleNamespace(stream=stream, rows=SimpleNamespace(dtype="float32", n_pad=n))
        made = Selection(gram, constraint, W)
        made.clear()
        first = np.full(W, -1, np.int32)
        first[: len(kept)] = kept
        in_set = np.zeros(n, np.uint8)
        in_set[kept] = 1
        made.ws, made.in_set = stream.upload(first), stream.upload(in_set)
        view = (*(stream.wide(values) for values in of), stream.wide(np.zeros(1)))
        made.find_extremes(view)  # type: ignore[arg-type]
        made.choose(view, range(len(kept), W))  # type: ignore[arg-type]
        ws = stream.read(made.ws, np.int32, W)
        marked = stream.read(made.in_set, np.uint8, n)
        numbers, places, _ = made.read_extremes()
        *_, known = violations(of, constraint)  # type: ignore[arg-type]
        assert (numbers[..., 0].min(), numbers[..., 1].max()) == (known.least[0], known.most[0])
        assert places[..., 2].sum() == known.inside.sum()
        np.testing.assert_allclose(numbers[..., 2].sum(), of[0][0, known.inside].sum(), rtol=1e-6, atol=1e-9)
    assert list(ws[: len(kept)]) == list(kept)
    rows = ws[ws >= 0]
    assert len(set(rows)) == len(rows)
    assert set(np.flatnonzero(marked)) == set(rows)
    return np.asarray(ws[len(kept) :])


@pytest.mark.oclgrind
@pytest.mark.parametrize("constraint", [Constraint.BIAS, Constraint.NONE])
def test_the_largest_violations(device: str, profile: str, constraint: Constraint) -> None:
    for seed, (n, W, keep) in enumerate([(160, 16, 8), (640, 32, 16), (1600, 64, 0)][: 1 if thrifty(device) else None]):
        of = state(n, seed)
        kept = np.random.default_rng(seed).permutation(n)[:keep]
        ws = chosen(device, of, constraint, W, kept)
        one_sided_derivatives = violations(of, constraint)[:2]
        quota = (W - keep) // (2 if constraint is Constraint.BIAS else 1)
        for side in range(W - keep, 0, -quota):
            got, violation = ws[len(ws) - side :][:quota], one_sided_derivatives[(W - keep - side) // quota].copy()
            violation[kept] = -1
            best = np.argsort(-violation, kind="stable")[:quota]
            least = violation[best].min()
            assert least > 0
            assert len(got) == quota
            assert violation[got].min() >= least * (1 - BIN)
            assert set(np.flatnonzero(violation > least * (1 + BIN))) <= set(got)


def test_fewer_violators_than_places(device: str, profile: str) -> None:
    f, b, lo, hi = state(320, 5)
    b[:] = np.where(f < -0.15, lo, np.where(f > 0.15, hi, np.where(f < 0, hi, lo)))  # a few rows stand wrong
    wrong = np.flatnonzero(((f < 0) & (b < hi) | (f > 0) & (b > lo))[0])
    ws = chosen(device, (f, b, lo, hi), Constraint.NONE, 64, np.zeros(0, np.int32))
    assert 0 < len(wrong) < 64
    assert sorted(ws[ws >= 0]) == list(wrong)
