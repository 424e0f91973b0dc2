"""The lab itself: hosts reach each other, every fault has its effect and ends, and nothing is left behind."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT, environment
from tests.lab import PYTHON, Host, Lab, Slurm, faults, needs, start_sshd, stop_sshd, wrong_key
from tests.lab.talk import answered, mbit_per_second, python, reached, serve
from tests.lab.tools import namespaces, until

_CLOCK = """
import threading, time
wall, mono = time.time(), time.monotonic()
time.sleep(0.2)
threading.Event().wait(0.2)
threading.Lock().acquire() or None
print(wall, time.monotonic() - mono, time.time() - wall)
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Three hosts with sshd, and a server on each."""
    with Lab(3) as lab:
        start_sshd(lab)
        serve(lab)
        yield lab


@pytest.fixture
def h1(lab: Lab) -> Host:
    return lab["h1"]


@pytest.fixture
def h2(lab: Lab) -> Host:
    return lab["h2"]


@pytest.fixture(autouse=True)
def _mended(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test of the common lab all hosts reach each other again: faults end."""
    yield
    if "lab" in request.fixturenames:
        lab = request.getfixturevalue("lab")
        for host in lab.hosts:
            assert reached(host, "h1", "h2", "h3") == "h1 h2 h3"


def test_hosts_have_names_and_links_of_their_own(lab: Lab) -> None:
    assert [host.check(["hostname"]).strip() for host in lab.hosts] == ["h1", "h2", "h3"]
    assert len({host.check(["cat", "/proc/sys/kernel/random/boot_id"]) for host in lab.hosts}) == 3
    names = "import socket; print(*(name for _, name in socket.if_nameindex()))"
    assert python(lab["h2"], names) == "lo eth0 mgmt0"
    assert reached(lab["h1"], "h2-mgmt") == "h2"


def test_a_command_that_takes_too_long_is_killed(h1: Host) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        h1.run(["sh", "-c", "sleep 77 & sleep 77"], seconds=0.3)
    until("both are gone", lambda: not any("77" in _line(pid) for pid in h1.pids()))


def _line(pid: int) -> list[str]:
    try:
        return psutil.Process(pid).cmdline()
    except psutil.Error:
        return []


def test_mtu_1400_loses_full_size_packets(h1: Host, h2: Host) -> None:
    assert answered(h1, h2.address, size=1472) == 3
    with faults.mtu(h2, 1400):
        assert answered(h1, h2.address, size=1472) == 0
        assert answered(h1, h2.address, size=1300) == 3


def test_mtu_9000_over_a_path_of_1500(h1: Host, h2: Host) -> None:
    with faults.mtu(h2, 9000):
        assert answered(h2, h1.address, size=8000) == 0
        assert answered(h2, h1.address, size=1472) == 3


def test_link_down(h1: Host, h2: Host) -> None:
    with faults.link_down(h2):
        assert h2.check(["cat", "/sys/class/net/eth0/operstate"]).strip() == "down"
        assert reached(h1, "h2") in ("TimeoutError", "OSError")
        assert reached(h1, "h2-mgmt") == "h2"


def test_cut_off(h1: Host, h2: Host) -> None:
    with faults.cut_off(h2):
        assert h2.check(["cat", "/sys/class/net/eth0/operstate"]).strip() == "up"
        assert reached(h1, "h2") in ("TimeoutError", "OSError")
        assert reached(h1, "h2-mgmt") in ("TimeoutError", "OSError")


def test_another_subnet(h1: Host, h2: Host) -> None:
    with faults.other_subnet(h2, routed=False):
        assert h2.address == "10.77.9.22"
        assert reached(h1, "h2") == "OSError"
    with faults.other_subnet(h2, routed=True):
        assert reached(h1, "h2") == "h2"
        assert reached(h2, "h1") == "h1"


def test_wrong_prefix(h1: Host, h2: Host) -> None:
    with faults.wrong_prefix(h2):
        assert reached(h2, "h1") == "OSError"
        assert reached(h1, "h2") == "TimeoutError"


