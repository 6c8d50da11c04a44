"""Answers three calls in this process, and approves a refund: python -m agent"""

from __future__ import annotations

import os
import threading
import time
from http.server import ThreadingHTTPServer

from . import model, service

CALLS = {
    "c-1": "My kettle, order o-1, is broken. I want my money back.",
    "c-2": "My bed, order o-2, came without legs. I want my money back.",
    "c-3": "When does order o-3 arrive?",
}


def main() -> None:
    os.environ.setdefault("BACKOFF_SECONDS", "0.2")
    from .jobs import answer_call, td  # they read the environment

    server = ThreadingHTTPServer(("127.0.0.1", 0), service.Service)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    model.SERVICE = f"http://127.0.0.1:{server.server_port}"
    for call, said in CALLS.items():
        answer_call.using(tenant="acme", subject=call).enqueue(said=said)
    while td.jobs(status="pending") or td.tick().ran:
        time.sleep(0.05)
        td.tick()
    for job in td.jobs(status="blocked"):
        [wait] = [wait for wait in td.waits(job.id) if not wait.met]
        print(f"{job.subject}: waits for {wait.what}")
        td.signal(wait.what, True, tenant=job.tenant, by="ann")
    while td.tick().ran:
        pass
    for job in reversed(td.jobs(type="answer_call").jobs):
        print(f"{job.subject}: {job.result}, {len(td.steps(job.id))} steps")
    print(f"{service.journal.asked.total()} requests, {service.journal.refused.total()} of them refused")


if __name__ == "__main__":
    main()
