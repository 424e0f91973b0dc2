"""What is injected into each Python process: it tells of an uncaught exception, and never fails a start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ncclcheck.probes.box import injected
from tests.conftest import ROOT, environment

SOURCE = (Path(injected.__file__).parent / "sitecustomize.py").read_text()


@pytest.fixture
def box(tmp_path: Path) -> Path:
    """A folder as `watch` makes it."""
    for name in ("said", "fault", "site"):
        (tmp_path / name).mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(SOURCE)
    return tmp_path


def _python(box: Path, script: str, *folders: str, **env: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(box / "site"), *folders])
    given = environment(**{"NCCLCHECK_BOX": str(box), **env}) | {"PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, "-c", script], env=given, capture_output=True, text=True, timeout=200, check=False
    )


def _said(box: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in (box / "said").iterdir() for line in path.read_text().splitlines()]


def test_an_exception_is_told_with_rank_line_and_cause(box: Path) -> None:
    script = "try:\n {}['lr']\nexcept KeyError as e:\n raise ValueError('bad token=hunter2') from e"
    done = _python(box, script, RANK="3")
    bare = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (bare.returncode, bare.stderr)
    [event] = _said(box)
    assert (event["rank"], event["type"], event["message"]) == (3, "ValueError", "bad token=***")
    assert event["cause"] == "KeyError: 'lr'"
    assert event["frames"][-1][1:] == [4, "<module>"]
    assert [*(box / "fault").iterdir()] == []


def test_the_users_own_sitecustomize_and_hook_are_run(box: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/sitecustomize.py").write_text("import sys; sys.mine = 1; print(__file__, __name__)")
    script = (
        "import sys, sitecustomize; print(sys.mine, sitecustomize.__file__); sys.excepthook = print; raise OSError"
    )
    done = _python(box, script, str(tmp_path / "mine"))
    own = str(tmp_path / "mine/sitecustomize.py")
    assert done.stdout.startswith(f"{own} sitecustomize\n1 {own}\n<class 'OSError'>")
    assert _said(box) == []  # a hook of the user's own that does not call ours


@pytest.mark.parametrize("what", ["gone", "read-only", "a file", "unset", "nonsense"])
def test_no_start_fails_by_it(box: Path, what: str) -> None:
    if what == "gone":
        done = _python(box, "print('on')", NCCLCHECK_BOX=str(box / "none"))
    elif what == "unset":
        done = _python(box, "print('on')", NCCLCHECK_BOX="")
    elif what == "nonsense":
        done = _python(box, "print('on')", NCCLCHECK_BOX_SIGNAL="many", TORCH_FR_BUFFER_SIZE="1", RANK="0")
    else:
        for name in ("said", "fault"):
            (box / name).rmdir()
            if what == "a file":
                (box / name).write_text("")
        done = _python(box, "print('on')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "on\n", "")


def test_a_crash_leaves_a_stack_and_the_exit_status(box: Path) -> None:
    done = _python(box, "def here():\n import os\n os.abort()\nhere()")
    assert done.returncode == -6
    [stack] = (box / "fault").iterdir()
    assert "in here" in stack.read_text()


def test_torchrun_is_given_the_error_file_that_record_would_write(box: Path) -> None:
    path = box / "error.json"
    _python(box, "raise ValueError('boom')", RANK="1", TORCHELASTIC_ERROR_FILE=str(path))
    message = json.loads(path.read_text())["message"]
    assert message["message"] == "ValueError: boom"
    assert message["extraInfo"]["timestamp"].isdigit()
    assert "ValueError: boom" in message["extraInfo"]["py_callstack"]


def test_an_older_torch_is_given_the_names_that_it_knows(box: Path, tmp_path: Path) -> None:
    script = "import os; print(os.environ.get('TORCH_NCCL_TRACE_BUFFER_SIZE'))"
    for version, seen in (("2.9.1+cu128", "2000"), ("2.13.0+cpu", "None"), ("2.10.0a0", "None")):
        package = tmp_path / version / "torch"
        package.mkdir(parents=True)
        (package / "version.py").write_text(f"__all__ = ['x']\n__version__ = '{version}'\n")
        done = _python(box, script, str(package.parent), RANK="0", TORCH_FR_BUFFER_SIZE="2000")
        assert done.stdout == f"{seen}\n", version


def test_the_port_that_torchs_store_could_not_take_is_told_with_its_holder(box: Path) -> None:
    words = "failed to listen. port: %d, useIpv6: false, code: -98, name: EADDRINUSE, message: x"
    script = (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); raise RuntimeError({!r} % s.getsockname()[1])"
    )
    _python(box, script.format(words))
    [said] = _said(box)
    assert said["holder"] == said["pid"]
    assert f"port: {said['port']}," in said["message"]


_RANK = """
import os, socket, sys
import torch.distributed as dist
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "WORLD_SIZE": "1"}
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
for _ in range(3):
    dist.barrier()
