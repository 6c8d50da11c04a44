"""The Treadle of a Django project: its database is one of `DATABASES`, and an enqueue joins an open `atomic()`."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar, cast

import django
from asgiref.sync import SyncToAsync, sync_to_async
from django.apps import apps
from django.db import connections
from django.db.transaction import TransactionManagementError

from treadle.app import Treadle
from treadle.batches import Batches
from treadle.clock import Duration, in_seconds
from treadle.context import Context, caller, current_run
from treadle.contrib.django.conf import BadSetting, bad_setting, conf, url_of
from treadle.contrib.django.store import store_on
from treadle.errors import JobNotFound, TreadleError, WaitsForItself
from treadle.function import Options
from treadle.job import Job, NewJob
from treadle.limit_changes import AppLimits
from treadle.results import id_of
from treadle.schedules import Schedules
from treadle.stores import open_store
from treadle.stores.base import Store
from treadle.worker.tick import TickReport

P = ParamSpec("P")
T = TypeVar("T")
IN_ATOMIC = (
    *("get", "jobs", "count", "counts", "counts_by_state", "attempts", "logs", "lineage", "why", "steps", "waits"),
    *("get_signal", "retry", "cancel", "delete", "run_now", "reschedule", "bulk", "pause", "resume", "pauses"),
)
"""The calls of `td` that are part of an open `atomic()`, with those of `td.batches`, `td.schedules` and `td.limits`:
they see what it has written, and commit with it. Another connection would not see it, and on SQLite would wait for it
in vain."""
TICK_IN_ATOMIC = (
    "td.tick() is inside atomic(), and its jobs run on connections of their own: they do not see what the block has"
    " written, or wait for it; call it after the block, or inside: transaction.on_commit(td.tick)"
)
_making = threading.RLock()
_joins: ContextVar[bool] = ContextVar("joins", default=False)
"""Whether such a call is under way, inside `atomic()`."""
in_callers_thread: ContextVar[bool] = ContextVar("in_callers_thread", default=False)
"""Whether jobs run in the thread of whoever drains them, who may be using its connections."""


def project_app() -> DjangoTreadle:
    """The one of this process. If nothing has set Django up, as in a child process, this does."""
    package = sys.modules["treadle.contrib.django"]
    if not apps.ready and not apps.loading:
        django.setup()
    with _making:
        if "td" not in vars(package):
            vars(package)["td"] = _made()
        made: DjangoTreadle = vars(package)["td"]
        return made


def _made() -> DjangoTreadle:
    """If the settings are wrong, one that takes declarations, and raises when its database is needed. Django imports
    all apps before it checks anything: an error there would be a traceback in place of what `manage.py check` says."""
    try:
        return DjangoTreadle(conf())
    except BadSetting as error:
        return DjangoTreadle({}, error)


class DjangoTreadle(Treadle):
    """A Treadle on the database `TREADLE["DATABASE"]`, "default" if it is not set.

    While tests run, its jobs are on the connection of the test, and roll back with it.
    """

    def __init__(self, given: Mapping[str, Any], problem: BadSetting | None = None) -> None:
        self.problem = problem
        """What is wrong with the settings. It is raised where the database is needed."""
        self.alias: str | None = None if problem or "URL" in given else given.get("DATABASE", "default")
        self._chosen: Store | None = None
        """By a URL, or by `treadle.testing.temporary`."""
        self._opened: Store | None = None
        """That of the alias. It is opened when it is used: tests change the settings of their databases."""
        options = {name.lower(): given[name] for name in ("RETENTION", "REDACT") if name in given}
        try:
            self.joined = None if self.alias is None else store_on(self.alias)
            """On Django's own connection: for tests, and for what is looked at and changed inside `atomic()`."""
            super().__init__(given.get("URL", "sqlite:///treadle.db"), **options)
        except TreadleError as error:
            raise bad_setting(error) from error
        self.batches, self.schedules = _part_in_atomic(Batches)(self), _part_in_atomic(Schedules)(self)
        self.limits = _part_in_atomic(AppLimits)(self)
        if "URL" not in given:
            self._chosen = None
        self.middleware(close_connections)
        self.hooks.around = old_connections_closed

    @property
    def store(self) -> Store:
        if self._chosen is not None:
            return self._chosen
        if self.in_test or _joins.get():
            assert self.joined is not None
            return self.joined
        if self._opened is None:
            if self.problem is not None:
                raise self.problem.with_traceback(None)
            assert self.alias is not None
            self._opened = open_store(url_of(self.alias))
            self._start_over()
        return self._opened

    @store.setter
    def store(self, store: Store) -> None:  # pyright: ignore[reportIncompatibleVariableOverride] (it is set by _use)
        self._chosen = store

    @property
    def in_test(self) -> bool:
        """Whether a test runs, and has not chosen another database."""
        return self.joined is not None and self._is_ours() and _is_testing()

    @property
    def runs_here(self) -> bool:
        """Whether a test runs, wherever its jobs are: handlers use models, on the connection of the test."""
        return self.alias is not None and _is_testing()

    def _is_ours(self) -> bool:
        """Whether the jobs are in a database of Django."""
        return self.alias is not None and self._chosen in (None, self.joined)

    def _is_atomic(self) -> bool:
        """Whether the caller is in an `atomic()` that a job belongs to.

        The one around a test does not count for a handler: what it enqueues is stored with its completion, as it is
        outside of tests.
        """
        if not self._is_ours():
            return False
        blocks = connections[str(self.alias)].atomic_blocks
        if current_run.get() is None:
            return bool(blocks)
        return any(not block._from_testcase for block in blocks)

    def _connection(self, options: Options) -> Any:
        if options.get("connection") is None and not options.get("detached") and self._is_atomic():
            return connections[str(self.alias)]
        return options.get("connection")

    async def _astore_jobs(self, jobs: Sequence[NewJob], options: Options) -> list[Job]:
        if self.in_test:  # in the thread of the test, whose connection it is
            stored: list[Job] = await sync_to_async(self._store_jobs)(jobs, options)
            return stored
        return await super()._astore_jobs(jobs, options)

    async def _to_thread(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        if self.in_test:  # as above
            answer: T = await sync_to_async(call)(*args, **kwargs)
            return answer
        return await super()._to_thread(call, *args, **kwargs)

    def _insert(self, jobs: Sequence[NewJob]) -> list[Job]:
        return self.store.insert(jobs) if self.in_test else super()._insert(jobs)

    def tick(self, *, max_jobs: int = 100, max_seconds: Duration = 10) -> TickReport:
        """`Treadle.tick`. In a test, it runs the jobs in this thread, on the connection of the test."""
        if self.runs_here:
            from treadle.contrib.django.testing import tick_here

            return tick_here(self, max_jobs, in_seconds(max_seconds))
        if self._is_atomic():
            raise TransactionManagementError(TICK_IN_ATOMIC)
        return super().tick(max_jobs=max_jobs, max_seconds=max_seconds)

    def _drained_here(self, raising: bool, max_jobs: int, max_seconds: float) -> TickReport | None:
        if not self.runs_here:
            return None
        from treadle.contrib.django.testing import drain_and_fire

        return drain_and_fire(self, raising, max_jobs, max_seconds)

    def result(self, job: Job[Any] | str, *, timeout: Duration = 60) -> Any:
        try:
            return super().result(job, timeout=timeout)
        except JobNotFound:
            if self._is_atomic() and self.get(id_of(job)) is not None:
                raise WaitsForItself(id_of(job), "your atomic() block commits") from None
            raise


def _is_testing() -> bool:
    """Whether Django's test environment is set up. It does not import `django.test`, which only tests need."""
    utils = sys.modules.get("django.test.utils")
    return hasattr(getattr(utils, "_TestState", None), "saved_data")


def _in_atomic(method: Any) -> Any:
    """The same, of `td` or of a part of it, on the connection of an open `atomic()`."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        app: DjangoTreadle = self if isinstance(self, DjangoTreadle) else self._app
        token = _joins.set(app.joined is not None and app._is_atomic())
        try:
            return method(self, *args, **kwargs)
        finally:
            _joins.reset(token)

    return call


def _part_in_atomic(part: type[T]) -> type[T]:
    """The class of a part of `td`, all of whose calls are part of an open `atomic()`."""
    plain = {name: call for name, call in vars(part).items() if inspect.isfunction(call) and not name.startswith("_")}
    joined = {name: _in_atomic(call) for name, call in plain.items() if not inspect.iscoroutinefunction(call)}
    return cast(type[T], type(part.__name__, (part,), joined))


for _name in IN_ATOMIC:
    setattr(DjangoTreadle, _name, _in_atomic(getattr(Treadle, _name)))


def close_connections(ctx: Context) -> Generator[None]:
    """The middleware: around each attempt."""
    with old_connections_closed():
        yield


@contextmanager
def old_connections_closed() -> Generator[None]:
    """Close the connections that are too old or broken, before and after it, as Django does around each request."""
    if in_callers_thread.get():  # who may be using them
        yield
        return
    is_on_loop = not isinstance(caller(), int)  # where the ORM has a thread for itself
    _close_outside_atomic()
    if is_on_loop:
        SyncToAsync.single_thread_executor.submit(_orm_thread.enter)
    try:
        yield
    finally:
        _close_outside_atomic()
        if is_on_loop:
            SyncToAsync.single_thread_executor.submit(_orm_thread.leave)


def _close_outside_atomic() -> None:
    """As `close_old_connections` of Django, which would also close one inside `atomic()`: its transaction would be
    discarded, and nothing would raise. While tests run, close all but those of the test's own thread: Django cannot
    drop a database in which a session is left."""
    in_test = _is_testing()
    if in_test and threading.current_thread() is threading.main_thread():
        return
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block:
            continue
        if in_test:
            connection.close()
        else:
            connection.close_if_unusable_or_obsolete()


class OrmThread:
    """The thread in which the ORM works for event loops. All that is under way there shares its connections: between
    two rows of `aiterator()`, others may begin and end. The methods run in that thread."""

    def __init__(self) -> None:
        self._users = 0

    def enter(self) -> None:
        self._users += 1
        self._close(others=self._users - 1)

    def leave(self) -> None:
        self._users -= 1
        self._close(others=self._users)

    def _close(self, others: int) -> None:
        """While others use them, close broken ones alone."""
        if not others:
            _close_outside_atomic()
            return
        for connection in connections.all(initialized_only=True):
            if connection.in_atomic_block or connection.connection is None:
                continue
            connection.health_check_done = False
            if connection.errors_occurred and not connection.is_usable():
                connection.close()


_orm_thread = OrmThread()
