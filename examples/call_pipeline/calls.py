"""What the web server does: take calls, and tell each org of its own."""

from __future__ import annotations

from typing import Any

from examples.call_pipeline import storage
from examples.call_pipeline.database import connected, for_org
from examples.call_pipeline.jobs import extract_audio
from treadle import Job

CALLS = """
SELECT c.id, c.title, count(a.kind) FROM calls c LEFT JOIN artifacts a ON a.org_id = c.org_id AND a.call_id = c.id
 WHERE c.org_id = ?
 GROUP BY c.id, c.title ORDER BY c.id
"""


def upload(org: str, call: str, title: str, recording: bytes) -> Job:
    """The call's row and its first job are one commit: neither is ever there without the other."""
    storage.write(storage.path(org, call, "upload.wav"), recording)
    with connected() as connection:
        execute = for_org(connection, org)
        execute("INSERT INTO calls VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (org, call, title))
        return extract_audio.using(connection=connection, tenant=org, subject=call).enqueue(call_id=call)


def calls_of(org: str) -> list[Any]:
    """Each call with its title and how many artifacts it has. PostgreSQL would show no others even without WHERE."""
    with connected() as connection:
        rows: list[Any] = for_org(connection, org)(CALLS, [org]).fetchall()
        return rows
