"""The fields of a form that say when, how urgently and in which queue a job runs: of a reschedule, and of a new job."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

from treadle.errors import BadOption
from treadle.function import Changes
from treadle.units import parse_duration
from treadle.web.formatting import formatter_for
from treadle.web.route import Request

PLACE = ("when", "priority", "queue")
"""The names of the fields. An empty one sets nothing."""


def form_changes(request: Request) -> Changes:
    """What the fields set. Raises BadOption for a text that cannot be read."""
    when, priority, queue = (request.field(name).strip() for name in PLACE)
    changes: Changes = {}
    if when:
        _read_when(request, when, changes)
    if priority:
        changes["priority"] = _whole_number(priority)
    if queue:
        changes["queue"] = queue
    return changes


def _read_when(request: Request, text: str, changes: Changes) -> None:
    if (seconds := parse_duration(text)) is not None:
        changes["delay"] = seconds
        return
    try:
        moment = datetime.fromisoformat(text)
        changes["run_at"] = moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo(formatter_for(request).zone))
    except ValueError:
        way_out = "a duration such as 90, 5m or 1h30m, or a time such as 2026-11-17 08:00"
        raise BadOption("when", text, way_out) from None


def _whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise BadOption("priority", text, "use a whole number; higher runs first") from None
