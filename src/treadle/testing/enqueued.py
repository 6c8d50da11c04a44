"""What was enqueued, and assertions that show it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from treadle import codec
from treadle.app import Treadle
from treadle.error_text import shown
from treadle.errors import BadArguments
from treadle.filters import Filter
from treadle.function import Enqueuer
from treadle.job import Job
from treadle.management import every_job

SHOWN = 20


class DjangoTask(Protocol):
    """A task of Django. Its type is its path, and the arguments of its jobs are `args` and `kwargs`."""

    @property
    def module_path(self) -> str: ...


def enqueued(td: Treadle, job: Enqueuer[...] | DjangoTask | str, /, **payload: Any) -> list[Job]:
    """The jobs of that function or type, oldest first, in whatever status they are now. With arguments, only
    those that were enqueued with these values; arguments that you leave out may be anything."""
    type = _type(job)
    _check_names(td, type, payload)
    found = [job for job in every_job(td, Filter(types=(type,))) if _fits(job.payload, payload)]
    return found[::-1]


def assert_enqueued(td: Treadle, job: Enqueuer[...] | DjangoTask | str, /, **payload: Any) -> Job:
    """The newest such job, for more checks (`.run_at`, `.tenant`); AssertionError if there is none."""
    found = enqueued(td, job, **payload)
    if not found:
        raise AssertionError(f"{call(_type(job), payload)} was not enqueued{_what_is(td)}")
    return found[-1]


def refute_enqueued(td: Treadle, job: Enqueuer[...] | DjangoTask | str, /, **payload: Any) -> None:
    """AssertionError if there is such a job."""
    if found := enqueued(td, job, **payload):
        times = "once" if len(found) == 1 else f"{len(found)} times"
        raise AssertionError(f"{call(_type(job), payload)} was enqueued {times}{_what_is(td)}")


def call(type: str, payload: Mapping[str, Any]) -> str:
    return f"{type}({', '.join(f'{name}={value!r}' for name, value in payload.items())})"


def _type(job: object) -> str:
    if isinstance(job, Enqueuer):
        return job.job_type.name
    type = getattr(job, "module_path", job)
    if not isinstance(type, str):
        raise TypeError(f"{shown(job)} is not a job; pass a function with @td.job, a task of Django, or a type's name")
    return type


def _what_is(td: Treadle) -> str:
    lines = [f"  {call(job.type, job.payload)} {job.status}" for job in every_job(td)][::-1]
    if not lines:
        return "; there are no jobs"
    more = [f"  … and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    return "\n".join(["; the jobs are:", *lines[:SHOWN], *more])


def _check_names(td: Treadle, type: str, payload: Mapping[str, Any]) -> None:
    """No job has an argument that the handler does not take: `refute_enqueued` would always pass."""
    known = td.registry.get(type)
    unknown = sorted(payload.keys() - set(known.signature.names)) if known else []
    if known and unknown:
        raise BadArguments(type, f"unknown argument {unknown[0]!r}", f"({', '.join(known.signature.names)})")


def _fits(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(name in stored and _same(stored[name], value) for name, value in wanted.items())


def _same(stored: Any, value: Any) -> bool:
    """Equal, or equal once the value is JSON, as the stored one is: a datetime, for example."""
    if stored == value:
        return True
    try:
        return bool(stored == codec.decode(codec.encode(value)))
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        return False
