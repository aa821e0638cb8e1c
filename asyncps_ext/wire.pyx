"""Frame headers, CRC-32C and the packing of rows; see `asyncps_ext.reference`."""

cimport numpy as cnp
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_SetFromErrno
from cpython.long cimport PyLong_CheckExact
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc
from cpython.number cimport PyNumber_Index
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t

import numpy as np

from asyncps_ext.types cimport GIL_FREE_BYTES, variant_of

cdef extern from "wire_kernels.h" nogil:
    enum:
        APS_HEADER_SIZE
        APS_CRC_AT
        APS_VERSION
        APS_MAGIC
    ctypedef struct aps_header:
        uint8_t kind
        uint16_t flags
        uint32_t incarnation
        uint32_t store
        uint32_t unit
        uint32_t hyper
        int32_t priority
        uint64_t request
        uint64_t clock
        uint64_t table_bytes
        uint64_t payload_bytes
        uint64_t acked
    ctypedef struct aps_row:
        char *data
        size_t size
    ctypedef uint32_t (*aps_crc)(uint32_t crc, const uint8_t *p, size_t n) noexcept
    ctypedef struct aps_wire_table:
        const char *name
        aps_crc crc
    const aps_wire_table *aps_wire_table_at(int i) noexcept
    void aps_crc_init() noexcept
    void aps_header_write(uint8_t *p, const aps_header *h, aps_crc crc) noexcept
    void aps_header_read(aps_header *h, const uint8_t *p) noexcept
    void aps_rows_gather(char *buffer, const aps_row *rows, Py_ssize_t n) noexcept
    void aps_rows_scatter(const char *buffer, const aps_row *rows, Py_ssize_t n) noexcept
    int aps_multiply(size_t *size, size_t factor) noexcept
    uint32_t aps_get32(const uint8_t *p) noexcept

cdef extern from "wire_socket.h" nogil:
    ptrdiff_t aps_look(int fd, void *place, size_t size, double look_s) noexcept
    int aps_wake_at(int fd, int count) noexcept

cdef extern from "Python.h":
    Py_ssize_t PyLong_AsSsize_t(object number) except? -1
    const Py_ssize_t PY_SSIZE_T_MAX

cnp.import_array()
aps_crc_init()

HEADER_SIZE = APS_HEADER_SIZE

cdef const aps_wire_table *table = aps_wire_table_at(0)

cdef enum:
    # Rows of a call that are noted on the stack; more of them take a short-lived allocation.
    STACK_ROWS = 64


def _variants():
    """Names of the variants that this processor can run, best first."""
    cdef int i = 0
    names = []
    while aps_wire_table_at(i) != NULL:
        names.append(aps_wire_table_at(i).name.decode())
        i += 1
    return tuple(names)


def _set_variant(str name not None):
    """Choose a variant (for tests); returns the name of the one in use before."""
    global table
    cdef str before = table.name.decode()
    table = aps_wire_table_at(variant_of(_variants(), name))
    return before


cdef int acquire(object buffer, Py_buffer *view, int flags) except -1:
    """Borrow the bytes of a buffer."""
    try:
        PyObject_GetBuffer(buffer, view, flags)
    except BufferError as error:
        raise ValueError(f"the buffer is read-only or not contiguous: {error}") from None
    return 0


cdef object whole(object number):
    """An integer; Cython by itself would cut a float to size without a word."""
    return number if PyLong_CheckExact(number) else PyNumber_Index(number)


def pack_header(
    kind, flags, incarnation, store, request, unit, priority, clock, table_bytes, payload_bytes,
    acked, hyper
):
    """The 72 bytes of a frame header."""
    cdef aps_header h
    h.kind = whole(kind)
    h.flags = whole(flags)
    h.incarnation = whole(incarnation)
    h.store = whole(store)
    h.request = whole(request)
    h.unit = whole(unit)
    h.priority = whole(priority)
    h.clock = whole(clock)
    h.table_bytes = whole(table_bytes)
    h.payload_bytes = whole(payload_bytes)
    h.acked = whole(acked)
    h.hyper = whole(hyper)
    cdef bytes packed = PyBytes_FromStringAndSize(NULL, APS_HEADER_SIZE)
    aps_header_write(<uint8_t *>PyBytes_AS_STRING(packed), &h, table.crc)
    return packed


