"""What is different on a terminal: colors and bars. They can be turned off."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest


@pytest.fixture
def on_a_terminal(folder):
    """Run a command whose stdout is a terminal; returns what it wrote there."""

    def run(*words: str, **env: str) -> str:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "treadle", *words],
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={**os.environ, "TERM": "xterm-256color", **env},
        )
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # how Linux reports that the other end is closed
                part = b""
            if not part:
                break
            shown += part
        process.wait(60)
        os.close(ours)
        return shown.decode()

    return run


def test_a_terminal_gets_colors_and_bars(on_a_terminal, td):
    td.enqueue("mail")
    shown = on_a_terminal("stats")
    assert "\x1b[36m" in shown
    assert "████████████" in shown


@pytest.mark.parametrize(("words", "env"), [(["stats"], {"NO_COLOR": "1"}), (["stats", "--no-color"], {})])
def test_colors_can_be_turned_off(on_a_terminal, td, words, env):
    td.enqueue("mail")
    assert "\x1b[36m" not in on_a_terminal(*words, **env)


def test_an_id_is_never_cut_on_a_narrow_terminal(on_a_terminal, td):
    job = td.enqueue("a_type_with_a_rather_long_name", tenant="acme", subject="call-7")
    assert job.id in on_a_terminal("jobs", "ls", COLUMNS="40")


def test_json_is_indented_on_a_terminal(on_a_terminal, td):
    assert on_a_terminal("jobs", "ls", "--json").replace("\r", "").startswith('{\n  "items": []')
