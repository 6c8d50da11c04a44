"""What a worker logs when its database refuses something. Each of its parts finds out by itself that the jobs have
moved, so that is logged at once, and then once a minute."""

from __future__ import annotations

import logging
import time

from treadle.errors import StoreMoved

log = logging.getLogger("treadle")

EVERY = 60.0
_logged_at: dict[str, float] = {}
"""When it was last logged of a database, by `time.monotonic()`."""


def warn(text: str, error: Exception) -> None:
    """Log why something has to wait. `text` has a place for the error."""
    if isinstance(error, StoreMoved):
        before, now = _logged_at.get(error.where), time.monotonic()
        if before is not None and now - before < EVERY:
            return
        _logged_at[error.where] = now
        text = "this worker runs nothing any more: %s"
    log.warning(text, error)
