"""`treadle tokens`."""

from __future__ import annotations

import pytest

from treadle import api_tokens


def test_the_secret_of_a_token_is_shown_once(treadle, as_json, td):
    made = treadle("tokens", "create", "ci", "--scope", "enqueue", "--tenant", "acme", "--expires", "30d")
    assert made.exit_code == 0
    secret = made.stdout.strip()
    assert secret.startswith(api_tokens.PREFIX)
    assert len(secret) >= 43
    assert "not shown again" in made.stderr
    [row] = as_json("tokens", "ls")["items"]
    assert (row["name"], row["scopes"], row["tenant"], row["expired"]) == ("ci", ["enqueue"], "acme", False)
    listed = treadle("tokens", "ls")
    assert "ci" in listed.stdout
    assert secret not in listed.stdout
    found = td.store.token(api_tokens.hash_of(secret))
    assert found is not None
    assert found.name == "ci"


def test_a_token_as_json(as_json):
    made = as_json("tokens", "create", "ci", "--scope", "manage", "--scope", "read")
    assert made["token"].startswith(api_tokens.PREFIX)
    assert (made["scopes"], made["expires_at"]) == (["manage", "read"], None)


def test_a_revoked_token_is_gone(treadle, as_json):
    treadle("tokens", "create", "ci")
    assert treadle("tokens", "revoke", "ci").exit_code == 0
    assert as_json("tokens", "ls") == {"items": []}
    again = treadle("tokens", "revoke", "ci")
    assert (again.exit_code, "treadle tokens ls" in again.stderr) == (4, True)


def test_a_revocation_as_json(treadle, as_json):
    treadle("tokens", "create", "ci")
    assert as_json("tokens", "revoke", "ci") == {"name": "ci", "revoked": True}


def test_a_name_can_be_used_once(treadle):
    treadle("tokens", "create", "ci")
    again = treadle("tokens", "create", "ci")
    assert (again.exit_code, again.stdout) == (5, "")
    assert "treadle tokens revoke ci" in again.stderr


@pytest.mark.parametrize(
    "words",
    [["x", "--scope", "root"], ["x" * 201], ["x", "--expires", "soon"], [], [""]],
    ids=lambda w: " ".join(w)[:20],
)
def test_an_invalid_token_is_exit_code_2(treadle, words):
    assert treadle("tokens", "create", *words).exit_code == 2
