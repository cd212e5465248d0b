"""The default number of threads, from files as the kernel shows them."""

import os

import pytest

from mixprec.base.process_limits import number_of_threads


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Returns a function that makes a machine: files by path, and the processors that the process may use."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def make(files, processors=range(8)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(processors))
        for path, content in files.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(f"{content}\n")
        return number_of_threads(tmp_path)

    return make


def siblings(cores, form):
    topology = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    return {topology.format(one + other): form.format(one, one + cores) for one in range(cores) for other in (0, cores)}


NUMBERS = [("3", 3), ("4,2", 4), (" 2 ", 2), ("100000", 100000), ("", 8), ("0", 8), ("-1", 8), ("x", 8)]


@pytest.mark.parametrize(("value", "expected"), NUMBERS)
def test_omp_num_threads(machine, monkeypatch, value, expected):
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert machine({}) == expected


def test_without_affinity_masks_all_processors_count(machine, monkeypatch):
    machine({})
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert number_of_threads("/nowhere") == 6


def test_processors_of_the_affinity_mask(machine):
    assert machine({}, {1, 5, 6}) == 3
    assert machine({}, range(1000)) == 1000


@pytest.mark.parametrize("form", ["{},{}", "{}-{}"])
def test_threads_of_a_core_count_once(machine, form):
    assert machine(siblings(4, form)) == 4
    assert machine({}, {0, 4, 5}) == 2


@pytest.mark.parametrize(
    ("limit", "expected"), [("max 100000", 8), ("200000 100000", 2), ("350000 100000", 3), ("5000 100000", 1), ("", 8)]
)
def test_quota_of_a_control_group(machine, limit, expected):
    assert machine({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": limit}) == expected


def test_quotas_of_groups_above_and_of_the_host(machine):
    group = "user.slice/job"
    files = {"proc/self/cgroup": f"0::/{group}", f"sys/fs/cgroup/{group}/cpu.max": "max 100000"}
    assert machine(files) == 8
    assert machine({"sys/fs/cgroup/user.slice/cpu.max": "300000 100000"}) == 3


@pytest.mark.parametrize(("quota", "expected"), [("-1", 8), ("150000", 3)])
def test_quota_of_version_1(machine, quota, expected):
    folder = "sys/fs/cgroup/cpu/docker/0123"
    files = {
        "proc/self/cgroup": "4:memory:/a\n3:cpu,cpuacct:/docker/0123\n2:cpuset:/b:c\n0::/",
        f"{folder}/cpu.cfs_quota_us": quota,
        f"{folder}/cpu.cfs_period_us": "50000",
    }
    assert machine(files) == expected
