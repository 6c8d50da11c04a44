"""The insights equal what the handlers recorded about their runs."""

from __future__ import annotations

import csv
import io
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.eventually import eventually
from tests.web import metered_app
from tests.web.conftest import Connect
from treadle import Treadle
from treadle.web import Principal

TENANTS = ("acme", "globex", "initech")
WANTED = {"quick": 9_000, "shaky": 300, "hopeless": 150, "slow": 60}
DEADLY = {"deadly": 4, "quick": 100}
"""At least 10,368 runs: each shaky job has three, each hopeless and deadly job two."""


class Journal:
    """By type and tenant: runs, runs that did not count, and seconds in handlers."""

    def __init__(self, path: Path) -> None:
        self.runs: Counter[tuple[str, str]] = Counter()
        self.busy: Counter[str] = Counter()
        ended: set[tuple[str, str, str]] = set()
        for line in path.read_text().splitlines():
            what, type, tenant, id, seconds = line.split()
            if what == "start":
                self.runs[type, tenant] += 1
            else:
                ended.add((type, tenant, id))
                self.busy[type] += float(seconds)  # type: ignore[assignment]
        fine = Counter((type, tenant) for type, tenant, _ in ended)
        self.failures = Counter({key: runs - fine[key] for key, runs in self.runs.items()})

    def by(self, place: int) -> dict[str, tuple[int, int]]:
        names = {key[place] for key in self.runs}
        return {name: tuple(_sum(c, place, name) for c in (self.runs, self.failures)) for name in names}  # type: ignore[misc]


def _sum(counter: Counter[tuple[str, str]], place: int, name: str) -> int:
    return sum(count for key, count in counter.items() if key[place] == name)


@pytest.fixture(scope="module")
def metered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Treadle, Journal]]:
    """Ten thousand runs by real workers, some of which fail, and some of which kill their process."""
    folder = tmp_path_factory.mktemp("metered")
    url, journal = f"sqlite:///{folder}/jobs.db", folder / "journal"
    td = Treadle(url)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TREADLE_URL", url)
        patch.setenv(metered_app.JOURNAL, str(journal))
        work_off(td, WANTED, "--concurrency", "50")
        # One at a time: a job that kills the process must not take others with it before they have written.
        work_off(td, DEADLY, "--concurrency", "1")
    yield td, Journal(journal)
    td.close()


def work_off(td: Treadle, wanted: dict[str, int], *words: str) -> None:
    """Enqueue this many of each type, and let a worker run them all."""
    requests = [(type, TENANTS[n % 3]) for type, many in wanted.items() for n in range(many)]
    td.enqueue_many([td.request(type, tenant=tenant) for type, tenant in requests])
    command = [sys.executable, "-m", "treadle", "worker", f"{metered_app.__name__}:td", *words]
    worker = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: not any(row["status"] in ("pending", "processing") for row in td.counts()), 50, every=0.1)
    finally:
        worker.terminate()
        worker.wait(30)


def table(page: str) -> dict[str, list[str]]:
    """The rows of the page's table of usage, and its foot as `All`."""
    found: dict[str, list[str]] = {}
    part = page[page.index('data-testid="usage"') :]
    for row in re.findall(r"<tr.*?</tr>", part, re.S)[1:]:
        cells = [unescape(re.sub(r"<.*?>", "", cell)).strip() for cell in re.findall(r"<t[dh].*?</t[dh]>", row, re.S)]
        found[cells[0]] = cells[1:]
    return found


def numbers(cells: list[str]) -> tuple[int, int]:
    return int(cells[0].replace(",", "")), int(cells[1].replace(",", ""))


@pytest.mark.parametrize(("by", "place"), [("type", 0), ("tenant", 1)])
def test_the_sums_on_the_page_equal_those_of_the_journal(metered: tuple[Treadle, Journal], by: str, place: int) -> None:
    td, journal = metered
    assert journal.runs.total() >= 10_000
    assert _sum(journal.failures, 0, "deadly") >= 4
    client = TestClient(td.asgi(auth=lambda request: "read"), base_url="http://localhost")
    shown = table(client.get("/insights", params={"by": by, "window": "1h"}).text)
    assert numbers(shown.pop("All")) == (journal.runs.total(), journal.failures.total())
    assert {name: numbers(cells) for name, cells in shown.items()} == journal.by(place)


