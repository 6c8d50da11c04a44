"""Our own files: style, script, icons. Each address has the file's hash, so that browsers may keep it for ever."""

from __future__ import annotations

import hashlib
import mimetypes
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from treadle.web.http import Request, Response
from treadle.web.problem import HTTPProblem
from treadle.web.route import Parameter, Route

if TYPE_CHECKING:
    from treadle.web.site import Site

FOLDER = Path(__file__).parent / "static"
FOR_EVER = "public, max-age=31536000, immutable"


class File(NamedTuple):
    content: bytes
    media: str
    hash: str


@cache
def files() -> dict[str, File]:
    """All of them, read once: a name is looked up here and never opened as a path."""
    return {path.name: _read(path) for path in sorted(FOLDER.iterdir()) if path.is_file()}


def _read(path: Path) -> File:
    content = path.read_bytes()
    media = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return File(content, media, hashlib.sha256(content).hexdigest()[:16])


def version(name: str) -> str:
    return files()[name].hash


def get(site: Site, request: Request) -> Response:
    file = files().get(request.path["name"])
    if file is None:
        raise HTTPProblem(404, f"there is no file {request.path['name']!r}", "reload the page")
    kept = FOR_EVER if request.query["v"] == file.hash else "no-cache"
    headers = {"Cache-Control": kept, "ETag": f'"{file.hash}"'}
    if request.raw.headers.get("if-none-match") == headers["ETag"]:
        return Response(status=304, text=b"", media=file.media, headers=headers)
    return Response(text=file.content, media=file.media, headers=headers)


def robots(site: Site, request: Request) -> Response:
    return Response(text="User-agent: *\nDisallow: /\n", media="text/plain; charset=utf-8")


ROUTES = (
    Route(
        method="GET",
        path="/static/{name}",
        do=get,
        scope=None,
        summary="A file of the pages",
        parameters=(Parameter("v", str, "The file's hash", default=""),),
        page=True,
    ),
    Route(method="GET", path="/robots.txt", do=robots, scope=None, summary="Nothing here is for robots", page=True),
)
