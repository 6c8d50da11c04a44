"""The registry of job types: each has a handler and a policy."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, overload

import msgspec

from treadle import clock
from treadle.backoff import DEFAULT, Backoff, to_backoff
from treadle.clock import Duration
from treadle.codec import as_json
from treadle.context import Context
from treadle.dedupe import Dedupe, DedupeOption
from treadle.errors import BadHandler, BadOption, DuplicateType, TreadleError, UnknownOption, UnknownType
from treadle.function import KNOWN_SCHEDULE_OPTIONS, AnyJob, JobFunction
from treadle.limits import Limit, checked_limits
from treadle.middleware import Around, L, M, Wrapper
from treadle.schedule import NewSchedule
from treadle.settings import SHORTEST, at_least_one, checked_level, checked_name, checked_priority, checked_seconds
from treadle.signature import Signature
from treadle.stores.base import TypePolicy

if TYPE_CHECKING:
    from treadle.app import Treadle
    from treadle.job import Job

P = ParamSpec("P")
R = TypeVar("R")

AlreadyDone = Callable[[Sequence["Job"]], Collection["Job"]]


class JobOptions(TypedDict, total=False):
    """The options of `@td.job`."""

    type: str | None
    queue: str
    priority: int
    concurrency: int | None
    max_attempts: int
    timeout: Duration | None
    backoff: Backoff | Sequence[Duration] | Duration
    dedupe: DedupeOption
    run: Literal["auto", "thread", "process"]
    limits: Sequence[Limit]
    fair: Literal["tenant"] | None
    cron: str | None
    zone: str | None
    logs: str | int | None


KNOWN_JOB_OPTIONS = frozenset(JobOptions.__annotations__)
OF_SCHEDULE = "it is an option of a schedule: job.schedule('name', every=60)"


class JobType(msgspec.Struct, kw_only=True):
    """A handler, and how it runs."""

    handler: Callable[..., Any]
    signature: Signature
    policy: TypePolicy
    timeout: float | None
    backoff: Backoff
    dedupe: DedupeOption
    run: Literal["async", "thread", "process"]
    limits: tuple[Limit, ...] = ()
    already_done: AlreadyDone | None = None
    logs: int | None = None
    """The least level of the records of `logging` that are kept with an attempt."""
    schedules: dict[str, NewSchedule] = {}
    """Those that its code declares, by name."""
    around: Around | None = None
    """The middleware of its registry, and of those that include it."""

    @property
    def name(self) -> str:
        return self.policy.type

    def published(self, redact: str) -> TypePolicy:
        """Its policy as workers publish it: with what its app hides, and with the arguments that it takes."""
        return msgspec.structs.replace(self.policy, redact=redact, arguments=self.signature.schema)


class JobDecorator(Protocol):
    """What `@td.job(…)` returns: it turns a function into a job."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> JobFunction[Concatenate[Context, P], P, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> JobFunction[P, P, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], R], /
    ) -> JobFunction[Concatenate[Context, P], P, R, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> JobFunction[P, P, R, R]: ...


class Registry:
    """Jobs by type. Declare jobs on a registry of their own and `td.include` it, to avoid circular imports."""

    def __init__(self, app: Treadle | None = None) -> None:
        self.app = app
        """The app that includes it, perhaps by way of other registries."""
        self._parent: Registry | None = None
        self._included: list[Registry] = []
        self._functions: dict[str, AnyJob] = {}
        self._limits: dict[str, tuple[str, Limit]] = {}
        """Each limit by its name, with the first type that declares it."""
        self._middleware: list[Wrapper] = []
        self._lifespans: list[Wrapper] = []

    @overload
    def job(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> JobFunction[Concatenate[Context, P], P, Coroutine[Any, Any, R], R]: ...
    @overload
    def job(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> JobFunction[P, P, Coroutine[Any, Any, R], R]: ...
    @overload
    def job(
        self, function: Callable[Concatenate[Context, P], R], /
    ) -> JobFunction[Concatenate[Context, P], P, R, R]: ...
    @overload
    def job(self, function: Callable[P, R], /) -> JobFunction[P, P, R, R]: ...
    @overload
    def job(self, **options: Unpack[JobOptions]) -> JobDecorator: ...
    def job(self, function: Any = None, **options: Unpack[JobOptions]) -> Any:
        """Declare a job. The type defaults to the function's name, so that moving a module changes nothing.

        `concurrency`: how many may run at once, over all workers. `max_attempts`: runs in total, by default 5.
        `limits`: how many may run at once or start per time, of this and other types, or for each key.
        `fair="tenant"`: tenants take turns, so that none waits for all jobs of another.
        `timeout`: seconds for one run. `run="process"`: in a child process, which a timeout can kill.
        `cron`, `zone`: also enqueue it at these times, without arguments. The schedule has the name of the type.
        `logs="INFO"`: also keep what the handler and its libraries log with `logging`, as `ctx.log` does. The levels of
        the loggers decide what reaches it. If nothing sets up `logging`, the root logger lets these through, too.
        """
        if function is not None:
            return self._add(function, options)
        return lambda function: self._add(function, options)

    def _add(self, handler: Callable[..., Any], options: JobOptions) -> AnyJob:
        for option in options.keys() - KNOWN_JOB_OPTIONS:
            raise UnknownOption(option, KNOWN_JOB_OPTIONS, OF_SCHEDULE if option in KNOWN_SCHEDULE_OPTIONS else "")
        declared: AnyJob = JobFunction(_job_type(handler, options), self)
        self._refuse_a_second(declared)
        if options.get("zone") is not None and options.get("cron") is None:
            raise BadOption("zone", options.get("zone"), "it belongs to cron=; pass both")
        if (cron := options.get("cron")) is not None:
            declared.schedule(declared.job_type.name, cron=cron, zone=options.get("zone"))
        self._keep(declared)
        return declared

    def _keep(self, function: AnyJob) -> None:
        if self._parent is not None:  # declared after the include: workers look at the parent
            self._parent._keep(function)
        self._functions[function.job_type.name] = function
        for limit in function.job_type.limits:
            self._limits.setdefault(limit.name, (function.job_type.name, limit))
        function.job_type.around = function.registry._around()

    def _refuse_a_second(self, function: AnyJob) -> None:
        if self._parent is not None:
            self._parent._refuse_a_second(function)
        name = function.job_type.name
        if name in self._functions:
            first, second = self._functions[name].job_type.handler, function.job_type.handler
            raise DuplicateType(name, _location(first), _location(second))
        for limit in function.job_type.limits:
            type, known = self._limits.get(limit.name, (name, limit))
            if known != limit:
                raise BadOption("limits", limit, f"type {type!r} declares {known!r}; declare it once and share it")

    def include(self, other: Registry) -> None:
        """Add all jobs of another registry, also those declared later. If one cannot be added, add none."""
        if other._parent is self:
            return
        if other.app is not None or other._parent is not None:
            raise TreadleError(f"the registry belongs to {other.app!r} already; make another one for this app")
        for function in other:
            self._refuse_a_second(function)
            for name in function.job_type.schedules:
                self.refuse_a_second_schedule(name)
        other._parent = self
        for function in other:
            self._keep(function)
        self._included.append(other)
        other._join(self.app)

    def _join(self, app: Treadle | None) -> None:
        self.app = app
        for registry in self._included:
            registry._join(app)

    def middleware(self, function: M) -> M:
        """Go around every attempt of the jobs of this registry, and of those that it includes.

        `function(ctx)` is a generator with one yield, at which the handler runs. What the handler raises is raised
        there, too. A plain generator goes around all handlers, an async one around async handlers. The first that is
        declared is the outermost.
        """
        self._middleware.append(Wrapper("middleware", function, "ctx"))
        for job in self:
            job.job_type.around = job.registry._around()
        return function

    def _around(self) -> Around | None:
        chain = [wrapper for registry in reversed(self._ancestors()) for wrapper in registry._middleware]
        return Around(chain) if chain else None

    def lifespan(self, function: L) -> L:
        """Open what handlers share, once per worker process: what `function()` yields, a dict, is `ctx.state`.

        It is a generator with one yield, async or not. What comes after the yield runs when the worker stops.
        """
        self._lifespans.append(Wrapper("lifespan", function))
        return function

    @property
    def lifespans(self) -> list[Wrapper]:
        """Those of this registry, and then those of the ones that it includes."""
        return [*self._lifespans, *(one for registry in self._included for one in registry.lifespans)]

    def _ancestors(self) -> list[Registry]:
        """This registry, the one that includes it, and so on."""
        return [self, *([] if self._parent is None else self._parent._ancestors())]

    def refuse_a_second_schedule(self, name: str) -> None:
        """Each schedule of an app has a name of its own."""
        root = self._ancestors()[-1]
        if name in root.schedules:
            taken = f"type {root.schedules[name].type!r} has a schedule of this name already"
            raise BadOption("schedule", name, f"{taken}; choose another name")

    @property
    def schedules(self) -> dict[str, NewSchedule]:
        """The schedules that the code declares, by name."""
        return {name: new for function in self for name, new in function.job_type.schedules.items()}

    def __getitem__(self, type: str) -> JobType:
        try:
            return self._functions[type].job_type
        except KeyError:
            raise UnknownType(type, self._functions.keys()) from None

    def get(self, type: str) -> JobType | None:
        """The handler and policy of a type, or None."""
        function = self._functions.get(type)
        return None if function is None else function.job_type

    def result(self, type: str, stored: Any) -> Any:
        """A stored result, as the type that its handler says it returns, if the handler is known here."""
        job_type = self.get(type)
        return stored if job_type is None else job_type.signature.result(stored)

    def with_result(self, job: Job) -> Job:
        """The job, with its result as that type."""
        return job if job.result is None else msgspec.structs.replace(job, result=self.result(job.type, job.result))

    def __iter__(self) -> Iterator[AnyJob]:
        return iter(self._functions.values())

    def __len__(self) -> int:
        return len(self._functions)

    def __contains__(self, type: object) -> bool:
        return type in self._functions

    @property
    def types(self) -> dict[str, JobType]:
        return {name: function.job_type for name, function in self._functions.items()}


def _job_type(handler: Callable[..., Any], options: JobOptions) -> JobType:
    name = options.get("type") or getattr(handler, "__name__", "")
    if not callable(handler) or inspect.isclass(handler):
        raise BadHandler(repr(handler), "it is not a function", "decorate a def or an async def")
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise BadHandler(str(name), "it is a generator", "return the result instead of yielding")
    if not name or name == "<lambda>":
        raise BadHandler(repr(handler), "it has no name", "give it one: @td.job(type='…')")
    concurrency, timeout = options.get("concurrency"), _checked_timeout(options.get("timeout"))
    dedupe = options.get("dedupe")
    key = dedupe.key if isinstance(dedupe, Dedupe) and dedupe.mode == "return" else dedupe
    if isinstance(key, str):
        way_out = "with one key for all jobs there is only one job; pass True, or a function of the payload"
        raise BadOption("dedupe", key, way_out)
    limits = checked_limits(options.get("limits", ()))
    policy = TypePolicy(
        type=checked_name("type", name),
        queue=checked_name("queue", options.get("queue", "default")),
        priority=checked_priority(options.get("priority", 0)),
        max_attempts=at_least_one("max_attempts", options.get("max_attempts", 5)),
        concurrency=None if concurrency is None else at_least_one("concurrency", concurrency),
        timeout=None if timeout is None else clock.seconds(timeout),
        limits=as_json(limits),
        fair=_checked_fair(options.get("fair")),
    )
    return JobType(
        handler=handler,
        signature=Signature(handler, name, Context),
        policy=policy,
        timeout=timeout,
        backoff=to_backoff(options.get("backoff", DEFAULT)),
        dedupe=dedupe,
        run=_checked_run(options.get("run", "auto"), handler),
        limits=limits,
        logs=None if (logs := options.get("logs")) is None else checked_level("logs", logs),
    )


def _checked_timeout(timeout: Any) -> float | None:
    way_out = "use seconds, more than 0, or a timedelta; leave it out for no limit"
    return None if timeout is None else checked_seconds("timeout", timeout, way_out, least=SHORTEST, most=10**8)


def _checked_fair(fair: Any) -> str:
    if fair not in (None, "tenant"):
        raise BadOption("fair", fair, "choose 'tenant', or leave it out")
    return fair or ""


def _checked_run(run: Any, handler: Callable[..., Any]) -> Literal["async", "thread", "process"]:
    if run not in ("auto", "thread", "process"):
        raise BadOption("run", run, "choose 'auto', 'thread' or 'process'")
    is_async = inspect.iscoroutinefunction(handler)
    if run == "thread" and is_async:
        raise BadOption("run", run, "an async def runs on the event loop; leave run out, or use 'process'")
    return "process" if run == "process" else "async" if is_async else "thread"


def _location(handler: Callable[..., Any]) -> str:
    return f"{getattr(handler, '__module__', '?')}.{getattr(handler, '__qualname__', repr(handler))}"
