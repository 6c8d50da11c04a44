"""Where a URL leads: `libsql://host` by TLS, `libsql+http://host:8080` without, and the token that opens it."""

from __future__ import annotations

import ipaddress
import os
import re
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

from treadle.errors import BadURL

SCHEMES = {"libsql": True, "libsql+https": True, "libsql+http": False}
"""Each with whether it is by TLS."""
TOKEN_VARIABLES = ("TREADLE_LIBSQL_TOKEN", "LIBSQL_AUTH_TOKEN", "TURSO_AUTH_TOKEN")
WRITE = "write libsql://name.turso.io for a server with TLS, libsql+http://127.0.0.1:8080 for one without"

IN_CLEAR = (
    "without TLS, anyone on the network could read the token; write libsql:// for a server with TLS, "
    "or add ?tokenInClear=1 if you trust the network, or take the token away"
)


class Endpoint(NamedTuple):
    host: str
    port: int
    tls: bool
    token: str | None
    where: str
    """The URL without its token."""
    in_clear: bool = False
    """The token may be sent without TLS to another machine."""


def read(url: str) -> Endpoint:
    where, parts = _bare(url), urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        raise BadURL(where, f"its port is not a number; {WRITE}") from None
    if parts.scheme not in SCHEMES or not parts.hostname or parts.path.strip("/"):
        raise BadURL(where, WRITE)
    if parts.username or parts.password:
        raise BadURL(where, "a token is given as ?authToken=…, or better in $TREADLE_LIBSQL_TOKEN")
    options = dict(parse_qsl(parts.query))
    given, in_clear = options.pop("authToken", ""), options.pop("tokenInClear", "") == "1"
    if options:
        raise BadURL(where, f"unknown option {', '.join(options)}; there are authToken and tokenInClear=1")
    token, tls = _token(where, given), SCHEMES[parts.scheme]
    if token and not (tls or in_clear or is_loopback(parts.hostname)):
        raise BadURL(where, IN_CLEAR)
    return Endpoint(parts.hostname, port or (443 if tls else 80), tls, token, where, in_clear)


def _token(where: str, given: str) -> str | None:
    """The token in the URL, or else in the environment. One that was read from a file ends with a line break."""
    token = (given or next(filter(None, map(os.environ.get, TOKEN_VARIABLES)), "")).strip()
    if token and not re.fullmatch(r"[!-~]+", token):  # http.client would refuse it too, and show it
        raise BadURL(where, "its token has a blank, a line break or a letter that no token has: copy it again")
    return token or None


def is_loopback(host: str) -> bool:
    """Whether what is sent there stays on this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _bare(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.partition('?')[0].rpartition('@')[2]}"
