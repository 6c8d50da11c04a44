"""How a worker becomes one that the others see."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from windlass.stores.base import WorkerRow
from windlass.version import __version__
from windlass.worker import host
from windlass.worker.board import Board, Owner
from windlass.worker.chores import bury_the_local_dead

if TYPE_CHECKING:
    from windlass.app import Windlass


def arrive(app: Windlass, board: Board, name: str, concurrency: int, queues: tuple[str, ...]) -> str:
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
