"""`treadle copy`: from every database to every other, with all that belongs to a job."""

from __future__ import annotations

import itertools
import json
import math
import shlex
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from tests.conformance.helpers import FAILED, RETRIED, check_consistency, enlist, put, settle_one, take
from tests.stores import KINDS, rows
from treadle import Dedupe, Fail, Limit, Treadle
from treadle.cli import copying
from treadle.cli.copying import has_caught_up
from treadle.codec import as_json
from treadle.errors import StoreMoved, StoreUnusable
from treadle.outcome import COMPLETED
from treadle.steps import NewStep
from treadle.stores import open_store
from treadle.stores.copy_access import OF_ALL, OF_JOBS, OF_TENANTS, CannotCopy
from treadle.stores.copying import FIRST, Tables, checksum

PAIRS = [pair for pair in itertools.product(KINDS, KINDS) if pair != ("libsql", "libsql")]  # the tests have one server


@pytest.fixture
def make_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], str]]:
    dropped: list[Callable[[], None]] = []
    numbers = itertools.count()

    def make(kind: str) -> str:
        if kind == "sqlite":
            return f"sqlite:///{tmp_path}/{next(numbers)}.db"
        if kind == "libsql":
            return str(request.getfixturevalue("libsql_url"))
        databases = request.getfixturevalue("postgres_databases")
        url = str(databases.fresh())
        dropped.append(lambda: databases.drop(url))
        return url

    yield make
    for drop in dropped:
        drop()


def fill(url: str) -> None:
    """Jobs in every place, and all that they can have."""
    with closing(Treadle(url)) as td:

        @td.job(limits=[Limit("api", concurrency=1, per="tenant")])
        def work(n: int = 0) -> dict[str, int]:
            if n == 13:
                raise Fail("unlucky")
            return {"n": n}

        @td.job(cron="0 3 * * *")
        def nightly() -> None: ...

        td.enqueue_many([work.using(tenant=f"t{n % 3}", subject="ü").request(n=n) for n in range(20)])
        td.tick(max_jobs=30, max_seconds=60)
        work.using(delay=3600, priority=7, queue="slow").enqueue(n=1)
        work.using(dedupe="key", tenant="t1").enqueue(n=2)
        work.using(dedupe=Dedupe("often", mode="throttle", period=3600)).enqueue(n=3)
        work.using(start_within=86_400, delay=60).enqueue(n=4)
        parent = work.using(delay=9000).enqueue(n=5)
        work.using(after=parent, if_failed="run").enqueue(n=6)
        with td.batch("import", then=work.request(n=7)) as batch:
            batch.add(work.using(delay=500).request(n=8))
        td.signal("approved", {"by": "ann"}, tenant="t1")
        td.schedules.put("digest", "work", every=900, tenant="t1")
        td.pause(queue="slow", reason="later")
        td.limits.set("api", key="t1", concurrency=5)
        store = td.store
        enlist(store)

        def leased(type: str) -> Any:
            put(store, type)
            [claimed] = take(store, worker="w1", types={type: None})
            return claimed

        assert settle_one(store, leased("retried"), RETRIED)
        stepped = leased("stepped")
        assert store.save_steps([(stepped, NewStep("plan", value="[1, 2]"))]) == [None]
        assert settle_one(store, stepped, FAILED)
        assert settle_one(store, leased("done"), COMPLETED)
        put(store, "big", payload=json.dumps({"text": "x" * 100_000}))


def contents(url: str) -> dict[str, tuple[int, int]]:
    """All rows, as numbers that can be compared between databases."""
    store: Any = open_store(url)
    store.opens_moved = True
    with closing(store):
        tables = Tables(store)
        ids = tables.next_ids("0" * 8 + "-0000-0000-0000-" + "0" * 12, 10_000)
        found = {**tables.rows_of(ids), **{table: [*tables.all_rows(table)] for table in (*OF_TENANTS, *OF_ALL)}}
        skipped = {"audit"}
        return {
            table: checksum(some, some[0].keys() - {"seq"} if some else ())
            for table, some in found.items()
            if table not in skipped
        }


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_everything_arrives(treadle: Any, make_url: Callable[[str], str], source: str, target: str) -> None:
    here, there = make_url(source), make_url(target)
    fill(here)
    before = contents(here)
    assert all(before[table][0] for table in (*OF_JOBS[:6], "dedupe", "signals", "batches", "schedules", "usage"))

    result = treadle("copy", here, there, "--json")

    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["jobs"] == before["jobs"][0]
    assert contents(there) == before
    with closing(Treadle(here)) as old, closing(Treadle(there)) as new:
        check_consistency(new.store)
        assert new.counts() == old.counts()
        assert Tables(new.store).leases_given() == Tables(old.store).leases_given() > 0
        assert all(new.get(job.id) == job for job in old.jobs(limit=200))
        enlist(new.store, "w9")
        assert len(take(new.store, worker="w9")) > 0


