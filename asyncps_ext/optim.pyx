"""Fused update steps of the servers; see `asyncps_ext.reference` for the specification."""

cimport numpy as cnp
from libc.stdint cimport uint64_t
from libc.stdlib cimport free

from asyncps_ext.rows cimport (
    aps_i64, aps_rows, check_int64, check_rows_of, check_width, data, length, open_blocks,
)
from asyncps_ext.types cimport (
    F64, GIL_FREE_BYTES, check_apart, check_array, check_like, dtype_of, same_dtype, variant_of,
)

cdef extern from "optim_kernels.h" nogil:
    ctypedef struct aps_optim_args:
        void *out
        const void *w
        const void *g
        void *m
        void *v
        void *d
        Py_ssize_t n
        uint64_t factor
        double lr
        double momentum
        double beta1
        double beta2
        double eps
        double wd
        double rescale
        double clip
        double eta
        double lamda1
        double beta
        double fix1
        double fix2
        double clip_weights
        int nesterov
    ctypedef void (*aps_update)(const aps_optim_args *args) noexcept
    ctypedef double (*aps_squares)(const void *x, Py_ssize_t n) noexcept
    ctypedef struct aps_optim_table:
        const char *name
        aps_update test[6]
        aps_update sgd[2]
        aps_update sgd_momentum[2]
        aps_update adam[2]
        aps_update adamw[2]
        aps_update lamb_direction[2]
        aps_update adagrad[2]
        aps_update rmsprop[2]
        aps_update rmsprop_centered[2]
        aps_update ftrl[2]
        aps_squares squares[2]
    const aps_optim_table *aps_optim_table_at(int i) noexcept

cdef extern from "optim_rows.h" nogil:
    void aps_step_rows(
        aps_update kernel, const aps_optim_args *given, const aps_i64 *slots, Py_ssize_t n,
        Py_ssize_t width
    ) noexcept

cnp.import_array()

cdef const aps_optim_table *table = aps_optim_table_at(0)


def _variants():
    """Names of the variants that this processor can run, best first."""
    cdef int i = 0
    names = []
    while aps_optim_table_at(i) != NULL:
        names.append(aps_optim_table_at(i).name.decode())
        i += 1
    return tuple(names)


def _set_variant(str name not None):
    """Choose a variant (for tests); returns the name of the one in use before."""
    global table
    cdef str before = table.name.decode()
    table = aps_optim_table_at(variant_of(_variants(), name))
    return before


cdef class Rows:
    """Rows of a table by slot, which a step updates where they lie; the blocks are kept."""

    cdef aps_rows table
    cdef list blocks
    cdef object slots  # as given: a state's must be the same
    cdef object own  # a copy, which nobody changes after it was checked
    cdef Py_ssize_t width, rows  # rows: of the whole table
    cdef readonly object dtype

    def __cinit__(self, list blocks not None, Py_ssize_t width, slots):
        check_int64(slots, "slots", False)
        check_width(width)
        if not blocks:
            raise ValueError("a table without blocks has no rows to update")
        check_array(blocks[0], "block", True)
        dtype_of(blocks[0], "block 0")
        self.blocks, self.slots, self.width = list(blocks), slots, width
        self.own = slots.copy()
        self.dtype = blocks[0].dtype
        open_blocks(&self.table, self.blocks, width, self.dtype, self.own, True)
        self.rows = length(self.blocks[0]) // width * len(self.blocks)

    def __dealloc__(self):
        free(self.table.blocks)

    @property
    def size(self):
        """Elements of all rows."""
        return length(self.own) * self.width


cdef int check_gradient(Rows rows, object g) except -1:
    """As many rows of gradients, which touch no block."""
    check_rows_of(g, "g", length(rows.own), rows.width)
    for block in rows.blocks:
        check_apart(block, "block", g, "g", False)
    return 0


cdef int check(aps_optim_args *args, object out, object w, object g) except -1:
    """Check the three arrays of every step, note where they lie; returns their dtype."""
    args.m = args.v = args.d = NULL
    if isinstance(w, Rows):
        return check_rows(args, out, w, g)
    check_array(out, "out", True)
    check_array(w, "w", False)
    check_array(g, "g", False)
    cdef int dtype = dtype_of(w, "w")
    same_dtype(out, "out", dtype, w)
    same_dtype(g, "g", dtype, w)
    check_like(out, "out", w, "w")
    check_like(g, "g", w, "w")
    check_apart(out, "out", w, "w", True)
    check_apart(out, "out", g, "g", True)
    args.out = cnp.PyArray_BYTES(<cnp.ndarray>out)
    args.w = cnp.PyArray_BYTES(<cnp.ndarray>w)
    args.g = cnp.PyArray_BYTES(<cnp.ndarray>g)
    args.n = cnp.PyArray_SIZE(<cnp.ndarray>w)
    return dtype


