"""Publishes six forecast hours and builds their tiles in this process: python -m weather_tiles"""

from __future__ import annotations

from .grid import MODEL, publish
from .jobs import WEATHER, scan_source, td


def main() -> None:
    publish(WEATHER / "upstream", hours=6)
    scan_source.enqueue(model_id=MODEL)
    while td.tick(max_seconds=60).ran:  # each step enqueues the next
        pass
    print(f"{len(list((WEATHER / 'tiles').rglob('*.npz')))} tiles in {WEATHER / 'tiles'}")


if __name__ == "__main__":
    main()
