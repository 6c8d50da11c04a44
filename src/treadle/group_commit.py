"""Group commit: enqueues that arrive during a commit share the next one.

One fsync then serves many callers. There is no background thread: one waiting caller, the leader, commits for all.
So nothing is lost at fork or exit, and nothing runs in your process that you did not start.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from treadle.job import Job, NewJob
from treadle.stores.base import Inserted

InsertGroups = Callable[[Sequence[Sequence[NewJob]]], list[Inserted]]


@dataclass(slots=True, eq=False)
class _Waiting:
    """One caller's jobs, until they are stored."""

    jobs: Sequence[NewJob]
    turn: threading.Lock
    """Held until the jobs are stored, or it is this caller's turn to store."""
    answer: Inserted | None = None
    left: bool = False
    """Whether the caller was interrupted and no longer waits."""
    neighbor: _Waiting | None = None
    """The one to wake next. All at once, they would compete for the interpreter; one by one, each finds it free."""


class GroupCommit:
    """The callers of one process that enqueue on one store."""

    LARGE = 1000
    """A group with this many jobs is closed: a larger one would make the first caller wait for the last."""

    def __init__(self, insert_groups: InsertGroups) -> None:
        self._insert_groups = insert_groups
        self._lock = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._led = False

    def insert(self, jobs: Sequence[NewJob]) -> list[Job]:
        """Store `jobs`, together with those of other waiting callers."""
        mine = _Waiting(jobs, threading.Lock())
        mine.turn.acquire()
        with self._lock:
            self._waiting.append(mine)
            lead, self._led = not self._led, True
        if not lead:
            self._wait(mine)
        if mine.answer is None:
            self._lead()
        else:
            self._wake_neighbor(mine)
        answer = mine.answer
        assert answer is not None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _wait(self, mine: _Waiting) -> None:
        """Wait until the jobs are stored, or it is this caller's turn to lead."""
        try:
            mine.turn.acquire()
        except BaseException:  # Ctrl-C: callers that rely on this one must not wait forever
            with self._lock:
                mine.left = True
                has_turn = mine.turn.acquire(blocking=False)
                if mine in self._waiting and not has_turn:
                    self._waiting.remove(mine)
            if has_turn and mine.answer is None:
                self._lead()
            elif has_turn:
                self._wake_neighbor(mine)
            raise

    def _lead(self) -> None:
        """Store a group. The caller's own jobs are the first in it."""
        with self._lock:
            group = self._take()
        try:
            answers = self._insert_groups([waiting.jobs for waiting in group])
        except BaseException as error:
            # The store answers per caller, so this is an interrupt. No caller may be left waiting.
            answers = [error if isinstance(error, Exception) else InterruptedError(repr(error)) for _ in group]
            if not isinstance(error, Exception):
                self._answer(group, answers)
                raise
        self._answer(group, answers)

    def _take(self) -> list[_Waiting]:
        size = count = 0
        while count < len(self._waiting) and size < self.LARGE:
            size += len(self._waiting[count].jobs)
            count += 1
        group, self._waiting = self._waiting[:count], self._waiting[count:]
        return group

    def _answer(self, group: list[_Waiting], answers: Sequence[Inserted]) -> None:
        for waiting, answer in zip(group, answers, strict=True):
            waiting.answer = answer
        with self._lock:
            for waiting, neighbor in itertools.pairwise(group):
                waiting.neighbor = neighbor
            if self._waiting:
                self._waiting[0].turn.release()  # the next leader
            else:
                self._led = False
        if len(group) > 1:
            self._wake_neighbor(group[0])

    def _wake_neighbor(self, waiting: _Waiting) -> None:
        with self._lock:
            neighbor = waiting.neighbor
            while neighbor is not None and neighbor.left:
                neighbor = neighbor.neighbor
            if neighbor is not None:
                neighbor.turn.release()


class AsyncGroupCommit:
    """The tasks of one event loop that enqueue on one store. One thread at a time stores for all of them."""

    def __init__(self, insert_groups: InsertGroups) -> None:
        self._insert_groups = insert_groups
        self._waiting: list[tuple[Sequence[NewJob], asyncio.Future[list[Job]]]] = []
        self._storing: asyncio.Task[None] | None = None

    async def insert(self, jobs: Sequence[NewJob]) -> list[Job]:
        """Store `jobs`. A caller that is cancelled while it waits does not learn whether they were stored."""
        answer: asyncio.Future[list[Job]] = asyncio.get_running_loop().create_future()
        self._waiting.append((jobs, answer))
        if self._storing is None:
            self._storing = asyncio.create_task(self._store())
        return await answer

    async def _store(self) -> None:
        try:
            while self._waiting:
                group, self._waiting = self._waiting, []
                try:
                    answers = await asyncio.to_thread(self._insert_groups, [jobs for jobs, _ in group])
                except Exception as error:
                    answers = [error for _ in group]
                for (_, future), answer in zip(group, answers, strict=True):
                    if future.done():
                        continue
                    if isinstance(answer, Exception):
                        future.set_exception(answer)
                    else:
                        future.set_result(answer)
        finally:
            self._storing = None
