"""Uploads three calls and runs their stages in this process: python -m call_pipeline"""

from __future__ import annotations

import threading
import time
from http.server import ThreadingHTTPServer

from . import jobs, service, speech
from .calls import calls_of, upload
from .database import URL, td
from .sound import record
from .tables import make_tables

CALLS = {"c1": ["hello", "price", "thanks"], "c2": ["problem", "refund"], "c3": ["great", "contract", "goodbye"]}


def main() -> None:
    make_tables(URL)
    server = ThreadingHTTPServer(("127.0.0.1", 0), service.Speech)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    speech.SERVICE = f"http://127.0.0.1:{server.server_port}"
    service.SECONDS, jobs.POLL_SECONDS = 1.0, 0.5
    for call, words in CALLS.items():
        upload("acme", call, f"Call {call}", record(words))
    while td.tick().next_due_at:  # a poll that snoozes is due again later
        time.sleep(0.1)
    for id, title, artifacts in calls_of("acme"):
        print(f"{id}: {title}, {artifacts} artifacts, {td.jobs(type='analyze', subject=id)[0].result}")


if __name__ == "__main__":
    main()
