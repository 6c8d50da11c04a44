"""`treadle limits ls`, `set` and `unset`."""

from __future__ import annotations

import pytest

from treadle import Limit, Rate
from treadle.codec import as_json as encoded
from treadle.stores.base import TypePolicy

LIMITS = (Limit("openai", concurrency=2, rate=Rate(500, per=60), per="tenant"), Limit("gpu", concurrency=4))


@pytest.fixture(autouse=True)
def declared(td):
    td.store.publish([TypePolicy(type="ask", limits=encoded(LIMITS), concurrency=3), TypePolicy(type="mail")])


def test_set_ls_and_unset(treadle, td):
    shown = treadle("limits", "set", "openai", "--key", "acme", "--concurrency", "50").stdout
    assert "limit 'openai' for tenant='acme' is 50 at once, 500 in 60 s, burst 50" in shown
    treadle("limits", "set", "openai", "--rate", "100/1m", "--burst", "7")

    lines = treadle("limits", "ls").stdout.splitlines()

    assert ["LIMIT", "PER", "KEY", "RUNNING", "ALLOWED", "TYPES", "CHANGED"] == lines[0].split()
    assert ["gpu", "openai", "openai", "type:ask"] == [line.split()[0] for line in lines[1:]]
    assert "2 at once, 100 in 60 s, burst 7" in lines[2]
    assert "acme" in lines[3]
    assert "by cli:" in lines[3]
    assert (
        "'openai' for tenant='acme' is as the code says" in treadle("limits", "unset", "openai", "--key", "acme").stdout
    )
    assert "was not changed" in treadle("limits", "unset", "openai", "--key", "acme").stderr
    assert ["unset_limit", "set_limit", "set_limit"] == [row.action for row in td.store.audits(10)]
    assert "'openai' for tenant='acme': 50 at once, 500 in 60 s, burst 50" == td.store.audits(10)[2].what


def test_a_limit_below_what_runs_is_over(treadle, td, as_json):
    for tenant in ("acme", "globex", "umbrella"):
        td.enqueue("ask", tenant=tenant)
    assert 3 == len(td.claim(3))
    assert "limit 'gpu' is 1 at once; 2 more run now" in treadle("limits", "set", "gpu", "--concurrency", "1").stdout
    assert "OVER" in treadle("limits", "ls").stdout
    [gpu] = [item for item in as_json("limits", "ls")["items"] if item["name"] == "gpu"]
    assert (3, 1, 2, {"name": "gpu", "concurrency": 4}) == tuple(
        gpu[name] for name in ("running", "concurrency", "over", "declared")
    )


def test_a_type_without_a_limit_gets_one(treadle, td):
    assert "limit 'type:mail' is 5 at once" in treadle("limits", "set", "type:mail", "--concurrency", "5").stdout
    assert 5 == td.limits.get("type:mail").concurrency


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (["opneai", "--concurrency", "1"], 4, "did you mean 'openai'"),
        (["zzz", "--concurrency", "1"], 4, "there are gpu, openai, type:ask, type:mail"),
        (["openai"], 2, "pass concurrency="),
        (["openai", "--concurrency", "0"], 2, "at least 1"),
        (["openai", "--concurrency", "many"], 2, "not a valid integer"),
        (["openai", "--rate", "500"], 2, "such as 500/60s"),
        (["openai", "--rate", "x/60s"], 2, "such as 500/60s"),
        (["openai", "--rate", "5/soon"], 2, "such as 500/60s"),
        (["openai", "--rate", "٣/60s"], 2, "such as 500/60s"),
        (["openai", "--rate", "9" * 5000 + "/1s"], 2, "such as 500/60s"),
        (["openai", "--rate", "0/1s"], 2, "at least 1"),
        (["openai", "--rate", "5/0"], 2, "seconds in which"),
        (["openai", "--rate", "5/1s", "--burst", "-1"], 2, "at least 1"),
        (["openai", "--burst", "5"], 2, "--burst is part of a rate"),
        (["gpu", "--key", "acme", "--concurrency", "1"], 2, "leave the key out"),
        (["", "--concurrency", "1"], 2, "printable"),
    ],
    ids=str,
)
def test_bad_words_are_refused(treadle, td, words, code, problem):
    result = treadle("limits", "set", *words)

    assert (code, True) == (result.exit_code, problem in result.stderr), result.stderr
    assert [None] == list({state.changed_by for state in td.limits.list()})
    assert [] == td.store.audits(10)


def test_no_limits(treadle, td):
    td.store.publish([TypePolicy(type="ask")])
    assert "no limits" in treadle("limits", "ls").stderr


def test_a_key_that_is_a_secret_is_not_printed(treadle, td, as_json):
    td.store.publish([TypePolicy(type="ask", limits=encoded([Limit("keys", concurrency=1, per="payload.api_key")]))])
    shown = treadle("limits", "set", "keys", "--key", "s3cr3t", "--concurrency", "2")
    listed, json = treadle("limits", "ls"), as_json("limits", "ls")
    assert "•••" in shown.stdout
    assert "•••" in listed.stdout
    assert "s3cr3t" not in shown.output + listed.output + str(json) + str(td.store.audits(10))
    assert "s3cr3t" in treadle("limits", "ls", "--reveal").stdout
    assert "s3cr3t" not in treadle("limits", "unset", "keys", "--key", "s3cr3t").output
    assert td.limits.get("keys", key="s3cr3t") is None
