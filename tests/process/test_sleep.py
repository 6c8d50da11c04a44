"""All processes are suspended for a minute, as when a laptop sleeps, and then continue. With the default heartbeat."""

from __future__ import annotations

from tests.eventually import eventually
from tests.process.harness import end
from tests.process.sleepers import Sleepers


def test_no_job_is_rescued_when_all_workers_are_suspended_for_a_minute(sleepers: Sleepers) -> None:
    place, n = sleepers.place, len(sleepers.jobs)

    def beats() -> dict[str, int]:
        return {row.id: row.beats for row in place.store.workers()}

    def completed() -> int:
        return place.sql("SELECT count(*) FROM treadle_finished WHERE status = 'completed'")[0][0]

    assert len(sleepers.beats) == 4
    sleepers.wake_after(60)
    # The first beat after it comes at once, and late; by the next, each has seen the beats of all others.
    eventually(lambda: all(beats().get(id, count + 2) >= count + 2 for id, count in sleepers.beats.items()))
    assert beats().keys() == sleepers.beats.keys()
    assert place.sql("SELECT count(*) FROM treadle_leases") == [(n,)]

    place.open_gate("morning")
    eventually(lambda: completed() == n)
    assert beats().keys() == sleepers.beats.keys()
    assert len(place.runs()) == n
    assert place.sql("SELECT value FROM treadle_meta WHERE key = 'lease'") == [(n,)]
    assert place.sql("SELECT * FROM treadle_attempts") == []
    assert [end(supervisor) for supervisor in sleepers.supervisors] == [0, 0]
