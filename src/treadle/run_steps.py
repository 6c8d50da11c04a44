"""The steps and waits of a run. A handler runs again from the top: what it has stored is returned, and not done again.

A step is stored before it returns. A wait ends the run: its job holds no worker until what it waits for has happened.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NoReturn, Self

import msgspec

from treadle import clock, codec
from treadle.batch import refuse_rejects
from treadle.context import Collected, Run, caller, current_run, current_step
from treadle.errors import BadOption, BadPayload, BadStep, JobFailed, NotJSON, PayloadTooLarge, StoreBusy, StoreUnusable
from treadle.group_commit import GroupCommit, warn_if_on_loop
from treadle.job import ClaimedJob, NewJob, Status
from treadle.json_types import convert, to_builtin
from treadle.outcome import Fail, Outcome, OutcomeKind, Suspend
from treadle.settings import checked_name, checked_seconds
from treadle.signature import returned
from treadle.steps import MOST_STEPS, Ended, NewStep, Step
from treadle.stores.base import Store
from treadle.waits import NewWait

PAUSE = 0.5
"""Seconds to wait before a store that could not be used is tried again: a step that is done should not run again."""
_ENCODER = msgspec.json.Encoder(enc_hook=to_builtin, order="deterministic")


class StepSaver:
    """Stores the steps of all handlers of an app. Those that arrive during a commit share the next one."""

    def __init__(self, store: Store) -> None:
        def save(groups: Sequence[tuple[tuple[ClaimedJob, NewStep]]]) -> list[bool | Exception]:
            return [error or True for error in store.save_steps([done for (done,) in groups])]

        self._commits = GroupCommit[tuple[tuple[ClaimedJob, NewStep]], bool](save)
        self._lock = threading.Lock()

    def steps_of(self, run: Run) -> RunSteps:
        """The steps of a run. Its threads and tasks share them."""
        with self._lock:
            if run.steps is None:
                run.steps = RunSteps(run, self)
            return run.steps

    def save(self, run: Run, step: NewStep) -> None:
        while True:
            try:
                self._commits.store(((run.claimed, step),))
                return
            except (StoreBusy, StoreUnusable):
                if run.stop_reason is not None:
                    raise
                time.sleep(PAUSE)

    async def asave(self, run: Run, step: NewStep) -> None:
        while True:
            try:
                await self._commits.astore(((run.claimed, step),))
                return
            except (StoreBusy, StoreUnusable):
                await asyncio.sleep(PAUSE)


class StepCall:
    """One call of `ctx.step`. What is enqueued inside it is stored with it."""

    def __init__(self, run: Run, name: str, function: Callable[..., Any], arguments: str) -> None:
        self.name, self.arguments = name, arguments
        self.collected = Collected()
        self.ended = False
        self._run = run
        self._hint = returned(function)
        self._took = 0

    @contextmanager
    def inside(self) -> Generator[None]:
        began, run_token, token = time.monotonic(), current_run.set(self._run), current_step.set(self)
        try:
            yield
        finally:
            self.ended, self._took = True, clock.seconds(time.monotonic() - began)
            current_step.reset(token)
            current_run.reset(run_token)

    def done(self, value: Any) -> tuple[NewStep, Any]:
        """The step to be stored, and its value as later runs get it. Raises Fail if it cannot be stored: its work is
        done, and would be done again by every retry."""
        where = f"step {self.name!r}"
        try:
            text = codec.to_json(value, self._run.claimed.type, where, "step")
            back = self._as_annotated(codec.decode(text))
            if back != value:
                way_out = "it would come back as a different value; annotate what the function returns"
                raise NotJSON(where, value, way_out)
        except (BadPayload, msgspec.MsgspecError) as error:
            raise Fail(f"{where} returned what cannot be stored: {error}") from error
        made = self.collected
        collected = tuple(made.follow_ups), tuple(made.signals), tuple(made.batches)
        return NewStep(self.name, "step", text, self.arguments, self._took, 0, *collected), back

    def value(self, stored: Step) -> Any:
        try:
            return self._as_annotated(stored.value)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise BadStep(self.name, f"its stored value no longer fits what it returns: {error}", RENAME) from None

    def _as_annotated(self, value: Any) -> Any:
        return value if self._hint is Any else convert(value, self._hint)


RENAME = "rename the step, or run the job again from it: td.retry(id, from_step=…)"


class RunSteps:
    """What earlier runs of a job have stored, and what this one stores."""

    def __init__(self, run: Run, saver: StepSaver) -> None:
        self._run, self._saver = run, saver
        self._lock = threading.Lock()
        self._calls: dict[str, int] = {}
        self._count = 0
        self._stored: dict[str, Step] | None = {} if run.claimed.forgiven is None else None

    # Steps

    def call(self, name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> StepCall:
        """A call of a step. A repeated name gets a number, now, so that concurrent calls keep their order."""
        self._check(name)
        return StepCall(self._run, self._assign(name), function, hash_of((*enumerate(args), *sorted(kwargs.items()))))

    def step(self, call: StepCall, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        warn_if_on_loop("ctx.astep")
        if inspect.iscoroutinefunction(function):
            raise BadStep(call.name, "its function is async", "await ctx.astep(…) in an async handler")
        self.load()
        if (stored := self._find(call.name, ("step",), call.arguments)) is not None:
            return call.value(stored)
        with call.inside():
            value = function(*args, **kwargs)
        step, value = call.done(value)
        self._save(step)
        return value

    async def astep(self, call: StepCall, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        await self.aloaded()
        if (stored := self._find(call.name, ("step",), call.arguments)) is not None:
            return call.value(stored)
        with call.inside():
            if inspect.iscoroutinefunction(function):
                value = await function(*args, **kwargs)
            else:
                value = await asyncio.to_thread(function, *args, **kwargs)
                if inspect.isawaitable(value):
                    value = await value
        step, value = call.done(value)
        await self._asave(step)
        return value

    # Waits

    def sleep(self, name: str, seconds: float | timedelta) -> None:
        name, delay = self._begin_wait(name), _duration("sleep", seconds)
        if self._find(name, ("sleep",)) is None:
            value = codec.as_json(delay / clock.SECOND)
            self._suspend(delay=delay, steps=(NewStep(name, "sleep", value, position=self._count + 1),))

    def wait_for(self, signal: str, timeout: float | timedelta | None) -> Any:
        checked_name("signal", signal)
        name, until = self._begin_wait(signal), None if timeout is None else _duration("timeout", timeout)
        stored = self._find(name, ("signal", "timeout"))
        if stored is None:
            self._suspend(waits=(NewWait("signal", signal, name, timeout=until),))
        if stored.kind == "timeout":
            raise TimeoutError(f"the signal {signal!r} did not come in time")
        return stored.value

    def gather(self, name: str, requests: Sequence[NewJob]) -> list[Any]:
        if (stored := self._begin_gather(name, requests)) is None:
            return []
        gathered = stored.value
        if stored.kind == "gather":
            gathered, step = self._gathered(stored, self._run.store.ends(stored.value))
            if step is not None:
                self._save(step)
        return self._results(gathered, requests)

    async def agather(self, name: str, requests: Sequence[NewJob]) -> list[Any]:
        if (stored := self._begin_gather(name, requests)) is None:
            return []
        gathered = stored.value
        if stored.kind == "gather":
            gathered, step = self._gathered(stored, await asyncio.to_thread(self._run.store.ends, stored.value))
            if step is not None:
                await self._asave(step)
        return self._results(gathered, requests)

    def _begin_gather(self, name: str, requests: Sequence[NewJob]) -> Step | None:
        """What is stored of a gather. None if there is nothing to wait for."""
        if not isinstance(requests, Sequence):
            raise BadOption("gather", requests, "a list of requests: [ocr.request(page=1), …]")
        jobs = [self._checked(request) for request in requests]
        name, arguments = self._begin_wait(name), hash_of(list(enumerate((job.type, job.payload) for job in jobs)))
        if not jobs:
            return None
        stored = self._find(name, ("gather", "gathered"), arguments)
        if stored is None:
            started = NewStep(name, "gather", codec.as_json([job.id for job in jobs]), arguments, 0, self._count + 1)
            waits = tuple(NewWait("subjob", job.id, name) for job in jobs)
            self._suspend(steps=(started,), waits=waits, follow_ups=tuple(jobs))
        return stored

    def _results(self, gathered: Any, requests: Sequence[NewJob]) -> list[Any]:
        if "results" not in gathered:
            raise JobFailed(gathered["id"], gathered["status"], gathered["error"])
        return [self._run.typed(job.type, result) for job, result in zip(requests, gathered["results"], strict=True)]

    def _gathered(self, stored: Step, ends: Mapping[str, Ended]) -> tuple[Any, NewStep | None]:
        """What subjobs have returned, or which has failed; and the step that keeps it, unless that is too large. If
        some have not ended, the job waits for them: it was cancelled, and is retried."""
        ids: list[str] = stored.value
        if waiting := [id for id in ids if id in ends and ends[id].status is None]:
            self._suspend(waits=tuple(NewWait("subjob", id, stored.name) for id in dict.fromkeys(waiting)))
        found = [ends.get(id) or Ended("deleted") for id in ids]
        bad = next((n for n, one in enumerate(found) if one.status != Status.COMPLETED), None)
        value: Any = {"results": [one.result for one in found]}
        if bad is not None:
            value = {"id": ids[bad], "status": found[bad].status, "error": found[bad].error, "jobs": ids}
        try:
            text = codec.to_json(value, self._run.claimed.type, f"step {stored.name!r}", "step")
        except PayloadTooLarge:
            return value, None
        return value, NewStep(stored.name, "gathered", text, stored.arguments)

    def _checked(self, request: Any) -> NewJob:
        claimed = self._run.claimed
        if not isinstance(request, NewJob):
            raise BadOption("gather", request, "a list of requests: [ocr.request(page=1), …]")
        if request.tenant != claimed.tenant:
            raise BadOption("tenant", request.tenant, f"a subjob has the tenant of its job: {claimed.tenant!r}")
        if claimed.id in request.after:
            raise BadOption("after", claimed.id, "this job waits for its subjobs, so that none can wait for it")
        refuse_rejects("gather", [request])
        return request.started_by(claimed.id)

    def _begin_wait(self, name: str) -> str:
        self.load()
        self._check(name)
        if caller() != self._run.owner:
            way_out = "wait in the handler itself, not in a task or thread that it has started"
            raise BadStep(name, "this is not the task or thread of the handler", way_out)
        return self._assign(name)

    def _suspend(self, **what: Any) -> NoReturn:
        self._run.suspension = Outcome(OutcomeKind.SUSPENDED, charged=0, **what)
        raise Suspend

    # What is stored

    def load(self) -> None:
        """Read what earlier runs have stored, if they have."""
        with self._lock:
            if self._stored is None:
                found = self._run.store.steps(self._run.claimed.id)
                self._stored, self._count = {step.name: step for step in found}, len(found)

    async def aloaded(self) -> Self:
        """These, with what `load` reads."""
        if self._stored is None:
            await asyncio.to_thread(self.load)
        return self

    def _find(self, name: str, kinds: Sequence[str], arguments: str = "") -> Step | None:
        """What is stored under this name. Raises BadStep if it is something else, and if no more can be stored."""
        assert self._stored is not None
        stored = self._stored.get(name)
        if stored is None:
            if self._count >= MOST_STEPS:
                raise BadStep(name, f"a job can store {MOST_STEPS:,} steps", "give parts of the work to subjobs")
        elif stored.kind not in kinds:
            raise BadStep(name, f"an earlier run has stored a {stored.kind} under this name", RENAME)
        elif arguments and stored.arguments and arguments != stored.arguments:
            raise BadStep(name, "an earlier run has called it with other arguments", RENAME)
        return stored

    def _save(self, step: NewStep) -> None:
        self._saver.save(self._run, self._next(step))
        self._run.has_stored_step()

    async def _asave(self, step: NewStep) -> None:
        await self._saver.asave(self._run, self._next(step))
        self._run.has_stored_step()

    def _next(self, step: NewStep) -> NewStep:
        if step.kind == "gathered":  # it takes the place of its "gather"
            return step
        with self._lock:
            self._count += 1
            return msgspec.structs.replace(step, position=self._count)

    def _assign(self, name: str) -> str:
        """The name under which it is stored: the second of a name is `name#2`."""
        with self._lock:
            number = self._calls[name] = self._calls.get(name, 0) + 1
            while (own := name if number == 1 else f"{name}#{number}") in self._calls and number > 1:
                number = self._calls[name] = number + 1
            self._calls.setdefault(own, 1)
            return own

    def _check(self, name: Any) -> None:
        run, step = self._run, current_step.get()
        if not isinstance(name, str) or not checked_name("step", name):
            raise BadOption("step", name, "a step needs a name: ctx.step('fetch', …)")
        if run.suspension is not None:
            raise Suspend
        if run.written or run.ended:
            raise BadStep(name, "the run has ended", "do the steps before")
        if run.in_transaction:
            raise BadStep(name, "it is inside of ctx.transaction(), which ends the job", "do the steps before")
        if step is not None and not step.ended:
            raise BadStep(name, f"it is inside of the step {step.name!r}", "do one after the other")


def _duration(option: str, given: float | timedelta) -> int:
    return clock.seconds(checked_seconds(option, given, "seconds, 0 or more, or a timedelta"))


def hash_of(values: Sequence[tuple[Any, Any]]) -> str:
    """A hash of those values that have a JSON form; '' if none has."""
    parts = [(where, text) for where, value in values if (text := _as_text(value)) is not None]
    return hashlib.sha256(codec.encode(parts)).hexdigest()[:32] if parts else ""


def _as_text(value: Any) -> str | None:
    try:
        return _ENCODER.encode(value).decode()
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        return None
