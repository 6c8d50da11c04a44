"""Enqueue in the user's own transaction on PostgreSQL, whatever driver or framework holds it."""

from __future__ import annotations

from treadle.stores.user_connections.detect import async_driver, is_async, run_on_async, unwrap, wrap
from treadle.stores.user_connections.drivers import IDENTITY, Driver, identity, savepoint, sqlstate

__all__ = ["IDENTITY", "Driver", "async_driver", "identity", "is_async", "run_on_async", "savepoint", "sqlstate"]
__all__ += ["unwrap", "wrap"]