cdef int check_rows(aps_optim_args *args, object out, Rows w, object g) except -1:
    """The same of rows, which are updated where they lie."""
    if out is not w:
        raise ValueError("out must be w, when it is rows of a table")
    check_array(g, "g", False)
    cdef int dtype = dtype_of(w.blocks[0], "w")
    same_dtype(g, "g", dtype, w)
    check_gradient(w, g)
    args.w = &w.table
    args.g = data(g)
    args.n = length(g)
    return dtype


cdef int check_real(
    aps_optim_args *args, object out, object w, object g, double wd, double rescale, double clip
) except -1:
    """What all steps on real numbers are given; returns the dtype."""
    cdef int dtype = check(args, out, w, g)
    if dtype > F64:
        raise TypeError(f"w must be float32 or float64, not {w.dtype}")
    args.wd = wd
    args.rescale = rescale
    args.clip = clip
    return dtype


cdef void *check_state(
    object state, str name, int dtype, object out, object w, object g
) except NULL:
    """Check an array that a step reads and writes; it may not touch any other."""
    cdef Rows rows, of
    if isinstance(w, Rows):
        if not isinstance(state, Rows):
            raise TypeError(f"{name} must be rows of a table, as w is, not {type(state).__name__}")
        rows, of = state, w
        if rows.slots is not of.slots or rows.width != of.width:
            raise ValueError(f"{name} must be rows of the slots and the width of w")
        if rows.rows < of.rows:  # its copy of the slots is not the one that is used
            raise ValueError(f"{name} has {rows.rows} rows, expected the {of.rows} of w")
        same_dtype(rows.blocks[0], name, dtype, w)
        check_gradient(rows, g)
        check_states_apart(state, name, w, "w")
        return &rows.table
    check_array(state, name, True)
    same_dtype(state, name, dtype, w)
    check_like(state, name, w, "w")
    check_apart(state, name, out, "out", False)
    check_apart(state, name, w, "w", False)
    check_apart(state, name, g, "g", False)
    return cnp.PyArray_BYTES(<cnp.ndarray>state)


cdef int check_states_apart(object a, str a_name, object b, str b_name) except -1:
    """Two that have been checked: arrays, or rows; of these the first blocks speak for all."""
    if isinstance(a, Rows):
        return check_apart((<Rows>a).blocks[0], a_name, (<Rows>b).blocks[0], b_name, False)
    return check_apart(a, a_name, b, b_name, False)


cdef int check_moments(
    aps_optim_args *args, int dtype, object out, object w, object g, object m, object v,
    double beta1, double beta2, double eps
) except -1:
    """What steps with Adam's moments are given beside that."""
    args.m = check_state(m, "m", dtype, out, w, g)
    args.v = check_state(v, "v", dtype, out, w, g)
    check_states_apart(m, "m", v, "v")
    args.beta1 = beta1
    args.beta2 = beta2
    args.eps = eps
    return 0


cdef int update(aps_update kernel, aps_optim_args *args, object w) except -1:
    if isinstance(w, Rows):
        return update_rows(kernel, args, w)
    if cnp.PyArray_NBYTES(<cnp.ndarray>w) < GIL_FREE_BYTES:
        kernel(args)
    else:
        with nogil:
            kernel(args)
    return 0


cdef int update_rows(aps_update kernel, aps_optim_args *args, Rows w) except -1:
    cdef const aps_i64 *slots = <const aps_i64 *>data(w.own)
    cdef Py_ssize_t n = length(w.own), width = w.width
    # A row may be a miss of the cache, however short it is.
    if n * max(w.table.row, <Py_ssize_t>64) < GIL_FREE_BYTES:
        aps_step_rows(kernel, args, slots, n, width)
    else:
        with nogil:
            aps_step_rows(kernel, args, slots, n, width)
    return 0


def test(out, w, g, rescale):
    """out = w + rescale*g. Integers wrap, and take an integral rescale."""
    cdef aps_optim_args args
    cdef int dtype = check(&args, out, w, g)
    args.rescale = 0
    args.factor = 0
    if dtype <= F64:
        args.rescale = rescale
    else:
        if not -float("inf") < rescale < float("inf") or rescale != int(rescale):
            raise ValueError(f"rescale must be integral for {w.dtype}, not {rescale!r}")
        args.factor = int(rescale) & 0xFFFFFFFFFFFFFFFF
    update(table.test[dtype], &args, w)


def sgd(out, w, g, double lr, double wd, double rescale, double clip):
    """out = w - lr*(clip(rescale*g) + wd*w)."""
    cdef aps_optim_args args
    cdef int dtype = check_real(&args, out, w, g, wd, rescale, clip)
    args.lr = lr
    update(table.sgd[dtype], &args, w)


def sgd_momentum(
    out, w, g, m, double lr, double momentum, double wd, double rescale, double clip, bint nesterov
):
    """m = momentum*m - lr*(clip(rescale*g) + wd*w); out = w + m, or Nesterov's step."""
    cdef aps_optim_args args
    cdef int dtype = check_real(&args, out, w, g, wd, rescale, clip)
    args.m = check_state(m, "m", dtype, out, w, g)
    args.lr = lr
    args.momentum = momentum
    args.nesterov = nesterov
    update(table.sgd_momentum[dtype], &args, w)


