"""scikit-learn's own tests of its SVMs, with all that clsvm can do solved by clsvm, in a process of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import sklearn

NINE = sklearn.__version__.startswith("1.9")
pytestmark = [pytest.mark.full, pytest.mark.skipif(not NINE, reason="lists the tests of 1.9")]

# Each compares two solutions more finely than the tolerance of a fit, 1e-3, says.
FINER = {
    "test_svm": {
        "test_precomputed": "coefficients of given kernel values and of rows, to 1e-6",
        "test_decision_function": "decision values with those of coefficients of float64, to 1e-6",
        "test_svr_predict": "the same of a regression",
        "test_svc_clone_with_callable_kernel": "coefficients by LIBSVM, which a function is left to, and ours, to 1e-6",
        "test_custom_kernel_not_array_input": "a score by LIBSVM and one by clsvm, as equal numbers",
    },
    "test_sparse": {"test_sparse_decision_function": "decision values with those of coefficients of float64, to 1e-7"},
}
RUN = """
import sys
import pytest
from clsvm import accel
from clsvm.accel import costs, log, patches
costs.COSTS = patches.COSTS = costs.Costs(pair=1.0, value=1.0, share=0.0, first=0.0)
accel.install()
name = f"sklearn.svm.tests.{sys.argv[1]}"
pytest.main(["--pyargs", name, "-q", "-p", "no:cacheprovider", "--tb=no", "-W", "ignore"])
print("ours:", sum(call.who == log.OURS for call in log.calls))
"""


@pytest.mark.parametrize("module", ["test_svm", pytest.param("test_sparse", marks=pytest.mark.sweep)])
def test_its_own_suite(device: str, tmp_path: Path, module: str) -> None:
    environment = os.environ | {"CLSVM_DEVICE": device, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", RUN, module]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    failed = re.findall(r"FAILED \S*::(\w+)", done.stdout)
    count = re.search(r"(\d+) failed", done.stdout)
    assert len(failed) == (int(count[1]) if count else 0), done.stdout[-3000:]
    assert set(failed) <= set(FINER[module]), done.stdout[-3000:]
    passed, ours = (re.search(words, done.stdout) for words in (r"(\d+) passed", r"ours: (\d+)"))
    assert passed, done.stdout[-3000:]
    assert int(passed[1]) > 100
    assert ours
    assert int(ours[1]) > 100