@pytest.mark.parametrize(
    ("source", "target"), [("sqlite", "postgresql"), ("postgresql", "sqlite"), ("libsql", "sqlite")]
)
def test_a_source_that_was_moved_names_the_new_place(
    treadle: Any, make_url: Callable[[str], str], source: str, target: str
) -> None:
    here, there = make_url(source), make_url(target)
    fill(here)
    before = contents(here)
    with closing(Treadle(here)) as producer, closing(Treadle(here)) as worker, closing(Treadle(there)) as new:
        producer.store.open(), worker.store.open()
        assert treadle("copy", here, there, "--follow", "--cutover").exit_code == 0
        for change in (
            lambda: producer.enqueue("work", {"n": 1}),
            lambda: producer.enqueue_many([producer.request("work", {"n": 1})] * 1),
            lambda: producer.cancel(producer.jobs(status="pending").jobs[0].id),
            lambda: take(worker.store, lease_for=10**6),
            lambda: Treadle(here).counts(),
        ):
            with pytest.raises(StoreMoved, match="its jobs have moved to") as caught:
                change()
            assert caught.value.place == Tables(new.store).url
        assert contents(there) == before == contents(here)

        assert treadle("copy", here, there, "--cutover").exit_code == 0  # again: nothing to do
        back = shlex.split(str(caught.value).partition("to go back: treadle ")[2])
        assert treadle(*back).exit_code == 0
        producer.enqueue("work", {"n": 1})


@pytest.mark.parametrize("target", KINDS)
def test_no_number_of_a_lease_is_given_again(make_url: Callable[[str], str], target: str) -> None:
    here, there = make_url("sqlite"), make_url(target)
    with closing(Treadle(here)) as td, closing(Treadle(there)) as new:
        enlist(td.store)
        put(td.store, "work")
        [first] = take(td.store, worker="w1")
        assert settle_one(td.store, first, RETRIED)
        copying.copy(td.store, new.store, lambda *_: None)
        enlist(new.store)
        new.run_now(first.id)
        assert [claimed.number for claimed in take(new.store, worker="w1")] == [2]


@pytest.mark.parametrize("source", KINDS)
def test_a_source_names_the_last_place_after_a_copy_to_another_one_was_killed(
    make_url: Callable[[str], str], source: str
) -> None:
    with closing(Treadle(make_url(source))) as td, closing(open_store(make_url("sqlite"))) as new:
        put(td.store, "work")
        tables = Tables(cast(Any, td.store))
        tables.close_claims("sqlite:////first.db")
        copying.copy(td.store, new, lambda *_: None, cutover=True)
        with pytest.raises(StoreMoved) as caught:
            take(td.store)
        assert caught.value.place == Tables(cast(Any, new)).url
        tables.reopen()


def test_a_source_that_is_opened_again_wakes_the_workers_that_the_copy_made_quiet(
    treadle: Any, make_url: Callable[[str], str]
) -> None:
    here, there = make_url("sqlite"), make_url("sqlite")
    with closing(Treadle(here)) as td:
        for worker in ("w1", "w2"):
            enlist(td.store, worker)
        td.quiet("w1")

        def quiet() -> list[str]:
            return sorted(worker.id for worker in td.store.workers() if worker.quiet_at is not None)

        assert treadle("copy", here, there, "--cutover").exit_code == 0
        assert quiet() == ["w1", "w2"]
        assert treadle("copy", here, "--reopen").exit_code == 0
        assert quiet() == ["w1"]


def test_a_target_that_was_removed_is_filled_again(treadle: Any, make_url: Callable[[str], str]) -> None:
    here, there = make_url("sqlite"), make_url("sqlite")
    fill(here)
    before = contents(here)
    for _ in range(2):
        assert treadle("copy", here, there, "--cutover").exit_code == 0
        assert contents(there) == before
        for file in Path(there.removeprefix("sqlite:///")).parent.glob("1.db*"):
            file.unlink()


