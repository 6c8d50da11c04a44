"""RSS: what a stranger's file says of a podcast. It is read with limits, as strangers can write anything."""

from __future__ import annotations

from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from xml.etree import ElementTree

MAX_BYTES = 5_000_000
MAX_EPISODES = 5_000
MAX_DEPTH = 20


class BadFeed(Exception):
    """It will not get better by being read again."""


@dataclass(frozen=True)
class Episode:
    guid: str
    title: str
    audio: str
    published: str
    """ISO 8601; '' if the feed does not say, or says nonsense."""


@dataclass(frozen=True)
class Feed:
    title: str
    episodes: tuple[Episode, ...]


class Limited(ElementTree.TreeBuilder):
    """Refuses what an RSS file does not need and an attacker does: entities (they need a DOCTYPE), and depth."""

    depth = 0

    def doctype(self, name: str, public: str | None, system: str | None) -> None:
        raise BadFeed("it has a DOCTYPE, and a feed needs none")

    def start(self, tag: str, attributes: dict[str, str]) -> ElementTree.Element:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise BadFeed(f"it is nested deeper than {MAX_DEPTH}")
        return super().start(tag, attributes)

    def end(self, tag: str) -> ElementTree.Element:
        self.depth -= 1
        return super().end(tag)


def read_feed(path: Path) -> Feed:
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise BadFeed(f"it is longer than {MAX_BYTES:,} bytes")
    try:
        root = ElementTree.fromstring(data, ElementTree.XMLParser(target=Limited()))
    except ElementTree.ParseError as error:
        raise BadFeed(f"it is no XML: {error}") from error
    channel = root.find("channel")
    if root.tag != "rss" or channel is None:
        raise BadFeed(f"it is no RSS: <{root.tag}>")
    episodes = tuple(_episode(item) for item in channel.iterfind("item"))
    if len(episodes) > MAX_EPISODES:
        raise BadFeed(f"it has {len(episodes):,} episodes; we take {MAX_EPISODES:,}")
    return Feed(channel.findtext("title", "").strip(), episodes)


def _episode(item: ElementTree.Element) -> Episode:
    enclosure = item.find("enclosure")
    audio = "" if enclosure is None else enclosure.get("url", "")
    guid = item.findtext("guid", "").strip() or audio
    if not guid:
        raise BadFeed("an episode has neither a guid nor a file")
    return Episode(guid, item.findtext("title", "").strip(), audio, _iso(item.findtext("pubDate", "")))


def _iso(date: str) -> str:
    try:
        return parsedate_to_datetime(date.strip()).isoformat()
    except ValueError:
        return ""
