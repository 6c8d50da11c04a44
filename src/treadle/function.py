"""What `@td.job` returns: still your function, and the ways to enqueue it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, TypedDict, TypeVar, Unpack, cast

from treadle import clock, codec
from treadle.clock import Duration
from treadle.dedupe import Dedupe, DedupeOption, key_for, rule_text
from treadle.errors import BadArguments, BadOption, TreadleError, UnknownOption
from treadle.ids import is_id, new_id
from treadle.job import Job, NewJob, R, Reschedule
from treadle.schedule import MISSED, OVERLAP, Missed, NewSchedule, Overlap, checked_choice, checked_rule
from treadle.settings import at_least_one, checked_moment, checked_name, checked_priority, checked_seconds
from treadle.waits import IF_FAILED, IfFailed

if TYPE_CHECKING:
    from treadle.registry import AlreadyDone, JobType, Registry
    from treadle.stores.base import TypePolicy

Q = ParamSpec("Q")
P = ParamSpec("P")
T = TypeVar("T")


class Options(TypedDict, total=False):
    """The options of one enqueue."""

    delay: Duration
    """Seconds from now, or a timedelta."""
    run_at: datetime
    """Without a time zone, it is local time."""
    priority: int
    queue: str
    tenant: str
    subject: str
    max_attempts: int
    dedupe: DedupeOption
    connection: Any
    """Your own connection: the job exists if and only if its open transaction commits."""
    start_within: Duration
    """Seconds after its run_at. If it is not started by then, it is cancelled."""
    detached: bool
    """Inside a handler: store at once, not with the handler's completion."""
    after: Job | NewJob | str | Sequence[Job | NewJob | str]
    """Its parents: the jobs, requests or ids of jobs that have to complete before it starts."""
    if_failed: IfFailed
    """If a parent fails: it waits until that is retried ("hold", the default), is cancelled, or runs."""


KNOWN_OPTIONS = frozenset(Options.__annotations__)


class Changes(TypedDict, total=False):
    """What `td.reschedule` can change of a waiting job."""

    delay: Duration
    """Seconds from now, or a timedelta."""
    run_at: datetime
    priority: int
    queue: str


KNOWN_CHANGES = frozenset(Changes.__annotations__)