def test_duplicate_address(h1: Host, h2: Host, lab: Lab) -> None:
    with faults.duplicate_address(lab["h3"], h2):
        assert h2.address in lab["h3"].check(["ip", "-4", "addr", "show", "eth0"])
        assert reached(h1, "h3") in ("h2", "h3")


def test_names(h1: Host, h2: Host, lab: Lab) -> None:
    with faults.own_name_is_loopback(h2), faults.unresolvable(h1, lab["h3"]), faults.same_name(lab["h3"], h2):
        assert python(h2, "import socket; print(socket.gethostbyname(socket.gethostname()))") == "127.0.1.1"
        assert reached(h1, "h3") == "gaierror"
        assert lab["h3"].check(["hostname"]).strip() == "h2"


def test_docker_bridge_has_one_address_everywhere(h1: Host, h2: Host) -> None:
    with faults.docker_bridge(h1, h2):
        assert all("172.17.0.1/16" in host.check(["ip", "addr", "show", "docker0"]) for host in (h1, h2))
        assert reached(h1, "172.17.0.1") == "h1"


@pytest.mark.parametrize(
    ("way", "inward", "outward"), [("in", False, True), ("out", True, False), ("both", False, False)]
)
def test_dropped_ports(h1: Host, h2: Host, way: str, inward: bool, outward: bool) -> None:
    with faults.drop_high_ports(h2, way):
        assert reached(h1, "h2") == ("h2" if inward else "TimeoutError")
        assert reached(h2, "h1") == ("h1" if outward else "TimeoutError")
        assert reached(h2, "h1-mgmt") == "h1"


def test_lost_packets(h1: Host, h2: Host) -> None:
    with faults.loss(h2, 30):
        assert 100 <= answered(h1, h2.address, size=10, count=200) <= 180


def test_limited_link_is_slow_one_way(h1: Host, h2: Host) -> None:
    with faults.limited(h2, "20mbit"):
        assert mbit_per_second(h2, "h1") < 30
        assert mbit_per_second(h1, "h2") > 100


@pytest.mark.parametrize("shift", [90, -90])
def test_clock_is_off_and_sleeps_are_not(h1: Host, h2: Host, shift: int) -> None:
    before = time.time()
    with faults.clock(h2, shift):
        wall, monotonic, elapsed = map(float, python(h2, _CLOCK).split())
        over_ssh = float(h1.check(["ssh", "h2", "date", "+%s"]))
    after = time.time()
    assert before - 1 <= wall - shift <= after + 1
    assert before - 1 <= over_ssh - shift <= after + 1
    assert 0.39 <= monotonic <= 0.4 + after - before
    assert 0.39 <= elapsed <= 0.4 + after - before


def test_a_port_can_be_held_by_a_silent_listener(h1: Host, h2: Host) -> None:
    with faults.listener(h2, 29500) as pid:
        assert pid in h2.pids()
        assert h1.run([*PYTHON, "-c", "import socket; socket.create_connection(('h2', 29500), 2)"]).returncode == 0


def test_another_file_on_one_host(h1: Host, h2: Host, tmp_path: Path) -> None:
    other, same = tmp_path / "other", ROOT / "README.md"
    other.write_text("another version\n")
    with faults.replaced(h2, same, other):
        assert h2.check(["cat", str(same)]) == "another version\n"
        assert h1.check(["cat", str(same)]) == same.read_text()


def test_ssh_from_any_host_to_any_other(lab: Lab) -> None:
    for client in lab.hosts[:2]:
        answers = [
            client.check(["ssh", "-o", "BatchMode=yes", host.name, "hostname"]).strip() for host in lab.hosts
        ]
        assert answers == ["h1", "h2", "h3"]
    assert lab["h2"].check(["ssh", "h1", "echo $SSH_CONNECTION"]).startswith("10.78.0.22 ")


def test_ssh_can_be_refused(h1: Host, h2: Host, lab: Lab) -> None:
    ssh = ["ssh", "-o", "BatchMode=yes", "h2", "true"]
    with wrong_key(h2):
        assert "Permission denied" in h1.run(ssh).stderr
    stop_sshd(h2)
    assert "Connection refused" in h1.run(ssh).stderr
    start_sshd(lab, h2)
    assert h1.run(ssh).returncode == 0


