"""The demo: two orgs upload calls, a worker is killed on the way, and each org sees its own calls at the end.

Without --db or $DATABASE_URL it runs on a SQLite file. On PostgreSQL it makes tables and roles in the database named.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import signal
import subprocess
import sys
from collections import Counter
from typing import Any
from urllib.parse import quote

from examples.call_pipeline.sound import WORDS, record
from examples.call_pipeline.tables import make_tables
from examples.demos.screen import Screen, all_ended, free_port
from treadle import Treadle

ORGS, CALLS = ("harbour", "hills"), 6


def main() -> None:
    parser = argparse.ArgumentParser(prog="script/example call_pipeline", description=__doc__)
    parser.add_argument("--db", default=os.environ.get("DATABASE_URL"), help="postgresql://…; default: a SQLite file")
    with Screen("call_pipeline") as screen:
        url = parser.parse_args().db or f"sqlite:///{screen.folder}/calls.db"
        prepare(screen, url)
        port = free_port()
        os.environ |= {"STORAGE": str(screen.folder / "storage"), "SPEECH_URL": f"http://127.0.0.1:{port}"}
        os.environ |= {"PACE": "0.002", "SPEECH_POLL_INTERVAL_MS": "250", "SPEECH_SECONDS": "0.8"}
        screen.start("examples.call_pipeline.service", str(port))
        os.environ["TREADLE_URL"] = as_role(url, "producer")
        from examples.call_pipeline.calls import calls_of, upload  # they read the environment

        td, run = Treadle(url), secrets.token_hex(3)
        said = {(org, f"{run}-{n}"): random.choices(WORDS, k=8) for org in ORGS for n in range(CALLS)}
        said[ORGS[0], f"{run}-poison"] = []
        for (org, call), words in said.items():
            upload(org, call, f"call {call}", record(words) if words else b"this is not a recording")
        screen.say("•", f"{len(said)} calls uploaded by {len(ORGS)} orgs, each in one transaction with its first job")
        worker = screen.start("treadle", "worker", "examples.call_pipeline.jobs:td", TREADLE_URL=as_role(url, "worker"))
        screen.watch(td, lambda counts: counts["processing"] > 0 or all_ended(counts), worker)
        kill_a_worker(screen, td)
        screen.watch(td, all_ended, worker)
        ended = [Call(td, org, call, words) for (org, call), words in said.items()]
        screen.table(
            "What happened",
            ("org", "call", "last stage", "status", "failed runs", "mood, or the error"),
            ((c.org, c.id, c.last.type, c.last.status, c.failed_runs or "", c.found) for c in ended),
        )
        for org in ORGS:
            screen.say("•", f"{org} sees {sum(id.startswith(run) for id, _, _ in calls_of(org))} calls of this demo")
        right = sum(call.is_right for call in ended)
        lost = len(ended) - right
        screen.say("✗" if lost else "✓", f"{right} of {len(ended)} calls ended as they should, {lost} did not")
        screen.stay(f".venv/bin/treadle dashboard --db '{url}'", f".venv/bin/treadle stats --db '{url}'")
        td.close()
    if lost:
        raise SystemExit(1)


def prepare(screen: Screen, url: str) -> None:
    """On PostgreSQL the web server and the workers have roles of their own, and the server decides who sees what."""
    if url.startswith("postgres"):
        screen.say("•", "on PostgreSQL: row level security separates the orgs")
        for words in ("upgrade", "roles --apply"):
            command = [sys.executable, "-m", "treadle", "db", *words.split(), "--db", url]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    else:
        screen.say("•", "on a SQLite file. On PostgreSQL (--db postgresql://…) the server also separates the orgs")
    make_tables(url)


def as_role(url: str, role: str) -> str:
    """The URL with that role, as by `SET ROLE`. In production each role has its own login."""
    if not url.startswith("postgres"):
        return url
    return f"{url}{'&' if '?' in url else '?'}options={quote(f'-c role=treadle_{role}')}"


def kill_a_worker(screen: Screen, td: Treadle) -> None:
    """Its supervisor starts another, and releases the jobs of the dead one."""
    held = len(td.jobs(status="processing"))
    os.kill(td.workers()[0].host["pid"], signal.SIGKILL)
    screen.say("✗", f"kill -9 the worker: it dies while it runs {held} jobs", "red")


class Call:
    """How one call ended."""

    def __init__(self, td: Treadle, org: str, id: str, words: list[str]) -> None:
        jobs = td.jobs(tenant=org, subject=id)
        self.org, self.id, self.words, self.last = org, id, words, jobs[0]
        self.failed_runs = sum(len(td.attempts(job.id)) for job in jobs)
        self.result: dict[str, Any] = self.last.result or {}

    @property
    def found(self) -> object:
        return self.last.error or self.result.get("mood")

    @property
    def is_right(self) -> bool:
        """A recording is analyzed correctly; anything else has failed."""
        if not self.words:
            return self.last.status == "failed"
        return self.last.type == "analyze" and self.result.get("words") == Counter(self.words)


if __name__ == "__main__":
    main()