def test_a_target_is_closed_until_it_is_complete(treadle: Any, make_url: Callable[[str], str]) -> None:
    here, there = make_url("sqlite"), make_url("sqlite")
    fill(here)
    with closing(Treadle(here)) as td:
        td.store.claim("", _one(td))
    result = treadle("copy", here, there)
    assert result.exit_code != 0
    assert "stop its workers first, or let --cutover wait for them" in result.stderr
    with pytest.raises(StoreUnusable, match=r"a copy from .* is not complete"):
        Treadle(there).counts()


def _one(td: Treadle) -> Any:
    from treadle.stores.base import ClaimRequest

    return ClaimRequest(limit=1, lease_for=10**9)


def test_a_lease_that_does_not_end_opens_the_source_again(treadle: Any, make_url: Callable[[str], str]) -> None:
    here, there = make_url("sqlite"), make_url("sqlite")
    fill(here)
    with closing(Treadle(here)) as td:
        td.store.claim("", _one(td))
        result = treadle("copy", here, there, "--cutover", "--wait", "1")
        assert result.exit_code != 0
        assert "1 job is still running" in result.stderr
        assert td.enqueue("work", {"n": 1}).id


@pytest.mark.parametrize("change", ["retried", "deleted", "new", "ended"])
def test_what_changed_after_the_first_copy_is_copied_again(
    treadle: Any, make_url: Callable[[str], str], change: str
) -> None:
    here, there = make_url("sqlite"), make_url("postgresql")
    fill(here)
    with closing(Treadle(here)) as td, closing(Treadle(there)) as new:
        one = copying.Copy(td.store, new.store, lambda *_: None)
        one.begin()
        assert one.follow() > 0
        completed = td.jobs(status="completed").jobs[0]
        if change == "retried":
            td.retry(completed.id)
        elif change == "deleted":
            td.delete(completed.id)
        elif change == "new":
            td.enqueue("work", {"n": 99})
        else:
            td.cancel(td.jobs(status="pending").jobs[0].id)
        one.finish(moved=False)
        assert contents(there) == contents(here)
        check_consistency(new.store)


@pytest.mark.parametrize(
    ("moment", "tenant", "said"),
    [
        ("copied", None, "neither waits nor has ended"),
        ("compared", None, "1 job is running"),
        ("ended", None, "jobs have run"),
        ("copied", "t1", "neither waits nor has ended"),
        ("compared", "t1", "1 job is running"),
    ],
)
def test_a_job_that_is_claimed_meanwhile_stops_the_copy(
    make_url: Callable[[str], str], moment: str, tenant: str | None, said: str
) -> None:
    here, there = make_url("sqlite"), make_url("sqlite")
    with closing(Treadle(here)) as td, closing(Treadle(there)) as new:
        td.enqueue("work", {}, tenant="t1")
        enlist(td.store)
        one = copying.Copy(td.store, new.store, lambda *_: None, tenant)
        copy, compare, claimed = one._copy, one._compare, []

        def copied(*args: Any) -> None:
            claimed.extend(take(td.store) if moment == "copied" else ())
            copy(*args)

        def compared(**options: Any) -> Any:
            counts = compare(**options)
            claimed.extend(take(td.store) if moment != "copied" else ())
            assert moment != "ended" or settle_one(td.store, claimed[0], COMPLETED)
            return counts

        one._copy, one._compare = copied, compared  # type: ignore[method-assign, assignment]
        if tenant is None:
            one.begin()
        with pytest.raises(CannotCopy, match=said):
            one.finish(moved=False)
        assert len(claimed) == 1


@pytest.mark.parametrize("is_copied", [True, False])
def test_waits_that_a_deleted_parent_took_with_it_are_not_in_the_target(
    make_url: Callable[[str], str], is_copied: bool
) -> None:
    here, there = make_url("sqlite"), make_url("postgresql")
    with closing(Treadle(here)) as td, closing(Treadle(there)) as new:

        @td.job
        def work() -> None: ...

        parent = work.enqueue()
        child = work.using(after=parent).enqueue()
        td.tick()
        one = copying.Copy(td.store, new.store, lambda *_: None)
        one.begin()
        assert one.follow() == 2
        if not is_copied:  # the parent was running when the copy came by
            one._drop(one.target.places(FIRST, parent.id))
        td.delete(parent.id)
        one.finish(moved=False)
        assert new.waits(child.id) == []
        assert contents(there) == contents(here)
        check_consistency(new.store)


