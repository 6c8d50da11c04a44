"""Callers that share a commit depend on each other: none may leave the others waiting."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence

import pytest

from tests.eventually import eventually
from treadle.group_commit import GroupCommit
from treadle.ids import new_id
from treadle.job import Job, NewJob
from treadle.stores.base import Inserted


class Gate:
    """A store that stores nothing, and returns when the gate is opened."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.groups: list[list[str]] = []

    def insert_groups(self, groups: Sequence[Sequence[NewJob]]) -> list[Inserted]:
        self.groups.append([job.type for jobs in groups for job in jobs])
        assert self.open.wait(10)
        return [[job.as_stored(0) for job in jobs] for jobs in groups]


def request(type: str) -> NewJob:
    return NewJob(id=new_id(), type=type)


def caller(group: GroupCommit, type: str, answers: list[list[Job]]) -> threading.Thread:
    thread = threading.Thread(target=lambda: answers.append(group.store([request(type)])), daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("while_led", [False, True], ids=["before its group is closed", "while its group is stored"])
def test_a_caller_that_is_interrupted_does_not_leave_others_waiting(while_led: bool) -> None:
    gate, answers = Gate(), list[list[Job]]()
    group = GroupCommit(gate.insert_groups)
    threads = [caller(group, "leads", answers)]
    eventually(lambda: gate.groups == [["leads"]])

    def interrupt(*_: object) -> None:
        threads.append(caller(group, "follows", answers))
        eventually(lambda: len(group._waiting) == 2)
        if while_led:  # the first group is stored, and the second, with both callers, is under way
            gate.open.set()
            threads[0].join(10)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(KeyboardInterrupt):
            group.store([request("is interrupted")])
    finally:
        signal.signal(signal.SIGALRM, before)
    gate.open.set()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()

    assert sorted(job.type for jobs in answers for job in jobs) == ["follows", "leads"]
    assert [job.type for job in group.store([request("afterwards")])] == ["afterwards"]
