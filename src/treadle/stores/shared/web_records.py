"""The records of the HTTP API: its tokens, what it changed, what it is still doing, what it has answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from treadle import codec
from treadle.clock import SECOND
from treadle.codec import as_json
from treadle.errors import BadCursor, CommitUnknown, JobNotFound, RequestDiffers, StoreRefused
from treadle.ids import first_id_of, is_id, new_id
from treadle.job import Job, NewJob
from treadle.stores.rows import AuditRow, Operation, Token
from treadle.stores.shared import enqueue, read
from treadle.stores.transaction import Connections, Insert, Transaction

if TYPE_CHECKING:
    from treadle.stores.shared.store import SQLStore

LAST_ID = "ffffffff-ffff-ffff-ffff-ffffffffffff"
DAY = 86_400 * SECOND
AUDIT_KEPT, OPERATIONS_KEPT, REQUESTS_KEPT = 365 * DAY, 30 * DAY, 7 * DAY


def audit(tx: Transaction, row: AuditRow) -> None:
    tx.execute(tx.sql.AUDIT, {**asdict(row), "id": new_id(), "now": tx.now})


def audits(tx: Transaction, limit: int, before: str | None = None) -> list[AuditRow]:
    if before is not None and not is_id(before):
        raise BadCursor(before)
    return [AuditRow(*row) for row in tx.execute(tx.sql.LIST_AUDIT, {"limit": limit, "before": before or LAST_ID})]


def add_token(tx: Transaction, token: Token) -> bool:
    row = {**asdict(token), "scopes": as_json(token.scopes), "now": tx.now}
    return tx.execute(tx.sql.ADD_TOKEN, row).rowcount > 0


def token(tx: Transaction, hash: str) -> Token | None:
    row = tx.execute(tx.sql.TOKEN, {"hash": hash}).fetchone()
    return _token(*row) if row else None


def tokens(tx: Transaction) -> list[Token]:
    return [_token(*row) for row in tx.execute(tx.sql.TOKENS)]


def drop_token(tx: Transaction, name: str) -> bool:
    return tx.execute(tx.sql.DROP_TOKEN, {"name": name}).rowcount > 0


def _token(hash: str, name: str, scopes: str, tenant: str, expires_at: int | None, created_at: int) -> Token:
    """Scopes that were broken by hand allow nothing, and do not keep others from logging in."""
    return Token(hash, name, codec.decode_as(scopes, tuple[str, ...]) or (), tenant, expires_at, created_at)


def start(tx: Transaction, operation: Operation) -> None:
    tx.execute(tx.sql.START_OPERATION, {**asdict(operation), "now": tx.now})


def resume(tx: Transaction, operation: Operation) -> bool:
    row = {"id": operation.id, "seen": operation.updated_at, "now": tx.now}
    return tx.execute(tx.sql.RESUME_OPERATION, row).rowcount > 0


def fail(tx: Transaction, id: str, error: str) -> None:
    tx.execute(tx.sql.FAIL_OPERATION, {"id": id, "error": error, "now": tx.now})


def position(tx: Transaction, id: str) -> str | None:
    """How far it is, locked until we commit; None: it has ended."""
    row = tx.execute(tx.sql.LOCK_OPERATION, {"id": id}).fetchone()
    return row[0] if row else None


def operation(tx: Transaction, id: str) -> Operation | None:
    row = tx.execute(tx.sql.OPERATION, {"id": id}).fetchone() if is_id(id) else None
    return Operation(*row) if row else None


def operations(tx: Transaction, limit: int) -> list[Operation]:
    return [Operation(*row) for row in tx.execute(tx.sql.OPERATIONS, {"limit": limit})]


def insert_once(
    store: SQLStore[Any], tenant: str, key: str, hash: str, jobs: Sequence[NewJob]
) -> tuple[list[Job], bool]:
    def steps(tx: Transaction, how: Insert) -> tuple[list[Job], bool]:
        if (found := answered(tx, tenant, key, hash, jobs)) is not None:
            return found, False
        stored = store._insert(tx, jobs, how)
        if [job.id for job in stored] != [job.id for job in jobs]:
            correct_answer(tx, tenant, key, stored)
        return stored, True

    database: Connections = store.database
    try:
        return database.write("insert", steps, enqueue.insert)
    except CommitUnknown:
        stored, _ = database.write("insert", steps, enqueue.insert)  # if it was committed, this finds the jobs
        return stored, True
    except (StoreRefused, JobNotFound):  # as in insert
        return database.write("insert", steps, enqueue.insert_again)


def answered(tx: Transaction, tenant: str, key: str, hash: str, jobs: Sequence[NewJob]) -> list[Job] | None:
    """The jobs that an earlier request with this key stored. None: it is the first, and holds the key now."""
    row = {"tenant": tenant, "key": key, "hash": hash, "ids": as_json([job.id for job in jobs]), "now": tx.now}
    if tx.execute(tx.sql.TAKE_REQUEST, row).rowcount:
        return None
    before, ids = tx.execute(tx.sql.REQUEST, {"tenant": tenant, "key": key}).fetchone()
    if before != hash:
        raise RequestDiffers(key)
    return [job for id in codec.decode(ids) if (job := read.get(tx, id))]


def correct_answer(tx: Transaction, tenant: str, key: str, stored: Sequence[Job]) -> None:
    """A dedupe key has answered with other jobs than the request asked for."""
    tx.execute(tx.sql.SET_REQUEST, {"tenant": tenant, "key": key, "ids": as_json([job.id for job in stored])})


def prune(tx: Transaction) -> None:
    tx.execute(tx.sql.PRUNE_AUDIT, {"oldest": first_id_of(tx.now - AUDIT_KEPT)})
    tx.execute(tx.sql.PRUNE_OPERATIONS, {"oldest": first_id_of(tx.now - OPERATIONS_KEPT)})
    tx.execute(tx.sql.PRUNE_REQUESTS, {"before": tx.now - REQUESTS_KEPT})
