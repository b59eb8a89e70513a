"""Divide rows into shards, one on each of several devices, and solve dual problems over all rows.

The devices belong to this machine (:class:`LocalRows`) or, for example, to Dask's workers (:class:`RemoteRows`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeGuard

import numpy as np
from numpy.typing import NDArray

from clsvm.arrays import Data
from clsvm.distribute import OnDevices, Parts, call_one, open_streams, replayed
from clsvm.gram import layouts, precision
from clsvm.gram.layouts.record import Plan
from clsvm.kernels import Kernel, Precomputed
from clsvm.kernels.expression import Extent
from clsvm.opencl import devices
from clsvm.opencl.stream import Stream
from clsvm.parameters import Options
from clsvm.problem import Constraint, Problem
from clsvm.solvers import certificate
from clsvm.solvers.result import Result, Settings
from clsvm.solvers.sharded import Shard, Sharded, ShardInfo, WorkingSet, centred_plan


class ShardSet(NamedTuple):
    """Hold rows that are divided into shards, each on a device, for kernel values of one dtype.

    Attributes
    ----------
    shards
        the shards.
    plan
        storage format of the rows, the same on every device.
    finest
        most precise dtype that all devices support.
    device
        names of the devices.
    """

    shards: Parts
    plan: Plan
    finest: str
    device: str


class RemoteRows(Protocol):
    """Give access to rows X (n, d) that are stored outside this process.

    Attributes
    ----------
    shape
        number of rows and features (n, d).
    order
        row numbers in X, first for all rows of the first shard, then for the second shard, and so on, (n,). A shard is
        the part of the rows on one device.
    """

    shape: tuple[int, int]
    order: NDArray[np.intp]

    def lay_out(self, kernel: Kernel, options: Options, dtype: str) -> AbstractContextManager[ShardSet]:
        """Return a context manager that copies the rows to their devices and yields a :class:`ShardSet` of them.

        dtype: dtype of the kernel values.
        """


def is_remote(X: Any) -> TypeGuard[RemoteRows]:
    """Return whether X is RemoteRows. The test is not isinstance, because that is slow for a protocol."""
    return hasattr(X, "lay_out")


@contextmanager
def in_shards(X: Any, kernel: Kernel | Precomputed, options: Options, dtype: str) -> Iterator[ShardedFit]:
    """Divide X into shards, copy each to its device, and yield a :class:`ShardedFit` over them.

    RemoteRows stay on the machines that store them. The rows of an array go to the devices of ``options``. Raises
    ValueError for a precomputed kernel.
    """
    if isinstance(kernel, Precomputed):
        raise ValueError(
            "kernel='precomputed' and Python kernel functions need one device, got rows on several devices"
        )
    home = X if is_remote(X) else LocalRows(X, devices.device_list(options.device))
    with (
        Stream(devices.first_device(options.device), options.memory_limit) as stream,
        home.lay_out(kernel, options, dtype) as laid,
    ):
        yield ShardedFit(stream, laid, home, kernel, options, dtype)


class ShardedFit:
    """Solve dual problems over rows that are divided among several devices.

    :class:`prepare.PreparedFit` does the same for rows on one device.

    stream: the device that solves the dual over each working set.
    laid: the shards, one on each device, with the rows that the device stores.
    home: the object that divided the rows X into the shards. It has the shape of X and the order of the rows.
    """

    def __init__(
        self, stream: Stream, laid: ShardSet, home: RemoteRows, kernel: Kernel, options: Options, dtype: str
    ) -> None:
        self._stream, self._shards, self._order, (n, d) = stream, laid.shards, home.order, home.shape
        self._kernel, self._options, self._dtype = kernel, options, dtype
        settings = options.working_set_size, options.cache_size, n
        replies = laid.shards.call("info", [settings] * len(laid.shards.sizes))
        self._infos: list[ShardInfo] = replayed(replies, lambda i: call_one(laid.shards, i, "info", *settings))
        sizes = np.concatenate([one.sizes for one in self._infos])
        extent = reduce(Extent.union, (one.extent for one in self._infos))
        self._scales = precision.scales(kernel, sizes, extent, d, dtype, options.dtype)
        self.is_finest, self.plan, self.device = dtype == laid.finest, laid.plan, laid.device
        self.reason = self._infos[0].reason
        self.precision = dtype

    def solve(self, problem: Problem, **settings: Any) -> Result | None:
        """Solve ``problem``, and return its result. Raises ValueError for Crammer and Singer's multiclass SVM.

        Return None if rounding errors of the kernel values are too large for tol. The caller then solves in float64.

        settings: fields of Settings for this solve.
        """
        if problem.constraint is Constraint.COUPLED:
            raise ValueError("multi_class='crammer_singer' needs one device, got rows on several devices")
        one, options, order, inverse = self._infos[0], self._options, self._order, np.argsort(self._order)
        if not self.is_finest and certificate.precision_insufficient(
            self._dtype, self._scales.in_dtype, problem, options.tol
        ):
            return None
        start, save = settings["start"], settings["save"]
        settings["start"] = None if start is None else start[:, order]
        settings["save"] = save and (lambda b: save(b[:, inverse]))
        given = self._stream, self._kernel, centred_plan(self.plan), self._dtype, problem
        working_set = WorkingSet(*given, min(one.W, problem.n), max(info.row for info in self._infos))
        merged = Settings(
            tol=options.tol,
            gap_tol=options.gap_tol,
            working_set=working_set.W,
            cache_bytes=one.cache_bytes,
            kernel_scale=self._scales.in_dtype,
            sizes=self._scales.sizes,
            **settings,
        )
        found = Sharded(self._shards, working_set, problem.embedded(inverse, problem.n), merged).run()
        found = replace(found, b=found.b[:, inverse], f=found.f[:, inverse])
        return found.with_precision_status(certificate.EPS * self._scales.double, options)

    def peak(self) -> int:
        """Return the largest number of bytes that a device had allocated at a time."""
        return max(self._stream.peak, self._shards.peak())

    def describe(self) -> str:
        """Return a text with the sizes of the shards and the storage format of their rows."""
        few, many = min(self._shards.sizes), max(self._shards.sizes)
        return f"{len(self._infos)} shards of {few} to {many} rows: {self._infos[0].layout}"


class LocalRows:
    """Divide the rows X (n, d) equally among devices of this machine."""

    def __init__(self, X: Data, devices: Sequence[Any]) -> None:
        self._X, self._devices, self.shape, self.order = X, devices, X.shape, np.arange(X.shape[0])

    @contextmanager
    def lay_out(self, kernel: Kernel, options: Options, dtype: str) -> Iterator[ShardSet]:
        X = self._X
        with open_streams(self._devices, options.memory_limit) as threads:
            streams = [one.stream for one in threads]
            plan = layouts.choose(streams[0].profile, X, kernel.spec, options.layout, options.working_set_size)
            n, count = X.shape[0], len(threads)
            if n < count:
                raise ValueError(f"{count} devices need at least one row each, got {n} rows")
            ends = np.round(np.arange(count + 1) / count * n).astype(int)
            parts = [X[first:end] for first, end in pairwise(ends)]
            shards = OnDevices(
                threads, range(len(parts)), lambda stream, i: Shard(stream, parts[i], kernel, plan, dtype)
            )
            device = " and ".join(dict.fromkeys(str(stream.info) for stream in streams))
            yield ShardSet(shards, plan, min(stream.profile.finest for stream in streams), device)
