"""A job's lineage, logs and waterfall: over HTTP and on its page."""

from __future__ import annotations

import os
import re
import socket
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests import stores
from tests.web.conftest import EVERYTHING, client_of
from treadle import Context, Treadle
from treadle.ids import new_id
from treadle.job import Job, NewJob
from treadle.lineage import Edge, Lineage, Node
from treadle.log_lines import NewLine
from treadle.outcome import COMPLETED, Outcome, OutcomeKind
from treadle.steps import NewStep
from treadle.stores.base import ClaimRequest
from treadle.waits import NewWait
from treadle.web import graph, waterfall
from treadle.web.waterfall import Span

NOW = datetime(2026, 11, 17, 12, tzinfo=UTC)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.function is test_the_page_of_a_thousand_jobs_is_quick:
        stores.on_every_store(metafunc, "url", ("sqlite", "postgresql"))


def new(type: str, **options: Any) -> NewJob:
    return NewJob(id=new_id(), type=type, **options)


def chain(td: Treadle, n: int) -> list[Job]:
    jobs = [new("link")]
    for _ in range(n - 1):
        jobs.append(new("link", after=(jobs[-1].id,)))
    return td.store.insert(jobs)


def fan(td: Treadle, n: int, **options: Any) -> list[Job]:
    """A job that starts many, and one that waits for all of them."""
    first = new("scan", **options)
    tiles = [new("tile", origin=first.id, **options) for _ in range(n)]
    return td.store.insert([first, *tiles, new("merge", after=tuple(tile.id for tile in tiles), **options)])


def run(td: Treadle, type: str = "agent", **options: Any) -> Any:
    td.enqueue(type, **options)
    [claimed] = td.store.claim("", ClaimRequest(limit=1))
    return claimed


@pytest.fixture
def client(td: Treadle) -> TestClient:
    return client_of(td, EVERYTHING)


# The API


def test_the_logs_of_a_job_page_by_page(td: Treadle, client: TestClient) -> None:
    claimed = run(td)
    td.store.save_logs([(claimed, [NewLine(n, 0, "INFO", f"line {n}, token=hunter2") for n in range(1, 6)])])
    page = client.get(f"/api/jobs/{claimed.id}/logs", params={"limit": 3}).json()
    assert [line["message"] for line in page["items"]] == [f"line {n}, token=•••" for n in (1, 2, 3)]
    rest = client.get(f"/api/jobs/{claimed.id}/logs", params={"after": page["next"]}).json()
    assert [line["line"] for line in rest["items"]] == [4, 5]
    assert rest["next"] == 5


def test_the_lineage_of_a_job(td: Treadle, client: TestClient) -> None:
    first, *_, last = fan(td, 3)
    found = client.get(f"/api/jobs/{last.id}/lineage").json()
    assert (found["id"], len(found["nodes"]), len(found["edges"]), found["cut"]) == (last.id, 5, 6, False)
    cut = client.get(f"/api/jobs/{first.id}/lineage", params={"most": 2}).json()
    assert (len(cut["nodes"]), cut["cut"]) == (2, True)


def test_a_caller_sees_nothing_of_other_tenants(td: Treadle) -> None:
    first = new("scan", tenant="acme")
    other = new("scan", tenant="bolt", origin=first.id)
    td.store.insert([first, other])
    bound = client_of(td, f"{EVERYTHING} @acme")
    assert len(bound.get(f"/api/jobs/{first.id}/lineage").json()["nodes"]) == 1
    assert other.id not in bound.get(f"/jobs/{first.id}").text
    for what in ("lineage", "logs"):
        assert bound.get(f"/api/jobs/{other.id}/{what}").status_code == 404
        assert bound.get(f"/api/jobs/{new_id()}/{what}").status_code == 404


# The page


def test_a_plain_job_has_none_of_these_sections(td: Treadle, client: TestClient) -> None:
    text = client.get(f"/jobs/{td.enqueue('mail').id}").text
    for section in ("graph", "waterfall", "logs"):
        assert f'data-testid="{section}"' not in text


