"""What an optimizer is: a name and hyper-parameters, checked; and the register of all of them."""

from __future__ import annotations

import importlib
import logging
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from asyncps.errors import OptimizerError, is_text, shown
from asyncps.optim import lr

log = logging.getLogger(__name__)

REGISTRY: dict[str, type[Optimizer]] = {}

_SPELLINGS = {"lr": "learning_rate", "weight_decay": "wd", "lambda1": "lamda1"}
_EPSILONS = {"eps": "epsilon", "epsilon": "eps"}  # MXNet has both; either is taken for either

# Decays of running means: at 1 nothing is ever taken in, and the correction divides by zero.
_DECAYS = frozenset({"beta1", "beta2", "gamma1"})
_NOT_NEGATIVE = frozenset({"lamda1"})
# None, or a negative number, means that there is none.
_BOUNDS = frozenset({"clip_gradient", "clip_weights", "lower_bound", "upper_bound"})
_LARGEST_KEY = 1 << 63
_MOST_LETTERS = 1024  # of a name, as the scheduler has it
_FACTORS = {"lr_mult": "learning_rate", "wd_mult": "wd"}

# Modules that could not be imported, with the reason: told when an optimizer is missing.
_failed_imports: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Spec:
    """What an optimizer of the user's own makes state for.

    Attributes:
        key: The key, of which this may be a chunk.
        shape: Of the weights that `update` will get: one dimension.
        dtype: Of these, "float32" or "float64".
    """

    key: int | str | None
    shape: tuple[int, ...]
    dtype: str


class Optimizer:
    """An optimizer by name and hyper-parameters.

    A subclass is an optimizer of the user's own, registered by the name of its class. It has
    `update`, and `init` if it keeps state; `defaults` names its hyper-parameters beside
    learning_rate, wd, rescale_grad and clip_gradient, which all have. The module with it must be
    imported where the step is taken, on the servers: `asyncps server --import module`.

    Args:
        hyper: Hyper-parameters in either spelling; those not given take their default.
            learning_rate may be a schedule of `asyncps.optim.lr`; lr_mult and wd_mult are dicts
            from key to factor.

    Attributes:
        hyper: All hyper-parameters under their canonical names: plain data. Factors are lists of
            [key, factor].

    Raises:
        OptimizerError: An unknown hyper-parameter, or a value that cannot be right.
    """

    name: ClassVar[str] = ""
    builtin: ClassVar[bool] = False
    whole_keys: ClassVar[bool] = False  # a step needs all elements of a key in one place
    defaults: ClassVar[Mapping[str, Any]] = {
        "learning_rate": 0.01, "wd": 0.0, "rescale_grad": 1.0, "clip_gradient": -1.0,
    }

    def __init__(self, *unnamed: Any, **hyper: Any) -> None:
        if unnamed:  # MXNet takes them by name too: the first of its SGD is no learning rate
            kind, first = type(self), next(iter(self.defaults))
            raise OptimizerError(f"the hyper-parameters of {kind.__name__} are given by name",
                                 expected=f"{kind.__name__}({first}=...)",
                                 got=shown(unnamed[0]))
        self.hyper: dict[str, Any] = {**_plain(self.defaults), **checked(type(self), hyper)}

    def __init_subclass__(cls, builtin: bool = False, **words: Any) -> None:
        super().__init_subclass__(**words)
        cls.builtin = builtin
        if "name" not in cls.__dict__:
            cls.name = cls.__name__.lower()
        for what, word in (("an optimizer", cls.name),
                           *(("a hyper-parameter", word) for word in cls.defaults)):
            if not is_text(word) or not 0 < len(word) <= _MOST_LETTERS:
                raise OptimizerError(f"a name of {what} cannot be that", got=shown(word),
                                     expected=f"text of 1 to {_MOST_LETTERS} characters")
        before = REGISTRY.get(cls.name)
        if before is not None and before.builtin:
            raise OptimizerError("an optimizer of that name exists", got=cls.name,
                                 expected="a class of another name")
        defaults = dict(cls.defaults) if builtin else {**Optimizer.defaults, **cls.defaults}
        for name, of in _FACTORS.items():
            if of in defaults:
                defaults.setdefault(name, [])
        cls.defaults = defaults
        REGISTRY[cls.name] = cls

    def __repr__(self) -> str:
        said = ", ".join(f"{k}={v}" for k, v in as_given(self.hyper).items())
        return f"{type(self).__name__}({said})"

    def init(self, spec: Spec) -> dict[str, Any]:
        """Return state arrays by name, each of `spec.shape`; they are the server's from now on."""
        return {}

    def update(self, weight: Any, grad: Any, state: dict[str, Any], hyper: dict[str, Any]) -> None:
        """Change `weight` and the arrays of `state` in place.

        Args:
            weight: NumPy array of one dimension, f32 (also for f16 and bf16 values) or f64: a
                piece of a key.
            grad: The sum of the round, as it came: scaling and clipping it is the optimizer's.
            state: What `init` returned.
            hyper: The hyper-parameters at this update, factors and schedule carried out, and `t`,
                how many updates this key has had, this one included.
        """
        raise OptimizerError(f"{type(self).__name__} has no update of its own", got=self.name,
                             expected="a method update(weight, grad, state, hyper)")