class Enqueuer(Generic[P, R]):
    """A job type with options. You enqueue it with the handler's own arguments."""

    def __init__(self, job_type: JobType, registry: Registry, options: Options) -> None:
        self.job_type = job_type
        self.registry = registry
        self._options = options

    def using(self, **options: Unpack[Options]) -> Enqueuer[P, R]:
        """The same job type with more options; later ones win."""
        return Enqueuer(self.job_type, self.registry, {**self._options, **checked(options)})

    def request(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """A checked request to enqueue, for `td.enqueue_many`."""
        signature = self.job_type.signature
        arguments = signature.bind(args, kwargs) if args else kwargs
        return make_request(self.job_type.policy, self.job_type.dedupe, signature.encode(arguments), self._options)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Store a job. It is durable once this returns. Inside a handler, it is stored when the handler completes."""
        app = self.registry.app or self._no_app()
        [job] = app._submit([self.request(*args, **kwargs)], self._options)
        return job

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """`enqueue` without blocking the event loop."""
        app = self.registry.app or self._no_app()
        [job] = await app._asubmit([self.request(*args, **kwargs)], self._options)
        return job

    def _no_app(self) -> NoReturn:
        name = self.job_type.name
        raise TreadleError(f"{name} belongs to no app; include its registry first: td.include(registry)")


class JobFunction(Enqueuer[P, R], Generic[Q, P, T, R]):
    """A declared job. Call it to run the plain function; `enqueue` it and a worker runs it. `T` is what a call returns:
    of an async function that is a coroutine, whose result is `R`."""

    def __init__(self, job_type: JobType, registry: Registry) -> None:
        super().__init__(job_type, registry, {})
        update_wrapper(self, job_type.handler)

    def __call__(self, *args: Q.args, **kwargs: Q.kwargs) -> T:
        result: T = self.job_type.handler(*args, **kwargs)
        return result

    def __repr__(self) -> str:
        return f"<job {self.job_type.name}>"

    def schedule(self, name: str, **options: Unpack[ScheduleOptions]) -> None:
        """Declare a schedule: workers of this code store a job with this payload at its moments.

        `cron` is in `zone`, by default UTC. `every` is in seconds, and counts from `anchor`, by default 1970.
        """
        self.registry.refuse_a_second_schedule(name)
        self.job_type.schedules[name] = make_schedule(name, self.job_type, options)

    def already_done(self, function: AlreadyDone) -> AlreadyDone:
        """Declare how to recognize finished work: given jobs that are not completed, return those whose work exists."""
        self.job_type.already_done = function
        return function


AnyJob = JobFunction[..., ..., Any, Any]


class ScheduleOptions(TypedDict, total=False):
    """When a schedule fires, and what its jobs get, if not what their type says."""

    cron: str | None
    every: Duration | None
    zone: str | None
    anchor: datetime | None
    payload: Mapping[str, Any] | None
    missed: Missed
    """Default: "once"."""
    overlap: Overlap
    """Default: "skip"."""
    queue: str
    priority: int
    max_attempts: int
    subject: str


KNOWN_SCHEDULE_OPTIONS = frozenset(ScheduleOptions.__annotations__)


def make_schedule(name: str, job: JobType | str, options: ScheduleOptions, tenant: str = "") -> NewSchedule:
    """A checked schedule. The payload has to fit the handler, if that is known here."""
    checked(cast(Options, options), KNOWN_SCHEDULE_OPTIONS)
    if not name:
        raise BadOption("name", name, "a schedule needs a name")
    type, known = (job, None) if isinstance(job, str) else (job.name, job)
    of_jobs: dict[str, Any] = {option: value for option, value in options.items() if option in _CHECKS}
    return NewSchedule(
        name=checked_name("name", name),
        tenant=checked_name("tenant", tenant),
        type=checked_name("type", type),
        rule=checked_rule(*(options.get(part) for part in ("cron", "every", "zone", "anchor"))),
        payload=encode_payload(type, known, options.get("payload")),
        missed=checked_choice("missed", options.get("missed", "once"), MISSED),
        overlap=checked_choice("overlap", options.get("overlap", "skip"), OVERLAP),
        **of_jobs,
    )


def encode_payload(type: str, known: JobType | None, payload: Mapping[str, Any] | None) -> str:
    """A payload as JSON. It has to fit the handler, if that is known here."""
    arguments = {} if payload is None else payload
    if not isinstance(arguments, Mapping) or not all(isinstance(key, str) for key in arguments):
        raise BadArguments(type, f"a payload is a JSON object, not {payload!r}", "a dict with text keys")
    if known is None:
        return codec.to_json_exact(dict(arguments), type, type)
    return known.signature.encode(known.signature.from_json(arguments))


def make_request(policy: TypePolicy, dedupe: DedupeOption, payload: str, options: Options) -> NewJob:
    """A NewJob from a checked payload, the type's policy and the options of this enqueue."""
    if not options and dedupe is None:  # the usual case, kept fast
        return NewJob(
            id=new_id(),
            type=policy.type,
            queue=policy.queue,
            payload=payload,
            priority=policy.priority,
            max_attempts=policy.max_attempts,
            fair=policy.fair,
        )
    tenant = options.get("tenant", "")
    dedupe = options.get("dedupe", dedupe)
    key = None if dedupe is None else key_for(dedupe, policy.type, tenant, codec.decode(payload))
    if isinstance(dedupe, Dedupe) and dedupe.mode == "debounce":
        for name in options.keys() & {"delay", "run_at"}:
            way_out = "a debounce decides when the job is due; leave it out, or change wait"
            raise BadOption(name, options.get(name), way_out)
    if "if_failed" in options and "after" not in options:
        raise BadOption("if_failed", options["if_failed"], "it says what a failed parent means; pass after=…, too")
    if isinstance(dedupe, Dedupe) and dedupe.mode in ("replace", "debounce") and options.get("after"):
        way_out = f"a job that may {dedupe.mode} another waits for that one; choose another dedupe mode, or no parents"
        raise BadOption("after", options.get("after"), way_out)
    return NewJob(
        id=new_id(),
        type=policy.type,
        queue=options.get("queue", policy.queue),
        tenant=tenant,
        subject=options.get("subject", ""),
        payload=payload,
        priority=options.get("priority", policy.priority),
        max_attempts=options.get("max_attempts", policy.max_attempts),
        run_at=clock.from_datetime(options["run_at"]) if "run_at" in options else None,
        delay=clock.seconds(options["delay"]) if "delay" in options else None,
        dedupe=key,
        dedupe_rule=None if key is None else rule_text(dedupe),
        after=parent_ids(options["after"]) if "after" in options else (),
        if_failed=options.get("if_failed", "hold"),
        start_within=clock.seconds(options["start_within"]) if "start_within" in options else None,
        fair=policy.fair,
    )


def parent_ids(after: Any) -> tuple[str, ...]:
    several = [after] if isinstance(after, str | Job | NewJob) or not isinstance(after, Iterable) else after
    ids = [one.id if isinstance(one, Job | NewJob) else one for one in several]
    for id in ids:
        if not isinstance(id, str) or not is_id(id):
            raise BadOption("after", id, "a job, a request, the id of a job, or a list of these")
    return tuple(dict.fromkeys(ids))


A_DELAY = "seconds from now, 0 or more, or a timedelta; for a moment use run_at=datetime(…)"
A_DEADLINE = "seconds after its run_at, more than 0, or a timedelta"
_CHECKS: dict[str, Callable[[Any], object]] = {
    **{name: partial(checked_name, name) for name in ("queue", "tenant", "subject")},
    "priority": checked_priority,
    "max_attempts": partial(at_least_one, "max_attempts"),
    "delay": partial(checked_seconds, "delay", way_out=A_DELAY),
    "run_at": partial(checked_moment, "run_at", way_out="a datetime; for seconds from now use delay=…"),
    "start_within": partial(checked_seconds, "start_within", way_out=A_DEADLINE, least=0.001),
    "after": parent_ids,
    "if_failed": partial(checked_choice, "if_failed", choices=IF_FAILED),
}


def checked(options: Options, known: Collection[str] = KNOWN_OPTIONS) -> Options:
    """The options, or an error that names the invalid one."""
    for name, value in options.items():
        if name not in known:
            raise UnknownOption(name, known)
        if name in _CHECKS:
            _CHECKS[name](value)
    if "delay" in options and "run_at" in options:
        raise BadOption("delay", options["delay"], "pass either delay or run_at")
    return options


def make_reschedule(changes: Changes) -> Reschedule:
    """Checked changes, as the store takes them. Raises BadOption if there are none."""
    checked(cast(Options, changes), KNOWN_CHANGES)
    if not changes:
        raise BadOption("reschedule", changes, "pass at least one of run_at or delay, priority and queue")
    return Reschedule(
        run_at=clock.from_datetime(changes["run_at"]) if "run_at" in changes else None,
        delay=clock.seconds(changes["delay"]) if "delay" in changes else None,
        priority=changes.get("priority"),
        queue=changes.get("queue"),
    )
