"""The stand-alone server: uvicorn around one mount."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import uvicorn

from windlass.web import guard
from windlass.web.auth import allow_everyone
from windlass.web.mount import asgi

if TYPE_CHECKING:
    from windlass.app import Windlass


def serve(
    app: Windlass,
    *,
    host: str,
    port: int,
    prefix: str,
    hosts: Collection[str],
    read_only: bool,
    say: Callable[[str], None],
) -> None:
    """Until SIGINT or SIGTERM. The socket is bound first, so that the address that is said is the one that answers."""
    listening = bind(host, port)
    prefix = "/" + prefix.strip("/") if prefix.strip("/") else ""
    web = asgi(app, auth=allow_everyone, read_only=read_only, hosts={*guard.LOOPBACK, host, *hosts})
    settings = uvicorn.Config(
        web, root_path=prefix, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=1
    )
    say(f"{address(listening, host)}{prefix}/ · {app.store.where}")
    uvicorn.Server(settings).run([listening])


def bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind((host, port))
    return listening


def address(listening: socket.socket, host: str) -> str:
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{listening.getsockname()[1]}"
