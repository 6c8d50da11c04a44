"""Who the caller is, and what they may do: by a bearer token of treadle, by the mount's own `auth=`, or by `Login`."""

from __future__ import annotations

import base64
import binascii
import hmac
import inspect
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Set
from typing import TYPE_CHECKING, Any

import msgspec
from anyio import CapacityLimiter, to_thread
from markupsafe import Markup
from starlette.requests import Request as RawRequest

from treadle import api_tokens, clock
from treadle.api_tokens import SCOPES, SESSION
from treadle.stores.base import Store
from treadle.stores.rows import Token
from treadle.web.problem import HTTPProblem
from treadle.web.route import Response, html

if TYPE_CHECKING:
    from treadle.web.app import WebApp

EVERYTHING = frozenset(SCOPES)
TOKEN_SECONDS = 0.5
"""A token is not looked up again for this long: a revoked one is refused after at most that."""
SESSION_SECONDS = 12 * 3600
MAX_GUESSES, GUESS_SECONDS = 10, 60.0
"""Wrong passwords that one address may send within this many seconds."""


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """A caller who is let in: a name for the audit, scopes, and a tenant if they may see only that tenant's jobs."""

    name: str = ""
    scopes: frozenset[str] = frozenset()
    tenant: str | None = None

    def may(self, scope: str | None) -> bool:
        """Whether they have this scope. `manage` includes the others."""
        return scope is None or scope in self.scopes or "manage" in self.scopes


NOBODY = Principal()
AuthResult = Principal | str | Set[str] | None
Auth = Callable[[RawRequest], AuthResult | Awaitable[AuthResult]]


def allow_everyone(request: RawRequest) -> Principal:
    """For `auth=`: every caller may do everything. Use it only where you want that."""
    return Principal(name="everyone", scopes=EVERYTHING)


def nobody(request: RawRequest) -> None:
    """For `auth=`: only tokens and sessions let in."""


async def authenticate(auth: Auth, request: RawRequest, limiter: CapacityLimiter) -> Principal | None:
    """What the mount's own `auth` says about this request. A sync one runs in a thread."""
    if inspect.iscoroutinefunction(auth) or inspect.iscoroutinefunction(getattr(auth, "__call__", None)):  # noqa: B004
        result: Any = await auth(request)  # type: ignore[misc]
    else:
        result = await to_thread.run_sync(auth, request, limiter=limiter)
        if inspect.isawaitable(result):
            result = await result
    return as_principal(result, request)


def as_principal(result: Any, request: RawRequest) -> Principal | None:
    """None, a Principal, "read", "manage" or a set of scopes. Anything else is an error, and the caller is refused."""
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
    ways = f'None, a Principal, "read", "manage" or a set of some of {", ".join(SCOPES)}'
    raise TypeError(f"auth returned {result!r}; return {ways}")


def bearer_token(request: RawRequest) -> str | None:
    """The token in the header, if treadle made it. An app may have its own tokens, which its `auth` checks."""
    kind, _, secret = request.headers.get("authorization", "").partition(" ")
    secret = secret.strip()
    return secret if kind.lower() == "bearer" and secret.startswith(api_tokens.PREFIX) else None


def token_owner(web: WebApp, secret: str) -> Principal | None:
    """The caller that a token stands for. None if the token is unknown, revoked or expired."""
    hash = api_tokens.hash_of(secret)
    return web.cached(("token", hash), TOKEN_SECONDS, lambda: _look_up(web.app.store, hash))


def _look_up(store: Store, hash: str) -> Principal | None:
    token = store.token(hash)
    if token is None or (token.expires_at is not None and token.expires_at <= store.now()):
        return None
    return Principal(name=token.name, scopes=frozenset(token.scopes), tenant=token.tenant or None)


