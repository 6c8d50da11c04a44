"""`treadle bullmq-worker`: runs the jobs of BullMQ's queues with the handlers of an app."""

from __future__ import annotations

import logging
import os
from typing import Any, Literal

import click

from treadle import units
from treadle.cli import output
from treadle.cli.app_loader import app_name, load_app
from treadle.cli.base import Shared, command, duration, takes_app
from treadle.cli.errors import refuse_json, refuse_windows
from treadle.cli.worker import LOG_FORMAT, end_process

log = logging.getLogger("treadle")

HELP = """Run jobs from Redis with the handlers of APP, as a worker of BullMQ.

It needs the extra `bullmq`. What BullMQ cannot promise is refused; --without accepts that."""
QUEUES = "Only from this queue; may be repeated. Default: those of the app's types."
LOCK = "After this time without its worker, a job can be found by another."
WITHOUT = "Do without this promise, of limits, fair, schedules, reconcile and transactions; may be repeated."


@command("bullmq-worker", help=HELP, prints_data=False)
@takes_app
@click.option("--redis", required=True, metavar="URL", help="Where Redis is, as in redis://127.0.0.1:6379/0.")
@click.option(
    "-c", "--concurrency", type=click.IntRange(1), default=10, show_default=True, help="Jobs at once, of each queue."
)
@click.option("-Q", "--queues", multiple=True, metavar="QUEUE", help=QUEUES)
@click.option("--grace", type=duration, default="30s", show_default=True, help="How long running jobs may take to end.")
@click.option("--lock", type=duration, default="30s", show_default=True, help=LOCK)
@click.option("--prefix", default="bull", show_default=True, help="Of the keys in Redis.")
@click.option("--without", multiple=True, metavar="PROMISE", help=WITHOUT)
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True, help=LOG_FORMAT)
@click.option("-v", "--verbose", count=True, help="Log more; -vv even more.")
def bullmq_worker(
    shared: Shared, /, redis: str, log_format: Literal["text", "json"], verbose: int, **settings: Any
) -> None:
    from treadle.contrib.bullmq import BullWorker

    refuse_json(shared, "bullmq-worker", "Its log goes to stderr.", "for what is in Redis, ask BullMQ's own tools")
    refuse_windows("treadle bullmq-worker")
    app = load_app(shared, app_name(shared))
    output.set_up_logs(verbose, app.registry.types.values(), log_format)
    worker = BullWorker(app, redis, **settings)
    parts = [units.plural(len(app.registry), "type"), f"queues {', '.join(worker.queues)}", f"pid {os.getpid()}"]

    def ready() -> None:
        if log_format == "json":
            log.info("a worker of BullMQ: %s", ", ".join(parts))
        else:
            shared.note(("a worker of BullMQ", "bold"), " · ", " · ".join(parts))

    end_process(worker.run(ready))
