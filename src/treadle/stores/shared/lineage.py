"""The jobs that a job comes from, and that come from it."""

from __future__ import annotations

from treadle import clock
from treadle.codec import as_json
from treadle.ids import is_id
from treadle.lineage import Edge, EdgeKind, Lineage, Node
from treadle.stores.shared.filter_sql import STATE
from treadle.stores.transaction import Transaction

EDGES_PER_NODE = 10
"""Two thousand jobs can have a million edges."""


def lineage(tx: Transaction, id: str, most: int, tenant: str | None = None) -> Lineage | None:
    """Walks breadth first, in both directions. With `tenant`, only over jobs of that tenant."""
    if not is_id(id):
        return None
    rows = tx.execute(tx.sql.WALK_LINEAGE, {"id": id, "limit": most + 1, "tenant": tenant}).fetchall()
    found = [row[0] for row in rows[:most]]
    ids = {"ids": as_json(found)}
    nodes = {row[0]: _node(row) for row in tx.execute(tx.sql.LINEAGE_NODES.format(state=STATE), {**ids, "now": tx.now})}
    if id not in nodes or tenant not in (None, nodes[id].tenant):
        return None
    edges: list[tuple[str, str, EdgeKind]] = []
    if len(nodes) > 1:
        edges = tx.execute(tx.sql.LINEAGE_EDGES, {**ids, "limit": EDGES_PER_NODE * most + 1}).fetchall()
    cut = len(rows) > most or len(edges) > EDGES_PER_NODE * most
    shown = [Edge(*edge) for edge in sorted(edges) if edge[0] in nodes and edge[1] in nodes]
    return Lineage(id=id, nodes=[nodes[id] for id in found if id in nodes], edges=shown, cut=cut)


def _node(row: tuple[str, ...]) -> Node:
    *texts, created_at = row
    names = ("id", "type", "queue", "tenant", "subject", "state")
    return Node(**dict(zip(names, texts, strict=True)), created_at=clock.moment(int(created_at)))
