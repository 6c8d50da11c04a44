"""A queue of videos in the application's own SQLite file: every requirement of the example."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi.testclient import TestClient

from examples.demos.video_subtitles import make_media
from examples.video_subtitles import database as own_tables
from examples.video_subtitles import jobs
from examples.video_subtitles.database import VIDEOS, database, make_tables, td
from examples.video_subtitles.web import app
from tests.eventually import eventually
from tests.examples.harness import ROOT, Example, counts, kill_again_and_again
from treadle import Treadle
from treadle.testing import ManualClock, drain, temporary

CLAIM_ONE = "from examples.video_subtitles.database import td; print(*(lease.job.subject for lease in td.claim(1)))"
CLAIM_AND_WAIT = """
import threading
from examples.video_subtitles import jobs
from examples.video_subtitles.database import td
jobs.transcribe = lambda media: (print("processing", flush=True), threading.Event().wait())
td.worker(concurrency=1).run()
"""


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ManualClock]:
    monkeypatch.setattr(jobs, "MEDIA", tmp_path)
    monkeypatch.setattr(jobs, "PACE", 0)
    url = f"sqlite:///{tmp_path}/videos.db"
    monkeypatch.setattr(own_tables, "URL", url)
    with temporary(td, url=url) as clock:
        make_tables()
        yield clock


@pytest.fixture
def client(clock: ManualClock) -> TestClient:
    """Requests without the server's lifespan: no worker runs."""
    client = TestClient(app)
    client.put("/channels/c1", params={"title": "One"})
    return client


def add(client: TestClient, *videos: str, channel: str = "c1", **more: Any) -> None:
    for video in videos:
        answer = client.post(f"/channels/{channel}/videos", json={"id": video, "title": video, **more})
        assert answer.status_code == 201, answer.text


def film(*videos: str) -> None:
    for video in videos:
        (jobs.MEDIA / f"{video}.txt").write_text(f"This is {video}.\nIt ends here.")


def listed(client: TestClient, channel: str = "c1", **query: Any) -> dict[str, Any]:
    answer = client.get(f"/channels/{channel}/videos", params=query)
    return {video["id"]: video for video in answer.json()["videos"]}


def status(client: TestClient, video: str) -> str:
    found: str = listed(client)[video]["status"]
    return found


def insert_subtitle(video: str) -> None:
    with database() as db:
        db.execute("INSERT INTO subtitles VALUES (?, 'by hand')", (video,))


def fail_for_good(client: TestClient, clock: ManualClock, video: str) -> None:
    add(client, video)
    for seconds in (0, 1, 2):
        clock.advance(seconds)
        drain(td, raising=False)


def in_another_process(code: str, **options: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "TREADLE_URL": td.store.url, "MEDIA": str(jobs.MEDIA)}
    return subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, **options
    )


# Core rules


def test_1_new_videos_are_pending(client: TestClient) -> None:
    add(client, "v1")
    assert listed(client)["v1"] == {"id": "v1", "title": "v1", "status": "pending", "attempts": 0, "error": None}


def test_2_a_worker_picks_the_next_pending_video_and_sets_it_to_processing(client: TestClient) -> None:
    add(client, "v1", "v2")
    [lease] = td.claim(1)
    assert lease.job.subject == "v1"
    assert {id: video["status"] for id, video in listed(client).items()} == {"v1": "processing", "v2": "pending"}


def test_3_success_and_the_stored_subtitle_are_completed_at_one_moment(client: TestClient, clock: ManualClock) -> None:
    film("v1")
    add(client, "v1")
    clock.advance(5)
    drain(td)
    assert status(client, "v1") == "completed"
    assert td.jobs(subject="v1")[0].completed_at == clock.now()
    assert client.get("/videos/v1/subtitle").json()["srt"] == (
        "1\n00:00:00,000 --> 00:00:02,000\nThis is v1.\n\n2\n00:00:02,000 --> 00:00:04,000\nIt ends here.\n"
    )


def test_4_failures_count_keep_their_error_and_go_back_to_pending_until_max_retries(
    client: TestClient, clock: ManualClock
) -> None:
    add(client, "v1")
    for attempts, seconds in ((1, 1), (2, 2)):
        drain(td, raising=False)
        video = listed(client)["v1"]
        assert (video["status"], video["attempts"]) == ("pending", attempts)
        assert "No such file" in video["error"]
        assert (
            td.jobs(subject="v1")[0].run_at - clock.now()
        ).total_seconds() == seconds  # the backoff, in the database
        clock.advance(seconds)
    drain(td, raising=False)
    assert (status(client, "v1"), listed(client)["v1"]["attempts"]) == ("failed", 3)


