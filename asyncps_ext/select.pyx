"""Chosen elements of arrays, and sums of such; see `asyncps_ext.reference.select`."""

cimport numpy as cnp
from libc.math cimport isnan
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from asyncps_ext.types cimport (
    GIL_FREE_BYTES, check_apart, check_array, check_dtype, check_like, data, length, variant_of,
)

cnp.import_array()
aps_select_begin()

cdef const aps_select_table *table = aps_select_table_at(0)

cdef enum:
    SMALL = GIL_FREE_BYTES // 4
    SMALL_IF_SLOW = SMALL // 16  # of kernels that spend some nanoseconds on an element

# Indices have 32 bits, so an array has at most this many elements.
cdef uint64_t MOST = <uint64_t>1 << 32


def _variants():
    """Names of the variants that this processor can run, best first."""
    cdef int i = 0
    names = []
    while aps_select_table_at(i) != NULL:
        names.append(aps_select_table_at(i).name.decode())
        i += 1
    return tuple(names)


def _set_variant(str name not None):
    """Choose a variant (for tests); returns the name of the one in use before."""
    global table
    cdef str before = table.name.decode()
    table = aps_select_table_at(variant_of(_variants(), name))
    return before


cdef inline int check_f32(object array, str name, bint written) except -1:
    check_array(array, name, written)
    check_dtype(array, name, cnp.NPY_FLOAT32, "float32")
    if <uint64_t>length(array) > MOST:
        raise ValueError(f"{name} has {length(array)} elements, expected at most 2**32")
    return 0


cdef inline int check_u16(object array, str name, bint written) except -1:
    check_array(array, name, written)
    return check_dtype(array, name, cnp.NPY_UINT16, "uint16")


cdef inline int check_u32(object array, str name, bint written) except -1:
    check_array(array, name, written)
    # C has two names for 32 bits in places; either is welcome.
    if not cnp.PyArray_ISUNSIGNED(<cnp.ndarray>array) or array.itemsize != 4:
        raise TypeError(f"{name} must be uint32, not {array.dtype}")
    return 0


cdef int check_ascending(object indices, str name, uint64_t limit) except -1:
    """Ascending, each once, below limit: whoever writes by them writes nowhere else."""
    cdef const aps_u32 *at = <const aps_u32 *>data(indices)
    cdef Py_ssize_t n = length(indices), bad
    if n < SMALL:
        bad = aps_check_ids_u32(at, n, <int64_t>limit)
    else:
        with nogil:
            bad = aps_check_ids_u32(at, n, <int64_t>limit)
    if bad < 0:
        return 0
    cdef uint64_t found = at[bad]
    if bad == 0 or found >= limit:
        raise ValueError(f"{name}[{bad}] is {found}, expected less than {limit}")
    raise ValueError(f"{name}[{bad}] is {found} after {at[bad - 1]}, expected ascending ones")


cdef int check_places(
    object x, str x_name, object indices, object values, bint values_written
) except -1:
    """What all kernels on chosen elements of an array that they write are given."""
    check_like(values, "values", indices, "indices")
    check_apart(x, x_name, indices, "indices", False)
    check_apart(x, x_name, values, "values", False)
    if values_written:
        check_apart(values, "values", indices, "indices", False)
    return check_ascending(indices, "indices", <uint64_t>length(x))


# ---------------------------------------------------------------------------- which are the largest

cdef int check_chosen(object x, object indices, object values) except -1:
    check_f32(x, "x", False)
    check_u32(indices, "indices", True)
    check_f32(values, "values", True)
    check_like(values, "values", indices, "indices")
    check_apart(indices, "indices", values, "values", False)
    check_apart(x, "x", indices, "indices", False)
    return check_apart(x, "x", values, "values", False)


cdef inline float least_of(double t) except? -1:
    if isnan(t):
        raise ValueError("t must be a number, not nan")
    if t > 0 and <float>t == 0:
        raise ValueError(f"t must be above 0 as a float32 too, not {t!r}")
    return <float>t


