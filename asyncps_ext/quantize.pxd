# What asyncps_ext.quantize has from C.

from libc.stdint cimport int8_t, uint8_t

cdef extern from "quantize_kernels.h" nogil:
    enum:
        APS_BLOCK
    ctypedef float aps_f32
    ctypedef int8_t aps_i8
    ctypedef Py_ssize_t (*aps_scan)(
        const aps_f32 *x, const aps_f32 *residual, Py_ssize_t n
    ) noexcept
    ctypedef float (*aps_measure)(const aps_f32 *x, Py_ssize_t n) noexcept
    ctypedef void (*aps_encode)(
        uint8_t *payload, aps_f32 *residual, const aps_f32 *g, float value, Py_ssize_t n
    ) noexcept
    ctypedef void (*aps_decode)(
        aps_f32 *out, const uint8_t *payload, float value, Py_ssize_t n
    ) noexcept
    ctypedef double (*aps_prepare)(aps_f32 *residual, const aps_f32 *g, Py_ssize_t n) noexcept
    ctypedef void (*aps_encode_blocks)(
        aps_i8 *payload, aps_f32 *scales, aps_f32 *residual, const aps_f32 *g, Py_ssize_t n
    ) noexcept
    ctypedef void (*aps_decode_blocks)(
        aps_f32 *out, const aps_i8 *payload, const aps_f32 *scales, Py_ssize_t n
    ) noexcept
    ctypedef struct aps_quantize_table:
        const char *name
        aps_scan count_nonfinite
        aps_scan first_nonfinite
        aps_measure largest
        aps_encode encode_2bit
        aps_encode encode_1bit
        aps_encode encode_onebit
        aps_encode encode_f16
        aps_encode encode_bf16
        aps_decode decode_2bit
        aps_decode add_2bit
        aps_decode decode_signs
        aps_decode add_signs
        aps_prepare onebit_prepare
        aps_encode_blocks encode_int8
        aps_decode_blocks decode_int8
        aps_decode_blocks add_int8
    const aps_quantize_table *aps_quantize_table_at(int i) noexcept
