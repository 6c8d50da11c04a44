"""Middleware goes around every attempt, a lifespan around every worker process. Both are generators with one yield."""

from __future__ import annotations

import asyncio
import inspect
import logging
import traceback
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from treadle.context import Context
from treadle.errors import TreadleError

if TYPE_CHECKING:
    from treadle.registry import JobType

log = logging.getLogger("treadle")

CLOSE_SECONDS = 10.0
"""Seconds that lifespans have to end when their worker stops."""

Middleware = Callable[[Context], Iterator[Any] | AsyncIterator[Any]]
Lifespan = Callable[[], Iterator[Mapping[str, Any] | None] | AsyncIterator[Mapping[str, Any] | None]]
M = TypeVar("M", bound=Middleware)
L = TypeVar("L", bound=Lifespan)


class BadMiddleware(TreadleError, TypeError):
    """A function that cannot be a middleware or a lifespan, or not around this handler."""


class LifespanFailed(TreadleError):
    """A lifespan raised before its yield, so that the worker does not start."""


class Wrapper:
    """A generator function with one yield, as a context manager."""

    def __init__(self, kind: str, function: Any, *given: str) -> None:
        """`given`: the names of the arguments that it is called with."""
        self.kind = kind
        self.name = f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"
        self.is_async = inspect.isasyncgenfunction(function)
        if not self.is_async and not inspect.isgeneratorfunction(function):
            way_out = "write it with one yield, as for contextlib, and without its decorators"
            raise BadMiddleware(f"{self.name} cannot be a {kind}: it is not a generator; {way_out}")
        self._check_parameters(function, given)
        self._block: Callable[..., Any] = asynccontextmanager(function) if self.is_async else contextmanager(function)
        self._file = getattr(getattr(function, "__code__", None), "co_filename", None)

    def _check_parameters(self, function: Any, given: tuple[str, ...]) -> None:
        signature = inspect.signature(function).replace(return_annotation=inspect.Signature.empty)
        try:
            signature.bind(*given)
        except TypeError:
            way_out = f"write {'async ' if self.is_async else ''}def {function.__name__}({', '.join(given)})"
            raise BadMiddleware(f"{self.name} cannot be a {self.kind}: it takes {signature}; {way_out}") from None

    def enter(self, *given: Any) -> Block:
        return Block(self, self._block(*given))

    def line_of(self, error: BaseException) -> str:
        """Where in the function's file it was raised, as in ` (app.py:12)`; '' if it was not raised there."""
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == self._file]
        return f" ({self._file}:{lines[-1]})" if lines else ""


class Block:
    """One pass through such a generator. An error of its yields names it."""

    __slots__ = ("_inner", "_wrapper")

    def __init__(self, wrapper: Wrapper, inner: Any) -> None:
        self._wrapper, self._inner = wrapper, inner

    def __enter__(self) -> Any:
        try:
            return self._inner.__enter__()
        except RuntimeError as error:
            self._check_yields(error)
            raise

    def __exit__(self, *error: Any) -> Any:
        try:
            return self._inner.__exit__(*error)
        except RuntimeError as raised:
            self._check_yields(raised)
            raise

    async def __aenter__(self) -> Any:
        try:
            return await self._inner.__aenter__()
        except RuntimeError as error:
            self._check_yields(error)
            raise

    async def __aexit__(self, *error: Any) -> Any:
        try:
            return await self._inner.__aexit__(*error)
        except RuntimeError as raised:
            self._check_yields(raised)
            raise

    def _check_yields(self, error: RuntimeError) -> None:
        """Name the function in an error of contextlib, which does not."""
        if str(error).startswith("generator didn't"):
            way_out = "each run of it reaches one yield, and no second one"
            raise BadMiddleware(f"{self._wrapper.kind} {self._wrapper.name}: {error}; {way_out}") from error


class Around:
    """The middleware of one job, the outermost first."""

    def __init__(self, wrappers: Sequence[Wrapper]) -> None:
        self._wrappers = wrappers

    def call(self, context: Context, handler: Callable[[], Any]) -> Any:
        """What the handler returns; None if a middleware swallowed its exception."""
        with ExitStack() as stack:
            for wrapper in self._wrappers:
                stack.enter_context(wrapper.enter(context))
            return handler()

    async def acall(self, context: Context, handler: Callable[[], Any]) -> Any:
        async with AsyncExitStack() as stack:
            for wrapper in self._wrappers:
                if wrapper.is_async:
                    await stack.enter_async_context(wrapper.enter(context))
                else:
                    stack.enter_context(wrapper.enter(context))
            return await handler()

    def refuse_async(self, name: str) -> None:
        """A plain handler has no event loop."""
        for wrapper in self._wrappers:
            if wrapper.is_async:
                problem = f"middleware {wrapper.name} is async, but the handler of {name!r} is a plain function"
                raise BadMiddleware(f"{problem}; make one like the other: a plain generator goes around both")


def check_middleware(types: Iterable[JobType]) -> None:
    """Raise BadMiddleware if one cannot go around a handler."""
    for job_type in types:
        if job_type.around is not None and not inspect.iscoroutinefunction(job_type.handler):
            job_type.around.refuse_async(job_type.name)


class Lifespans:
    """The lifespans of an app in one worker process: entered in order, and left in the other order.

    One task enters and leaves them: some libraries insist on that.
    """

    def __init__(self, wrappers: Sequence[Wrapper]) -> None:
        self.state: dict[str, Any] = {}
        """What they have yielded: `ctx.state`."""
        self._wrappers = wrappers
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Enter all of them. If one fails, leave those before it, and raise LifespanFailed."""
        if not self._wrappers:
            return
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._task = asyncio.create_task(self._hold(opened))
        try:
            await asyncio.wait({opened, self._task}, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            self._task.cancel()
            raise
        if not opened.done():
            self._task.result()

    async def close(self) -> None:
        """Leave all of them. An error is logged: the worker has done its work."""
        if self._task is None:
            return
        task, self._task = self._task, None
        self._closing.set()
        await asyncio.wait({task}, timeout=CLOSE_SECONDS)
        if not task.done():
            log.error("a lifespan did not end within %g s", CLOSE_SECONDS)
            task.cancel()
        elif not task.cancelled() and (error := task.exception()):
            log.error("a lifespan failed when the worker stopped", exc_info=error)

    async def _hold(self, opened: asyncio.Future[None]) -> None:
        self.state.clear()
        async with AsyncExitStack() as stack:
            for wrapper in self._wrappers:
                try:
                    entering = wrapper.enter()
                    if wrapper.is_async:
                        self._add(await stack.enter_async_context(entering))
                    else:
                        self._add(stack.enter_context(entering))
                except Exception as error:
                    problem = f"lifespan {wrapper.name} failed, so the worker cannot start"
                    where = wrapper.line_of(error)
                    raise LifespanFailed(f"{problem}: {type(error).__name__}: {error}{where}") from error
            opened.set_result(None)
            await self._closing.wait()

    def _add(self, found: Any) -> None:
        if found is None:
            return
        if not isinstance(found, Mapping):
            raise TypeError(f"it yielded {found!r}; yield a dict, which handlers find in ctx.state")
        if twice := found.keys() & self.state.keys():
            raise ValueError(f"another lifespan has yielded {sorted(twice)[0]!r} already; choose another name")
        self.state.update(found)
