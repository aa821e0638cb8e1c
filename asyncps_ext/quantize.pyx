"""Quantizers: few bits for a float32, what is lost kept for the next time.

`asyncps_ext.reference.quantize` is the specification.
"""

cimport numpy as cnp
from libc.math cimport isfinite
from libc.stdint cimport uint8_t

from asyncps_ext.types cimport (
    GIL_FREE_BYTES, I8, U8, check_apart, check_array, check_dtype, check_like, data, dtype_of,
    length, variant_of,
)

cnp.import_array()

BLOCK = APS_BLOCK

cdef const aps_quantize_table *table = aps_quantize_table_at(0)


def _variants():
    """Names of the variants that this processor can run, best first."""
    cdef int i = 0
    names = []
    while aps_quantize_table_at(i) != NULL:
        names.append(aps_quantize_table_at(i).name.decode())
        i += 1
    return tuple(names)


def _set_variant(str name not None):
    """Choose a variant (for tests); returns the name of the one in use before."""
    global table
    cdef str before = table.name.decode()
    table = aps_quantize_table_at(variant_of(_variants(), name))
    return before


cdef inline aps_f32 *floats_of(object array) noexcept:
    return <aps_f32 *>data(array)


cdef int check_floats(object array, str name, bint written) except -1:
    check_array(array, name, written)
    check_dtype(array, name, cnp.NPY_FLOAT32, "float32")
    return 0


cdef int check_bytes(object array, str name, bint written, Py_ssize_t size) except -1:
    """A payload of so many bytes, of either sign."""
    check_array(array, name, written)
    cdef int dtype = dtype_of(array, name)
    if dtype != U8 and dtype != I8:
        raise TypeError(f"{name} must be uint8 or int8, not {array.dtype}")
    cdef Py_ssize_t given = length(array)
    if given != size:
        raise ValueError(f"{name} has {given} bytes, expected {size}")
    return 0


cdef int check_source(object residual, object g) except -1:
    """What every encoder works on."""
    check_floats(g, "g", False)
    if residual is not None:
        check_floats(residual, "residual", True)
        check_like(residual, "residual", g, "g")
        check_apart(residual, "residual", g, "g", False)
    return 0


cdef int check_target(object written, str name, object residual, object g) except -1:
    """That what is sent lies apart from what it is made of."""
    check_apart(written, name, g, "g", False)
    if residual is not None:
        check_apart(written, name, residual, "residual", False)
    return 0


cdef float check_number(double value, str name) except? -1:
    if not isfinite(<float>value):
        raise ValueError(f"{name} must be a finite float32, not {value!r}")
    return <float>value


cdef float check_threshold(double threshold) except? -1:
    """A threshold of 2bit: 0 would send every zero as one."""
    if not check_number(threshold, "threshold") > 0:
        raise ValueError(f"threshold must be above 0, not {threshold!r}")
    return <float>threshold


cdef inline Py_ssize_t words(Py_ssize_t n, int bits) noexcept:
    """Bytes of n values of so many bits, in whole words of 32."""
    return (n * bits + 31) // 32 * 4


cdef int encode(
    aps_encode kernel, object payload, object residual, object g, float value
) except -1:
    check_target(payload, "payload", residual, g)
    cdef uint8_t *to = <uint8_t *>data(payload)
    cdef aps_f32 *kept = NULL if residual is None else floats_of(residual)
    cdef const aps_f32 *x = floats_of(g)
    cdef Py_ssize_t n = length(g)
    if 4 * n < GIL_FREE_BYTES:
        kernel(to, kept, x, value, n)
    else:
        with nogil:
            kernel(to, kept, x, value, n)
    return 0


cdef int decode(
    aps_decode kernel, object out, str name, object payload, int bits, float value
) except -1:
    check_floats(out, name, True)
    cdef Py_ssize_t n = length(out)
    check_bytes(payload, "payload", False, words(n, bits))
    check_apart(out, name, payload, "payload", False)
    cdef aps_f32 *to = floats_of(out)
    cdef const uint8_t *x = <const uint8_t *>data(payload)
    if 4 * n < GIL_FREE_BYTES:
        kernel(to, x, value, n)
    else:
        with nogil:
            kernel(to, x, value, n)
    return 0


cdef Py_ssize_t scan(aps_scan kernel, object x, object residual) except -2:
    check_floats(x, "x", False)
    if residual is not None:
        check_floats(residual, "residual", False)
        check_like(residual, "residual", x, "x")
    cdef const aps_f32 *from_ = floats_of(x)
    cdef const aps_f32 *and_ = NULL if residual is None else floats_of(residual)
    cdef Py_ssize_t n = length(x)
    cdef Py_ssize_t found
    if 4 * n < GIL_FREE_BYTES:
        found = kernel(from_, and_, n)
    else:
        with nogil:
            found = kernel(from_, and_, n)
    return found


def count_nonfinite(x, residual=None):
    """How many values of x, or of x + residual, are NaN or infinite."""
    return scan(table.count_nonfinite, x, residual)


def first_nonfinite(x, residual=None):
    """Index of the first value of x, or of x + residual, that is NaN or infinite, or -1."""
    return scan(table.first_nonfinite, x, residual)


def largest(x):
    """The largest magnitude: nan where there is a NaN, 0.0 of nothing."""
    check_floats(x, "x", False)
    cdef const aps_f32 *from_ = floats_of(x)
    cdef Py_ssize_t n = length(x)
    cdef aps_measure kernel = table.largest
    cdef float most
    if 4 * n < GIL_FREE_BYTES:
        most = kernel(from_, n)
    else:
        with nogil:
            most = kernel(from_, n)
    return most


