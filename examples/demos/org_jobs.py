"""The demo: three orgs enqueue, cron ticks, the server is killed in the middle of a tick, and each org gets a bill."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from typing import Any

import httpx2

from examples.demos.screen import Screen, all_ended, free_port
from examples.org_jobs.cron import tick
from examples.org_jobs.metering import bills
from treadle import Treadle

ORGS, DOCUMENTS = ("harbour", "hills", "meadow"), 20
SERVER = "examples.org_jobs.web:app"


def main() -> None:
    parser = argparse.ArgumentParser(prog="script/example org_jobs", description=__doc__)
    parser.add_argument("--db", help="the database, e.g. postgresql://…; default: a new SQLite file")
    given = parser.parse_args().db
    with Screen("org_jobs") as screen:
        url, port = given or f"sqlite:///{screen.folder}/jobs.db", free_port()
        os.environ |= {"TREADLE_URL": url, "PACE": "0.02", "WORK": "0.5"}
        where = f"http://127.0.0.1:{port}"
        server, td = screen.serve(SERVER, port), Treadle(url)
        screen.say("•", f"a web server without a worker, on {where}; its jobs are in {url}")
        cron, insights = (token(url, f"{scope}-{port}", scope) for scope in ("tick", "read"))
        ids = enqueue(where)
        screen.say("•", f"{len(ids)} requests, some of them twice: {len(set(ids))} jobs. Nothing runs until cron ticks")
        calling = screen.start("examples.org_jobs.cron", where, TICK_TOKEN=cron)
        screen.watch(td, lambda counts: counts["processing"] > 0 or all_ended(counts), calling)
        screen.kill(server, "the server in the middle of a tick", len(td.jobs(status="processing")))
        server = screen.serve(SERVER, port)
        screen.say("✓", "started again; cron goes on", "green")
        while (report := tick(where, cron))["next_due_at"]:
            did = ("ran", "completed", "retried", "failed", "rescued")
            screen.say(" ", "POST /api/jobs/tick  " + ", ".join(f"{report[what]} {what}" for what in did))
            wait_until(report["next_due_at"])
        ended = [job for id in set(ids) if (job := td.get(id))]
        asked: dict[str, str | int] = {"group_by": "tenant", "window": "1h", "step": 3600}
        headers = {"Authorization": f"Bearer {insights}"}
        metrics = httpx2.get(f"{where}/api/metrics", params=asked, headers=headers, timeout=60).json()["items"]
        screen.table(
            "What each org has used",
            ("org", "completed", "failed", "runs", "of them failed", "busy seconds", "cost"),
            (
                (
                    bill.org,
                    *by_status(ended, bill.org),
                    bill.runs,
                    bill.failures,
                    f"{bill.busy:.2f}",
                    f"{bill.cost:.6f}",
                )
                for bill in bills(td)
                if bill.org in ORGS
            ),
        )
        screen.say("•", f"GET /api/metrics?group_by=tenant says the same, in {len(metrics)} rows")
        right = sum(job.status == ("failed" if job.payload.get("partner") == "gone" else "completed") for job in ended)
        lost = len(set(ids)) - right
        screen.say("✗" if lost else "✓", f"{right} of {len(set(ids))} jobs ended as they should, {lost} did not")
        screen.stay(screen.dashboard(port), f"{where}/docs", f".venv/bin/treadle stats --db '{url}'")
        td.close()
    if lost:
        raise SystemExit(1)


def token(url: str, name: str, scope: str) -> str:
    """`treadle tokens create NAME --scope SCOPE`: the token is printed once, and is good for this scope only."""
    command = [sys.executable, "-m", "treadle", "tokens", "create", name, "--scope", scope, "--db", url, "--quiet"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def enqueue(where: str) -> list[str]:
    jobs: list[dict[str, Any]] = [
        {"type": "index_document", "payload": {"document": f"d{n}", "text": "many words " * n}}
        for n in range(DOCUMENTS)
    ]
    jobs += [{"type": "call_partner", "payload": {"partner": "slow", "down_for": 3}}, jobs[0], jobs[1]]
    jobs += [{"type": "call_partner", "payload": {"partner": "gone", "down_for": 99}}]
    with httpx2.Client(base_url=where, timeout=60) as client:
        return [
            client.post(f"/orgs/{org}/jobs", json=job).raise_for_status().json()["id"] for org in ORGS for job in jobs
        ]


def wait_until(moment: str) -> None:
    time.sleep(max(0.0, (datetime.fromisoformat(moment) - datetime.now(UTC)).total_seconds()))


def by_status(jobs: list[Any], org: str) -> list[int]:
    return [sum(job.tenant == org and job.status == status for job in jobs) for status in ("completed", "failed")]


if __name__ == "__main__":
    main()
