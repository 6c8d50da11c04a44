"""The interface for tracers: what they do around an enqueue and around a run. `contrib/otel.py` is one."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

from treadle.context import Run
from treadle.job import NewJob
from treadle.outcome import Outcome

if TYPE_CHECKING:
    from treadle.app import Treadle

P = ParamSpec("P")
R = TypeVar("R")


class Tracing(Protocol):
    """A tracer. None of its methods may raise."""

    def enqueuing(self, jobs: Sequence[NewJob]) -> AbstractContextManager[Sequence[NewJob]]:
        """Around an enqueue. Yields the same jobs, with their `traceparent`."""
        ...

    def running(self, run: Run) -> AbstractContextManager[Callable[[Outcome | None], None]]:
        """Around an attempt, in the thread or task that runs it or waits for its process. Yields a function to call
        with the outcome (None: the lease was lost). Sets the `traceparent` of `run.claimed` to the attempt's own."""
        ...

    def inside(self, run: Run) -> AbstractContextManager[object]:
        """Around the handler in a child process, while its worker is inside `running`."""
        ...


Submit = Callable[Concatenate["Treadle", Sequence[NewJob], P], R]


def traced(submit: Submit[P, R]) -> Submit[P, R]:
    """A `submit` inside the `enqueuing` of the app's tracer, if it has one."""

    @functools.wraps(submit)
    def submit_traced(app: Treadle, jobs: Sequence[NewJob], /, *args: P.args, **kwargs: P.kwargs) -> R:
        if app.tracing is None or not jobs:
            return submit(app, jobs, *args, **kwargs)
        with app.tracing.enqueuing(jobs) as with_parents:
            return submit(app, with_parents, *args, **kwargs)

    return submit_traced


def atraced(submit: Submit[P, Awaitable[R]]) -> Submit[P, Awaitable[R]]:
    """`traced` for the async twin."""

    @functools.wraps(submit)
    async def submit_traced(app: Treadle, jobs: Sequence[NewJob], /, *args: P.args, **kwargs: P.kwargs) -> R:
        if app.tracing is None or not jobs:
            return await submit(app, jobs, *args, **kwargs)
        with app.tracing.enqueuing(jobs) as with_parents:
            return await submit(app, with_parents, *args, **kwargs)

    return submit_traced
