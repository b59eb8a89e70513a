"""Dask's estimators against their twins for rows in one place: methods, labels, weights, scores and errors."""

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import distributed
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import clsvm
from clsvm import dask as over_dask
from clsvm import model_selection
from clsvm.dask import executor
from clsvm.errors import DeviceError
from tests.dask.conftest import DEVICE

CLASSIFIERS = ("SVC", "FalkonClassifier")
ONE_OF_EACH = (*CLASSIFIERS, "SVR", "FalkonRegressor")
METHODS = ("predict", "decision_function", "predict_proba", "predict_log_proba", "score_samples")
X = np.random.default_rng(0).normal(size=(60, 3))
SIGNS = X[:, 0] > 0
THREE = SIGNS.astype(int) + (X[:, 1] > 0)
WORDS = np.where(SIGNS, "yes", "no")
ROWS = da.from_array(X, chunks=(20, 2))
SOME = da.from_array(np.arange(60) > 0, chunks=20)  # rows of chunks whose sizes nobody knows
FRAME = pd.DataFrame(X, columns=list("abc"))
TABLE = dd.from_pandas(FRAME, npartitions=3)


@pytest.fixture(scope="module", autouse=True)
def client() -> Iterator[Any]:
    """Two workers in this process."""
    workers = {"processes": False, "n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    with distributed.Client(**workers) as client:
        yield client


def made(name: str, module: Any = over_dask, **given: Any) -> Any:
    """Return an unfitted estimator, small where it is a Falkon model."""
    small = {"n_centers": 20, "random_state": 0, "penalty": 1e-3} if "Falkon" in name else {}
    return getattr(module, name)(**{"device": DEVICE, "gamma": 0.3} | small | given)


def targets(name: str) -> Any:
    """Return labels or numbers (60,) for an estimator."""
    return X[:, 0] + 0.1 if name.endswith(("R", "Regressor")) else SIGNS


def series(values: Any, **given: Any) -> Any:
    """Return values (60,) as a Dask series in the partitions of TABLE."""
    return dd.from_pandas(pd.Series(values, **given), npartitions=3)


@pytest.mark.parametrize("name", over_dask.__all__)
def test_methods_of_the_twin(name: str) -> None:
    """No public method more or less, and the same parameters of each."""
    ours = getattr(over_dask, name)
    twin = getattr(clsvm, name, None) or getattr(model_selection, name)
    public = {one for one in dir(twin) if not one.startswith("_")}
    assert public == {one for one in dir(ours) if not one.startswith("_")}
    for method in public:
        if callable(getattr(twin, method)):
            parameters = [list(inspect.signature(getattr(one, method)).parameters) for one in (ours, twin)]
            assert parameters[0] == parameters[1], method


FULL = [pytest.param(name, marks=pytest.mark.full) for name in ("NuSVC", "FalkonClassifier", "logistic")]


@pytest.mark.parametrize("name", ["SVC", "SVR", "OneClassSVM", "FalkonRegressor", "softmax", *FULL])
def test_answers_and_score(name: str) -> None:
    """Of a data frame with an empty partition, and of arrays of known and unknown sizes: the values of NumPy's rows."""
    y = THREE if name == "softmax" else targets(name)
    name = "LogisticFalkonClassifier" if name in ("softmax", "logistic") else name
    weights = np.linspace(0.5, 2, 60)
    table, column = (one.map_partitions(lambda part: part[part.index >= 20]) for one in (TABLE, series(y)))
    model = made(name).fit(table, column)
    known = da.from_array(X[20:], chunks=(13, 2))
    there = [method for method in METHODS if hasattr(model, method)]
    scored = (column, None), (column, da.from_array(weights[20:], chunks=7)), (y[20:], weights[20:])
    for rows, (own, w) in zip((table, table.to_dask_array(), known), scored, strict=True):
        for method in there:
            found, want = getattr(model, method)(rows), getattr(model, method)(FRAME[20:])
            assert isinstance(found, da.Array)
            assert isinstance(want, np.ndarray)
            assert (found.dtype, found.ndim) == (want.dtype, want.ndim)
            np.testing.assert_array_equal(found.compute(), want)
        if hasattr(model, "score"):
            want = model.score(FRAME[20:], y[20:], None if w is None else weights[20:])
            assert model.score(rows, own, sample_weight=w) == pytest.approx(want)
    if name == "OneClassSVM":
        assert made(name).fit_predict(table).compute().shape == (40,)


def test_searches_answer_in_chunks() -> None:
    """What the best estimator has, and no more."""
    search = over_dask.SVCSearchCV(made("SVC", clsvm), {"C": [1.0]}, cv=3).fit(TABLE, series(SIGNS))
    alone = made("SVC", clsvm).fit(FRAME, SIGNS)
    for name in ("predict", "decision_function"):
        found = getattr(search, name)(TABLE)
        assert isinstance(found, da.Array)
        np.testing.assert_array_equal(found.compute(), getattr(alone, name)(FRAME))
    assert search.score(TABLE, series(SIGNS)) == alone.score(FRAME, SIGNS)
    assert not hasattr(search, "predict_proba")


LABELS: dict[str, Callable[[], Any]] = {
    "Int64": lambda: pd.Series(SIGNS.astype(int), dtype="Int64"),
    "boolean": lambda: pd.Series(SIGNS, dtype="boolean"),
    "bool[pyarrow]": lambda: pd.Series(SIGNS).astype("bool[pyarrow]"),
    "double[pyarrow]": lambda: pd.Series(SIGNS.astype(float)).astype("double[pyarrow]"),
    "string": lambda: pd.Series(WORDS, dtype="string"),
    "string[pyarrow]": lambda: pd.Series(WORDS).astype(pd.ArrowDtype(pytest.importorskip("pyarrow").string())),
    "category": lambda: pd.Series(WORDS).astype("category"),
    "object": lambda: pd.Series(WORDS, dtype=object),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *(("SVC", dtype) for dtype in LABELS),
        *(("FalkonClassifier", dtype) for dtype in ("Int64", "string", "category")),
    ],
)
def test_labels_of_pandas(name: str, dtype: str) -> None:
    """A column gives the twin's classes and score; a missing label is refused by both."""
    column = LABELS[dtype]()
    there = dd.from_pandas(column, npartitions=3)
    model, alone = made(name).fit(TABLE, there), made(name, clsvm).fit(FRAME, column)
    np.testing.assert_array_equal(model.classes_, alone.classes_)
    assert model.classes_.dtype == alone.classes_.dtype
    assert model.score(TABLE, there) == model.score(FRAME, column) > 0.9
    missing = column.where(np.arange(60) != 5)
    for fit, rows, y in ((alone.fit, FRAME, missing), (model.fit, TABLE, dd.from_pandas(missing, npartitions=3))):
        with pytest.raises(ValueError, match=r"y must have a value for each row, got (<NA>|nan)|y contains NaN"):
            fit(rows, y)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_forms_of_a_nullable_column(name: str) -> None:
    """Dask's arrays hold objects in place of a nullable column; they give the classes of the column."""
    column = pd.Series(SIGNS.astype(int), dtype="Int64")
    there = dd.from_pandas(column, npartitions=3)
    for y in (column, there.to_frame(), there.to_dask_array(), there.to_dask_array(lengths=True)):
        model = made(name).fit(ROWS, y)
        assert model.classes_.tolist() == [0, 1]
        assert model.score(ROWS, y) > 0.9


