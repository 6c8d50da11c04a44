"""Reads RSS files. They come from strangers, so every dimension has a limit."""

from __future__ import annotations

from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from xml.etree import ElementTree

MAX_BYTES = 5_000_000
MAX_EPISODES = 5_000
MAX_DEPTH = 20


class BadFeed(Exception):
    """The file is wrong. Reading it again does not help."""


@dataclass(frozen=True)
class Episode:
    guid: str
    title: str
    audio: str
    published: str
    """ISO 8601; '' if the feed has no valid date."""


@dataclass(frozen=True)
class Feed:
    title: str
    episodes: tuple[Episode, ...]


class Limited(ElementTree.TreeBuilder):
    """Refuses what only an attacker needs: entities (they need a DOCTYPE) and deep nesting."""

    depth = 0

    def doctype(self, name: str, public: str | None, system: str | None) -> None:
        raise BadFeed("the file has a DOCTYPE, which a feed does not need")

    def start(self, tag: str, attributes: dict[str, str]) -> ElementTree.Element:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise BadFeed(f"the file is nested deeper than {MAX_DEPTH} levels")
        return super().start(tag, attributes)

    def end(self, tag: str) -> ElementTree.Element:
        self.depth -= 1
        return super().end(tag)


def read_feed(path: Path) -> Feed:
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise BadFeed(f"the file is longer than {MAX_BYTES:,} bytes")
    try:
        root = ElementTree.fromstring(data, ElementTree.XMLParser(target=Limited()))
    except ElementTree.ParseError as error:
        raise BadFeed(f"the file is not XML: {error}") from error
    channel = root.find("channel")
    if root.tag != "rss" or channel is None:
        raise BadFeed(f"the file is not RSS: <{root.tag}>")
    episodes = tuple(_episode(item) for item in channel.iterfind("item"))
    if len(episodes) > MAX_EPISODES:
        raise BadFeed(f"the feed has {len(episodes):,} episodes; the limit is {MAX_EPISODES:,}")
    return Feed(channel.findtext("title", "").strip(), episodes)


def _episode(item: ElementTree.Element) -> Episode:
    enclosure = item.find("enclosure")
    audio = "" if enclosure is None else enclosure.get("url", "")
    guid = item.findtext("guid", "").strip() or audio
    if not guid:
        raise BadFeed("an episode has neither a guid nor an audio file")
    return Episode(guid, item.findtext("title", "").strip(), audio, _iso(item.findtext("pubDate", "")))


def _iso(date: str) -> str:
    try:
        return parsedate_to_datetime(date.strip()).isoformat()
    except ValueError:
        return ""
