"""What a reader may choose for themselves: zone and theme. It is kept in cookies and changes nothing for others."""

from __future__ import annotations

from treadle.web.formatting import THEME, ZONE, zones
from treadle.web.http import Request, Response
from treadle.web.render import render
from treadle.web.route import Parameter, Route
from treadle.web.site import Site

YEAR = 31_536_000


def settings(site: Site, request: Request) -> Response:
    back = _back(request)
    return render(site, request, "settings.html", place="settings", zones=zones(), back=back, here=back)


def save(site: Site, request: Request) -> Response:
    """One cookie per answer: headers are a mapping, and a form sets one thing."""
    headers = {"Location": _back(request)}
    zone, theme = request.query["zone"], request.query["theme"]
    if zone in zones() or zone == "browser":
        headers["Set-Cookie"] = _cookie(request, ZONE, "" if zone == "browser" else zone)
    elif theme in ("light", "dark", "system"):
        headers["Set-Cookie"] = _cookie(request, THEME, "" if theme == "system" else theme)
    return Response(status=303, text="", media="text/plain", headers=headers)


def _cookie(request: Request, name: str, value: str) -> str:
    age = YEAR if value else 0
    return f"{name}={value}; Path={request.url('/')}; Max-Age={age}; SameSite=Lax"


def _back(request: Request) -> str:
    """Where they came from, if that is a page of ours."""
    back, home = request.query["back"], request.url("/")
    ours = back.startswith(home) and not back.startswith("//") and "\\" not in back and back.isprintable()
    return back if ours else home


ROUTES = (
    Route(
        method="GET",
        path="/settings",
        do=settings,
        summary="Zone and theme",
        parameters=(Parameter("back", str, "Where to go back to", default=""),),
        page=True,
    ),
    Route(
        method="GET",
        path="/settings/save",
        do=save,
        summary="Choose a zone or a theme",
        parameters=(
            Parameter("zone", str, "A time zone", default=""),
            Parameter("theme", str, "light, dark or system", default=""),
            Parameter("back", str, "Where to go back to", default=""),
        ),
        page=True,
    ),
)
