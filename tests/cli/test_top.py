"""`treadle top`: one snapshot in a pipe, a live screen on a terminal."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time

from treadle import Fail


def test_one_snapshot_in_a_pipe(treadle, td):
    td.enqueue("mail", tenant="acme")
    td.enqueue("mail", delay=3600)
    td.enqueue("report", queue="slow")
    [lease] = td.claim(1, types=("report",))
    lease.fail(Fail("no paper, password=hunter2"))
    shown = treadle("top").stdout
    assert "1 queued   1 scheduled   0 retrying   0 blocked   0 running   1 failed" in shown
    assert "1 job waits and no worker is running" in shown
    [mail] = [line.split() for line in shown.splitlines() if line.startswith("mail")]
    assert mail[:7] == ["mail", "default", "1", "1", "0", "0", "0"]
    assert "no worker is running  → treadle worker app:td" in shown
    assert "no paper" in shown
    assert "hunter2" not in shown


def test_one_snapshot_as_json(as_json, td):
    td.enqueue("mail")
    seen = as_json("top")
    [row] = seen["queues"]
    assert (row["type"], row["queued"], row["oldest_due"][:2]) == ("mail", 1, "20")
    assert [problem["code"] for problem in seen["problems"]] == ["no_worker"]
    assert seen["workers"] == []


def test_the_screen_is_live_until_q_is_pressed(folder, td):
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "treadle", "top", "--interval", "0.1"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"},
    )
    os.close(theirs)
    until(ours, "treadle")
    td.enqueue("brand_new_type")
    until(ours, "brand_new_type")
    os.write(ours, b"p")
    until(ours, "paused")
    os.write(ours, b"q")
    drain(ours)
    assert process.wait(20) == 0
    os.close(ours)


def until(fd: int, word: str, seconds: float = 30) -> None:
    """Read the terminal until it shows the word."""
    seen, deadline = b"", time.monotonic() + seconds
    while word.encode() not in seen:
        ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"{word!r} was not shown: {seen[-2000:]!r}"
        seen += os.read(fd, 65_536)


def drain(fd: int) -> None:
    """Read until the other end is closed, so that no writer is blocked."""
    while True:
        try:
            if not os.read(fd, 65_536):
                return
        except OSError:  # how Linux reports that the other end is closed
            return
