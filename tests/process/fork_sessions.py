"""Prints its sessions on the server, before and after the end of children that were forked with them."""

from __future__ import annotations

import os
import sys

from tests.process.handlers import quick, td
from tests.process.journal import note


def enqueue() -> None:
    note("acked", quick.enqueue().id)


def note_sessions() -> None:
    store = td.store
    note("sessions", *(store.database.read(pool, lambda tx: tx.value("SELECT pg_backend_pid()")) for pool in POOLS))


POOLS = ("insert", "read")


def main() -> None:
    enqueue()
    note_sessions()
    for children in range(3):
        if (pid := os.fork()) == 0:
            enqueue()
            if children:  # one that has a child itself
                if (grandchild := os.fork()) == 0:
                    enqueue() if children > 1 else None
                    sys.exit(0)
                os.waitpid(grandchild, 0)
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        enqueue() if not children else None
        note_sessions()
    enqueue()


if __name__ == "__main__":
    main()