def test_the_graph_links_to_each_job(td: Treadle, client: TestClient) -> None:
    jobs = fan(td, 4)
    text = client.get(f"/jobs/{jobs[1].id}").text
    for job in jobs:
        assert f'href="/jobs/{job.id}"' in text
    assert text.count('class="edge origin"') == 4 + 1  # and the legend
    assert text.count('class="edge parent"') == 4 + 1


def test_many_jobs_that_look_the_same_are_one_box_with_a_list_behind_it(td: Treadle, client: TestClient) -> None:
    jobs = fan(td, 100)
    text = client.get(f"/jobs/{jobs[-1].id}").text
    assert ">tile × 100</text>" in text  # noqa: RUF001
    assert "status%3Aqueued%20type%3Atile" in text or "status%3Aqueued+type%3Atile" in text
    assert text.count('class="node') == 3


def test_logs_are_shown_by_attempt_the_newest_first(td: Treadle, client: TestClient) -> None:
    claimed = run(td, max_attempts=2)
    td.store.save_logs([(claimed, [NewLine(1, 0, "INFO", "<b>first</b> password=hunter2")])])
    td.store.settle([(claimed, Outcome(OutcomeKind.RETRIED, error="no"))])
    [claimed] = td.store.claim("", ClaimRequest(limit=1))
    td.store.save_logs([(claimed, [NewLine(1, 0, "ERROR", "second")])])
    text = client.get(f"/jobs/{claimed.id}").text
    section = text[text.index('data-testid="logs"') :]
    assert section.index("second") < section.index("&lt;b&gt;first&lt;/b&gt; password=•••")
    assert 'data-level="ERROR"' in section
    assert "hunter2" not in text


