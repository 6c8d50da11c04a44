"""The demo: an agent answers six calls. Its worker is killed in the middle, and people decide about three refunds."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from urllib.request import urlopen

from examples.demos.screen import Screen, all_ended, free_port
from treadle import Job, Treadle

CALLS = {
    "o-1": ("broken. I want my money back", "refunded 1999"),
    "o-2": ("too small. I want my money back", "refunded 12900"),
    "o-3": ("late. I want my money back", "refunded 4500"),
    "o-4": ("not to my taste. I want my money back", "handed over"),
    "o-5": ("scratched. I want my money back", "handed over"),
    "o-6": ("not here yet", "answered"),
}
"""What each caller says of an order, and how the call should end. Over 5,000 cents, a person has to approve."""


def main() -> None:
    with Screen("agent") as screen:
        port, url = free_port(), f"sqlite:///{screen.folder}/jobs.db"
        os.environ |= {"TREADLE_URL": url, "SERVICE_URL": f"http://127.0.0.1:{port}", "MODEL_SECONDS": "0.1"}
        os.environ |= {"APPROVAL_SECONDS": "6", "BACKOFF_SECONDS": "0.2"}
        service = screen.start("examples.agent.service", str(port))
        screen.until(lambda: answers(port), service)
        td = Treadle(url)
        for order, (fault, _) in CALLS.items():
            td.enqueue("answer_call", {"said": f"Order {order} is {fault}."}, tenant="acme", subject=f"call-{order}")
        screen.say("•", f"{len(CALLS)} calls stored in {url}")
        worker = screen.start("treadle", "worker", "examples.agent.jobs:td")
        screen.watch(td, lambda counts: stored(td) > 12, worker)
        held = kill_the_worker(screen, td)
        screen.watch(td, lambda counts: counts["blocked"] == 3 and all_ended(counts - Counter(blocked=3)), worker)
        decide(screen, td)
        screen.watch(td, all_ended, worker)
        right, again = show_what_happened(screen, td), repeated(port)
        screen.say("•", f"{again} requests made again: the worker had died before it stored their answers")
        good = right == len(CALLS) and again <= held
        screen.say("✓" if good else "✗", f"{right} of {len(CALLS)} calls ended as they should")
        screen.stay(f".venv/bin/treadle dashboard --db {url}")
        td.close()
    if not good:
        raise SystemExit(1)


def stored(td: Treadle) -> int:
    return sum(len(td.steps(job.id)) for job in calls(td))


def calls(td: Treadle) -> list[Job]:
    return td.jobs(type="answer_call").jobs[::-1]


def kill_the_worker(screen: Screen, td: Treadle) -> int:
    """Its supervisor starts another. Return how many jobs it ran."""
    pid = td.workers()[0].host["pid"]
    os.kill(pid, signal.SIGSTOP)
    held, steps = len(td.jobs(status="processing")), stored(td)
    os.kill(pid, signal.SIGKILL)
    screen.say("✗", f"kill -9 the worker: it dies while it runs {held} jobs; {steps} steps are stored", "red")
    return held


def decide(screen: Screen, td: Treadle) -> None:
    """Two people decide, and nobody does about the third refund."""
    screen.say("•", f"{len(td.jobs(status='blocked'))} calls wait for a person, and hold no worker")
    for order, value, by in (("o-2", True, "ann"), ("o-4", False, "bob")):
        td.signal(f"approve:call-{order}", value, tenant="acme", by=by)
        screen.say("•", f"td.signal('approve:call-{order}', {value}, tenant='acme', by='{by}')")


def show_what_happened(screen: Screen, td: Treadle) -> int:
    rows = []
    for job in calls(td):
        sent = td.get_signal(f"approve:{job.subject}", tenant="acme")
        decision = "" if sent is None else f"{'yes' if sent.value else 'no'}, by {sent.by}"
        rows.append((job.subject, job.status, job.result, len(td.steps(job.id)), len(td.attempts(job.id)), decision))
    screen.table("What happened", ("call", "status", "result", "steps", "failed runs", "approved"), rows)
    return sum(job.result == result for job, (_, result) in zip(calls(td), CALLS.values(), strict=True))


def repeated(port: int) -> int:
    """How many requests the service answered that it had answered before."""
    with urlopen(f"http://127.0.0.1:{port}/journal", timeout=10) as answer:
        journal = json.load(answer)
    return sum(count - 1 - journal["refused"].get(request, 0) for request, count in journal["asked"].items())


def answers(port: int) -> bool:
    try:
        return repeated(port) == 0
    except OSError:
        return False


if __name__ == "__main__":
    main()
