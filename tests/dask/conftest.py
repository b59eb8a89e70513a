"""Workers of Dask for these tests, and rows; without Dask they are left out."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from tests.conftest import USABLE, noisy

DEVICE = next((str(one.index) for one in USABLE if "Intel" in one.platform), str(USABLE[0].index) if USABLE else "")
X, SIGNS = noisy(2000, 6)
X = X.astype(np.float32)
NUMBERS = np.sin(X).sum(axis=1)
LABELS = np.array(["no", "yes"])[(SIGNS > 0).astype(int)]
if find_spec("dask") is None or find_spec("distributed") is None:
    collect_ignore_glob = ["test_*.py"]


def cluster(workers: int, **how: Any) -> Any:
    """So many processes, or threads of this one."""
    from distributed import LocalCluster

    return LocalCluster(n_workers=workers, dashboard_address=":0", **{"threads_per_worker": 1} | how)


@contextmanager
def current(workers: int, **how: Any) -> Iterator[Any]:
    """Open so many workers, whose client is the current one."""
    from distributed import Client

    with cluster(workers, **how) as some, Client(some, set_as_default=False) as client, client.as_current():
        yield client


@pytest.fixture(scope="session")
def client() -> Iterator[Any]:
    """Two workers, for all that leave them alive."""
    from distributed import Client

    with cluster(2) as two, Client(two) as client:
        yield client