def test_6_a_video_with_a_subtitle_is_completed_whatever_its_status(client: TestClient, clock: ManualClock) -> None:
    fail_for_good(client, clock, "failed")
    add(client, "processing")
    td.claim(1)
    add(client, "pending", "without")
    assert [status(client, v) for v in ("failed", "processing", "pending")] == ["failed", "processing", "pending"]
    for video in ("failed", "processing", "pending"):
        insert_subtitle(video)
    assert td.reconcile() == 3
    assert {id: video["status"] for id, video in listed(client).items()} == {
        "failed": "completed",
        "processing": "completed",
        "pending": "completed",
        "without": "pending",
    }


# Database considerations


def test_the_next_pending_video_is_found_by_an_index(client: TestClient) -> None:
    add(client, "v1")
    which = "queue = 'video_queue' AND type = 'fetch_subtitle' AND parked = ''"
    with database() as db:
        plan = db.execute(f"EXPLAIN QUERY PLAN SELECT id FROM treadle_ready WHERE {which}").fetchone()
        assert "treadle_ready_in_order" in plan["detail"]


def test_the_separate_video_queue_has_priorities(client: TestClient) -> None:
    add(client, "v1", "v2")
    add(client, "urgent", priority=5)
    claimed = [td.claim(1, queues=["video_queue"])[0].job.subject for _ in range(3)]
    assert claimed == ["urgent", "v1", "v2"]


def test_an_empty_queue_gives_nothing_to_claim(client: TestClient) -> None:
    assert td.claim(1) == []


# Reconciliation


def test_reconciliation_runs_on_startup(client: TestClient) -> None:
    add(client, "v1")
    insert_subtitle("v1")
    with TestClient(app) as server:  # its worker could also have run it; but there is no film, so it would fail
        eventually(lambda: status(server, "v1") == "completed")
    assert client.get("/videos/v1/subtitle").json()["srt"] == "by hand"


