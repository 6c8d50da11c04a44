"""Tokens for the HTTP API. A token is random and shown once; only its hash is stored."""

from __future__ import annotations

import hashlib
import secrets

SCOPES = ("read", "enqueue", "tick", "manage")
"""See jobs; store new ones; run due ones; change everything. `manage` includes the others."""
PREFIX = "td_"
"""So that people and scanners for leaked secrets recognize a token."""
LENGTH = 46
"""Characters of a token."""

SESSION = "login "
"""The names of tokens that a browser got by a login begin with this. They are tokens like any other."""
LINK = f"{SESSION}link "
"""The names of login links. They have no scope, and are deleted when they are used."""


def new_secret() -> str:
    """A new token of 256 random bits. It cannot be guessed, so a plain hash protects it."""
    return PREFIX + secrets.token_urlsafe(32)


def is_expired(until: int | None, now: int) -> bool:
    return until is not None and until <= now


def hash_of(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()