def test_missing_labels_of_searches() -> None:
    missing = pd.Series(WORDS, dtype=object).where(np.arange(60) != 5, None)
    for module, y in ((model_selection, missing), (over_dask, dd.from_pandas(missing, npartitions=3))):
        search = module.SVCSearchCV(made("SVC", clsvm), {"C": [1.0]}, cv=2)
        with pytest.raises(ValueError, match="y must have a value for each row, got"):
            search.fit(FRAME if module is model_selection else TABLE, y)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_weights(name: str) -> None:
    """Nullable weights, a single one and a chunk of negative ones give the twin's classes or numbers."""
    y = targets(name)
    ramp, negative = np.arange(60.0) + 1, np.where(np.arange(60) < 20, -0.5, 0.5)
    for here, there in (
        (pd.Series(ramp, dtype="Float64"), series(ramp, dtype="Float64")),
        (2.0, 2.0),
        (negative, da.from_array(negative, chunks=20)),
    ):
        model = made(name).fit(ROWS, da.from_array(y, chunks=9), there)
        given = {"center_selection": model.centers_} if "Falkon" in name else {}
        alone = made(name, clsvm, **given).fit(X, y, here)
        assert here is not negative or not given or model.center_indices_.min() >= 20
        np.testing.assert_allclose(model.intercept_, alone.intercept_, atol=2e-3)


