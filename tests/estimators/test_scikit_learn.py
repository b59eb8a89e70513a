"""scikit-learn's own tests of its support vector machines, as they are installed, with our classes in place of its."""

import importlib.util
import inspect
import os
import re
import sys
import types
from typing import Any

import pytest
import sklearn.svm

import clsvm
from clsvm.opencl import devices
from tests.conftest import thrifty

OURS = {made.__name__: made for made in (clsvm.SVC, clsvm.NuSVC, clsvm.SVR, clsvm.NuSVR, clsvm.OneClassSVM)}

_LIBLINEAR = "about liblinear, of which we have nothing"
_PROBABILITY = "probability=True is not offered (and deprecated): CalibratedClassifierCV is, see test_contract.py"

# What is left out, by the test's name; one that the installed release does not have is no matter.
SKIPPED = {
    "test_gamma_scale": "reads the private _gamma; model_.kernel has it, see test_gamma_scale_of_sparse_rows",
    "test_svc_raises_error_internal_representation": "writes the private _n_support, which no prediction reads here",
    "test_tweak_params": "writes the private _dual_coef_, which no prediction reads here",
    "test_libsvm_convergence_warnings": "asks for LIBSVM's words; ours are held by test_max_iter_says_that_it_did_not_"
    "converge and test_contract.py",
    "test_sparse_fit_support_vectors_empty": "dual_coef_ is the array that the documentation says, of sparse rows, too;"
    " no support vectors are held by test_contract.py",
    "test_svr_errors": "asks for an error in predict alone, of one kernel value for four pairs of rows; ours is in fit:"
    " see test_store.py",
    "test_svc_nonfinite_params": "asks for words about the solution; ours refuse such rows before the work, see "
    "test_numbers_beyond_the_dtype",
}
# And by what stands in its text: releases differ in how many tests have it beside what they are about.
SKIPPED_WITH = {"probability=": _PROBABILITY, "probA_": _PROBABILITY}
_OF_LIBLINEAR = re.compile("liblinear|linear_?svc|linearsvr_|linear_?svm|lsvc|crammer_singer|dual_auto")

# Comparisons to six or more decimals of what is computed in different ways: with kernel values in float64.
EXACT = {
    "test_decision_function",
    "test_svr_predict",
    "test_precomputed",
    "test_svc_clone_with_callable_kernel",
    "test_custom_kernel_not_array_input",
}


def with_ours(name: str) -> types.ModuleType:
    """A test module of sklearn.svm, imported afresh, for which the classes of sklearn.svm are ours."""
    try:
        found = importlib.util.find_spec(f"sklearn.svm.tests.{name}")
    except ModuleNotFoundError:
        found = None
    if found is None or found.origin is None:
        pytest.skip("scikit-learn is installed without its tests", allow_module_level=True)
    stand_in = types.ModuleType("sklearn.svm")
    vars(stand_in).update({**vars(sklearn.svm), **OURS})
    spec = importlib.util.spec_from_file_location(f"{__name__}_{name}", found.origin)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sklearn, "svm", stand_in)
        patched.setitem(sys.modules, "sklearn.svm", stand_in)
        patched.setattr(pytest, "mark", pytest.MarkGenerator(_ispytest=True))  # their marks are not among those of ours
        spec.loader.exec_module(module)
    return module


def reason(name: str, test: Any) -> str | None:
    """Why a test is left out, None: it is not."""
    text = inspect.getsource(test)
    own = _LIBLINEAR if _OF_LIBLINEAR.search(name) else SKIPPED.get(name)
    return next((why for words, why in SKIPPED_WITH.items() if words in text), own)


THEIRS = with_ours("test_svm")
TESTS = {name: test for name, test in vars(THEIRS).items() if name.startswith("test_")}
for _name, _test in TESTS.items():
    _why = reason(_name, _test)
    globals()[_name] = pytest.mark.skip(reason=_why)(_test) if _why else _test


@pytest.fixture
def global_random_seed() -> int:
    """What their conftest.py has by default; the variable is theirs, too, and takes one of 0 to 99."""
    return int(os.environ.get("SKLEARN_TESTS_GLOBAL_RANDOM_SEED", "42"))


@pytest.fixture(autouse=True)
def ours_alone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test gets at scikit-learn's own classes; EXACT has another default of dtype."""
    device, exact = devices.find(None), request.function.__name__ in EXACT
    if thrifty(str(device.index)):
        pytest.skip("Intel's runtime has them")
    if exact and not device.fp64:
        pytest.skip("a device without double has no float64 values")

    def refuse(self: Any, *_: Any, **__: Any) -> None:
        raise AssertionError(f"{type(self)} is not ours")

    for name, made in OURS.items():
        monkeypatch.setattr(getattr(sklearn.svm, name), "fit", refuse)
        if exact:
            monkeypatch.setitem(inspect.unwrap(made.__init__).__kwdefaults__, "dtype", "float64")