def test_slurm(lab: Lab, h1: Host, tmp_path: Path) -> None:
    slurm = Slurm(lab)
    tasks = h1.check(["srun", "-N3", "--ntasks-per-node=1", "sh", "-c", "echo $SLURMD_NODENAME $(hostname)"], 20)
    assert sorted(tasks.splitlines()) == ["h1 h1", "h2 h2", "h3 h3"]
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/sh\n#SBATCH -N2 -o {tmp_path}/out\nsrun -N2 -n2 hostname\n")
    h1.check(["sbatch", str(script)])
    out = tmp_path / "out"
    until("both tasks of the batch job have spoken", lambda: out.exists() and len(out.read_text().split()) == 2)
    assert sorted(out.read_text().split()) == ["h1", "h2"]
    assert "N=3" in h1.check(["salloc", "-N3", "sh", "-c", "echo N=$SLURM_JOB_NUM_NODES"], 20)
    with slurm.silent(lab["h3"]):
        waiting = h1.start(["srun", "-w", "h3", "hostname"])
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(timeout=1)
    assert waiting.communicate(timeout=20)[0].strip() == "h3"


def test_nothing_is_left_even_by_a_test_that_fails() -> None:
    pids: list[int] = []
    with pytest.raises(ZeroDivisionError), Lab(2, mgmt=False) as lab:
        _fill_and_fail(lab, pids)
    assert len(pids) >= 8
    _gone(lab.tag, pids)


def _fill_and_fail(lab: Lab, pids: list[int]) -> None:
    start_sshd(lab)
    Slurm(lab)
    assert lab["h1"].check(["ssh", "h2", "echo $SSH_CONNECTION"]).startswith("10.77.0.11 ")
    lab["h1"].start(["setsid", "--fork", "sh", "-c", "trap '' TERM; sleep 600 & sleep 600"])
    until("the escaped ones run", lambda: sum("600" in _line(pid) for pid in lab["h1"].pids()) == 2)
    pids.extend(pid for host in lab.hosts for pid in host.pids())
    raise ZeroDivisionError


def test_what_a_killed_test_leaves_is_swept_by_the_next() -> None:
    needs.need()
    program = "import time; from tests.lab import Lab; print(Lab(2).__enter__().tag, flush=True); time.sleep(60)"
    killed = subprocess.Popen([*PYTHON, "-c", program], env=environment(), stdout=subprocess.PIPE, text=True)
    assert killed.stdout is not None
    tag = killed.stdout.readline().strip()
    assert namespaces(tag)
    killed.kill()
    killed.communicate()
    with Lab(2):
        _gone(tag, [])


def _gone(tag: str, pids: list[int]) -> None:
    assert namespaces(tag) == []
    assert [pid for pid in pids if _line(pid)] == []
    assert tag not in Path("/proc/self/mountinfo").read_text()
    assert list(Path("/tmp").glob(f"{tag}*")) == []


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAB_REQUIRED", raising=False)
    monkeypatch.setitem(needs.PACKAGES, "no-such-program", "no-such-package")
    with pytest.raises(pytest.skip.Exception, match="no-such-package"):
        needs.need("no-such-program")
    monkeypatch.setenv("LAB_REQUIRED", "1")
    with pytest.raises(pytest.fail.Exception, match="no-such-package"):
        needs.need("no-such-program")


_JOB = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
one = torch.ones(1000)
dist.all_reduce(one)
print("sum", int(one[0]), "of", dist.get_world_size(), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.nightly
def test_a_plain_torchrun_job_across_two_hosts(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text(_JOB)
    with Lab(2, mgmt=False) as lab:
        run = [*PYTHON, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d"]
        agents = [host.start([*run, "--rdzv-endpoint=h1:29500", str(job)]) for host in lab.hosts]
        for agent in agents:
            out, err = agent.communicate(timeout=60)
            assert out.strip() == "sum 2 of 2", err
