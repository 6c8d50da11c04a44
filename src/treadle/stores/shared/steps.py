"""The stored steps of handlers. A step is stored under the lease of its run, or not at all."""

from __future__ import annotations

from collections.abc import Sequence

from treadle import clock, codec
from treadle.codec import as_json
from treadle.errors import BadOption, LeaseLost
from treadle.ids import is_id
from treadle.job import ClaimedJob
from treadle.steps import NewStep, Step
from treadle.stores.transaction import Transaction

NewRow = tuple[str, str, NewStep, int, int]
"""The id and the tenant of a job, its new step, and the lease and the attempt of the run that did it."""


def add_steps(tx: Transaction, steps: Sequence[NewRow]) -> None:
    rows = [
        (id, tenant, s.name, s.position, s.kind, s.value, s.arguments, lease, attempt, s.took)
        for id, tenant, s, lease, attempt in steps
    ]
    if rows:
        tx.execute(tx.sql.ADD_STEPS, {"rows": as_json(rows), "now": tx.now})


def lock_held(tx: Transaction, claimed: Sequence[ClaimedJob]) -> set[tuple[int, int]]:
    """The fences of those leases that are still held. Nobody can end them until we commit."""
    rows = sorted({(c.id, *c.fence) for c in claimed})
    return set(tx.execute(tx.sql.LOCK_LEASES, {"rows": as_json(rows)}).fetchall())


def save_steps(tx: Transaction, done: Sequence[tuple[ClaimedJob, NewStep]]) -> list[Exception | None]:
    """Store these steps, each if the lease of its run is still held. Return an error for each of the others."""
    held = lock_held(tx, [c for c, _ in done])
    stored = [(c, step) for c, step in done if c.fence in held]
    if stored:
        tx.execute(tx.sql.FORGIVE, {"ids": as_json(sorted({c.id for c, _ in stored}))})
        add_steps(tx, [(c.id, c.tenant, step, c.number, c.attempt) for c, step in stored])
    return [None if c.fence in held else LeaseLost(c.id, c.number) for c, _ in done]


def steps(tx: Transaction, id: str) -> list[Step]:
    """The stored steps of a job, in the order in which they were stored."""
    rows = tx.execute(tx.sql.STEPS, {"id": id}) if is_id(id) else ()
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
