"""How many queues and types a caller can make: without `manage`, not more than pages and metrics show one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from treadle.app import Treadle
from treadle.job import NewJob
from treadle.web.problem import HTTPProblem
from treadle.web.route import Request

MAX_NEW_TYPES = 1_000
"""Pairs of queue and type that jobs have and no worker has published."""
SECONDS, SHARE = 1.0, 0.05
"""How long the known ones are cached, and the part of the time that goes into reading them."""
KEY = "queues and types"
Pair = tuple[str, str]


@contextmanager
def bounded(request: Request, jobs: Sequence[NewJob]) -> Iterator[None]:
    """Store the jobs in this block. Raises if the caller would make too many new queues and types.

    One request after the other makes new ones, so that many at once are not more than allowed.
    """
    pairs = {(job.queue, job.type) for job in jobs}
    if request.caller.may("manage") or not pairs.difference(*_known(request)):
        yield
        return
    with request.web.making_types:
        made, published = _known(request)
        if (new := pairs - made - published) and len(made) + len(new) > MAX_NEW_TYPES:
            queue, type = min(new)
            problem = f"no worker has published type {type!r} for queue {queue!r}, and too many such types have jobs"
            way_out = "check the name, start a worker that has the type, or use a token with the scope 'manage'"
            raise HTTPProblem(403, problem, way_out, code="too-many-types")
        yield
        request.web.cache.forget(KEY)


def _known(request: Request) -> tuple[set[Pair], set[Pair]]:
    """Those that jobs have and no worker has published, and the published ones."""
    return request.web.cached(KEY, SECONDS, lambda: _read(request.web.app), share=SHARE)


def _read(app: Treadle) -> tuple[set[Pair], set[Pair]]:
    declared = [known.policy for known in app.registry.types.values()]
    published = {(policy.queue, policy.type) for policy in (*app.store.policies().values(), *declared)}
    return {(row["queue"], row["type"]) for row in app.counts(("queue", "type"))} - published, published