def encode_2bit(payload, residual, g, double threshold):
    """+threshold, -threshold or nothing, as MXNet packs them."""
    check_source(residual, g)
    check_bytes(payload, "payload", True, words(length(g), 2))
    encode(table.encode_2bit, payload, residual, g, check_threshold(threshold))


def decode_2bit(out, payload, double threshold):
    """out = what encode_2bit sent."""
    decode(table.decode_2bit, out, "out", payload, 2, check_threshold(threshold))


def add_2bit(acc, payload, double threshold):
    """acc += what encode_2bit sent."""
    decode(table.add_2bit, acc, "acc", payload, 2, check_threshold(threshold))


def encode_1bit(payload, residual, g, double threshold):
    """+1 above threshold, else -1, as MXNet packs them."""
    check_source(residual, g)
    check_bytes(payload, "payload", True, words(length(g), 1))
    encode(table.encode_1bit, payload, residual, g, check_number(threshold, "threshold"))


def decode_1bit(out, payload):
    """out = what encode_1bit sent."""
    decode(table.decode_signs, out, "out", payload, 1, 1)


def add_1bit(acc, payload):
    """acc += what encode_1bit sent."""
    decode(table.add_signs, acc, "acc", payload, 1, 1)


def onebit_prepare(residual, g):
    """residual += g; returns the sum of the magnitudes, added in f64."""
    check_source(residual, g)
    cdef aps_f32 *kept = NULL if residual is None else floats_of(residual)
    cdef const aps_f32 *x = floats_of(g)
    cdef Py_ssize_t n = length(g)
    cdef double total
    cdef aps_prepare kernel = table.onebit_prepare
    if 4 * n < GIL_FREE_BYTES:
        total = kernel(kept, x, n)
    else:
        with nogil:
            total = kernel(kept, x, n)
    return total


def encode_onebit(payload, x, double scale, bint keep=True):
    """+scale from 0 on, else -scale; x -= what is sent, if keep."""
    check_floats(x, "x", keep)
    check_bytes(payload, "payload", True, words(length(x), 1))
    check_apart(payload, "payload", x, "x", False)
    encode(table.encode_onebit, payload, x if keep else None, x, check_number(scale, "scale"))


def decode_onebit(out, payload, double scale):
    """out = what encode_onebit sent."""
    decode(table.decode_signs, out, "out", payload, 1, check_number(scale, "scale"))


def add_onebit(acc, payload, double scale):
    """acc += what encode_onebit sent."""
    decode(table.add_signs, acc, "acc", payload, 1, check_number(scale, "scale"))


cdef int check_scales(object scales, bint written, Py_ssize_t n) except -1:
    check_floats(scales, "scales", written)
    cdef Py_ssize_t given = length(scales)
    cdef Py_ssize_t expected = (n + APS_BLOCK - 1) // APS_BLOCK
    if given != expected:
        raise ValueError(f"scales has {given} elements, expected {expected}")
    return 0


def encode_int8(payload, scales, residual, g):
    """Multiples from -127 to 127 of a scale for each 256 values."""
    check_source(residual, g)
    cdef Py_ssize_t n = length(g)
    check_bytes(payload, "payload", True, n)
    check_scales(scales, True, n)
    check_target(payload, "payload", residual, g)
    check_target(scales, "scales", residual, g)
    check_apart(payload, "payload", scales, "scales", False)
    cdef aps_i8 *to = <aps_i8 *>data(payload)
    cdef aps_f32 *units = floats_of(scales)
    cdef aps_f32 *kept = NULL if residual is None else floats_of(residual)
    cdef const aps_f32 *x = floats_of(g)
    cdef aps_encode_blocks kernel = table.encode_int8
    if 4 * n < GIL_FREE_BYTES:
        kernel(to, units, kept, x, n)
    else:
        with nogil:
            kernel(to, units, kept, x, n)


cdef int decode_blocks(
    aps_decode_blocks kernel, object out, str name, object payload, object scales
) except -1:
    check_floats(out, name, True)
    cdef Py_ssize_t n = length(out)
    check_bytes(payload, "payload", False, n)
    check_scales(scales, False, n)
    check_apart(out, name, payload, "payload", False)
    check_apart(out, name, scales, "scales", False)
    cdef aps_f32 *to = floats_of(out)
    cdef const aps_i8 *x = <const aps_i8 *>data(payload)
    cdef const aps_f32 *units = floats_of(scales)
    if 4 * n < GIL_FREE_BYTES:
        kernel(to, x, units, n)
    else:
        with nogil:
            kernel(to, x, units, n)
    return 0


def decode_int8(out, payload, scales):
    """out = what encode_int8 sent."""
    decode_blocks(table.decode_int8, out, "out", payload, scales)


def add_int8(acc, payload, scales):
    """acc += what encode_int8 sent."""
    decode_blocks(table.add_int8, acc, "acc", payload, scales)


cdef int encode_half(aps_encode kernel, object payload, object residual, object g) except -1:
    check_source(residual, g)
    check_array(payload, "payload", True)
    check_dtype(payload, "payload", cnp.NPY_UINT16, "uint16")
    check_like(payload, "payload", g, "g")
    encode(kernel, payload, residual, g, 0)
    return 0


def encode_f16(payload, residual, g):
    """The bits of x as float16, to the nearest even; what is finite stays so."""
    encode_half(table.encode_f16, payload, residual, g)


def encode_bf16(payload, residual, g):
    """The bits of x as bfloat16, to the nearest even; what is finite stays so."""
    encode_half(table.encode_bf16, payload, residual, g)
