"""What the web server does: accept calls, and show each org its own."""

from __future__ import annotations

from typing import Any

from treadle import Job

from . import storage
from .database import act_for, connected, insert, placeholder
from .jobs import extract_audio

CALLS = """
SELECT c.id, c.title, count(a.kind) FROM calls c LEFT JOIN artifacts a ON a.org_id = c.org_id AND a.call_id = c.id
 WHERE c.org_id = {value}
 GROUP BY c.id, c.title ORDER BY c.id
"""


def upload(org: str, call: str, title: str, recording: bytes) -> Job:
    """The call's row and its first job are one commit: neither exists without the other."""
    storage.write(storage.path(org, call, "upload.wav"), recording)
    with connected() as connection:
        insert(connection, "calls", org_id=org, id=call, title=title)
        return extract_audio.using(connection=connection, tenant=org, subject=call).enqueue(call_id=call)


def calls_of(org: str) -> list[Any]:
    """Each call with its title and its number of artifacts. PostgreSQL shows no others even without the WHERE."""
    with connected() as connection:
        act_for(connection, org)
        rows: list[Any] = connection.execute(CALLS.format(value=placeholder(connection)), [org]).fetchall()
        return rows
