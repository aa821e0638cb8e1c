"""Rows of tables by number, and sums of sparse rows; see `asyncps_ext.reference.sparse`."""

cimport numpy as cnp
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free

import numpy as np

from asyncps_ext.rows cimport (
    aps_check_slots, aps_i64, aps_rows, check_int64, check_rows_of, data, length, open_blocks,
)
from asyncps_ext.types cimport (
    GIL_FREE_BYTES, check_apart, check_array, dtype_of, same_dtype,
)

cdef extern from "sparse_kernels.h" nogil:
    ctypedef void (*aps_scatter_add)(
        const aps_rows *t, const aps_i64 *slots, Py_ssize_t n, const char *rows, Py_ssize_t width
    ) noexcept
    ctypedef Py_ssize_t (*aps_merge)(
        const aps_i64 *ia, const char *a, Py_ssize_t na, const aps_i64 *ib, const char *b,
        Py_ssize_t nb, aps_i64 *ids, char *out, Py_ssize_t width
    ) noexcept
    ctypedef void (*aps_sum_groups)(
        const aps_i64 *group, Py_ssize_t n, const char *rows, char *out, char *seen,
        Py_ssize_t many, Py_ssize_t width
    ) noexcept
    const aps_scatter_add aps_scatter_adds[6]
    const aps_merge aps_merges[6]
    const aps_sum_groups aps_sums_of_groups[6]
    Py_ssize_t aps_check_ids_i64(const void *ids, Py_ssize_t n, int64_t limit) noexcept
    Py_ssize_t aps_check_ids_u32(const void *ids, Py_ssize_t n, int64_t limit) noexcept
    void aps_gather(const aps_rows *t, const aps_i64 *slots, Py_ssize_t n, char *out) noexcept
    void aps_scatter(
        const aps_rows *t, const aps_i64 *slots, Py_ssize_t n, const char *rows
    ) noexcept

cdef extern from "sparse_unique.h" nogil:
    Py_ssize_t aps_unique(
        const aps_i64 *ids, Py_ssize_t n, aps_i64 *unique, aps_i64 *inverse
    ) noexcept

cnp.import_array()


def check_ids(ids, int64_t limit):
    """-1, or the index of the first id that is negative, at or past limit, or not ascending."""
    check_array(ids, "ids", False)
    cdef Py_ssize_t n = length(ids), bad
    cdef char *at = data(ids)
    cdef int kind = cnp.PyArray_TYPE(<cnp.ndarray>ids)
    if kind != cnp.NPY_INT64 and kind != cnp.NPY_UINT32:
        raise TypeError(f"ids must be int64 or uint32, not {ids.dtype}")
    with nogil:
        bad = aps_check_ids_i64(at, n, limit) if kind == cnp.NPY_INT64 else (
            aps_check_ids_u32(at, n, limit))
    return bad


def unique_rows(ids):
    """The unique ids, ascending, and the place of each id among them."""
    check_int64(ids, "ids", False)
    cdef Py_ssize_t n = length(ids), k
    cdef object unique = np.empty(n, np.int64)
    cdef object inverse = np.empty(n, np.int64)
    cdef const aps_i64 *from_ = <const aps_i64 *>data(ids)
    cdef aps_i64 *to = <aps_i64 *>data(unique)
    cdef aps_i64 *places = <aps_i64 *>data(inverse)
    with nogil:
        k = aps_unique(from_, n, to, places)
    if k < 0:
        raise MemoryError("no memory to sort ids")
    return (unique if k == n else unique[:k].copy()), inverse


# ------------------------------------------------------------------------------------ rows by slot

cdef int open_table(
    aps_rows *table, list blocks, Py_ssize_t width, object slots, object rows, str name,
    bint written,
) except -1:
    """Check all that a kernel on rows by slot is given; the caller frees table.blocks."""
    table.blocks = NULL
    check_int64(slots, "slots", False)
    check_array(rows, name, not written)
    check_rows_of(rows, name, length(slots), width)
    if rows.dtype.hasobject:
        raise TypeError(f"{name} must hold plain bytes, not {rows.dtype}")
    if not written:
        check_apart(rows, name, slots, "slots", False)
    open_blocks(table, blocks, width, rows.dtype, slots, written)
    cdef object block
    try:
        for block in blocks:
            check_apart(block, "block", rows, name, False)
    except BaseException:
        free(table.blocks)
        table.blocks = NULL
        raise
    return 0


def gather_rows_at(list blocks not None, Py_ssize_t width, slots, out):
    """out[i] = row slots[i] of the table."""
    cdef aps_rows table
    blocks = list(blocks)  # the caller's own may lose one during the call
    open_table(&table, blocks, width, slots, out, "out", False)
    cdef Py_ssize_t n = length(slots)
    cdef const aps_i64 *which = <const aps_i64 *>data(slots)
    cdef char *to = data(out)
    if n * table.row < GIL_FREE_BYTES:
        aps_gather(&table, which, n, to)
    else:
        with nogil:
            aps_gather(&table, which, n, to)
    free(table.blocks)


