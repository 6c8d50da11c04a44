"""One job on SQLite is a straight line: few functions in few files, and no call from a lower layer up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.docs.trace import Call, Function, traced, traced_in_an_idle_worker
from tests.test_architecture import MIDDLE, PURE
from treadle import Treadle

SMALL = {"codec.py", "ids.py", "clock.py", "job.py"}
"""Modules that are called from everywhere, and are separate topics. They are not counted."""
BESIDE = ("chores", "heartbeat", "watch")
"""Files and threads of a worker that are not on the path of a job."""

TAKES_STEPS = {"Database.write", "Database.read"}
"""They take the steps that a verb gives them, in a transaction."""


@pytest.fixture
def td(tmp_path: Path) -> Iterator[Treadle]:
    with closing(Treadle(f"sqlite:///{tmp_path}/jobs.db")) as td:
        yield td


@pytest.fixture
def enqueue(td: Treadle) -> Callable[[], str]:
    @td.job
    def double(n: int) -> int:
        return 2 * n

    return lambda: double.enqueue(n=1).id


def on_the_path(calls: Iterable[Call]) -> list[Call]:
    return [
        call
        for call in calls
        if not any(word in call.thread or f"{word}.py" in call.function.file for word in BESIDE)
        and call.function.file not in SMALL
        and not call.function.name.rpartition(".")[2].startswith("<")
    ]


def assert_at_most(calls: Iterable[Call], functions: int, files: int) -> None:
    found = sorted({call.function for call in on_the_path(calls)})
    listing = "\n".join(f"{file}: {name}" for file, name in found)
    assert len(found) <= functions, listing
    assert len({file for file, _ in found}) <= files, listing


def layer(function: Function) -> int:
    """0: pure, 1: databases, 2: the verbs of stores, 3: what an app is made of, 4: the app and its workers."""
    top, *below = Path(function.file).with_suffix("").parts
    if top == "stores":
        return 2 if below[0] == "shared" or below[-1] == "store" else 1
    return 0 if top in PURE else 3 if top in MIDDLE else 4


def upward(calls: Iterable[Call]) -> set[tuple[Function, Function]]:
    pairs = {(call.caller, call.function) for call in calls if call.caller and call.caller.file not in SMALL}
    return {
        (caller, called) for caller, called in pairs if layer(caller) < layer(called) and caller.name not in TAKES_STEPS
    }


def test_an_enqueue_passes_few_functions(td: Treadle, enqueue: Callable[[], str]) -> None:
    enqueue()  # creates the tables
    assert_at_most(traced(enqueue), functions=28, files=10)


def test_claim_run_and_settle_pass_few_functions(td: Treadle, enqueue: Callable[[], str]) -> None:
    assert_at_most(traced_in_an_idle_worker(td, enqueue), functions=60, files=14)


def test_no_lower_layer_calls_a_higher_one(td: Treadle, enqueue: Callable[[], str]) -> None:
    calls = [*traced(enqueue), *traced_in_an_idle_worker(td, enqueue)]
    assert len({layer(call.function) for call in calls}) == 5
    assert upward(calls) == set()
