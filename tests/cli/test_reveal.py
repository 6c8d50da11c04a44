"""Values that look like secrets are printed only with --reveal."""

from __future__ import annotations

import json

import pytest

from tests.cli.test_enqueue import settle_next
from treadle import Fail, Treadle
from treadle.job import Progress
from treadle.redact import OFF, Redactor
from treadle.stores.base import TypePolicy

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


def test_progress_does_not_show_a_secret(treadle, td):
    job = td.enqueue("slow", {})
    [lease] = td.claim()
    td.store.save_progress([(lease._claimed, Progress(0.5, f"logged in, token={SECRET}"))])
    for words in (["show", job.id], ["show", job.id, "--json"], ["ls", "--json"]):
        hidden, shown = treadle("jobs", *words).output, treadle("jobs", *words, "--reveal").output
        assert SECRET not in hidden
        assert "logged in, token=•••" in hidden
        assert SECRET in shown


def test_enqueue_does_not_print_a_secret(treadle, td):
    def wait(settle, *words):
        thread = settle_next(td, settle)
        result = treadle("enqueue", "login", f"password={SECRET}", "--max-attempts", "1", *words)
        thread.join()
        return result.output

    def complete(lease):
        lease.complete({"token": SECRET})

    def fail(lease):
        lease.fail(f"refused: password={SECRET}")

    for settle in (complete, fail):
        for words in (["--wait"], ["--wait", "--json"]):
            hidden, shown = wait(settle, *words), wait(settle, *words, "--reveal")
            assert SECRET not in hidden
            assert "•••" in hidden
            assert SECRET in shown
    assert SECRET not in treadle("enqueue", "login", f"password={SECRET}", "--json").output


@pytest.mark.parametrize(
    ("redactor", "printed"),
    [(Redactor(["iban"]), '{"iban":"•••","token":"•••"}'), (OFF, '{"iban":"DE00","token":"x"}')],
)
def test_commands_hide_what_the_apps_of_the_database_hide(treadle, td, redactor, printed):
    """Without the code of the app: its workers have stored what it hides."""
    job = td.enqueue("pay", {"iban": "DE00", "token": "x"})
    assert '{"iban":"DE00","token":"•••"}' in treadle("jobs", "show", job.id, "--json").output
    td.store.publish([TypePolicy(type="pay", redact=redactor.published)])
    for words in (["show", job.id], ["ls"], ["cancel", job.id], ["clone", job.id]):
        assert printed in treadle("jobs", *words, "--json").output
