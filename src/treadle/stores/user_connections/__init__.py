"""Enqueue and complete in the user's own transaction, whatever driver or framework holds it."""

from __future__ import annotations

from treadle.stores.user_connections.detect import (
    ASYNC,
    async_driver,
    is_async,
    is_connection,
    run_on_async,
    unwrap,
    wrap,
)
from treadle.stores.user_connections.drivers import IDENTITY, Driver, identity, savepoint, sqlstate

__all__ = ["ASYNC", "IDENTITY", "Driver", "async_driver", "identity", "is_async", "is_connection", "run_on_async"]
__all__ += ["savepoint", "sqlstate", "unwrap", "wrap"]
