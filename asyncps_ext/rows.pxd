# Tables of rows in blocks, as kernels take them: the checks at their door.

cimport numpy as cnp
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc

from asyncps_ext.types cimport check_apart, check_array, check_dtype, data, length

cdef extern from "sparse_rows.h" nogil:
    ctypedef int64_t aps_i64
    int APS_ONE_BLOCK
    ctypedef struct aps_rows:
        char **blocks
        int shift
        Py_ssize_t row
        int64_t rows
    Py_ssize_t aps_check_slots(const aps_i64 *slots, Py_ssize_t n, int64_t rows) noexcept


cdef inline int check_int64(object array, str name, bint written) except -1:
    check_array(array, name, written)
    return check_dtype(array, name, cnp.NPY_INT64, "int64")


cdef inline int check_width(Py_ssize_t width) except -1:
    if width < 1:
        raise ValueError(f"width must be at least 1, not {width}")
    return 0


cdef inline int check_rows_of(
    object rows, str name, Py_ssize_t n, Py_ssize_t width
) except -1:
    """Exactly n rows of width elements."""
    check_width(width)
    if length(rows) // width != n or length(rows) % width != 0:
        raise ValueError(f"{name} has {length(rows)} elements, expected {n} rows of {width}")
    return 0


cdef inline int open_blocks(
    aps_rows *table, list blocks, Py_ssize_t width, object wanted, object slots, bint written
) except -1:
    """Check blocks, and that slots are in them; the caller frees table.blocks."""
    cdef Py_ssize_t many = len(blocks), i, size, each = 0
    cdef int64_t total, bad
    cdef object block
    table.row = width * <Py_ssize_t>wanted.itemsize
    table.shift = APS_ONE_BLOCK
    table.blocks = <char **>malloc((many + 1) * sizeof(char *))
    if table.blocks == NULL:
        raise MemoryError()
    try:
        for i in range(many):
            block = blocks[i]
            check_array(block, "block", written)
            if block.dtype is not wanted and block.dtype != wanted:
                raise TypeError(f"block {i} must be {wanted}, not {block.dtype}")
            check_apart(block, "block", slots, "slots", False)
            size = length(block)
            if i == 0:
                each = size // width
            if size % width != 0 or size != each * width:
                raise ValueError(f"block {i} has {size} elements, expected rows of {width}, "
                                 f"{each} in every block")
            table.blocks[i] = data(block)
        if many > 1:
            if each < 1 or each & (each - 1):
                raise ValueError(f"a block has {each} rows, expected a power of two")
            table.shift = 0
            while each >> table.shift > 1:
                table.shift += 1
        total = table.rows = each * many
        bad = aps_check_slots(<const aps_i64 *>data(slots), length(slots), total)
        if bad >= 0:
            raise IndexError(f"slot {slots[bad]} at {bad} is outside of the {total} rows")
    except BaseException:
        free(table.blocks)
        table.blocks = NULL
        raise
    return 0
