"""Random first values of rows, by counter; see `asyncps_ext.reference.sparse_fill`."""

cimport numpy as cnp
from libc.stdint cimport int64_t, uint64_t

from asyncps_ext.types cimport (
    F64, GIL_FREE_BYTES, check_apart, check_array, check_dtype, dtype_of, variant_of,
)

cdef extern from "sparse_fill_kernels.h" nogil:
    ctypedef int64_t aps_i64
    ctypedef void (*aps_fill)(
        void *out, int wide, const aps_i64 *ids, Py_ssize_t n, Py_ssize_t width, uint64_t key,
        double scale
    ) noexcept
    ctypedef struct aps_fill_table:
        const char *name
        aps_fill uniform
        aps_fill normal
    const aps_fill_table *aps_fill_table_at(int i) noexcept

cnp.import_array()

cdef const aps_fill_table *table = aps_fill_table_at(0)


def _variants():
    """Names of the variants that this processor can run, best first."""
    cdef int i = 0
    names = []
    while aps_fill_table_at(i) != NULL:
        names.append(aps_fill_table_at(i).name.decode())
        i += 1
    return tuple(names)


def _set_variant(str name not None):
    """Choose a variant (for tests); returns the name of the one in use before."""
    global table
    cdef str before = table.name.decode()
    table = aps_fill_table_at(variant_of(_variants(), name))
    return before


cdef int fill(
    aps_fill kernel, object out, object ids, Py_ssize_t width, uint64_t key, double scale
) except -1:
    check_array(out, "out", True)
    check_array(ids, "ids", False)
    check_dtype(ids, "ids", cnp.NPY_INT64, "int64")
    cdef int dtype = dtype_of(out, "out")
    if dtype > F64:
        raise TypeError(f"out must be float32 or float64, not {out.dtype}")
    cdef Py_ssize_t n = cnp.PyArray_SIZE(<cnp.ndarray>ids)
    cdef Py_ssize_t size = cnp.PyArray_SIZE(<cnp.ndarray>out)
    # Blocks of four elements are counted in 32 bits.
    if width < 1 or width > 1 << 34:
        raise ValueError(f"width must be from 1 to 2**34, not {width}")
    if size // width != n or size % width != 0:
        raise ValueError(f"out has {size} elements, expected {n} rows of {width}")
    check_apart(out, "out", ids, "ids", False)
    cdef char *to = cnp.PyArray_BYTES(<cnp.ndarray>out)
    cdef const aps_i64 *which = <const aps_i64 *>cnp.PyArray_BYTES(<cnp.ndarray>ids)
    if 8 * size < GIL_FREE_BYTES:
        kernel(to, dtype == F64, which, n, width, key, scale)
    else:
        with nogil:
            kernel(to, dtype == F64, which, n, width, key, scale)
    return 0


def fill_uniform(out, ids, Py_ssize_t width, uint64_t key, double scale):
    """Rows of numbers evenly spread over (-scale, scale)."""
    fill(table.uniform, out, ids, width, key, scale)


def fill_normal(out, ids, Py_ssize_t width, uint64_t key, double sigma):
    """Rows of numbers of the normal distribution with mean 0 and deviation sigma."""
    fill(table.normal, out, ids, width, key, sigma)
