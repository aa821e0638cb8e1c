"""Optimizers as users name them: plain data that every worker says alike and servers carry out.

`store.set_optimizer("sgd", learning_rate=0.1)` and `store.set_optimizer(SGD(learning_rate=0.1))`
are the same. Both spellings are taken everywhere: learning_rate or lr, wd or weight_decay.
The update rules are those of Apache MXNet 1.9.1's operators; `lr` has schedules of the rate.
"""

from asyncps.optim import lr
from asyncps.optim.base import (
    REGISTRY,
    Optimizer,
    Spec,
    as_given,
    by_name,
    checked,
    import_modules,
    resolve,
    words_of,
)
from asyncps.optim.kinds import FTRL, LAMB, SGD, AdaGrad, Adam, AdamW, RMSProp, Test

__all__ = [
    "FTRL",
    "LAMB",
    "REGISTRY",
    "SGD",
    "AdaGrad",
    "Adam",
    "AdamW",
    "Optimizer",
    "RMSProp",
    "Spec",
    "Test",
    "as_given",
    "by_name",
    "checked",
    "import_modules",
    "lr",
    "resolve",
    "words_of",
]
