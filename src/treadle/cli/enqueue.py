"""`treadle enqueue`: store a job by the name of its type."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Collection, Generator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from treadle import codec, units, views
from treadle.app import Treadle
from treadle.cli import completion
from treadle.cli.app_loader import database
from treadle.cli.base import AT, Shared, command, duration, moment, reveals
from treadle.cli.errors import CommandError, explained
from treadle.cli.output import AFTER_HOLDER, pretty
from treadle.dedupe import MODES, UNTIL, Dedupe
from treadle.diagnosis import alive, why_unserved
from treadle.errors import JobFailed, JobNotFound, NotJSON, ResultTimeout, StoreUnusable
from treadle.job import Job, Status
from treadle.redact import Redactor
from treadle.waits import IF_FAILED

HELP = """Store a job of TYPE, and print its id.

KEY=VALUE is a text, KEY:=VALUE any JSON value. A JSON object is the whole payload, or a part of it:

    treadle enqueue send_mail to=ada@example.org retries:=3 cc:='["b@example.org"]'
    treadle enqueue send_mail '{"to": "ada@example.org", "retries": 3}'

With --app, the app checks the payload."""


AFTER = "Start it when this job has completed; may be repeated."


@command("enqueue", help=HELP.replace("    treadle", "\b\n    treadle", 1))
@click.argument("type", shell_complete=completion.types)
@click.argument("pairs", metavar="[KEY=VALUE | KEY:=JSON | JSON]...", nargs=-1)
@click.option("--in", "delay", type=duration, help="Run it after this time: 90, 5m, 1h30m.")
@click.option("--at", "run_at", type=moment, metavar="TIME", help=AT)
@click.option("--start-within", type=duration, help="Cancel it if it is not started by then: 300, 5m.")
@click.option("--priority", type=int, help="Higher runs first.")
@click.option("--queue", shell_complete=completion.queues, help="The queue; else the one of its type.")
@click.option("--tenant", help="Whose job it is.")
@click.option("--subject", help="What it is about.")
@click.option("--dedupe", metavar="KEY", help="Store nothing if a job with this key waits or runs.")
@click.option("--dedupe-mode", type=click.Choice(MODES), help="What to do if a job with this key waits or runs.")
@click.option("--dedupe-until", type=click.Choice(UNTIL), help="How long it holds the key.")
@click.option("--dedupe-wait", type=duration, help="debounce: start after this time without a call.")
@click.option("--dedupe-at-most", type=duration, help="debounce: start this long after the first call.")
@click.option("--dedupe-period", type=duration, help="throttle: one job in this time.")
@click.option("--max-attempts", type=int, help="How often it may run.")
@click.option("--after", metavar="ID", multiple=True, shell_complete=completion.ids, help=AFTER)
@click.option(
    "--if-failed", type=click.Choice(IF_FAILED), help="If one of those fails: hold it (default), cancel or run it."
)
@click.option("--wait", is_flag=True, help="Wait until it ends, and print its result.")
@click.option("--timeout", type=duration, default="60s", show_default=True, help="How long to wait.")
@reveals
def enqueue(shared: Shared, /, type: str, pairs: tuple[str, ...], wait: bool, timeout: float, **options: Any) -> None:
    treadle = database(shared, create=True)
    given = with_dedupe({name: value for name, value in options.items() if value not in (None, ())})
    if parents := given.get("after"):
        given["after"] = [_parent(treadle, parent) for parent in parents]
    _warn_of_unknown_type(shared, type, treadle.registry.types)
    with texts_explained():
        request = treadle.request(type, parse_payload(pairs), **given)
    [job] = treadle.enqueue_many([request])
    if job.id == request.id:
        # A producer may enqueue without the right to write the audit.
        shared.audit(treadle.store, "enqueue", job.id, may_fail=True)
    _report(shared, treadle, job, existed=job.id != request.id)
    if wait:
        _wait(shared, treadle, job, timeout)
    elif not shared.printed_json(views.job(job, shared.redactor(treadle))):
        shared.print(job.id)


def _parent(app: Treadle, text: str) -> str:
    with suppress(JobNotFound):  # the request says what is wrong with it
        return completion.find_id(app, text)
    return text


def with_dedupe(options: dict[str, Any]) -> dict[str, Any]:
    """The options of `td.enqueue`, where those of the key are one."""
    names = [name for name in options if name.startswith("dedupe_")]
    rule = {name.removeprefix("dedupe_"): options.pop(name) for name in names}
    if not rule:
        return options
    if "dedupe" not in options:
        raise CommandError("--dedupe-… needs --dedupe KEY", "A mode says what happens if another job holds the key.")
    return {**options, "dedupe": Dedupe(options["dedupe"], **rule)}


def parse_payload(pairs: tuple[str, ...]) -> dict[str, Any]:
    payload: dict[str, Any] = {}
    for pair in pairs:
        part = _object(pair) if pair.lstrip().startswith("{") else _key_and_value(pair)
        for name in part.keys() & payload.keys():
            raise CommandError(f"{name!r} is given twice", "A payload has each key once.")
        payload |= part
    return payload


def _object(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        cause = f"What begins with {{ must be a JSON object, and this is none ({error})."
        way_out = """quote it: '{"to": "ada@example.org"}', or write KEY=TEXT or KEY:=JSON"""
        raise CommandError(f"{text!r} is not a valid argument", cause, next=way_out) from None


def _key_and_value(pair: str) -> dict[str, Any]:
    key, equals, value = pair.partition("=")
    name = key.removesuffix(":")
    if not equals or not name:
        cause = "Write KEY=TEXT, KEY:=JSON, or a JSON object."
        raise CommandError(f"{pair!r} is not a valid argument", cause, next=f"try {pair.strip('=:')}=…")
    return {name: _json(pair, value) if key.endswith(":") else value}


@contextmanager
def texts_explained() -> Generator[None]:
    """If a text is refused where the handler takes something else, say how to write that."""
    try:
        yield
    except NotJSON as error:
        name, text = error.where.rpartition(" ")[2], error.value
        if not isinstance(text, str):
            raise
        problem, cause = error.way_out.partition("; ")[0], "KEY=VALUE is a text, and KEY:=JSON any JSON value."
        way_out = shlex.quote(f"{name}:={text}") if _is_json(text) else f"{name}:=JSON"
        raise CommandError(f"{error.where}={text!r} does not fit: {problem}", cause, next=f"write {way_out}") from None


def _is_json(text: str) -> bool:
    with suppress(msgspec.DecodeError):
        msgspec.json.decode(text)
        return True
    return False


def _warn_of_unknown_type(shared: Shared, type: str, known: Collection[str]) -> None:
    """A producer may know types that its app does not declare: the job is stored."""
    if known and type not in known:
        near = difflib.get_close_matches(type, known)
        way_out = f"did you mean {' or '.join(near)}?" if near else f"its types are: {', '.join(sorted(known))}"
        shared.warn(f"the app has no type {type}", way_out)


def _json(pair: str, text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        cause = f"JSON must follow :=, and this is not JSON ({error}). In a shell, quote it: 'tags:=[\"a\"]'."
        way_out = "for plain text write = instead of :="
        raise CommandError(f"{pair!r} is not a valid argument", cause, next=way_out) from None


def _report(shared: Shared, app: Treadle, job: Job, *, existed: bool) -> None:
    now = datetime.now(UTC)
    when = f"due {AFTER_HOLDER if job.waits_for_key else units.format_relative(max(job.run_at, now), now)}"
    when = "blocked until its parents have ended" if job.status is Status.BLOCKED else when
    how = f"is already {job.status}: it has the same key" if existed else f"stored in queue {job.queue}, {when}"
    shared.note(("✓ ", "green"), f"{job.type} {job.id} {how}", (f"\n  in {app.store.where}", "dim"))
    try:
        workers = alive(app.workers(), app.store.now())
    except StoreUnusable:  # a producer may enqueue without the right to see workers
        return
    for reason in () if job.status.is_final else why_unserved(job, workers):
        shared.warn(f"{reason.text}; the job waits", reason.way_out)


def _wait(shared: Shared, app: Treadle, job: Job, timeout: float) -> None:
    if timeout <= 0:
        raise CommandError(f"--timeout {timeout:g} leaves no time to wait", "The duration must be more than 0.")
    hide = shared.redactor(app)
    try:
        with shared.err.status(f"waiting for {job.type}"):
            result = codec.plain(app.result(job.id, timeout=timeout))
    except (JobFailed, ResultTimeout) as error:
        if _printed_json(shared, app, job.id, hide):
            click.get_current_context().exit(explained(error).exit_code)
        if isinstance(error, JobFailed) and error.error:
            raise JobFailed(error.id, error.status, hide.text(error.error)) from None
        raise
    if not _printed_json(shared, app, job.id, hide):
        click.echo(pretty(hide.value(result)))


def _printed_json(shared: Shared, app: Treadle, id: str, hide: Redactor) -> bool:
    job = app.get(id) if shared.json else None
    return shared.printed_json(job and views.job(job, hide))
