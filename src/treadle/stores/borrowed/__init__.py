"""Enqueue in the user's own transaction on PostgreSQL, whatever driver or framework holds it."""

from __future__ import annotations

from treadle.stores.borrowed.base import Borrowed, identity, savepoint, sqlstate
from treadle.stores.borrowed.choose import aborrow, borrow, is_async, lend, unwrap

__all__ = ["Borrowed", "aborrow", "borrow", "identity", "is_async", "lend", "savepoint", "sqlstate", "unwrap"]
