"""Define panels, the device buffers of the right-hand rows U of products K(X, U), and launches that read them."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from clsvm.opencl.stream import Buffer


@dataclass
class Panel:
    """Hold the device buffers for up to ``capacity`` right-hand rows U of a product K(X, U).

    The rows U are divided into blocks of ``width`` rows.

    Attributes
    ----------
    values
        buffer of the values of the rows U. If X is stored in CSR, the buffer holds only one block of U at a time.
    uu
        buffer of the squared norms of the rows U.
    nbytes
        size of ``values`` in bytes.
    shape
        size class of ``capacity``: "two", "few" or "many" rows. Each size class has its own OpenCL programs.
    rows
        buffer of the positions of the rows U in X, for products that read a stored kernel matrix; else None.
    fetched
        description of the rows that were copied from X to the device for this panel, if X is in host memory
        (blocks.Fetched); else None.
    filled
        whether rows were copied to the panel before. If not, its buffers may hold uninitialised numbers.
    squared
        buffer of the squared norms of the rows U as matrix units (tensor cores) compute them. Matrix units round in
        their own way, so products by matrix units read ``squared`` in place of ``uu``. None for other products.
    others
        further buffers that are freed together with the panel.
    block
        description of where ``values`` stores each feature (csr.PanelBlock), if X is stored in CSR; else None.
    listed
        list of the rows of X that are the rows U (csr.PanelRows), if X is stored in CSR. Each product then copies the
        rows U from X into ``values`` again, one block after another.
    """

    capacity: int
    width: int
    values: Buffer
    uu: Buffer
    nbytes: int
    shape: str
    rows: Buffer = None
    fetched: Any = None
    filled: bool = False
    squared: Buffer = None
    others: tuple[Buffer, ...] = ()
    block: Any = None
    listed: Any = None

    @property
    def rows_stay(self) -> bool:
        """Return whether the rows X must stay on the device while the panel, the buffer of some rows U of X, is used.

        If X is stored in CSR, the panel holds only one block of the rows U at a time. X must then stay, because each
        product K(X, U) copies the rows U from X into the panel again, one block after another.
        """
        return self.block is not None

    def buffers(self) -> tuple[Buffer, ...]:
        """Return all device buffers of the panel's rows, so that the caller can free them."""
        made = self.values, self.uu, self.squared, *self.others, *(self.fetched.buffers if self.fetched else ())
        return tuple(buffer for buffer in made if buffer is not None)


class PanelPair(NamedTuple):
    """Hold two panels, the buffers of rows R and U of a kernel matrix K(R, U). Both are copies of some rows of X.

    If ``matrices`` is above 1, each panel is divided into as many equal parts, and each pair of parts has its own
    matrix. Only layouts with the attribute ``shared`` allow this.

    Attributes
    ----------
    panel
        panel of the rows R, which was made with square=True.
    at
        buffer with the position in X of each row of ``panel``.
    right
        panel whose first rows are U.
    count
        buffer that :func:`clsvm.gram.products.counts` describes, with the numbers of rows U and R of each matrix.
    matrices
        number of matrices.
    """

    panel: Panel
    at: Buffer
    right: Panel
    count: Buffer
    matrices: int = 1


class Launch(NamedTuple):
    """Describe one launch of an OpenCL kernel, as a part of computing a product K(X, U).

    Attributes
    ----------
    first
        index of the first lane group of X in the launch. A lane group is V rows whose values are interleaved.
    groups
        number of lane groups of X in the launch.
    arguments
        arguments of the OpenCL kernel for X, and for the buffer of the right-hand rows U.
    blocks
        number of blocks into which the rows U are divided. A work-group takes one or several blocks.
    kernel
        name of the OpenCL kernel in its program.
    items
        number of work-items of the launch on a CPU. 0 means the number that Layout.size returns.
    matrices
        number of matrices that the launch computes.
    sums
        whether the launch only adds up kernel values that an earlier launch has computed and stored. The launch then
        adds weighted sums of these values to an array. If the caller wants no sums, the launch is left out.
    """

    first: int
    groups: int
    arguments: tuple[Any, ...]
    blocks: int = 1
    kernel: str = "gram"
    items: int = 0
    matrices: int = 1
    sums: bool = False
