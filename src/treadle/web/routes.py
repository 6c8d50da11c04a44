"""The one table of routes. Starlette's routes, the OpenAPI document and the tests are all made from it.

To add one: write a plain function `(site, request) -> Response` and put a `Route` into the `ROUTES` of its file; if the
file is new, name it here. The rules:

- An endpoint is sync and runs in a thread. It uses `site.app`, the Treadle, and `site.cached(key, seconds, make)` for
  what many callers need at once. Everything it gets was checked: `request.query["limit"]` is an int within its bounds,
  `request.body` a Struct, `request.form` the fields of a page's form, `request.path["id"]` a string.
- `scope` is what the caller needs: read, enqueue, tick, manage; None is open to all. It is checked before the endpoint
  runs, and nowhere else. Templates hide a button with `caller.may("manage")`, which protects nothing.
- `request.caller.tenant` is None, or the only tenant that the caller may see: filters, counts and enqueues are forced
  to it, and a job of another tenant is not found. A route that cannot do so says `for_tenants=False`: they get 403.
- Errors are raised: treadle's own become problems by themselves (web/problem.py), for others
  `raise HTTPProblem(status, detail, next_step)`. Pages show the same problem as HTML.
- GET changes nothing. What changes something is POST or DELETE, is left out of a read-only site, and ends with
  `site.audit(request, action, what, count)`.
- Payloads, results, errors and tracebacks go through `treadle.redact` before they leave.
- Pages: `render(site, request, "jobs.html", **values)`; every link by `url("/jobs", q=…)`, every file by
  `static("x.css")`, so that any prefix works. No inline script or style: the CSP forbids both. A form's POST returns
  `redirect(request.url(…))`.
"""

from __future__ import annotations

from treadle.web import files, openapi
from treadle.web.api import (
    actions,
    audit,
    bulk,
    enqueue,
    events,
    health,
    insights,
    job_list,
    jobs,
    prometheus,
    stats,
    tick,
    workers,
)
from treadle.web.pages.table import PAGES
from treadle.web.route import Route

API = (
    *job_list.ROUTES,
    *jobs.ROUTES,
    *actions.ROUTES,
    *enqueue.ROUTES,
    *bulk.ROUTES,
    *tick.ROUTES,
    *stats.ROUTES,
    *insights.ROUTES,
    *workers.ROUTES,
    *events.ROUTES,
    *audit.ROUTES,
    *health.ROUTES,
    *prometheus.ROUTES,
    *openapi.ROUTES,
)
ROUTES: tuple[Route, ...] = (*API, *PAGES, *files.ROUTES)
