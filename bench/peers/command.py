"""The command: which figures, against whom, how often, and how the result is shown."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from bench.command import progress
from bench.peers import install, rounds
from bench.peers.catalog import ITSELF, PEERS
from bench.peers.figures import FIGURES, Figure
from bench.peers.measure import Lab, Sizes
from bench.peers.peer import Peer
from bench.peers.place import Places
from bench.peers.report import Result, markdown, merged

FULL = Sizes(drain=30_000, bulk=20_000, seconds=0.7, pickups=40, idle=6.0)
QUICK = Sizes(drain=1_000, bulk=1_000, seconds=0.2, pickups=5, idle=1.0)
REPETITIONS = 5


def _only(_: click.Context, __: click.Parameter, value: str | None) -> tuple[Sequence[Figure], Sequence[Peer]]:
    """Figures by a part of their names, and peers by their names. Where none is named, all are meant."""
    names = [name.strip().lower() for name in (value or "").split(",") if name.strip()]
    figures = [figure for figure in FIGURES if any(name in figure.key for name in names)]
    peers = [peer for peer in PEERS if peer.name.lower() in names]
    for name in names:
        if not any(name in figure.key for figure in figures) and name not in {peer.name.lower() for peer in peers}:
            known = (*(figure.key for figure in FIGURES), *(peer.name for peer in PEERS))
            raise click.BadParameter(f"{name!r} is neither a figure nor a queue. There are: {', '.join(known)}")
    return figures or FIGURES, peers or PEERS


@click.command()
@click.argument("results", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--only", metavar="NAMES", callback=_only, help="Some figures, by parts of their names, and some queues.")
@click.option("--repetitions", type=click.IntRange(1), help=f"Rounds of each figure. Default: {REPETITIONS}.")
@click.option("--n", type=click.IntRange(100), metavar="N", help=f"Jobs in a drain. Default: {FULL.drain}.")
@click.option("--jobs", type=click.IntRange(1), metavar="N", help="Jobs of a pickup, in all rounds together.")
@click.option("--quick", is_flag=True, help="Small sizes, each once: shows that it works, too small to judge.")
@click.option("--db", metavar="URL", help="A PostgreSQL server to make databases on. Default: one that is started.")
@click.option("--dir", "directory", type=click.Path(file_okay=False, exists=True, path_type=Path), default=Path())
@click.option("--json", "as_json", is_flag=True, help="Print JSON, to be shown or merged later.")
def peers(
    results: tuple[Path, ...],
    only: tuple[Sequence[Figure], Sequence[Peer]],
    repetitions: int | None,
    n: int | None,
    jobs: int | None,
    quick: bool,
    db: str | None,
    directory: Path,
    as_json: bool,
) -> None:
    """Measure treadle beside other queues, the same work in turns, and print a table in Markdown.

    With RESULTS, files that --json has written, nothing is measured: they are merged and shown. So a long run
    can be made in parts. A full run takes about a quarter of an hour.
    """
    if results:
        result = merged([msgspec.json.decode(path.read_bytes(), type=Result) for path in results])
    else:
        times = repetitions or (1 if quick else REPETITIONS)
        sizes = QUICK if quick else FULL
        sizes = msgspec.structs.replace(
            sizes, drain=n or sizes.drain, pickups=-(-jobs // times) if jobs else sizes.pickups
        )
        result = _measure(*only, sizes, times, directory.absolute(), db)
    click.echo(msgspec.json.format(msgspec.json.encode(result), indent=1).decode() if as_json else markdown(result))


def _measure(
    figures: Sequence[Figure], peers: Sequence[Peer], sizes: Sizes, times: int, directory: Path, db: str | None
) -> Result:
    began = time.monotonic()
    named = {name for figure in figures for name in figure.peers}
    wanted = [peer for peer in peers if peer.name in named]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing is left behind
    with progress() as say, Places(directory, db) as places:
        problems = install.install(wanted, say)
        lab = Lab(places, sizes, {}, problems, say)
        result = Result.begin(sizes)
        for figure in figures:
            compared = [peer for peer in wanted if peer.name in figure.peers and peer.name not in problems]
            if compared:
                result.rounds.extend(rounds.measure(lab, figure, [ITSELF, *compared], times))
        result.about.update(lab.about)
        result.problems.update(problems)
        result.servers.update(places.versions())
    return msgspec.structs.replace(result, seconds=time.monotonic() - began)
