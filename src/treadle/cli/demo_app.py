"""The app of `treadle demo`: four types of jobs, each short."""

from __future__ import annotations

import asyncio
import random
import time

from treadle import Context, Treadle

td = Treadle()


@td.job
async def send_mail(to: str) -> str:
    """Quick and async."""
    await asyncio.sleep(random.uniform(0.005, 0.03))
    return f"sent to {to}"


@td.job
def resize_image(ctx: Context, image: str) -> dict[str, int]:
    """Sync, so it runs in a thread, and reports its progress."""
    for step in range(4):
        ctx.progress(step / 4, f"{image}: pass {step + 1} of 4")
        time.sleep(random.uniform(0.01, 0.02))
    return {"width": 640, "height": 480}


@td.job(backoff=0.25)
async def charge_card(ctx: Context, order: int) -> str:
    """Fails the first time, and is retried."""
    await asyncio.sleep(random.uniform(0.01, 0.04))
    if ctx.attempt == 1:
        raise ConnectionError("the bank did not answer")
    return f"order {order} is paid"


@td.job
async def publish_post(post: int, followers: int) -> int:
    """Fans out: its follow-ups are stored together with its completion."""
    await asyncio.sleep(random.uniform(0.02, 0.08))
    for follower in range(followers):
        send_mail.enqueue(to=f"follower-{follower}-of-post-{post}@example.org")
    return followers


@td.job(max_attempts=2, backoff=2)
async def import_feed(feed: str, password: str) -> None:
    """Fails in every attempt, so that there is a failure to look at."""
    await asyncio.sleep(random.uniform(0.05, 0.2))
    raise ValueError(f"no feed is at {feed}")
