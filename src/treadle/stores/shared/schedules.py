"""Schedules as rows: put, declare, pause, resume, delete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from treadle import codec
from treadle.codec import as_json
from treadle.declarations import remembered, wins
from treadle.diagnosis import alive
from treadle.errors import ScheduleDeclared, ScheduleNotFound
from treadle.schedule import NewSchedule, next_after
from treadle.stores.rows import ScheduleRow
from treadle.stores.shared import read
from treadle.stores.transaction import Transaction

_FIELDS = ScheduleRow.__struct_fields__
MOST_DECLARED = 1_000


def to_row(row: Sequence[Any]) -> ScheduleRow:
    return ScheduleRow(**dict(zip(_FIELDS, row, strict=False)))


def schedule(tx: Transaction, tenant: str, name: str) -> ScheduleRow | None:
    tx.act_for(tenant)
    row = tx.execute(tx.sql.SCHEDULE, {"tenant": tenant, "name": name}).fetchone()
    return to_row(row) if row else None


def schedules(
    tx: Transaction, tenant: str | None = None, after: tuple[str, str] = ("", ""), limit: int = 200
) -> list[ScheduleRow]:
    tx.act_for(tenant or "")
    if tenant is None:
        found = tx.execute(tx.sql.SCHEDULES, {"tenant": after[0], "name": after[1], "limit": limit})
    else:
        found = tx.execute(tx.sql.SCHEDULES_OF_TENANT, {"tenant": tenant, "name": after[1], "limit": limit})
    return [to_row(row) for row in found]


def odd_schedules(tx: Transaction, overdue: int, limit: int) -> list[ScheduleRow]:
    late = tx.execute(tx.sql.OVERDUE_SCHEDULES, {"before": tx.now - overdue, "limit": limit}).fetchall()
    declared = tx.execute(tx.sql.DECLARED_SCHEDULES, {"limit": limit}).fetchall()
    found = {(row.tenant, row.name): row for row in map(to_row, [*late, *declared])}
    return list(found.values())


# Changes


def put(tx: Transaction, new: NewSchedule) -> ScheduleRow:
    """Store it, or change it. It is no longer the code's: no worker changes it."""
    row = _lock(tx, new.tenant, new.name)
    if row is None:
        added = _added(tx, new, "runtime")
        return put(tx, new) if added is None else added  # another transaction was faster
    if row.spec == new.spec and row.source == "runtime":
        return row
    return _changed(tx, row, new, source="runtime")


def declare(tx: Transaction, declared: Sequence[NewSchedule]) -> None:
    """Each declaration of a worker, if it wins. Usually all are stored already, as one statement shows. The others are
    locked in the order of their names, so that no two workers deadlock."""
    rows = map(to_row, tx.execute(tx.sql.DECLARED_SCHEDULES, {"limit": MOST_DECLARED}))
    stored = {(row.tenant, row.name): row.spec for row in rows}
    changed = [new for new in declared if stored.get((new.tenant, new.name)) != new.spec]
    living = alive(read.workers(tx), tx.now) if changed else []
    for new in sorted(changed, key=lambda new: new.name):
        row = _lock(tx, new.tenant, new.name)
        if row is None:
            _added(tx, new, "code")
            continue
        known: dict[str, int] = codec.decode_as(row.known, dict[str, int]) or {}
        live = {worker.schedules[new.name] for worker in living if new.name in worker.schedules}
        if row.source == "code" and wins(new.spec, row.spec, known, live):
            _changed(tx, row, new, known=as_json(remembered(known, new.spec, tx.now)))


def _added(tx: Transaction, new: NewSchedule, source: str) -> ScheduleRow | None:
    known = {new.spec: tx.now} if source == "code" else {}
    nothing: dict[str, Any] = dict.fromkeys(
        name for name in _FIELDS if name.startswith(("paused_", "last_", "skipped_"))
    )
    row = ScheduleRow(
        **_declared(new),
        **nothing,
        source=source,
        known=as_json(known),
        revision=1,
        next_at=next_after(new.rule, tx.now),
        created_at=tx.now,
        updated_at=tx.now,
    )
    return row if tx.value(tx.sql.ADD_SCHEDULE, msgspec.structs.asdict(row)) else None


def _changed(tx: Transaction, row: ScheduleRow, new: NewSchedule, **fields: Any) -> ScheduleRow:
    """A pause stays. A moment that is due is still fired, unless the rule has changed."""
    next_at, paused = row.next_at, row.paused_at is not None and row.paused_until is None
    if not paused and (next_at is None or row.rule != new.rule):
        next_at = next_after(new.rule, max(tx.now, row.paused_until or 0))
    return _set(tx, row, **_declared(new), next_at=next_at, **fields)


def _declared(new: NewSchedule) -> dict[str, Any]:
    fields = msgspec.structs.asdict(new)
    del fields["rule"]
    return {**fields, **msgspec.structs.asdict(new.rule), "spec": new.spec}


def _set(tx: Transaction, row: ScheduleRow, **fields: Any) -> ScheduleRow:
    changed = msgspec.structs.replace(row, **fields, revision=row.revision + 1, updated_at=tx.now)
    tx.execute(tx.sql.SET_SCHEDULE, msgspec.structs.asdict(changed))
    return changed


def pause(tx: Transaction, tenant: str, name: str, by: str, reason: str, until: int | None = None) -> ScheduleRow:
    row = lock(tx, tenant, name)
    pause = {"paused_at": tx.now, "paused_by": by, "paused_reason": reason, "paused_until": until}
    return _set(tx, row, **pause, next_at=None if until is None else next_after(row.rule, max(tx.now, until)))


def resume(tx: Transaction, tenant: str, name: str) -> ScheduleRow:
    """The moments of the pause are skipped, not missed."""
    row = lock(tx, tenant, name)
    if row.paused_at is None and row.next_at is not None:
        return row
    ended = dict.fromkeys(("paused_at", "paused_by", "paused_reason", "paused_until"))
    return _set(tx, row, **ended, next_at=next_after(row.rule, tx.now))


def delete(tx: Transaction, tenant: str, name: str) -> ScheduleRow:
    row = lock(tx, tenant, name)
    if row.source == "code" and any(name in worker.schedules for worker in alive(read.workers(tx), tx.now)):
        raise ScheduleDeclared(name)
    tx.execute(tx.sql.DELETE_SCHEDULE, {"tenant": tenant, "name": name})
    tx.execute(tx.sql.DROP_FIRED, {"tenant": tenant, "name": name})
    return row


def lock(tx: Transaction, tenant: str, name: str) -> ScheduleRow:
    """The schedule, which does not change until we commit. Raises ScheduleNotFound."""
    row = _lock(tx, tenant, name)
    if row is None:
        raise ScheduleNotFound(name, tenant)
    return row


def _lock(tx: Transaction, tenant: str, name: str) -> ScheduleRow | None:
    tx.act_for(tenant)
    row = tx.execute(tx.sql.LOCK_SCHEDULE, {"tenant": tenant, "name": name}).fetchone()
    return to_row(row) if row else None
