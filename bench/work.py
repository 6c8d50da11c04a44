"""A worker process of the benchmark: `python -m bench.work CONCURRENCY [PROFILE]`.

It prints "ready" when everything is imported and connected, and starts on a line from its parent: so no measurement
includes the start of Python, and two processes start together.
"""

from __future__ import annotations

import os
import sys

from bench import sample


def main(concurrency: int, profile: str | None) -> None:
    if profile is not None:
        sample.time_statements(os.environ["TREADLE_URL"])  # before the store connects
    from bench.app import td

    td.store.open()
    print("ready", flush=True)
    if not sys.stdin.readline():
        return
    if profile is None:
        td.worker(concurrency=concurrency).run()
    else:
        sample.profiled(td.worker(concurrency=concurrency).run, profile)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
