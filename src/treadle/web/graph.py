"""The lineage of a job as a drawing: layer by layer from left to right, each job a link.

Pure functions: a lineage in, SVG out. Colors are classes, as in charts.py.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import NamedTuple

from markupsafe import Markup, escape

from treadle.job import STATE_OF
from treadle.lineage import EdgeKind, Lineage, Node, layers, neighbors
from treadle.web.charts import element
from treadle.web.formatting import short

MOST = 60
"""Jobs that are drawn one by one. If there are more, those that come from the same and look the same are one box."""
WIDTH, HEIGHT, ACROSS, DOWN, EDGE = 200.0, 44.0, 56.0, 14.0, 10.0
"""The size of a box, the room between two layers and two boxes, and around the drawing."""
ROWS = 7
"""Short layers are in the middle of this many rows: more are not in view at once."""
LONGEST = 20
"""Characters of a name that fit."""
TONES = {"neutral": "none", "muted": "none", "accent": "ok"}
"""The classes of charts for the tones of states, where they differ."""


class Box(NamedTuple):
    """A job, or several that look the same."""

    job: Node
    """The first of them."""
    of: int = 1
    """How many they are."""

    @property
    def text(self) -> str:
        return f"{self.job.type} × {self.of:,}" if self.of > 1 else self.job.type  # noqa: RUF001


Pairs = dict[tuple[str, str], EdgeKind]
"""What leads to what, and how, by the ids of boxes."""
Link = Callable[[Box], str]


def draw(found: Lineage, link: Link) -> Markup:
    """The drawing. `link`: the address of the page behind a box."""
    boxes, pairs = _boxes(found)
    places = _places(boxes, pairs)
    width = max(x for x, _ in places.values()) + WIDTH + EDGE
    height = max(y for _, y in places.values()) + HEIGHT + EDGE
    parts = [_edge(places[source], places[target], kind) for (source, target), kind in pairs.items()]
    parts += [_box(box, *places[id], link(box), is_this=id == found.id) for id, box in boxes.items()]
    size: dict[str, str | float] = {"width": width, "height": height, "viewBox": f"0 0 {width:g} {height:g}"}
    name = "The jobs that it comes from, and that come from it"
    return element("svg", Markup(_ARROW + "".join(parts)), **size, role="group", aria_label=name)


def _boxes(found: Lineage) -> tuple[dict[str, Box], Pairs]:
    """What to draw: each job, or, if there are too many, each group of jobs of one type and state with the same
    sources. The job itself stays apart."""
    box_of: dict[str, str] = {}
    boxes: dict[str, Box] = {}
    by_look: dict[Hashable, str] = {}
    sources: dict[str, list[tuple[str, EdgeKind]]] = {node.id: [] for node in found.nodes}
    for edge in found.edges:
        sources[edge.target].append((edge.source, edge.kind))
    layer, apart = layers(found.targets), len(found.nodes) <= MOST
    for node in sorted(found.nodes, key=lambda node: (layer[node.id], node.id)):
        before = frozenset((box_of.get(source, source), kind) for source, kind in sources[node.id])
        look = node.id if apart or node.id == found.id else (node.type, node.state, before)
        id = box_of[node.id] = by_look.setdefault(look, node.id)
        boxes[id] = Box(boxes[id].job, boxes[id].of + 1) if id in boxes else Box(node)
    edges = sorted(found.edges, key=lambda edge: edge.kind)  # "origin" comes first, so that "parent" wins
    return boxes, {
        (box_of[edge.source], box_of[edge.target]): edge.kind for edge in edges if edge.source != edge.target
    }


def _places(boxes: Mapping[str, Box], pairs: Pairs) -> dict[str, tuple[float, float]]:
    """Where each box is. Those of a layer are in the order of what they come from."""
    layer = layers(neighbors(boxes, pairs))
    columns: list[list[str]] = [[] for _ in range(max(layer.values()) + 1)]
    for id in boxes:
        columns[layer[id]].append(id)
    sources: dict[str, list[str]] = {id: [] for id in boxes}
    for source, target in pairs:
        sources[target].append(source)
    tallest = min(ROWS, max(map(len, columns)))
    rows: dict[str, float] = {}
    for column in columns:
        before = {id: [rows[source] for source in sources[id] if source in rows] for id in column}
        column.sort(key=lambda id: (sum(before[id]) / len(before[id]) if before[id] else 0, boxes[id].job.type, id))
        first = max(0, tallest - len(column)) / 2
        rows.update({id: first + n for n, id in enumerate(column)})
    return {id: (EDGE + layer[id] * (WIDTH + ACROSS), EDGE + rows[id] * (HEIGHT + DOWN)) for id in boxes}


_ARROW = (
    '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path class="head" d="M0 0L8 4L0 8Z"></path></marker></defs>'
)


def _edge(source: tuple[float, float], target: tuple[float, float], kind: EdgeKind) -> str:
    (x1, y1), (x2, y2), bend = source, target, ACROSS / 2
    x1, y1, y2 = x1 + WIDTH, y1 + HEIGHT / 2, y2 + HEIGHT / 2
    d = f"M{x1:g} {y1:g}C{x1 + bend:g} {y1:g} {x2 - bend:g} {y2:g} {x2:g} {y2:g}"
    return f'<path class="edge {kind}" d="{d}" marker-end="url(#arrow)"></path>'


def _box(box: Box, x: float, y: float, link: str, *, is_this: bool) -> str:
    """As text, because there may be a thousand: what others named is escaped."""
    job, state = box.job, STATE_OF[box.job.state]
    one, anchor = box.of == 1, ' id="this-job"' if is_this else ""
    title = escape(f"{box.text}: {state.label}{f', {job.id}' if one else ''}")
    return (
        f'<a class="node"{anchor} href="{escape(link)}" transform="translate({x:g} {y:g})">'
        f'<title>{title}</title><rect class="box" width="{WIDTH:g}" height="{HEIGHT:g}" rx="6"></rect>'
        f'<rect class="c-{TONES.get(state.tone, state.tone)}" y="6" width="4" height="{HEIGHT - 12:g}" rx="2"></rect>'
        f'<text class="type" x="12" y="18">{escape(_clipped(box.text))}</text>'
        f'<text x="12" y="34">{state.label}{f" · {short(job.id)}" if one else ""}</text></a>'
    )


def _clipped(text: str) -> str:
    """The end stays: it may be a count."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 9]}…{text[-8:]}"
