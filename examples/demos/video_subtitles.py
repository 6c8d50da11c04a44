"""The demo: two channels get their subtitles, the server is killed on the way, and a missing film appears."""

from __future__ import annotations

import os
import random
from pathlib import Path

import httpx2

from examples.demos.screen import Screen, all_ended, free_port
from treadle import Treadle

CHANNELS = {"harbour": "Harbour Television", "hills": "Hill Walking"}
VIDEOS = 40
MISSING = "hills-007"
SERVER = "examples.video_subtitles.web:app"


def main() -> None:
    with Screen("video_subtitles") as screen:
        media, port = screen.folder / "media", free_port()
        videos = make_media(media, VIDEOS)
        (media / f"{MISSING}.txt").rename(media / "elsewhere")
        url = f"sqlite:///{screen.folder}/videos.db"
        os.environ |= {"TREADLE_URL": url, "MEDIA": str(media)}
        server, td = screen.serve(SERVER, port), Treadle(url)
        screen.say("•", f"a web server with a worker in it; watch it at {screen.dashboard(port)}")
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            for channel, title in CHANNELS.items():
                client.put(f"/channels/{channel}", params={"title": title}).raise_for_status()
            for channel, video in videos:
                client.post(f"/channels/{channel}/videos", json={"id": video, "title": video}).raise_for_status()
            screen.say("•", f"{len(videos)} videos added, each in one transaction with its job")
            screen.watch(td, lambda counts: counts["completed"] > len(videos) // 2, server)
            screen.kill(server, "the server", len(td.jobs(status="processing")))
            server = screen.serve(SERVER, port)
            screen.say("✓", "started again: it finds the jobs of the dead server, and goes on", "green")
            screen.watch(td, all_ended, server)
            failed = client.get("/channels/hills/videos", params={"status": "failed"}).json()["videos"]
            screen.say(
                "✗", f"failed: {failed[0]['id']} after {failed[0]['attempts']} attempts: {failed[0]['error']}", "red"
            )
            (media / "elsewhere").rename(media / f"{MISSING}.txt")
            client.post(f"/videos/{MISSING}/retry").raise_for_status()
            screen.say("✓", f"the film is there now; POST /videos/{MISSING}/retry", "green")
            screen.watch(td, all_ended, server)
            columns = ("completed", "failed", "pending", "processing")
            rows = [(c["title"], *(c["videos"].get(s, 0) for s in columns)) for c in client.get("/channels").json()]
        screen.table("GET /channels", ("channel", *columns), rows)
        lost = len(videos) - sum(row[1] for row in rows)
        screen.say(
            "✗" if lost else "✓", f"{len(videos) - lost} of {len(videos)} videos have their subtitle, {lost} do not"
        )
        screen.stay(screen.dashboard(port), f"http://127.0.0.1:{port}/docs")
        td.close()
    if lost:
        raise SystemExit(1)


def make_media(folder: Path, each: int) -> list[tuple[str, str]]:
    """Write films, and return each with its channel."""
    folder.mkdir(parents=True, exist_ok=True)
    words = random.Random(1)
    names = [(channel, f"{channel}-{n:03}") for channel in CHANNELS for n in range(each)]
    for _, name in names:
        lines = (f"Sentence {n} of {name}, {words.randrange(1000)} words on." for n in range(20))
        (folder / f"{name}.txt").write_text("\n".join(lines), "utf-8")
    return names


if __name__ == "__main__":
    main()