cdef int largest(
    int made_by, object a, object b, Py_ssize_t k, object indices, object values
) except -1:
    cdef Py_ssize_t n = length(a)
    if k < 0 or k > n:
        raise ValueError(f"k must be from 0 to {n}, not {k}")
    if length(indices) != k:
        raise ValueError(f"indices has {length(indices)} elements, expected {k}")
    cdef aps_source source
    source.made_by = made_by
    source.a = <aps_f32 *>data(a)
    source.b = <const aps_f32 *>data(b)
    cdef aps_u32 *which = <aps_u32 *>data(indices)
    cdef aps_u32 *to = <aps_u32 *>data(values)
    cdef const aps_select_table *kernels = table
    cdef int failed
    if n < SMALL_IF_SLOW:
        failed = aps_topk(kernels, source, n, k, which, to)
    else:
        with nogil:
            failed = aps_topk(kernels, source, n, k, which, to)
    if failed:
        raise MemoryError("no memory for a difference")
    return 0


def topk(x, Py_ssize_t k, indices, values):
    """The k elements of largest magnitude, of equal ones the first; indices ascend."""
    check_chosen(x, indices, values)
    largest(APS_ITSELF, x, x, k, indices, values)


def topk_sum(x, g, Py_ssize_t k, indices, values):
    """x += g, and then topk of x."""
    check_f32(x, "x", True)
    check_f32(g, "g", False)
    check_like(g, "g", x, "x")
    check_apart(x, "x", g, "g", False)
    check_apart(g, "g", indices, "indices", False)
    check_apart(g, "g", values, "values", False)
    check_chosen(x, indices, values)
    largest(APS_SUM, x, g, k, indices, values)


def topk_difference(x, y, Py_ssize_t k, indices, values):
    """topk of x - y, which is made nowhere."""
    check_f32(y, "y", False)
    check_chosen(x, indices, values)
    check_like(y, "y", x, "x")
    check_apart(y, "y", indices, "indices", False)
    check_apart(y, "y", values, "values", False)
    largest(APS_DIFFERENCE, x, y, k, indices, values)


def threshold(x, double t, indices, values):
    """The elements with a magnitude of at least t; returns how many there are."""
    check_chosen(x, indices, values)
    cdef int32_t limit = aps_limit(least_of(t))
    cdef Py_ssize_t n = length(x), room = length(indices), count
    cdef const aps_u32 *from_ = <const aps_u32 *>data(x)
    cdef aps_u32 *which = <aps_u32 *>data(indices)
    cdef aps_u32 *to = <aps_u32 *>data(values)
    cdef const aps_select_table *kernels = table
    if n < SMALL:
        count = kernels.pick(from_, 0, n, limit, which, to, 0, room)
    else:
        with nogil:
            count = kernels.pick(from_, 0, n, limit, which, to, 0, room)
    if count < 0:
        raise ValueError(f"indices has {room} elements, expected {count_threshold(x, t)} or more")
    return count


def count_threshold(x, double t):
    """How many elements have a magnitude of at least t."""
    check_f32(x, "x", False)
    cdef int32_t limit = aps_limit(least_of(t))
    cdef Py_ssize_t n = length(x), count
    cdef const aps_u32 *from_ = <const aps_u32 *>data(x)
    cdef const aps_select_table *kernels = table
    if n < SMALL:
        count = kernels.above(from_, n, limit)
    else:
        with nogil:
            count = kernels.above(from_, n, limit)
    return count


