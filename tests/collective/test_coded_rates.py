"""Sums in few bytes while the learning rate changes."""

from __future__ import annotations

import numpy as np

from asyncps import Communicator
from tests.support.group import group


def test_halves_of_what_a_lower_rate_has_enlarged_have_a_finite_sum() -> None:
    def work(comm: Communicator) -> list[float]:
        comm.set_gradient_compression({"type": "f16", "lr_scaled": True, "small_bytes": 0})
        coded = comm._coded
        assert coded is not None
        coded.use_own({"learning_rate": 1.0})
        comm.all_reduce(np.full(9, 70000, np.float32), name="w")  # 4496 of it is kept
        coded.use_own({"learning_rate": 0.01})
        return comm.all_reduce(np.zeros(9, np.float32), name="w").tolist()

    with group(3) as three:
        for found in three.run(work):
            assert np.isfinite(found).all()
            assert found[0] > 65504  # each rank has kept 449,600 of today's
