"""Every error that you can meet: one class per cause. Each text has the value and the next step."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from typing import Any

from treadle.error_text import hashed, hint, nearest, shown
from treadle.program import as_called
from treadle.redact import without_password


class TreadleError(Exception):
    """The base of all errors that treadle raises."""

    def __str__(self) -> str:
        return as_called(super().__str__())


# Declaring jobs


class BadOption(TreadleError, ValueError):
    """An option has an invalid value."""

    def __init__(self, option: str, value: object, way_out: str) -> None:
        super().__init__(f"{option}={shown(value)}: {way_out}")
        self.option, self.value = option, value


class UnknownOption(TreadleError, TypeError):
    """An option that does not exist."""

    def __init__(self, option: str, known: Collection[str], way_out: str = "") -> None:
        all_known = f"known options: {', '.join(sorted(known))}"
        meant = hint(option, known, f"{all_known}; {way_out}" if way_out else all_known)
        super().__init__(f"unknown option {option!r}; {meant}")
        self.option = option


class BadHandler(TreadleError, TypeError):
    """A function that cannot be a handler, because a JSON object cannot fill its parameters."""

    def __init__(self, name: str, problem: str, way_out: str) -> None:
        super().__init__(f"{name} cannot be a job: {problem}; {way_out}")
        self.name = name


class DuplicateType(TreadleError, ValueError):
    """A second handler for the same type."""

    def __init__(self, type: str, first: str, second: str) -> None:
        way_out = f"give {second} another type: @td.job(type={type + '_2'!r})"
        super().__init__(f"type {type!r} is registered already, by {first}; {way_out}")
        self.type = type


class UnknownType(TreadleError, LookupError):
    """A type without a handler in this process."""

    def __init__(self, type: str, known: Collection[str]) -> None:
        meant = hint(type, known, "declare one with @td.job, or import the module that does")
        super().__init__(f"no handler for type {type!r}; {meant}")
        self.type = type


class UnknownEvent(TreadleError, ValueError):
    """A hook for an event that does not exist."""

    def __init__(self, event: object, known: Collection[str]) -> None:
        meant = hint(event, known, f"known events: {', '.join(known)}")
        super().__init__(f"unknown event {shown(event)}; {meant}")
        self.event = event


# Enqueueing


class BadPayload(TreadleError, ValueError):
    """A payload that cannot be stored. Nothing was stored."""


class NotJSON(BadPayload):
    """A value that JSON would change."""

    def __init__(self, where: str, value: object, way_out: str, problem: str = "cannot be stored as JSON") -> None:
        super().__init__(f"{where}={shown(value)} {problem}: {way_out}")
        self.where, self.value, self.way_out = where, value, way_out


class PayloadTooLarge(BadPayload):
    """A payload or a result over the limit."""

    def __init__(self, type: str, size: int, limit: int, what: str = "payload") -> None:
        verb = "enqueue" if what == "payload" else "return"
        way_out = f"store the data elsewhere and {verb} a reference to it (a path, a row id)"
        super().__init__(f"the {what} of {type!r} is {size:,} bytes and the limit is {limit:,}; {way_out}")
        self.size, self.limit = size, limit


class PayloadTooDeep(BadPayload):
    """A payload or a result nested beyond the limit."""

    def __init__(self, type: str, limit: int, what: str = "payload") -> None:
        problem = f"the {what} of {type!r} is nested more than {limit} levels deep"
        super().__init__(f"{problem}; flatten it, or pass a reference")
        self.limit = limit


class BadArguments(BadPayload, TypeError):
    """Arguments that do not fit the handler's signature."""

    def __init__(self, type: str, problem: str, signature: str) -> None:
        super().__init__(f"{type}: {problem}; it takes {signature}")
        self.type = type


class KeyHeld(TreadleError):
    """A retry, or an enqueue that rejects, needs a dedupe key that another job holds. The text has its hash only: a key
    may be made of a payload."""

    def __init__(self, id: str, key: str, holder: str, *, is_new: bool = False) -> None:
        self.problem = "the job was not stored" if is_new else f"job {id} cannot be retried"
        held = f"its dedupe key ({hashed(key)}) is held by job {holder}"
        super().__init__(f"{self.problem}: {held}; wait for that one, or cancel it first: td.cancel({holder!r})")
        self.id, self.key, self.holder = id, key, holder


# Managing jobs


class JobNotFound(TreadleError, LookupError):
    """No job has this id."""

    def __init__(self, id: str) -> None:
        way_out = "td.jobs() lists the jobs that exist; old finished jobs are pruned"
        if not isinstance(id, str):  # pyright: ignore[reportUnnecessaryIsInstance]  (not every caller is checked)
            way_out = "an id is a text: pass job.id"
        super().__init__(f"no job has the id {shown(id)}; {way_out}")
        self.id = id


