"""The store of an app while it works for BullMQ: new jobs go to Redis, and nothing else is there."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from treadle.contrib.bullmq.producer import Bull
from treadle.contrib.bullmq.unsupported import NO_TRANSACTION, UnsupportedByBullMQ, do_without, refuse_use
from treadle.job import ClaimedJob, Job, NewJob
from treadle.outcome import Outcome
from treadle.stores.base import Store, TypePolicy


class BullStore:
    """Stores what handlers enqueue. What else they ask of a store raises UnsupportedByBullMQ."""

    dedupe_may_block = False

    def __init__(self, bull: Bull, own: Store) -> None:
        self._bull, self._own = bull, own
        self.where = f"BullMQ, beside {own.where}"

    def insert(self, jobs: Sequence[NewJob], connection: Any = None) -> list[Job]:
        """With a connection they are in the app's own database, where a relay finds them."""
        return self._bull.enqueue_many(jobs) if connection is None else self._own.insert(jobs, connection)

    def insert_groups(self, groups: Sequence[Sequence[NewJob]]) -> list[list[Job] | Exception]:
        return [self._inserted(group) for group in groups]

    def _inserted(self, jobs: Sequence[NewJob]) -> list[Job] | Exception:
        try:
            return self._bull.enqueue_many(jobs)
        except Exception as error:
            return error

    def policies(self) -> dict[str, TypePolicy]:
        return {}

    @contextmanager
    def transaction(self, claimed: ClaimedJob, outcome: Callable[[], Outcome]) -> Generator[Any]:
        """A transaction of the app's own database. The job ends after it, in Redis."""
        if "transactions" not in self._bull.without:
            what = f"type {claimed.type!r} uses ctx.transaction()"
            raise UnsupportedByBullMQ(what, NO_TRANSACTION, do_without("transactions"))
        with self._own.transaction(claimed, lambda: None) as connection:
            yield connection
            outcome()  # a result that cannot be stored rolls back, as ever

    def close(self) -> None:
        self._own.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        refuse_use(f"{name.replace('_', ' ')}, of the app's database")
