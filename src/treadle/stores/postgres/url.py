"""Where a URL leads: what libpq makes of it, and what people may see of it."""

from __future__ import annotations

from urllib.parse import urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from treadle.errors import BadURL
from treadle.redact import HIDDEN
from treadle.stores.postgres.connection import DEFAULTS

SECRET = ("password=", "sslpassword=", "oauth_client_secret=", "scram_client_key=", "scram_server_key=")
"""Secrets that libpq takes, some of them since PostgreSQL 18."""


def read(url: str) -> tuple[str, str]:
    """How to connect, with our defaults for what the URL does not say; and the URL without its password."""
    try:
        given = conninfo_to_dict(url)
    except psycopg.Error as error:
        said = _hidden(" ".join(str(error).split()), url)
        way_out = "; if it is of a driver, remove it" if "query parameter" in said else ""
        raise BadURL(shown(url), f"libpq says: {said}{way_out}") from None
    if "@" in str(given.get("host", "")):
        raise BadURL(shown(url), "what stands before its host has an @ in it: write that as %40")
    return make_conninfo("", **{**DEFAULTS, **given}), shown(url)


def shown(url: str) -> str:
    """The URL without its password, wherever that stands."""
    parts = urlsplit(url)
    users, at, hosts = parts.netloc.rpartition("@")
    query = "&".join(p for p in parts.query.split("&") if p and not p.startswith(SECRET))
    # Not urlunsplit, which makes postgresql:/jobs of postgresql:///jobs.
    return f"{parts.scheme}://{users.partition(':')[0]}{at}{hosts}{parts.path}{query and '?'}{query}"


def _hidden(text: str, url: str) -> str:
    """A text without the passwords of a URL: libpq shows what it cannot read."""
    parts = urlsplit(url)
    secrets = [parts.netloc.rpartition("@")[0].partition(":")[2]]
    secrets += [p.partition("=")[2] for p in parts.query.split("&") if p.startswith(SECRET)]
    for secret in filter(None, secrets):
        text = text.replace(secret, HIDDEN)
    return text
