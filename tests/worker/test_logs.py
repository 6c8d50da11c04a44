"""What handlers log, with `ctx.log` and with `logging`, is kept with their attempts."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from tests.eventually import eventually
from tests.worker import process_jobs
from tests.worker.helpers import ended, working
from treadle import Context, Fail, Job, Treadle
from treadle.errors import BadOption
from treadle.line_buffer import DROPPED, LONGEST_LINE, MOST_BYTES, MOST_LINES, LineBuffer
from treadle.log_records import RecordKeeper

lib = logging.getLogger("lib")


@pytest.fixture(autouse=True)
def _lets_info_through() -> Iterator[None]:
    """pytest has handlers on the root logger, so that treadle leaves its level alone."""
    lib.setLevel(logging.INFO)
    yield
    lib.setLevel(logging.NOTSET)
    for handler in [one for one in logging.getLogger().handlers if isinstance(one, RecordKeeper)]:
        logging.getLogger().removeHandler(handler)


def logged(td: Treadle, job: Job) -> list[tuple[int, str, str]]:
    return [(line.attempt, line.level, line.message) for line in td.logs(job.id)]


def texts(td: Treadle, job: Job) -> list[str]:
    return [line.message for line in td.logs(job.id)]


def test_lines_are_formatted_as_logging_does(td: Treadle) -> None:
    @td.job
    def fetch(ctx: Context) -> None:
        ctx.log("fetched %d rows", 3)
        ctx.log("100 %")
        ctx.log("%(a)s", {"a": 1}, level="WARNING")
        ctx.log("%d rows", "no number", level=logging.ERROR)
        ctx.log("\0 \ud800")

    with working(td):
        job = ended(td, fetch.enqueue())
    assert logged(td, job) == [
        (1, "INFO", "fetched 3 rows"),
        (1, "INFO", "100 %"),
        (1, "WARNING", "1"),
        (1, "ERROR", "%d rows ('no number',)"),
        (1, "INFO", "\ufffd ?"),
    ]


@pytest.mark.parametrize("is_async", [True, False])
def test_an_attempt_that_fails_keeps_its_lines(td: Treadle, is_async: bool) -> None:
    async def on_loop(ctx: Context) -> None:
        in_thread(ctx)

    def in_thread(ctx: Context) -> None:
        ctx.log("attempt %d", ctx.attempt)
        raise ValueError("no")

    fails = td.job(type="fails", max_attempts=2, backoff=0)(on_loop if is_async else in_thread)
    with working(td):
        job = ended(td, fails.enqueue())
    assert logged(td, job) == [(1, "INFO", "attempt 1"), (2, "INFO", "attempt 2")]


def test_lines_can_be_read_while_the_handler_runs(td: Treadle) -> None:
    go_on = threading.Event()

    @td.job
    def slow(ctx: Context) -> None:
        ctx.log("begun")
        assert go_on.wait(60)
        ctx.log("done")

    with working(td):
        job = slow.enqueue()
        eventually(lambda: texts(td, job) == ["begun"])
        go_on.set()
        ended(td, job)
    assert texts(td, job) == ["begun", "done"]


def test_records_of_logging_are_kept_where_a_type_asks_for_it(td: Treadle) -> None:
    @td.job(logs="INFO")
    async def on_loop() -> None:
        lib.debug("too low")
        lib.info("%d rows", 3)
        logging.getLogger("treadle").warning("our own")
        await asyncio.to_thread(lib.warning, "in a thread")
        await asyncio.gather(*(asyncio.create_task(_info(f"task {n}")) for n in range(2)))

    @td.job(logs=logging.WARNING)
    def in_thread() -> None:
        lib.info("too low")
        try:
            raise ValueError("no use")
        except ValueError:
            lib.exception("failed")

    @td.job
    def plain(ctx: Context) -> None:
        lib.error("not asked for")
        ctx.log("asked for")

    with working(td):
        jobs = [ended(td, one.enqueue()) for one in (on_loop, in_thread, plain)]
    assert texts(td, jobs[0]) == ["3 rows", "in a thread", "task 0", "task 1"]
    [(_, level, text)] = logged(td, jobs[1])
    assert level == "ERROR"
    assert text.startswith("failed\nTraceback")
    assert text.endswith("ValueError: no use")
    assert texts(td, jobs[2]) == ["asked for"]


async def _info(text: str) -> None:
    await asyncio.sleep(0.01)
    lib.info(text)


def test_handlers_at_once_keep_their_lines_apart(td: Treadle) -> None:
    @td.job(logs="INFO")
    async def mixed(n: int) -> None:
        for _ in range(5):
            lib.info("job %d", n)
            await asyncio.sleep(0.001)

    with working(td, concurrency=10):
        jobs = [mixed.enqueue(n=n) for n in range(10)]
        for n, job in enumerate(jobs):
            ended(td, job)
            assert texts(td, job) == [f"job {n}"] * 5


def test_a_child_process_sends_its_lines(in_children: Treadle) -> None:
    with working(in_children):
        job = ended(in_children, process_jobs.log_apart.enqueue(lines=3))
        inside = ended(in_children, process_jobs.log_in_transaction.enqueue())
    assert job.error == "after the last line"
    found = logged(in_children, job)
    assert found[0][:2] == (1, "DEBUG")
    assert found[1:] == [(1, "INFO", f"line {n}") for n in range(3)]
    assert texts(in_children, inside) == ["before", "inside"]


@pytest.mark.parametrize("lines", [MOST_LINES - 1, MOST_LINES + 1234])
def test_a_child_process_counts_what_it_drops(in_children: Treadle, lines: int) -> None:
    with working(in_children):
        job = ended(in_children, process_jobs.log_apart.enqueue(lines=lines))
    found = in_children.logs(job.id, None, 2)
    dropped = lines + 1 - MOST_LINES
    assert found[1].message == (DROPPED.format(dropped) if dropped else f"line {lines - 1}")
    assert found[1].line == MOST_LINES + (dropped > 0)


def test_a_transaction_stores_what_was_logged_before_its_end(td: Treadle) -> None:
    @td.job
    def ends(ctx: Context) -> None:
        ctx.log("before")
        with ctx.transaction():
            ctx.log("inside")

    with working(td):
        job = ended(td, ends.enqueue())
    assert texts(td, job) == ["before", "inside"]


def test_what_comes_after_the_end_is_not_kept(td: Treadle) -> None:
    go_on, threads = threading.Event(), []

    def late(ctx: Context) -> None:
        assert go_on.wait(60)
        ctx.log("late")

    @td.job
    def leaves(ctx: Context) -> None:
        ctx.log("in time")
        threads.append(threading.Thread(target=late, args=(ctx,)))
        threads[0].start()

    with working(td):
        job = ended(td, leaves.enqueue())
        go_on.set()
        threads[0].join()
    assert texts(td, job) == ["in time"]


def test_no_handler_is_installed_unless_a_type_asks_for_logs(td: Treadle) -> None:
    @td.job
    def plain(ctx: Context) -> None:
        ctx.log("hello")

    before = list(logging.getLogger().handlers)
    with working(td):
        ended(td, plain.enqueue())
    assert logging.getLogger().handlers == before


UNCONFIGURED = """
import logging, sys
from treadle import Context, Treadle
td = Treadle(sys.argv[1])
@td.job(logs="INFO")
def talk(ctx: Context) -> None:
    logging.info("kept")
    logging.warning("kept and printed")
