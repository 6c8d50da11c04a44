"""Who the caller is, and what they may do: by a token of treadle, or by the mount's own `auth=`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Set
from typing import TYPE_CHECKING, Any

import msgspec
from anyio import CapacityLimiter, to_thread
from starlette.requests import Request as RawRequest
from starlette.responses import RedirectResponse

from treadle import api_tokens
from treadle.api_tokens import SCOPES
from treadle.stores.base import Store

if TYPE_CHECKING:
    from treadle.web.app import WebApp

EVERYTHING = frozenset(SCOPES)
TOKEN_SECONDS = 0.5
"""A token is not looked up again for this long: a revoked one is refused after at most that."""


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """A caller who is let in: a name for the audit, scopes, and a tenant if they may see only that tenant's jobs."""

    name: str = ""
    scopes: frozenset[str] = frozenset()
    tenant: str | None = None

    def may(self, scope: str | None) -> bool:
        """Whether they have this scope. `manage` includes the others."""
        return scope is None or scope in self.scopes or "manage" in self.scopes


NOBODY = Principal()
OUTSIDE_FLASK = """auth runs outside of every context of Flask; open the visitor's own in it:
with app.request_context(request.scope["wsgi_environ"]): …"""
AuthResult = Principal | str | Set[str] | RedirectResponse | None
Auth = Callable[[RawRequest], AuthResult | Awaitable[AuthResult]]


class Redirected(Exception):
    """The mount's `auth` sends the caller elsewhere, to sign in."""

    def __init__(self, response: RedirectResponse) -> None:
        super().__init__(response.headers.get("location"))
        self.response = response


def nobody(request: RawRequest) -> None:
    """For `auth=`: only tokens and sessions let in."""


async def authenticate(auth: Auth, request: RawRequest, limiter: CapacityLimiter) -> Principal | None:
    """What the mount's own `auth` says about this request. A sync one runs in a thread."""
    try:
        return as_principal(await _answer(auth, request, limiter), request)
    except RuntimeError as error:
        if "wsgi_environ" in request.scope and str(error).startswith("Working outside of"):
            error.add_note(OUTSIDE_FLASK)
        raise


async def _answer(auth: Auth, request: RawRequest, limiter: CapacityLimiter) -> Any:
    if inspect.iscoroutinefunction(auth) or inspect.iscoroutinefunction(getattr(auth, "__call__", None)):  # noqa: B004
        result: Any = await auth(request)  # type: ignore[misc]
    else:
        result = await to_thread.run_sync(auth, request, limiter=limiter)
        if inspect.isawaitable(result):
            result = await result
    return result


def as_principal(result: Any, request: RawRequest) -> Principal | None:
    """None, a Principal, "read", "manage" or a set of scopes; raises Redirected for a redirect. Anything else is an
    error, and the caller is refused."""
    name = str(getattr(request.scope.get("user"), "display_name", "") or "") if "user" in request.scope else ""
    match result:
        case None:
            return None
        case Principal() if result.scopes <= EVERYTHING:
            return result
        case "read":
            return Principal(name=name or "reader", scopes=frozenset({"read"}))
        case "manage":
            return Principal(name=name or "manager", scopes=EVERYTHING)
        case set() | frozenset() if result <= EVERYTHING:
            return Principal(name=name or "somebody", scopes=frozenset(result))
        case RedirectResponse():
            raise Redirected(result)
    ways = f'None, a Principal, "read", "manage", a set of some of {", ".join(SCOPES)}, or a RedirectResponse'
    raise TypeError(f"auth returned {result!r}; return {ways}")


def bearer_token(request: RawRequest) -> str | None:
    """The token in the header, if treadle made it. An app may have its own tokens, which its `auth` checks."""
    kind, _, secret = request.headers.get("authorization", "").partition(" ")
    secret = secret.strip()
    return secret if kind.lower() == "bearer" and secret.startswith(api_tokens.PREFIX) else None


def token_owner(web: WebApp, secret: str) -> Principal | None:
    """The caller that a token stands for. None if the token is unknown, revoked or expired, or is a login link."""
    if len(secret) != api_tokens.LENGTH:
        return None
    hash = api_tokens.hash_of(secret)
    return web.tokens.get(hash, TOKEN_SECONDS, lambda: _look_up(web.app.store, hash))


def _look_up(store: Store, hash: str) -> Principal | None:
    token = store.token(hash)
    if token is None or not token.scopes or api_tokens.is_expired(token.expires_at, store.now()):
        return None
    return Principal(name=token.name, scopes=frozenset(token.scopes), tenant=token.tenant or None)
