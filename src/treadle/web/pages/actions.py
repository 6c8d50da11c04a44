"""What can be done to jobs from a page: the buttons, the question before, and a clone with its payload edited."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

import msgspec

from treadle import codec, filters, views
from treadle.app import Treadle
from treadle.bulk import Bulk
from treadle.errors import BadArguments, BadOption, BadPayload, CountMoved, TreadleError
from treadle.filters import Filter
from treadle.function import Changes, make_reschedule
from treadle.job import STATE_OF, Count, Job, Status, state_of
from treadle.redact import HIDDEN
from treadle.units import parse_duration
from treadle.web import highlight
from treadle.web.api.bulk import prepare, start
from treadle.web.api.jobs import apply
from treadle.web.formatting import formatter_for, number
from treadle.web.problem import HTTPProblem
from treadle.web.render import render
from treadle.web.route import Request, Response, get, post, redirect
from treadle.web.visible_jobs import JobAction

FROM_STEP = " It forgets step {!r} and all later ones, and does them again."
CHANGE_FIELDS = ("when", "priority", "queue")
"""The fields of a reschedule, and of a new job. An empty one sets nothing."""
T = TypeVar("T")


class ActionButton(NamedTuple):
    """An action of the library, with the texts of its button and of the question before it."""

    method: JobAction
    name: str
    done: str
    one: str
    """What it does to a job."""
    many: str
    keep: str = "Go back"
    tone: str = ""
    shortcut: str = ""

    @property
    def key(self) -> str:
        return self.method.__name__

    def label(self, jobs: str) -> str:
        """The name with the jobs put in: `Cancel 7 jobs`, `Run job now`."""
        first, *rest = self.name.split()
        return " ".join([first, jobs, *rest])


RETRY = ActionButton(
    Treadle.retry,
    "Retry",
    "retried",
    "It runs again now, with all of its attempts. Its history is kept.",
    "They run again now, with all of their attempts. Their history is kept.",
    shortcut="R",
)
RUN_NOW = ActionButton(Treadle.run_now, "Run now", "made due", "It becomes due now.", "They become due now.")
RESCHEDULE = ActionButton(
    Treadle.reschedule,
    "Reschedule",
    "rescheduled",
    "It waits until then, and keeps its priority and its queue through retries. Empty fields change nothing.",
    "They wait until then, and keep their priority and their queue through retries. Empty fields change nothing.",
    shortcut="S",
)
CANCEL = ActionButton(
    Treadle.cancel,
    "Cancel",
    "cancelled",
    "It ends. If it is running, its worker stops it.",
    "They end. Those that are running are stopped by their workers.",
    keep="Keep {}",
    shortcut="C",
)
DELETE = ActionButton(
    Treadle.delete,
    "Delete",
    "deleted",
    "It is deleted with its history. You cannot undo this.",
    "They are deleted with their history. You cannot undo this.",
    keep="Keep {}",
    tone="danger",
    shortcut="D",
)
ACTION_BUTTONS = {action.key: action for action in (RETRY, RUN_NOW, RESCHEDULE, CANCEL, DELETE)}


class Selection(NamedTuple):
    """The jobs that are meant: by their ids, or all that match a filter."""

    ids: list[str]
    filter: str

    @property
    def one(self) -> str | None:
        return self.ids[0] if len(self.ids) == 1 else None

    def to_filter(self) -> Filter:
        return filters.parse(f"id:{','.join(self.ids)}" if self.ids else self.filter)


def forbidden(action: str, job: Job, now: datetime) -> str:
    """Why the job does not allow it now, or ''. The library decides again when it is done."""
    state = state_of(job, now)
    label = STATE_OF[state].label.lower()
    if action == "retry" and not job.status.is_final:
        return f"It is {label}: only a job that has ended can be retried."
    if action == "run_now" and state not in ("scheduled", "retrying"):
        return f"It is {label}: only a job that waits for a later time can be run now."
    if action == "reschedule" and job.status not in (Status.PENDING, Status.BLOCKED):
        return f"It is {label}: only a job that waits can be rescheduled."
    if action == "cancel" and job.status.is_final:
        return f"It is {label}: it has ended."
    if action == "delete" and job.status is Status.PROCESSING:
        return "It is running: cancel it first."
    return ""


@get("/jobs/confirm", "Are you sure?", scope="manage", page=True)
def confirm(request: Request) -> Response:
    """Asks. For all jobs that match a filter, the number has to be typed."""
    action, everything = chosen(request.text("action"), ACTION_BUTTONS), request.text("all")
    selection = Selection([] if everything else request.raw.query_params.getlist("id"), request.text("q"))
    if not selection.ids and not everything:
        raise HTTPProblem(400, "no job is selected", "go back and select some, or check “all matching”")
    step = request.text("from_step") if action is RETRY and selection.one else ""
    return _confirm_page(request, action, selection, _prepared(request, action, selection, {"delay": 0}), step=step)


@post("/jobs/act", "Retry, cancel … jobs", scope="manage", page=True)
def act(request: Request) -> Response:
    """Does it to the jobs that were shown. If their number has changed, it asks again."""
    action = chosen(request.field("action"), ACTION_BUTTONS)
    selection = Selection(request.form.get("id", []), request.field("q"))
    changes: Changes = {}
    try:
        if action is RESCHEDULE:
            make_reschedule(changes := form_changes(request))
    except BadOption as error:
        work = _prepared(request, action, selection, {"delay": 0})
        return _confirm_page(request, action, selection, work, status=400, error=str(error))
    if selection.one:
        step = request.field("from_step") if action is RETRY else ""
        apply(request, action.method, selection.one, {"from_step": step} if step else changes)
        return redirect(request.url("/jobs" if action.key == "delete" else f"/jobs/{selection.one}"))
    work = _prepared(request, action, selection, changes)
    expected = request.field("expected")
    if not selection.ids and request.field("typed").strip().replace(",", "").rstrip("+") != expected:
        wrong = f"type {expected} to confirm; you typed {request.field('typed')!r}"
        return _confirm_page(request, action, selection, work, status=400, error=wrong)
    if expected != str(work.total):
        was = int(expected) if expected.isdecimal() and len(expected) <= 15 else 0
        moved = str(CountMoved(was, work.total))
        return _confirm_page(request, action, selection, work, status=412, error=moved)
    return redirect(request.url(f"/operations/{start(request, work).id}"))


def form_changes(request: Request) -> Changes:
    """What the fields set that say when, how urgently and where a job runs. Raises BadOption for a wrong one."""
    when, priority, queue = (request.field(name).strip() for name in CHANGE_FIELDS)
    changes: Changes = {}
    if (seconds := parse_duration(when)) is not None:
        changes["delay"] = seconds
    elif when:
        changes["run_at"] = _moment(request, when)
    if priority:
        changes["priority"] = _whole_number(priority)
    if queue:
        changes["queue"] = queue
    return changes


def _moment(request: Request, text: str) -> datetime:
    try:
        return formatter_for(request).read(text)
    except ValueError:
        way_out = "a duration such as 90, 5m or 1h30m, or a time such as 2026-11-17 08:00"
        raise BadOption("when", text, way_out) from None


def _whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise BadOption("priority", text, "use a whole number; higher runs first") from None


def _prepared(request: Request, action: ActionButton, selection: Selection, changes: Changes) -> Bulk:
    """The jobs, counted. `changes`: what a reschedule sets; other actions set nothing."""
    return prepare(request, action.key, selection.to_filter(), None, changes if action is RESCHEDULE else {})


def chosen(key: str, actions: Mapping[str, T]) -> T:
    if key not in actions:
        raise HTTPProblem(400, f"there is no action {key!r}", f"use one of {', '.join(actions)}")
    return actions[key]


def _confirm_page(
    request: Request,
    action: ActionButton,
    selection: Selection,
    work: Bulk,
    status: int = 200,
    error: str = "",
    step: str = "",
) -> Response:
    """`step`: from which a job is retried."""
    job, count = request.jobs.get(selection.one) if selection.one else None, Count(work.total, work.exact)
    named = [("id", id) for id in selection.ids] or [("q", selection.filter)]
    skips = "" if selection.ids else " Jobs to which it does not apply are skipped."
    jobs = "job" if job else f"{number(count)} {'job' if count.value == 1 else 'jobs'}"
    return render(
        request,
        "confirm.html",
        status=status,
        current_page="jobs",
        action=action,
        post_to=request.url("/jobs/act"),
        hidden=[*named, ("expected", count.value), *([("from_step", step)] if step else [])],
        text=(action.one if job else action.many) + skips + (FROM_STEP.format(step) if step else ""),
        filter=None if selection.ids else selection.filter,
        count=count.value,
        title=action.label(f"this {job.type} job" if job else jobs),
        go=action.label(jobs),
        keep=action.keep.format("job" if count.value == 1 else "jobs"),
        back=request.url(f"/jobs/{job.id}") if job else request.url("/jobs", q=selection.filter),
        error=error,
        given={name: request.field(name) for name in CHANGE_FIELDS},
    )


@get("/jobs/{id}/clone", "A job like this one", scope="manage", page=True)
def clone_form(request: Request) -> Response:
    job = views.job(request.jobs.get(request.path["id"]), request.redactor)
    return _clone_page(request, job, highlight.pretty(job.payload))


@post("/jobs/{id}/clone", "Enqueue it", scope="manage", page=True)
def clone(request: Request) -> Response:
    job = request.jobs.get(request.path["id"])
    safe, text = views.job(job, request.redactor), request.field("payload")
    try:
        edited = codec.decode(text.encode())
        new = request.jobs.change(_clone, job.id, job, safe.payload, edited)
    except (msgspec.MsgspecError, TreadleError, RecursionError) as error:
        return _clone_page(request, safe, text, status=400, error=str(error))
    request.audit("clone", f"{job.id} → {new.id}")
    return redirect(request.url(f"/jobs/{new.id}"))


def _clone(app: Treadle, id: str, job: Job, seen: Any, edited: Any) -> Job:
    """What the editor sent is checked before hidden values are filled in, and only that is quoted by an error."""
    if not isinstance(edited, dict):
        raise BadArguments(job.type, "a payload is a JSON object", "names and values in braces")
    filled = restore(edited, seen, job.payload)
    problem = BadPayload(f"the payload does not fit with its hidden values; write a value for each {HIDDEN}")
    try:  # an argument with hidden values is checked last: dots may stand for a number
        app.request(job.type, dict(sorted(edited.items(), key=lambda item: item[1] != filled[item[0]])), dedupe=None)
    except BadPayload as error:
        problem = error
    try:
        return app.clone(id, filled)
    except (BadPayload, BadOption):
        raise problem from None


def restore(edited: Any, seen: Any, original: Any) -> Any:
    """The edited payload, with the original value wherever the editor left a hidden one as it was."""
    if edited == seen:
        return original
    if isinstance(edited, dict) and isinstance(seen, dict) and isinstance(original, dict):
        return {
            key: restore(value, seen[key], original[key]) if key in seen and key in original else value
            for key, value in edited.items()
        }
    if isinstance(edited, list) and isinstance(seen, list) and isinstance(original, list):
        pairs = zip(edited, seen, original, strict=False)
        return [*(restore(*pair) for pair in pairs), *edited[len(original) :]]
    return edited


def _clone_page(request: Request, job: Job, text: str, *, status: int = 200, error: str = "") -> Response:
    return render(request, "clone.html", status=status, current_page="jobs", job=job, text=text, error=error)
