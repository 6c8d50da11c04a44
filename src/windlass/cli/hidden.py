"""What looks like a secret is printed only if that is asked for: `--reveal`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import msgspec

from windlass.cli.base import Shared
from windlass.job import Attempt, Job
from windlass.redact import redact, redact_text
from windlass.why import Reason, Why


def _remember(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    ctx.ensure_object(Shared).reveal = value


def reveals(function: Callable[..., Any]) -> Callable[..., Any]:
    """A command that prints jobs takes --reveal."""
    help = "Print passwords, tokens and their like, too."
    return click.option("--reveal", is_flag=True, expose_value=False, callback=_remember, help=help)(function)


def job(shared: Shared, job: Job) -> Job:
    """As it may be printed."""
    if shared.reveal:
        return job
    changes = {"payload": redact(job.payload), "result": redact(job.result), "error": text(shared, job.error)}
    return msgspec.structs.replace(job, **changes)


def attempt(shared: Shared, attempt: Attempt) -> Attempt:
    changes = {"error": text(shared, attempt.error), "traceback": text(shared, attempt.traceback)}
    return msgspec.structs.replace(attempt, **changes)


def why(shared: Shared, why: Why) -> Why:
    """A reason may tell the last error."""
    return msgspec.structs.replace(why, reasons=tuple(_reason(shared, reason) for reason in why.reasons))


def _reason(shared: Shared, reason: Reason) -> Reason:
    data = {name: text(shared, value) if isinstance(value, str) else value for name, value in reason.data.items()}
    return msgspec.structs.replace(reason, text=text(shared, reason.text), data=data)


def text(shared: Shared, text: str | None) -> str | None:
    return text if text is None or shared.reveal else redact_text(text)
