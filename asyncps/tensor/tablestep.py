"""What is done to a table in one round."""

from __future__ import annotations

from dataclasses import dataclass

from asyncps.tensor import updates


@dataclass(frozen=True, slots=True)
class Step:
    """The update of one round.

    Attributes:
        name: The optimizer, as `asyncps.tensor.updates` knows it.
        hyper: Its hyper-parameters by canonical name.
        t: How many updates this key has had, this one included: t counts rounds of the key and not
            uses of a row, as MXNet's does.
        lazy: Touch only rows that have a gradient, their state and weight decay included. False
            updates every row of the table, those without a gradient by a gradient of zero; that
            makes them all.
        master: Keep f32 weights of f16 and bf16 rows; the optimizer works on these.
    """

    name: str
    hyper: updates.Hyper
    t: int
    lazy: bool = True
    master: bool = False
