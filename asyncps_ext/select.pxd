# What asyncps_ext.select has from C.

from libc.stdint cimport int32_t, int64_t, uint16_t, uint32_t, uint64_t

cdef extern from "select_kernels.h" nogil:
    ctypedef uint16_t aps_u16
    ctypedef uint32_t aps_u32
    ctypedef float aps_f32
    ctypedef struct aps_select_table:
        const char *name
        Py_ssize_t (*above)(const aps_u32 *x, Py_ssize_t n, int32_t limit) noexcept nogil
        Py_ssize_t (*pick)(
            const aps_u32 *x, Py_ssize_t first, Py_ssize_t to, int32_t limit, aps_u32 *indices,
            aps_u32 *values, Py_ssize_t count, Py_ssize_t room
        ) noexcept nogil
        void (*accumulate)(
            aps_f32 *u, aps_f32 *v, const aps_f32 *g, Py_ssize_t n, float momentum
        ) noexcept nogil
    const aps_select_table *aps_select_table_at(int i) noexcept
    void aps_select_begin() noexcept
    int32_t aps_limit(float least) noexcept
    enum: APS_ITSELF, APS_SUM, APS_DIFFERENCE
    ctypedef struct aps_source:
        int made_by
        aps_f32 *a
        const aps_f32 *b
    int aps_topk(
        const aps_select_table *t, aps_source s, Py_ssize_t n, Py_ssize_t k,
        aps_u32 *indices, aps_u32 *values
    ) noexcept

cdef extern from "ascending.h" nogil:
    Py_ssize_t aps_check_ids_u32(const void *ids, Py_ssize_t n, int64_t limit) noexcept

cdef extern from "select_sums.h" nogil:
    void aps_take(
        aps_u32 *x, Py_ssize_t size, const aps_u32 *indices, aps_u32 *values, Py_ssize_t n
    ) noexcept
    void aps_take_f16(
        aps_f32 *x, Py_ssize_t size, const aps_u32 *indices, aps_u16 *values, Py_ssize_t n
    ) noexcept
    void aps_mask_both(
        aps_u32 *u, aps_u32 *v, Py_ssize_t size, const aps_u32 *indices, aps_u32 *values,
        Py_ssize_t n
    ) noexcept
    void aps_add_at(
        aps_f32 *acc, Py_ssize_t size, const aps_u32 *indices, const aps_f32 *values, Py_ssize_t n
    ) noexcept
    void aps_add_at_f16(
        aps_f32 *acc, Py_ssize_t size, const aps_u32 *indices, const aps_u16 *values, Py_ssize_t n
    ) noexcept
    void aps_set_at(
        aps_u32 *out, Py_ssize_t size, const aps_u32 *indices, const aps_u32 *values, Py_ssize_t n
    ) noexcept
    Py_ssize_t aps_merge(
        const aps_u32 *ia, const aps_f32 *va, Py_ssize_t na, const aps_u32 *ib,
        const aps_f32 *vb, Py_ssize_t nb, aps_u32 *indices, aps_f32 *values
    ) noexcept

cdef extern from "select_random.h" nogil:
    int aps_random_indices(uint64_t seed, uint64_t n, uint32_t *out, Py_ssize_t k) noexcept
