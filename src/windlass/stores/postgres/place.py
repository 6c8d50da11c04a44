"""Where a URL leads: what libpq makes of it, and what people may see of it."""

from __future__ import annotations

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from windlass.errors import BadURL
from windlass.stores.postgres.connection import DEFAULTS


def read(url: str) -> tuple[str, str]:
    """How to connect, with our defaults for what the URL does not say; and the URL without its password."""
    try:
        given = conninfo_to_dict(url)
    except psycopg.Error as error:
        raise BadURL(shown(url), f"libpq says: {' '.join(str(error).split())}") from None
    return make_conninfo("", **{**DEFAULTS, **given}), shown(url)


def shown(url: str) -> str:
    """The URL without its password, wherever that stands."""
    scheme, separator, rest = url.partition("://")
    place, _, query = rest.partition("?")
    users, at, host = place.rpartition("@")
    kept = "&".join(p for p in query.split("&") if p and not p.startswith(("password=", "sslpassword=")))
    return f"{scheme}{separator}{users.partition(':')[0]}{at}{host}{'?' if kept else ''}{kept}"
