"""Every code block of the README and the docs runs as printed, and every link leads somewhere."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.docs.blocks import PAGES, ROOT, blocks_of, prose_of
from tests.docs.run import Page
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer

OTHERS = [ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "UPGRADING.md")]
OTHERS += sorted((ROOT / "examples").glob("**/*.md"))
LIBSQL = "libsql+http://127.0.0.1:8080"
"""The server's address in the docs. The tests' own server has another port, because that one may be in use."""
PROBES = "127.0.0.1:8081"
"""The address of a worker's probes in the docs. The tests have a free port instead."""
REDIS = "redis://127.0.0.1:6379"
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch, make_postgres: Callable[..., PostgresServer]) -> None:
    """A server for this page and its roles, with the database that `postgresql:///shop` means."""
    server = make_postgres()
    server.create_database("shop_test")
    place = urlsplit(server.create_database("shop"))
    monkeypatch.setenv("PGHOST", str(place.hostname))
    monkeypatch.setenv("PGPORT", str(place.port))
    monkeypatch.setenv("PGUSER", str(place.username))


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_block_runs_as_printed(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if any("postgresql:///" in block.code for block in blocks_of(page)):
        request.getfixturevalue("shop")
    blocks = blocks_of(page)
    if any(LIBSQL in block.code for block in blocks):
        server: str = request.getfixturevalue("libsql_url")
        blocks = [block._replace(code=block.code.replace(LIBSQL, server)) for block in blocks]
    if any(PROBES in block.code for block in blocks):
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        blocks = [block._replace(code=block.code.replace(PROBES, address)) for block in blocks]
    if any(REDIS in block.code for block in blocks):
        redis: RedisServer = request.getfixturevalue("redis_server")
        redis.client.flushall()
        blocks = [block._replace(code=block.code.replace(REDIS, redis.url)) for block in blocks]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("TREADLE_URL", raising=False)
    running = Page(page, tmp_path)
    try:
        for block in blocks:
            running.run(block)
    finally:
        for module in running.modules:
            sys.modules.pop(module, None)


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=_name)
def test_indented_blocks_are_commands_of_the_repository(page: Path) -> None:
    """They are not run here, because they install and test everything. This checks that they exist."""
    for paragraph in re.split(r"\n\s*\n", prose_of(page)):
        lines = paragraph.strip("\n").split("\n")
        if all(line.startswith("    ") for line in lines):
            for command in (line.split()[0] for line in lines):
                known = command in ("pip", ".venv/bin/ruff") or os.access(ROOT / command, os.X_OK)
                assert known, f"{command} is no command of the repository; put it in a ```console block, which is run"


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=_name)
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = []
    for link in _LINK.findall(prose_of(page)):
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=_name)
def test_the_pages_are_plain(page: Path) -> None:
    """No path of a machine, and no line that ends in spaces."""
    text = page.read_text("utf-8")
    assert re.findall(r"/work/|/root/|/home/\w+|localhost:\d+/simple", text) == []
    assert [line for line in text.splitlines() if line != line.rstrip()] == []


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=_name)
def test_the_pages_use_plain_words(page: Path) -> None:
    """Words that are old or private; CONTRIBUTING.md shows what to write instead."""
    prose = re.sub(r"`[^`]*`", "", prose_of(page)) if page.name != "CONTRIBUTING.md" else ""
    assert (
        re.findall(r"\b(?:mends?|mended|befell|whom|told|so many|for want of|our mistake|journeys?|for ever)\b", prose)
        == []
    )


def test_contributing_lists_every_folder_of_tests() -> None:
    listed = re.findall(r"^\| `(tests/\w+)` \|", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.MULTILINE)
    there = [f"tests/{path.parent.name}" for path in (ROOT / "tests").glob("*/__init__.py")]
    assert sorted(listed) == sorted(there)


def _anchors(page: Path) -> set[str]:
    """Headings as GitHub names them."""
    headings = re.findall(r"^#+ (.+)$", prose_of(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
