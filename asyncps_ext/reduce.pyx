"""Sums and conversions of arrays, in place; see `asyncps_ext.reference` for the specification."""

cimport numpy as cnp
from cpython.mem cimport PyMem_Free, PyMem_Malloc

from asyncps_ext.types cimport (
    F64, GIL_FREE_BYTES, check_apart, check_array, check_dtype, check_like, dtype_of, same_dtype,
    variant_of,
)

cdef extern from "reduce_kernels.h" nogil:
    ctypedef void (*aps_binary)(void *out, const void *x, Py_ssize_t n) noexcept
    ctypedef void (*aps_sum)(
        void *out, const void *const *parts, Py_ssize_t count, Py_ssize_t n) noexcept
    ctypedef void (*aps_scale)(void *x, double factor, Py_ssize_t n) noexcept
    ctypedef struct aps_reduce_table:
        const char *name
        aps_binary add[6]
        aps_sum add_all[6]
        aps_scale scale[2]
        aps_binary add_f16
        aps_binary add_bf16
        aps_binary widen_f16
        aps_binary widen_bf16
        aps_binary narrow_f16
        aps_binary narrow_bf16
    const aps_reduce_table *aps_reduce_table_at(int i) noexcept
    void aps_convert(
        aps_binary kernel, void *out, Py_ssize_t out_size, const void *x, Py_ssize_t x_size,
        Py_ssize_t n) noexcept

cnp.import_array()

cdef const aps_reduce_table *table = aps_reduce_table_at(0)


def _variants():
    """Names of the variants that this processor can run, best first."""
    cdef int i = 0
    names = []
    while aps_reduce_table_at(i) != NULL:
        names.append(aps_reduce_table_at(i).name.decode())
        i += 1
    return tuple(names)


def _set_variant(str name not None):
    """Choose a variant (for tests); returns the name of the one in use before."""
    global table
    cdef str before = table.name.decode()
    table = aps_reduce_table_at(variant_of(_variants(), name))
    return before


cdef int binary(aps_binary kernel, object out, object x) except -1:
    cdef char *out_data = cnp.PyArray_BYTES(<cnp.ndarray>out)
    cdef char *x_data = cnp.PyArray_BYTES(<cnp.ndarray>x)
    cdef Py_ssize_t n = cnp.PyArray_SIZE(<cnp.ndarray>out)
    if cnp.PyArray_NBYTES(<cnp.ndarray>out) < GIL_FREE_BYTES:
        kernel(out_data, x_data, n)
    else:
        with nogil:
            kernel(out_data, x_data, n)
    return 0


cdef int convert(
    aps_binary kernel, object out, Py_ssize_t out_size, object x, Py_ssize_t x_size
) except -1:
    """As `binary`; far larger arrays than the caches in the way that suits memory."""
    cdef char *out_data = cnp.PyArray_BYTES(<cnp.ndarray>out)
    cdef char *x_data = cnp.PyArray_BYTES(<cnp.ndarray>x)
    cdef Py_ssize_t n = cnp.PyArray_SIZE(<cnp.ndarray>out)
    if cnp.PyArray_NBYTES(<cnp.ndarray>out) < GIL_FREE_BYTES:
        kernel(out_data, x_data, n)
    else:
        with nogil:
            aps_convert(kernel, out_data, out_size, x_data, x_size, n)
    return 0


cdef int check_pair(
    object out, str out_name, int out_type, str out_spelled, object x, int x_type, str x_spelled
) except -1:
    check_array(out, out_name, True)
    check_array(x, "x", False)
    check_dtype(out, out_name, out_type, out_spelled)
    check_dtype(x, "x", x_type, x_spelled)
    check_like(x, "x", out, out_name)
    check_apart(out, out_name, x, "x", False)
    return 0


def add(acc, x):
    """acc += x. Integers wrap."""
    check_array(acc, "acc", True)
    check_array(x, "x", False)
    cdef int dtype = dtype_of(acc, "acc")
    same_dtype(x, "x", dtype, acc)
    check_like(x, "x", acc, "acc")
    check_apart(acc, "acc", x, "x", True)
    binary(table.add[dtype], acc, x)


