"""Kernel objects: built-ins on the devices, values that do not change, composition, scikit-learn's ways, refusals; and
the errors of expressions evaluated in a type, inner value by value."""

import copy
import json
import math
import pickle
from collections.abc import Callable
from fractions import Fraction
from functools import reduce
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.gaussian_process.kernels import Matern
from sklearn.metrics.pairwise import cosine_similarity, linear_kernel, sigmoid_kernel
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

import clsvm
from clsvm import SVC, Kernel
from clsvm.kernels import BUILTIN, make
from clsvm.kernels.expression import INVALID, Extent, between, inner_products
from clsvm.opencl import contexts
from tests.conftest import noisy, take_profile

NUMBERS = {"gamma": 0.7, "coef0": 0.3, "degree": 3, "alpha": 1.5}
X, SIGNS = noisy(120, 5)
SCALED = MinMaxScaler().fit_transform(load_breast_cancer().data)[:150]
RBF = "exp(-gamma * sqdist)"
REFERENCES: dict[str, Callable[..., Any]] = {
    "linear": linear_kernel,
    "sigmoid": sigmoid_kernel,
    "matern32": lambda A, B, gamma: Matern(1 / gamma, nu=1.5)(A, B),
    "cosine": cosine_similarity,
}


def built_in(name: str) -> Kernel:
    return make(name, **{p.name: NUMBERS[p.name] for p in BUILTIN[name].parameters})


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("float64", 1e-12)])
@pytest.mark.parametrize("shape", ["cpu", "gpu"])
@pytest.mark.parametrize("name", list(BUILTIN))
def test_built_ins_agree_with_their_references(
    device: str, name: str, shape: str, dtype: str, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every value, relative to itself, on features scaled to 0 .. 1."""
    take_profile(shape, device, monkeypatch)
    kernel, Z = built_in(name), SCALED[:40]
    expected = (BUILTIN[name].oracle or REFERENCES[name])(SCALED, Z, **kernel.params)
    assert_allclose(kernel(SCALED, Z), expected, rtol=1e-12)
    got = clsvm.kernel_matrix(SCALED, Z, kernel, device=device, dtype=dtype)
    assert got.dtype == dtype
    assert_allclose(got, expected, rtol=tolerance, atol=0)


@pytest.mark.parametrize(
    ("kernel", "changes"),
    [
        (
            Kernel(f"c * {RBF} + (dot + d) ** n / 50", gamma=0.1, c=1.0, d=0.5, n=2),
            {"gamma": 0.7, "c": 2, "d": 0, "n": 3},
        ),
        (Kernel.elementwise("w * abs(x - y)", "exp(-gamma * s)", gamma=0.2, w=1.0), {"gamma": 1.5, "w": 0.1}),
        (0.5 * built_in("rbf") + built_in("linear"), {"gamma": 0.3, "scale": 3.0}),
        ("poly", {"gamma": 0.2, "coef0": 1.0, "degree": 2}),
    ],
    ids=lambda value: "" if isinstance(value, dict) else repr(value)[:30],
)
def test_new_numbers_build_nothing(device: str, kernel: Any, changes: dict[str, float]) -> None:
    model = SVC(kernel=kernel, device=device, max_iter=2000, tol=0.1)
    before = model.fit(X, SIGNS).decision_function(X)
    built = contexts.built.cache_info().currsize
    for name, value in changes.items():
        model.set_params(**{name if kernel == "poly" else f"kernel__{name}": value})
        after = model.fit(X, SIGNS).decision_function(X)
        assert not np.array_equal(after, before)
        before = after
    model.set_params(C=9.0).fit(X, SIGNS).predict(X)
    assert contexts.built.cache_info().currsize == built
    SVC(kernel=Kernel(f"dot / 3.25 + 0.5 * {len(repr(kernel))}"), device=device, tol=0.5).fit(X, SIGNS)
    assert contexts.built.cache_info().currsize > built  # it does count


@pytest.mark.parametrize(
    "name", ["rbf", "exponential", "rational_quadratic", "matern32", "matern52", "laplacian", "canberra"]
)
def test_rows_among_themselves_have_the_bits_of_any_others(name: str) -> None:
    """Where the rows are the same object half of the distances are computed."""
    kernel = built_in(name)
    for n in (0, 1, 2, 37):
        Z = SCALED[:n]
        assert_array_equal(kernel(Z), kernel(Z, Z.copy()))
        assert kernel(Z).shape == (n, n)


KERNELS = [
    Kernel("rbf"),
    Kernel("poly", gamma=0.1, degree=2),
    Kernel("chi2", gamma=2),
    Kernel("exp(-gamma*sqdist) +c*dot", gamma=0.1, c=0.5),
    Kernel("(dot + c) ** n", c=1, n=3),
    Kernel("(xx + c) ** n", c=1, n=3.0),
    Kernel("7"),
    Kernel("sqrt(xx * yy) * where(dot < 1e-3, -dot, a ** b)", a=2, b=-1.5),
    Kernel.elementwise("abs(x - y)", RBF.replace("sqdist", "s"), gamma=1.0),
    Kernel.elementwise("minimum(x, w * y)", nonnegative=True, w=0.5),
    2 * make("chi2") + 1,
    make("rbf") + make("rbf", gamma=2) + make("poly") * make("poly", degree=5),
    (0.1 * make("sigmoid")) ** 3,
]
SAME: dict[str, Callable[[Kernel], Kernel]] = {
    "pickle": lambda kernel: pickle.loads(pickle.dumps(kernel)),
    "deepcopy": copy.deepcopy,
    "clone": clone,
    "record": lambda kernel: Kernel.from_record(json.loads(json.dumps(kernel.record()))),
    "repr": lambda kernel: eval(repr(kernel), {"Kernel": Kernel}),
    "set_params": lambda kernel: kernel.set_params(**kernel.get_params()),
}


@pytest.mark.parametrize("way", SAME)
@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_a_kernel_stays_itself(kernel: Kernel, way: str) -> None:
    again = SAME[way](kernel)
    assert again == kernel
    assert hash(again) == hash(kernel)
    assert repr(again) == repr(kernel)
    assert again.params == kernel.params
    assert again.spec == kernel.spec
    assert again.record() == kernel.record()
    assert_array_equal(again(SCALED[:5]), kernel(SCALED[:5]))


@pytest.mark.parametrize("kernel", [kernel for kernel in KERNELS if kernel.params], ids=repr)
def test_other_numbers_make_another_kernel(kernel: Kernel) -> None:
    name, value = next(iter(kernel.params.items()))
    before = repr(kernel), hash(kernel), kernel.values, kernel.numbers
    other = kernel.set_params(**{name: value + 1})
    assert other != kernel
    assert other.params == {**kernel.params, name: value + 1}
    assert other.spec == kernel.spec
    assert other.set_params(**{name: value}) == kernel
    assert len({kernel, other, other.set_params(**{name: value})}) == 2
    assert (repr(kernel), hash(kernel), kernel.values, kernel.numbers) == before
    gaussian = Kernel(RBF, gamma=0.5)
    assert (gaussian.numbers, gaussian.set_params(gamma=2).numbers) == ((-0.5,), (-2.0,))


def test_differences_that_count() -> None:
    assert len({*KERNELS, Kernel("rbf", gamma=1), Kernel("rbf", gamma=1.0)}) == len(KERNELS)
    assert Kernel("dot**n", n=2) != Kernel("dot ** n", n=2.0)  # by products, by power
    assert Kernel("dot * c", c=2) == Kernel("dot*c", c=2.0) != Kernel("c * dot", c=2.0)
    assert Kernel(RBF, gamma=1) != make("rbf")
    assert Kernel.elementwise("x * y", nonnegative=True) != Kernel.elementwise("x * y")
    assert make("rbf") != "rbf"


FOREIGN = """gamma; __class__ __ a__b _a lambda None if 1a a.b } // é gаmma ｇamma
             exp where dot sqdist xx yy s x y nonnegative"""


@pytest.mark.parametrize(
    "name", [*FOREIGN.split(), "", " ", "a b", "a\n", "a\x00", "a" * 5000], ids=lambda name: ascii(name[:12])
)
def test_names_that_no_parameter_has(name: str) -> None:
    match = "is a reserved name|name is letters, digits and single underscores|characters, at most"
    with pytest.raises(ValueError, match=match):
        Kernel(f"{name} * dot" if len(name) > 1000 else "dot", **{name: 1.0})


HUGE = 10**400
NO_NUMBERS = [np.nan, np.inf, HUGE, -HUGE, 10**5000, True, np.bool_(True), "1", None, 1j, [1.0], np.array(1.0)]


@pytest.mark.parametrize("value", [*NO_NUMBERS, np.longdouble("1e4000")], ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("text", ["c * dot", "dot ** c", "dot * 2 ** c"])
def test_numbers_that_are_none(text: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^c must be"):
        Kernel(text, c=value)
    with pytest.raises((TypeError, ValueError), match=r"^c must be"):
        Kernel(text, c=2).set_params(c=value)


@pytest.mark.parametrize(
    "value", [2, 2.0, np.float32(2), np.float64(2), np.int8(2), np.uint64(2), np.float16(2), Fraction(2)]
)
def test_numbers_of_any_kind(value: Any) -> None:
    kernel = Kernel("c * dot", c=value)
    assert kernel == Kernel("c * dot", c=2.0)
    assert type(kernel.values[0]) is float
    whole = Kernel("dot ** n", n=value)
    assert type(whole.values[0]) is (int if isinstance(value, int | np.integer) else float)
    assert_allclose(whole(X), (X @ X.T) ** 2)


@pytest.mark.parametrize("n", [0, -1, 17, 1000, 2**30 + 1, -(2**31)])
def test_powers_of_any_size(n: int) -> None:
    kernel, Z = Kernel("(1 + dot / 1e9) ** n", n=n), np.abs(X)
    assert_allclose(kernel(Z), (1 + Z @ Z.T / 1e9) ** float(n), rtol=1e-6)
    whole = Kernel("dot ** a + dot ** b + a * a * a * xx + power(a, b) * yy", a=2**30, b=-1)
    assert whole.numbers == (2**30, -1, 2.0**90, 2.0**-30)  # (which do not wrap round)


NUMBERED = Kernel("exp(-gamma * sqdist) * (1 / c) + dot ** n", gamma=1, c=1, n=2)
element = Kernel.elementwise
NOT_FINITE = r"^for c=.*, a part of '.*' that depends .* has the value (inf|-inf|nan), expected a finite value$"
REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: NUMBERED.set_params(delta=1), ValueError, "has no parameter delta .it has gamma, c"),
    (lambda: NUMBERED.set_params(gamma="scale"), TypeError, "gamma must be a number, got 'scale'"),
    (lambda: NUMBERED.set_params(n=2.5), TypeError, r"n must be an integer, got 2\.5"),
    (lambda: NUMBERED.set_params(c=0), ValueError, "for gamma=1, c=0, n=2, a part of .* has the value inf"),
    (lambda: make("poly").set_params(gamma=0), ValueError, "gamma must be finite and > 0"),
    (lambda: make("poly", degree=2.0), TypeError, r"degree must be an integer, got 2\.0"),
    (lambda: make("poly", degree=10**5000), ValueError, "degree must be finite"),
    (lambda: Kernel("dot * c ** n", c=0, n=-1), ValueError, NOT_FINITE),
    (lambda: Kernel("dot + (c - d) ** 0.5", c=1, d=2), ValueError, NOT_FINITE),
    (lambda: element("x * y", "dot"), ValueError, "unknown name 'dot'"),
    (lambda: element("1"), ValueError, "neither x nor y"),
    (lambda: element("1 / x"), ValueError, "is inf at x = y = 0, expected a finite value"),
    (lambda: element("x * y; ", "s"), ValueError, "character ';' at column 6"),
    (lambda: element(None), TypeError, "a kernel function must be text, got None"),
    (lambda: element("x * y", c=1), ValueError, r"parameter c does not occur in 's and x \* y'"),
    (lambda: element("x * y", nonnegative=1), TypeError, "nonnegative must be True or False"),
    (lambda: Kernel(b"dot"), TypeError, "a kernel function must be text"),
    (lambda: Kernel("dot", c=1), ValueError, "parameter c does not occur in 'dot'"),
    (lambda: Kernel("rbf", c=1), ValueError, "kernel rbf has no parameter c"),
    (lambda: Kernel("RBF"), ValueError, "unknown name 'RBF'"),
]


@pytest.mark.parametrize(("made", "error", "match"), REFUSED, ids=[match for _, _, match in REFUSED])
def test_refused(made: Callable[[], Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        made()
    assert NUMBERED.params == {"gamma": 1, "c": 1, "n": 2}


RECORD = Kernel("exp(-gamma * sqdist) + c * dot ** n", gamma=0.1, c=0.5, n=2).record()
POLY_RECORD = make("poly").record()
PARAMS = RECORD["params"]


@pytest.mark.parametrize(
    ("record", "change", "match"),
    [
        (RECORD, {"expression": "dot; }"}, "character ';'"),
        (RECORD, {"expression": "exp(-gamma*sqdist)+\nc*dot**n"}, "dictionary must equal"),
        (RECORD, {"expression": "rbf"}, "has no parameter c, n"),
        (RECORD, {"expression": 3}, "a kernel function must be text, got 3"),
        (RECORD, {"element": "}"}, "unknown name 'sqdist'"),
        (RECORD, {"name": "rbf\n} kernel void"}, "unknown kernel"),
        (RECORD, {"params": {"gamma;": 1.0}}, "a parameter's name is letters"),
        (RECORD, {"params": {**PARAMS, "d": 1.0}}, "parameter d does not occur in"),
        (RECORD, {"params": {**PARAMS, "gamma": math.nan}}, "gamma must be finite"),
        (RECORD, {"params": {1: 1.0}}, "must be strings"),
        (RECORD, {"params": [1.0]}, "must be a mapping"),
        (RECORD, {"integers": ["spam"]}, "dictionary must equal"),
        (RECORD, {"nonnegative": 1}, "dictionary must equal"),
        (RECORD, {"spam": 1}, "dictionary must equal"),
        *((POLY_RECORD, {name: "x * y"}, r"must equal .* of Kernel\('poly'") for name in ("expression", "element")),
        (POLY_RECORD, {"nonnegative": True}, r"dictionary must equal the record\(\) of Kernel\('poly'"),
        (POLY_RECORD, {"params": {"gamma": -1.0}}, "must be finite and > 0"),
        *((wrong, {}, "dictionary lacks the key 'name'|indices must be integers") for wrong in ([], {}, {"spam": ""})),
    ],
    ids=lambda value: str(value)[:40],
)
def test_records_with_changes_are_refused(record: Any, change: dict[str, Any], match: str) -> None:
    if change:
        assert Kernel.from_record(record).record() == record
        record = {**record, **change}
    with pytest.raises((ValueError, TypeError), match=match):
        Kernel.from_record(record)


LINEAR, POLY = make("linear"), make("poly", coef0=1, degree=2)
RBF1, RBF2 = make("rbf", gamma=0.2), make("rbf", gamma=0.9)
L1 = Kernel.elementwise("abs(x - y)", "exp(-gamma * s)", gamma=0.4)
A, B, P = RBF1(X), RBF2(X), POLY(X)


@pytest.mark.full
@pytest.mark.parametrize(
    ("kernel", "expected", "params"),
    [
        (sum([RBF1, RBF2]), A + B, {"gamma": 0.2, "gamma_2": 0.9}),
        (RBF1 * RBF2, A * B, {"gamma": 0.2, "gamma_2": 0.9}),
        (RBF1 + np.int64(3), 3 + A, {"gamma": 0.2, "offset": 3.0}),
        (3 * (2 * RBF1 + 1), 3 * (2 * A + 1), {"gamma": 0.2, "scale": 2, "offset": 1, "scale_2": 3}),
        ((RBF1 + RBF2) * RBF2, (A + B) * B, {"gamma": 0.2, "gamma_2": 0.9, "gamma_3": 0.9}),
        (RBF1 + RBF2 * POLY, A + B * P, {"gamma": 0.2, "gamma_3": 0.9, "gamma_2": 1, "coef0": 1, "degree": 2}),
        (POLY**2 * POLY, P**3, {"gamma": 1, "coef0": 1, "degree": 2, "gamma_2": 1, "coef0_2": 1, "degree_2": 2}),
        (RBF1 + Kernel("gamma_2 * dot", gamma_2=3), A + 3 * X @ X.T, {"gamma": 0.2, "gamma_2": 3}),
        (Kernel("a - b * sqdist", a=1, b=0.1) * -1.0, 0.1 * Kernel("sqdist")(X) - 1, {"a": 1, "b": 0.1, "scale": -1}),
        (0.5 * L1 + 1, 0.5 * L1(X) + 1, {"gamma": 0.4, "scale": 0.5, "offset": 1}),
    ],
    ids=lambda value: repr(value) if isinstance(value, Kernel) else "",
)
def test_composition_is_that_of_the_matrices(
    device: str, kernel: Kernel, expected: np.ndarray, params: dict[str, float]
) -> None:
    assert kernel.params == params
    assert_allclose(kernel(X), expected, rtol=1e-12, atol=1e-13 * np.abs(expected).max())
    got = clsvm.kernel_matrix(X, kernel=kernel, device=device, dtype="float64")
    assert_allclose(got, expected, rtol=1e-12, atol=1e-12 * np.abs(expected).max())


def test_changes_of_a_composed_kernel_reach_the_part_they_name() -> None:
    kernel = (RBF1 + RBF2 * POLY).set_params(gamma_3=0.5, degree=1)  # gamma_2 is the product's own name for POLY's
    assert_allclose(kernel(X), A + make("rbf", gamma=0.5)(X) * (X @ X.T + 1), rtol=1e-12)
    with pytest.raises(TypeError, match="degree must be an integer"):
        kernel.set_params(degree=1.5)


def test_refused_compositions() -> None:
    for left, right in ((RBF1, L1), (L1, RBF1), (L1, L1)):
        for operator in ("__add__", "__mul__"):
            with pytest.raises(ValueError, match="an element-wise kernel combines only with a number"):
                getattr(left, operator)(right)
    for other in (True, "a", None, [1], 1j, object()):
        for compose in (lambda a, b: a + b, lambda a, b: b + a, lambda a, b: a * b):
            with pytest.raises(TypeError):
                compose(RBF1, other)
    for number in (np.nan, np.inf, 10**400):
        with pytest.raises(ValueError, match="offset must be finite"):
            RBF1 + number
        with pytest.raises(ValueError, match="scale must be finite"):
            number * RBF1
    for exponent in (0, -1, 1.5, 2.0, True, "2", None):
        with pytest.raises(ValueError, match="a kernel's power must be a whole number, 1 or more"):
            RBF1**exponent
    for wrong in (lambda: RBF1 - RBF1, lambda: -RBF1, lambda: RBF1 / 2, lambda: 2**RBF1):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(ValueError, match=r"characters, at most"):
        reduce(lambda kernel, _: kernel + kernel, range(9), RBF1)


def test_composed_kernels_keep_what_their_parts_refuse() -> None:
    for kernel in (2 * make("chi2"), make("chi2") ** 2):
        assert kernel.spec.nonnegative
        with pytest.raises(ValueError, match="is for rows without negative values"):
            kernel(X)


def test_kernels_in_estimators() -> None:
    model = SVC(kernel=Kernel(RBF, gamma=0.3), C=2.0)
    assert model.get_params()["kernel__gamma"] == 0.3
    assert "kernel__gamma" not in model.get_params(deep=False)
    assert clone(model).kernel is model.kernel
    assert repr(model) == "SVC(C=2.0, kernel=Kernel('exp(-gamma * sqdist)', gamma=0.3))"
    assert "exp(-gamma * sqdist)" in make_pipeline(StandardScaler(), model)._repr_html_()
    given = model.kernel
    assert model.set_params(kernel__gamma=0.5, C=3.0) is model
    assert (model.C, model.kernel.params, given.params) == (3.0, {"gamma": 0.5}, {"gamma": 0.3})
    model.set_params(kernel=Kernel("c * dot", c=1), kernel__c=4)
    assert model.kernel == Kernel("c * dot", c=4)
    pipeline = make_pipeline(StandardScaler(), model).set_params(svc__kernel__c=7)
    assert pipeline.named_steps.svc.kernel.params == {"c": 7.0}
    assert clone(pipeline).get_params()["svc__kernel__c"] == 7.0
    assert pickle.loads(pickle.dumps(model)).kernel == model.kernel


def test_refused_kernel_parameters_of_an_estimator() -> None:
    with pytest.raises(ValueError, match=r"kernel__gamma can be set only if kernel is a clsvm\.Kernel, got 'rbf'"):
        SVC().set_params(kernel__gamma=1.0)
    model = SVC(kernel=Kernel(RBF, gamma=0.3))
    with pytest.raises(ValueError, match=r"has no parameter c \(it has gamma"):
        model.set_params(kernel__c=1.0)
    with pytest.raises(ValueError, match="gamma must be finite"):
        make_pipeline(model).set_params(svc__kernel__gamma=np.inf)
    assert model.kernel.params == {"gamma": 0.3}
    for kernel in (Kernel, BUILTIN["rbf"]):
        with pytest.raises(TypeError, match=r"kernel must be a name .*, a Kernel or a function"):
            SVC(kernel=kernel).fit(X, SIGNS)


@pytest.mark.parametrize(
    ("kernel", "holds", "words"),
    [
        *((kernel, (True, True, True), ": positive semi-definite") for kernel in (make("rbf", gamma=0.3), LINEAR)),
        (make("sigmoid", gamma=1.0, coef0=-1.0), (True, True, False), "not positive semi-definite"),
        (Kernel("-dot"), (True, True, False), "not positive semi-definite"),
        (Kernel("xx - yy + dot"), (False, True, False), "not symmetric"),
        *(
            (Kernel(text), (False, False, False), "not finite on 120 rows")
            for text in ("sqrt(dot)", "1 / (xx - xx)", "exp(xx * 1000)")
        ),
    ],
    ids=repr,
)
def test_check_reports_what_holds(kernel: Kernel, holds: tuple[bool, bool, bool], words: str) -> None:
    found, K = kernel.check(X), kernel(X)
    assert (found.symmetric, found.finite, found.positive_semidefinite) == holds
    assert words in str(found)
    if found.finite:
        spectrum = np.linalg.eigvalsh((K + K.T) / 2)
        expected = np.abs(K - K.T).max(), spectrum[0], spectrum[-1]
        assert (found.asymmetry, found.smallest_eigenvalue, found.largest_eigenvalue) == pytest.approx(expected)


def test_check_looks_at_a_sample_of_rows() -> None:
    Z = np.random.default_rng(0).normal(size=(3000, 3))
    found = [make("rbf").check(Z, rows=40, seed=seed) for seed in (0, 0, 1)]
    assert found[0].rows == 40
    assert found[0] == found[1] != found[2]
    assert make("rbf").check(Z[:0]).rows == 0
    for form in (np.ndarray.tolist, sp.csr_matrix, sp.csc_array, sp.coo_matrix):
        assert make("rbf").check(form(X)) == make("rbf").check(X)
    one = make("rbf").check(Z[:1])
    assert (one.rows, one.smallest_eigenvalue, one.positive_semidefinite) == (1, 1.0, True)
    with pytest.raises(ValueError, match=r"X must be rows of features, got the shape \(3,\)"):
        make("rbf").check(Z[0])
    with pytest.raises(ValueError, match="is for rows without negative values"):
        make("chi2").check(Z)


@pytest.mark.parametrize("kernel", ["chi2", make("chi2") * 2], ids=str)
@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
def test_negative_values_are_refused(device: str, form: Callable[[np.ndarray], Any], kernel: str | Kernel) -> None:
    model = SVC(kernel=kernel, device=device).fit(form(np.abs(X)), SIGNS)
    assert model.predict(form(np.abs(X))).shape == (120,)
    for call in (model.predict, model.decision_function, lambda rows: clone(model).fit(rows, SIGNS)):
        with pytest.raises(ValueError, match=r"is for rows without negative values, got -\d"):
            call(form(X))


@pytest.mark.parametrize(
    ("text", "C", "classes"),
    [
        ("sqrt(dot)", 1.0, 2),
        *(("exp(-sqdist) + 0 * sqrt(1e3 - xx) * sqrt(1e3 - yy)", *case) for case in ((1.0, 2), (np.inf, 2), (1.0, 3))),
        # PoCL's log1p yields a NaN of ones alone
        ("exp(-sqdist + 0 * log1p(1e3 - xx) + 0 * log1p(1e3 - yy))", 1.0, 2),
        ("1 / (xx - xx)", 1.0, 2),
        ("exp(xx * yy)", 1.0, 2),
    ],
)
def test_values_that_are_no_numbers_are_refused_in_fit(device: str, text: str, C: float, classes: int) -> None:
    """Everywhere, or for a single row (which no sample need have met)."""
    Z = X.copy()
    Z[7] = 30.0
    words = "is nan for some rows|is not finite for some pairs|is too large for float32: scale X"
    with pytest.raises(ValueError, match=words):
        SVC(kernel=Kernel(text), C=C, device=device).fit(Z, np.arange(120) % classes)


EPS = {dtype: float(np.finfo(dtype).eps) for dtype in ("float32", "float64")}
wide = pytest.mark.skipif(np.finfo(np.longdouble).max == np.finfo(np.float64).max, reason="long double is double here")


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=wide)])
def test_digits_that_cancel_inside(dtype: str) -> None:
    """The value is off by what an inner value is rounded by."""
    large = 0.1 / EPS[dtype]
    found = Kernel("(dot + c) - c", c=large).evaluation(Extent(1.0, 0.5), Extent(1.0, 0.5), dtype, 3)
    assert 1e-3 < found.error < 0.2
    assert found.outside == 0


@wide
def test_float64s_range() -> None:
    kernel = Kernel("dot / sqrt(xx * yy)")
    for size, holds in ((1.0, True), (1e100, True), (1e160, False), (1e-100, True), (1e-160, False)):
        found = kernel.evaluation(Extent(size, size / 2), Extent(size), "float64", 3)
        assert (found.outside < 1e-12) == holds, size
        assert found.largest == pytest.approx(1)
    kernel = Kernel("dot / ((xx * yy) ** 20) ** (1 / 40)")
    for dtype in EPS:  # an inner value is beyond both
        found = kernel.evaluation(Extent(1e16, 1e15), Extent(1e16, 1e15), dtype, 3)
        assert found.largest == pytest.approx(1)
        assert found.outside == pytest.approx(1)


@pytest.mark.parametrize("name", BUILTIN)
def test_evaluation_of_the_built_in_ones_adds_little_to_rounding(name: str) -> None:
    """Fits to ordinary rows keep their bounds, and so their paths."""
    kernel = make(name)
    for least, largest in ((1e-3, 1e-2), (0.5, 4.0), (1.0, 800.0), (1e4, 1e6)):
        extent = Extent(largest, least, largest**0.5, least**0.5 / 10)
        for dtype, eps in EPS.items():
            found = kernel.evaluation(extent, extent, dtype, 30)
            assert found.error <= 1.5 * eps * kernel.rounding(largest, eps, least)
            assert found.outside <= 1e-20 * found.largest


def test_entries_of_an_element_wise_kernel() -> None:
    kernel = Kernel.elementwise("x * x * y * y / (1 + x * x * y * y)", "exp(-s)")
    ordinary, far = Extent(4.0, 1.0, 2.0, 0.1), Extent(4.0, 1.0, 1e10, 1e9)
    assert kernel.evaluation(ordinary, ordinary, "float32", 5).error < 1e-6
    assert kernel.evaluation(far, far, "float32", 5).outside == INVALID
    assert kernel.evaluation(far, far, "float64", 5).error < 1e-14


def test_extents() -> None:
    one, other = Extent(4.0, 2.0, 3.0, 1.0), Extent(5.0, 0.0, 2.0, 0.5)
    assert one.union(other) == other.union(one) == Extent(5.0, 2.0, 3.0, 0.5)
    assert between(0.0, 3.0).tolist() == [3.0] * len(between(0.0, 3.0))
    norms = between(1e-300, 1e300)
    assert (norms[0], norms[-1]) == (1e-300, 1e300)
    given = inner_products(one, other, np.longdouble)
    assert {values.dtype for values in given.values()} == {np.dtype(np.longdouble)}
    assert np.broadcast_shapes(*(values.shape for values in given.values())) == given["dot"].shape
    assert (given["sqdist"] >= 0).all()
    assert (np.abs(given["dot"]) <= np.sqrt(given["xx"] * given["yy"]) * (1 + 1e-12)).all()
