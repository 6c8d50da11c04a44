"""How a worker becomes one that the others see."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from treadle.stores.base import WorkerRow
from treadle.version import __version__
from treadle.worker import host
from treadle.worker.chores import bury_the_local_dead
from treadle.worker.inflight import Inflight, Owner

if TYPE_CHECKING:
    from treadle.app import Treadle


def register(app: Treadle, board: Inflight, name: str, concurrency: int, queues: tuple[str, ...]) -> str:
    """Be seen: in the database, and on the board. The id, which nobody has had before."""
    bury_the_local_dead(app.store)
    types = app.registry.types
    app.store.publish([job_type.policy for job_type in types.values()])
    id = str(uuid.uuid4())
    board.sign(Owner(id, app.store.url))
    app.store.register(
        WorkerRow(
            id=id,
            name=name,
            concurrency=concurrency,
            queues=queues,
            types=tuple(sorted(types)),
            host=host.identity(board.supervisor),
            version=__version__,
        )
    )
    return id
