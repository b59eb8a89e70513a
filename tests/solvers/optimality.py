"""Random problems, and what a fit claims of them recomputed from scratch in float64 (benchmarks/check.py)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from benchmarks import check

small = settings(
    max_examples=6, deadline=None, derandomize=True, phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
both_forms = pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])


def draw(seed: int, n: int, d: int, k: int, sparse: bool = False) -> tuple[Any, np.ndarray, np.random.Generator]:
    """Rows around the centres of k classes, each of which has a row at least, and what further numbers come from."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, k, n)
    y[:k] = np.arange(k)
    X = rng.normal(size=(n, d)) + np.eye(k, d)[y]
    X *= rng.random((n, d)) < (0.5 if sparse else 1.0)
    return sp.csr_matrix(X) if sparse else X, y, rng


@dataclass(frozen=True)
class Drawn:
    """The sizes of a random problem, a number and a choice that a test gives a meaning."""

    seed: int
    n: int
    d: int
    weighted: bool
    number: float
    flag: bool

    def rows(self, k: int, sparse: bool) -> tuple[Any, np.ndarray, Any, np.random.Generator]:
        """X, y of k classes, weights or None, and what further numbers come from."""
        X, y, rng = draw(self.seed, self.n, self.d, k, sparse)
        return X, y, rng.choice([0.5, 1.0, 2.0], self.n) if self.weighted else None, rng


problems = given(
    drawn=st.builds(
        Drawn, st.integers(0, 10**6), st.integers(8, 90), st.integers(1, 7), st.booleans(),
        st.sampled_from([0.3, 1.0, 10.0]), st.booleans(),
    )
)  # fmt: skip


def verify(model: Any, K: np.ndarray, y: Any, weights: Any = None, rounding: float = 1e-12) -> tuple[float, np.ndarray]:
    """Check all that a fit claims, where K is definite; return the dual, and how wide the range of each offset is."""
    report, each = model.fit_report_, check.each(model, K, y, weights)
    found = check.joined(each)
    assert report.converged
    rows_add_up, scaled = getattr(model, "multi_class", "") == "crammer_singer", getattr(model, "nu", None) is not None
    assert found.box <= (1e-12 if rows_add_up else 1e-15 if scaled else 0)  # (the check divides nu's alphas by a sum)
    assert found.off_share <= rounding
    assert found.violation <= 1.2 * model.tol
    assert abs(max(found.violation, 0) - report.violation) <= 2e-4
    assert report.dual == pytest.approx(found.dual, rel=1e-5, abs=1e-6 * found.size)
    assert report.primal == pytest.approx(found.primal, rel=1e-3, abs=1e-5 * found.size)
    return found.dual, np.array([min(one.open, 1e9) for one in each])


def fits_from_some_limit_on(outcomes: list[str]) -> bool:
    """Whether what fits with less memory fits with more, and the rest is refused."""
    fits = outcomes.count("fits")
    return 0 < fits < len(outcomes) and outcomes == ["refused"] * (len(outcomes) - fits) + ["fits"] * fits


def outcome(model: Any, X: Any, y: Any) -> str:
    """What a fit within the model's memory_limit comes to."""
    try:
        held = model.fit(X, y).fit_report_.bytes_held
    except ValueError as error:
        assert not hasattr(model, "model_")
        return "refused" if f"memory_limit of {model.memory_limit} bytes is too small" in str(error) else str(error)
    return "fits" if held <= model.memory_limit else f"held {held} of {model.memory_limit}"
