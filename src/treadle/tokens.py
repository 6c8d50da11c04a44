"""Tokens for the HTTP API. A token is random and shown once; what is kept of it is a hash that gives nothing away."""

from __future__ import annotations

import hashlib
import secrets

SCOPES = ("read", "enqueue", "tick", "manage")
"""See jobs; store new ones; run what is due; change everything. `manage` includes the others."""
PREFIX = "td_"
"""So that people and scanners for leaked secrets see what it is."""

SESSION = "login "
"""How the names of those begin that a browser got by a login: they are tokens like any other."""


def new_secret() -> str:
    """256 random bits: nobody guesses it, so that a plain hash is enough."""
    return PREFIX + secrets.token_urlsafe(32)


def hash_of(secret: str) -> str:
    """What is kept of a token."""
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()
