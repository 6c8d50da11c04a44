"""What BullMQ cannot promise: refused when a worker starts, if a declaration or a handler shows it, or else in use."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NoReturn

from treadle.contrib.bullmq.handler_code import calls
from treadle.dedupe import read_rule
from treadle.errors import BadOption, TreadleError
from treadle.job import NewJob
from treadle.registry import JobType

Without = Collection[str]
"""The promises that you do without, of GIVEN_UP."""

GIVEN_UP = {
    "limits": "any number of them may run, and RateLimited delays only the job that raises it",
    "fair": "tenants do not take turns",
    "schedules": "nothing fires them",
    "reconcile": "already_done is never called",
    "transactions": "ctx.transaction() commits your rows; its follow-ups and the completion come after that commit",
}
"""What each of them means for those who do without."""

NO_TRANSACTION = "cannot commit with your rows"
TRANSACTIONS = {("ctx", "transaction"), ("ctx", "atransaction")}
UNKNOWN = {("td", "signal"), ("td", "asignal"), ("td", "batch")}
UNKNOWN |= {("ctx", prefix + name) for name in ("step", "sleep", "wait_for", "gather") for prefix in ("", "a")}
"""What a handler may call, and BullMQ has nothing for."""


class UnsupportedByBullMQ(TreadleError):
    """A type declares, or a handler or an enqueue uses, what BullMQ cannot promise."""

    def __init__(self, what: str, reason: str, way_out: str) -> None:
        super().__init__(f"{what}: BullMQ {reason}; {way_out}")


def checked_without(without: Without) -> frozenset[str]:
    for name in without:
        if name not in GIVEN_UP:
            raise BadOption("without", name, f"choose among {', '.join(GIVEN_UP)}")
    return frozenset(without)


def refuse_types(types: Iterable[JobType], without: Without) -> None:
    """Raise for the first type that declares what BullMQ cannot promise."""
    for one in types:
        if one.run == "process":
            _refuse(f"type {one.name!r} has run='process'", "has no child processes in Python", "leave run out")
        for what, declared, reason in _DECLARED:
            if declared(one) and what not in without:
                _refuse(f"type {one.name!r} declares {what}", reason, do_without(what))
        refuse_queue(one.policy.queue)


def refuse_handlers(types: Iterable[JobType], without: Without) -> None:
    """Raise for the first handler whose code uses what BullMQ cannot promise. Functions that it calls are not read:
    what they use is refused when they run."""
    for one in types:
        for of, name in calls(one.handler, takes_context=one.signature.takes_context):
            what = f"type {one.name!r} uses {of}.{name}()"
            if (of, name) in TRANSACTIONS and "transactions" not in without:
                _refuse(what, NO_TRANSACTION, do_without("transactions"))
            if (of, name) in UNKNOWN:
                refuse_use(what)


def refuse_queue(queue: str) -> None:
    if ":" in queue:
        _refuse(f"queue {queue!r}", "has no names with a colon", "give the queue another name")


def refuse_request(job: NewJob, without: Without) -> None:
    """Raise for a request that needs what BullMQ cannot promise. Nothing is stored."""
    refuse_queue(job.queue)
    rule = read_rule(job.dedupe_rule) if job.dedupe is not None else None
    used = {
        "after=": bool(job.after),
        "start_within=": job.start_within is not None,
        "a batch": job.batch is not None,
        "its schedule": job.schedule is not None,
        "a dedupe mode other than 'return'": rule is not None and (rule.mode, rule.until) != ("return", "ended"),
    }
    for what in (name for name, is_used in used.items() if is_used):
        _refuse(f"a request for {job.type!r} has {what}", "cannot keep that promise", "leave it out")
    if job.fair and "fair" not in without:
        _refuse(f"type {job.type!r} declares fair", "does not let tenants take turns", do_without("fair"))


def do_without(what: str) -> str:
    return f"leave it out, or do without: --without {what}, or without=[{what!r}] ({GIVEN_UP[what]})"


def refuse_use(what: str) -> NoReturn:
    """Raise for what only the call of a handler shows."""
    _refuse(what, "has no such thing", "run this type with `treadle worker`")


def _refuse(what: str, reason: str, way_out: str) -> NoReturn:
    raise UnsupportedByBullMQ(what, reason, way_out)


_DECLARED: Sequence[tuple[str, Callable[[JobType], object], str]] = [
    (
        "limits",
        lambda one: one.policy.limits != "[]" or one.policy.concurrency is not None,
        "cannot limit a type over all workers",
    ),
    ("fair", lambda one: one.policy.fair, "does not let tenants take turns"),
    ("schedules", lambda one: one.schedules, "would fire them apart from the database"),
    ("reconcile", lambda one: one.already_done, "does not ask which work exists already"),
]


class Refused(list[Any]):
    """Stands for what a handler collects, and takes nothing."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self._what = what

    def append(self, item: object) -> NoReturn:
        refuse_use(self._what)

    def extend(self, items: Iterable[object]) -> NoReturn:
        refuse_use(self._what)


class RefusedSteps:
    """Stands for what stores the steps of a handler."""

    def steps_of(self, run: object) -> NoReturn:
        refuse_use("steps and waits (ctx.step, ctx.sleep, ctx.wait_for, ctx.gather)")