def random_indices(uint64_t seed, uint64_t n, Py_ssize_t k, indices):
    """k different indices of 0..n-1, ascending, a function of seed, n and k."""
    check_u32(indices, "indices", True)
    if n > MOST:
        raise ValueError(f"n must be from 0 to 2**32, not {n}")
    if k < 0 or <uint64_t>k > n:
        raise ValueError(f"k must be from 0 to {n}, not {k}")
    if length(indices) != k:
        raise ValueError(f"indices has {length(indices)} elements, expected {k}")
    if not cnp.PyArray_ISALIGNED(<cnp.ndarray>indices):
        aligned = indices.copy()
        random_indices(seed, n, k, aligned)
        indices[:] = aligned
        return
    cdef uint32_t *to = <uint32_t *>data(indices)
    cdef int failed
    if k < SMALL_IF_SLOW:
        failed = aps_random_indices(seed, n, to, k)
    else:
        with nogil:
            failed = aps_random_indices(seed, n, to, k)
    if failed:
        raise MemoryError("no memory to draw indices")


# ------------------------------------------------------------------------ what is taken, what stays

def take(x, indices, values):
    """values = x[indices], and x[indices] = 0."""
    check_f32(x, "x", True)
    check_u32(indices, "indices", False)
    check_f32(values, "values", True)
    check_places(x, "x", indices, values, True)
    cdef Py_ssize_t n = length(indices), size = length(x)
    cdef aps_u32 *from_ = <aps_u32 *>data(x)
    cdef const aps_u32 *which = <const aps_u32 *>data(indices)
    cdef aps_u32 *to = <aps_u32 *>data(values)
    if n < SMALL:
        aps_take(from_, size, which, to, n)
    else:
        with nogil:
            aps_take(from_, size, which, to, n)


def take_f16(x, indices, values):
    """values = the bits of x[indices] as float16, and x[indices] -= what they stand for."""
    check_f32(x, "x", True)
    check_u32(indices, "indices", False)
    check_u16(values, "values", True)
    check_places(x, "x", indices, values, True)
    cdef Py_ssize_t n = length(indices), size = length(x)
    cdef aps_f32 *from_ = <aps_f32 *>data(x)
    cdef const aps_u32 *which = <const aps_u32 *>data(indices)
    cdef aps_u16 *to = <aps_u16 *>data(values)
    if n < SMALL_IF_SLOW:
        aps_take_f16(from_, size, which, to, n)
    else:
        with nogil:
            aps_take_f16(from_, size, which, to, n)


def dgc_accumulate(u, v, g, double momentum):
    """u = momentum * u + g, and v = v + u."""
    check_f32(u, "u", True)
    check_f32(v, "v", True)
    check_f32(g, "g", False)
    check_like(v, "v", u, "u")
    check_like(g, "g", u, "u")
    check_apart(u, "u", v, "v", False)
    check_apart(u, "u", g, "g", False)
    check_apart(v, "v", g, "g", False)
    cdef Py_ssize_t n = length(u)
    cdef aps_f32 *moved = <aps_f32 *>data(u)
    cdef aps_f32 *sums = <aps_f32 *>data(v)
    cdef const aps_f32 *from_ = <const aps_f32 *>data(g)
    cdef float factor = <float>momentum
    cdef const aps_select_table *kernels = table
    if n < SMALL:
        kernels.accumulate(moved, sums, from_, n, factor)
    else:
        with nogil:
            kernels.accumulate(moved, sums, from_, n, factor)


def dgc_mask(u, v, indices, values):
    """values = v[indices], and u[indices] = v[indices] = 0."""
    check_f32(u, "u", True)
    check_f32(v, "v", True)
    check_u32(indices, "indices", False)
    check_f32(values, "values", True)
    check_like(v, "v", u, "u")
    check_apart(u, "u", v, "v", False)
    check_apart(u, "u", indices, "indices", False)
    check_apart(u, "u", values, "values", False)
    check_places(v, "v", indices, values, True)
    cdef Py_ssize_t n = length(indices), size = length(v)
    cdef aps_u32 *moved = <aps_u32 *>data(u)
    cdef aps_u32 *sums = <aps_u32 *>data(v)
    cdef const aps_u32 *which = <const aps_u32 *>data(indices)
    cdef aps_u32 *to = <aps_u32 *>data(values)
    if n < SMALL:
        aps_mask_both(moved, sums, size, which, to, n)
    else:
        with nogil:
            aps_mask_both(moved, sums, size, which, to, n)


