"""The four stages: extract_audio → transcribe_start → transcribe_poll → analyze.

Each stage is idempotent: a file in storage is not made again, an existing row is left alone, and the next stage is
stored together with the completion of this one.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.error import HTTPError

from treadle import Context, Limit, Rate, RateLimited, Snooze, exponential

from . import sound, storage
from .database import insert, td
from .speech import start, words_of

PACE = float(os.environ.get("PACE", "1"))
"""The demo sets 0.002, so that delays are a five-hundredth of the normal ones."""
POLL_SECONDS = float(os.environ.get("SPEECH_POLL_INTERVAL_MS", "20000")) / 1000
MOST_POLLS = 180
"""An hour, at the default interval."""
BACKOFF = exponential(base=30 * PACE, cap=600 * PACE)
"""30, 60, 120, 240 seconds: min(600, 30·2^n), where n counts the attempts before the one that failed."""
SPEECH = Limit("speech", rate=Rate(300, per=60 * PACE, burst=30), per="tenant")
"""The speech service takes 300 requests a minute of each organization. The two stages that ask it share them."""


@td.job(max_attempts=5, backoff=BACKOFF, dedupe=True)
def extract_audio(ctx: Context, call_id: str) -> None:
    """Reduce the upload to one channel with fewer samples."""
    upload, audio = (storage.path(ctx.tenant, call_id, name) for name in ("upload.wav", "audio.wav"))
    if not audio.exists():
        storage.write(audio, sound.to_mono(upload.read_bytes()))
    storage.remove(upload)
    with ctx.transaction() as connection:
        note_artifact(ctx, connection, "audio", str(audio))
        transcribe_start.using(tenant=ctx.tenant, subject=call_id).enqueue(call_id=call_id)


@td.job(max_attempts=5, backoff=BACKOFF, dedupe=True, limits=[SPEECH])
def transcribe_start(ctx: Context, call_id: str) -> None:
    """Convert the audio and send it to the speech service. The next stage waits for the answer."""
    folder = storage.path(ctx.tenant, call_id, "")
    if (folder / "transcript.json").exists():
        storage.remove(folder / sound.SPEECH)
        analyze.using(tenant=ctx.tenant, subject=call_id).enqueue(call_id=call_id)
        return
    if not (folder / sound.SPEECH).exists():
        storage.write(folder / sound.SPEECH, sound.to_speech(folder / "audio.wav"))
    with obeying():
        operation = start((folder / sound.SPEECH).read_bytes(), key=f"{ctx.tenant}.{call_id}")
    transcribe_poll.using(tenant=ctx.tenant, subject=call_id).enqueue(
        call_id=call_id, operation_id=operation, speech=sound.SPEECH, transcript="transcript.json"
    )


@td.job(max_attempts=5, backoff=BACKOFF, dedupe=True, limits=[SPEECH])
def transcribe_poll(ctx: Context, call_id: str, operation_id: str, speech: str, transcript: str) -> None:
    """Ask whether it is done. If not, ask again later: a snooze holds no worker and costs no attempt."""
    sent, path = (storage.path(ctx.tenant, call_id, name) for name in (speech, transcript))
    if not path.exists():
        with obeying():
            words = words_of(operation_id)
        if words is None:
            raise Snooze(POLL_SECONDS, at_most=MOST_POLLS)
        storage.write(path, json.dumps(words).encode())
    storage.remove(sent)
    with ctx.transaction() as connection:
        note_artifact(ctx, connection, "transcript", str(path))
        analyze.using(tenant=ctx.tenant, subject=call_id).enqueue(call_id=call_id)


@td.job(max_attempts=5, backoff=BACKOFF, dedupe=True)
def analyze(ctx: Context, call_id: str) -> None:
    """Count each word, and rate the mood of the call."""
    folder = storage.path(ctx.tenant, call_id, "")
    path = folder / "analysis.json"
    if not path.exists():
        words = Counter(json.loads((folder / "transcript.json").read_bytes()))
        mood = words["great"] + words["thanks"] - words["problem"] - words["refund"]
        storage.write(path, json.dumps({"words": words, "mood": mood}).encode())
    storage.remove_parts(folder)
    with ctx.transaction() as connection:
        note_artifact(ctx, connection, "analysis", str(path))
        ctx.result = json.loads(path.read_bytes())


@contextmanager
def obeying() -> Iterator[None]:
    """If the service refuses nevertheless, no job of the organization asks again before the time that it names."""
    try:
        yield
    except HTTPError as refusal:
        if refusal.code != 429:
            raise
        raise RateLimited(float(refusal.headers["Retry-After"])) from refusal


def note_artifact(ctx: Context, connection: object, kind: str, path: str) -> None:
    insert(connection, "artifacts", org_id=ctx.tenant, call_id=ctx.subject, kind=kind, path=path)
