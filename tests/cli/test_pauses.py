"""`treadle queues pause`, `resume` and `drain`, and `treadle workers quiet` and `resume`."""

from __future__ import annotations

import pytest

from tests.cli.helpers import enlist, processing


def paused(td):
    return [(pause.target.kind, pause.target.name, pause.reason) for pause in td.pauses()]


@pytest.mark.parametrize(
    ("words", "what"),
    [(["mail"], "queue"), (["--type", "mail"], "type"), (["--tenant", "mail"], "tenant")],
    ids=["queue", "type", "tenant"],
)
def test_pause_and_resume(treadle, td, words, what):
    shown = treadle("queues", "pause", *words, "--reason", "provider down").stdout

    assert f"{what} 'mail' is paused by cli:" in shown
    assert "treadle queues resume " + " ".join(words) in shown
    assert [(what, "mail", "provider down")] == paused(td)
    assert f"{what} 'mail' is resumed" in treadle("queues", "resume", *words).stdout
    assert [] == paused(td)
    assert "was not paused" in treadle("queues", "resume", *words).stderr
    assert ["resume", "pause"] == [row.action for row in td.store.audits(10)]
    assert f"{what} 'mail': provider down" == td.store.audits(10)[1].what


@pytest.mark.parametrize("verb", ["pause", "drain"])
def test_what_nobody_knows_is_paused_with_a_warning(treadle, td, write_app, verb):
    name = write_app("@td.job(queue='letters')\ndef receipt() -> None: ...")
    td.enqueue("send", queue="mail")
    enlist(td, "host-1", "bills")

    def noted(*words):
        return treadle("queues", verb, *words, "--app", f"{name}:td").stderr

    warning = "⚠ no app, worker or job has the"
    resume = f"treadle --app {name}:td queues resume"
    way_out = f"did you mean receipt? To undo this: {resume} --type recipt"
    assert f"{warning} type 'recipt'\n  → {way_out}\n" in noted("--type", "recipt")
    assert f"{warning} queue 'mial'\n  → did you mean mail? To undo this: {resume} mial\n" in noted("mial")
    assert f"{warning} type 'x'\n  → known: bills, receipt, send\n" in noted("--type", "x")
    assert 3 == len(td.pauses())
    for words in ("--type receipt", "--type send", "--type bills", "mail", "letters", "--tenant acme"):
        assert "⚠" not in noted(*words.split())


def test_pauses_are_listed_with_the_queues(treadle, td, as_json):
    td.enqueue("send", queue="mail"), td.enqueue("resize")
    treadle("queues", "pause", "mail", "--reason", "down"), treadle("queues", "pause", "--tenant", "acme")

    lines = treadle("queues", "ls").stdout.splitlines()

    assert "⏸ paused" in next(line for line in lines if line.startswith("mail"))
    assert "⏸" not in next(line for line in lines if line.startswith("default"))
    assert any(line.startswith("⏸ tenant 'acme' is paused by cli:") for line in lines)
    assert ["mail", ""] == [pause["queue"] for pause in as_json("queues", "ls")["pauses"]]


def test_a_pause_ends_at_a_time_or_after_one(treadle, td):
    treadle("queues", "pause", "mail", "--until", "2h")
    [pause] = td.pauses()
    assert 7199 <= (pause.until - pause.since).total_seconds() <= 7201
    treadle("queues", "pause", "mail", "--until", "2999-01-01T00:00Z")
    assert 2999 == td.pauses()[0].until.year


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "name one thing"),
        (["mail", "--type", "send"], "name one thing"),
        (["mail", "--until", "soon"], "is not a time"),
        (["mail", "--until", "2020-01-01"], "a moment in the future"),
        (["--tenant", ""], "cannot be empty"),
    ],
    ids=str,
)
def test_bad_words_are_refused(treadle, td, words, problem):
    result = treadle("queues", "pause", *words)

    assert (2, True) == (result.exit_code, problem in result.stderr)
    assert [] == paused(td)


def test_drain_waits_for_what_runs(treadle, td, as_json):
    assert "queue 'mail' is paused, and nothing of it runs" in treadle("queues", "drain", "mail").stdout
    processing(td, "send")

    result = treadle("queues", "drain", "--type", "send", "--timeout", "0s")

    assert 124 == result.exit_code
    assert "type 'send' is paused, and 1 job still running" in result.stdout
    assert [True, True] == [pause.draining for pause in td.pauses()]
    drained = as_json("queues", "drain", "mail")
    assert (0, True, "mail") == (drained["running"], drained["done"], drained["pause"]["queue"])


def test_a_worker_becomes_quiet_and_claims_again(treadle, td, as_json):
    enlist(td, "host-1", "mail")

    assert "worker host-1 is quiet" in treadle("workers", "quiet", "host-1").stdout
    assert "quiet for" in treadle("workers").stdout
    assert "quiet for" in treadle("workers", "ls").stdout
    assert as_json("workers")["items"][0]["quiet_for"] is not None
    assert "worker host-1 claims again" in treadle("workers", "resume", "host-1-of_the_tests").stdout
    assert as_json("workers", "ls")["items"][0]["quiet_for"] is None
    assert ["unquiet", "quiet"] == [row.action for row in td.store.audits(10)]
    result = treadle("workers", "quiet", "nobody")
    assert (4, True) == (result.exit_code, "no worker 'nobody' is registered" in result.stderr)
