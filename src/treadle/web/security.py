"""Checks on every request (its host, its origin), and the headers of every response."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.requests import Request as RawRequest

from treadle.web.problem import HTTPProblem

LOOPBACK = ("localhost", "127.0.0.1", "::1")
SAFE = ("GET", "HEAD", "OPTIONS")
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors "
)
"""Nothing from elsewhere, nothing inline, nothing evaluated."""


def headers(frame_ancestors: str) -> dict[str, str]:
    """On every response, problems too."""
    return {
        "Content-Security-Policy": CSP + frame_ancestors,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "X-Robots-Tag": "noindex, nofollow",
        "Cache-Control": "no-store",
    }


def host_of(authority: str) -> str:
    """The name in a Host header or an origin, without its port: `[::1]:8420` is `::1`."""
    try:
        return (urlsplit(f"//{authority}").hostname or "").lower()
    except ValueError:
        return ""


def check_host(request: RawRequest, hosts: Collection[str] | None) -> None:
    """Against DNS rebinding: a foreign domain that resolves to this machine. None allows any host."""
    given = request.headers.get("host", "")
    if hosts is not None and (host := host_of(given)) not in hosts:
        ways = f"hosts=[{host!r}] in td.asgi(), or --allow-host of treadle dashboard"
        way_out = f"request for it as {', '.join(sorted(hosts))}, or name it: {ways}"
        raise HTTPProblem(421, f"this server is not known as {given!r}", way_out)


def check_origin(request: RawRequest) -> None:
    """Against cross-site requests: a change comes from our own pages, or from a program with a token.

    A bearer token is proof enough: no browser sends one by itself, and CORS lets no other site add one.
    """
    if request.method in SAFE or request.headers.get("authorization", "").lower().startswith("bearer "):
        return
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        if site in ("same-origin", "none"):
            return
        raise _refused(f"the request comes from another site (Sec-Fetch-Site: {site})")
    if origin is None:
        raise _refused("the request has neither Origin nor Sec-Fetch-Site")
    if (authority := _authority(origin)) is None or authority != request.headers.get("host", "").lower():
        raise _refused(f"the request comes from {origin!r}")


def _authority(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


def _refused(what: str) -> HTTPProblem:
    way_out = "use the dashboard's own pages, or send a token: Authorization: Bearer …  (treadle tokens create)"
    return HTTPProblem(403, what, way_out, code="cross-site")
