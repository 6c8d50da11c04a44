"""A problem as HTML."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.web.http import Answer, Ask
from treadle.web.problem import TITLES, Problem
from treadle.web.render import render

if TYPE_CHECKING:
    from treadle.web.site import Site


def problem_page(site: Site, ask: Ask, problem: Problem) -> Answer:
    """What the API would say, for people."""
    title = TITLES[problem.status]
    return render(site, ask, "problem.html", status=problem.status, problem=problem, title=title)