# ---------------------------------------------------------------------------- sums of what was sent

def add_at(acc, indices, values):
    """acc[indices] += values."""
    check_f32(acc, "acc", True)
    check_u32(indices, "indices", False)
    check_f32(values, "values", False)
    check_places(acc, "acc", indices, values, False)
    cdef Py_ssize_t n = length(indices), size = length(acc)
    cdef aps_f32 *to = <aps_f32 *>data(acc)
    cdef const aps_u32 *which = <const aps_u32 *>data(indices)
    cdef const aps_f32 *from_ = <const aps_f32 *>data(values)
    if n < SMALL:
        aps_add_at(to, size, which, from_, n)
    else:
        with nogil:
            aps_add_at(to, size, which, from_, n)


def add_at_f16(acc, indices, values):
    """acc[indices] += values, where values holds the bits of float16 values."""
    check_f32(acc, "acc", True)
    check_u32(indices, "indices", False)
    check_u16(values, "values", False)
    check_places(acc, "acc", indices, values, False)
    cdef Py_ssize_t n = length(indices), size = length(acc)
    cdef aps_f32 *to = <aps_f32 *>data(acc)
    cdef const aps_u32 *which = <const aps_u32 *>data(indices)
    cdef const aps_u16 *from_ = <const aps_u16 *>data(values)
    if n < SMALL:
        aps_add_at_f16(to, size, which, from_, n)
    else:
        with nogil:
            aps_add_at_f16(to, size, which, from_, n)


def set_at(out, indices, values):
    """out[indices] = values, and 0 elsewhere."""
    check_f32(out, "out", True)
    check_u32(indices, "indices", False)
    check_f32(values, "values", False)
    check_places(out, "out", indices, values, False)
    cdef Py_ssize_t n = length(indices), size = length(out)
    cdef aps_u32 *to = <aps_u32 *>data(out)
    cdef const aps_u32 *which = <const aps_u32 *>data(indices)
    cdef const aps_u32 *from_ = <const aps_u32 *>data(values)
    if size < SMALL:
        aps_set_at(to, size, which, from_, n)
    else:
        with nogil:
            aps_set_at(to, size, which, from_, n)


def merge(ia, va, ib, vb, indices, values):
    """The sum of two sparse arrays; returns how many elements it has."""
    for which, what, name in ((ia, va, "a"), (ib, vb, "b")):
        check_u32(which, "i" + name, False)
        check_f32(what, "v" + name, False)
        check_like(what, "v" + name, which, "i" + name)
    check_u32(indices, "indices", True)
    check_f32(values, "values", True)
    cdef Py_ssize_t na = length(ia), nb = length(ib), count
    for array, name in ((indices, "indices"), (values, "values")):
        if length(array) < na + nb:
            raise ValueError(f"{name} has {length(array)} elements, expected {na + nb} or more")
        for other, its in ((ia, "ia"), (va, "va"), (ib, "ib"), (vb, "vb")):
            check_apart(array, name, other, its, False)
    check_apart(indices, "indices", values, "values", False)
    check_ascending(ia, "ia", MOST)
    check_ascending(ib, "ib", MOST)
    cdef const aps_u32 *at_a = <const aps_u32 *>data(ia)
    cdef const aps_u32 *at_b = <const aps_u32 *>data(ib)
    cdef const aps_f32 *of_a = <const aps_f32 *>data(va)
    cdef const aps_f32 *of_b = <const aps_f32 *>data(vb)
    cdef aps_u32 *at = <aps_u32 *>data(indices)
    cdef aps_f32 *to = <aps_f32 *>data(values)
    if na + nb < SMALL_IF_SLOW:
        count = aps_merge(at_a, of_a, na, at_b, of_b, nb, at, to)
    else:
        with nogil:
            count = aps_merge(at_a, of_a, na, at_b, of_b, nb, at, to)
    return count