@pytest.mark.parametrize("target", KINDS)
def test_nobody_changes_a_target_until_it_is_complete(make_url: Callable[[str], str], target: str) -> None:
    here, there = make_url("sqlite"), make_url(target)
    fill(here)
    with closing(Treadle(here)) as td, closing(Treadle(there)) as new, closing(Treadle(there)) as copied:
        enlist(new.store)  # a producer and a worker that use the target already
        refused: list[Exception] = []

        def report(doing: str, *_: int) -> None:
            if doing != "jobs":
                return
            for change in (
                lambda: new.enqueue("work", {"n": 1}),
                lambda: new.pause(queue="mail"),
                lambda: new.cancel(new.jobs(status="pending").jobs[0].id),
                lambda: take(new.store, lease_for=10**6),
                *([lambda: rows(there, "SELECT treadle.enqueue('work')")] if target == "postgresql" else []),
            ):
                with pytest.raises(Exception, match=r"a copy from .*0.db is not complete|is filled from") as caught:
                    change()
                refused.append(caught.value)

        copying.copy(td.store, copied.store, report)
        assert len(refused) >= 4
        assert all(isinstance(error, StoreUnusable) for error in refused[:4])
        assert contents(there) == contents(here)
        assert new.enqueue("work", {"n": 1}).id
        assert len(take(new.store)) > 0


def test_jobs_of_the_target_are_not_taken_for_jobs_that_the_source_has_deleted(make_url: Callable[[str], str]) -> None:
    here, there = make_url("sqlite"), make_url("sqlite")
    fill(here)
    with closing(Treadle(here)) as td, closing(Treadle(there)) as new:
        td.pause(tenant="t1")
        new.pause(tenant="t1")
        own = new.enqueue("work", {"n": 1}, tenant="t1")
        with pytest.raises(CannotCopy, match=f"job {own.id} is in .*1.db, but not in"):
            copying.copy(td.store, new.store, lambda *_: None, tenant="t1")
        assert new.get(own.id) == own


def test_a_second_copy_changes_nothing_when_the_first_has_completed_the_target(make_url: Callable[[str], str]) -> None:
    here, there = make_url("sqlite"), make_url("sqlite")
    fill(here)
    with closing(Treadle(here)) as td, closing(Treadle(there)) as new:
        first, second = (copying.Copy(td.store, new.store, lambda *_: None) for _ in range(2))
        first.begin(), second.begin()
        first.finish(moved=False)
        ran = new.jobs(status="pending", queue="default").jobs[0]
        new.cancel(ran.id)
        with pytest.raises(CannotCopy, match="another copy has completed"):
            second.finish(moved=False)
        assert new.get(ran.id).status == "cancelled"


def test_one_tenant_is_copied_into_a_database_that_has_others(treadle: Any, make_url: Callable[[str], str]) -> None:
    here, there = make_url("sqlite"), make_url("postgresql")
    fill(here)
    fill_other(there)
    refused = treadle("copy", here, there, "--tenant", "t1")
    assert refused.exit_code != 0
    assert "tenant 't1' is not paused" in refused.stderr
    with closing(Treadle(here)) as td:
        td.pause(tenant="t1")
        expected = {job.id for job in td.jobs(tenant="t1", limit=200)}
    for _ in range(2):  # the second time is as after an interruption
        result = treadle("copy", here, there, "--tenant", "t1")
        assert result.exit_code == 0, result.output
    with closing(Treadle(there)) as new:
        check_consistency(new.store)
        assert {job.id for job in new.jobs(tenant="t1", limit=200)} == expected
        assert len(new.jobs(tenant="other").jobs) == 1
        assert new.schedules.get("digest", tenant="t1")


