"""The demo: a server imports podcasts, is killed in the middle, and is started again."""

from __future__ import annotations

import argparse
from pathlib import Path
from xml.sax.saxutils import escape

import httpx2

from examples.demos.screen import Screen, all_ended, free_port
from treadle import Treadle

PODCASTS, EPISODES = 15, 40
SERVER = "examples.podcast_import.web:app"


def main() -> None:
    parser = argparse.ArgumentParser(prog="script/example podcast_import", description=__doc__)
    parser.add_argument("--db", help="the database, e.g. libsql+http://127.0.0.1:8080; default: a new file")
    url = parser.parse_args().db
    with Screen("podcast_import") as screen:
        url = url or f"sqlite:///{screen.folder}/podcasts.db"
        podcasts = make_feeds(screen.folder / "feeds", PODCASTS, EPISODES)
        port, td = free_port(), Treadle(url)
        environment = {"TREADLE_URL": url, "FEEDS": str(screen.folder / "feeds")}
        server = screen.serve(SERVER, port, **environment)
        screen.say("•", f"a web server with a worker in it; watch it at {screen.dashboard(port)}")
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            jobs = [client.post("/podcasts/import", json={"podcast_id": id}).json()["job"] for id in podcasts]
        screen.say(
            "•",
            f"POST /podcasts/import, {len(jobs)} times and stored when it answers; three run at once",
        )
        screen.watch(td, lambda counts: counts["completed"] >= PODCASTS // 3, server)
        screen.kill(server, "the server", len(td.jobs(status="processing")))
        server = screen.serve(SERVER, port, **environment)
        screen.say("✓", "started again: it finds the jobs of the dead server, and goes on", "green")
        screen.watch(td, all_ended, server)
        found = [job for id in jobs if (job := td.get(id))]
        screen.table(
            "What happened",
            ("podcast", "status", "runs that died", "episodes"),
            (
                (
                    job.payload["podcast_id"],
                    job.status,
                    len(td.attempts(job.id)) or "",
                    (job.result or {}).get("episodes"),
                )
                for job in found
            ),
        )
        lost = PODCASTS - sum(job.status == "completed" for job in found)
        screen.say("✗" if lost else "✓", f"{PODCASTS - lost} of {PODCASTS} podcasts imported, {lost} lost")
        screen.stay(screen.dashboard(port), f"http://127.0.0.1:{port}/docs")
        td.close()
    if lost:
        raise SystemExit(1)


def make_feeds(folder: Path, podcasts: int, episodes: int) -> list[str]:
    """Write RSS files like the one in feeds/, and return their names."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"podcast-{number:02}" for number in range(podcasts)]
    for name in names:
        items = "".join(
            f"<item><title>{escape(f'Part {n} & more')}</title><guid>{name}-{n}</guid>"
            f'<enclosure url="https://example.org/{name}/{n}.mp3" length="1000" type="audio/mpeg"/>'
            f"<pubDate>Wed, 25 Jan 2023 12:{n % 60:02}:00 GMT</pubDate></item>"
            for n in range(episodes)
        )
        text = f'<?xml version="1.0"?><rss version="2.0"><channel><title>{name}</title>{items}</channel></rss>'
        (folder / f"{name}.xml").write_text(text, "utf-8")
    return names


if __name__ == "__main__":
    main()
