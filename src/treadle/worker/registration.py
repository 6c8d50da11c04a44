"""What a worker tells the database about itself when it registers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from treadle.declarations import spec_of
from treadle.registry import JobType
from treadle.stores.base import WorkerRow
from treadle.version import __version__
from treadle.worker.chores import declare_schedules, published_types

if TYPE_CHECKING:
    from treadle.worker.worker import Worker


def register(worker: Worker, host: Mapping[str, Any], id: str) -> None:
    """Store what others see of it, and then what its code declares: a declaration counts while its worker lives."""
    registry = worker.app.registry
    policies = published_types(worker.app)
    row = WorkerRow(
        id=id,
        name=worker.name,
        concurrency=worker.concurrency,
        queues=worker.queues,
        types=tuple(sorted(registry.types)),
        declared={policy.type: spec_of(policy) for policy in policies},
        host=dict(host),
        version=__version__,
        schedules={name: new.spec for name, new in registry.schedules.items()},
    )
    worker.store.register(row)
    worker.store.publish(policies)
    declare_schedules(worker.app)


def timeouts_of(types: Mapping[str, JobType]) -> dict[str, int | None]:
    """The timeout of each type, for its leases. A child may take long to start, and counts for itself."""
    return {name: None if each.run == "process" else each.policy.timeout for name, each in types.items()}
