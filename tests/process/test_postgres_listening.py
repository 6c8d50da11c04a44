"""LISTEN on PostgreSQL: who listens, through a pooler, and after a fork."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.eventually import eventually
from tests.process.fault_injection import KILL_LISTENERS, LISTENERS
from tests.process.faults import execute
from tests.process.harness import Place
from tests.servers.proxy import Proxy
from tests.servers.wire import Message
from tests.worker.helpers import working
from treadle import Treadle


@pytest.fixture
def no_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is not notified does not know."""
    monkeypatch.setattr("treadle.worker.watch.POLL", 600)


@pytest.mark.usefixtures("no_polls")
def test_a_listener_that_was_killed_listens_again(postgres_url: str) -> None:
    with closing(Treadle(postgres_url)) as app, closing(Treadle(postgres_url)) as other:

        @app.job
        async def work() -> str:
            return "heard"

        with working(app):
            assert other.result(other.enqueue("work").id, timeout=30) == "heard"
            for _ in range(3):
                [before] = execute(postgres_url, KILL_LISTENERS)
                # Until there is a new one alone: the old session may take a moment to end.
                eventually(lambda: before not in (found := execute(postgres_url, LISTENERS)) and len(found) == 1)  # noqa: B023
                assert other.result(other.enqueue("work").id, timeout=30) == "heard"


class Pooler(Proxy):
    """A pooler in transaction mode: it forwards no notifications, and sends a cancel key of its own."""

    def from_server(self, message: Message) -> Message | None:
        if message.kind == b"K":
            return Message(b"K", bytes(8))
        return None if message.kind == b"A" else message


@pytest.mark.parametrize("proxy", [Proxy, Pooler])
def test_behind_a_pooler_nothing_is_prepared(postgres_url: str, proxy: type[Proxy]) -> None:
    """A session that another client has used may have a different statement of the same name."""
    with proxy(postgres_url) as between, closing(Treadle(between.url())) as app:
        for _ in range(10):
            app.enqueue("work")
        names = app.store.database.read("insert", lambda tx: tx.execute("SELECT name FROM pg_prepared_statements"))
        assert bool(names.fetchall()) is (proxy is Proxy)


def test_behind_a_pooler_that_loses_notifications_a_worker_says_so_and_polls(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("treadle.stores.postgres.listen.TEST_SECONDS", 0.3)
    with (
        Pooler(postgres_url) as pooler,
        closing(Treadle(pooler.url())) as app,
        closing(Treadle(postgres_url)) as other,
    ):

        @app.job
        async def work() -> str:
            return "found"

        with working(app):
            assert caplog.text.count("is there a pooler in transaction mode in between?") == 1
            for _ in range(3):
                assert other.result(other.enqueue("work").id, timeout=10) == "found"
            assert caplog.text.count("is there a pooler in transaction mode in between?") == 1


def test_a_childs_end_does_not_end_its_parents_sessions(postgres_url: str, tmp_path: Path) -> None:
    with Place(tmp_path, postgres_url) as place:
        script = place.python("-W", "error", "-m", "tests.process.fork_sessions")
        assert script.wait(60) == 0, place.log.read_text()
        assert place.log.read_text() == ""
        before, *after = [words[2:-1] for words in place.noted("sessions")]
        assert after == [before] * 3
        assert len(place.noted("acked")) == place.count("pending") == 7
