"""libSQL servers that a test may stop and kill, and tokens for a server that needs them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.servers.fixtures import cannot
from tests.servers.libsql import LibSQLServer, NoServer


@pytest.fixture
def make_server() -> Iterator[Callable[..., LibSQLServer]]:
    made: list[LibSQLServer] = []

    def make(*arguments: str) -> LibSQLServer:
        try:
            made.append(server := LibSQLServer(*arguments))
        except NoServer as error:
            cannot(str(error))
        server.start()
        return server

    yield make
    for server in made:
        server.__exit__()


@pytest.fixture
def own_server(make_server: Callable[..., LibSQLServer]) -> LibSQLServer:
    """A server that a test may stop."""
    return make_server()


class Keys:
    """The keys that sign tokens."""

    def __init__(self, folder: Path) -> None:
        self._key = Ed25519PrivateKey.generate()
        public = self._key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self.file = folder / "key.pem"
        self.file.write_bytes(public)

    def token(self) -> str:
        head, body = _encoded({"alg": "EdDSA", "typ": "JWT"}), _encoded({"a": "rw"})
        signature = self._key.sign(head + b"." + body)
        return b".".join((head, body, base64.urlsafe_b64encode(signature).rstrip(b"="))).decode()


def _encoded(part: dict[str, str]) -> bytes:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)
