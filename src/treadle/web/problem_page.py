"""A problem as HTML."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.web.http import Request, Response
from treadle.web.problem import TITLES, HTTPProblem
from treadle.web.render import render

if TYPE_CHECKING:
    from treadle.web.site import Site


def problem_page(site: Site, request: Request, problem: HTTPProblem) -> Response:
    """What the API would say, for people."""
    title = TITLES[problem.status]
    return render(site, request, "problem.html", status=problem.status, problem=problem, title=title)