def parse_header(buffer, Py_ssize_t offset=0):
    """The twelve values of the header that starts at an offset of a buffer."""
    cdef Py_buffer view
    cdef aps_header h
    cdef const uint8_t *p
    acquire(buffer, &view, PyBUF_SIMPLE)
    try:
        if offset < 0 or view.len - offset < APS_HEADER_SIZE:
            raise ValueError(
                f"short header: {APS_HEADER_SIZE} bytes wanted at {offset}, {view.len} in all"
            )
        p = <const uint8_t *>view.buf + offset
        if aps_get32(p) != APS_MAGIC:
            raise ValueError(f"magic of a frame expected, not 0x{aps_get32(p):08x}")
        if p[4] != APS_VERSION:
            raise ValueError(f"version {APS_VERSION} expected, not {p[4]}")
        if <uint32_t>~table.crc(0xFFFFFFFF, p, APS_CRC_AT) != aps_get32(p + APS_CRC_AT):
            raise ValueError("crc of the header is wrong")
        aps_header_read(&h, p)
    finally:
        PyBuffer_Release(&view)
    return (
        h.kind, h.flags, h.incarnation, h.store, h.request, h.unit, h.priority, h.clock,
        h.table_bytes, h.payload_bytes, h.acked, h.hyper,
    )


def look(int fd, buffer, double look_s):
    """Receive what comes within a moment, without sleeping; -1 when nothing does."""
    cdef Py_buffer view
    cdef ptrdiff_t count
    acquire(buffer, &view, PyBUF_WRITABLE)
    with nogil:
        count = aps_look(fd, view.buf, <size_t>view.len, look_s)
    PyBuffer_Release(&view)
    if count < -1:
        PyErr_SetFromErrno(OSError)
    return count


def wake_at(int fd, int count):
    """Let a loop wake for a socket only when so many bytes lie there (SO_RCVLOWAT)."""
    if aps_wake_at(fd, count) != 0:
        PyErr_SetFromErrno(OSError)


def crc32c(buffer, seed=0):
    """CRC-32C of a buffer; seed is the CRC of what came before it."""
    cdef Py_buffer view
    cdef uint32_t crc = whole(seed)
    cdef aps_crc kernel = table.crc
    crc = ~crc
    acquire(buffer, &view, PyBUF_SIMPLE)
    if view.len < GIL_FREE_BYTES:
        crc = kernel(crc, <const uint8_t *>view.buf, <size_t>view.len)
    else:
        with nogil:
            crc = kernel(crc, <const uint8_t *>view.buf, <size_t>view.len)
    PyBuffer_Release(&view)
    return <uint32_t>~crc


cdef size_t row_size(object shape, size_t itemsize) except? 0:
    """Bytes of an array of this shape."""
    cdef size_t size = itemsize
    cdef Py_ssize_t dim, i
    if type(shape) is not tuple:
        raise TypeError(f"a shape must be a tuple, not {type(shape).__name__}")
    for i in range(PyTuple_GET_SIZE(shape)):
        dim = PyLong_AsSsize_t(<object>PyTuple_GET_ITEM(shape, i))
        if dim < 0 or not aps_multiply(&size, <size_t>dim) or size > <size_t>PY_SSIZE_T_MAX:
            raise ValueError(f"{shape} is not the shape of an array")
    return size


cdef bint has_shape(cnp.ndarray a, tuple shape) except -1:
    """Whether an array has this shape, whose dimensions have been checked by row_size."""
    cdef Py_ssize_t i, n = PyTuple_GET_SIZE(shape)
    if cnp.PyArray_NDIM(a) != n:
        return False
    for i in range(n):
        if cnp.PyArray_DIM(a, <int>i) != PyLong_AsSsize_t(<object>PyTuple_GET_ITEM(shape, i)):
            return False
    return True


cdef bint is_row(object value, cnp.dtype dtype, tuple shape, bint written) except -1:
    """Whether a value can be copied as it lies."""
    if not cnp.PyArray_CheckExact(value):
        return False
    cdef cnp.ndarray a = <cnp.ndarray>value
    cdef PyObject *own = <PyObject *>cnp.PyArray_DESCR(a)
    if own != <PyObject *>dtype and not cnp.PyArray_EquivTypes(<cnp.dtype>own, dtype):
        return False
    if not cnp.PyArray_IS_C_CONTIGUOUS(a) or (written and not cnp.PyArray_ISWRITEABLE(a)):
        return False
    return has_shape(a, shape)


cdef bint cast_row(
    object value, cnp.dtype dtype, tuple shape, object buffer, size_t start, size_t size
) except -1:
    """Copy a value that has another dtype or layout into its place; False if it may not be."""
    if not cnp.PyArray_CheckExact(value) or not has_shape(<cnp.ndarray>value, shape):
        return False
    if not np.can_cast(value.dtype, dtype, "same_kind"):
        return False
    place = np.frombuffer(buffer, np.uint8, count=size, offset=start) if size else np.empty(0, "u1")
    np.copyto(place.view(dtype).reshape(shape), value, casting="same_kind")
    return True


