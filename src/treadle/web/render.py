"""HTML from templates: everything is escaped, and a name that is not there is an error."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from treadle.version import __version__
from treadle.web import files
from treadle.web.http import Request, Response, html
from treadle.web.pages.template_globals import said

if TYPE_CHECKING:
    from treadle.web.site import Site

TEMPLATES = Path(__file__).parent / "templates"


@cache
def environment() -> jinja2.Environment:
    """Templates are code, not state: all mounts share them."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )


def render(site: Site, request: Request, template: str, /, *, status: int = 200, **values: Any) -> Response:
    """A page. Templates have `site`, `request`, `caller`, `url(path, **query)`, `static(name)`, `version`, and what is
    in pages/template_globals.py too."""
    text = (
        environment()
        .get_template(template)
        .render(
            site=site,
            request=request,
            caller=request.caller,
            url=request.url,
            static=lambda name: request.url(f"/static/{name}", v=files.version(name)),
            version=__version__,
            **{**said(site, request), **values},
        )
    )
    return html(text, status)
