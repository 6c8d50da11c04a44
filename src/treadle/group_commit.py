"""Group commit: enqueues and steps that arrive during a commit share the next one.

One fsync then serves many callers. There is no background thread: one waiting caller, the leader, commits for all.
So nothing is lost at fork or exit, and nothing runs in your process that you did not start.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from treadle.errors import BlocksTheLoop

LIBRARIES = ("treadle", "django", "django_tasks")
"""What stands between a call that blocks and the code that a warning is about."""
T = TypeVar("T", bound=Sequence[Any])
"""What one caller wants to store."""
A = TypeVar("A")
"""What it gets when that is stored."""
StoreGroups = Callable[[Sequence[T]], Sequence[A | Exception]]
"""Stores what several callers want, and answers each of them. No answer is None."""


@dataclass(slots=True, eq=False)
class _Waiting(Generic[T, A]):
    """What one caller wants to store, until it is stored."""

    items: T
    turn: threading.Lock
    """Held until the items are stored, or it is this caller's turn to store."""
    answer: A | Exception | None = None
    left: bool = False
    """Whether the caller was interrupted and no longer waits."""
    neighbor: _Waiting[T, A] | None = None
    """The one to wake next. All at once, they would compete for the interpreter; one by one, each finds it free."""


class GroupCommit(Generic[T, A]):
    """The callers of one process that store something of one kind."""

    LARGE = 1000
    """A group with this many items is closed: a larger one would make the first caller wait for the last."""

    def __init__(self, store_groups: StoreGroups[T, A]) -> None:
        self._store_groups = store_groups
        self._lock = threading.Lock()
        self._waiting: list[_Waiting[T, A]] = []
        self._led = False
        self._loops = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncGroupCommit[T, A]]()

    async def astore(self, items: T) -> A:
        """`store` without blocking the event loop."""
        loop = asyncio.get_running_loop()
        group = self._loops.get(loop)
        if group is None:
            group = self._loops[loop] = AsyncGroupCommit(self._store_groups)
        return await group.store(items)

    def store(self, items: T) -> A:
        """Store `items`, together with those of other waiting callers."""
        with self._lock:
            mine = self._line_up(items) if self._led else None
            self._led = True
        answer = self._store_alone(items) if mine is None else self._store_with_others(mine)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _line_up(self, items: T) -> _Waiting[T, A]:
        mine: _Waiting[T, A] = _Waiting(items, threading.Lock())
        mine.turn.acquire()
        self._waiting.append(mine)
        return mine

    def _store_alone(self, items: T) -> A | Exception:
        """Nobody else waits, so nobody else gets an answer."""
        try:
            [answer] = self._store_groups([items])
        finally:
            with self._lock:
                self._pass_on()
        return answer

    def _store_with_others(self, mine: _Waiting[T, A]) -> A | Exception:
        self._wait(mine)
        if mine.answer is None:
            self._lead()
        else:
            self._wake_neighbor(mine)
        assert mine.answer is not None
        return mine.answer

    def _pass_on(self) -> None:
        """The first of those who wait leads next."""
        if self._waiting:
            self._waiting[0].turn.release()
        else:
            self._led = False

    def _wait(self, mine: _Waiting[T, A]) -> None:
        """Wait until the items are stored, or it is this caller's turn to lead."""
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
        """Store a group. The caller's own items are the first in it."""
        with self._lock:
            group = self._take()
        try:
            answers = self._store_groups([waiting.items for waiting in group])
        except BaseException as error:
            # The store answers per caller, so this is an interrupt. No caller may be left waiting.
            answers = [error if isinstance(error, Exception) else InterruptedError(repr(error)) for _ in group]
            if not isinstance(error, Exception):
                self._answer(group, answers)
                raise
        self._answer(group, answers)

    def _take(self) -> list[_Waiting[T, A]]:
        size = count = 0
        while count < len(self._waiting) and size < self.LARGE:
            size += len(self._waiting[count].items)
            count += 1
        group, self._waiting = self._waiting[:count], self._waiting[count:]
        return group

    def _answer(self, group: list[_Waiting[T, A]], answers: Sequence[A | Exception]) -> None:
        for waiting, answer in zip(group, answers, strict=True):
            waiting.answer = answer
        with self._lock:
            for waiting, neighbor in itertools.pairwise(group):
                waiting.neighbor = neighbor
            self._pass_on()
        if len(group) > 1:
            self._wake_neighbor(group[0])

    def _wake_neighbor(self, waiting: _Waiting[T, A]) -> None:
        with self._lock:
            neighbor = waiting.neighbor
            while neighbor is not None and neighbor.left:
                neighbor = neighbor.neighbor
            if neighbor is not None:
                neighbor.turn.release()


class AsyncGroupCommit(Generic[T, A]):
    """The tasks of one event loop that store something of one kind. One thread at a time stores for all of them."""

    def __init__(self, store_groups: StoreGroups[T, A]) -> None:
        self._store_groups = store_groups
        self._waiting: list[tuple[T, asyncio.Future[A]]] = []
        self._storing: asyncio.Task[None] | None = None

    async def store(self, items: T) -> A:
        """Store `items`. A caller that is cancelled while it waits does not learn whether they were stored."""
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.append((items, answer))
        if self._storing is None:
            self._storing = asyncio.create_task(self._store())
        return await answer

    async def _store(self) -> None:
        try:
            while self._waiting:
                group, self._waiting = self._waiting, []
                try:
                    answers = await asyncio.to_thread(self._store_groups, [items for items, _ in group])
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


def warn_if_on_loop(instead: str = "its twin: aenqueue, aresult, …") -> None:
    """The warning names the line of the caller's code, also if that has called a task of Django."""
    if asyncio._get_running_loop() is not None:
        problem = "this call waits for the database and blocks the running event loop"
        level, frame = 1, sys._getframe()
        while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in LIBRARIES:
            level, frame = level + 1, frame.f_back
        warnings.warn(f"{problem}; await {instead}", BlocksTheLoop, stacklevel=level)
