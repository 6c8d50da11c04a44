"""`treadle jobs logs` and `treadle jobs tree`."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

from treadle.cli import job_logs
from treadle.ids import new_id
from treadle.job import NewJob
from treadle.log_lines import NewLine
from treadle.outcome import COMPLETED
from treadle.stores.base import ClaimRequest


def claim(td, type="mail"):
    job = td.enqueue(type)
    [claimed] = td.store.claim("", ClaimRequest(limit=1))
    return job, claimed


def log(td, claimed, *messages, first=1, level="INFO"):
    td.store.save_logs([(claimed, [NewLine(n, 0, level, text) for n, text in enumerate(messages, first)])])


def test_lines_are_printed_by_attempt(treadle, td):
    job, claimed = claim(td)
    log(td, claimed, "fetched 3 rows", "a\x1b[31m line\nand another")
    td.store.settle([(claimed, COMPLETED)])
    td.retry(job.id)
    log(td, td.store.claim("", ClaimRequest(limit=1))[0], "again", level="WARNING")
    lines = treadle("jobs", "logs", job.id).stdout.splitlines()
    assert [line for line in lines if line.startswith("attempt")] == ["attempt 1", "attempt 1"]
    assert lines[1].split(maxsplit=2)[2] == "INFO    fetched 3 rows"
    assert lines[2].endswith(r"a\x1b[31m line")
    assert lines[3].strip() == "and another"
    assert lines[5].endswith("WARNING again")


def test_secrets_in_lines_are_hidden(treadle, as_json, td):
    job, claimed = claim(td)
    log(td, claimed, "password=hunter2")
    assert "hunter2" not in treadle("jobs", "logs", job.id).stdout
    assert as_json("jobs", "logs", job.id)["items"][0]["message"] == "password=•••"
    assert "hunter2" in treadle("jobs", "logs", job.id, "--reveal").stdout


def test_follow_ends_with_the_job(treadle, td, monkeypatch):
    job, claimed = claim(td)
    log(td, claimed, "one")
    monkeypatch.setattr(job_logs, "LOOK_AGAIN", 0.01)

    def go_on():
        log(td, claimed, "two", first=2)
        td.store.settle([(claimed, COMPLETED)])

    later = threading.Timer(0.3, go_on)
    later.start()
    result = treadle("jobs", "logs", job.id, "--follow", "--json")
    later.join()
    assert [json.loads(line)["message"] for line in result.stdout.splitlines()] == ["one", "two"]


def test_more_lines_than_a_page(as_json, td):
    job, claimed = claim(td)
    log(td, claimed, *map(str, range(1001)))
    td.store.settle([(claimed, COMPLETED)])
    found = as_json("jobs", "logs", job.id)
    assert (len(found["items"]), found["next"]) == (1001, 1001)


def test_a_job_that_does_not_exist(treadle, td):
    for command in ("logs", "tree"):
        result = treadle("jobs", command, "x")
        assert (result.exit_code, result.stdout) == (4, "")


APP = """
import logging
from treadle import Treadle
td = Treadle()
@td.job(logs="DEBUG")
def talk():
    logging.debug("quiet")
    logging.warning("loud")
"""


def test_a_worker_lets_through_what_a_type_keeps_and_prints_only_warnings(td, tmp_path):
    (tmp_path / "talking.py").write_text(APP)
    job = td.enqueue("talk")
    words = [sys.executable, "-m", "treadle", "worker", "talking:td", "--burst", "--db", td.store.url]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert [line.message for line in td.logs(job.id)] == ["quiet", "loud"]
    assert "loud" in done.stderr
    assert "quiet" not in done.stderr


def family(td):
    """An order that starts two jobs; a third waits for both, and starts another."""
    order = NewJob(id=new_id(), type="order")
    left, right = (NewJob(id=new_id(), type=type, origin=order.id) for type in ("left", "right"))
    both = NewJob(id=new_id(), type='both "of" them', after=(left.id, right.id))
    last = NewJob(id=new_id(), type="notify", origin=both.id)
    return td.store.insert([order, left, right, both, last])


def test_the_tree_has_each_job_once_and_refers_to_it(treadle, td):
    *_, both, _ = family(td)
    lines = treadle("jobs", "tree", both.id).stdout.splitlines()
    assert [line.strip("│├└─ ").split("  ")[0] for line in lines] == [
        "○ order",
        "○ left",
        '◌ both "of" them',
        "○ notify",
        "○ right",
        '↑ ◌ both "of" them',
    ]
    assert sum(both.id in line for line in lines) == 2
    assert lines[1].endswith("started by it")
    assert lines[2].endswith("blocked  waits for it")


def test_the_tree_says_if_it_is_cut(treadle, as_json, td):
    order, *_ = family(td)
    assert "there are more" in treadle("jobs", "tree", order.id, "--most", "2").stderr
    found = as_json("jobs", "tree", order.id)
    assert (len(found["nodes"]), len(found["edges"]), found["cut"]) == (5, 5, False)


def test_a_flowchart_for_mermaid(treadle, td):
    _, left, *_ = family(td)
    lines = treadle("jobs", "tree", left.id, "--mermaid").stdout.splitlines()
    assert lines[0] == "flowchart LR"
    assert lines[1] == f'    n0["left<br/>{left.id}<br/>queued"]'
    assert any("both #quot;of#quot; them<br/>" in line for line in lines)
    assert sum(" --> " in line for line in lines) == 2
    assert sum(" -.-> " in line for line in lines) == 3
    assert lines[-1] == "    style n0 stroke-width:3px"
