"""Ids. A job's is a UUIDv7, made by the client, so that repeating an enqueue does not store the job twice. A worker's
begins with its name, so that attempts still say it when the worker's row is gone.

The standard library has UUIDv7 only since Python 3.14. Packages for older versions do not promise to be safe after
`fork`, where two children would continue from the same state.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import threading
import time
import uuid

_ID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_lock = threading.Lock()
_millisecond = 0
_prefix = ""
_sequence = 0  # 74 bits: 12 in the third group, 62 in the last two


def new_id() -> str:
    """An id greater than every id that this process made before."""
    global _millisecond, _prefix, _sequence
    now = time.time_ns() // 1_000_000
    with _lock:
        if now > _millisecond:
            _millisecond, text = now, f"{now:012x}"
            _prefix = f"{text[:8]}-{text[8:]}-7"
            _sequence = int.from_bytes(os.urandom(9)) << 1
        else:  # the same millisecond, or the clock stepped back: continue the sequence
            _sequence += 1
        prefix, sequence = _prefix, _sequence
    low = f"{sequence & _LOW | 1 << 63:016x}"
    return f"{prefix}{sequence >> 62:03x}-{low[:4]}-{low[4:]}"


_LOW = (1 << 62) - 1


def is_id(text: str) -> bool:
    """Whether `text` is written as `new_id` writes ids."""
    return isinstance(text, str) and _ID.fullmatch(text) is not None


def new_worker_id(name: str) -> str:
    """An id that no worker has had before."""
    return f"{name}-{secrets.token_hex(6)}"


def worker_name(id: str) -> str:
    """The name of the worker with this id. One from elsewhere stands for itself."""
    name, _, random = id.rpartition("-")
    return name if len(random) == 12 and not is_id(id) else id


def ids_from(start: str) -> tuple[str, str] | None:
    """The smallest and the largest id that begin so, with or without hyphens. None if no id does."""
    digits = start.lower().replace("-", "")
    if not re.fullmatch("[0-9a-f]{1,32}", digits):
        return None
    return str(uuid.UUID(digits.ljust(32, "0"))), str(uuid.UUID(digits.ljust(32, "f")))


def after(id: str) -> str:
    return str(uuid.UUID(int=uuid.UUID(id).int + 1))


def first_id_of(at: int) -> str:
    """The smallest id that a job made after `at` can have."""
    text = f"{min(max(0, at // 1000 + 1), (1 << 48) - 1):012x}"
    return f"{text[:8]}-{text[8:]}-0000-0000-000000000000"


def id_at(at: int, *names: str) -> str:
    """The one id for these names at this time: a UUIDv7 whose random bits are a hash. Whoever asks gets the same."""
    hashed = hashlib.sha256("\0".join((*names, str(at))).encode("utf-8", "surrogatepass")).digest()
    bits = int.from_bytes(hashed[:10]) >> 6  # 74
    millisecond = min(max(0, at // 1000), (1 << 48) - 1)
    return str(uuid.UUID(int=millisecond << 80 | 7 << 76 | bits >> 62 << 64 | 1 << 63 | bits & _LOW))


def _after_fork() -> None:
    """A forked child must not continue its parent's sequence: its siblings would make the same ids."""
    global _millisecond, _lock
    _millisecond, _lock = 0, threading.Lock()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork)
