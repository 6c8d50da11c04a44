"""The database that the commands read: a fixed set of jobs, one or more in each status, and one worker."""

from __future__ import annotations

from pathlib import Path

import treadle
from tests.cli.helpers import enlist
from treadle import Treadle
from treadle.job import Progress
from treadle.log_lines import NewLine
from treadle.schedule import NewSchedule, Rule
from treadle.stores.base import ClaimRequest, TypePolicy

APP = """from treadle import Treadle

td = Treadle()

@td.job
def mail(to: str = ""): pass

@td.job
def count(to: int): return {"to": to}

@td.job(max_attempts=1)
def boom():
    raise RuntimeError("boom")
"""
HOUR = 3600
NIGHTLY = NewSchedule(name="nightly", type="report", rule=Rule(cron="0 3 * * *", zone="Europe/Berlin"))


def create_world(folder: Path) -> dict[str, str]:
    """Create everything that a command may find in its working directory; returns the ids of the jobs by name."""
    (folder / "shop.py").write_text(APP)
    (folder / "broken.py").write_text("import nothing_of_that_name\n")
    (folder / "foreign.db").write_text("This is no database, and longer than a header. " * 10)
    td = Treadle(f"sqlite:///{folder}/treadle.db")
    td.store.open()
    td.store.publish([TypePolicy(type="resize", queue="images", concurrency=1)])
    ids = {**_ended(td), **_leased(td), **_waiting(td)}
    td.store.declare_schedules([NIGHTLY])
    with td.batch("import-7", on_failure=td.request("alert", {})):
        pass
    td.schedules.put("digest", "mail", every=HOUR, payload={"to": "ada", "password": "hunter2"}, tenant="acme")
    td.close()
    return ids


def newest(folder: Path) -> str:
    """The id of the newest job."""
    td = Treadle(f"sqlite:///{folder}/treadle.db")
    job = td.jobs(limit=1)[0]
    td.close()
    return job.id


def _ended(td: Treadle) -> dict[str, str]:
    done = td.enqueue("report", {"day": "sunday"}, tenant="acme", subject="order-1")
    td.claim(types=["report"])[0].complete({"rows": 3, "file": None})
    failed = td.enqueue("mail", {"to": "bob@example.org"}, max_attempts=2)
    for _ in range(2):
        td.claim(types=["mail"])[0].fail(ConnectionError("refused"), retry_in=0)
    cancelled = td.enqueue("mail", {"to": "eve@example.org"}, tenant="acme", dedupe="letter")
    td.cancel(cancelled.id)
    return {"completed": done.id, "failed": failed.id, "cancelled": cancelled.id}


def _leased(td: Treadle) -> dict[str, str]:
    """A job that the worker runs, and one that was claimed by hand."""
    declared = {NIGHTLY.name: NIGHTLY.spec}
    worker = enlist(td, "host-1", "mail", "report", "resize", version=treadle.__version__, schedules=declared)
    processing = td.enqueue("resize", {"image": "1.png"}, queue="images")
    [held] = td.store.claim(worker.id, ClaimRequest(limit=1, types={"resize": None}))
    td.store.save_progress([(held, Progress(0.5, "half of it"))])
    td.store.save_logs([(held, [NewLine(1, 0, "INFO", "40 rows"), NewLine(2, 0, "ERROR", "token=hunter2 is wrong")])])
    claimed = td.enqueue("import", {"file": "a.csv"})
    td.claim(types=["import"], lease=HOUR)
    return {"processing": processing.id, "claimed": claimed.id}


def _waiting(td: Treadle) -> dict[str, str]:
    retrying = td.enqueue("report", {"day": "monday"}, tenant="globex")
    td.claim(types=["report"])[0].fail(ConnectionError("refused"), retry_in=HOUR)
    letter = {"to": "ada@example.org", "late": True}
    made = {
        "queued": td.enqueue("mail", {"to": "ada@example.org"}, priority=5, tenant="acme", subject="order-1"),
        "scheduled": td.enqueue("mail", letter, delay=HOUR, tenant="acme", dedupe="letter"),
        "blocked": td.enqueue("resize", {"image": "2.png"}, queue="images"),
        "secret": td.enqueue("login", {"user": "ada", "auth": {"password": "hunter2"}}),
    }
    return {"retrying": retrying.id, **{name: job.id for name, job in made.items()}}
