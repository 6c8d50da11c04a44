"""The part of PostgreSQL's protocol that matches replies to statements."""

from __future__ import annotations

import re
import struct
from collections import deque
from typing import BinaryIO, NamedTuple

CANCEL, SSL, GSS = 80877102, 80877103, 80877104

COMMIT = re.compile(r"(?:^|;)\s*(?:COMMIT|END)(?:\s+(?:WORK|TRANSACTION))?\s*;?\s*$", re.IGNORECASE)


def is_commit(sql: str) -> bool:
    return COMMIT.search(sql) is not None


class Message(NamedTuple):
    kind: bytes
    body: bytes

    @property
    def raw(self) -> bytes:
        return self.kind + struct.pack("!I", len(self.body) + 4) + self.body


def read_startup(stream: BinaryIO) -> tuple[int, Message] | None:
    """The first messages of a client have no kind, but a code. None at the end of the stream."""
    if (body := _read_body(stream)) is None:
        return None
    return struct.unpack("!I", body[:4])[0], Message(b"", body)


def read_message(stream: BinaryIO) -> Message | None:
    kind = stream.read(1)
    body = _read_body(stream) if kind else None
    return None if body is None else Message(kind, body)


def _read_body(stream: BinaryIO) -> bytes | None:
    head = stream.read(4)
    if len(head) < 4:
        return None
    length = struct.unpack("!I", head)[0] - 4
    body = stream.read(length)
    return body if len(body) == length else None


class Statements:
    """The SQL that a client runs. An Execute names a portal, a portal a statement, and only a statement has SQL."""

    def __init__(self) -> None:
        self._prepared: dict[bytes, str] = {}
        self._portals: dict[bytes, str] = {}

    def run_by(self, message: Message) -> str | None:
        """The SQL that this message runs, if it runs any."""
        words = message.body.split(b"\0", 2)
        if message.kind == b"Q":
            return words[0].decode(errors="replace")
        if message.kind == b"P":
            self._prepared[words[0]] = words[1].decode(errors="replace")
        elif message.kind == b"B":
            self._portals[words[0]] = self._prepared.get(words[1], "")
        elif message.kind == b"E":
            return self._portals.get(words[0], "")
        return None


class Answer(NamedTuple):
    end: bytes
    """`Z`: the reply ends with ReadyForQuery. `C`: it ends with the end of one of several statements."""
    hold: bool = False
    """The client gets nothing from here on."""
    cut: bool = False
    """When it is complete, the connection ends."""


class Answers:
    """The replies that a client waits for, in order. One thread adds and another takes, which a deque allows."""

    def __init__(self) -> None:
        self._expected: deque[Answer] = deque()
        self._cut_at_sync = False

    def expect(self, message: Message, sql: str | None, cut: bool) -> None:
        """Call this before the message is forwarded, because the reply may be fast."""
        if message.kind in b"QF":
            self._expected.append(Answer(b"Z", hold=cut, cut=cut))
        elif message.kind == b"E":
            # An explicit COMMIT has happened when its reply comes. Anything else may be committed by the Sync.
            explicit = cut and is_commit(sql or "")
            self._expected.append(Answer(b"C", hold=cut, cut=explicit))
            self._cut_at_sync |= cut and not explicit
        elif message.kind == b"S":
            self._expected.append(Answer(b"Z", hold=self._cut_at_sync, cut=self._cut_at_sync))
            self._cut_at_sync = False

    @property
    def held(self) -> bool:
        return bool(self._expected) and self._expected[0].hold

    def complete(self, message: Message) -> bool:
        """Remove the reply that this message completes. Return whether the connection has to end with it."""
        cut = False
        if message.kind in b"CIs" and self._expected and self._expected[0].end == b"C":
            cut = self._expected.popleft().cut
        elif message.kind == b"Z":
            # After an error, the server skips everything up to the Sync.
            while self._expected:
                answer = self._expected.popleft()
                cut |= answer.cut
                if answer.end == b"Z":
                    break
        return cut
