"""The only job: give a video its subtitle."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

from treadle import Context, Job, exponential

from .database import database, td

MEDIA = Path(os.environ.get("MEDIA", "media"))
"""`x.txt` stands for video `x`: it holds what is said in it, one sentence per line."""
PACE = float(os.environ.get("PACE", "0.05"))
"""Seconds per video: stands for a speech service."""


@td.job(queue="video_queue", max_attempts=3, backoff=exponential(base=1, cap=60))
def fetch_subtitle(ctx: Context, video_id: str) -> None:
    """The subtitle and the job's completion are one commit: neither exists without the other."""
    srt = transcribe(MEDIA / f"{video_id}.txt")
    with ctx.transaction() as db:
        db.execute("INSERT INTO subtitles VALUES (?, ?) ON CONFLICT DO NOTHING", (video_id, srt))


@fetch_subtitle.already_done
def with_subtitle(jobs: Sequence[Job]) -> list[Job]:
    """The jobs whose video has its subtitle. Workers call this when they start, and every few minutes."""
    wanted = json.dumps([job.subject for job in jobs])
    with database() as db:
        there = db.execute("SELECT video_id FROM subtitles JOIN json_each(?) ON value = video_id", [wanted])
        found = {row["video_id"] for row in there}
    return [job for job in jobs if job.subject in found]


def transcribe(media: Path) -> str:
    """The sentences as SubRip, two seconds each."""
    sentences = media.read_text("utf-8").splitlines()
    time.sleep(PACE)
    cues = []
    for number, sentence in enumerate(sentences):
        cues.append(f"{number + 1}\n{_time(2 * number)} --> {_time(2 * number + 2)}\n{sentence}\n")
    return "\n".join(cues)


def _time(seconds: int) -> str:
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02},000"
