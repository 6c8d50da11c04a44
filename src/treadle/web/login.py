"""The login of a mount without an `auth` of its own: a printed link that works once, a password or a proxy's header."""

from __future__ import annotations

import base64
import hmac
import ipaddress
import logging
import secrets
import threading
import time
from collections import deque
from typing import TYPE_CHECKING
from urllib.parse import quote

from markupsafe import Markup
from starlette.requests import Request as RawRequest

from treadle import api_tokens, clock
from treadle.api_tokens import LINK, SCOPES, SESSION
from treadle.errors import TreadleError
from treadle.stores.base import Store
from treadle.stores.rows import Token
from treadle.web.auth import EVERYTHING, Principal, token_owner
from treadle.web.problem import HTTPProblem
from treadle.web.proxy_login import USER
from treadle.web.route import Response, html

if TYPE_CHECKING:
    from treadle.web.app import WebApp

LINK_SECONDS, SESSION_SECONDS = 3600, 12 * 3600
MAX_GUESSES, MAX_GUESSES_OF_ALL, GUESS_SECONDS = 10, 100, 60.0
"""Wrong passwords of one address, and of all together, within this many seconds."""
MAX_KNOWN = 1_000
log = logging.getLogger("treadle.web")


class Login:
    """Links and sessions are tokens in the database: every process of a web server accepts them, and they can be
    revoked. A session outlives a restart."""

    def __init__(self, *, user: str = "", password: str = "") -> None:
        self._offered = ""
        """The hash of the link that this process has printed."""
        self._offering = threading.Lock()
        self._user, self._password = user, password
        self._guesses = Guesses()

    @property
    def has_password(self) -> bool:
        return bool(self._user and self._password)

    def identify(self, web: WebApp, request: RawRequest) -> Principal | None:
        if user := request.scope.get(USER):
            return Principal(name=user, scopes=EVERYTHING)
        secret = request.cookies.get(cookie_name(request))
        if secret and (found := token_owner(web, secret)) is not None:
            return found
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        return self._by_password(request, given) if self.has_password and kind.lower() == "basic" else None

    def new_code(self, store: Store) -> str:
        """The secret of a new link. Links and sessions that have expired are deleted first."""
        code, now = secrets.token_urlsafe(32), store.now()
        for token in store.tokens():
            if token.name.startswith(SESSION) and api_tokens.is_expired(token.expires_at, now):
                store.drop_token(token.name)
        self._offered = _add(store, code, LINK, (), LINK_SECONDS)
        return code

    def offer(self, web: WebApp, request: RawRequest | None = None) -> None:
        """Print a link to the log, unless a password is expected or the link that was printed last still works."""
        if self.has_password:
            return
        try:
            with self._offering:
                if not self._offered or _find(web.app.store, self._offered) is None:
                    where = "add this to its address: " if request is None else _address(request)
                    log.warning("sign in to the dashboard once; %s?login=%s", where, self.new_code(web.app.store))
        except TreadleError as error:
            log.error("there is no link to sign in with: %s", error)

    def log_in(self, web: WebApp, request: RawRequest) -> Response | None:
        """The response to a login link: a page that sets the session's cookie. None for any other request."""
        given = request.query_params.get("login")
        if given is None or request.method != "GET":
            return None
        here, cookie = f"{request.scope.get('root_path', '').rstrip('/')}/", {}
        if self.identify(web, request) is None:
            link = _find(web.app.store, api_tokens.hash_of(given))
            if link is None or not web.app.store.drop_token(link.name):  # only one of several requests can delete it
                self.offer(web, request)
                problem = "this login link was used before, has expired, or is not from this server"
                raise HTTPProblem(403, problem, "use the newest link that the server printed")
            cookie = {"Set-Cookie": self._session(web, request, here)}
        return html(_WELCOME.format(here), headers=cookie)

    def _session(self, web: WebApp, request: RawRequest, path: str) -> str:
        secret = api_tokens.new_secret()
        _add(web.app.store, secret, SESSION, SCOPES, SESSION_SECONDS)
        secure = "; Secure" if request.url.scheme == "https" else ""
        options = f"Path={path}; Max-Age={SESSION_SECONDS}; HttpOnly; SameSite=Strict{secure}"
        return f"{cookie_name(request)}={secret}; {options}"

    def _by_password(self, request: RawRequest, given: str) -> Principal | None:
        try:
            user, _, password = base64.b64decode(given, validate=True).partition(b":")
        except ValueError:  # not Base64, or not even ASCII
            return None
        right = hmac.compare_digest(user, self._user.encode()) & hmac.compare_digest(password, self._password.encode())
        accepted = self._guesses.accept(request.client.host if request.client else "", right)
        return Principal(name=self._user, scopes=EVERYTHING) if accepted else None


