"""`treadle jobs tree`: the jobs that a job comes from, and that come from it."""

from __future__ import annotations

from collections.abc import Iterator

import click
from rich.text import Text
from rich.tree import Tree

from treadle.cli import completion
from treadle.cli.app_loader import database
from treadle.cli.base import Shared, command
from treadle.cli.output import WIDEST, clean, style
from treadle.job import STATE_OF
from treadle.lineage import MOST_RELATED, EdgeKind, Lineage, Node

HELP = """Show the jobs that a job comes from, and that come from it.

A job is below the job whose handler started it, and below its parents, which it waits for. If it is below several, it
is written once; the other places refer to it."""
ARROWS: dict[EdgeKind, str] = {"parent": "-->", "origin": "-.->"}
HOW: dict[EdgeKind | None, str] = {"parent": "  waits for it", "origin": "  started by it", None: ""}


@command("tree", help=HELP)
@click.argument("id", shell_complete=completion.ids)
@click.option("--mermaid", is_flag=True, help="Print a flowchart in Mermaid's language.")
@click.option("--most", type=click.IntRange(1, 100_000), default=MOST_RELATED, show_default=True, help="Jobs to show.")
def tree(shared: Shared, id: str, mermaid: bool, most: int) -> None:
    app = database(shared)
    found = app.lineage(completion.find_id(app, id), most)
    if shared.printed_json(found):
        return
    if mermaid:
        click.echo("\n".join(flowchart(found)))
    else:
        for root in trees(found):
            shared.print_wide(root, WIDEST)
    if found.cut:
        shared.note((f"there are more: these are the nearest {len(found.nodes):,} jobs; --most shows more", "dim"))


def trees(found: Lineage) -> Iterator[Tree]:
    """A tree for each job that comes from no other."""
    nodes, below = {node.id: node for node in found.nodes}, found.targets
    edges = sorted(found.edges, key=lambda edge: edge.kind)  # "origin" comes first, so that "parent" wins
    how: dict[tuple[str, str], EdgeKind] = {(edge.source, edge.target): edge.kind for edge in edges}
    beneath = {target for targets in below.values() for target in targets}
    drawn: set[str] = set()
    for root in sorted(nodes.keys() - beneath) or [found.id]:
        top = Tree(_label(nodes[root], found.id, None), guide_style="dim")
        waiting = [(root, top)]
        drawn.add(root)
        for id, branch in waiting:  # it grows
            for target in below[id]:
                label = _label(nodes[target], found.id, how[id, target])
                if target in drawn:
                    branch.add(Text.assemble(("↑ ", "dim"), label))
                else:
                    drawn.add(target)
                    waiting.append((target, branch.add(label)))
        yield top


def _label(node: Node, this: str, how: EdgeKind | None) -> Text:
    state = STATE_OF[node.state]
    color, name = style(state.name), (clean(node.type), "bold" if node.id == this else "")
    return Text.assemble((f"{state.mark} ", color), name, f"  {node.id}  ", (state.name, color), (HOW[how], "dim"))


def flowchart(found: Lineage) -> Iterator[str]:
    """Parents lead to their children by a line, handlers to what they started by dots."""
    yield "flowchart LR"
    names = {node.id: f"n{n}" for n, node in enumerate(found.nodes)}
    for node in found.nodes:
        text = clean(node.type).replace("#", "#35;").replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")
        yield f'    {names[node.id]}["{text}<br/>{node.id}<br/>{node.state}"]'
    for edge in found.edges:
        yield f"    {names[edge.source]} {ARROWS[edge.kind]} {names[edge.target]}"
    yield f"    style {names[found.id]} stroke-width:3px"
