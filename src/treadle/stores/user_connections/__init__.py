"""Enqueue in the user's own transaction on PostgreSQL, whatever driver or framework holds it."""

from __future__ import annotations

from treadle.stores.user_connections.base import Borrowed, identity, savepoint, sqlstate
from treadle.stores.user_connections.detect import aborrow, borrow, is_async, lend, unwrap

__all__ = ["Borrowed", "aborrow", "borrow", "identity", "is_async", "lend", "savepoint", "sqlstate", "unwrap"]
