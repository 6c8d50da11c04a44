"""What every template can say: the words of this reader, and where they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treadle.job import STATE_NAMES, STATE_OF, SUMMARY, WAITING
from treadle.units import format_duration
from treadle.web import formatting
from treadle.web.http import Request

if TYPE_CHECKING:
    from treadle.web.site import Site

PLACES = (
    ("overview", "/", "Overview", False),
    ("jobs", "/jobs", "Jobs", True),
    ("failures", "/failures", "Failures", False),
    ("workers", "/workers", "Workers", False),
    ("insights", "/insights", "Insights", True),
    ("audit", "/audit", "Audit", False),
)
"""Key, path, name, and whether those bound to a tenant may see it."""


def said(site: Site, request: Request) -> dict[str, Any]:
    return {
        "say": formatting.of(request),
        "here": request.url("/").rstrip("/")
        + _path(request.raw.url.path, request)
        + (f"?{request.raw.url.query}" if request.raw.url.query else ""),
        "places": [place for place in PLACES if place[0] != "audit" or request.caller.may("manage")],
        "states": STATE_OF,
        "summary": SUMMARY,
        "filter_statuses": f"{', '.join(STATE_NAMES)}; pending is {', '.join(WAITING)}",
        "number": formatting.number,
        "share": formatting.share,
        "money": formatting.money,
        "short": formatting.short,
        "span": format_duration,
        "capital": capital,
        "dict": dict,
    }


def _path(path: str, request: Request) -> str:
    """The path below the mount: some servers give it with the mount's prefix, some without."""
    prefix = request.url("/").rstrip("/")
    return path.removeprefix(prefix) if prefix else path


def capital(text: str) -> str:
    """The first letter large, as a sentence has it."""
    return text[:1].upper() + text[1:].rstrip(".")
