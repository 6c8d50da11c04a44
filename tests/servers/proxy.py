"""A TCP proxy in front of PostgreSQL that breaks connections at chosen statements."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Collection
from urllib.parse import urlsplit, urlunsplit

from tests.servers.postgres import free_port
from tests.servers.wire import CANCEL, GSS, SSL, Answers, Message, Statements, is_commit, read_message, read_startup


class Cut:
    """One connection that ends at a chosen statement."""

    def __init__(self, match: Callable[[str], bool] | None, nth: int, before: bool, within: str) -> None:
        self.match = match
        self.within = within
        self.before = before
        self.sql: str | None = None
        self._left = nth
        self._done = threading.Event()

    def wait(self, timeout: float = 30) -> None:
        """Wait until the cut has happened and the server has noticed: nothing of the connection still runs."""
        assert self._done.wait(timeout), f"no connection was cut within {timeout:g} s"

    @property
    def happened(self) -> bool:
        return self._done.is_set()

    def is_for(self, sql: str, before: Collection[str], alone: bool) -> bool:
        commits = self.match(sql) if self.match else is_commit(sql) or (alone and self.within != "")
        if not commits or not any(self.within in statement for statement in (*before, sql)):
            return False
        self._left -= 1
        if not self._left:
            self.sql = sql
        return not self._left

    def report(self) -> None:
        self._done.set()


class Proxy:
    """`with Proxy(server.url()) as proxy:` then connect to `proxy.url(...)`."""

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self.target = target
        self.server = (parts.hostname or "127.0.0.1", parts.port or 5432)
        self.port = free_port()
        self.flowing = threading.Event()
        self.flowing.set()
        self._lock = threading.Lock()
        self._cuts: list[Cut] = []
        self._links: set[Link] = set()
        self._listener: socket.socket | None = None

    def __enter__(self) -> Proxy:
        self.accept()
        return self

    def __exit__(self, *_: object) -> None:
        self.refuse()
        self.drop_all()
        self.thaw()

    def url(self, url: str | None = None) -> str:
        """A URL of the server that leads through this proxy."""
        parts = urlsplit(url or self.target)
        user, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{user}{at}127.0.0.1:{self.port}"))

    # Faults

    def cut_next_commit(
        self, *, nth: int = 1, before: bool = False, match: Callable[[str], bool] | None = None, within: str = ""
    ) -> Cut:
        """Forward a COMMIT, wait until the server has done it, and end the connection without the reply.

        With `before`, end it instead of sending the COMMIT: the server rolls back. To the client both look the same.
        `match` chooses other statements. `within` chooses transactions: those with a statement that has this text. A
        statement that is a transaction of its own is its own commit.
        """
        cut = Cut(match, nth, before, within)
        with self._lock:
            self._cuts.append(cut)
        return cut

    def drop_all(self) -> None:
        """End every connection, as in a crash of the server."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.end()

    def freeze(self) -> None:
        """Forward nothing in either direction, and keep the connections open.

        The proxy's side of the connection still acknowledges data. Keepalives and `tcp_user_timeout` see no fault, so
        that only the client's own deadline helps. For a peer that is silent on TCP too, see `namespaces.py`.
        """
        self.flowing.clear()

    def thaw(self) -> None:
        self.flowing.set()

    def refuse(self) -> None:
        """Let the system refuse new connections, as if no server listened."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
            self._accepting.join()
            listener.close()

    def accept(self) -> None:
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self.port), backlog=256)
            self._listener.settimeout(0.2)  # for systems on which a shutdown does not wake it
            self._accepting = threading.Thread(target=self._accept, args=[self._listener], daemon=True)
            self._accepting.start()

    # How

    def _accept(self, listener: socket.socket) -> None:
        while self._listener is listener:
            try:
                client, _ = listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            client.settimeout(None)
            threading.Thread(target=self._serve, args=[client], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self.server, timeout=30)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        link = Link(self, client, server)
        with self._lock:
            self._links.add(link)
        try:
            link.run()
        finally:
            with self._lock:
                self._links.discard(link)

    def from_server(self, message: Message) -> Message | None:
        """What the client gets for a message of the server. Subclasses can change or drop messages."""
        return message

    def cut_for(self, sql: str, before: Collection[str], alone: bool) -> Cut | None:
        with self._lock:
            for cut in self._cuts:
                if cut.is_for(sql, before, alone):
                    self._cuts.remove(cut)
                    return cut
        return None


class Link:
    """A connection of a client, and the one to the server that belongs to it."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self.proxy = proxy
        self.client = client
        self.server = server
        self.statements = Statements()
        self.answers = Answers()
        self.cut: Cut | None = None
        self.said: list[str] = []
        """The statements of the transaction so far."""
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def run(self) -> None:
        back = threading.Thread(target=self._pump, args=[self._to_client], daemon=True)
        back.start()
        self._pump(self._to_server)
        back.join()
        if self.cut is not None:
            self.cut.report()
        self.client.close()
        self.server.close()

    def end(self) -> None:
        """Close the client's side at once. The server closes its side when it has rolled back."""
        for end, how in ((self.client, socket.SHUT_RDWR), (self.server, socket.SHUT_WR)):
            with contextlib.suppress(OSError):
                end.shutdown(how)

    def _pump(self, way: Callable[[], None]) -> None:
        try:
            way()
        except OSError:
            pass  # either side may close at any time; tests want that
        finally:
            self.end()

    def _to_server(self) -> None:
        stream = self.client.makefile("rb")
        if not self._greet(stream):
            return
        while message := read_message(stream):
            self.proxy.flowing.wait()
            sql = self.statements.run_by(message)
            cut = self._cut_at(sql) if sql else None
            self.cut = cut or self.cut
            if cut and cut.before:
                return
            self.answers.expect(message, sql, cut is not None)
            self.server.sendall(message.raw)

    def _cut_at(self, sql: str) -> Cut | None:
        alone = not self.said and not sql.upper().startswith("BEGIN")
        cut = self.proxy.cut_for(sql, self.said, alone)
        self.said = [] if alone or is_commit(sql) or sql == "ROLLBACK" else [*self.said, sql]
        return cut

    def _greet(self, stream) -> bool:
        """Refuse encryption, because the proxy could not read it."""
        while first := read_startup(stream):
            self.proxy.flowing.wait()
            code, message = first
            if code in (SSL, GSS):
                self.client.sendall(b"N")
                continue
            self.server.sendall(message.raw)
            return code != CANCEL
        return False

    def _to_client(self) -> None:
        stream = self.server.makefile("rb")
        held = False
        while message := read_message(stream):
            self.proxy.flowing.wait()
            held = held or self.answers.held
            if self.answers.complete(message):
                self.end()
            if not held and (passed := self.proxy.from_server(message)):
                self.client.sendall(passed.raw)
