"""`Relay`: forwards jobs from the app's database to BullMQ, so that those of your transactions get there if, and only
if, these commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import msgspec
from redis.exceptions import RedisError

from treadle.app import Treadle
from treadle.backoff import fixed
from treadle.context import Context
from treadle.contrib.bullmq.producer import Bull
from treadle.contrib.bullmq.unsupported import UnsupportedByBullMQ, refuse_types
from treadle.errors import BadOption
from treadle.function import AnyJob
from treadle.job import NewJob
from treadle.outcome import Fail, Snooze
from treadle.signature import Signature

AGAIN_SECONDS = 5.0
"""After this time it asks Redis again."""


class _AnyPayload(Signature):
    """The payload is forwarded as it is stored, and the handler takes none of it. Published are the real arguments."""

    def __init__(self, handler: Callable[..., object], name: str, real: Signature | None) -> None:
        super().__init__(handler, name, Context)
        self._real = real

    @cached_property
    def schema(self) -> str:
        return "" if self._real is None else self._real.schema

    def decode(self, payload: str) -> dict[str, object]:
        return {}


class Relay(Treadle):
    """An app on the database of another, whose workers forward jobs of these types instead of running them:
    `relay = Relay(td, "redis://…", types=["send_mail"])`, and then `treadle worker app:relay`.

    A forwarded job has the same id in Redis. As long as it is kept there, forwarding it again changes nothing.
    While Redis does not answer, or refuses, jobs wait, and no attempt is used up. If a job in Redis holds its dedupe
    key, it is not stored there, and its result names the "holder". A job with parents or a batch fails. `bull`: another
    producer than `Bull(redis_url, app)`, with other settings.
    """

    def __init__(
        self, app: Treadle, redis_url: str, types: Sequence[str | AnyJob], *, bull: Bull | None = None
    ) -> None:
        super().__init__(app.store.url, retention=app.retention)
        self._use(app.store)
        self.redactor = app.redactor
        self._bull, self._owns_bull = bull or Bull(redis_url, app), bull is None
        names = [one if isinstance(one, str) else one.job_type.name for one in types]
        if not names:
            raise BadOption("types", types, "name the types that it forwards")
        for name in names:
            self._forward(app, name)

    def close(self) -> None:
        """Close all connections, to Redis too; those of a `bull` of yours are left to you. It reconnects if used."""
        super().close()
        if self._owns_bull:
            self._bull.close()

    def _forward(self, app: Treadle, name: str) -> None:
        """Its policy is that of the real type, because producers by name follow what workers publish."""
        known = app.registry.get(name)
        job_type = self.job(type=name, backoff=fixed(AGAIN_SECONDS), run="thread")(self._send).job_type
        job_type.signature = _AnyPayload(self._send, name, None if known is None else known.signature)
        if known is not None:
            refuse_types([known], self._bull.without)
            unlimited = {"limits": "[]", "fair": "", "concurrency": None, "timeout": None}
            job_type.policy = msgspec.structs.replace(known.policy, **unlimited)

    def _send(self, ctx: Context) -> dict[str, str]:
        job = self.store.get(ctx.id)
        assert job is not None
        request = NewJob(
            id=job.id,
            type=job.type,
            queue=job.queue,
            tenant=job.tenant,
            subject=job.subject,
            payload=ctx._run.claimed.payload,
            priority=job.priority,
            max_attempts=job.max_attempts,
            traceparent=ctx._run.claimed.traceparent,
            origin=job.origin,
            dedupe=self.store.plain_key(job.id) if job.dedupe_mode == "return" else None,
            after=tuple(parent.id for parent in self.store.parents(job.id)),
            batch=job.batch,
        )
        try:
            sent = self._bull.enqueue(request)
        except UnsupportedByBullMQ as error:
            raise Fail(str(error)) from error
        except RedisError as error:  # it does not answer, or refuses: it is full, a replica, or cannot write its disk
            ctx.log("Redis does not take it: %s", error)
            raise Snooze(AGAIN_SECONDS) from error
        return {"queue": job.queue} if sent.id == job.id else {"queue": job.queue, "holder": sent.id}
