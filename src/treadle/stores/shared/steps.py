"""The stored steps of handlers. A step is stored under the lease of its run, or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from treadle import clock, codec
from treadle.codec import as_json
from treadle.errors import BadOption
from treadle.ids import is_id
from treadle.job import ClaimedJob
from treadle.steps import Ended, NewStep, Step
from treadle.stores.transaction import Transaction, step_row

NewRow = tuple[str, str, NewStep, int, int]
"""The id and the tenant of a job, its new step, and the lease and the attempt of the run that did it."""


def add_steps(tx: Transaction, steps: Sequence[NewRow]) -> None:
    if steps:
        tx.execute(tx.sql.ADD_STEPS, {"rows": as_json([step_row(*step) for step in steps]), "now": tx.now})


def lock_held(tx: Transaction, claimed: Sequence[ClaimedJob]) -> set[tuple[int, int]]:
    """The fences of those leases that are still held. Nobody can end them until we commit."""
    rows = sorted({(c.id, *c.fence) for c in claimed})
    return set(tx.execute(tx.sql.LOCK_LEASES, {"rows": as_json(rows)}).fetchall())


def steps(tx: Transaction, id: str) -> list[Step]:
    """The stored steps of a job, in the order in which they were stored."""
    return as_steps(tx.execute(tx.sql.STEPS, {"id": id}) if is_id(id) else ())


def as_steps(rows: Iterable[Any]) -> list[Step]:
    return [
        Step(
            name=name,
            kind=kind,
            value=codec.decode(value),
            arguments=arguments,
            attempt=attempt,
            started_at=clock.moment(started_at),
            ended_at=clock.moment(ended_at),
        )
        for name, kind, value, arguments, attempt, started_at, ended_at in rows
    ]


def forget(tx: Transaction, id: str, name: str | None) -> None:
    """Forget this step and all later ones; without a name, all of them."""
    if not tx.execute(tx.sql.FORGET_STEPS, {"id": id, "name": name}).rowcount and name is not None:
        known = ", ".join(repr(step.name) for step in steps(tx, id)) or "none"
        raise BadOption("from_step", name, f"the stored steps of this job: {known}")


def ends(tx: Transaction, ids: Sequence[str]) -> dict[str, Ended]:
    """How those of these jobs that exist have ended."""
    rows = tx.execute(tx.sql.ENDS, {"ids": as_json(ids)})
    return {
        id: Ended(status, None if result is None else codec.decode(result), error) for id, status, result, error in rows
    }
