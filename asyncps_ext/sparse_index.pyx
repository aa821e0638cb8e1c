"""Indexes from row ids to slots; see `asyncps_ext.reference.sparse_index` for the specification."""

cimport numpy as cnp
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

import os

import numpy as np

from asyncps_ext.types cimport (
    GIL_FREE_BYTES, check_apart, check_array, check_dtype, check_like,
)

cdef extern from "sparse_index.h" nogil:
    ctypedef int64_t aps_i64
    ctypedef struct aps_index:
        int64_t count
        size_t bytes
    ctypedef struct aps_range:
        uint32_t *places
        int64_t first
        int64_t rows
        int64_t count
    int aps_index_init(aps_index *x, uint64_t seed) noexcept
    void aps_index_free(aps_index *x) noexcept
    void aps_index_lookup(
        const aps_index *x, const aps_i64 *ids, Py_ssize_t n, aps_i64 *slots) noexcept
    int aps_index_insert(
        aps_index *x, const aps_i64 *ids, Py_ssize_t n, aps_i64 *slots) noexcept
    void aps_index_items(const aps_index *x, aps_i64 *ids) noexcept
    void aps_range_lookup(
        const aps_range *x, const aps_i64 *ids, Py_ssize_t n, aps_i64 *slots) noexcept
    void aps_range_insert(
        aps_range *x, const aps_i64 *ids, Py_ssize_t n, aps_i64 *slots) noexcept
    void aps_range_items(const aps_range *x, aps_i64 *ids) noexcept
    Py_ssize_t aps_outside(
        const aps_i64 *ids, Py_ssize_t n, int64_t low, int64_t high) noexcept

cnp.import_array()

cdef int64_t HIGHEST = 0x7FFFFFFFFFFFFFFF


cdef inline aps_i64 *numbers(object array) noexcept:
    return <aps_i64 *>cnp.PyArray_BYTES(<cnp.ndarray>array)


cdef Py_ssize_t check_ids_and_slots(object ids, object slots) except -1:
    check_array(ids, "ids", False)
    check_array(slots, "slots", True)
    check_dtype(ids, "ids", cnp.NPY_INT64, "int64")
    check_dtype(slots, "slots", cnp.NPY_INT64, "int64")
    check_like(slots, "slots", ids, "ids")
    check_apart(slots, "slots", ids, "ids", True)
    return cnp.PyArray_SIZE(<cnp.ndarray>ids)


cdef int check_inside(object ids, Py_ssize_t n, int64_t low, int64_t high) except -1:
    cdef Py_ssize_t bad = aps_outside(numbers(ids), n, low, high)
    if bad >= 0:
        raise ValueError(f"id {ids[bad]} at {bad} is outside of {low}..{high - 1}")
    return 0


cdef class Index:
    """What both indexes do; how is told by the C methods, which are called without the GIL."""

    cdef bint busy
    cdef int64_t low, high  # ids that may be inserted: low <= id < high

    cdef int64_t _count(self) noexcept nogil:
        return 0

    cdef void _lookup(self, const aps_i64 *ids, Py_ssize_t n, aps_i64 *slots) noexcept nogil:
        pass

    cdef int _insert(self, const aps_i64 *ids, Py_ssize_t n, aps_i64 *slots) noexcept nogil:
        return -1

    cdef void _items(self, aps_i64 *ids) noexcept nogil:
        pass

    def __len__(self):
        return self._count()

    def lookup(self, ids, slots):
        """Write the slot of each id, -1 where there is none."""
        cdef Py_ssize_t n = check_ids_and_slots(ids, slots)
        cdef const aps_i64 *which = numbers(ids)
        cdef aps_i64 *to = numbers(slots)
        self._enter()
        if 8 * n < GIL_FREE_BYTES:
            self._lookup(which, n, to)
        else:
            with nogil:
                self._lookup(which, n, to)
        self.busy = False

    def insert(self, ids, slots):
        """Write the slot of each id, the next ones for new ids; returns how many are new."""
        cdef Py_ssize_t n = check_ids_and_slots(ids, slots)
        cdef const aps_i64 *which = numbers(ids)
        cdef aps_i64 *to = numbers(slots)
        cdef int64_t before = self._count()
        cdef int failed
        check_inside(ids, n, self.low, self.high)
        self._enter()
        if 8 * n < GIL_FREE_BYTES:
            failed = self._insert(which, n, to)
        else:
            with nogil:
                failed = self._insert(which, n, to)
        self.busy = False
        if failed:
            raise MemoryError("no memory for the index of rows")
        return self._count() - before

    def items(self):
        """The ids in the order of their slots."""
        cdef object ids = np.empty(self._count(), np.int64)
        self._enter()
        self._items(numbers(ids))
        self.busy = False
        return ids

    cdef int _enter(self) except -1:
        # The GIL is away during large calls: two threads at once would spoil the cells.
        if self.busy:
            raise RuntimeError("the index is in use by another thread")
        self.busy = True
        return 0


cdef class RowIndex(Index):
    """Slots of row ids of any range, by hash."""

    cdef aps_index index

    def __cinit__(self):
        self.high = HIGHEST
        if aps_index_init(&self.index, int.from_bytes(os.urandom(8), "little")) < 0:
            raise MemoryError()

    def __dealloc__(self):
        aps_index_free(&self.index)

    @property
    def nbytes(self):
        """Bytes of memory in use."""
        return self.index.bytes

    cdef int64_t _count(self) noexcept nogil:
        return self.index.count

    cdef void _lookup(self, const aps_i64 *ids, Py_ssize_t n, aps_i64 *slots) noexcept nogil:
        aps_index_lookup(&self.index, ids, n, slots)

    cdef int _insert(self, const aps_i64 *ids, Py_ssize_t n, aps_i64 *slots) noexcept nogil:
        return aps_index_insert(&self.index, ids, n, slots)

    cdef void _items(self, aps_i64 *ids) noexcept nogil:
        aps_index_items(&self.index, ids)


cdef class RangeIndex(Index):
    """Slots of row ids of a known range: four bytes for each, touched or not."""

    cdef aps_range index

    def __cinit__(self, int64_t first, int64_t stop):
        if first < 0 or stop < first or stop - first >= 0xFFFFFFFF:
            raise ValueError(f"a range of ids from {first} to {stop} cannot be kept in 32 bits")
        self.low, self.high = first, stop
        self.index.first = first
        self.index.rows = stop - first
        self.index.places = <uint32_t *>calloc(stop - first + 1, sizeof(uint32_t))
        if self.index.places == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.index.places)

    @property
    def nbytes(self):
        """Bytes of memory in use; pages of it that no id has touched cost nothing."""
        return self.index.rows * sizeof(uint32_t)

    cdef int64_t _count(self) noexcept nogil:
        return self.index.count

    cdef void _lookup(self, const aps_i64 *ids, Py_ssize_t n, aps_i64 *slots) noexcept nogil:
        aps_range_lookup(&self.index, ids, n, slots)

    cdef int _insert(self, const aps_i64 *ids, Py_ssize_t n, aps_i64 *slots) noexcept nogil:
        aps_range_insert(&self.index, ids, n, slots)
        return 0

    cdef void _items(self, aps_i64 *ids) noexcept nogil:
        aps_range_items(&self.index, ids)
