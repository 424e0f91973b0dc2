"""Processes: limits hold, nothing survives, streams cannot block."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from ncclcheck.probes.facts import Unread
from ncclcheck.probes.machine import process


def test_output_and_status() -> None:
    output = process.run(["sh", "-c", "echo out; echo err >&2; exit 3"], 10)
    assert output == process.Output(3, "out\n", "err\n")


def test_stdin_is_closed() -> None:
    output = process.run(["cat"], 10)
    assert isinstance(output, process.Output)
    assert output.out == ""


def test_missing_program_is_no_tool() -> None:
    output = process.run(["no-such-program-here"], 1)
    assert isinstance(output, Unread)
    assert output.kind == "no_tool"


def test_a_flood_of_output_is_kept_bounded() -> None:
    output = process.run([sys.executable, "-c", "print('x' * 9_000_000)"], 30)
    assert isinstance(output, process.Output)
    assert output.status == 0
    assert len(output.out) == 4 * 2**20


def test_time_limit_kills_the_whole_tree(tmp_path: Path) -> None:
    script = f"setsid sh -c 'echo $$ > {tmp_path}/pid; exec sleep 100' & sleep 100"
    begun = time.monotonic()
    output = process.run(["sh", "-c", script], 0.7)
    assert isinstance(output, Unread)
    assert output.kind == "timed_out"
    assert time.monotonic() - begun < 4
    assert _ended(int((tmp_path / "pid").read_text()))


def test_a_stopped_process_is_killed_too() -> None:
    child = subprocess.Popen(["sleep", "100"])
    os.kill(child.pid, signal.SIGSTOP)
    assert process.kill_tree(child.pid) == []
    child.wait(5)


def test_children_die_with_a_killed_parent(tmp_path: Path) -> None:
    code = (
        "from ncclcheck.probes.machine import process; import pathlib\n"
        "child = process.start(['sleep', '100'])\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(child.pid))\n"
        "child.wait()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert parent.poll() is None
        time.sleep(0.02)
    parent.kill()
    parent.wait(5)
    assert _ended(int((tmp_path / "pid").read_text()))


def test_state_of_processes() -> None:
    child = subprocess.Popen(["sleep", "100"])
    try:
        os.kill(child.pid, signal.SIGSTOP)
        end = time.monotonic() + 5
        while process.state_of(child.pid) != "T" and time.monotonic() < end:
            time.sleep(0.02)
        assert process.state_of(child.pid) == "T"
    finally:
        child.kill()
        child.wait(5)
    assert process.state_of(child.pid) == "gone"


def _ended(pid: int) -> bool:
    end = time.monotonic() + 5
    while time.monotonic() < end:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def test_no_module_with_a_lock_for_forks_is_imported_after_the_first_fork() -> None:
    """Probes are imported by threads of their own, while other threads fork."""
    code = (
        "import os, subprocess\n"
        "from ncclcheck.probes.machine import process\n"
        "late = []\n"
        "real = os.register_at_fork\n"
        "os.register_at_fork = lambda **hooks: (late.append(hooks), real(**hooks))\n"
        "from ncclcheck.probes.machine.software import nccl; from ncclcheck.probes.machine.host import storage\n"
        "print([one for one in late if 'after_in_parent' in one])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