def test_the_page_names_workers_that_have_ended(td: Treadle, client: TestClient) -> None:
    @td.job(max_attempts=2, backoff=0)
    def agent(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise OSError

    job = agent.enqueue()
    while td.tick().ran:
        pass
    name = f"{socket.gethostname()}-{os.getpid()}"
    page = client.get(f"/jobs/{job.id}").text
    assert f"<dt>Worker</dt><dd>{name}</dd>" in page
    assert re.search(rf"· {re.escape(name)}\s*<", page)


def test_the_waterfall_has_attempts_steps_and_waits(td: Treadle, client: TestClient) -> None:
    claimed = run(td)
    td.store.save_steps([(claimed, NewStep("plan", took=500_000)), (claimed, NewStep("nap", kind="sleep"))])
    wait = NewWait("signal", "approve", step="ok")
    td.store.settle([(claimed, Outcome(OutcomeKind.SUSPENDED, charged=0, waits=(wait,)))])
    section = client.get(f"/jobs/{claimed.id}").text.split('data-testid="waterfall"')[1].split("</section>")[0]
    assert re.findall(r'title="([^"]+)"', section) == ["plan", "nap", "Signal approve"]
    assert section.count("hatched") == 2
    parents = [td.enqueue("a"), td.enqueue("b")]
    [child] = td.store.insert([new("c", after=tuple(parent.id for parent in parents))])
    for one in td.store.claim("", ClaimRequest(limit=2)):
        td.store.settle([(one, COMPLETED)])
    [one] = td.store.claim("", ClaimRequest(limit=1))
    assert one.id == child.id
    section = client.get(f"/jobs/{child.id}").text.split('data-testid="waterfall"')[1].split("</section>")[0]
    assert re.findall(r'title="([^"]+)"', section) == ["Waits for 2 parents", "Attempt 1"]


@pytest.mark.parametrize("shape", [chain, fan], ids=["deep", "wide"])
def test_the_page_of_a_thousand_jobs_is_quick(td: Treadle, shape: Any) -> None:
    client, jobs = client_of(td, EVERYTHING), shape(td, 998)
    best = 60.0
    for _ in range(5):
        began = time.perf_counter()
        assert client.get(f"/jobs/{jobs[500].id}").status_code == 200
        best = min(best, time.perf_counter() - began)
    assert best < 0.3


# Drawing


def node(id: str, type: str = "tile", state: str = "completed") -> Node:
    return Node(id=id, type=type, queue="default", tenant="", subject="", state=state, created_at=NOW)


def drawn(this: str, nodes: list[Node], *pairs: str) -> str:
    edges = [Edge(pair[0], pair[1], "parent") for pair in pairs]
    return graph.draw(Lineage(id=this, nodes=nodes, edges=edges, cut=False), lambda box: f"/jobs/{box.job.id}")


def places(svg: str) -> dict[str, tuple[float, float]]:
    found = re.findall(r'href="/jobs/(\w+)" transform="translate\((\S+) (\S+)\)"', svg)
    return {id: (float(x), float(y)) for id, x, y in found}


def test_each_job_is_right_of_all_that_it_comes_from() -> None:
    at = places(drawn("a", [node(id) for id in "abcd"], "ab", "bc", "ac", "cd", "ad"))
    assert [id for id, _ in sorted(at.items(), key=lambda place: place[1])] == ["a", "b", "c", "d"]
    assert len({x for x, _ in at.values()}) == 4


def test_boxes_do_not_overlap() -> None:
    nodes = [node(f"{a}") for a in "abcdefghij"]
    at = places(drawn("a", nodes, *(f"a{b}" for b in "bcdefgh"), "bi", "cj"))
    for one in at.values():
        close = [x for x in at.values() if abs(x[0] - one[0]) < graph.WIDTH and abs(x[1] - one[1]) < graph.HEIGHT]
        assert close == [one]


def test_a_circle_is_drawn_too() -> None:
    assert len(places(drawn("a", [node(id) for id in "abc"], "ab", "bc", "cb", "aa"))) == 3


def test_names_are_escaped_and_clipped() -> None:
    svg = drawn("a", [node("a", type='<script>"&' * 10), node("b")], "ab")
    assert "<script" not in svg
    assert "…" in svg


def test_only_what_looks_the_same_and_comes_from_the_same_is_one_box() -> None:
    nodes = [node("root", "scan"), node("this", "tile")]
    nodes += [node(f"t{n}", "tile", "failed" if n % 2 else "completed") for n in range(80)]
    nodes += [node(f"s{n}", "store") for n in range(80)]
    edges = [Edge("root", "this", "origin"), *(Edge("root", f"t{n}", "origin") for n in range(80))]
    edges += [Edge(f"t{n}", f"s{n}", "parent") for n in range(80)]
    svg = graph.draw(Lineage(id="this", nodes=nodes, edges=edges, cut=False), lambda box: f"{box.text} {box.job.state}")
    links = re.findall(r'href="([^"]+)"', svg)
    x = "×"  # noqa: RUF001
    assert sorted(links) == sorted(
        [
            "scan completed",
            "tile completed",
            f"tile {x} 40 completed",
            f"tile {x} 40 failed",
            f"store {x} 40 completed",
            f"store {x} 40 completed",
        ]
    )


def test_bars_are_placed_in_time() -> None:
    def span(name: str, start: float, end: float, **more: Any) -> Span:
        return Span(name, NOW + timedelta(seconds=start), NOW + timedelta(seconds=end), "ok", "#", **more)

    rows = waterfall.rows([span("late", 50, 100, waits=True), span("first", 0, 50), span("brief", 100, 100)])
    assert [row.name for row, _ in rows] == ["first", "late", "brief"]
    bars = [bar for _, bar in rows]
    assert 'x="0.00%" width="50.00%"' in bars[0]
    assert 'x1="50.00%" x2="100.00%"' in bars[1]
    assert 'x="99.60%" width="0.40%"' in bars[2]
    assert waterfall.rows([]) == []