class Login:
    """For `auth=`. A session is a token like any other, so that it outlives a restart and can be revoked."""

    def __init__(self, *, user: str = "", password: str = "") -> None:
        self.code = secrets.token_urlsafe(32)
        """The secret of the login link. It works once."""
        self._used = False
        self._lock = threading.Lock()
        self._user, self._password = user, password
        self._wrong: dict[str, list[float]] = {}

    @property
    def has_password(self) -> bool:
        return bool(self._user and self._password)

    def identify(self, web: WebApp, request: RawRequest) -> Principal | None:
        secret = request.cookies.get(cookie_name(request))
        if secret and (found := token_owner(web, secret)) is not None:
            return found
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        return self._by_password(request, given) if self.has_password and kind.lower() == "basic" else None

    def log_in(self, web: WebApp, request: RawRequest) -> Response | None:
        """The response to a login link: a page that sets the session's cookie. None for any other request."""
        given = request.query_params.get("login")
        if given is None or request.method != "GET":
            return None
        here, cookie = f"{request.scope.get('root_path', '').rstrip('/')}/", {}
        if self.identify(web, request) is None:
            with self._lock:
                if self._used or not hmac.compare_digest(given.encode(), self.code.encode()):
                    way_out = "start treadle dashboard again; it prints a new link"
                    raise HTTPProblem(403, "this login link was used before, or is not from this server", way_out)
                self._used = True
            cookie = {"Set-Cookie": self._session(web, request, here)}
        return html(_WELCOME.format(here), headers=cookie)

    def _session(self, web: WebApp, request: RawRequest, path: str) -> str:
        """The cookie of a new session. Expired sessions are deleted first."""
        store, secret = web.app.store, api_tokens.new_secret()
        now = store.now()
        for token in store.tokens():
            if token.name.startswith(SESSION) and token.expires_at is not None and token.expires_at <= now:
                store.drop_token(token.name)
        name = f"{SESSION}{clock.to_datetime(now):%Y-%m-%d %H:%M:%S} {secrets.token_hex(3)}"
        expires_at = now + clock.seconds(SESSION_SECONDS)
        store.add_token(Token(hash=api_tokens.hash_of(secret), name=name, scopes=SCOPES, expires_at=expires_at))
        secure = "; Secure" if request.url.scheme == "https" else ""
        options = f"Path={path}; Max-Age={SESSION_SECONDS}; HttpOnly; SameSite=Strict{secure}"
        return f"{cookie_name(request)}={secret}; {options}"

    def _by_password(self, request: RawRequest, given: str) -> Principal | None:
        address = request.client.host if request.client else ""
        self._check_guesses(address)
        try:
            user, _, password = base64.b64decode(given, validate=True).partition(b":")
        except binascii.Error:
            return None
        right = hmac.compare_digest(user, self._user.encode()) & hmac.compare_digest(password, self._password.encode())
        if right:
            return Principal(name=self._user, scopes=EVERYTHING)
        self._wrong.setdefault(address, []).append(time.monotonic())
        return None

    def _check_guesses(self, address: str) -> None:
        since = time.monotonic() - GUESS_SECONDS
        with self._lock:
            if len(self._wrong) > 1_000:
                self._wrong.clear()
            recent = self._wrong[address] = [at for at in self._wrong.get(address, []) if at > since]
        if len(recent) >= MAX_GUESSES:
            headers = {"Retry-After": str(int(GUESS_SECONDS))}
            raise HTTPProblem(429, "too many wrong passwords", "wait a minute", headers=headers)


def cookie_name(request: RawRequest) -> str:
    """Browsers send a cookie to every port of a host: two dashboards on one machine need two names."""
    server = request.scope.get("server")
    return f"treadle_{server[1] if server else 0}"


# A page, not a redirect: after a redirect from another site's link, the browser would not send the new cookie.
_WELCOME = Markup(
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>treadle</title>'
    '<meta http-equiv="refresh" content="0;url={0}"><p>Signed in. <a href="{0}">Continue</a></p></html>'
)
