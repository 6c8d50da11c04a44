"""Signals: named facts that handlers can wait for. The first value of a name counts, for who waits before or after."""

from __future__ import annotations

from typing import Any

from treadle import clock, codec
from treadle.context import current_run
from treadle.errors import BadOption
from treadle.group_commit import warn_if_on_loop
from treadle.producer import Producer
from treadle.results import twin
from treadle.settings import checked_id, checked_name, wanted_name
from treadle.steps import Step
from treadle.stores.user_connections import is_async, run_on_async
from treadle.waits import NewSignal, Signal, Wait


class Signals(Producer):
    """The part of `Treadle` that sends signals, and shows what handlers have stored and wait for."""

    def signal(self, name: str, value: Any = None, *, tenant: str = "", connection: Any = None, by: str = "") -> Signal:
        """Let jobs of this tenant go on that wait for this signal, now or later. Return the one that counts: the first.

        With `connection`, it is sent if and only if your transaction commits. Inside a handler it is stored with the
        job's completion, inside a step with the step. `by`: who sends it.
        """
        new, connection = _checked(name, value, tenant, by), self._connection({"connection": connection})
        if connection is None and (run := current_run.get()) is not None and self._joins(run, {}):
            run.collecting.signals.append(new)
            return Signal(name=name, value=value, tenant=tenant, by=by, at=clock.moment(clock.now()))
        if connection is None:
            warn_if_on_loop("its twin: asignal")
        return self._waking(self.store.signal(new, connection))

    async def asignal(
        self, name: str, value: Any = None, *, tenant: str = "", connection: Any = None, by: str = ""
    ) -> Signal:
        """`signal` without blocking the event loop."""
        if connection is not None and is_async(connection):
            new = _checked(name, value, tenant, by)
            return await run_on_async(connection, lambda theirs: self.store.signal(new, theirs))
        options: dict[str, Any] = {"tenant": tenant, "connection": connection, "by": by}
        return await self._to_thread(self.signal, name, value, **options)

    def get_signal(self, name: str, *, tenant: str = "") -> Signal | None:
        """The signal of that name, or None."""
        return self.store.get_signal(wanted_name("signal", name), tenant)

    def steps(self, id: str) -> list[Step]:
        """The stored steps of a job, in the order in which they were stored."""
        return self.store.steps(checked_id(id))

    def waits(self, id: str) -> list[Wait]:
        """What a job waits for and has waited for: parents, subjobs and signals."""
        return self.store.waits(checked_id(id))

    aget_signal = twin(get_signal)
    asteps = twin(steps)
    awaits = twin(waits)


def send(app: Signals, name: str, value: Any, tenant: str, by: str) -> tuple[Signal, bool]:
    """Send a signal. Return the one that counts, and whether it is this one."""
    _checked(name, value, tenant, by)
    if (before := app.get_signal(name, tenant=tenant)) is not None:
        return before, False
    found = app.signal(name, value, tenant=tenant, by=by)
    return found, (found.by, found.value) == (by, value)


def _checked(name: str, value: Any, tenant: str, by: str) -> NewSignal:
    if not checked_name("signal", name):
        raise BadOption("signal", name, "a signal needs a name: td.signal('approve:7')")
    text = codec.to_json_exact(value, name, f"signal {name!r}")
    return NewSignal(name, text, checked_name("tenant", tenant), checked_name("by", by))