def test_reconciliation_is_repeated_on_a_schedule(
    client: TestClient, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every 60 beats, about five minutes; here the beats are short."""
    fail_for_good(client, clock, "v1")

    async def work() -> None:
        async with td.worker(beat=0.002, queues=["another"]):
            await asyncio.to_thread(eventually, lambda: asked)
            insert_subtitle("v1")
            await asyncio.to_thread(eventually, lambda: status(client, "v1") == "completed")

    asked: list[int] = []
    answer = jobs.fetch_subtitle.job_type.already_done
    assert answer is not None
    monkeypatch.setattr(jobs.fetch_subtitle.job_type, "already_done", lambda page: (answer(page), asked.append(1))[0])
    asyncio.run(work())


# Edge cases


def test_edge_1_a_video_added_twice_concurrently_is_one_row_and_one_job(client: TestClient) -> None:
    answers: list[int] = []
    start = threading.Barrier(8)

    def post() -> None:
        start.wait()
        answers.append(client.post("/channels/c1/videos", json={"id": "v1", "title": "same"}).status_code)

    threads = [threading.Thread(target=post) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [201, *[409] * 7]
    assert counts(td) == {"pending": 1}
    assert len(td.jobs(subject="v1")) == 1


def test_edge_3_a_subtitle_overrides_a_recorded_failure(client: TestClient, clock: ManualClock) -> None:
    fail_for_good(client, clock, "v1")
    insert_subtitle("v1")
    assert td.reconcile() == 1
    assert status(client, "v1") == "completed"


def test_edge_5_a_large_queue_is_listed_by_indexed_pages(client: TestClient) -> None:
    names = [f"v{n:03}" for n in range(25)]
    add(client, *names)
    seen: list[str] = []
    after: str | None = ""
    while after is not None:
        page = client.get("/channels/c1/videos", params={"limit": 10, "after": after, "status": "pending"}).json()
        assert len(page["videos"]) <= 10
        seen += [video["id"] for video in page["videos"]]
        after = page["next"]
    assert seen == names
    wanted = {"channel": "c1", "status": "pending", "after": "", "limit": 10}
    with database() as db:
        plan = [row["detail"] for row in db.execute(f"EXPLAIN QUERY PLAN {VIDEOS}", wanted)]
    assert plan
    assert not [line for line in plan if line.startswith(("SCAN", "MATERIALIZE", "USE TEMP"))]


# Instrumentation


def test_the_channel_summary_counts_videos_per_status(client: TestClient, clock: ManualClock) -> None:
    client.put("/channels/c2", params={"title": "Two"})
    client.put("/channels/c3", params={"title": "Three, without videos"})
    fail_for_good(client, clock, "f1")
    film("v1", "v2", "v3")
    add(client, "v1", "v2")
    add(client, "v3", channel="c2")
    drain(td)
    add(client, "v4", channel="c2")
    assert client.get("/channels").json() == [
        {"id": "c1", "title": "One", "videos": {"completed": 2, "failed": 1}},
        {"id": "c2", "title": "Two", "videos": {"completed": 1, "pending": 1}},
        {"id": "c3", "title": "Three, without videos", "videos": {}},
    ]


def test_a_channels_videos_can_be_filtered_by_status(client: TestClient) -> None:
    film("v1")
    add(client, "v1", "v2")
    drain(td, raising=False)
    assert list(listed(client, status="completed")) == ["v1"]
    assert list(listed(client, status="pending")) == ["v2"]
    assert listed(client, status="failed") == {}
    assert client.get("/channels/c1/videos?status=nonsense").status_code == 422


# Acceptance criteria


def test_automatic_reconciliation_updates_mismatched_statuses(client: TestClient, clock: ManualClock) -> None:
    fail_for_good(client, clock, "v1")
    insert_subtitle("v1")
    with TestClient(app) as server:
        eventually(lambda: status(server, "v1") == "completed")


def test_failed_videos_remain_failed_until_manual_retry(client: TestClient, clock: ManualClock) -> None:
    fail_for_good(client, clock, "v1")
    film("v1")  # it would succeed now
    clock.advance(30 * 86400)
    td.rescue()
    drain(td)
    td.reconcile()
    assert status(client, "v1") == "failed"
    assert client.post("/videos/v1/retry").json()["status"] == "pending"
    drain(td)
    assert status(client, "v1") == "completed"


def test_the_state_of_the_queue_is_in_sqlite_at_all_times(tmp_path: Path, port: int) -> None:
    """kill -9 of the server at 20 random moments. Every video has its subtitle, once."""
    videos = make_media(tmp_path / "media", 100)
    url = f"sqlite:///{tmp_path}/videos.db"
    watching = Treadle(url)
    environment = {"TREADLE_URL": url, "MEDIA": str(tmp_path / "media"), "PACE": "0.01"}
    with Example("examples.video_subtitles.web", port=port, **environment) as server:
        added: list[str] = []

        def more(kill: int) -> None:
            with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
                for channel, video in videos[9 * kill : 9 * kill + 9]:
                    client.put(f"/channels/{channel}", params={"title": channel}).raise_for_status()
                    client.post(f"/channels/{channel}/videos", json={"id": video, "title": video}).raise_for_status()
                    added.append(video)

        kill_again_and_again(server, watching, more)
    assert counts(watching) == {"completed": len(added)}
    watching.close()
    with closing(sqlite3.connect(tmp_path / "videos.db")) as db:
        assert sorted(row[0] for row in db.execute("SELECT video_id FROM subtitles")) == sorted(added)
        assert sorted(row[0] for row in db.execute("SELECT id FROM videos")) == sorted(added)


def test_a_video_and_its_job_are_one_commit(client: TestClient) -> None:
    """No channel, so no video: then there is no job either."""
    assert client.post("/channels/unknown/videos", json={"id": "v1", "title": "v1"}).status_code == 409
    assert counts(td) == {}


# Test cases, word for word


def test_case_1_insert_3_pending_videos_claim_in_parallel_each_claimed_once_no_duplicates(client: TestClient) -> None:
    """By three threads and three processes at once."""
    add(client, "v1", "v2", "v3")
    processes = [in_another_process(CLAIM_ONE) for _ in range(3)]
    claimed: list[str] = []

    def claim() -> None:
        while counts(td).get("pending"):
            claimed.extend(lease.job.subject for lease in td.claim(1))

    threads = [threading.Thread(target=claim) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for process in processes:
        claimed.extend(process.communicate(timeout=60)[0].split())
    assert sorted(claimed) == ["v1", "v2", "v3"]
    assert counts(td) == {"processing": 3}


def test_case_2_mark_one_processing_restart_becomes_pending(client: TestClient) -> None:
    """Its worker is killed while it works: the video stays processing until a worker is started, which takes it back.

    The new one serves another queue, so that it does not start the video again at once.
    """
    add(client, "v1")
    worker = in_another_process(CLAIM_AND_WAIT)
    assert worker.stdout is not None
    assert worker.stdout.readline() == "processing\n"
    worker.send_signal(signal.SIGKILL)
    worker.communicate()
    assert status(client, "v1") == "processing"

    async def restart() -> None:
        async with td.worker(queues=["another"]):
            pass

    asyncio.run(restart())
    assert status(client, "v1") == "pending"


def test_case_3_insert_subtitle_manually_run_reconciliation_status_becomes_completed(client: TestClient) -> None:
    add(client, "v1")
    insert_subtitle("v1")
    td.reconcile()
    assert status(client, "v1") == "completed"


def test_case_4_after_max_retries_status_failed_retry_endpoint_resets_to_pending_and_attempts_0(
    client: TestClient, clock: ManualClock
) -> None:
    fail_for_good(client, clock, "v1")
    assert (status(client, "v1"), listed(client)["v1"]["attempts"]) == ("failed", 3)
    assert client.post("/videos/v1/retry").json() == {"id": "v1", "status": "pending", "attempts": 0}
    assert listed(client)["v1"]["attempts"] == 0
    assert client.post("/videos/v1/retry").status_code == 409  # it is pending already
    assert client.post("/videos/unknown/retry").status_code == 404
