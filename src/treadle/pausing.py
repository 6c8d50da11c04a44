"""Pauses and limits: the verbs of `Treadle` that keep workers from starting jobs."""

from __future__ import annotations

import getpass
import socket
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from treadle.codec import decode_as
from treadle.errors import BadOption, NoSuchWorker, UnknownLimit
from treadle.limits import OF_TYPE, Limit, LimitChange, LimitState, Rate, checked_bounds, checked_limit_name
from treadle.pauses import Drained, NewPause, Pause, Target, checked_target, checked_text, checked_until
from treadle.producer import Producer
from treadle.results import twin
from treadle.settings import checked_name
from treadle.stores.base import Store

if TYPE_CHECKING:
    from treadle.app import Treadle

LOOK_SECONDS = 0.1
"""Between two looks of a drain at what still runs."""


class Pausing(Producer):
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
        timeout: float | None = None,
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
        timeout: float | None = None,
    ) -> Iterator[Drained]:
        """`drain`, look by look. Iterate over it: the last one is done, unless the time is up."""
        if timeout is not None and timeout < 0:
            raise BadOption("timeout", timeout, "use seconds, 0 or more; leave it out to wait until nothing runs")
        pause = self._pause(target, reason, until, by, draining=True)
        deadline = None if timeout is None else time.monotonic() + timeout
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
        new = NewPause(target=target, by=_who(by), reason=checked_text("reason", reason), until=at, draining=draining)
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


class AppLimits:
    """`td.limits`: a look at all limits, and changes at run time."""

    def __init__(self, app: Treadle) -> None:
        self._app = app

    def list(self) -> Sequence[LimitState]:
        """All limits that workers have published, and all that somebody has changed, by name and key, with how much
        of each is used."""
        return self._app.store.limits()

    def get(self, name: str, *, key: str = "") -> LimitState | None:
        """The limit, or the key of it that somebody has changed; or None."""
        return next((state for state in self._app.store.limits() if (state.name, state.key) == (name, key)), None)

    def set(
        self,
        name: str,
        *,
        key: str = "",
        concurrency: int | None = None,
        rate: Rate | None = None,
        by: str | None = None,
    ) -> LimitState:
        """Change a limit for one key, or for all that have no change of their own. It wins over the code until `unset`.

        `name`: of a Limit, or `type:NAME` for all jobs of a type. What you leave out stays as it is. No claim that
        begins after this returns goes by the old one, and what runs goes on. `by`: as with `pause`. Raises
        UnknownLimit.
        """
        checked_bounds(concurrency, rate)
        known = self._known()
        if checked_limit_name(name) not in known:
            raise UnknownLimit(name, known)
        if checked_name("key", key) and known[name] is None:
            raise BadOption("key", key, f"limit {name!r} counts all its jobs together; leave the key out")
        change = LimitChange(name=name, key=key, concurrency=concurrency, rate=rate, by=_who(by))
        changed = self._app.store.change_limit(change)
        self._app._wake()
        return changed

    def unset(self, name: str, *, key: str = "") -> bool:
        """Go by the code again. False if it was not changed."""
        unset = self._app.store.unset_limit(checked_limit_name(name), checked_name("key", key))
        self._app._wake()
        return unset

    def _known(self) -> dict[str, str | None]:
        """The limits that workers have published or this app declares, and what each is counted by."""
        own = (job_type.policy for job_type in self._app.registry.types.values())
        policies = [*self._app.store.policies().values(), *own]
        declared = [limit for policy in policies for limit in decode_as(policy.limits, tuple[Limit, ...]) or ()]
        return {f"{OF_TYPE}{policy.type}": None for policy in policies} | {one.name: one.per for one in declared}

    alist = twin(list)
    aget = twin(get)
    aset = twin(set)
    aunset = twin(unset)


def _who(by: str | None) -> str:
    return _user_and_host() if by is None else checked_text("by", by)


def _user_and_host() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container may have no name for its user
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
