"""The direction of dependencies, and things that only certain modules may do."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "treadle"
LONGEST = 400
"""Lines. A longer file has two topics. Files of SQL statements are lists, and may be longer."""

PURE = {
    "backoff",
    "batch",
    "clock",
    "codec",
    "declarations",
    "dedupe",
    "error_text",
    "errors",
    "ids",
    "job",
    "limits",
    "outcome",
    "views",
    "redact",
    "json_types",
    "lineage",
    "logs",
    "log_lines",
    "settings",
    "signature",
    "api_tokens",
    "units",
    "filters",
    "version",
    "diagnosis",
    "pauses",
    "problems",
    "program",
    "prometheus",
    "reasons",
    "schedule",
    "schedule_diagnosis",
    "steps",
    "waits",
    "wait_diagnosis",
}
"""No I/O, no store, no worker: data and decisions."""
MIDDLE = {
    "backfill",
    "batches",
    "bulk",
    "completion",
    "context",
    "pausing",
    "management",
    "middleware",
    "function",
    "group_commit",
    "lease",
    "line_buffer",
    "limit_changes",
    "producer",
    "registry",
    "hooks",
    "log_records",
    "results",
    "run_steps",
    "schedules",
    "signals",
}
"""The parts of an app. They know only the contract of a store, and the user's own connections."""
TOP = {"cli", "web", "testing", "contrib", "__main__"}
"""They may import everything; no other layer imports them."""
_TO_OTHER_TOPS = {
    ("__main__", "cli"),
    ("cli.dashboard", "web"),
    ("cli.bullmq", "contrib"),
    ("contrib.django.views", "web"),
    ("contrib.django.management.commands.treadle", "cli"),
}

FILES = sorted(SOURCE.rglob("*.py"))


