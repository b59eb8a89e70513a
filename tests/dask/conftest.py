"""Workers of Dask for these tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import USABLE

DEVICE = next((str(one.index) for one in USABLE if "Intel" in one.platform), str(USABLE[0].index) if USABLE else "")


def cluster(workers: int) -> Any:
    """So many processes."""
    from distributed import LocalCluster

    return LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=":0")


@pytest.fixture(scope="session")
def client() -> Iterator[Any]:
    """Two workers, for all that leave them alive."""
    from distributed import Client

    with cluster(2) as two, Client(two) as client:
        yield client