def scatter_set_at(list blocks not None, Py_ssize_t width, slots, rows):
    """Row slots[i] of the table = rows[i]; of a slot that comes twice the last one counts."""
    cdef aps_rows table
    blocks = list(blocks)
    open_table(&table, blocks, width, slots, rows, "rows", True)
    cdef Py_ssize_t n = length(slots)
    cdef const aps_i64 *which = <const aps_i64 *>data(slots)
    cdef char *from_ = data(rows)
    if n * table.row < GIL_FREE_BYTES:
        aps_scatter(&table, which, n, from_)
    else:
        with nogil:
            aps_scatter(&table, which, n, from_)
    free(table.blocks)


def scatter_add_at(list blocks not None, Py_ssize_t width, slots, rows):
    """Row slots[i] of the table += rows[i], one after another. Integers wrap."""
    cdef aps_rows table
    blocks = list(blocks)
    check_array(rows, "rows", False)
    cdef aps_scatter_add kernel = aps_scatter_adds[dtype_of(rows, "rows")]
    open_table(&table, blocks, width, slots, rows, "rows", True)
    cdef Py_ssize_t n = length(slots)
    cdef const aps_i64 *which = <const aps_i64 *>data(slots)
    cdef char *from_ = data(rows)
    if n * table.row < GIL_FREE_BYTES:
        kernel(&table, which, n, from_, width)
    else:
        with nogil:
            kernel(&table, which, n, from_, width)
    free(table.blocks)


# ----------------------------------------------------------------------------- sums of sparse rows

def merge_rows(ids_a, a, ids_b, b, Py_ssize_t width, ids, out):
    """Sum of two sparse arrays of rows with ascending ids; returns how many rows it has."""
    check_int64(ids_a, "ids_a", False)
    check_int64(ids_b, "ids_b", False)
    check_int64(ids, "ids", True)
    check_array(a, "a", False)
    check_array(b, "b", False)
    check_array(out, "out", True)
    cdef int dtype = dtype_of(a, "a")
    same_dtype(b, "b", dtype, a)
    same_dtype(out, "out", dtype, a)
    cdef Py_ssize_t na = length(ids_a), nb = length(ids_b), k
    check_rows_of(a, "a", na, width)
    check_rows_of(b, "b", nb, width)
    if length(ids) != na + nb:
        raise ValueError(f"ids has {length(ids)} elements, expected {na + nb}")
    check_rows_of(out, "out", na + nb, width)
    check_apart(ids, "ids", out, "out", False)
    for array, name in ((ids_a, "ids_a"), (ids_b, "ids_b"), (a, "a"), (b, "b")):
        check_apart(ids, "ids", array, name, False)
        check_apart(out, "out", array, name, False)
    cdef aps_merge kernel = aps_merges[dtype]
    cdef const aps_i64 *which_a = <const aps_i64 *>data(ids_a)
    cdef const aps_i64 *which_b = <const aps_i64 *>data(ids_b)
    cdef aps_i64 *which = <aps_i64 *>data(ids)
    cdef char *from_a = data(a)
    cdef char *from_b = data(b)
    cdef char *to = data(out)
    with nogil:
        k = kernel(which_a, from_a, na, which_b, from_b, nb, which, to, width)
    return k


def sum_groups(groups, rows, Py_ssize_t width, out):
    """out[j] = the sum of all rows[i] with groups[i] == j, in their order; 0 where none is."""
    check_int64(groups, "groups", False)
    check_array(rows, "rows", False)
    check_array(out, "out", True)
    cdef int dtype = dtype_of(rows, "rows")
    same_dtype(out, "out", dtype, rows)
    cdef Py_ssize_t n = length(groups), many
    check_rows_of(rows, "rows", n, width)
    many = length(out) // width
    check_rows_of(out, "out", many, width)
    check_apart(out, "out", rows, "rows", False)
    check_apart(out, "out", groups, "groups", False)
    cdef const aps_i64 *which = <const aps_i64 *>data(groups)
    cdef Py_ssize_t bad = aps_check_slots(which, n, many)
    if bad >= 0:
        raise IndexError(f"group {groups[bad]} at {bad} is outside of the {many} rows")
    cdef aps_sum_groups kernel = aps_sums_of_groups[dtype]
    cdef char *from_ = data(rows)
    cdef char *to = data(out)
    cdef char *seen = <char *>calloc(many + 1, 1)
    if seen == NULL:
        raise MemoryError()
    out[:] = 0
    with nogil:
        kernel(which, n, from_, to, seen, many, width)
    free(seen)


def sum_duplicates(ids, rows, Py_ssize_t width):
    """The unique ids, ascending, and for each the sum of its rows in their order."""
    unique, inverse = unique_rows(ids)
    check_array(rows, "rows", False)
    check_rows_of(rows, "rows", length(ids), width)
    out = np.empty(length(unique) * width, rows.dtype)
    sum_groups(inverse, rows, width, out)
    return unique, out
