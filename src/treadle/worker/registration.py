"""What a worker tells the database about itself when it registers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from treadle.registry import JobType
from treadle.stores.base import WorkerRow
from treadle.version import __version__
from treadle.worker.chores import declare_schedules

if TYPE_CHECKING:
    from treadle.app import Treadle
    from treadle.worker.worker import Worker


def publish_types(app: Treadle) -> dict[str, JobType]:
    """Say how its types are run, for producers that know only their names, and for the limits. Return the types."""
    redact = app.redactor.published
    app.store.publish([job_type.published(redact) for job_type in app.registry.types.values()])
    return app.registry.types


def register(worker: Worker, host: Mapping[str, Any], id: str) -> None:
    """Store what others see of it, and what its code declares."""
    registry = worker.app.registry
    row = WorkerRow(
        id=id,
        name=worker.name,
        concurrency=worker.concurrency,
        queues=worker.queues,
        types=tuple(sorted(registry.types)),
        host=dict(host),
        version=__version__,
        schedules={name: new.spec for name, new in registry.schedules.items()},
    )
    worker.store.register(row)
    declare_schedules(worker.app)


def timeouts_of(types: Mapping[str, JobType]) -> dict[str, int | None]:
    """The timeout of each type, for its leases. A child may take long to start, and counts for itself."""
    return {name: None if each.run == "process" else each.policy.timeout for name, each in types.items()}
