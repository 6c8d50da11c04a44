"""The plan of a statement, and what it may cost."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import psycopg

from tests.conformance.postgres_plans.database import BATCH, BLOCKS, MOST, OURS

NAME = re.compile(r"(?<![:\w]):([a-z_][a-z_0-9]*)")


class Explain:
    """Runs a prepared statement and returns its plan. Its changes are rolled back after the test."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    def __call__(self, statement: str, parameters: dict[str, Any]) -> Plan:
        names = list(dict.fromkeys(NAME.findall(statement)))
        values = [parameters[name] for name in names]
        text = NAME.sub(lambda match: f"${names.index(match[1]) + 1}", statement)
        self.connection.execute("DEALLOCATE ALL")
        types = f" ({', '.join(map(type_of, values))})" if values else ""
        self.connection.execute(f"PREPARE p{types} AS {text}")
        cursor = psycopg.ClientCursor(self.connection)
        execute = f"EXECUTE p ({', '.join(['%s'] * len(names))})" if names else "EXECUTE p"
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {execute}", values)
        return Plan(cursor.fetchone()[0][0]["Plan"])


def type_of(value: Any) -> str:
    """The type that psycopg sends. The server infers the type of a text."""
    if isinstance(value, list):
        return f"{'text' if isinstance(value[0], str) else 'bigint'}[]"
    return "unknown" if isinstance(value, str) else "boolean" if isinstance(value, bool) else "bigint"


class Plan:
    """An executed plan, as nodes."""

    def __init__(self, top: dict[str, Any]) -> None:
        self.top = top
        self.nodes = list(self._below(top))

    def __repr__(self) -> str:
        """The plan as lines, for the message of a failed test."""
        lines = [f"{self.rows} rows, {self.sorted} sorted, {self.blocks} blocks"]
        for n in self.nodes:
            names = ("Node Type", "Relation Name", "Index Name", "Index Cond", "Filter", "Actual Loops", *WASTED)
            lines.append(" ".join([*(str(n[name]) for name in names if name in n), f"→ {n['Actual Rows']}"]))
        return "\n".join(lines)

    def _below(self, node: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield node
        for child in node.get("Plans", ()):
            yield from self._below(child)

    @property
    def scans(self) -> list[dict[str, Any]]:
        return [n for n in self.nodes if n.get("Relation Name") in OURS and n["Node Type"] != "ModifyTable"]

    @property
    def sequential(self) -> list[str]:
        """Tables that were read completely."""
        return [n["Relation Name"] for n in self.scans if n["Node Type"] == "Seq Scan" and n["Actual Loops"]]

    @property
    def rows(self) -> float:
        """Rows that were read from treadle's tables, including those that were filtered out."""
        return sum(_rows(n) for n in self.scans)

    @property
    def sorted(self) -> float:
        """The most rows that one step sorted."""
        return max((_rows(n["Plans"][0]) for n in self.nodes if n["Node Type"] in SORTS), default=0)

    def taken(self, table: str) -> float:
        """How many rows of a table were deleted."""
        return sum(
            n["Actual Rows"] for n in self.nodes if (n.get("Operation"), n.get("Relation Name")) == ("Delete", table)
        )

    @property
    def blocks(self) -> int:
        return self.top["Shared Hit Blocks"] + self.top["Shared Read Blocks"]


SORTS = ("Sort", "Incremental Sort")
WASTED = ("Rows Removed by Filter", "Rows Removed by Index Recheck", "Rows Removed by Join Filter")


def _rows(node: dict[str, Any]) -> float:
    return (node["Actual Rows"] + sum(node.get(name, 0) for name in WASTED)) * node["Actual Loops"]


def check(plan: Plan, most: int = MOST) -> None:
    assert [] == plan.sequential, plan
    assert plan.sorted <= BATCH, plan
    assert plan.rows <= most, plan
    assert plan.blocks <= BLOCKS * BATCH, plan
