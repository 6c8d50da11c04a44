"""What surrounds the code: workflows, templates, hooks, the wheel and the source distribution."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))

if not WORKFLOWS:
    pytest.skip("a source distribution has no workflows", allow_module_level=True)


def test_the_matrix_has_every_supported_version() -> None:
    test = _read(".github/workflows/test.yml")["jobs"]["test"]
    assert test["strategy"]["matrix"] == {
        "python": ["3.11", "3.12", "3.13", "3.14"],
        "postgres": ["15", "16", "17", "18"],
    }
    assert test["env"] == {"TREADLE_TEST_POSTGRES_VERSION": "${{ matrix.postgres }}"}
    assert test["steps"][-1]["run"].endswith(" ./script/test")


def test_the_matrix_and_the_metadata_name_the_same_pythons() -> None:
    named = [found[1] for line in PROJECT["classifiers"] if (found := re.search(r"Python :: (3\.\d+)$", line))]
    assert named == _read(".github/workflows/test.yml")["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert PROJECT["requires-python"] == f">={named[0]}"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_has_only_the_rights_that_it_needs(path: Path) -> None:
    workflow = _read(path.relative_to(ROOT).as_posix())
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job.get("permissions", {}) in ({}, {"id-token": "write"})


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_an_issue_form_asks_for_all_that_a_report_needs(path: Path) -> None:
    form = _read(path.relative_to(ROOT).as_posix())
    assert form["name"]
    assert form["description"]
    ids = [field["id"] for field in form["body"] if field["type"] != "markdown"]
    assert len(ids) == len(set(ids)) > 2
    assert any(field.get("validations", {}).get("required") for field in form["body"])


def test_the_hooks_run_the_same_commands_as_the_checks() -> None:
    (repository,) = _read(".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    checks = (ROOT / "script" / "check").read_text("utf-8")
    for hook in repository["hooks"]:
        assert hook["language"] == "system"
        tool, command = re.match(r"\.venv/bin/(\w+)( \w+)?", hook["entry"]).groups(default="")  # type: ignore[union-attr]
        assert f"step {tool}{command}" in checks


def test_the_urls_are_those_of_one_repository() -> None:
    source = PROJECT["urls"]["Source"]
    assert set(PROJECT["urls"]) == {"Documentation", "Source", "Changelog", "Issues"}
    assert [url for url in PROJECT["urls"].values() if not url.startswith(source)] == []


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    return folder


def test_the_wheel_has_the_whole_package_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == {path.relative_to(ROOT / "src").as_posix() for path in _files_of(ROOT / "src" / "treadle")}
    assert {Path(name).suffix for name in names} >= {".py", ".typed", ".sql", ".html", ".css", ".js", ".svg"}


def test_the_source_distribution_has_tests_docs_and_examples(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for folder in ("src", "tests", "docs", "examples", "script"):
        wanted = {path.relative_to(ROOT).as_posix() for path in _files_of(ROOT / folder)}
        assert wanted - names == set()
    assert {"README.md", "LICENSE", "CHANGELOG.md", "UPGRADING.md", "pyproject.toml", "hatch_build.py"} <= names
    assert {name for name in names if name.startswith((".ci", ".github", ".venv"))} == set()


def test_the_description_on_the_package_index_has_no_relative_link(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    (metadata,) = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith("/METADATA")]
    description = Parser().parsestr(zipfile.ZipFile(wheel).read(metadata).decode()).get_payload()
    assert isinstance(description, str)
    links = re.findall(r'\]\(([^)\s]+)\)|src(?:set)?="([^"]+)"', description)
    assert [a or b for a, b in links if not (a or b).startswith(("https://", "#"))] == []
    assert "https://raw.githubusercontent.com/treadle-jobs/treadle/main/docs/pictures/overview-light.png" in description
    assert "](https://github.com/treadle-jobs/treadle/blob/main/docs/guide.md)" in description


def _read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text("utf-8"))


def _files_of(folder: Path) -> list[Path]:
    """The files of a folder, without caches and databases that a program has left."""
    left_out = ("__pycache__", ".hypothesis", ".pytest_cache")
    found = [path for path in folder.rglob("*") if path.is_file() and not set(left_out) & set(path.parts)]
    return [path for path in found if not re.search(r"\.db(-\w+)?$|\.pyc$|\.DS_Store$", path.name)]
