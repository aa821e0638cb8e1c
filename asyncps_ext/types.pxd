# The checks that every array kernel makes at its door. Inline: nothing is called at run time.
#
# Arrays are read through NumPy's C API and not as typed memoryviews: an unaligned array is welcome,
# and a check costs nanoseconds where acquiring a memoryview costs half a microsecond.

cimport numpy as cnp

cdef enum:
    # From here on the GIL is given away: about 3 us of work, ten times the price of doing so.
    GIL_FREE_BYTES = 32768

cdef enum Dtype:
    # The order of APS_F32... in variants.h.
    F32, F64, I8, U8, I32, I64


cdef inline char *data(object array) noexcept:
    """Where a checked array begins."""
    return cnp.PyArray_BYTES(<cnp.ndarray>array)


cdef inline Py_ssize_t length(object array) noexcept:
    """The elements of a checked array."""
    return cnp.PyArray_SIZE(<cnp.ndarray>array)


cdef inline int variant_of(tuple names, str name) except -1:
    """Which of a module's variants has this name."""
    if name not in names:
        raise ValueError(f"no variant {name!r} here, only {names}")
    return names.index(name)


cdef inline int check_array(object array, str name, bint written) except -1:
    """A 1-d C-contiguous ndarray in native byte order; writable if it is written."""
    if not cnp.PyArray_Check(array):
        raise TypeError(f"{name} must be a NumPy array, not {type(array).__name__}")
    cdef cnp.ndarray a = <cnp.ndarray>array
    if cnp.PyArray_NDIM(a) != 1 or not cnp.PyArray_IS_C_CONTIGUOUS(a):
        raise ValueError(f"{name} must be 1-d and C-contiguous")
    if not cnp.PyArray_ISNOTSWAPPED(a):
        raise TypeError(f"{name} must be in native byte order, not {a.dtype!r}")
    if written and not cnp.PyArray_ISWRITEABLE(a):
        raise ValueError(f"{name} is read-only")
    return 0


cdef inline int check_dtype(object array, str name, int wanted, str spelled) except -1:
    """The dtype with this type number."""
    if cnp.PyArray_TYPE(<cnp.ndarray>array) != wanted:
        raise TypeError(f"{name} must be {spelled}, not {array.dtype}")
    return 0


cdef inline int check_like(object array, str name, object first, str first_name) except -1:
    """The length of another array that has been checked."""
    cdef Py_ssize_t n = cnp.PyArray_SIZE(<cnp.ndarray>array)
    cdef Py_ssize_t expected = cnp.PyArray_SIZE(<cnp.ndarray>first)
    if n != expected:
        raise ValueError(f"{name} has {n} elements, {first_name} has {expected}")
    return 0


cdef inline int dtype_of(object array, str name) except -1:
    """Which of the six dtypes that sums know."""
    cdef cnp.ndarray a = <cnp.ndarray>array
    cdef int number = cnp.PyArray_TYPE(a)
    cdef Py_ssize_t size = cnp.PyArray_ITEMSIZE(a)
    if number == cnp.NPY_FLOAT32:
        return F32
    if number == cnp.NPY_FLOAT64:
        return F64
    if number == cnp.NPY_UINT8:
        return U8
    if number == cnp.NPY_INT8:
        return I8
    # C has two names for one of these sizes; either is welcome.
    if number == cnp.NPY_INT or number == cnp.NPY_LONG or number == cnp.NPY_LONGLONG:
        return I32 if size == 4 else I64
    raise TypeError(f"{name} has a dtype that is not supported here: {array.dtype}")


cdef inline int same_dtype(object array, str name, int dtype, object first) except -1:
    if dtype_of(array, name) != dtype:
        raise TypeError(f"{name} must be {first.dtype}, not {array.dtype}")
    return 0


cdef inline bint overlaps(object first, object second) noexcept:
    """Whether two checked arrays share a byte."""
    cdef char *a = cnp.PyArray_BYTES(<cnp.ndarray>first)
    cdef char *b = cnp.PyArray_BYTES(<cnp.ndarray>second)
    cdef Py_ssize_t a_size = cnp.PyArray_NBYTES(<cnp.ndarray>first)
    cdef Py_ssize_t b_size = cnp.PyArray_NBYTES(<cnp.ndarray>second)
    if a_size == 0 or b_size == 0:
        return False
    return <size_t>a < <size_t>b + <size_t>b_size and <size_t>b < <size_t>a + <size_t>a_size


cdef inline int check_apart(
    object first, str first_name, object second, str second_name, bint may_be_same
) except -1:
    """Two checked arrays that share no byte (or are, element by element, one and the same)."""
    if not overlaps(first, second):
        return 0
    if may_be_same and (
        cnp.PyArray_BYTES(<cnp.ndarray>first) == cnp.PyArray_BYTES(<cnp.ndarray>second)
        and cnp.PyArray_NBYTES(<cnp.ndarray>first) == cnp.PyArray_NBYTES(<cnp.ndarray>second)
    ):
        return 0
    raise ValueError(f"{first_name} and {second_name} overlap")
