"""Errors as RFC 9457 problems: a status, a sentence and the next step."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
from starlette.exceptions import HTTPException

from treadle import errors
from treadle.program import as_called
from treadle.redact import without_password

MEDIA = "application/problem+json"
TITLES = {
    400: "Bad request",
    401: "Not signed in",
    403: "Not allowed",
    404: "Not found",
    405: "No such method",
    408: "Took too long",
    409: "Conflict",
    412: "The count has moved",
    413: "Too large",
    415: "Wrong kind of body",
    421: "Wrong host",
    422: "Another request had this key",
    429: "Too many requests",
    500: "Internal error",
    501: "Not here",
    503: "Database not usable",
}
SEE_OPENAPI = "see /api/openapi.json for what is possible"
ERRORS_BY_STATUS: dict[int, tuple[type[errors.TreadleError], ...]] = {
    404: (errors.JobNotFound, errors.ScheduleNotFound, errors.BatchNotFound, errors.NoSuchWorker, errors.UnknownLimit),
    409: (errors.WrongStatus, errors.KeyHeld, errors.ScheduleDeclared),
    412: (errors.CountMoved,),
    413: (errors.PayloadTooLarge,),
    422: (errors.RequestDiffers,),
    503: (errors.StoreBusy, errors.StoreUnusable, errors.SchemaTooNew, errors.SchemaTooOld),
}
"""The status codes of treadle's errors. Any other one is 400."""

GONE = "it was deleted or pruned, or lives in another database"
STOPPED, REMOVE = "it was stopped or declared dead", "remove it from the code and restart the workers"
NEXT_STEPS: dict[type[errors.TreadleError], tuple[str, str]] = {
    errors.JobNotFound: (GONE, f"{GONE}; GET /api/jobs lists what there is"),
    errors.NoSuchWorker: (STOPPED, f"{STOPPED}; GET /api/workers lists who works"),
    errors.KeyHeld: (
        "wait for job {0.holder}, or open it and use its Cancel button",
        "wait for that one, or cancel it first: POST /api/jobs/{0.holder}/cancel",
    ),
    errors.WrongStatus: ("go back to its page, which shows what is possible", "see it: GET /api/jobs/{0.id}"),
    errors.ScheduleNotFound: ("go back to the list of schedules", "GET /api/schedules lists what there is"),
    errors.BatchNotFound: ("go back to the list of batches", "GET /api/batches lists what there is"),
    errors.ScheduleDeclared: (f"pause it, or {REMOVE}", f"pause it: POST /api/schedule/pause; or {REMOVE}"),
    errors.BadCursor: ("go back to the first page", "send the next_cursor of an earlier page"),
    errors.StoreBusy: ("try again in a few seconds", "try again in a few seconds"),
}
"""The library's way out is a line of Python. Here it is a button of a page, or a request; {0} is the error."""


class ProblemDetails(msgspec.Struct):
    """What went wrong (RFC 9457), and what to do about it."""

    type: str
    title: str
    status: int
    detail: str
    next: str


class HTTPProblem(Exception):
    """Raise it anywhere below an endpoint: it becomes the response."""

    def __init__(self, status: int, detail: str, next: str, *, code: str = "", headers: Mapping[str, str] = {}) -> None:
        super().__init__(detail)
        code = code or TITLES[status].lower().replace(" ", "-")
        self.details = ProblemDetails(f"urn:treadle:problem:{code}", TITLES[status], status, detail, as_called(next))
        self.headers = headers


def of(error: Exception, page: bool) -> HTTPProblem:
    """The problem for whatever was raised, as an API's caller or the reader of a page can use it."""
    match error:
        case HTTPProblem():
            return error
        case errors.TreadleError():
            return _of_error(error, page)
        case HTTPException():  # how Starlette and FastAPI refuse, in the mount's own `auth`
            status, way_out = error.status_code if error.status_code in TITLES else 403, "sign in where this is mounted"
            return HTTPProblem(status, error.detail, way_out, code="refused", headers=error.headers or {})
        case _:  # a bug: its details are in the server's log, never in the response
            unexpected = "the request failed with an unexpected error"
            return HTTPProblem(500, unexpected, "see the server's log for the traceback")


def _of_error(error: errors.TreadleError, page: bool) -> HTTPProblem:
    """The problem for an error of treadle, whose text is a sentence, `; ` and the way out."""
    status = next((status for status, kinds in ERRORS_BY_STATUS.items() if isinstance(error, kinds)), 400)
    text = without_password(str(error))
    detail, _, way_out = text.partition("; ")
    code = re.sub(r"(?<!^)(?=[A-Z])", "-", type(error).__name__).lower()
    headers = {"Retry-After": "5"} if status == 503 else {}
    of_page, of_api = next((steps for kind, steps in NEXT_STEPS.items() if isinstance(error, kind)), ("", ""))
    next_step = (of_page if page else of_api).format(error) or way_out or SEE_OPENAPI
    return HTTPProblem(status, detail, next_step, code=code, headers=headers)
