"""The names that users, examples and docs rely on. A change here is a change for them: see the changelog."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

import treadle
import treadle.errors
import treadle.testing
import treadle.web
from treadle.function import Enqueuer, JobFunction, Options

ERRORS = [
    "BadArguments",
    "BadConnection",
    "BadCursor",
    "BadFilter",
    "BadHandler",
    "BadOption",
    "BadPayload",
    "BadStart",
    "BadStep",
    "BadURL",
    "BatchExists",
    "BatchNotFound",
    "BlocksTheLoop",
    "CommitUnknown",
    "CountMoved",
    "DuplicateType",
    "JobFailed",
    "JobNotFound",
    "KeyHeld",
    "LeaseLost",
    "MissingExtra",
    "NoSuchWorker",
    "NotJSON",
    "PayloadTooDeep",
    "PayloadTooLarge",
    "RequestDiffers",
    "ResultTimeout",
    "ScheduleDeclared",
    "ScheduleNotFound",
    "SchemaTooNew",
    "SchemaTooOld",
    "StoreBusy",
    "StoreMoved",
    "StoreRefused",
    "StoreUnusable",
    "TransactionOver",
    "UnknownEvent",
    "UnknownLimit",
    "UnknownOption",
    "UnknownType",
    "WaitsForItself",
    "TreadleError",
    "WorkerLost",
    "WorkerQuiet",
    "WrongStatus",
]

NAMES = [
    "BadArguments",
    "Context",
    "Dedupe",
    "Event",
    "Fail",
    "Filter",
    "Job",
    "JobFailed",
    "JobNotFound",
    "KeyHeld",
    "Lease",
    "LeaseLost",
    "Limit",
    "NotJSON",
    "Rate",
    "RateLimited",
    "Registry",
    "ResultTimeout",
    "Retry",
    "Snooze",
    "Status",
    "StoreBusy",
    "Treadle",
    "TreadleError",
    "Why",
    "WrongStatus",
    "can_retry",
    "exponential",
    "fixed",
    "make_dedupe_key",
]

TESTING = ["ManualClock", "adrain", "assert_enqueued", "drain", "enqueued", "refute_enqueued", "temporary"]

WEB = ["SCOPES", "Principal", "asgi"]

TREADLE = [
    "lifespan",
    "middleware",
    "aattempts",
    "acancel",
    "aclaim",
    "aclone",
    "acount",
    "acounts",
    "acounts_by_state",
    "abacklog",
    "adelete",
    "adrain",
    "aenqueue",
    "aenqueue_many",
    "afailures",
    "aget",
    "aget_signal",
    "ajobs",
    "alatency",
    "alineage",
    "alogs",
    "apause",
    "apauses",
    "aproblems",
    "aprune",
    "aqueue_stats",
    "aquiet",
    "areconcile",
    "areschedule",
    "arescue",
    "aresult",
    "aresume",
    "aretry",
    "arun_now",
    "asgi",
    "asignal",
    "asteps",
    "atick",
    "attempts",
    "aunquiet",
    "ausage",
    "awaits",
    "awhy",
    "aworkers",
    "backlog",
    "batch",
    "batches",
    "bulk",
    "cancel",
    "claim",
    "clone",
    "close",
    "count",
    "counts",
    "counts_by_state",
    "delete",
    "drain",
    "draining",
    "enqueue",
    "enqueue_many",
    "failures",
    "get",
    "get_signal",
    "hooks",
    "include",
    "job",
    "jobs",
    "latency",
    "limits",
    "lineage",
    "logs",
    "on",
    "pause",
    "pauses",
    "problems",
    "prune",
    "queue_stats",
    "quiet",
    "reconcile",
    "redactor",
    "registry",
    "request",
    "reschedule",
    "rescue",
    "result",
    "resume",
    "retention",
    "retry",
    "run_now",
    "schedules",
    "signal",
    "steps",
    "store",
    "tick",
    "tracing",
    "unquiet",
    "usage",
    "waits",
    "why",
    "worker",
    "workers",
]

JOB = [
    "id",
    "type",
    "queue",
    "tenant",
    "subject",
    "payload",
    "priority",
    "status",
    "run_at",
    "attempts",
    "max_attempts",
    "snoozes",
    "worker_id",
    "created_at",
    "updated_at",
    "started_at",
    "completed_at",
    "error",
    "result",
    "progress",
    "dedupe_mode",
    "start_by",
    "waits_for_key",
    "schedule",
    "fired_at",
    "origin",
    "batch",
]

CONTEXT = [
    "state",
    "acomplete",
    "agather",
    "asleep",
    "astep",
    "atransaction",
    "attempt",
    "await_for",
    "batch",
    "cancelled",
    "complete",
    "fired_at",
    "gather",
    "id",
    "log",
    "max_attempts",
    "parents",
    "progress",
    "queue",
    "result",
    "sleep",
    "snoozes",
    "step",
    "subject",
    "tenant",
    "transaction",
    "type",
    "wait_for",
]

USING = [
    "after",
    "connection",
    "dedupe",
    "delay",
    "detached",
    "if_failed",
    "max_attempts",
    "priority",
    "queue",
    "run_at",
    "start_within",
    "subject",
    "tenant",
]

LEASE = [
    "acomplete",
    "aextend",
    "afail",
    "arelease",
    "asnooze",
    "complete",
    "deadline",
    "extend",
    "fail",
    "number",
    "release",
    "snooze",
]


def public(thing: Any) -> list[str]:
    return sorted(name for name in dir(thing) if not name.startswith("_"))


def test_treadle_exports_exactly_these_names() -> None:
    assert sorted(treadle.__all__) == sorted(NAMES)
    assert len(NAMES) <= 30  # names that users write and often catch; the rest is in its module
    assert all(hasattr(treadle, name) for name in treadle.__all__)


def test_treadle_testing_exports_exactly_these_names() -> None:
    assert sorted(treadle.testing.__all__) == sorted(TESTING)


def test_treadle_web_exports_exactly_these_names() -> None:
    assert sorted(treadle.web.__all__) == sorted(WEB)


def test_errors_has_exactly_these_and_all_except_the_warning_have_one_base() -> None:
    there = {n for n, e in vars(treadle.errors).items() if inspect.isclass(e) and issubclass(e, Exception)}
    assert there == set(ERRORS)
    for name in set(ERRORS) - {"BlocksTheLoop"}:
        assert issubclass(getattr(treadle.errors, name), treadle.TreadleError)


def test_an_app_has_exactly_these_names(treadle_url: str) -> None:
    assert public(treadle.Treadle(treadle_url)) == sorted(TREADLE)


def test_a_job_has_exactly_the_pinned_fields() -> None:
    assert sorted(treadle.Job.__struct_fields__) == sorted(JOB)


def test_a_context_a_lease_and_using_have_exactly_these_names() -> None:
    assert public(treadle.Context) == sorted(CONTEXT)
    assert public(treadle.Lease) == sorted(LEASE)
    assert sorted(Options.__annotations__) == sorted(USING)


def test_the_statuses_are_these() -> None:
    waiting, ended = ["pending", "blocked"], ["completed", "failed", "cancelled"]
    assert [status.value for status in treadle.Status] == [*waiting, "processing", *ended]


def test_every_method_that_waits_for_the_database_has_an_async_twin_with_the_same_parameters() -> None:
    for name in public(treadle.Treadle):
        method = getattr(treadle.Treadle, name)
        if not inspect.iscoroutinefunction(method):
            continue
        twin = getattr(treadle.Treadle, name[1:], None)
        assert name.startswith("a"), name
        assert twin, name
        ours, theirs = inspect.signature(method).parameters, inspect.signature(twin).parameters
        assert ours == theirs, name
        assert method.__name__ == name
        assert method.__doc__


def documented() -> Iterator[tuple[str, Any]]:
    """Every public name and its object, which needs a docstring."""
    for module in (treadle, treadle.testing, treadle.web):
        for name in module.__all__:
            if callable(getattr(module, name)):
                yield f"{module.__name__}.{name}", getattr(module, name)
    for owner in (
        treadle.Treadle, treadle.Context, treadle.Lease, treadle.Registry, treadle.testing.ManualClock,
        Enqueuer, JobFunction,
    ):  # fmt: skip
        for name, member in vars(owner).items():
            twin = name.startswith("a") and hasattr(owner, name[1:])
            if not name.startswith("_") and not twin and not isinstance(member, property):
                yield f"{owner.__name__}.{name}", member


@pytest.mark.parametrize(
    ("name", "thing"), list(documented()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_public_name_has_a_docstring(name: str, thing: Any) -> None:
    own = thing.__dict__.get("__doc__") if inspect.isclass(thing) else inspect.getdoc(thing)
    assert own, f"{name} has no docstring"
    first = own.strip().splitlines()[0]
    assert len(first) > 10
    assert not first.startswith(f"{thing.__name__}("), f"{name}: that is its signature, not what it does"


def test_the_version_is_the_installed_one() -> None:
    from importlib.metadata import version

    assert treadle.__version__ == version("treadle")
