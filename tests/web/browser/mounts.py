"""One process that serves many databases, each under its own prefix: `python -m tests.web.browser.mounts FOLDER`.

The mount /abc serves the database whose URL is in FOLDER/abc.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import uvicorn
from starlette.routing import Mount

from treadle import Treadle
from treadle.web import SCOPES, Principal

EVERYONE = Principal(name="everyone", scopes=frozenset(SCOPES))


class Mounts:
    """Makes a mount at its first request."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, Mount] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        mount = self._mount(scope["path"].split("/")[1])
        _, inner = mount.matches(scope)
        await mount.handle({**scope, **inner}, receive, send)

    async def _live(self, receive: Any, send: Any) -> None:
        for _ in range(2):
            await send({"type": f"{(await receive())['type']}.complete"})

    def _mount(self, name: str) -> Mount:
        if name not in self._made:
            url, _, option = (self._folder / name).read_text().partition("\n")
            web = Treadle(url).asgi(auth=lambda request: EVERYONE, read_only="read-only" in option, price=0.01)
            self._made[name] = Mount(f"/{name}", app=web)
        return self._made[name]


if __name__ == "__main__":
    settings = uvicorn.Config(Mounts(Path(sys.argv[1])), port=0, log_level="warning", timeout_graceful_shutdown=1)
    server = uvicorn.Server(settings)
    listening = settings.bind_socket()
    print(listening.getsockname()[1], flush=True)
    server.run([listening])
