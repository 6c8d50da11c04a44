"""A reader's own choices: time zone and theme. They are kept in cookies and change nothing for others."""

from __future__ import annotations

from treadle.web.formatting import THEME, ZONE, zones
from treadle.web.render import render
from treadle.web.route import Request, Response, get, redirect

YEAR = 31_536_000


@get("/settings", "Zone and theme", page=True)
def settings(request: Request) -> Response:
    back = _back(request)
    return render(request, "settings.html", current_page="settings", zones=zones(), back=back, here=back)


@get("/settings/save", "Choose a zone or a theme", page=True)
def save(request: Request) -> Response:
    """One cookie per response: headers are a mapping, and a form sets one thing."""
    zone, theme = request.text("zone"), request.text("theme")
    cookie = {}
    if zone in zones() or zone == "browser":
        cookie = _set_cookie(request, ZONE, "" if zone == "browser" else zone)
    elif theme in ("light", "dark", "system"):
        cookie = _set_cookie(request, THEME, "" if theme == "system" else theme)
    return redirect(_back(request), cookie)


def _set_cookie(request: Request, name: str, value: str) -> dict[str, str]:
    age = YEAR if value else 0
    return {"Set-Cookie": f"{name}={value}; Path={request.url('/')}; Max-Age={age}; SameSite=Lax"}


def _back(request: Request) -> str:
    """Where they came from, if that is one of our pages."""
    back, home = request.text("back"), request.url("/")
    ours = back.startswith(home) and not back.startswith("//") and "\\" not in back and back.isprintable()
    return back if ours else home
