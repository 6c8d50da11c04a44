"""A worker process that knows very many types: `python -m bench.work_types CONCURRENCY [PROFILE]`."""

from __future__ import annotations

import sys

TYPES = 1_000


def name(n: int) -> str:
    return f"noop_{n % TYPES:04}"


async def noop(n: int) -> None:
    """On the event loop."""


if __name__ == "__main__":
    from bench import work
    from bench.app import td

    for n in range(TYPES):
        td.job(type=name(n))(noop)
    work.main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