class WrongStatus(TreadleError):
    """The job's status does not allow this."""

    def __init__(self, verb: str, id: str, status: str, way_out: str) -> None:
        super().__init__(f"cannot {verb} job {id}: it is {status}; {way_out}")
        self.verb, self.id, self.status = verb, id, status


class ScheduleNotFound(TreadleError, LookupError):
    """No schedule has this name."""

    def __init__(self, name: str, tenant: str = "") -> None:
        whose = f" of tenant {shown(tenant)}" if tenant else ""
        super().__init__(f"no schedule{whose} has the name {shown(name)}; td.schedules.list() lists them")
        self.name, self.tenant = name, tenant


class BatchExists(TreadleError):
    """A batch needs a name that no other batch of its tenant has. Nothing was stored."""

    def __init__(self, name: str, tenant: str = "") -> None:
        whose = f" of tenant {shown(tenant)}" if tenant else ""
        way_out = "give the new one another name; to add to this one, use ctx.batch.add in a handler of a member"
        super().__init__(f"there is a batch{whose} with the name {shown(name)}; {way_out}")
        self.name, self.tenant = name, tenant


class BatchNotFound(TreadleError, LookupError):
    """No batch has this name."""

    def __init__(self, name: str, tenant: str = "") -> None:
        whose = f" of tenant {shown(tenant)}" if tenant else ""
        super().__init__(f"no batch{whose} has the name {shown(name)}; td.batches.list() lists them")
        self.name, self.tenant = name, tenant


class ScheduleDeclared(TreadleError):
    """A schedule that the code of a live worker declares cannot be deleted: the worker would bring it back."""

    def __init__(self, name: str) -> None:
        way_out = f"pause it: td.schedules.pause({name!r}), or remove it from the code and restart the workers"
        super().__init__(f"schedule {name!r} is declared by the code of a live worker; {way_out}")
        self.name = name


class BadCursor(TreadleError, ValueError):
    """A cursor that does not come from a page."""

    def __init__(self, cursor: object) -> None:
        super().__init__(f"cursor={shown(cursor)} is not a valid cursor; pass the `.next` of an earlier page")


class BadFilter(TreadleError, ValueError):
    """A filter that cannot be read."""

    def __init__(self, term: object, way_out: str, *, key: str = "", known: Collection[str] = ()) -> None:
        if known:
            near = nearest(key, known)
            way_out = f"{shown(key)} is not one of {', '.join(known)}" + (f"; did you mean {near}?" if near else "")
        super().__init__(f"cannot read {shown(term)}: {way_out}")
        self.term = term


class CountMoved(TreadleError):
    """The number of matching jobs is not the expected one. Nothing was changed."""

    def __init__(self, expected: int, found: int) -> None:
        super().__init__(f"expected {expected:,} matching jobs, found {found:,}; look again, then repeat")
        self.expected, self.found = expected, found


class RequestDiffers(TreadleError):
    """An idempotency key that an earlier, different request used. Nothing was stored."""

    def __init__(self, key: str) -> None:
        super().__init__(f"another request used the key {shown(key)}; send a new request with a new key")
        self.key = key


class ResultTimeout(TreadleError, TimeoutError):
    """The job did not end within the timeout."""

    def __init__(self, id: str, seconds: float, status: str) -> None:
        super().__init__(f"job {id} is still {status} after {seconds:g} s; wait longer, or see why: td.why({id!r})")
        self.id, self.status = id, status


class JobFailed(TreadleError):
    """`result` was called for a job that ended without one."""

    def __init__(self, id: str, status: str, error: str | None) -> None:
        super().__init__(f"job {id} {status}: {error or 'no error was recorded'}")
        self.id, self.status, self.error = id, status, error


class WaitsForItself(TreadleError):
    """A handler waits for a follow-up that is stored only when the handler has ended; or a transaction for its own."""

    def __init__(self, id: str, until: str = "the running job completes") -> None:
        problem = f"it is not stored until {until}, so waiting for it here would never end"
        way_out = "enqueue it with using(detached=True), or wait elsewhere"
        super().__init__(f"job {id}: {problem}; {way_out}")


# Running jobs


class LeaseLost(TreadleError):
    """The caller no longer holds the job: it was rescued, cancelled or claimed by another worker."""

    def __init__(self, id: str, number: int) -> None:
        effect = "nothing was written, and the current holder of the job decides"
        super().__init__(f"lease {number} of job {id} has ended; {effect}")
        self.id, self.number = id, number


class WorkerLost(TreadleError):
    """This worker was declared dead. It cannot claim or settle under its old id."""

    def __init__(self, worker: str) -> None:
        super().__init__(f"worker {worker} was declared dead: it sent no heartbeat; it drops its jobs and starts again")
        self.worker = worker


class WorkerQuiet(TreadleError):
    """Somebody wants this worker to claim nothing: `treadle workers quiet`."""

    def __init__(self, worker: str) -> None:
        super().__init__(f"worker {worker} is quiet; let it claim again: treadle workers resume {worker}")
        self.worker = worker


