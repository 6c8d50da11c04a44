"""Where the kernel counts the processes that it killed because memory ran out."""

from __future__ import annotations

import pytest

from treadle.worker import host

V1 = "/sys/fs/cgroup/memory"
V2 = "/sys/fs/cgroup"


@pytest.mark.parametrize(
    ("groups", "counters"),
    [
        pytest.param(
            "0::/system.slice/jobs.service\n",
            [f"{V2}/system.slice/jobs.service/memory.events", f"{V2}/memory.events"],
            id="version 2",
        ),
        pytest.param(
            "5:cpu,cpuacct:/\n4:memory:/docker/a:b\n1:name=systemd:/\n",
            [f"{V1}/docker/a:b/memory.oom_control", f"{V1}/memory.oom_control"],
            id="version 1",
        ),
        pytest.param(
            "4:memory:/jobs\n0::/\n",
            [f"{V1}/jobs/memory.oom_control", f"{V1}/memory.oom_control", f"{V2}/memory.events"],
            id="both",
        ),
        pytest.param("", [], id="none"),
    ],
)
def test_the_counters_of_a_process_are_those_of_its_control_group(groups: str, counters: list[str]) -> None:
    assert host.memory_counters(groups) == counters


@pytest.mark.parametrize(
    ("files", "kills"),
    [
        ({"/proc/self/cgroup": "0::/a", f"{V2}/a/memory.events": "oom 2\noom_kill 3\n"}, 3),
        ({"/proc/self/cgroup": "0::/a", f"{V2}/a/memory.events": "oom_kill 3\n", "/proc/vmstat": "oom_kill 9\n"}, 3),
        ({"/proc/self/cgroup": "4:memory:/a", f"{V1}/a/memory.oom_control": "under_oom 0\noom_kill 4\n"}, 4),
        ({"/proc/self/cgroup": "0::/a", "/proc/vmstat": "nr_free 1\noom_kill 9\nother 2\n"}, 9),
        ({"/proc/vmstat": "nr_free 1\n"}, None),
        ({}, None),
    ],
)
def test_the_counter_of_the_control_group_is_preferred_to_that_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, str], kills: int | None
) -> None:
    monkeypatch.setattr(host, "_read", lambda path: files.get(path, ""))
    assert host.out_of_memory_kills() == kills