def add_all(out, parts):
    """out = parts[0] + parts[1] + ..., in that order. Integers wrap."""
    cdef tuple held = tuple(parts)
    cdef Py_ssize_t count = len(held)
    if count < 2:
        raise ValueError(f"parts must be two arrays or more, not {count}")
    check_array(out, "out", True)
    cdef int dtype = dtype_of(out, "out")
    cdef const void **places = <const void **>PyMem_Malloc(count * sizeof(void *))
    if places == NULL:
        raise MemoryError
    cdef char *out_data = cnp.PyArray_BYTES(<cnp.ndarray>out)
    cdef Py_ssize_t n = cnp.PyArray_SIZE(<cnp.ndarray>out)
    cdef aps_sum kernel = table.add_all[dtype]
    cdef Py_ssize_t i
    try:
        for i in range(count):
            x = held[i]
            check_array(x, "a part", False)
            same_dtype(x, "a part", dtype, out)
            check_like(x, "a part", out, "out")
            check_apart(out, "out", x, "a part", True)
            places[i] = cnp.PyArray_BYTES(<cnp.ndarray>x)
        if cnp.PyArray_NBYTES(<cnp.ndarray>out) < GIL_FREE_BYTES:
            kernel(out_data, places, count, n)
        else:
            with nogil:
                kernel(out_data, places, count, n)
    finally:
        PyMem_Free(places)


def add_f16(acc, x):
    """acc += x, where x holds the bits of float16 values."""
    check_pair(acc, "acc", cnp.NPY_FLOAT32, "float32", x, cnp.NPY_UINT16, "uint16")
    binary(table.add_f16, acc, x)


def add_bf16(acc, x):
    """acc += x, where x holds the bits of bfloat16 values."""
    check_pair(acc, "acc", cnp.NPY_FLOAT32, "float32", x, cnp.NPY_UINT16, "uint16")
    binary(table.add_bf16, acc, x)


def widen_f16(out, x):
    """out = x, where x holds the bits of float16 values. Exact."""
    check_pair(out, "out", cnp.NPY_FLOAT32, "float32", x, cnp.NPY_UINT16, "uint16")
    convert(table.widen_f16, out, 4, x, 2)


def widen_bf16(out, x):
    """out = x, where x holds the bits of bfloat16 values. Exact."""
    check_pair(out, "out", cnp.NPY_FLOAT32, "float32", x, cnp.NPY_UINT16, "uint16")
    convert(table.widen_bf16, out, 4, x, 2)


def narrow_f16(out, x):
    """out = the bits of x as float16, rounded to nearest even."""
    check_pair(out, "out", cnp.NPY_UINT16, "uint16", x, cnp.NPY_FLOAT32, "float32")
    convert(table.narrow_f16, out, 2, x, 4)


def narrow_bf16(out, x):
    """out = the bits of x as bfloat16, rounded to nearest even."""
    check_pair(out, "out", cnp.NPY_UINT16, "uint16", x, cnp.NPY_FLOAT32, "float32")
    convert(table.narrow_bf16, out, 2, x, 4)


def scale(x, double factor):
    """x *= factor, which is rounded to the dtype of x once."""
    check_array(x, "x", True)
    cdef int dtype = dtype_of(x, "x")
    if dtype > F64:
        raise TypeError(f"x must be float32 or float64, not {x.dtype}")
    cdef aps_scale kernel = table.scale[dtype]
    cdef char *data = cnp.PyArray_BYTES(<cnp.ndarray>x)
    cdef Py_ssize_t n = cnp.PyArray_SIZE(<cnp.ndarray>x)
    if cnp.PyArray_NBYTES(<cnp.ndarray>x) < GIL_FREE_BYTES:
        kernel(data, factor, n)
    else:
        with nogil:
            kernel(data, factor, n)
