"""What treadle does on Windows, in a process without what Windows lacks: see like_windows.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

APP = """
import sys
from treadle import Context, Treadle
td = Treadle("sqlite:///jobs.db")
@td.job
def add(a: int, b: int) -> int:
    return a + b
@td.job
async def double(ctx: Context, n: int) -> int:
    ctx.progress(0.5)
    return await ctx.astep("double", lambda: 2 * n)
@td.job(cron="* * * * *", zone="Europe/Berlin")
def each_minute() -> None: ...
"""

USE = """
import asyncio, os, pathlib, sys
assert sys.platform == "win32" and not hasattr(os, "fork")
from app import add, double, td
from treadle.stores.sqlite import checkpoint

checkpoint.LONG, checkpoint.PAUSE = 1, 0.0  # each commit checkpoints

jobs = [add.enqueue(a=1, b=2), double.enqueue(n=4)]
jobs += td.enqueue_many([add.request(a=n, b=n) for n in range(20)])
assert asyncio.run(add.aenqueue(a=1, b=1)).id
assert td.tick().completed == 23
assert [td.result(job.id) for job in jobs[:2]] == [3, 8]
assert pathlib.Path("jobs.db-checkpoint").exists()
assert pathlib.Path("jobs.db-wal").stat().st_size < 100_000_000

td.pause(type="add", reason="a test")
waiting = add.enqueue(a=1, b=1)
assert td.why(waiting.id).reasons[0].code == "paused"
td.resume(type="add")

async def embedded():
    async with td.worker(health="127.0.0.1:0") as worker:
        await worker.drained()
        return await td.aresult(waiting.id)
assert asyncio.run(embedded()) == 2

from treadle.testing import drain, temporary
with temporary(td):
    job = add.enqueue(a=5, b=5)
    assert drain(td).completed == 1
    assert td.result(job.id) == 10
td.close()
print("all is well")
"""

ON_POSTGRES = """
import asyncio, sys
from treadle import Treadle

td = Treadle(sys.argv[1])

@td.job
def add(a: int, b: int) -> int:
    return a + b

job = add.enqueue(a=1, b=2)
assert td.tick().completed == 1
assert td.result(job.id) == 3

async def embedded():
    async with td.worker():
        job = await add.aenqueue(a=5, b=5)
        return await td.aresult(job.id)
assert asyncio.run(embedded()) == 10

watch = td.store.watch()
add.enqueue(a=1, b=1)
assert watch.wait(60)
watch.close()
while watch.wait(60):
    pass
td.close()
print("all is well")
"""

IMPORTS = """
import importlib, pkgutil, sys
import treadle
for module in pkgutil.walk_packages(treadle.__path__, "treadle."):
    if module.name != "treadle.__main__" and not module.name.startswith("treadle.contrib"):
        importlib.import_module(module.name)
print("all is well")
"""

COMMANDS = """
from click.testing import CliRunner
from treadle.cli import cli

def treadle(words, code=0):
    ran = CliRunner().invoke(cli, words.split(), prog_name="treadle", catch_exceptions=False)
    assert ran.exit_code == code, ran.output
    return ran.output

treadle("enqueue add a:=1 b:=2 --app app:td")
assert "ran 1 job: 1 completed" in treadle("tick app:td")
assert "add" in treadle("top --app app:td")
treadle("doctor --app app:td")
assert "enqueue" in treadle("bench --quick --only enqueue --n 100")
for command, says in (("worker app:td", "treadle tick app:td"), ("demo", "README.md")):
    refused = treadle(command, 2)
    assert f"treadle {command.split()[0]} runs on Linux and macOS, not on Windows" in refused
    assert says in refused
print("all is well")
"""


@pytest.fixture
def like_windows(tmp_path: Path):
    (tmp_path / "app.py").write_text(APP)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("TREADLE")}
        env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(ROOT)])
        command = [sys.executable, "-W", "error::ResourceWarning", str(ROOT / "tests/process/like_windows.py"), *words]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)

    return run


def test_every_module_can_be_imported(like_windows, tmp_path):
    (tmp_path / "imports.py").write_text(IMPORTS)
    ran = like_windows("imports.py")
    assert ran.stdout == "all is well\n", ran.stderr


def test_jobs_are_enqueued_ticked_and_tested(like_windows, tmp_path):
    (tmp_path / "use.py").write_text(USE)
    ran = like_windows("use.py")
    assert ran.stdout == "all is well\n", ran.stderr


def test_jobs_are_enqueued_ticked_and_noticed_on_postgresql(like_windows, tmp_path, postgres_url):
    (tmp_path / "use.py").write_text(ON_POSTGRES)
    ran = like_windows("use.py", postgres_url)
    assert ran.stdout == "all is well\n", ran.stderr


def test_commands_work_and_those_that_cannot_say_so(like_windows, tmp_path):
    (tmp_path / "commands.py").write_text(COMMANDS)
    ran = like_windows("commands.py")
    assert ran.stdout == "all is well\n", ran.stderr