def name_of(path: Path) -> str:
    """`worker.runner` for `src/treadle/worker/runner.py`; the package itself is ``."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


def imports(path: Path, *, for_types_too: bool) -> set[str]:
    """The modules of treadle that a file imports, with or without those that only a type checker sees."""
    hidden: set[ast.AST] = set()
    if not for_types_too:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
                hidden.update(ast.walk(node))
    found: set[str] = set()
    for node in ast.walk(tree(path)):
        if node in hidden:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                module = f"{node.module}.{alias.name}"
                found.add(module if is_module(module) else node.module)
    return {name.removeprefix("treadle").lstrip(".") for name in found if name.split(".")[0] == "treadle"}


def is_module(name: str) -> bool:
    path = SOURCE.joinpath(*name.split(".")[1:])
    return path.with_suffix(".py").exists() or path.is_dir()


def layer(name: str) -> str:
    return name.split(".")[0]


def may_import(importer: str, imported: str) -> bool:
    """Dependencies point one way: cli, web, testing, contrib → app → worker → stores → pure."""
    below = layer(imported)
    match layer(importer):
        case own if own in PURE:
            return below in PURE
        case own if own in MIDDLE:
            return below in PURE | MIDDLE or imported in ("stores.base", "stores.rows", "stores.user_connections")
        case "stores":
            return below in PURE | {"stores"}
        case "worker":
            return below in PURE | MIDDLE | {"stores", "worker"}
        case "app" | "":  # the package itself only gathers the public names
            return below not in TOP or (importer, imported) == ("app", "web")  # td.asgi(), when it is called
        case own if own in TOP:
            return below not in TOP - {own} or (importer, below) in _TO_OTHER_TOPS
    return False


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_dependencies_point_one_way(path: Path) -> None:
    wrong = [found for found in imports(path, for_types_too=False) if not may_import(name_of(path), found)]
    assert not wrong, f"{name_of(path)} must not import {', '.join(sorted(wrong))}"


def test_stores_do_not_import_apps_workers_or_handlers_even_for_types() -> None:
    for path in FILES:
        if layer(name_of(path)) == "stores":
            assert {layer(found) for found in imports(path, for_types_too=True)} <= PURE | {"stores"}, path


def test_databases_do_not_import_verbs_nor_verbs_a_database() -> None:
    """Only `store.py` joins the two, at the top of each database."""
    for path in FILES:
        package, _, module = name_of(path).removeprefix("stores.").partition(".")
        found = {name.split(".")[1] for name in imports(path, for_types_too=True) if name.startswith("stores.")}
        if package == "shared":
            assert not found & DATABASES, path
        elif package in DATABASES and module != "store":
            assert "shared" not in found, path


DATABASES = {"sqlite", "postgres", "libsql"}


def test_the_runner_never_sees_the_database() -> None:
    found = imports(SOURCE / "worker" / "runner.py", for_types_too=True)
    assert not [name for name in found if layer(name) in ("stores", "app")]


def test_pure_modules_do_no_io() -> None:
    doors = {"sqlite3", "socket", "asyncio", "subprocess", "threading", "multiprocessing", "pathlib"}
    allowed = {"ids": {"threading"}, "json_types": {"pathlib", "threading"}}  # a lock, for rising ids
    for path in FILES:
        if name_of(path) in PURE:
            used = {alias.name for n in ast.walk(tree(path)) if isinstance(n, ast.Import) for alias in n.names}
            used |= {n.module or "" for n in ast.walk(tree(path)) if isinstance(n, ast.ImportFrom)}
            assert not used & doors - allowed.get(name_of(path), set()), path


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            function = node.func
            name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
            yield name, node


def test_nothing_is_unpickled_or_evaluated() -> None:
    """JSON only."""
    for path in FILES:
        text = path.read_text("utf-8")
        assert not re.search(r"\b(pickle|marshal|shelve|cloudpickle|dill)\b", text), path
        evaluated = [name for name, node in calls(path) if name in ("eval", "exec") and isinstance(node.func, ast.Name)]
        assert [] == evaluated, path


def test_modules_are_imported_by_name_only_where_the_user_gives_the_name() -> None:
    """Never by a name from the database. `treadle worker app:td` gives a name, and a child gets that of its worker."""
    for path in FILES:
        if any(name in ("import_module", "__import__", "load_source") for name, _ in calls(path)):
            assert name_of(path) == "worker.child_main" or layer(name_of(path)) == "cli", path


SQL = re.compile(
    r"\b(SELECT\s.*\sFROM|INSERT\s+INTO|UPDATE\s+\w+\s+SET|DELETE\s+FROM|CREATE\s+(TABLE|INDEX|VIEW))\b", re.S
)
OWN_SQL = {
    "stores.statements": "that is what it is for",
    "stores.sqlite.sql": "that is what it is for",
    "stores.sqlite.insert_claim_settle_sql": "that is what it is for",
    "stores.postgres.sql": "that is what it is for",
    "stores.postgres.at_once_sql": "that is what it is for",
    "stores.postgres.insert_claim_settle_sql": "that is what it is for",
    "stores.postgres.diagnostics": "asks the server about itself, not about jobs",
    "stores.postgres.schema": "empties the tables of a database for tests",
    "stores.postgres.roles": "gives rights, to roles and on tables whose names cannot be bound, and acts for a tenant",
    "stores.shared.search": "a list is filtered by what was asked for; values are bound",
    "stores.shared.filter_sql": "the conditions of a filter; values are bound",
    "stores.copying": "copies the rows of all tables, whose names and columns are its data; values are bound",
    "stores.sqlite.schema": "asks for the schema of a database that may not have our tables",
}
BUILT_SQL = {"stores.shared.search", "stores.shared.filter_sql", "stores.copying"}
"""These modules may put more than constants into a statement."""


def strings(path: Path) -> Iterator[ast.Constant | ast.JoinedStr]:
    """All strings except docstrings; an f-string counts as one."""
    inside: set[ast.AST] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Expr):
            inside.add(node.value)
        if isinstance(node, ast.JoinedStr):
            inside.update(node.values)
    for node in ast.walk(tree(path)):
        if node not in inside and (
            isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
        ):
            yield node


def text_of(node: ast.Constant | ast.JoinedStr) -> str:
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts)


def among(path: Path, allowed: set[str]) -> bool:
    return any(name_of(path) == name or name_of(path).startswith(f"{name}.") for name in allowed)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_sql_is_only_in_the_files_of_statements(path: Path) -> None:
    for node in strings(path):
        if SQL.search(text_of(node)):
            assert among(path, set(OWN_SQL)), f"{path}:{node.lineno}: SQL belongs in statements/ or sql.py"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_sql_is_built_from_constants_only(path: Path) -> None:
    if among(path, BUILT_SQL):
        return
    for node in strings(path):
        if isinstance(node, ast.JoinedStr) and SQL.search(text_of(node)):
            filled = [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
            assert all(isinstance(v, ast.Name) and v.id.isupper() for v in filled), f"{path}:{node.lineno}"


def statements(store: str) -> list[str]:
    """The names of a store's statements, in the order of the files. Those of the verbs are in a class."""
    folder = SOURCE / "stores" / store
    files = [folder / "insert_claim_settle_sql.py", folder / "sql.py"]
    if store == "statements":
        files = sorted(folder.glob("*.py"))
    nodes = [node for path in files for node in tree(path).body]
    body = [n for node in nodes for n in (node.body if isinstance(node, ast.ClassDef) else [node])]
    targets = [n.targets[0] if isinstance(n, ast.Assign) else n.target for n in body if isinstance(n, Assigned)]
    return [target.id for target in targets if isinstance(target, ast.Name) and not target.id.startswith("_")]


Assigned = ast.Assign | ast.AnnAssign


def test_statements_that_two_databases_share_are_in_the_same_order() -> None:
    """So you can read the two files side by side."""
    ours, theirs = statements("sqlite"), statements("postgres")
    shared = [name for name in ours if name in theirs]

    assert len(shared) > 30
    assert [name for name in theirs if name in ours] == shared


def test_a_statement_is_either_shared_or_a_databases_own() -> None:
    listed = statements("statements")
    shared = set(listed)

    assert len(listed) == len(shared) > 50
    assert not shared & {*statements("sqlite"), *statements("postgres")}


def test_every_database_has_the_statements_that_the_shared_code_uses() -> None:
    used = {
        node.attr
        for path in (SOURCE / "stores" / "shared").glob("*.py")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute) and node.attr.isupper()
        if getattr(node.value, "attr", "") == "sql"
    }

    assert len(used) > 70
    for store in ("sqlite", "postgres"):
        assert used <= {*statements("statements"), *statements(store)}, store


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_no_file_is_too_long(path: Path) -> None:
    if path.name == "sql.py":  # a list of statements is one topic, whatever its length
        return
    lines = len(path.read_text("utf-8").splitlines())
    assert lines <= LONGEST, f"{path.relative_to(SOURCE)} has {lines} lines: split it by topic"


def test_every_module_says_what_it_is_for() -> None:
    for path in FILES:
        if path.read_text("utf-8").strip() and path.stem != "__main__":
            assert ast.get_docstring(tree(path)), f"{path} has no docstring"
