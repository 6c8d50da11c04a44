"""Who asks: what `auth=` answers, and what it may answer."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Set
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from treadle.tokens import SCOPES
from treadle.web.principal import Principal

Answer = Principal | str | Set[str] | None
Auth = Callable[[Request], Answer | Awaitable[Answer]]

EVERYTHING = frozenset(SCOPES)


def allow_everyone(request: Request) -> Principal:
    """For `auth=`: whoever reaches this server may do everything. Spell it out only where that is true."""
    return Principal(name="everyone", scopes=EVERYTHING)


def nobody(request: Request) -> None:
    """Only tokens and sessions let in."""


async def ask(auth: Auth, request: Request) -> Principal | None:
    """What the app's own `auth` says of this request; a sync one runs in a thread."""
    if inspect.iscoroutinefunction(auth) or inspect.iscoroutinefunction(getattr(auth, "__call__", None)):  # noqa: B004
        answer: Any = await auth(request)  # type: ignore[misc]
    else:
        answer = await run_in_threadpool(auth, request)
        if inspect.isawaitable(answer):
            answer = await answer
    return as_principal(answer, request)


def as_principal(answer: Any, request: Request) -> Principal | None:
    """None, a Principal, "read", "manage" or a set of scopes; anything else is a mistake, and lets nobody in."""
    name = str(getattr(request.scope.get("user"), "display_name", "") or "") if "user" in request.scope else ""
    match answer:
        case None:
            return None
        case Principal() if answer.scopes <= EVERYTHING:
            return answer
        case "read":
            return Principal(name=name or "reader", scopes=frozenset({"read"}))
        case "manage":
            return Principal(name=name or "manager", scopes=EVERYTHING)
        case set() | frozenset() if answer <= EVERYTHING:
            return Principal(name=name or "somebody", scopes=frozenset(answer))
    ways = f'None, a Principal, "read", "manage" or a set of some of {", ".join(SCOPES)}'
    raise TypeError(f"auth returned {answer!r}; return {ways}")
