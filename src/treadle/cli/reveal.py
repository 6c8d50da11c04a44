"""What looks like a secret is printed only if that is asked for: `--reveal`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from treadle import views
from treadle.cli.base import Shared
from treadle.diagnosis import Why
from treadle.job import Attempt, Job


def _remember(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    ctx.ensure_object(Shared).reveal = value


def reveals(function: Callable[..., Any]) -> Callable[..., Any]:
    """A command that prints jobs takes --reveal."""
    help = "Print passwords, tokens and their like, too."
    return click.option("--reveal", is_flag=True, expose_value=False, callback=_remember, help=help)(function)


def job(shared: Shared, job: Job) -> Job:
    """As it may be printed."""
    return job if shared.reveal else views.job(job)


def attempt(shared: Shared, attempt: Attempt) -> Attempt:
    return attempt if shared.reveal else views.attempt(attempt)


def why(shared: Shared, why: Why) -> Why:
    return why if shared.reveal else views.why(why)