class Guesses:
    """Bounds how many wrong passwords are tried, by one address and by all together.

    An address that has had the right password before is not held up by the guesses of others.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wrong: deque[tuple[float, str]] = deque()
        self._known: set[str] = set()

    def accept(self, address: str, right: bool) -> bool:
        """Whether the password is right. Raises, whatever the password is, if there were too many wrong ones."""
        whose, now = _network(address), time.monotonic()
        with self._lock:
            while self._wrong and self._wrong[0][0] < now - GUESS_SECONDS:
                self._wrong.popleft()
            mine = sum(theirs == whose for _, theirs in self._wrong)
            if mine >= MAX_GUESSES or (len(self._wrong) >= MAX_GUESSES_OF_ALL and whose not in self._known):
                headers, way_out = {"Retry-After": f"{GUESS_SECONDS:g}"}, "wait a minute, or use a token"
                raise HTTPProblem(429, "too many wrong passwords", way_out, headers=headers)
            if not right:
                self._wrong.append((now, whose))
            elif len(self._known) < MAX_KNOWN:
                self._known.add(whose)
        return right


def _network(address: str) -> str:
    """Whose address it is: of IPv6 addresses one customer has 2^64."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv4Address):
        return address
    return str(ip.ipv4_mapped or ipaddress.ip_network((ip, 64), strict=False))


def _add(store: Store, secret: str, kind: str, scopes: tuple[str, ...], seconds: int) -> str:
    """Store a secret that is valid for this long. Return its hash."""
    now, hash = store.now(), api_tokens.hash_of(secret)
    name = f"{kind}{clock.to_datetime(now):%Y-%m-%d %H:%M:%S} {secrets.token_hex(3)}"
    store.add_token(Token(hash=hash, name=name, scopes=scopes, expires_at=now + clock.seconds(seconds)))
    return hash


def _find(store: Store, hash: str) -> Token | None:
    """The link with this hash, if it can still be used."""
    token = store.token(hash)
    works = token and token.name.startswith(LINK) and not api_tokens.is_expired(token.expires_at, store.now())
    return token if works else None


def _address(request: RawRequest) -> str:
    """Where this process listens. Not the request's Host: a stranger who sets that would make the link lead to them."""
    host, port = request.scope.get("server") or ("", None)
    name = f"[{host}]" if ":" in host else host
    place = f"{request.url.scheme}://{name}:{port}" if port else ""
    return f"{place}{quote(request.scope.get('root_path', '').rstrip('/'))}/"


def cookie_name(request: RawRequest) -> str:
    """Browsers send a cookie to every port of a host: two dashboards on one machine need two names."""
    server = request.scope.get("server")
    return f"treadle_{server[1] if server else 0}"


# A page, not a redirect: after a redirect from another site's link, the browser would not send the new cookie.
_WELCOME = Markup(
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>treadle</title>'
    '<meta http-equiv="refresh" content="0;url={0}"><p>Signed in. <a href="{0}">Continue</a></p></html>'
)
