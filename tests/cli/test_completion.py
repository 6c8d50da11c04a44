"""Shell completion: the scripts for the shells, and what they offer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.helpers import enlist
from treadle import Treadle

BIN = str(Path(sys.executable).parent)


@pytest.fixture
def offered(treadle):
    """What the shell is offered for the last word of a command."""

    def complete(*words: str) -> list[str]:
        env = {"_TREADLE_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(["treadle", *words])}
        env["COMP_CWORD"] = str(len(words))
        return [line.split(",", 1)[1] for line in treadle(env=env).stdout.splitlines() if line]

    return complete


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_script_for_each_shell(treadle, shell):
    script = treadle(env={"_TREADLE_COMPLETE": f"{shell}_source"}).stdout
    assert "_treadle_completion" in script
    assert f"_TREADLE_COMPLETE={shell}_complete" in script


def test_commands_and_options_are_completed(offered):
    assert offered("wo") == ["worker", "workers"]
    assert offered("worker", "--gr") == ["--grace"]


def test_ids_types_queues_and_workers_are_completed(offered, td):
    old, new = td.enqueue("mail", queue="slow"), td.enqueue("resize")
    enlist(td, "host-1", "mail")
    assert offered("jobs", "show", "0") == [new.id, old.id]
    assert offered("jobs", "show", "") == [new.id, old.id]
    assert offered("jobs", "retry", old.id, "0") == [new.id, old.id]
    assert offered("jobs", "show", "x") == []
    assert offered("enqueue", "ma") == ["mail"]
    assert offered("jobs", "ls", "--type", "") == ["mail", "resize"]
    assert offered("jobs", "ls", "--queue", "sl") == ["slow"]
    assert offered("queues", "pause", "") == ["default", "slow"]
    assert offered("workers", "quiet", "ho") == ["host-1"]


def test_schedules_are_completed(offered, td):
    td.schedules.put("digest:acme", "mail", every=900)
    assert offered("schedules", "show", "di") == ["digest:acme"]


def test_values_come_from_the_database_that_the_command_names(offered, folder):
    other = Treadle("sqlite:///other.db")
    other.enqueue("elsewhere")
    other.close()
    assert offered("enqueue", "--db", "sqlite:///other.db", "e") == ["elsewhere"]
    (folder / "completed_app.py").write_text(
        "from treadle import Treadle\nprint('hello')\ntd = Treadle('sqlite:///other.db')\n@td.job\ndef declared(): ..."
    )
    assert offered("enqueue", "--app", "completed_app", "") == ["declared", "elsewhere"]


def test_without_a_database_nothing_is_offered(offered, folder):
    assert offered("enqueue", "") == []
    assert offered("jobs", "show", "--db", "nonsense", "") == []
    assert list(folder.iterdir()) == []


def test_bash_completes_with_the_script(td, folder):
    job = td.enqueue("mail")
    script = """
        eval "$(_TREADLE_COMPLETE=bash_source treadle)"
        complete -p treadle
        COMP_WORDS=(treadle jobs show 0) COMP_CWORD=3
        _treadle_completion treadle
        echo "offered: ${COMPREPLY[*]}"
    """
    env = {"PATH": f"{BIN}:/usr/bin:/bin", "HOME": str(folder)}
    ran = subprocess.run(["bash", "-c", script], cwd=folder, env=env, capture_output=True, text=True, timeout=60)
    assert "_treadle_completion treadle" in ran.stdout, ran
    assert f"offered: {job.id}" in ran.stdout
