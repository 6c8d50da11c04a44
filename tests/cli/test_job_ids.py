"""The start of a job's id is enough."""

from __future__ import annotations

import re

import pytest

from tests.cli.helpers import completed, failed, now
from treadle import Status
from treadle.ids import new_id
from treadle.job import NewJob

OLD = "01890000-0000-7000-8000-00000000000"


@pytest.fixture
def jobs(td):
    """Two jobs whose ids differ in the last digit."""
    return td.store.insert([NewJob(id=f"{OLD}{n}", type=f"type-{n}") for n in (1, 2)])


@pytest.mark.parametrize("given", ["0189", OLD[:20].replace("-", ""), OLD[:13].upper(), f"{OLD}1"])
def test_a_unique_start_of_an_id_names_its_job(treadle, as_json, td, given):
    td.store.insert([NewJob(id=f"{OLD}1", type="mail")])
    td.enqueue("other")
    assert as_json("jobs", "show", given)["id"] == f"{OLD}1"
    assert as_json("jobs", "why", given)["id"] == f"{OLD}1"
    assert as_json("jobs", "tree", given)["id"] == f"{OLD}1"
    assert as_json("jobs", "logs", given)["items"] == []
    assert as_json("jobs", "clone", given)["type"] == "mail"
    assert as_json("enqueue", "next", "--after", given)["status"] == "blocked"
    assert [item["id"] for item in as_json("jobs", "cancel", given)["items"]] == [f"{OLD}1"]
    assert now(td, td.get(f"{OLD}1")).status is Status.CANCELLED


@pytest.mark.parametrize("words", [["show"], ["why"], ["tree"], ["logs"], ["clone"], ["cancel"], ["retry"]])
def test_an_ambiguous_start_lists_the_candidates(treadle, td, jobs, words):
    result = treadle("jobs", *words, OLD)
    assert result.exit_code == 2
    assert f"{OLD} is the start of several job ids" in result.stderr
    assert [f"{OLD}2  type-2  pending", f"{OLD}1  type-1  pending"] == re.findall(rf"{OLD}\d  .*", result.stderr)
    assert {job.status for job in td.jobs()} == {Status.PENDING}


def test_the_list_of_candidates_says_what_is_scheduled_or_retrying(treadle, td):
    td.store.insert([NewJob(id=f"{OLD}{n}", type="mail", delay=n * 10**9 or None) for n in (0, 1)])
    td.store.insert([NewJob(id=f"{OLD}2", type="sent", priority=1)])
    [lease] = td.claim()
    lease.fail("no", retry_in=3600)
    named = re.findall(rf"{OLD}(\d)  \w+  (\w+)", treadle("jobs", "show", OLD).stderr)
    assert named == [("2", "retrying"), ("1", "scheduled"), ("0", "pending")]
    env = {"_TREADLE_COMPLETE": "zsh_complete", "COMP_WORDS": f"treadle jobs show {OLD}", "COMP_CWORD": "3"}
    offered = re.findall(r"(\w+), (\w+)", treadle(env=env).stdout)
    assert offered == [("sent", "retrying"), ("mail", "scheduled"), ("mail", "pending")]


def test_the_list_of_candidates_is_bounded(treadle, td):
    td.enqueue_many([td.request("mail") for _ in range(20)])
    error = treadle("jobs", "show", "0").stderr
    assert error.count("mail") == 10
    assert "and others" in error


@pytest.mark.parametrize("given", ["ffff", "x", "0189g", new_id()])
def test_a_start_that_no_id_has_is_exit_code_4(treadle, td, jobs, given):
    for words in (["show"], ["cancel"]):
        result = treadle("jobs", *words, given)
        assert result.exit_code == 4
        assert f"there is no job {given}" in result.stderr


def test_a_job_that_is_named_twice_is_changed_once(as_json, td):
    job = failed(td)
    [item] = as_json("jobs", "retry", job.id[:30], job.id)["items"]
    assert item["ok"]


def test_what_is_known_is_changed_though_another_start_is_ambiguous(as_json, td, jobs):
    job = completed(td)
    first, second = as_json("jobs", "retry", OLD, job.id, code=2)["items"]
    assert (first["ok"], second["ok"]) == (False, True)


def test_a_deletion_asks_about_the_whole_id(treadle, td, jobs):
    assert f"job {OLD}1" in treadle("jobs", "delete", f"{OLD}1".replace("-", "")).stderr