job = talk.enqueue()
td.tick()
logging.info("not inside")
logging.warning("printed")
print([line.message for line in td.logs(job.id)])
"""


def test_where_nobody_sets_up_logging_warnings_are_still_printed(tmp_path) -> None:
    words = [sys.executable, "-c", UNCONFIGURED, f"sqlite:///{tmp_path}/jobs.db"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "['kept', 'kept and printed']"
    assert done.stderr.splitlines() == ["kept and printed", "printed"]


@pytest.mark.parametrize("level", ["LOUD", 1.5, True])
def test_an_unknown_level_is_refused(td: Treadle, level: object) -> None:
    with pytest.raises(BadOption, match="a level of logging"):
        td.job(type="x", logs=level)(lambda: None)  # type: ignore[call-overload]

    @td.job(max_attempts=1)
    def wrong(ctx: Context) -> None:
        try:
            ctx.log("x", level=level)  # type: ignore[arg-type]
        except BadOption as error:
            raise Fail("refused") from error

    with working(td):
        assert ended(td, wrong.enqueue()).error == "refused"


def test_a_buffer_has_bounds() -> None:
    buffer = LineBuffer()
    assert buffer.add("INFO", "ä" * LONGEST_LINE)
    [line] = buffer.pending()
    assert len(line.message.encode()) <= LONGEST_LINE
    assert line.message.endswith("ä…")
    buffer.saved([line])
    assert buffer.pending() == ()
    kept = sum(buffer.add("INFO", "x" * 1000) for _ in range(400))
    assert (MOST_BYTES - LONGEST_LINE) // 1000 <= kept < 400
    assert not buffer.add("INFO", "short, but after others were dropped")
    lines = buffer.pending()
    assert [line.line for line in lines] == list(range(2, kept + 3))
    assert lines[-1].message == DROPPED.format(400 - kept + 1)
    buffer.saved(lines)
    assert buffer.pending() == ()
    buffer.add("INFO", "one more")
    [again] = buffer.pending()
    assert (again.line, again.message) == (kept + 2, DROPPED.format(400 - kept + 2))