def by_name(name: str) -> type[Optimizer]:
    """Return the optimizer of that name.

    Raises:
        OptimizerError: There is none; the known ones are listed, and modules that failed.
    """
    kind = REGISTRY.get(str(name).lower())
    if kind is None and str(name).lower() == "nag":
        raise OptimizerError("nag is sgd with nesterov=True", expected="sgd", got=name)
    if kind is None:
        failed = "".join(f"; module {module!r} could not be imported: {reason}"
                         for module, reason in _failed_imports.items())
        raise OptimizerError(f"unknown optimizer{failed}",
                             got=name,
                             expected=", ".join(sorted(REGISTRY)))
    return kind


def resolve(optimizer: str | Optimizer, hyper: Mapping[str, Any]) -> Optimizer:
    """Return the optimizer that a call of `set_optimizer` means."""
    if isinstance(optimizer, Optimizer):
        if hyper:
            raise OptimizerError("hyper-parameters beside an optimizer object",
                                 expected="one of the two", got=", ".join(hyper))
        return optimizer
    if not isinstance(optimizer, str):
        raise OptimizerError("an optimizer is a name or an object of asyncps.optim",
                             expected=", ".join(sorted(REGISTRY)), got=shown(optimizer))
    return by_name(optimizer)(**hyper)


def checked(kind: type[Optimizer], hyper: Mapping[str, Any]) -> dict[str, Any]:
    """Return hyper-parameters under their canonical names, each checked.

    Raises:
        OptimizerError: An unknown name (the known ones are listed), a name in both spellings, or a
            value that is not what the name stands for.
    """
    result: dict[str, Any] = {}
    for given, value in hyper.items():
        name = _SPELLINGS.get(given, given)
        if name not in kind.defaults:
            name = _EPSILONS.get(name, name)
        if name not in kind.defaults:
            raise OptimizerError(f"{kind.name} has no hyper-parameter {given!r}",
                                 expected=", ".join(kind.defaults), got=given)
        if name in result:
            raise OptimizerError(f"{name} is given in both spellings", got=given)
        result[name] = _value(name, value, kind.defaults[name])
    return result


def words_of(params: Mapping[str, Any] | None, hyper: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyper-parameters of a call that takes them as a dict and by keyword.

    Raises:
        OptimizerError: It is no dict, or both have a name.
    """
    if params is None:
        return dict(hyper)
    if not isinstance(params, Mapping):
        raise OptimizerError("hyper-parameters are a dict, or keywords", got=shown(params))
    for name in params:
        if not isinstance(name, str):
            raise OptimizerError("a hyper-parameter has a name", expected="str", got=shown(name))
    twice = params.keys() & hyper.keys()
    if twice:
        raise OptimizerError("given in the dict and by keyword", got=", ".join(sorted(twice)))
    return {**params, **hyper}


def as_given(hyper: Mapping[str, Any]) -> dict[str, Any]:
    """Return hyper-parameters as users write them: factors in dicts, none without a factor."""
    return {name: dict(value) if name in _FACTORS else value
            for name, value in hyper.items() if name not in _FACTORS or value}


def import_modules(names: str) -> None:
    """Import modules with optimizers of the user's own.

    A failure is logged, and told to the worker that asks for the optimizer: it ends no server.

    Args:
        names: Module names, separated by commas.
    """
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)  # as for a script, though the console command has not got it
    for name in filter(None, (part.strip() for part in names.split(","))):
        try:
            importlib.import_module(name)
            _failed_imports.pop(name, None)
        except (Exception, SystemExit) as error:
            log.exception("module %r with optimizers could not be imported", name)
            _failed_imports[name] = repr(error)[:500]


def _plain(defaults: Mapping[str, Any]) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, list) else v for k, v in defaults.items()}


def _value(name: str, value: Any, default: Any) -> Any:
    if name in _FACTORS:
        return _factors(name, value)
    if name == "learning_rate" and isinstance(value, Mapping):
        return lr.checked(value)
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise OptimizerError(f"{name} must be true or false", got=shown(value))
        return value
    if name in _BOUNDS and value is None:
        return -1.0
    number = _number(name, value)
    if name in _DECAYS and not 0.0 <= number < 1.0:
        raise OptimizerError(f"{name} is out of range", expected="at least 0, below 1",
                             got=shown(value))
    if name in _NOT_NEGATIVE and number < 0:
        raise OptimizerError(f"{name} is out of range", expected="at least 0", got=shown(value))
    return number


def _factors(name: str, value: Any) -> list[list[Any]]:
    """Return [key, factor] in one order for all: integers, then strings.

    A list and no dict, because keys of both kinds travel and are saved alike in it.
    """
    pairs = value.items() if isinstance(value, Mapping) else value
    found: dict[Any, float] = {}
    try:
        for key, factor in pairs:
            if not _is_key(key) or key in found:
                raise OptimizerError(f"{name} must have each key once", got=shown(key),
                                     expected="keys of the store: int or str")
            found[key] = _number(f"{name} of key {shown(key)}", factor)
    except (TypeError, ValueError) as error:
        if isinstance(error, OptimizerError):
            raise
        raise OptimizerError(f"{name} must be a dict from key to factor",
                             got=shown(value)) from None
    order = sorted(found, key=lambda key: (isinstance(key, str), key))
    return [[key, found[key]] for key in order]


def _is_key(key: object) -> bool:
    """Tell whether a store may have such a key: text that has a UTF-8 form, or 64 bits."""
    if isinstance(key, str):
        return is_text(key)
    return (isinstance(key, int) and not isinstance(key, bool)
            and -_LARGEST_KEY <= key < _LARGEST_KEY)


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise OptimizerError(f"{name} must be a number", got=shown(value)) from None
    if not math.isfinite(number):
        raise OptimizerError(f"{name} must be finite", got=shown(value))
    return number
