"""Values that look like secrets are printed only with --reveal."""

from __future__ import annotations

import json

import pytest

from treadle import Fail, Treadle

SECRET = "hunter2"


@pytest.fixture
def job(td: Treadle) -> str:
    """A secret in the payload, in an error with its traceback, and in the result."""
    id = td.enqueue("login", {"user": "ada", "auth": {"password": SECRET}}).id
    [lease] = td.claim()
    try:
        raise ConnectionError(f"refused: password={SECRET}")
    except ConnectionError as error:
        lease.fail(error, retry_in=0)
    return id


@pytest.fixture
def ended(td: Treadle, job: str) -> str:
    td.claim()[0].complete({"token": SECRET})
    return job


COMMANDS = [["show", "{id}"], ["show", "{id}", "--json"], ["ls"], ["ls", "--json"], ["ls", "id:{id}", "--json"]]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_secret_is_not_printed(treadle, job, words):
    words = [word.format(id=job) for word in words]
    hidden, shown = treadle("jobs", *words).output, treadle("jobs", *words, "--reveal").output
    assert SECRET not in hidden
    assert "•••" in hidden
    assert SECRET in shown


def test_a_secret_in_a_result_is_not_printed(treadle, as_json, ended):
    assert SECRET not in treadle("jobs", "show", ended).output
    assert {"token": "•••"} == as_json("jobs", "show", ended)["result"]
    assert {"token": SECRET} == as_json("jobs", "show", ended, "--reveal")["result"]


def test_a_secret_of_a_job_that_was_changed_is_not_printed(treadle, ended):
    for words in (["retry", ended], ["clone", ended], ["cancel", ended]):
        result = treadle("jobs", *words, "--json")
        assert result.exit_code == 0
        assert SECRET not in result.output
        assert "•••" in json.dumps(json.loads(result.stdout), ensure_ascii=False)


def test_a_clone_keeps_hidden_values(treadle, td, job):
    clone = td.get(treadle("jobs", "clone", job).stdout.strip())
    assert clone is not None
    assert {"user": "ada", "auth": {"password": SECRET}} == clone.payload


def test_why_does_not_show_a_secret(treadle, td, job):
    td.claim()[0].fail(Fail(f"refused: password={SECRET}"))
    hidden, shown = treadle("jobs", "why", job).output, treadle("jobs", "why", job, "--reveal").output
    assert SECRET not in hidden
    assert SECRET in shown
