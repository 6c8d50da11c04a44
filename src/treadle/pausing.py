"""Pauses: the verbs of `Treadle` that keep workers from starting jobs."""

from __future__ import annotations

import getpass
import socket
import time
from collections.abc import Iterator
from datetime import datetime, timedelta

from treadle.clock import Duration, in_seconds
from treadle.errors import BadOption, NoSuchWorker
from treadle.pauses import Drained, NewPause, Pause, Target, checked_target, checked_text, checked_until
from treadle.results import twin
from treadle.signals import Signals
from treadle.stores.base import Store

LOOK_SECONDS = 0.1
"""Between two looks of a drain at what still runs."""


class Pausing(Signals):
    """The part of `Treadle` that pauses and resumes."""

    def pause(
        self,
        *,
        queue: str | None = None,
        type: str | None = None,
        tenant: str | None = None,
        reason: str = "",
        until: datetime | timedelta | None = None,
        by: str | None = None,
    ) -> Pause:
        """Start no more jobs of a queue, a type or a tenant, until `resume` or `until`. What runs goes on.

        No claim that begins after this returns takes one of them. If it is paused already, who, why and until when
        are new. `by`: who did it; default: the user of the operating system, and the host.
        """
        return self._pause(checked_target(queue, type, tenant), reason, until, by, draining=False)

    def resume(self, *, queue: str | None = None, type: str | None = None, tenant: str | None = None) -> Pause | None:
        """End a pause. Return it, or None if there was none."""
        ended = self.store.resume(checked_target(queue, type, tenant))
        if ended is not None and ended.tenant:
            put_back(self.store)
        self._wake()
        return ended

    def pauses(self) -> list[Pause]:
        """What is paused now, with who and why, oldest first."""
        return self.store.pauses()

    def drain(
        self,
        *,
        queue: str | None = None,
        type: str | None = None,
        tenant: str | None = None,
        reason: str = "",
        until: datetime | timedelta | None = None,
        by: str | None = None,
        timeout: Duration | None = None,
    ) -> Drained:
        """`pause`, and wait until nothing of it runs any more, or for `timeout` seconds. The pause stays, either way:
        `done` says whether nothing runs."""
        target = checked_target(queue, type, tenant)
        *_, last = self.draining(target, reason=reason, until=until, by=by, timeout=timeout)
        return last

    def draining(
        self,
        target: Target,
        *,
        reason: str = "",
        until: datetime | timedelta | None = None,
        by: str | None = None,
        timeout: Duration | None = None,
    ) -> Iterator[Drained]:
        """`drain`, look by look. Iterate over it: the last one is done, unless the time is up."""
        if timeout is not None and in_seconds(timeout) < 0:
            raise BadOption("timeout", timeout, "use seconds, 0 or more; leave it out to wait until nothing runs")
        pause = self._pause(target, reason, until, by, draining=True)
        deadline = None if timeout is None else time.monotonic() + in_seconds(timeout)
        before = self.store.claiming()  # claims that began before the pause
        while True:
            before &= self.store.claiming()
            running = self.store.running_of(target)
            done = not running and not before
            yield Drained(pause=pause, running=running, done=done)
            if done or (deadline is not None and time.monotonic() >= deadline):
                return
            time.sleep(LOOK_SECONDS if deadline is None else max(0.0, min(LOOK_SECONDS, deadline - time.monotonic())))

    def quiet(self, worker: str) -> None:
        """Let a worker, by its id, claim nothing more. It finishes what runs, and stays. Raises NoSuchWorker."""
        if not self.store.set_quiet(worker, True):
            raise NoSuchWorker(worker)

    def unquiet(self, worker: str) -> None:
        """Let a quiet worker claim again. Raises NoSuchWorker."""
        if not self.store.set_quiet(worker, False):
            raise NoSuchWorker(worker)

    def _pause(
        self, target: Target, reason: str, until: datetime | timedelta | None, by: str | None, *, draining: bool
    ) -> Pause:
        at = None if until is None else checked_until(until, self.store.now())
        new = NewPause(target=target, by=who(by), reason=checked_text("reason", reason), until=at, draining=draining)
        return self.store.pause(new)

    apause = twin(pause)
    aresume = twin(resume)
    apauses = twin(pauses)
    adrain = twin(drain)
    aquiet = twin(quiet)
    aunquiet = twin(unquiet)


def put_back(store: Store) -> int:
    """Let all jobs be claimed that were parked for a pause that is over, in small transactions. Return their number."""
    back = 0
    while some := store.put_back_parked():
        back += some
    return back


def who(by: str | None) -> str:
    return _user_and_host() if by is None else checked_text("by", by)


def _user_and_host() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container may have no name for its user; Windows has no list of them
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
