"""The one table of routes. Starlette's routes, the OpenAPI document and the tests are all made from it.

To add one: write a plain function `(site, ask) -> Answer` and put a `Route` into the `ROUTES` of its file; if the file
is new, name it here. The rules:

- A function is sync and runs in a thread. It asks `site.app`, the Treadle; `site.cached(key, seconds, make)` for what
  many ask at once. It never sees a body, a header or a parameter that was not checked: `ask.query["limit"]` is an int
  within its bounds, `ask.body` a Struct, `ask.form` the fields of a page's form, `ask.path["id"]` a text.
- `scope` is what the caller needs: read, enqueue, tick, manage; None is open to all. It is checked before the function
  runs; nothing else decides who may do what. Templates hide a button with `ask.who.may("manage")` for looks only.
- `ask.who.tenant` is None, or the only tenant that the caller may see: filters, counts and enqueues are forced to it,
  and a job of another tenant is not found. A route that cannot do so says `for_tenants=False`, and they get 403.
- What is wrong is raised: errors of treadle become problems by themselves (web/problem.py), others are
  `raise Problem(status, what, next_step)`. Pages show the same problem as HTML.
- GET changes nothing. What changes something is POST or DELETE, and is left out of a read-only site. It calls
  `site.note(ask, action, what, count)` when it is done, which is the audit.
- Payloads, results, errors and tracebacks go through `treadle.redact` before they leave.
- Pages: `render(site, ask, "jobs.html", **values)`; every link by `url("/jobs", q=…)`, every file by `static("x.css")`,
  so that any prefix works. No inline script or style: the CSP forbids both. A form's POST answers `see(ask.url(…))`.
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