cdef Py_ssize_t move_rows(
    tuple values, object dtype, tuple shapes, Py_buffer *view, object buffer, bint gather, bint cast
) except -2:
    """Check all rows, note where they lie, then move them; -1, or the index of a bad one."""
    cdef aps_row on_stack[STACK_ROWS]
    cdef aps_row *rows = on_stack
    cdef Py_ssize_t i, n = PyTuple_GET_SIZE(shapes)
    cdef size_t start = 0, itemsize
    cdef object value
    if type(dtype) is not np.dtype and not isinstance(dtype, np.dtype):
        raise TypeError(f"dtype must be a numpy.dtype, not {type(dtype).__name__}")
    if dtype.hasobject or not dtype.isnative or dtype.itemsize == 0:
        raise TypeError(f"rows of {dtype!r} cannot be copied as bytes")
    if PyTuple_GET_SIZE(values) != n:
        raise ValueError(f"{PyTuple_GET_SIZE(values)} arrays for {n} shapes")
    itemsize = dtype.itemsize
    if n > STACK_ROWS:
        rows = <aps_row *>PyMem_Malloc(<size_t>n * sizeof(aps_row))
        if rows == NULL:
            raise MemoryError()
    try:
        for i in range(n):
            rows[i].size = row_size(<object>PyTuple_GET_ITEM(shapes, i), itemsize)
            start += rows[i].size
            if start > <size_t>view.len:
                break
        if start != <size_t>view.len:
            raise ValueError(f"the buffer has {view.len} bytes, which is not the size of the rows")
        start = 0
        for i in range(n):
            value = <object>PyTuple_GET_ITEM(values, i)
            shape = <tuple>PyTuple_GET_ITEM(shapes, i)
            if is_row(value, dtype, shape, not gather):
                rows[i].data = cnp.PyArray_BYTES(<cnp.ndarray>value)
            elif cast and cast_row(value, dtype, shape, buffer, start, rows[i].size):
                rows[i].data = NULL
            else:
                return i
            start += rows[i].size
        if view.len < GIL_FREE_BYTES:
            if gather:
                aps_rows_gather(<char *>view.buf, rows, n)
            else:
                aps_rows_scatter(<const char *>view.buf, rows, n)
        else:
            with nogil:
                if gather:
                    aps_rows_gather(<char *>view.buf, rows, n)
                else:
                    aps_rows_scatter(<const char *>view.buf, rows, n)
    finally:
        if rows != on_stack:
            PyMem_Free(rows)
    return -1


def gather_rows(values, dtype, shapes, out, bint cast=False):
    """Copy arrays one behind the other into out; -1, or the index of one that does not fit."""
    cdef Py_buffer view
    acquire(out, &view, PyBUF_WRITABLE)
    try:
        return move_rows(tuple(values), dtype, tuple(shapes), &view, out, True, cast)
    finally:
        PyBuffer_Release(&view)


def scatter_rows(buffer, dtype, shapes, outs):
    """Copy a buffer into arrays, one behind the other; -1, or the index of one that is unfit."""
    cdef Py_buffer view
    acquire(buffer, &view, PyBUF_SIMPLE)
    try:
        return move_rows(tuple(outs), dtype, tuple(shapes), &view, buffer, False, False)
    finally:
        PyBuffer_Release(&view)


def check_rows(values, dtype, shapes, bint writable=False):
    """Whether arrays could be gathered (or scattered to): -1, or the index of one that cannot."""
    cdef tuple rows = tuple(values), forms = tuple(shapes)
    cdef Py_ssize_t i
    if PyTuple_GET_SIZE(rows) != PyTuple_GET_SIZE(forms):
        raise ValueError(f"{len(rows)} arrays for {len(forms)} shapes")
    for i in range(PyTuple_GET_SIZE(rows)):
        row_size(forms[i], 1)
        if not is_row(rows[i], dtype, forms[i], writable):
            return i
    return -1


def distinct(values):
    """Whether all of them are plain arrays, and no array comes twice."""
    cdef tuple given = tuple(values)
    cdef Py_ssize_t n = PyTuple_GET_SIZE(given), i
    cdef size_t cells = 4, at
    cdef uintptr_t one
    while cells < 2 * <size_t>n:
        cells *= 2
    # Addresses by open addressing: a set of 1000 Python numbers takes ten times as long.
    cdef uintptr_t *seen = <uintptr_t *>PyMem_Calloc(cells, sizeof(uintptr_t))
    if seen == NULL:
        raise MemoryError()
    try:
        for i in range(n):
            if not cnp.PyArray_CheckExact(<object>PyTuple_GET_ITEM(given, i)):
                return False
            one = <uintptr_t>PyTuple_GET_ITEM(given, i)
            at = <size_t>((<uint64_t>one * <uint64_t>0x9E3779B97F4A7C15) >> 32) & (cells - 1)
            while seen[at]:
                if seen[at] == one:
                    return False
                at = (at + 1) & (cells - 1)
            seen[at] = one
    finally:
        PyMem_Free(seen)
    return True
