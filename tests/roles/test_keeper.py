"""What one server keeps for one store, through the ports that workers speak to."""

from __future__ import annotations

import hypothesis
from hypothesis.stateful import run_state_machine_as_test

from tests.roles.machine import StoreMachine


async def test_no_order_of_frames_halves_and_cuts_gives_a_wrong_byte() -> None:
    run_state_machine_as_test(
        StoreMachine,
        settings=hypothesis.settings(max_examples=60, stateful_step_count=40, deadline=None),
    )
