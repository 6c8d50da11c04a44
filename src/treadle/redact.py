"""Redaction: secrets are hidden by name. In payloads and results that is the name of a key, in texts the name that a
value is assigned to. The texts come from others, so everything here takes time in proportion to their length: patterns
are possessive, what is before a separator is read once, and a value that was found is skipped."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import msgspec

HIDDEN = "•••"
NAMES: tuple[str, ...] = ("password", "passwords", "pass word", "passwd", "passphrase", "pwd", "token", "authorization")
NAMES += ("secret", "secrets", "credential", "credentials", "api key", "api keys", "private key", "card", "card number")
"""A name is a secret's if it has these words one after the other: `db_password`, `accessToken`, `X-Api-Key`."""
ENDINGS = ("password", "passwd", "secret", "token")
"""A word may also end like this: `PGPASSWORD`, `authtoken`."""
JOINTS = ("", "_", "-", ".", " ")
"""What may be between two words of a name."""
KEPT = 1_000
"""Names whose answer is kept: they come from others, and must not pile up."""
Setting = bool | Collection[str]
"""What `Treadle(redact=…)` takes: names to hide in addition, or False to hide nothing."""


class Redactor:
    """Hides secrets. `more`: names of an app's own. One that is not `on` hides nothing."""

    def __init__(self, more: Iterable[str] = (), *, on: bool = True) -> None:
        self.on, self.more = on, tuple(more)
        names = [words for name in (*NAMES, *self.more) if (words := _words(name))] if on else []
        markers = {marker for words in names for marker in _markers(words)}
        self.markers = tuple(sorted(m for m in markers if not any(other in m for other in markers - {m})))
        """Every name of a secret contains one of these, in lower case."""
        self._phrases = _any_of(names)
        several = [words for words in names if len(words) > 1]
        self._pairs, self._ends_of_pairs = _any_of(several), tuple({words[-1] for words in several})
        self._known: dict[str, bool] = {}

    @property
    def published(self) -> str:
        """As workers store it, for commands and dashboards that run without the app's code."""
        return msgspec.json.encode(sorted(self.more) if self.on else False).decode()

    def hides(self, name: str) -> bool:
        known = self._known.get(name)
        if known is None:
            words = _joined(name)
            known = self.on and (any(ending in words for ending in _ENDINGS) or bool(self._phrases.search(words)))
            if len(self._known) < KEPT and len(name) <= 100:
                self._known[name] = known
        return known

    def value(self, value: Any) -> Any:
        """A JSON value with dots for the values of keys that name a secret, and for secrets in its texts."""
        if isinstance(value, dict):
            return {key: HIDDEN if self.hides(key) else self.value(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.value(inner) for inner in value]
        return self.text(value) if isinstance(value, str) else value

    def text(self, text: str) -> str:
        """A text with dots for the values that it assigns to names of secrets, and for passwords in URLs."""
        if not self.on:
            return text
        text = without_url_passwords(text)
        return _with_dots(text, _values(text, self._is_secret))

    def searchable(self, text: str) -> str:
        """As much of the text as a search may look for, so that what it finds is shown. A search ignores case: where a
        word starts in the middle of a name is not known then."""
        if not self.on:
            return text
        whole = f"{text}@"  # which ends the password in a URL
        values, passwords = _values(whole, self._may_be_secret), _url_passwords(whole)
        return text[: min(next(spans, (len(text), 0))[0] for spans in (values, passwords))]

    def _is_secret(self, name: str, before: str) -> bool:
        """`before`: the word before the name. In a sentence, two words can be a name: `API key: …`."""
        if self.hides(name):
            return True
        may_end = before != "" and name.lower().endswith(self._ends_of_pairs)
        return may_end and self._pairs.search(_joined(before + name)) is not None

    def _may_be_secret(self, name: str, before: str) -> bool:
        words = (before + name if name.lower().endswith(self._ends_of_pairs) else name).lower()
        return any(marker in words for marker in self.markers)


def without_url_passwords(text: str) -> str:
    return _with_dots(text, _url_passwords(text))


def without_password(text: str) -> str:
    """A URL, or a text that contains one, without its password or token: errors end up in logs."""
    return _SECRET.sub(rf"\1{HIDDEN}", without_url_passwords(text))


_SECRET = re.compile(r"((?:password|authtoken)=)(?:'[^']*+'|[^&\s]++)", re.IGNORECASE)


def merged(published: Iterable[str]) -> Redactor:
    """The redactor for what several apps published: all of their names. It is off only if all of them are."""
    settings = [msgspec.json.decode(text) for text in published]
    names = sorted({name for setting in settings if setting for name in setting})
    return OFF if settings and all(setting is False for setting in settings) else Redactor(names)


Spans = Iterator[tuple[int, int]]
"""Where parts of a text start and end, in order."""


def _with_dots(text: str, spans: Spans) -> str:
    parts, shown = [], 0
    for start, end in spans:
        parts += [text[shown:start], HIDDEN]
        shown = end
    return "".join([*parts, text[shown:]])


# Names

_WORD_ENDS = re.compile(r"[\W_]|(?<=[a-z])(?=[A-Z\d])|(?<=[A-Z])(?=[A-Z][a-z]|\d)|(?<=\d)(?=[A-Za-z])")
_ENDINGS = tuple(f"{ending}_" for ending in ENDINGS)


def _joined(name: str) -> str:
    """`_access_token_` for `accessToken`."""
    return f"_{_WORD_ENDS.sub('_', name).lower()}_"


def _words(name: str) -> list[str]:
    return [word for word in _joined(name).split("_") if word]


def _markers(words: list[str]) -> list[str]:
    """A part of the name, in each way to write it: its first word, or two, as `api` is a part of many words."""
    return [joint.join(words[:2]) for joint in JOINTS] if len(words[0]) < 4 else words[:1]


def _any_of(names: Iterable[list[str]]) -> re.Pattern[str]:
    """Finds one of these names in what `_joined` returns."""
    return re.compile("|".join(f"_{'_?'.join(map(re.escape, words))}_" for words in names) or r"(?!)")


# Values

_SEPARATOR = re.compile(r"[:=][=>]*+[ \t]*+")
_REVERSED_NAME = re.compile(r"""[ \t]*+([\\"'`\])]*+)([\w.%-]++)((?:[ ][\w.%-]++)?)""")
"""`password`, `"api_key"`, `environ["TOKEN"]`, `API key`: what is before a separator, read backwards."""
_STRING = r"""
    (?P<triple>\"{3}|'{3}).*?(?:(?P=triple)|\Z)
  | "(?:[^"\\]++|\\.?)*+(?:"|\Z)
  | '(?:[^'\\]++|\\.?)*+(?:'|\Z)
  | (?<!\\)(?P<escaped>\\++["']).*?(?:(?<!\\)(?P=escaped)|\Z)  # inside another string
"""
_QUOTED = re.compile(rf"[bru]{{0,2}}+(?:{_STRING})", re.VERBOSE | re.IGNORECASE | re.DOTALL)
_PIECE = re.compile(rf"(?P<open>[\[({{])|(?P<close>[\])}}])|{_STRING}", re.VERBOSE | re.DOTALL)
_PEM = re.compile(r"-----BEGIN .*?(?:-----END [^\n-]*+-----|\Z)", re.DOTALL)
_LITERAL = re.compile(r"(?:-?\d[\w.+-]*+|true|false|null|none|•{3})(?=[\s,\]}]|\Z)", re.IGNORECASE)
_SCHEME = re.compile(r"(?:(?:bearer|basic|digest|negotiate|token|apikey)[ \t]++(?=\S))*+", re.IGNORECASE)
_NUMBERS = re.compile(r"\d++(?:[ ]\d++)++")
_BARE = re.compile(r"[^\s\[({]*+")
_LINE = re.compile(r"[^\r\n]*+")
_CONTINUED = re.compile(r"(?:[ \t]*+\|[ \t]*+[\w.]++)*+[ \t]*+=[=>]*+[ \t]*+")
"""`password: str | None = …`: the value is what comes last."""
_AFTER_A_STRING = " \t\r\n,;:&|)]}>\\\"'`"
_AFTER_A_WORD = "\"'`)]},;:.>"


def _values(text: str, is_secret: Callable[[str, str], bool]) -> Spans:
    """The values that the text assigns to names of secrets."""
    at = 0
    for separator in _SEPARATOR.finditer(text):
        if separator.start() < at:
            continue  # it is part of a value
        found = _REVERSED_NAME.match(text[at : separator.start()][::-1])
        at = separator.end()
        if found is not None and is_secret(name := found[2][::-1], found[3][::-1]):
            end = _end_of_values(text, at, in_json=found[1] != "", header="authorization" in name.lower())
            if end > at:
                yield at, end
                at = end


def _end_of_values(text: str, at: int, *, in_json: bool, header: bool) -> int:
    """Where that which is assigned at `at` ends. `in_json`: its name has quotes. `header`: it has several words."""
    while True:
        end = _end_of_value(text, at, in_json, header)
        continued = _CONTINUED.match(text, end)
        if end == at or continued is None:
            return end
        at = continued.end()


def _end_of_value(text: str, at: int, in_json: bool, header: bool) -> int:
    if found := _PEM.match(text, at) or (_LITERAL.match(text, at) if in_json else None):
        return found.end()
    if (end := _end_of_string(text, at)) > at:  # what follows without a space belongs to it: "a"TAIL
        return end if text[end : end + 1] in _AFTER_A_STRING else _end_of_word(text, end)
    return _reach(_LINE, text, at) if header else _end_of_word(text, at)


def _end_of_string(text: str, at: int) -> int:
    """The end of a string, or of brackets; `at` if there is neither."""
    if text[at : at + 1] in ("[", "(", "{"):
        return _end_of_brackets(text, at)
    end = _reach(_QUOTED, text, at)
    while text[end : end + 1] in ('"', "'") and text[end] == text[end - 1]:  # 'it''s'
        end = _reach(_QUOTED, text, end)
    return end


def _end_of_brackets(text: str, at: int) -> int:
    depth = 0
    for piece in _PIECE.finditer(text, at):
        depth += (piece["open"] is not None) - (piece["close"] is not None)
        if depth == 0:
            return piece.end()
    return len(text)


def _end_of_word(text: str, at: int) -> int:
    """Up to a space, which may be inside brackets: SecretStr('a b'). What ends the sentence is not part of it."""
    start = _reach(_SCHEME, text, at)
    closed = _reach(_NUMBERS, text, start)
    end = _reach(_BARE, text, closed)
    while text[end : end + 1] in ("[", "(", "{"):
        closed = _end_of_brackets(text, end)
        end = _reach(_BARE, text, closed)
    return max(closed, start + len(text[start:end].rstrip(_AFTER_A_WORD))) if end > start else at


def _reach(pattern: re.Pattern[str], text: str, at: int, stop: int = sys.maxsize) -> int:
    """Where the pattern ends that starts at `at`; `at` if it does not match."""
    found = pattern.match(text, at, stop)
    return at if found is None else found.end()


# URLs

_USER = re.compile(r"""[^\s:/?#@"']*+:(?!\d{1,5}(?:[/?#]|\Z))""")
"""The user, up to the password. (The colon after a host precedes a port.)"""
_INSIDE_QUOTES = re.compile(r"""[^\s"'`<>]*+""")
_UP_TO_SPACE = re.compile(r"\S*+")


def _url_passwords(text: str) -> Spans:
    """A URL is read up to the next one. A password may contain an @ that should have been escaped."""
    at = text.find("://")
    while at >= 0:
        user, at = at + 3, text.find("://", at + 3)
        stop = at if at >= 0 else len(text)
        start = _reach(_USER, text, user, stop)
        ends = (text.rfind("@", start, _reach(url, text, start, stop)) for url in (_INSIDE_QUOTES, _UP_TO_SPACE))
        if start > user and (end := next((end for end in ends if end > start), 0)):
            yield start, end


DEFAULT, OFF = Redactor(), Redactor(on=False)
