"""Durable background jobs for Python, in the database you already have."""

from treadle.app import Treadle
from treadle.backoff import exponential, fixed
from treadle.context import Context
from treadle.dedupe import make_dedupe_key
from treadle.diagnosis import Why
from treadle.errors import (
    BadArguments,
    JobFailed,
    JobNotFound,
    KeyHeld,
    LeaseLost,
    NotJSON,
    ResultTimeout,
    StoreBusy,
    TreadleError,
    WrongStatus,
)
from treadle.filters import Filter
from treadle.hooks import Event
from treadle.job import Job, Status, can_retry
from treadle.lease import Lease
from treadle.outcome import Fail, Retry, Snooze
from treadle.registry import Registry
from treadle.version import __version__ as __version__

__all__ = [
    "BadArguments",
    "Context",
    "Event",
    "Fail",
    "Filter",
    "Job",
    "JobFailed",
    "JobNotFound",
    "KeyHeld",
    "Lease",
    "LeaseLost",
    "NotJSON",
    "Registry",
    "ResultTimeout",
    "Retry",
    "Snooze",
    "Status",
    "StoreBusy",
    "Treadle",
    "TreadleError",
    "Why",
    "WrongStatus",
    "can_retry",
    "exponential",
    "fixed",
    "make_dedupe_key",
]