@pytest.mark.parametrize("centres", [sp.csr_matrix, sp.csr_array, np.asarray, lambda rows: "uniform"])
def test_centres_of_sparse_chunks(centres: Any) -> None:
    """The centres are sparse as the rows are, so that the model predicts the rows that it was fitted to."""
    cells = np.where(X > 0, X, 0)
    rows = da.from_array(cells, chunks=(20, 3)).map_blocks(sp.csr_array)
    model = made("FalkonRegressor", center_selection=centres(cells[:20])).fit(rows, X[:, 0])
    alone = made("FalkonRegressor", clsvm, center_selection=model.centers_).fit(sp.csr_array(cells), X[:, 0])
    assert sp.issparse(model.centers_)
    np.testing.assert_allclose(model.predict(rows).compute(), alone.predict(sp.csr_array(cells)), atol=1e-3)
    assert model.score(rows, X[:, 0]) > 0.5


def mixed() -> Any:
    """Return three chunks of rows of which the first is dense."""
    return da.concatenate(
        [da.from_array(X[:20], chunks=(20, 3)), da.from_array(X[20:], chunks=(20, 3)).map_blocks(sp.csr_array)]
    )


def words_and_numbers() -> Any:
    """Return three chunks of labels of which the first has strings."""
    strings = da.from_delayed(dask.delayed(lambda: np.array(["a", "b"] * 10))(), (20,), float)
    return da.concatenate([strings, da.ones(40, chunks=20)])


BOTH, FALKON = ("SVC", "FalkonRegressor"), ("FalkonRegressor",)
REFUSED: list[tuple[str, tuple[str, ...], Callable[[], tuple[Any, ...]]]] = [
    ("y must have 60 rows, as X has, got 40", BOTH, lambda: (ROWS, da.from_array(SIGNS[:40], chunks=20))),
    (
        "chunks of y must have [19, 20, 20] rows, as X's chunks have, got [20, 20, 19]",
        FALKON,
        lambda: (ROWS[SOME], da.from_array(X[:, 0], chunks=20)[SOME[::-1]]),
    ),
    ("y must be given", BOTH, lambda: (ROWS, None)),
    ("Input y contains NaN", ("SVR",), lambda: (ROWS, np.where(SIGNS, np.nan, 1))),
    ("contains NaN", FALKON, lambda: (ROWS, da.full(60, np.nan, chunks=20))),
    ("got 1 class", CLASSIFIERS[1:], lambda: (ROWS, np.zeros(60))),
    ("sample_weight: could not convert", CLASSIFIERS[1:], lambda: (ROWS, SIGNS, da.full(60, "a", chunks=20))),
    ("Input sample_weight contains NaN", BOTH, lambda: (ROWS, SIGNS, np.where(SIGNS, np.nan, 1))),
    ("all samples have zero or negative weights", CLASSIFIERS, lambda: (ROWS, SIGNS, -np.ones(60))),
    (
        "sample_weight must be one number for each row, got a DataFrame with ndim=2",
        CLASSIFIERS[1:],
        lambda: (TABLE, series(SIGNS), series(np.ones(60)).to_frame()),
    ),
    ("y should be a 1d array, got an array", CLASSIFIERS, lambda: (ROWS, np.stack([SIGNS, SIGNS], axis=1))),
    ("chunks of y must be all numbers or all strings, got <U1 and", CLASSIFIERS, lambda: (ROWS, words_and_numbers())),
    ("y must be a Dask collection if the sizes", CLASSIFIERS[1:], lambda: (TABLE, SIGNS)),
    ("y must be a Dask array, data frame or series, got", CLASSIFIERS, lambda: (ROWS, dask.delayed(SIGNS))),
    ("X must be rows of features (n, d), got a Array with ndim=1", BOTH, lambda: (ROWS[:, 0], SIGNS)),
    ("X must have rows, got none in 3", BOTH, lambda: (TABLE[TABLE.a > 99], series(SIGNS)[TABLE.a > 99])),
    ("Found array with 0 feature(s)", BOTH, lambda: (da.zeros((60, 0), chunks=(20, 0)), SIGNS)),
    ("chunks of X must be all dense or all sparse, got ['dense', 'sparse',", BOTH, lambda: (mixed(), SIGNS)),
    ("Input X contains NaN", BOTH, lambda: (TABLE.astype("Float64").mask(TABLE.a > 1), series(SIGNS))),
]