def adam(
    out, w, g, m, v, double lr_t, double beta1, double beta2, double eps, double wd,
    double rescale, double clip
):
    """Adam's moments and step; lr_t carries the correction of the bias."""
    cdef aps_optim_args args
    cdef int dtype = check_real(&args, out, w, g, wd, rescale, clip)
    check_moments(&args, dtype, out, w, g, m, v, beta1, beta2, eps)
    args.lr = lr_t
    update(table.adam[dtype], &args, w)


def adamw(
    out, w, g, m, v, double lr, double eta, double beta1, double beta2, double eps, double wd,
    double rescale, double clip
):
    """Adam's moments, and a step with the weight decay beside it."""
    cdef aps_optim_args args
    cdef int dtype = check_real(&args, out, w, g, wd, rescale, clip)
    check_moments(&args, dtype, out, w, g, m, v, beta1, beta2, eps)
    args.lr = lr
    args.eta = eta
    update(table.adamw[dtype], &args, w)


def adagrad(out, w, g, h, double lr, double eps, double wd, double rescale, double clip):
    """h = h + g'*g'; out = w - lr*(g'/sqrt(h+eps) + wd*w)."""
    cdef aps_optim_args args
    cdef int dtype = check_real(&args, out, w, g, wd, rescale, clip)
    args.m = check_state(h, "h", dtype, out, w, g)
    args.lr = lr
    args.eps = eps
    update(table.adagrad[dtype], &args, w)


def rmsprop(
    out, w, g, n, double lr, double gamma1, double eps, double wd, double rescale, double clip,
    double clip_weights
):
    """n = gamma1*n + (1-gamma1)*g'*g'; out = w - lr*(g'/sqrt(n+eps)), bounded."""
    cdef aps_optim_args args
    cdef int dtype = check_real(&args, out, w, g, wd, rescale, clip)
    args.v = check_state(n, "n", dtype, out, w, g)
    args.lr = lr
    args.beta1 = gamma1
    args.eps = eps
    args.clip_weights = clip_weights
    update(table.rmsprop[dtype], &args, w)


def rmsprop_centered(
    out, w, g, n, mean, delta, double lr, double gamma1, double gamma2, double eps, double wd,
    double rescale, double clip, double clip_weights
):
    """RMSProp around the mean gradient, with momentum."""
    cdef aps_optim_args args
    cdef int dtype = check_real(&args, out, w, g, wd, rescale, clip)
    args.v = check_state(n, "n", dtype, out, w, g)
    args.m = check_state(mean, "mean", dtype, out, w, g)
    args.d = check_state(delta, "delta", dtype, out, w, g)
    check_states_apart(n, "n", mean, "mean")
    check_states_apart(n, "n", delta, "delta")
    check_states_apart(mean, "mean", delta, "delta")
    args.lr = lr
    args.beta1 = gamma1
    args.momentum = gamma2
    args.eps = eps
    args.clip_weights = clip_weights
    update(table.rmsprop_centered[dtype], &args, w)


def ftrl(
    out, w, g, z, n, double lr, double lamda1, double beta, double wd, double rescale, double clip
):
    """The FTRL-proximal step."""
    cdef aps_optim_args args
    cdef int dtype = check_real(&args, out, w, g, wd, rescale, clip)
    args.m = check_state(z, "z", dtype, out, w, g)
    args.v = check_state(n, "n", dtype, out, w, g)
    check_states_apart(z, "z", n, "n")
    args.lr = lr
    args.lamda1 = lamda1
    args.beta = beta
    update(table.ftrl[dtype], &args, w)


def lamb_direction(
    out, w, g, m, v, double beta1, double beta2, double eps, double wd, double fix1, double fix2,
    double rescale, double clip
):
    """Adam's moments, and where LAMB goes before the length of its step is known."""
    cdef aps_optim_args args
    cdef int dtype = check_real(&args, out, w, g, wd, rescale, clip)
    check_moments(&args, dtype, out, w, g, m, v, beta1, beta2, eps)
    args.fix1 = fix1
    args.fix2 = fix2
    update(table.lamb_direction[dtype], &args, w)


def squares(x):
    """The sum of squares of a float32 or float64 array, added in f64."""
    check_array(x, "x", False)
    cdef int dtype = dtype_of(x, "x")
    if dtype > F64:
        raise TypeError(f"x must be float32 or float64, not {x.dtype}")
    cdef const void *from_ = data(x)
    cdef Py_ssize_t n = length(x)
    cdef aps_squares kernel = table.squares[dtype]
    cdef double total
    if cnp.PyArray_NBYTES(<cnp.ndarray>x) < GIL_FREE_BYTES:
        total = kernel(from_, n)
    else:
        with nogil:
            total = kernel(from_, n)
    return total
