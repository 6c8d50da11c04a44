"""Durable background jobs for Python, in the database you already have."""

from treadle import logs
from treadle.app import Treadle
from treadle.backoff import exponential, fixed
from treadle.context import Context
from treadle.dedupe import Dedupe, make_dedupe_key
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
from treadle.limits import Limit, Rate
from treadle.outcome import Fail, RateLimited, Retry, Snooze
from treadle.reasons import Why
from treadle.registry import Registry
from treadle.version import __version__ as __version__

logs.install()

__all__ = ["Context", "Dedupe", "Event", "Filter", "Job", "Lease", "Limit", "Rate", "Registry", "Status", "Treadle"]
__all__ += ["Fail", "RateLimited", "Retry", "Snooze", "Why", "can_retry", "exponential", "fixed", "make_dedupe_key"]
__all__ += ["BadArguments", "JobFailed", "JobNotFound", "KeyHeld", "LeaseLost", "NotJSON", "ResultTimeout"]
__all__ += ["StoreBusy", "TreadleError", "WrongStatus"]
