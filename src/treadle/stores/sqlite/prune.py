"""What a prune deletes: jobs that ended long ago, by their ids, or all between two ids, which is faster."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import compress
from typing import Any, NamedTuple

from treadle.stores.base import LAST_PRUNED
from treadle.stores.sqlite import insert_claim_settle_sql as sql
from treadle.stores.sqlite.sql import SQLiteStatements
from treadle.stores.transaction import NOTHING, Moved, Transaction

MOST_BY_ID = 2_500
"""Jobs that one transaction deletes of a file if they are looked up one by one. More would keep other writers waiting;
with attempts, steps or logs, more than LAST_PRUNED would."""


class NotOld(Exception):
    """What was found before the transaction began can no longer be pruned."""


class Prunable(NamedTuple):
    """Jobs that ended long ago."""

    n: int = 0
    kinds: Moved = ()
    these: Mapping[str, Any] = NOTHING
    """What statements need: their ids, the first and the last of those, and when they ended at the latest."""


class PruneTransaction(Transaction):
    """A transaction on SQLite's tables that prunes."""

    sql = SQLiteStatements()

    def prune(self, old: Mapping[str, Any]) -> Moved:
        return self.prune_found(self.prunable(old))

    def prunable(self, old: Mapping[str, Any], before: bool = False) -> Prunable:
        """`before`: it is a transaction of its own that looks for them."""
        if not before:
            return self._prunable_by_id(old)
        by_id = {**old, "limit": min(old["limit"], MOST_BY_ID)}
        found = self._prunable_between(old) or self._prunable_by_id(by_id)
        if found.n > LAST_PRUNED and any(self.execute(sql.HAS_HISTORY, found.these).fetchone()):
            return self.prunable({**old, "limit": LAST_PRUNED}, before)
        return found

    def _prunable_by_id(self, old: Mapping[str, Any]) -> Prunable:
        if not (rows := self.execute(sql.PRUNABLE_IDS, old).fetchall()):
            return Prunable()
        kinds, ids, first, last = zip(*((row[:4], row[4][1:-1], *row[5:]) for row in rows), strict=True)
        these = {**old, "ids": f"[{','.join(ids)}]", "first": min(first), "last": max(last)}
        return Prunable(sum(kind[3] for kind in kinds), kinds, these)

    def _prunable_between(self, old: Mapping[str, Any]) -> Prunable | None:
        """So many as are asked for, if they are at least half of all jobs between two ids, and no job waits for one."""
        first, last = self.execute(sql.OLD_BETWEEN, old).fetchone() or (None, None)
        if last is None:
            return None
        these, n = {**old, "first": first, "last": last}, old["limit"]
        kinds = self.execute(sql.KINDS_BETWEEN, these).fetchall()
        is_all = n == sum(kind[3] for kind in kinds) and self.value(sql.JOBS_BETWEEN, these) <= 2 * n
        *_, has_waits = self.execute(sql.HAS_HISTORY, these).fetchone()
        return Prunable(n, kinds, these) if is_all and not has_waits else None

    def prune_found(self, found: Prunable, *, before: bool = False) -> Moved:
        """`before`: they were found before this transaction began. Raises NotOld if one may be needed again."""
        if not found.n:
            return ()
        has_history = self.execute(sql.HAS_HISTORY, found.these).fetchone()
        may_be_needed = before and has_history[-1]
        history: tuple[str, ...]
        if "ids" in found.these:
            delete = sql.DELETE_UNNEEDED if may_be_needed else sql.DELETE_OLD, self.sql.DELETE_JOBS
            history = self.sql.DELETE_ATTEMPTS, self.sql.DELETE_STEPS, self.sql.DELETE_LOGS, self.sql.DELETE_WAITS
        elif may_be_needed:
            raise NotOld
        else:
            delete, history = (sql.DELETE_OLD_BETWEEN, sql.DELETE_JOBS_BETWEEN), sql.DELETE_HISTORY_BETWEEN
        for statement in delete:
            deleted = self.execute(statement, found.these)
            if before and deleted.rowcount != found.n:  # to read it may take a round trip
                raise NotOld
        for statement in compress(history, has_history):
            self.execute(statement, found.these)
        return found.kinds
