"""Each example has a demo that ends by itself, runs in a copy of its folder, and has every test of the table."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import httpx2
import psutil
import pytest

from tests.eventually import eventually
from tests.examples.harness import ROOT

EXAMPLES = ROOT / "examples"
NAMES = sorted(main.parent.name for main in EXAMPLES.glob("*/__main__.py"))
ENDS = {
    "agent": ["6 of 6 calls ended as they should"],
    "call_pipeline": ["13 of 13 calls ended as they should", "harbour sees 7 calls", "hills sees 6 calls"],
    "org_jobs": ["66 of 66 jobs ended as they should"],
    "podcast_import": ["15 of 15 podcasts imported"],
    "video_subtitles": ["80 of 80 videos have their subtitle"],
    "weather_tiles": ["72 of 72 tiles"],
}
"""What each demo prints in the end."""
_SECTION = re.compile(r"^### \w+: `(test_\w+\.py|\w+/)`$", re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_the_demo_ends_by_itself_with_a_table_and_leaves_nothing_behind(name: str, tmp_path: Path) -> None:
    """It has killed a worker on the way, and lost nothing by it."""
    ran = subprocess.run(
        [sys.executable, "-m", f"examples.demos.{name}"],
        cwd=ROOT,
        env={**_without_url(), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "kill -9" in ran.stdout
    assert "│ " in ran.stdout
    assert [line for line in ENDS[name] if line not in ran.stdout] == []
    assert list(tmp_path.iterdir()) == []
    eventually(lambda: not [process for process in psutil.process_iter() if _is_of(process, tmp_path)])


def _is_of(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.environ().get("TMPDIR") == str(folder)
    except psutil.Error:
        return False


@pytest.mark.parametrize("name", ["agent", "call_pipeline", "weather_tiles"])
def test_a_copied_folder_runs(name: str, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / name, tmp_path / name)
    ran = subprocess.run(
        [sys.executable, "-m", name], cwd=tmp_path, env=_without_url(), capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    shown = {"agent": "c-2: refunded 12900, 9 steps", "call_pipeline": "c1: Call c1, 3 artifacts"}
    assert shown.get(name, "24 tiles in ") in ran.stdout


@pytest.mark.parametrize("name", ["org_jobs", "podcast_import", "video_subtitles"])
def test_a_copied_server_runs_and_prints_a_login_for_its_dashboard(name: str, tmp_path: Path, port: int) -> None:
    shutil.copytree(EXAMPLES / name, tmp_path / name)
    command, environment = [sys.executable, "-m", name], {**_without_url(), "PORT": str(port)}
    server = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        eventually(lambda: _answers(port))
        page = f"http://127.0.0.1:{port}/dashboard/"
        assert httpx2.get(page, timeout=30).status_code == 401
    finally:
        server.terminate()
        _, printed = server.communicate(timeout=60)
    assert len(re.findall(r"\?login=\S+", printed)) == 1


def _without_url() -> dict[str, str]:
    return {
        name: value for name, value in os.environ.items() if name not in ("TREADLE_URL", "DATABASE_URL", "PYTHONPATH")
    }


def _answers(port: int) -> bool:
    try:
        return httpx2.get(f"http://127.0.0.1:{port}/openapi.json", timeout=30).is_success
    except httpx2.TransportError:
        return False


def test_hello_runs_in_a_copy_of_its_file(tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "hello.py", tmp_path)
    for _ in range(2):  # the database of the first run is there in the second
        ran = subprocess.run([sys.executable, "hello.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.splitlines() == ["3 jobs completed", "hello, Ada", "hello, Grace", "hello, Katherine"]
    assert len((EXAMPLES / "hello.py").read_text("utf-8").splitlines()) <= 20


@pytest.mark.parametrize("name", NAMES)
def test_an_example_imports_nothing_of_its_neighbors(name: str) -> None:
    for path in (EXAMPLES / name).glob("*.py"):
        assert "examples" not in path.read_text("utf-8"), path


def test_an_unknown_name_is_answered_with_those_there_are() -> None:
    ran = subprocess.run([ROOT / "script" / "example", "nonsense"], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2
    assert "there is no example nonsense" in ran.stderr
    assert ran.stderr.split()[-len(NAMES) :] == NAMES


def test_every_requirement_has_its_test() -> None:
    """Each test in the table exists, each test of an example is in the table, and none is skipped."""
    _, *parts = _SECTION.split((EXAMPLES / "README.md").read_text("utf-8"))
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    assert len(sections) == len(NAMES)
    for file, text in sections.items():
        path = Path(__file__).parent / file
        code = "\n".join(part.read_text("utf-8") for part in ([path] if path.is_file() else path.glob("test_*.py")))
        promised = set(re.findall(r"`(test_\w+)`", text))
        there = set(re.findall(r"^def (test_\w+)", code, re.MULTILINE))
        assert promised == there, file
        assert not re.search(r"\b(skip|skipif|xfail)\b", code), file


@pytest.mark.parametrize("name", NAMES)
def test_every_example_has_a_page_of_its_own(name: str) -> None:
    page = (EXAMPLES / name / "README.md").read_text("utf-8")
    assert f"./script/example {name}" in page
    for named in re.findall(r"^\| `(\w+\.py)` \|", page, re.MULTILINE):
        assert (EXAMPLES / name / named).exists()
    for file, place in re.findall(r"`(\w+\.py): (\w+)`", page):
        code = (EXAMPLES / name / file).read_text("utf-8")
        there = re.search(rf"^ *(async )?(def|class) {place}\b|^{place} = ", code, re.MULTILINE)
        assert there, f"{file} has no {place}"
