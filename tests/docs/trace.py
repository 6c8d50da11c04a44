"""Record which functions of treadle call each other while a job is enqueued or run."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from tests.docs.blocks import ROOT
from tests.eventually import eventually
from treadle import Treadle

SOURCE = ROOT / "src" / "treadle"


class Function(NamedTuple):
    """A function of treadle, by its file under `src/treadle` and its name there."""

    file: str
    name: str


class Call(NamedTuple):
    function: Function
    caller: Function | None
    """The nearest caller in treadle, in the same thread."""
    thread: str


class Trace:
    """The calls while it is `on`, in this thread and in all that start after `install`."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.on = False

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if self.on and event == "call" and (function := _function(frame)) is not None:
            self.calls.append(Call(function, _caller(frame), threading.current_thread().name))

    def install(self) -> None:
        threading.setprofile(self)
        sys.setprofile(self)

    def remove(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # None is what ends it


def traced(work: Callable[[], object]) -> list[Call]:
    """The calls while `work` runs, in this thread and in those that it starts."""
    trace = Trace()
    trace.on = True
    trace.install()
    try:
        work()
    finally:
        trace.remove()
    return trace.calls


def traced_in_an_idle_worker(td: Treadle, enqueue: Callable[[], str]) -> list[Call]:
    """The calls of a worker that has run a job before, from its next claim until it is idle again."""
    trace, idle, enqueued, stop = Trace(), threading.Event(), threading.Event(), threading.Event()

    async def work() -> None:
        async with td.worker(beat=60) as worker:
            await worker.drained()
            idle.set()
            await asyncio.to_thread(enqueued.wait, 60)
            await worker.drained()
            idle.set()
            await asyncio.to_thread(stop.wait, 60)

    def has_ended(id: str) -> bool:
        job = td.get(id)
        return job is not None and job.status.is_final

    first = enqueue()
    trace.install()
    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    sys.setprofile(None)  # this thread is the producer
    try:
        assert idle.wait(60)
        assert has_ended(first)
        idle.clear()
        trace.on = True
        second = enqueue()
        eventually(lambda: has_ended(second))
        enqueued.set()
        assert idle.wait(60)
        trace.on = False
    finally:
        enqueued.set()
        stop.set()
        thread.join(60)
        trace.remove()
    return [call for call in trace.calls if call.function.name != "Worker.drained"]


def _function(frame: FrameType) -> Function | None:
    if not frame.f_code.co_filename.startswith(str(SOURCE)):
        return None
    return Function(Path(frame.f_code.co_filename).relative_to(SOURCE).as_posix(), frame.f_code.co_qualname)


def _caller(frame: FrameType) -> Function | None:
    above = frame.f_back
    while above is not None:
        if (found := _function(above)) is not None:
            return found
        above = above.f_back
    return None
