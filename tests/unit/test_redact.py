"""Values that look like secrets are hidden, to their end, and nothing else is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle import Treadle
from treadle.errors import BadOption
from treadle.redact import DEFAULT, HIDDEN, OFF, Redactor, merged

redact, redact_text = DEFAULT.value, DEFAULT.text
SECRET_NAMES = ["password", "PASSWORD", "db_password", "passWord", "pass_word", "passwords", "passwd", "pwd"]
SECRET_NAMES += ["MYSQL_PWD", "PGPASSWORD", "password1", "passphrase", "token", "accessToken", "access-token"]
SECRET_NAMES += ["authtoken", "OAuth2Token", "client_secret", "clientsecret", "secrets", "Authorization", "api_key"]
SECRET_NAMES += ["Proxy-Authorization", "apikey", "apiKey", "APIKey", "api-key", "api.key", "X-Api-Key", "API Key"]
SECRET_NAMES += ["private_key", "privateKey", "credentials", "card", "card_number", "user.password"]
OTHER_NAMES = [
    "max_tokens",
    "tokens",
    "tokenizer",
    "discard",
    "cardinality",
    "cards",
    "secretary",
    "key",
    "keys",
    "api",
]
OTHER_NAMES += ["author", "authority", "private", "pass", "bypass", "word", "number", "", "user", "🔑"]


@pytest.mark.parametrize("key", SECRET_NAMES)
@pytest.mark.parametrize("value", ["hunter2", 42, None, ["hunter2"], {"x": "hunter2"}], ids=str)
def test_the_value_of_a_key_that_names_a_secret_is_hidden(key: str, value: Any) -> None:
    assert redact({key: value, "other": 1}) == {key: HIDDEN, "other": 1}


@pytest.mark.parametrize("key", OTHER_NAMES)
def test_the_value_of_another_key_stays(key: str) -> None:
    assert redact({key: "hunter2"}) == {key: "hunter2"}
    assert redact_text(f"{key}=hunter2") == f"{key}=hunter2"


def test_secrets_are_hidden_at_any_depth_and_other_values_stay() -> None:
    given = {"user": {"name": "ada", "password": "x"}, "list": [{"token": "x"}, 9007199254740993, None, True, 1.5]}
    expected = {"user": {"name": "ada", "password": HIDDEN}, "list": [{"token": HIDDEN}, *given["list"][1:]]}
    assert redact(given) == expected
    assert given["user"] == {"name": "ada", "password": "x"}


def test_secrets_are_hidden_in_the_texts_of_a_value() -> None:
    given = {"dsn": "postgres://u:hunter2@h/db", "log": ["login with password=hunter2"]}
    assert redact(given) == {"dsn": f"postgres://u:{HIDDEN}@h/db", "log": [f"login with password={HIDDEN}"]}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        # without quotes: up to a space
        ("login failed: password=hunter2", "login failed: password=•••"),
        ("password=a,TAIL", "password=•••"),
        ("password=a;TAIL&TAIL)TAIL", "password=•••"),
        ("password=a\"TAIL'TAIL", "password=•••"),
        ("password=hunter2, user=ada", "password=•••, user=ada"),
        ("connect(user=ada, password=hunter2) failed", "connect(user=ada, password=•••) failed"),
        ("password = hunter2\nnext: line", "password = •••\nnext: line"),
        ("password==hunter2", "password==•••"),
        ("password := hunter2", "password := •••"),
        ("PGPASSWORD=hunter2 psql", "PGPASSWORD=••• psql"),
        ("card_number: 4111 1111 1111 1111 declined", "card_number: ••• declined"),
        ("Invalid API key: sk-123 for ada", "Invalid API key: ••• for ada"),
        ("https://example.com/?token=hunter2&x=1", "https://example.com/?token=•••"),
        ("user%5Bpassword%5D=hunter2", "user%5Bpassword%5D=•••"),
        ("user[password]=hunter2", "user[password]=•••"),
        # in quotes: up to the closing one
        ("{'password': 'hun ter2', 'user': 'ada'}", "{'password': •••, 'user': 'ada'}"),
        ("{'password': b'hun ter2'}", "{'password': •••}"),
        ('{"api_key": "hunter2", "n": 1}', '{"api_key": •••, "n": 1}'),
        (r'{"password": "a\"TAIL", "n": 1}', '{"password": •••, "n": 1}'),
        (r'{"password": "a\\", "n": 1}', '{"password": •••, "n": 1}'),
        ('{"password": "a"TAIL", "n": 1}', '{"password": •••", "n": 1}'),
        ("password='it''s TAIL', n=1", "password=•••, n=1"),
        ('password="""a "TAIL" b""", n=1', "password=•••, n=1"),
        (r"{\"password\": \"hun ter2\", \"n\": 1}", r"{\"password\": •••, \"n\": 1}"),
        ('password="hunter2 is cut of', "password=•••"),
        ('connect(secret="hunter2")', "connect(secret=•••)"),
        ('os.environ["DB_PASSWORD"] = "hunter2"', 'os.environ["DB_PASSWORD"] = •••'),
        ("password => 'hunter2', 'user' => 'ada'", "password => •••, 'user' => 'ada'"),
        ('def login(password: str | None = "hunter2", n=1)', "def login(password: •••, n=1)"),
        # in brackets: up to the closing one
        ("token=['X', ('Y')] n", "token=••• n"),
        ('password: {"value": "a}TAIL"} n', "password: ••• n"),
        ("password=SecretStr('a b'), n=1", "password=•••, n=1"),
        ("token=['X' is cut of", "token=•••"),
        # other values of JSON
        ('{"token":null,"user":"ada"}', '{"token":•••,"user":"ada"}'),
        ('{"token":1234,"user":"ada"}', '{"token":•••,"user":"ada"}'),
        # headers
        ("Authorization: Bearer hunter2", "Authorization: •••"),
        ("authorization: basic hunter2", "authorization: •••"),
        ("Authorization: Token hunter2", "Authorization: •••"),
        ('Authorization: Digest username="a", response="b"\nHost: h', "Authorization: •••\nHost: h"),
        ("{'Authorization': 'Token hunter2', 'n': 1}", "{'Authorization': •••, 'n': 1}"),
        ("token: Bearer hunter2 (expired)", "token: ••• (expired)"),
        ("private_key=-----BEGIN PRIVATE KEY-----\nMII\n-----END PRIVATE KEY-----\nn", "private_key=•••\nn"),
        # URLs
        ("postgres://u:hunter2@h/db refused", "postgres://u:•••@h/db refused"),
        ("redis://:hunter2@h:6379/0", "redis://:•••@h:6379/0"),
        ("postgres://u:p/w:@x@h/db, a@b.c", "postgres://u:•••@h/db, a@b.c"),
        ('{"dsn":"amqp://u:p@h","mail":"a@b.c"}', '{"dsn":"amqp://u:•••@h","mail":"a@b.c"}'),
    ],
)
def test_secrets_are_hidden_in_texts(text: str, shown: str) -> None:
    assert redact_text(text) == shown
    assert redact_text(shown) == shown


@pytest.mark.parametrize(
    "text",
    ["", "the token has expired", "ValueError: 3 cards", "a=b, c: d", "max_tokens=5", "invalid token type: int", "a://:",
     "password=", "f(password=)", "password: ", "http://localhost:8000/users/@me", "https://u@h/x:y", "mailto:a@b.c"],
)  # fmt: skip
def test_a_text_without_a_secret_stays_as_it_is(text: str) -> None:
    assert redact_text(text) == text


SECRETS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).map(lambda text: f"<{text}>")
"""Any text, between two marks that nothing else has."""


@given(SECRETS, st.sampled_from(SECRET_NAMES))
def test_nothing_is_left_of_a_secret_however_it_is_written(secret: str, name: str) -> None:
    value = {name: secret, "n": [1], "in": [{name: [secret, {"x": secret}]}]}
    texts = [json.dumps(value), json.dumps(value, ensure_ascii=False), json.dumps(json.dumps(value)), repr(value)]
    name = "token" if " " in name else name
    bare = secret.translate({ord(c): "_" for c in secret if c.isspace()})
    texts += [f"{name}={bare}", f"f({name}={secret!r}, n=1)", f"{name} = {secret.encode()!r}", f"{name}: {[secret]}"]
    for text in texts:
        assert "<" not in redact_text(f"error: {text} n=1"), text
    assert "<" not in str(redact(value))


@given(
    st.lists(st.sampled_from([*SECRET_NAMES, *" \t\n\"'`\\=:,;&()[]{}@/<>-1é😀", "://", "https", "a", HIDDEN])).map(
        "".join
    )
)
def test_any_text_is_redacted_once_and_for_all(text: str) -> None:
    shown = redact_text(text)
    assert len(shown) <= len(text) + len(HIDDEN) * (text.count(":") + text.count("="))
    redact_text(shown)


@given(st.text(max_size=20), st.sampled_from(SECRET_NAMES), st.text(max_size=20))
def test_every_name_of_a_secret_contains_a_marker(before: str, name: str, after: str) -> None:
    found = f"{before}{name}{after}"
    assert not DEFAULT.hides(found) or any(marker in found.lower() for marker in DEFAULT.markers)


# The app's own names


def test_an_app_adds_names() -> None:
    added = Redactor(["iban", "taxId", "Social-Security_Number"])
    for name in ("iban", "IBAN", "customer_iban", "tax_id", "taxid", "social_security_number", "password"):
        assert added.value({name: "X"}) == {name: HIDDEN}
        assert added.text(f"{name}=X") == f"{name}={HIDDEN}"
    assert added.text("Tax ID: X") == f"Tax ID: {HIDDEN}"
    assert added.value({"ibanez": 1, "tax": 2, "id": 3}) == {"ibanez": 1, "tax": 2, "id": 3}
    assert DEFAULT.value({"iban": 1}) == {"iban": 1}


def test_redaction_can_be_switched_off() -> None:
    text = "password=hunter2 postgres://u:hunter2@h"
    assert OFF.text(text) == text
    assert OFF.value({"password": text}) == {"password": text}
    assert OFF.markers == ()


@pytest.mark.parametrize("wrong", ["iban", 7, None, [7], [""], ["_-"], b"iban"])
def test_a_wrong_setting_is_refused(wrong: Any, treadle_url: str) -> None:
    with pytest.raises(BadOption, match="a list of names"):
        Treadle(treadle_url, redact=wrong)


def test_an_app_has_the_redactor_that_it_asks_for(treadle_url: str) -> None:
    assert Treadle(treadle_url).redactor is Treadle(treadle_url, redact=True).redactor is DEFAULT
    assert Treadle(treadle_url, redact=False).redactor is OFF
    assert Treadle(treadle_url, redact={"iban"}).redactor.hides("iban")


def test_what_several_apps_publish_adds_up_and_is_off_only_if_all_are() -> None:
    first, second = Redactor(["iban"]), Redactor(["ssn"])
    both = merged([first.published, second.published, DEFAULT.published, OFF.published])
    assert [both.hides(name) for name in ("iban", "ssn", "password", "user")] == [True, True, True, False]
    assert not merged([OFF.published, OFF.published]).on
    assert merged([]).on


def test_many_names_are_not_remembered() -> None:
    """They come from payloads."""
    redactor = Redactor()
    for n in range(5_000):
        assert redactor.hides(f"token_{n}")
    assert not redactor.hides("a" * 10_000)
    assert len(redactor._known) <= 1_000