from pathlib import Path
from ncclcheck.probes.live.records import ask_server
[place] = Path(os.environ["NCCLCHECK_BOX"], "server").iterdir()
told = ask_server(str(place), "fr_trace_json")
print(place.name == str(os.getpid()), b'"entries"' in told, flush=True)
"""


@pytest.mark.timeout(300)
def test_a_rank_serves_its_flight_recorder_and_says_nothing_of_it(box: Path) -> None:
    (box / "server").mkdir()
    done = _python(box, _RANK, str(ROOT), RANK="0", TORCH_FR_BUFFER_SIZE="100")
    assert (done.returncode, done.stdout, done.stderr) == (0, "True True\n", "")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("env", [{}, {"RANK": "0"}])
def test_only_a_rank_that_imports_torch_serves(box: Path, env: dict[str, str]) -> None:
    (box / "server").mkdir()
    imported = "import torch" if not env else "import sys; print(type(sys.meta_path[0]).__name__)"
    done = _python(box, imported, str(ROOT), **env)
    assert (done.returncode, done.stdout) == (0, "Later\n" if env else "")
    assert [*(box / "server").iterdir()] == []


def test_an_exception_that_ends_a_thread_is_told_and_the_first_of_many(box: Path) -> None:
    script = (
        "import threading\n"
        "def write():\n raise KeyError('optimizer')\n"
        "for n in range(40):\n"
        " t = threading.Thread(target=write, name='ckpt-%d' % n); t.start(); t.join()\n"
        "threading.Thread(target=lambda: exit(3)).start()\n"
    )
    done = _python(box, script, RANK="0")
    bare = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (bare.returncode, bare.stderr)
    events = _said(box)
    assert [event["thread"] for event in events if event["what"] == "raised"] == [f"ckpt-{n}" for n in range(16)]
    events = [event for event in events if event["what"] == "raised"]
    assert {(event["rank"], event["type"], event["message"]) for event in events} == {
        (0, "KeyError", "'optimizer'")
    }
    assert events[0]["frames"][-1][1:] == [3, "write"]


def test_a_box_that_is_gone_is_not_complained_of(box: Path) -> None:
    script = "import os, shutil; shutil.rmtree(os.environ['NCCLCHECK_BOX'])"
    done = _python(box, script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("leave", ["sys.exit(3)", "os._exit(3)"])
def test_an_exit_is_told_with_its_line_and_the_exception_that_was_caught(box: Path, leave: str) -> None:
    script = f"import os, sys\ntry:\n open('/none/x')\nexcept OSError:\n {leave}"
    done = _python(box, script, RANK="3")
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")
    [event] = _said(box)
    assert (event["what"], event["code"], event["type"], event["rank"]) == ("left", 3, "FileNotFoundError", 3)
    assert (event["at"][0][1:], event["frames"][-1][1:]) == ([5, "<module>"], [3, "<module>"])


def test_an_exit_with_code_0_is_told_once_it_ends_the_process(box: Path) -> None:
    _python(
        box, "import sys\ntry:\n sys.exit(0)\nexcept SystemExit:\n pass\ndef end():\n sys.exit()\nend()", RANK="1"
    )
    [event] = _said(box)
    assert (event["code"], event["at"][0][1:], event.get("type")) == (0, [7, "end"], None)


@pytest.mark.parametrize("script", ["raise SystemExit(3)", "import sys; sys.exit(3)"])
def test_what_is_no_rank_says_nothing_of_its_exit(box: Path, script: str) -> None:
    assert _python(box, script).returncode == 3
    assert _said(box) == []


def test_a_process_without_free_descriptors_says_why_it_ends(box: Path) -> None:
    script = (
        "import os, resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\nheld = []\n"
        "while True:\n held.append(os.open('/dev/null', os.O_RDONLY))"
    )
    assert _python(box, script, RANK="2").returncode == 1
    [event] = _said(box)
    assert (event["type"], event["frames"][-1][1]) == ("OSError", 5)


def test_names_of_variables_that_are_not_finite_are_told_and_never_values(box: Path) -> None:
    script = "def step(x, mask):\n y = x * 2\n assert y < 1\nstep(float('nan'), float('-inf'))"
    _python(box, script, RANK="0")
    [event] = _said(box)
    assert sorted(event["not_finite"]) == ["mask", "x", "y"]


def test_names_are_found_in_tensors_and_arrays_too(box: Path) -> None:
    script = (
        "import numpy as np, torch\nok = torch.ones(3)\nloss = ok / 0 - ok / 0\nwide = np.array([1, np.inf])\n"
        "whole = np.array([1])\none = np.float32('nan')\nraise ValueError"
    )
    _python(box, script, RANK="0")
    [event] = _said(box)
    assert sorted(event["not_finite"]) == ["loss", "one", "wide"]


def test_the_usual_end_of_a_rank_is_told_and_none_after_an_exception(box: Path) -> None:
    _python(box, "print(1)", RANK="4")
    [end] = _said(box)
    assert (end["what"], end["code"], end["rank"], end["at"]) == ("left", 0, 4, [])
    _python(box, "raise ValueError", RANK="5")
    assert sorted(event["what"] for event in _said(box)) == ["left", "raised"]


def test_who_sends_a_signal_says_so_with_its_line(box: Path) -> None:
    script = (
        "import os, signal, subprocess\nchild = subprocess.Popen(['sleep', '60'])\n"
        "def stop():\n os.kill(child.pid, signal.SIGTERM)\n"
        "os.kill(child.pid, 0)\nstop()\nprint(child.wait(), os.kill.__name__, child.pid)\nos._exit(0)"
    )
    done = _python(box, script, RANK="2")
    status, name, pid = done.stdout.split()
    assert (status, name, done.stderr) == ("-15", "kill", "")
    assert "built-in" in _python(box, "import os; print(os.kill)").stdout
    [event] = [row for row in _said(box) if row["what"] == "sent"]
    assert (event["rank"], event["number"], event["to"], event["group"]) == (2, 15, int(pid), False)
    assert event["at"][0][1:] == [4, "stop"]


def test_a_launcher_that_stops_its_ranks_says_nothing(box: Path, tmp_path: Path) -> None:
    (tmp_path / "torch/distributed/elastic").mkdir(parents=True)
    (tmp_path / "torch/distributed/elastic/agent.py").write_text("import os\ndef stop(pid): os.kill(pid, 15)")
    script = (
        f"import subprocess, sys\nsys.path.insert(0, {str(tmp_path / 'torch/distributed/elastic')!r})\n"
        "import agent\nchild = subprocess.Popen(['sleep', '60'])\nagent.stop(child.pid)\nprint(child.wait())"
    )
    assert _python(box, script).stdout == "-15\n"
    assert [event["what"] for event in _said(box)] == ["began"]  # the sleep, which this script has started


def test_a_process_that_becomes_a_rank_says_which(box: Path) -> None:
    script = (
        "import torch.distributed as dist\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "dist.destroy_process_group()"
    )
    done = _python(box, script)
    assert (done.returncode, done.stdout) == (0, "")
    events = {row["what"]: row for row in _said(box)}
    assert events.keys() == {"rank", "left"}
    assert (events["rank"]["rank"], events["rank"]["world"], events["left"]["code"]) == (0, 1, 0)
    assert _python(box, script, RANK="0").returncode == 0
    assert [row["what"] for row in _said(box)].count("rank") == 1  # its environment tells it


def test_programs_that_a_rank_starts_are_told_without_what_they_are_given(box: Path) -> None:
    script = (
        "import os, subprocess\nsubprocess.run(['sh', '-c', 'true secret1'])\nos.system('true secret2')\n"
        "for n in range(30): subprocess.run(['/bin/true', 'secret3'])\n"
        "subprocess.run('exit 0; secret4', shell=True)\n"
        "try: subprocess.run(['/nowhere/x'])\nexcept OSError: raise\n"
    )
    done = _python(box, script, RANK="1")
    bare = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1, bare.stderr)  # no frame of ours in it
    rows = [row for row in _said(box) if row["what"] == "began"]
    assert [row["command"] for row in rows] == [*["true"] * 14, "exit", "x"]
    assert (rows[0]["rank"], rows[-1]["at"][-1][2]) == (1, "<module>")
    assert "secret" not in str(rows)


def test_a_port_that_is_taken_is_told_with_its_holder(box: Path) -> None:
    script = (
        "import socket, socketserver\nheld = socket.create_server(('127.0.0.1', 0))\n"
        "def serve(metrics_port): socketserver.TCPServer(('127.0.0.1', metrics_port), None)\n"
        "print(held.getsockname()[1], flush=True)\nserve(held.getsockname()[1])"
    )
    done = _python(box, script, RANK="1")
    [event] = _said(box)
    assert (event["type"], event["port"], event["holder"]) == ("OSError", int(done.stdout), event["pid"])


def test_the_lock_file_that_torch_waits_for_is_told_while_it_does(box: Path, tmp_path: Path) -> None:
    lock = tmp_path / "fused_adam.lock"
    lock.touch()
    script = (
        "import os, threading, json\nfrom torch.utils.file_baton import FileBaton\n"
        f"lock = {str(lock)!r}\nbaton = FileBaton(lock, 0.01)\n"
        f"said = os.path.join({str(box)!r}, 'said', '%d.lock.jsonl' % os.getpid())\n"
        "def release():\n while not os.path.exists(said) or not open(said).read(): pass\n"
        " print(json.loads(open(said).read())['file'] == lock); os.unlink(lock)\n"
        "threading.Thread(target=release).start()\nbaton.wait()\nprint(os.path.exists(said))"
    )
    assert _python(box, script).stdout == "True\nFalse\n"
