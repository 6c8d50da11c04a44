"""The dashboard as a Django view: `path("jobs/", include("treadle.contrib.django.urls"))`, behind the login of staff.

Who may see jobs (the permission `treadle.view_job`) reads; who may change them (`treadle.change_job`) manages. A token
of treadle works without a login.
"""

# Django has no types, and what pyright infers from its code is wrong here.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from functools import cache
from typing import Any

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseNotFound
from django.urls import NoReverseMatch, reverse
from django.views.decorators.csrf import csrf_exempt

from treadle.contrib.django.app import project_app
from treadle.contrib.django.store import lend
from treadle.web.app import WebApp
from treadle.web.auth import EVERYTHING, Principal
from treadle.web.problem import HTTPProblem

LONGEST = 60.0
"""Seconds that a request may take."""
Caller = Principal | HTTPProblem | None
"""Who is signed in, or why they may not see jobs. None: nobody is."""


@csrf_exempt  # the dashboard checks where a request comes from by itself
@login_not_required  # and who sent it: LoginRequiredMiddleware knows no tokens
def dashboard(request: HttpRequest, path: str) -> HttpResponseBase:
    user: Any = getattr(request, "user", None)
    caller = _caller(user) if user is not None and user.is_active and user.is_staff else None
    has_token = request.headers.get("authorization", "").lower().startswith("bearer ")
    if caller is None and not has_token and not path.startswith("api/"):
        return redirect_to_login(request.get_full_path(), _login_url())
    if path == "api/events":
        return HttpResponseNotFound()  # a stream would keep a worker of the server; pages poll instead
    app = project_app()
    if not app.in_test:
        return _wait_for(_ask(_web(), request, path, caller))
    with lend(str(app.alias)):  # another connection would not see what the test has written
        return _wait_for(_ask(_new_web(), request, path, caller))


def _caller(user: Any) -> Caller:
    if user.has_perm("treadle.change_job"):
        return Principal(name=user.get_username(), scopes=EVERYTHING)
    if user.has_perm("treadle.view_job"):
        return Principal(name=user.get_username(), scopes=frozenset({"read"}))
    way_out = "a superuser gives it to a user or a group in the admin: Can view job"
    return HTTPProblem(403, "you need the permission treadle.view_job", way_out)


def _login_url() -> str:
    try:
        return str(reverse("admin:login"))
    except NoReverseMatch:
        return str(settings.LOGIN_URL)


def _wait_for(answer: Coroutine[Any, Any, HttpResponse]) -> HttpResponse:
    return asyncio.run_coroutine_threadsafe(answer, _loop()).result(LONGEST)


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="treadle-dashboard", daemon=True).start()
    return loop


def _new_web() -> WebApp:
    return WebApp(project_app(), auth=_identify)


_web = cache(_new_web)
"""The dashboard of this process. A test has a new one for each request: what it caches may be rolled back."""


def _identify(request: Any) -> Principal | None:
    """Who the view has found. Tokens of treadle are looked at before."""
    caller: Caller = request.scope["treadle.caller"]
    if isinstance(caller, HTTPProblem):
        raise caller
    return caller


async def _ask(web: WebApp, request: HttpRequest, path: str, caller: Caller) -> HttpResponse:
    body, chunks = request.body, []
    answer: dict[str, Any] = {"status": 500, "headers": []}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            answer.update(message)
        else:
            chunks.append(message.get("body", b""))

    await web(_scope(request, path, caller), receive, send)
    response = HttpResponse(b"".join(chunks), status=answer["status"])
    for name, value in answer["headers"]:
        response[name.decode("latin-1")] = value.decode("latin-1")
    return response


def _scope(request: HttpRequest, path: str, caller: Caller) -> dict[str, Any]:
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in request.headers.items()]
    return {
        "type": "http",
        "http_version": "1.1",
        "asgi": {"version": "3.0"},
        "method": request.method,
        "scheme": request.scheme,
        "root_path": request.path.removesuffix(path).rstrip("/"),
        "path": request.path,
        "raw_path": request.path.encode(),
        "query_string": request.META.get("QUERY_STRING", "").encode("latin-1"),
        "headers": headers,
        "client": (request.META.get("REMOTE_ADDR", ""), 0),
        "server": (request.META.get("SERVER_NAME", ""), int(request.META.get("SERVER_PORT") or 0)),
        "treadle.caller": caller,
    }
