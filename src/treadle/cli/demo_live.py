"""The dashboard of `treadle demo`: it comes up with the jobs, and stays after them, in a terminal."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
import webbrowser
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from treadle.settings import URL_VARIABLE

if TYPE_CHECKING:
    from treadle.app import Treadle
    from treadle.cli.demo_show import DemoScreen

COMMAND = [sys.executable, "-m", "treadle", "dashboard", "treadle.cli.demo_app:td", "--port", "0"]
PAUSE = 0.5
"""Seconds between two handfuls of jobs that keep it alive."""


@contextlib.contextmanager
def dashboard(stage: DemoScreen, url: str, others: dict[str, str], browse: bool) -> Generator[bool]:
    """Whether it is up. Without `treadle[web]` it is not, and that is no reason to fail."""
    process = subprocess.Popen(
        COMMAND,
        env={**others, URL_VARIABLE: url},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # Ctrl-C is for the demo, which then stops it
    )
    try:
        assert process.stdout is not None
        link = process.stdout.readline().strip()
        if link:
            stage.say("•", f"watch them: {link}", "bold")
        else:
            stage.say("•", "there is a dashboard, too, with the extra 'web': pip install '.[web]'")
        if link and browse and has_desktop():
            webbrowser.open(link)
        yield bool(link)
    finally:
        process.terminate()
        process.wait(20)


def has_desktop() -> bool:
    """Whether a browser would be a window of its own, and not take over the terminal."""
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def keep_up(app: Treadle, stage: DemoScreen) -> None:
    """A few jobs now and then, some of which fail, until Ctrl-C."""
    dice, number = random.Random(2), 0
    with contextlib.suppress(KeyboardInterrupt):
        stage.say("•", "the dashboard stays up, with a few jobs a second; Ctrl-C ends it", "bold")
        while True:
            number += 1
            some = _some(dice, number)
            app.enqueue_many([app.request(type, payload, tenant=tenant) for type, payload, tenant in some])
            time.sleep(PAUSE)


def _some(dice: random.Random, number: int) -> list[tuple[str, dict[str, Any], str]]:
    tenant = dice.choice(("acme", "globex", "initech"))
    wanted: list[tuple[str, dict[str, Any], str]] = [
        ("send_mail", {"to": f"user-{number}@example.org"}, tenant),
        ("resize_image", {"image": f"{number}.png"}, tenant),
    ]
    if number % 3 == 0:
        wanted.append(("charge_card", {"order": number}, tenant))
    if number % 10 == 0:
        wanted.append(("import_feed", {"feed": f"https://example.org/{number}.xml", "password": "secret"}, tenant))
    return wanted