def test_the_csv_file_has_the_same_sums(metered: tuple[Treadle, Journal]) -> None:
    td, journal = metered
    client = TestClient(td.asgi(auth=lambda request: "read"), base_url="http://localhost")
    rows = list(csv.DictReader(io.StringIO(client.get("/insights.csv?window=1h").text)))
    runs: Counter[tuple[str, str]] = Counter()
    busy: Counter[str] = Counter()
    for row in rows:
        runs[row["type"], row["tenant"]] += int(row["runs"])
        busy[row["type"]] += float(row["busy_seconds"])  # type: ignore[assignment]
    assert runs == journal.runs
    assert all(busy[type] >= journal.busy[type] for type in journal.busy), (
        "claimed to settled is longer than the handler"
    )
    assert busy["slow"] >= 60 * 0.05


def test_a_caller_bound_to_a_tenant_sees_only_that_tenant(metered: tuple[Treadle, Journal]) -> None:
    td, journal = metered
    mine = Principal(name="bob", scopes=frozenset({"read"}), tenant="acme")
    client = TestClient(td.asgi(auth=lambda request: mine), base_url="http://localhost")
    for asked in ({}, {"tenant": "globex"}, {"by": "tenant"}):
        page = client.get("/insights", params={"window": "1h", **asked}).text
        assert numbers(table(page)["All"]) == journal.by(1)["acme"]
        assert "globex" not in page.replace(f"tenant={asked.get('tenant')}", "").replace("%3Dglobex", "")
    assert {row["tenant"] for row in csv.DictReader(io.StringIO(client.get("/insights.csv?window=1h").text))} == {
        "acme"
    }


def test_the_price_is_computed_from_the_busy_time(connect: Connect, td: Treadle) -> None:
    td.enqueue("a")
    [lease] = td.claim(1)
    time.sleep(0.02)
    lease.complete()
    [used] = td.usage()
    page = connect(price=100.0).get("/insights?window=1h").text
    [price] = re.findall(r'data-testid="total-price">([\d.,]+)<', page)
    assert float(price) == pytest.approx(used.busy * 100, abs=0.01)
    assert "total-price" not in connect().get("/insights?window=1h").text


def test_the_csv_file_cannot_run_formulas_in_a_spreadsheet(connect: Connect, td: Treadle) -> None:
    td.enqueue("=cmd|' /C calc'!A0", tenant="@SUM(1)")
    [lease] = td.claim(1)
    lease.complete()
    [row] = csv.DictReader(io.StringIO(connect().get("/insights.csv").text))
    assert (row["type"], row["tenant"]) == ("'=cmd|' /C calc'!A0", "'@SUM(1)")


def test_the_backlog_is_a_chart_with_links(connect: Connect, td: Treadle) -> None:
    td.enqueue_many([td.request("a") for _ in range(3)])
    assert td.store.sample_backlog() == 1
    me = connect()
    part = unescape(me.get("/").text).partition('id="chart-backlog"')[2].partition("</figure>")[0]
    links = set(re.findall(r'href="([^"]*/jobs\?q=[^"]*)"', part))
    assert len(links) == 60
    assert sum(me.get(link).text.count('data-testid="row"') for link in sorted(links)[-2:]) == 3


def test_a_backlog_without_samples_says_so(connect: Connect, td: Treadle) -> None:
    assert "No worker has counted jobs in the last 1h." in connect().get("/").text


def test_the_backlog_over_http(connect: Connect, td: Treadle) -> None:
    td.enqueue_many([td.request("a", delay=n * 60) for n in range(3)])
    td.store.sample_backlog()
    [row] = connect().get("/api/backlog", params={"window": "1h", "step": 60}).json()["items"]
    assert (row["queued"], row["later"], row["processing"]) == (1, 2, 0)
    assert [(row.queued, row.later) for row in td.backlog()] == [(1, 2)]
    assert connect("read @acme").get("/api/backlog").status_code == 403