@pytest.mark.parametrize(("words", "names", "given"), REFUSED, ids=[words for words, *_ in REFUSED])
def test_refused(words: str, names: tuple[str, ...], given: Callable[[], tuple[Any, ...]]) -> None:
    for name in names:
        with pytest.raises((ValueError, TypeError), match=re.escape(words)):
            made(name).fit(*given())


@pytest.mark.parametrize(
    ("words", "name", "given"),
    [
        ("kernel must be a Kernel or a name other than 'precomputed', got", "SVC", {"kernel": "precomputed"}),
        ("checkpoint must be None for X in Dask chunks, got 'file'", "SVC", {"checkpoint": "file"}),
        ("'crammer_singer' needs one device", "SVC", {"multi_class": "crammer_singer"}),
        ("center_selection must be 'uniform' or an array", "FalkonRegressor", {"center_selection": "leverage"}),
        ("warm_start must be False for X in Dask chunks", "FalkonRegressor", {"warm_start": True}),
        ("penalty must be", "FalkonRegressor", {"penalty": -1}),
        ("class_weight must be >= 0 and finite, got -1", "FalkonClassifier", {"class_weight": {False: -1, True: 1}}),
        ("device must name one device, which all workers use, got device=", "SVR", {"device": f"{DEVICE},{DEVICE}"}),
        ("which all workers use, got device=", "FalkonRegressor", {"device": [DEVICE] * 2}),
    ],
)
def test_refused_parameters(words: str, name: str, given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        made(name, **given).fit(ROWS, targets(name))


def test_columns_of_one_and_other_features() -> None:
    """y of one column gives predictions as the twin's; rows of other features are refused before any is computed."""
    y = da.from_array(X[:, :1], chunks=(20, 1))
    model = made("FalkonRegressor").fit(TABLE, y)
    assert model.predict(ROWS).shape == model.predict(X).shape == (60, 1)
    with pytest.raises(ValueError, match="X has 2 features, but FalkonRegressor is expecting 3 features"):
        model.predict(ROWS[:, :2])
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(TABLE[["b", "a", "c"]])
    assert made("SVC").fit(ROWS, SIGNS[:, None]).predict(ROWS).shape == (60,)


def test_clients(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No client, a closed one, rows that a closed one had, and a client whose workers do not come."""

    def nobody() -> Any:
        raise ValueError("No global client found")

    with monkeypatch.context() as patch:
        patch.setattr(over_dask.rows, "get_client", nobody)
        for name in CLASSIFIERS:
            with pytest.raises(ValueError, match="X in Dask chunks needs a Dask client"):
                made(name).fit(ROWS, SIGNS)
    monkeypatch.setattr(executor, "WORKER_TIMEOUT", 0.1)
    monkeypatch.setattr(executor, "REPLY_TIMEOUT", 0.1)
    model = made("SVC").fit(ROWS, SIGNS)
    none = {"processes": False, "n_workers": 0, "dashboard_address": ":0"}
    with distributed.Client(**none, set_as_default=False) as idle:
        for call in (
            lambda: made("SVC").fit(ROWS, SIGNS),
            lambda: made("FalkonClassifier").fit(TABLE, series(SIGNS)),
            lambda: model.score(ROWS, SIGNS),
        ):
            with idle.as_current(), pytest.raises(DeviceError, match="Dask has no running worker, and none came"):
                call()
        idle.cluster.scale(1)
        idle.wait_for_workers(1)
        persisted = idle.persist(da.from_array(X + 1, chunks=(20, 3)))
        distributed.wait(persisted)
    with idle.as_current(), pytest.raises(ValueError, match="needs an open Dask client, got one that is closed"):
        made("SVC").fit(ROWS, SIGNS)
    for name in CLASSIFIERS:
        with pytest.raises(DeviceError, match="Dask has lost the chunks: the client that persisted them is closed"):
            made(name).fit(persisted, SIGNS)
