"""Builds the long description for PyPI: README.md with absolute links, because PyPI cannot resolve relative ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s]+)")
PICTURE = re.compile(r'(?<=src=")(?!\w+:)([^"]+)|(?<=srcset=")(?!\w+:)([^"]+)')


def absolute(readme: str, source: str) -> str:
    """Point links at the pages of the repository, and pictures at their files."""
    files = source.replace("://github.com/", "://raw.githubusercontent.com/")
    readme = PICTURE.sub(lambda found: f"{files}/main/{found[0]}", readme)
    return LINK.sub(lambda found: f"{source}/blob/main/{found[0]}", readme)


class AbsoluteLinks(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        readme = Path(self.root, "README.md").read_text("utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(readme, metadata["urls"]["Source"])}
