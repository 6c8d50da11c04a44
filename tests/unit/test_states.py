"""One table of states: no other place lists them, and a row added to it appears everywhere."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from treadle.job import FINAL, STATE_NAMES, STATE_OF, STATES, WAITING, Status

SOURCE = Path(__file__).parents[2] / "src" / "treadle"
NAMES = {*STATE_NAMES, *(status.value for status in Status)}
MANY = 4
"""This many names of states in one literal or class are a list of states."""
ROW = '    State("frozen", Status.FROZEN, "Frozen", "calm", "◇"),\n'
LOOK = """
import json, sys
from click.testing import CliRunner
from starlette.testclient import TestClient
from treadle import Treadle
from treadle.cli import cli

td = Treadle("sqlite:///look.db")
td.enqueue("mail", {"to": "ann"})
client = TestClient(td.asgi(auth=lambda request: "manage"), base_url="http://127.0.0.1")
run = lambda *words: CliRunner().invoke(cli, [*words, "--db", "sqlite:///look.db"]).stdout
json.dump({
    "counts": list(td.counts_by_state()),
    "found": len(td.jobs("status:frozen")),
    "queues": run("queues", "ls"),
    "json": run("queues", "ls", "--json"),
    "stats": run("stats"),
    "top": run("top", "--json"),
    "metrics": client.get("/metrics").text,
    "openapi": client.get("/api/openapi.json").json()["components"]["schemas"]["LaneOut"],
    "overview": client.get("/").text,
    "workers": client.get("/workers").text,
    "jobs": client.get("/jobs").text,
    "help": client.get("/jobs?q=nonsense").text,
}, sys.stdout)
"""


def test_every_status_has_a_state_and_every_name_is_found() -> None:
    assert {state.status for state in STATES} == set(Status)
    assert WAITING == ("queued", "scheduled", "retrying")
    assert FINAL == (Status.COMPLETED, Status.FAILED, Status.CANCELLED)
    assert all(STATE_OF[state.name] is state for state in STATES)
    assert STATE_OF[Status.PENDING].name == "queued"


def spelled(node: ast.AST) -> set[str]:
    """The names of states in a literal, or among the fields of a class."""
    if isinstance(node, ast.ClassDef):
        return {n.target.id for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
    parts = [*node.keys, *node.values] if isinstance(node, ast.Dict) else getattr(node, "elts", [])
    return {part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)}


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_other_module_lists_the_states(path: Path) -> None:
    if path.name == "job.py" and path.parent == SOURCE:
        return
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ClassDef | ast.Tuple | ast.List | ast.Set | ast.Dict):
            found = spelled(node) & NAMES
            # `filter_sql` has the condition of each state, and the tiles have a note for each.
            allowed = path.name in ("filter_sql.py", "overview.py") and isinstance(node, ast.Dict)
            assert len(found) < MANY or allowed, f"{path}:{getattr(node, 'lineno', 0)}: derive it from job.STATES"


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.html")), ids=lambda path: path.name)
def test_no_template_lists_the_states(path: Path) -> None:
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        assert len(NAMES & set(re.findall(r"""["'>](\w+)["'<]""", line.lower()))) < MANY, f"{path}:{number}"


def test_a_row_added_to_the_table_appears_everywhere(tmp_path: Path) -> None:
    shutil.copytree(SOURCE, tmp_path / "treadle")
    table = tmp_path / "treadle" / "job.py"
    text = table.read_text("utf-8")
    text = text.replace('    PENDING = "pending"\n', '    PENDING = "pending"\n    FROZEN = "frozen"\n')
    table.write_text(text.replace('    State("processing"', ROW + '    State("processing"'), "utf-8")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", LOOK], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)

    assert "frozen" in seen["counts"]
    assert seen["found"] == 0
    assert json.loads(seen["json"])["items"][0]["frozen"] == 0
    assert json.loads(seen["top"])["queues"][0]["frozen"] == 0
    assert seen["openapi"]["properties"]["frozen"] == {"type": "integer"}
    assert 'status="frozen"} 0' in seen["metrics"]
    assert "FROZEN" in seen["queues"]
    assert "FROZEN" in seen["stats"]
    for page in ("overview", "workers", "jobs"):
        assert "Frozen" in seen[page], page
    assert "retrying, blocked, frozen, processing" in seen["help"]
