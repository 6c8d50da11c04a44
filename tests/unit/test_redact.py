"""Values that look like secrets are hidden."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.views import HIDDEN, redact, redact_text


@pytest.mark.parametrize(
    "key", ["password", "PASSWORD", "db_password", "token", "accessToken", "client_secret", "Authorization", "api_key",
            "apikey", "apiKey", "api-key", "card", "card_number"],
)  # fmt: skip
@pytest.mark.parametrize("value", ["hunter2", 42, None, ["hunter2"], {"x": "hunter2"}], ids=str)
def test_the_value_of_a_key_that_names_a_secret_is_hidden(key: str, value: Any) -> None:
    assert redact({key: value, "other": 1}) == {key: HIDDEN, "other": 1}


def test_secrets_are_hidden_at_any_depth_and_other_values_stay() -> None:
    given = {"user": {"name": "ada", "password": "x"}, "list": [{"token": "x"}, 9007199254740993, None, True, 1.5]}
    expected = {"user": {"name": "ada", "password": HIDDEN}, "list": [{"token": HIDDEN}, *given["list"][1:]]}
    assert redact(given) == expected
    assert given["user"] == {"name": "ada", "password": "x"}


@pytest.mark.parametrize(
    "text",
    [
        "login failed: password=hunter2",
        "{'password': 'hunter2'}",
        '{"api_key": "hunter2", "n": 1}',
        "Authorization: Bearer hunter2",
        "authorization: basic hunter2",
        "https://example.com/?token=hunter2&x=1",
        'connect(secret="hunter2")',
        "card_number: hunter2",
    ],
)
def test_secrets_are_hidden_in_texts(text: str) -> None:
    shown = redact_text(text)
    assert "hunter2" not in shown
    assert HIDDEN in shown


@pytest.mark.parametrize("text", ["", "the token has expired", "ValueError: 3 cards", "a=b, c: d"])
def test_a_text_without_a_secret_stays_as_it_is(text: str) -> None:
    assert redact_text(text) == text
