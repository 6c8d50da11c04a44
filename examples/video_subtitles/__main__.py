"""The show: two channels get their subtitles, the server is killed on the way, and a film that was missing turns up."""

from __future__ import annotations

import os
import random
from pathlib import Path

import httpx2

from examples.show import Stage, all_ended, free_port
from treadle import Treadle

CHANNELS = {"harbour": "Harbour Television", "hills": "Hill Walking"}
VIDEOS = 40
MISSING = "hills-007"
SERVER = "examples.video_subtitles.web:app"


def main() -> None:
    with Stage("video_subtitles") as stage:
        media, port = stage.folder / "media", free_port()
        videos = make_media(media, VIDEOS)
        (media / f"{MISSING}.txt").rename(media / "elsewhere")
        url = f"sqlite:///{stage.folder}/videos.db"
        os.environ |= {"TREADLE_URL": url, "MEDIA": str(media)}
        stage.say("•", f"a web server with a worker in it; watch it at http://127.0.0.1:{port}/dashboard/")
        server, td = stage.serve(SERVER, port), Treadle(url)
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            for channel, title in CHANNELS.items():
                client.put(f"/channels/{channel}", params={"title": title}).raise_for_status()
            for channel, video in videos:
                client.post(f"/channels/{channel}/videos", json={"id": video, "title": video}).raise_for_status()
            stage.say("•", f"{len(videos)} videos added, each in one transaction with its job")
            stage.watch(td, lambda counts: counts["completed"] > len(videos) // 2, server)
            stage.kill(server, "the server", len(td.jobs(status="processing")))
            server = stage.serve(SERVER, port)
            stage.say("✓", "started again: it finds what the dead one had in hand, and goes on", "green")
            stage.watch(td, all_ended, server)
            failed = client.get("/channels/hills/videos", params={"status": "failed"}).json()["videos"]
            stage.say(
                "✗", f"failed: {failed[0]['id']} after {failed[0]['attempts']} attempts: {failed[0]['error']}", "red"
            )
            (media / "elsewhere").rename(media / f"{MISSING}.txt")
            client.post(f"/videos/{MISSING}/retry").raise_for_status()
            stage.say("✓", f"the film turned up; POST /videos/{MISSING}/retry", "green")
            stage.watch(td, all_ended, server)
            columns = ("completed", "failed", "pending", "processing")
            rows = [(c["title"], *(c["videos"].get(s, 0) for s in columns)) for c in client.get("/channels").json()]
        stage.table("GET /channels", ("channel", *columns), rows)
        lost = len(videos) - sum(row[1] for row in rows)
        stage.say(
            "✗" if lost else "✓", f"{len(videos) - lost} of {len(videos)} videos have their subtitle, {lost} do not"
        )
        stage.stay(f"http://127.0.0.1:{port}/dashboard/", f"http://127.0.0.1:{port}/docs")
        td.close()
    if lost:
        raise SystemExit(1)


def make_media(folder: Path, each: int) -> list[tuple[str, str]]:
    """Films that say something, and the channel of each."""
    folder.mkdir(parents=True, exist_ok=True)
    words = random.Random(1)
    names = [(channel, f"{channel}-{n:03}") for channel in CHANNELS for n in range(each)]
    for _, name in names:
        lines = (f"Sentence {n} of {name}, {words.randrange(1000)} words on." for n in range(20))
        (folder / f"{name}.txt").write_text("\n".join(lines), "utf-8")
    return names


if __name__ == "__main__":
    main()