class BadStart(TreadleError, RuntimeError):
    """A worker that cannot be started or stopped in this way."""

    def __init__(self, problem: str, way_out: str) -> None:
        super().__init__(f"{problem}; {way_out}")


class NoSuchWorker(TreadleError, LookupError):
    """There is no worker with this id."""

    def __init__(self, worker: str) -> None:
        super().__init__(f"no worker {shown(worker)} is registered; list them: treadle workers ls")
        self.worker = worker


class UnknownLimit(TreadleError, LookupError):
    """No limit has this name."""

    def __init__(self, name: str, known: Collection[str]) -> None:
        some = ", ".join(sorted(known)[:20]) or "none; declare one with @td.job(limits=[Limit(…)])"
        super().__init__(f"no worker has published a limit {shown(name)}; {hint(name, known, f'there are {some}')}")
        self.name = name


class TransactionOver(TreadleError):
    """`ctx.transaction()` was used twice, or held for too long."""


class BadStep(TreadleError):
    """A step or a wait of a handler that is not possible here, or does not fit what an earlier run has stored."""

    def __init__(self, name: str, problem: str, way_out: str) -> None:
        super().__init__(f"step {shown(name)}: {problem}; {way_out}")
        self.name = name


# The database


class BadURL(TreadleError, ValueError):
    """A database URL that treadle cannot open."""

    def __init__(self, url: object, way_out: str) -> None:
        problem = f"{shown(url, with_password=False)} is not a database that treadle can open"
        super().__init__(f"{problem}: {without_password(way_out)}")
        self.url = url


class StoreUnusable(TreadleError):
    """The database cannot be used now: it cannot be reached or written, is full or damaged, or has no tables. Nothing
    was stored. Workers wait and try again."""

    def __init__(self, where: str, problem: str, way_out: str) -> None:
        super().__init__(f"{where}: {problem}; {way_out}")
        self.where, self.problem, self.way_out = where, problem, way_out


class StoreMoved(StoreUnusable):
    """`treadle copy` has moved the jobs to another database. Nothing was stored here."""

    def __init__(self, where: str, place: str) -> None:
        source = shlex.quote(where if "://" in where else f"sqlite:///{where}")
        way_out = f"use that one: Treadle({place!r}), or TREADLE_URL; to go back: treadle copy {source} --reopen"
        super().__init__(where, f"its jobs have moved to {place}", way_out)
        self.place = place


class CommitUnknown(StoreUnusable):
    """The connection broke during a commit. The commit may have happened."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(where, problem, "check whether it happened before you repeat it")


class StoreRefused(TreadleError, ValueError):
    """The database refused a value. Nothing was stored, and repeating it does not help."""

    def __init__(self, where: str, problem: str) -> None:
        way_out = "correct the value, or what refuses it if that is not treadle's: a trigger, a constraint"
        super().__init__(f"{where} refused it: {problem}; {way_out}")
        self.where, self.problem = where, problem


class StoreBusy(TreadleError, TimeoutError):
    """The database's write lock was held for longer than a caller waits. Nothing was stored."""

    def __init__(self, where: str, seconds: float, *, joins_transactions: bool = True) -> None:
        join = "pass it as connection=…" if joins_transactions else "use ctx.transaction() instead"
        way_out = f"if you have an open transaction, {join}, or commit it first; otherwise repeat it later"
        super().__init__(f"{where} was busy for {seconds:g} s; {way_out}")
        self.where, self.seconds = where, seconds


class SchemaTooNew(TreadleError):
    """A newer treadle has upgraded the database."""

    def __init__(self, where: str, found: int, known: int) -> None:
        super().__init__(f"{where} has schema {found} but this treadle supports up to {known}; upgrade treadle here")
        self.found, self.known = found, known


class SchemaTooOld(TreadleError):
    """The database must be upgraded before this treadle can use it."""

    def __init__(self, where: str, found: int, needed: int) -> None:
        super().__init__(f"{where} has schema {found} but this treadle needs {needed}; run: treadle db upgrade")
        self.found, self.needed = found, needed


class MissingExtra(TreadleError, ImportError):
    """A feature needs a package that is not installed: a database driver, the dashboard or OpenTelemetry."""

    def __init__(self, what: str, module: str, extra: str) -> None:
        super().__init__(f"{what} needs {module}, which is not installed; install it: pip install 'treadle[{extra}]'")


class BadConnection(TreadleError, TypeError):
    """`using(connection=…)` got a connection on which this store cannot enqueue."""

    def __init__(self, connection: Any, problem: str, way_out: str) -> None:
        super().__init__(f"connection={shown(connection, with_password=False)}: {problem}; {way_out}")


class BlocksTheLoop(UserWarning):
    """A call that blocks was made on a running event loop."""
