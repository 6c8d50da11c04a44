"""HTML from templates, and the files that pages load. Everything is escaped, and an unknown name is an error."""

from __future__ import annotations

import hashlib
import mimetypes
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2

from treadle.filters import Filter
from treadle.ids import worker_name
from treadle.job import STATE_NAMES, STATE_OF, SUMMARY, WAITING
from treadle.program import as_called
from treadle.units import format_duration
from treadle.version import __version__
from treadle.views import attempt_outcome
from treadle.web.formatting import formatter_for, money, number, sentence, share, short, times
from treadle.web.problem import HTTPProblem
from treadle.web.route import Request, Response, get, html, in_ascii

STATIC = Path(__file__).parent / "static"
FOREVER = "public, max-age=31536000, immutable"
NAVIGATION = (
    ("overview", "/", "Overview", False),
    ("jobs", "/jobs", "Jobs", True),
    ("failures", "/failures", "Failures", False),
    ("workers", "/workers", "Workers", False),
    ("schedules", "/schedules", "Schedules", True),
    ("batches", "/batches", "Batches", True),
    ("insights", "/insights", "Insights", True),
    ("audit", "/audit", "Audit", False),
)
"""Key, path, name, and whether callers bound to a tenant may see it."""


TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)
"""Templates are code, not state: all mounts share them."""
TEMPLATES.globals.update(
    version=__version__,
    states=STATE_OF,
    summary=SUMMARY,
    filter_statuses=f"{', '.join(STATE_NAMES)}; pending is {', '.join(WAITING)}",
    duration=format_duration,
    start_worker="treadle worker app:td",
    **{
        function.__name__: function
        for function in (as_called, number, times, share, money, short, sentence, attempt_outcome, worker_name)
    },
)


def render(request: Request, template: str, /, *, status: int = 200, **values: Any) -> Response:
    """A page. Templates get `values`, what `_common` returns, and the globals above."""
    return html(TEMPLATES.get_template(template).render(**{**_common(request), **values}), status)


def _common(request: Request) -> dict[str, Any]:
    """What every template can use: this reader's formatter, where they are, and how addresses are made."""
    return {
        "web": request.web,
        "caller": request.caller,
        "url": request.url,
        "may_manage": may_manage(request),
        "may_enqueue": request.caller.may("enqueue") and not request.web.read_only,
        "jobs_url": partial(_jobs_url, request),
        "static": lambda name: request.url(f"/static/{name}", v=static_files()[name].hash),
        "fmt": formatter_for(request),
        "here": _here(request),
        "navigation": [entry for entry in NAVIGATION if _may_see(request, *entry)],
    }


def may_manage(request: Request) -> bool:
    """Whether to show buttons. The routes decide again."""
    return request.caller.may("manage") and not request.web.read_only


def _jobs_url(request: Request, **fields: str) -> str:
    """The list of jobs that a Filter with one value for each of these fields finds."""
    values: dict[str, Any] = {name: (value,) for name, value in fields.items()}
    return request.url("/jobs", q=str(Filter(**values)))


def _may_see(request: Request, key: str, path: str, name: str, for_tenants: bool) -> bool:
    """For looks only: the routes decide."""
    return (for_tenants or request.caller.tenant is None) and (key != "audit" or request.caller.may("manage"))


def _here(request: Request) -> str:
    """This page's address. Some servers give the path with the mount's prefix, some without."""
    prefix, scope = request.url("/").rstrip("/"), request.raw.scope
    query = f"?{in_ascii(scope['query_string'])}" if scope["query_string"] else ""
    return prefix + quote(scope["path"].removeprefix(prefix)) + query


class StaticFile:
    def __init__(self, path: Path) -> None:
        self.content = path.read_bytes()
        self.media = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        self.hash = hashlib.sha256(self.content).hexdigest()[:16]


@cache
def static_files() -> dict[str, StaticFile]:
    """All of them, read once: a name is looked up here and never opened as a path."""
    return {path.name: StaticFile(path) for path in STATIC.iterdir() if path.is_file()}


@get("/static/{name}", "A file of the pages", scope=None, page=True)
def static_file(request: Request) -> Response:
    """Its address has its hash, so that browsers may keep it forever."""
    file = static_files().get(request.path["name"])
    if file is None:
        raise HTTPProblem(404, f"there is no file {request.path['name']!r}", "reload the page")
    kept = FOREVER if request.text("v") == file.hash else "no-cache"
    headers = {"Cache-Control": kept, "ETag": f'"{file.hash}"'}
    if request.raw.headers.get("if-none-match") == headers["ETag"]:
        return Response(status=304, text=b"", media=file.media, headers=headers)
    return Response(text=file.content, media=file.media, headers=headers)


@get("/robots.txt", "Nothing here is for robots", scope=None, page=True)
def robots(request: Request) -> Response:
    return Response(text="User-agent: *\nDisallow: /\n", media="text/plain; charset=utf-8")
