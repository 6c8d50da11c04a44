"""What jobs wait for besides time: parents, subjobs and signals. Also the pure decision whether a wait is over."""

from __future__ import annotations

from datetime import datetime
from enum import Enum, auto
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from treadle.errors import BadOption
from treadle.job import NewJob, Status

IfFailed = Literal["hold", "cancel", "run"]
"""What becomes of a job if a parent fails."""
IF_FAILED: tuple[IfFailed, ...] = get_args(IfFailed)


class NewWait(msgspec.Struct, frozen=True):
    """What a job is to wait for."""

    kind: str
    """"parent" or "subjob": until that job has ended; "signal": until there is one of that name."""
    what: str
    """The id of the job, or the name of the signal."""
    step: str = ""
    """The step that waits, if it is in a handler."""
    if_failed: str = "run"
    timeout: int | None = None
    """Microseconds after which it no longer waits."""


class NewSignal(msgspec.Struct, frozen=True):
    """A named fact that jobs can wait for."""

    name: str
    value: str = "null"
    """JSON."""
    tenant: str = ""
    by: str = ""
    """Who sent it, if that is known."""


class Signal(msgspec.Struct, frozen=True, kw_only=True):
    """A signal as it is stored: the first of its name."""

    name: str
    value: Any
    tenant: str
    by: str
    at: datetime


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """What a job waits for, or has waited for."""

    kind: str
    what: str
    step: str
    if_failed: str
    met: bool
    """Whether it is over."""
    since: datetime
    until: datetime | None = None
    status: Status | None = None
    """Of the job that it waits for; None if that is gone, and for a signal."""


class WaitState(NamedTuple):
    """A wait that is not over, and what has happened since."""

    id: str
    tenant: str
    kind: str
    what: str
    step: str
    if_failed: str
    until: int | None
    status: str | None
    """How the job ended that it waits for."""
    value: str | None
    """The value of the signal that it waits for, as JSON."""


class Decision(Enum):
    """What becomes of a wait."""

    WAIT = auto()
    MET = auto()
    TIMED_OUT = auto()
    CANCEL = auto()
    """Its job is cancelled, because a parent of it has failed."""


def decide_wait(wait: WaitState, now: int) -> Decision:
    """Whether a wait is over. A signal counts even if it came too late, as long as nobody has noticed the timeout."""
    if wait.kind == "signal":
        if wait.value is not None:
            return Decision.MET
        return Decision.TIMED_OUT if wait.until is not None and wait.until <= now else Decision.WAIT
    if wait.status is None:
        return Decision.WAIT
    if wait.status == Status.COMPLETED or wait.if_failed == "run":
        return Decision.MET
    return Decision.CANCEL if wait.if_failed == "cancel" else Decision.WAIT


def refuse_parent(id: str, tenant: str | None, child: NewJob) -> None:
    """Raise BadOption if a job, which belongs to this tenant (None: there is none), cannot be a parent of this one."""
    if tenant is None:
        raise BadOption("after", id, "there is no such job; a parent has to be stored first")
    if tenant != child.tenant:
        raise BadOption("after", id, f"it belongs to another tenant than this job, {child.tenant!r}")