def test_a_tenant_is_paused_in_the_target_at_every_commit(
    make_url: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = make_url("sqlite"), make_url("sqlite")
    fill(here)
    fill_other(there)
    with closing(Treadle(here)) as td, closing(Treadle(there)) as new, closing(Treadle(there)) as seen:
        td.pause(tenant="t1")
        paused: list[int] = []
        write = Tables.write

        def noted(self: Tables, *given: Any) -> None:
            write(self, *given)
            paused.append(len(seen.pauses()))

        monkeypatch.setattr(Tables, "write", noted)
        copying.copy(td.store, new.store, lambda *_: None, tenant="t1")
        assert len(paused) > 5
        assert set(paused) == {1}


def test_a_pause_that_ends_by_itself_is_not_enough(treadle: Any, make_url: Callable[[str], str]) -> None:
    here, there = make_url("sqlite"), make_url("sqlite")
    fill(here)
    with closing(Treadle(here)) as td:
        td.pause(tenant="t1", until=timedelta(hours=1))
    result = treadle("copy", here, there, "--tenant", "t1")
    assert "first, without an end: td.pause(tenant='t1')" in result.stderr


@pytest.mark.parametrize(
    ("source", "target"), [("sqlite", "postgresql"), ("postgresql", "libsql"), ("libsql", "sqlite")]
)
def test_large_rows_are_copied_in_small_parts(
    make_url: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, source: str, target: str
) -> None:
    here, there = make_url(source), make_url(target)
    with closing(Treadle(here)) as td, closing(Treadle(there)) as new:
        text = json.dumps({"text": "x" * 50_000})
        enlist(td.store)
        put(td.store, "stepped")
        [stepped] = take(td.store, worker="w1")
        td.store.save_steps([(stepped, NewStep(str(n), value=text)) for n in range(10)])
        assert settle_one(td.store, stepped, FAILED)
        for n in range(10):
            put(td.store, "big", payload=text)
            td.signal(f"big {n}", text)
        read, written = [], []
        rows_of = Tables.rows_of
        monkeypatch.setattr("treadle.stores.copying.BYTES", 120_000)
        monkeypatch.setattr(Tables, "rows_of", lambda self, ids: read.append(len(ids)) or rows_of(self, ids))
        monkeypatch.setattr(
            "treadle.stores.copying.as_json", lambda value: written.append(len(as_json(value))) or as_json(value)
        )
        copying.copy(td.store, new.store, lambda *_: None)
        assert max(read) == 2
        assert 100_000 < max(written) < 120_000
        assert contents(there) == contents(here)


@pytest.mark.parametrize("source", KINDS)
def test_usage_is_read_some_minutes_at_a_time(
    make_url: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.setattr("treadle.stores.copying.ROWS", 2)
    with closing(Treadle(make_url(source))) as td:
        tables = Tables(cast(Any, td.store))
        sums = ("runs", "completed", "failures", "busy", "waiting")
        expected = [
            {"minute": minute, "type": type, "queue": "q", "tenant": "t", **dict.fromkeys(sums, minute + 1)}
            for minute in range(7)
            for type in ("a", "b", "c")[: 1 + minute % 3]
        ]
        tables.replace_all("usage", expected)
        read: list[int] = []
        select = Tables._select

        def noted(*given: Any) -> Any:
            found = select(*given)
            read.append(len(found))
            return found

        monkeypatch.setattr(Tables, "_select", noted)
        found = sorted(tables.all_rows("usage"), key=lambda row: (row["minute"], row["type"]))
        assert found == expected
        assert max(read) <= 4
        assert len(read) >= 4


def fill_other(url: str) -> None:
    with closing(Treadle(url)) as td:
        td.enqueue("work", {"n": 1}, tenant="other", dedupe="key")


@pytest.mark.parametrize("arguments", [["sqlite:///nope.db", "sqlite:///there.db"], ["sqlite:///nope.db", "--reopen"]])
def test_a_source_that_does_not_exist_is_not_created(treadle: Any, folder: Path, arguments: list[str]) -> None:
    result = treadle("copy", *arguments)
    assert (3, "") == (result.exit_code, result.stdout)
    assert f"there is no database at {folder / 'nope.db'}" in result.stderr
    assert [] == list(folder.iterdir())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{here}"], "the target is missing"),
        (["{here}", "{here}"], "both the source and the target"),
        (["{here}", "{full}"], "has jobs already"),
        (["{here}", "{there}", "--tenant", "t1", "--cutover"], "leave out --follow and --cutover"),
        (["jobs.db", "{there}"], "write it as a URL"),
    ],
)
def test_a_copy_that_cannot_be_made_says_why(
    treadle: Any, make_url: Callable[[str], str], arguments: list[str], said: str
) -> None:
    here, there, full = (make_url("sqlite") for _ in range(3))
    fill_other(here)
    fill_other(full)
    names = {"here": here, "there": there, "full": full}
    result = treadle("copy", *(each.format(**names) for each in arguments))
    assert result.exit_code != 0
    assert said in result.stderr
    assert rows(here, "SELECT count(*) FROM treadle_jobs") == [(1,)]


@pytest.mark.parametrize(
    ("before", "copied", "caught_up"),
    [
        (math.inf, 100_000, False),
        (100_000, 5_000, False),
        (100_000, 1_000, True),  # few are left
        (5_000, 4_000, True),  # a busy source: each pass would find as many
        (math.inf, 0, True),
    ],
)
def test_following_ends_when_another_pass_would_leave_as_many(before: float, copied: float, caught_up: bool) -> None:
    assert has_caught_up(before, copied) is caught_up
