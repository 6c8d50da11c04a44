"""Any sequence of store calls, compared with a small model."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.conformance.durable_machine import DurableMachine
from tests.conformance.focused_machines import (
    BatchMachine,
    KeyMachine,
    LimitMachine,
    OrderMachine,
    ScheduleMachine,
    StepMachine,
    SuccessorMachine,
)

EXAMPLES = {"sqlite": 80, "postgresql": 8, "libsql": 4}
"""A round trip to a server takes ten times as long as a call."""
STEPS = {
    DurableMachine: 50,
    KeyMachine: 30,
    SuccessorMachine: 30,
    LimitMachine: 20,
    OrderMachine: 20,
    ScheduleMachine: 15,
    BatchMachine: 15,
    StepMachine: 25,
}
"""The one that does everything needs more of them."""


@pytest.mark.parametrize("machine", STEPS, ids=lambda machine: machine.__name__)
def test_any_sequence_of_store_calls_does_what_the_model_does(which, another, machine):
    class Machine(machine):
        new_url = staticmethod(another)

    most = EXAMPLES.get(which, 15)
    examples = most if machine is DurableMachine or which == "sqlite" else most // 2
    run_state_machine_as_test(Machine, settings=settings(max_examples=examples, stateful_step_count=STEPS[machine]))
