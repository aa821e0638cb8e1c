"""Every kernel in plain NumPy: the specification of the compiled ones, and their stand-in.

The modules `wire`, `reduce`, `optim`, `sparse`, `sparse_index`, `sparse_fill`, `quantize` and
`select` here have the functions of the compiled modules of those names, with the same arguments,
results and errors.
Unless a function says otherwise:

* arrays are 1-d C-contiguous ndarrays in native byte order, of any length and alignment; those that
  are only read may be read-only; all of a call have one length (else ValueError) and the dtypes
  that are named (else TypeError);
* float16 and bfloat16 arrays travel as uint16 arrays of their bits;
* arrays that are written share no memory with others (else ValueError), where nothing else is said;
* the caller owns all arrays; nothing is kept after the call;
* nothing that is given may change during the call: the results are undefined then, but no memory
  outside of the arrays is touched.
"""

from __future__ import annotations

from asyncps_ext.reference import (
    optim,
    quantize,
    reduce,
    select,
    sparse,
    sparse_fill,
    sparse_index,
    wire,
)
from asyncps_ext.reference.optim import (
    adagrad,
    adam,
    adamw,
    ftrl,
    lamb_direction,
    rmsprop,
    rmsprop_centered,
    sgd,
    sgd_momentum,
    squares,
    test,
)
from asyncps_ext.reference.reduce import (
    add,
    add_bf16,
    add_f16,
    narrow_bf16,
    narrow_f16,
    scale,
    widen_bf16,
    widen_f16,
)
from asyncps_ext.reference.wire import (
    HEADER_SIZE,
    check_rows,
    crc32c,
    gather_rows,
    pack_header,
    parse_header,
    scatter_rows,
)

__all__ = [
    "HEADER_SIZE",
    "adagrad",
    "adam",
    "adamw",
    "add",
    "add_bf16",
    "add_f16",
    "check_rows",
    "crc32c",
    "ftrl",
    "gather_rows",
    "lamb_direction",
    "narrow_bf16",
    "narrow_f16",
    "optim",
    "pack_header",
    "parse_header",
    "quantize",
    "reduce",
    "rmsprop",
    "rmsprop_centered",
    "scale",
    "scatter_rows",
    "select",
    "sgd",
    "sgd_momentum",
    "sparse",
    "sparse_fill",
    "sparse_index",
    "squares",
    "test",
    "widen_bf16",
    "widen_f16",
    "wire",
]
