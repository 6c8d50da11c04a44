"""`td.batch`, which stores a batch when its block ends, and `td.batches`, a look at all of them."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Self

import msgspec

from treadle import clock
from treadle.batch import Batch, BatchPage, NewBatch, checked_closing, member
from treadle.codec import as_json, read_cursor
from treadle.context import Run, current_run
from treadle.errors import BadOption, BatchExists
from treadle.group_commit import warn_if_on_loop
from treadle.job import NewJob
from treadle.results import WithTwins, twin
from treadle.settings import checked_name, wanted_name
from treadle.stores.user_connections import is_async, run_on_async

if TYPE_CHECKING:
    from treadle.app import Treadle

PAGE_LIMIT = 200
FIRST = (clock.LAST, "", "")
"""The cursor of the first page: no batch is made later."""


class NewBatchBlock:
    """A batch that is being made: the value of `with td.batch(…) as batch`, or of `async with`.

    It is stored when the block ends, with its members, in one transaction. If the block raises, nothing is stored.
    """

    def __init__(
        self, app: Treadle, name: str, then: NewJob | None, on_failure: NewJob | None, tenant: str, connection: Any
    ) -> None:
        if not checked_name("name", name):
            raise BadOption("name", name, "a batch needs a name")
        self.name, self.tenant = name, checked_name("tenant", tenant)
        self._app, self._connection = app, connection
        self._then = checked_closing("then", then, name, tenant)
        self._on_failure = checked_closing("on_failure", on_failure, name, tenant)
        self._jobs: list[NewJob] = []
        self._ended = False

    def add(self, request: NewJob, *more: NewJob) -> NewJob:
        """Add one request or several, and return the first of them. One whose dedupe key another job holds is not
        stored, and is no member."""
        if self._ended:
            way_out = f"the block of batch {self.name!r} has ended; a handler of a member can use ctx.batch.add"
            raise BadOption("add", request, way_out)
        new = [member(one, self.name, self.tenant) for one in (request, *more)]
        self._jobs += new
        return new[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        self._ended = True
        if kind is not None:
            return
        connection = self._app._connection({"connection": self._connection})
        with self._new() as new:
            if connection is None and (run := self._run()) is not None:
                self._refuse_taken()
                self._join(run, new)
                return
            if connection is None:
                warn_if_on_loop("its twin: async with td.batch(…)")
            self._app.store.insert_batch(new, connection)
        self._app._wake()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        self._ended = True
        if kind is not None:
            return
        insert, connection = self._app.store.insert_batch, self._connection
        with self._new() as new:
            if connection is None and (run := self._run()) is not None:
                await self._app._to_thread(self._refuse_taken)
                self._join(run, new)
            elif connection is None:
                await self._app._to_thread(insert, new)
            elif is_async(connection):
                await run_on_async(connection, lambda theirs: insert(new, theirs))
            else:
                insert(new, connection)
        self._app._wake()

    @contextmanager
    def _new(self) -> Generator[NewBatch]:
        """The batch, inside the `enqueuing` of the tracer if there is one."""
        tracing = self._app.tracing if self._jobs else None
        with nullcontext(self._jobs) if tracing is None else tracing.enqueuing(self._jobs) as jobs:
            run = current_run.get()
            jobs = jobs if run is None else self._app._subjobs(run, jobs)
            closing = {"then": self._then, "on_failure": self._on_failure}
            yield NewBatch(name=self.name, tenant=self.tenant, jobs=tuple(jobs), **closing)

    def _run(self) -> Run | None:
        """The running handler, if the batch is stored with its completion."""
        run = current_run.get()
        return run if run is not None and self._app._joins(run, {}) else None

    def _refuse_taken(self) -> None:
        """With the completion of a job, nobody could be told."""
        if self._app.store.batch(self.tenant, self.name) is not None:
            raise BatchExists(self.name, self.tenant)

    def _join(self, run: Run, new: NewBatch) -> None:
        if new.jobs:
            self._app._store_jobs(new.jobs, {})
        run.collecting.batches.append(msgspec.structs.replace(new, jobs=()))


class Batches(WithTwins):
    """The batches of an app. A name is unique for each tenant."""

    def __init__(self, app: Treadle) -> None:
        self._app = app

    def get(self, name: str, *, tenant: str = "") -> Batch | None:
        """The batch, with the exact counts of its members, or None."""
        return self._app.store.batch(tenant, wanted_name("batch", name))

    def list(self, tenant: str | None = None, *, limit: int = 50, cursor: str | None = None) -> BatchPage:
        """A page of batches, newest first. Iterate over it; `.next` is the cursor of the next page.

        Without `tenant`, those of all tenants are listed.
        """
        if not 1 <= limit <= PAGE_LIMIT:
            raise BadOption("limit", limit, f"from 1 to {PAGE_LIMIT}; for more, pass cursor=page.next")
        before = FIRST if cursor is None else read_cursor(cursor, tuple[int, str, str])
        found = self._app.store.batches(tenant, before, limit + 1)
        shown = found[:limit]
        last = shown[-1] if len(found) > limit else None
        at = None if last is None else (clock.from_datetime(last.created_at), last.tenant, last.name)
        return BatchPage(shown, None if at is None else as_json(at))

    # Async twins

    aget = twin(get)
    alist = twin(list)
