"""`td.asgi(…)`: the dashboard and the API of one app, to be mounted in any ASGI server or framework."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from treadle.errors import BadOption
from treadle.web import security
from treadle.web.app import WebApp
from treadle.web.auth import Auth, allow_everyone
from treadle.web.login import Login
from treadle.web.routes import ROUTES
from treadle.web.site import Site

if TYPE_CHECKING:
    from treadle.app import Treadle


def asgi(
    app: Treadle,
    *,
    auth: Auth | Login,
    read_only: bool = False,
    hosts: Collection[str] | None = None,
    frame_ancestors: str = "'none'",
    title: str = "treadle",
    price: float | None = None,
) -> WebApp:
    """What `td.asgi` returns. Who lets everyone in answers to this machine's own names only, unless `hosts` says."""
    if not callable(auth) and not isinstance(auth, Login):
        way_out = "a function of the request; treadle.web.allow_everyone lets everybody do everything"
        raise BadOption("auth", auth, way_out)
    if hosts is None and auth is allow_everyone:
        hosts = security.LOOPBACK
    site = Site(app, auth, read_only=read_only, hosts=hosts, frame_ancestors=frame_ancestors, title=title, price=price)
    return WebApp(site, ROUTES)
