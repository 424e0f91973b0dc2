"""`ncclcheck watch` changes nothing for a job: bytes, exit codes, input, signals, environment."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from ncclcheck.watch.settings import settings
from tests.conftest import environment

WATCH = [sys.executable, "-m", "ncclcheck", "watch"]
# Prints a line a signal, and leaves when it is told to.
COUNTS = """
import signal, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
    signal.signal(number, lambda n, _: print("got", signal.Signals(n).name, flush=True))
print("ready", flush=True)
end = time.time() + 20
while time.time() < end:
    time.sleep(0.05)
    import os
    if os.path.exists(sys.argv[1]):
        break
"""


def _watch(folder: Path, *command: str, options: Sequence[str] = ()) -> subprocess.CompletedProcess[bytes]:
    argv = [*WATCH, *options, "--", *command]
    return subprocess.run(
        argv, cwd=folder, capture_output=True, timeout=60, check=False, env=environment(), input=b"some\0thing\n"
    )


@pytest.mark.parametrize(
    "command",
    [
        ("printf", "a\\r\\n\\0\\377no end"),
        ("sh", "-c", "cat; echo no >&2"),
        ("sh", "-c", "cat /dev/zero | head -c 3000000"),
        (sys.executable, "-c", "import os; os.write(1, bytes(range(256)) * 1000); os.write(2, b'\\x1b[31mred')"),
        ("sh", "-c", "for n in 1 2 3 4 5 6; do echo $n; echo e$n >&2; done; exit 0"),
    ],
)
def test_a_sound_job_is_the_same_to_the_byte_and_leaves_nothing(tmp_path: Path, command: tuple[str, ...]) -> None:
    bare = subprocess.run(
        command, cwd=tmp_path, capture_output=True, timeout=60, check=False, input=b"some\0thing\n"
    )
    done = _watch(tmp_path, *command)
    assert (done.returncode, done.stdout, done.stderr) == (bare.returncode, bare.stdout, bare.stderr)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("sh", "-c", "exit 3"), 3),
        (("sh", "-c", "exit 255"), 255),
        (("sh", "-c", "kill -KILL $$"), -signal.SIGKILL),
        (("sh", "-c", "kill -SEGV $$"), -signal.SIGSEGV),
        (("sh", "-c", "kill -TERM $$"), -signal.SIGTERM),
        ((sys.executable, "-c", "raise KeyboardInterrupt"), -signal.SIGINT),
        (("no-such-command",), 127),
        (("/etc/hostname",), 126),
    ],
)
def test_the_exit_status_is_the_jobs(tmp_path: Path, command: tuple[str, ...], code: int) -> None:
    if command == ("/etc/hostname",):
        script = tmp_path / "empty"
        script.write_bytes(b"\x7fELFnot")
        script.chmod(0o755)
        command = (str(script),)
    assert _watch(tmp_path, *command).returncode == code


def test_the_order_of_both_streams_in_one_file(tmp_path: Path) -> None:
    script = "import os\nfor n in range(500):\n os.write(1 + n % 2, b'%d\\n' % n)"
    with (tmp_path / "log").open("wb") as file:
        argv = [*WATCH, "--", sys.executable, "-c", script]
        subprocess.run(argv, cwd=tmp_path, stdout=file, stderr=file, timeout=60, check=True, env=environment())
    assert (tmp_path / "log").read_text().split() == [str(n) for n in range(500)]


def _lines(process: subprocess.Popen[bytes], until: str) -> list[str]:
    assert process.stdout is not None
    lines: list[str] = []
    while until not in lines:
        line = process.stdout.readline()
        assert line, lines
        lines.append(line.decode().strip())
    return lines


@pytest.mark.parametrize("to_group", [False, True])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_reaches_the_job_once(tmp_path: Path, number: signal.Signals, to_group: bool) -> None:
    stop = tmp_path / "stop"
    argv = [*WATCH, "--box", str(tmp_path / "box"), "--", sys.executable, "-c", COUNTS, str(stop)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=environment(), start_new_session=True) as process:
        _lines(process, "ready")
        (os.killpg if to_group else os.kill)(process.pid, number)
        _lines(process, f"got {number.name}")
        time.sleep(0.5)  # a second one would come now
        stop.touch()
        assert process.stdout is not None
        assert process.stdout.read() == b""
        assert process.wait(20) == 0
    [journal] = tmp_path.glob("box/*/wrapper.jsonl")
    assert f'"of_group":{"true" if to_group else "false"}' in journal.read_text()


def test_a_terminal_stays_one_and_its_ctrl_c_comes_once(tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    script = "import sys; print([f.isatty() for f in (sys.stdin, sys.stdout, sys.stderr)], flush=True)\n" + COUNTS
    pid, terminal = pty.fork()
    if not pid:
        os.chdir(tmp_path)
        argv = [*WATCH, "--", sys.executable, "-c", script, str(stop)]
        os.execve(sys.executable, argv, environment())
    seen = _until(terminal, b"ready")
    os.write(terminal, b"\x03")
    seen += _until(terminal, b"got SIGINT")
    time.sleep(0.5)
    stop.touch()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    seen += _until(terminal, b"")
    assert b"[True, True, True]\r\n" in seen
    assert seen.count(b"got SIGINT\r\n") == 1


def _until(terminal: int, words: bytes) -> bytes:
    """What a terminal shows up to these words; to its end, for none."""
    seen, end = b"", time.monotonic() + 30
    while (not words or words not in seen) and time.monotonic() < end:
        if select.select([terminal], [], [], 1)[0]:
            try:
                data = os.read(terminal, 4096)
            except OSError:
                break
            seen += data
        elif not words:
            break
    assert words in seen
    return seen


def test_what_nohup_ignores_stays_ignored(tmp_path: Path) -> None:
    script = "import signal; print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)"
    done = _watch(tmp_path, "sh", "-c", f'trap "" HUP; exec "$0" -c "{script}"', sys.executable)
    assert done.stdout == b"True\n"
    argv = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *WATCH, "--", sys.executable, "-c", script]
    assert (
        subprocess.run(argv, cwd=tmp_path, capture_output=True, timeout=60, check=True, env=environment()).stdout
        == b"True\n"
    )


def test_a_closed_stdout_and_a_reader_that_leaves(tmp_path: Path) -> None:
    watched = shlex.join([*WATCH, "--"])
    for shell, code in (
        (f"{watched} sh -c 'echo a' >&-", 1),  # sh's echo: bad file descriptor
        (f"{watched} sh -c 'yes' | head -n 1 >/dev/null; exit 0", 0),
    ):
        done = subprocess.run(
            ["sh", "-c", shell], cwd=tmp_path, capture_output=True, timeout=60, check=False, env=environment()
        )
        assert done.returncode == code, done.stderr


def test_what_the_user_has_set_stays(tmp_path: Path) -> None:
    ours = "NCCL_DEBUG=INFO TORCH_NCCL_TRACE_BUFFER_SIZE=7 PYTHONPATH=/mine"
    done = _watch(tmp_path, "env", options=["--box", str(tmp_path / "box")])
    assert b"NCCL_DEBUG=WARN" in done.stdout
    argv = ["env", *ours.split(), *WATCH, "--box", str(tmp_path / "box"), "--print-env"]
    output = subprocess.run(
        argv, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True, env=environment()
    ).stdout
    assert " NCCL_DEBUG" not in output
    assert "TORCH_FR_BUFFER_SIZE" not in output
    assert ":/mine" in output
    assert "export TORCH_FR_DUMP_TEMP_FILE=" in output


@pytest.mark.parametrize(
    ("command", "given", "anew"),
    [
        (("torchrun", "--max-restarts=3", "t.py"), {}, True),
        (("torchrun", "--max_restarts", "1", "t.py"), {"PET_MAX_RESTARTS": "0"}, True),
        (("torchrun", "t.py"), {"PET_MAX_RESTARTS": "2"}, True),
        (("torchrun", "--max-restarts=0", "t.py"), {"PET_MAX_RESTARTS": "2"}, False),
        (("torchrun", "t.py"), {}, False),
        (("torchrun", "--max-restarts=3", "t.py"), {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "0"}, False),
    ],
)
def test_ranks_that_may_start_anew_get_a_store_for_each_attempt(
    command: tuple[str, ...], given: dict[str, str], anew: bool
) -> None:
    made = settings("/box/node", given, command)
    assert made.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") == ("1" if anew else None)


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    for name in ("open", "link"):
        done = _watch(tmp_path, "true", options=["--box", name])
        assert done.returncode == 2, name
        assert done.stdout == b""


def test_the_box_is_private_and_holds_no_secret(tmp_path: Path) -> None:
    script = "echo password=hunter2; echo API_KEY=abcdef123456; exit 1"
    env = {**environment(), "MY_TOKEN": "hf_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "NCCL_X_TOKEN": "geheim-geheim"}
    argv = [*WATCH, "--box", "box", "--", "sh", "-c", script]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, timeout=60, check=False, env=env)
    assert b"password=hunter2" in done.stdout
    paths = [path for path in (tmp_path / "box").rglob("*") if path.is_file()]
    kept = b"".join(path.read_bytes() for path in paths)
    assert b"password=" in kept
    assert [secret for secret in (b"hunter2", b"abcdef123456", b"hf_aaa", b"geheim") if secret in kept] == []
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "box").rglob("*")} == {0}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_group_that_ends_the_job_at_once_is_said(tmp_path: Path, number: signal.Signals) -> None:
    argv = [*WATCH, "--box", str(tmp_path / "box"), "--", "sh", "-c", "echo ready; exec sleep 60"]
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), start_new_session=True
    ) as process:
        _lines(process, "ready")
        os.killpg(process.pid, number)
        _, page = process.communicate(timeout=60)
    assert process.returncode == -number
    assert b"BOX007" in page
    assert f"the job was sent {number.name}".encode() in page
    assert b"Traceback" not in page


@pytest.mark.parametrize(
    ("command", "code", "why"),
    [
        ("nosuch-command", 127, "not found on PATH"),
        ("./nosuch-command", 127, "No such file or directory"),
        ("/etc/passwd", 126, "Permission denied"),
    ],
)
def test_what_cannot_be_started_has_the_shells_exit_code_and_leaves_no_box(
    tmp_path: Path, command: str, code: int, why: str
) -> None:
    done = _watch(tmp_path, command)
    assert done.returncode == code
    assert done.stderr.decode() == f"ncclcheck: COMMAND: '{command}' could not be started: {why}\n"
    assert [*tmp_path.iterdir()] == []


def test_the_commands_own_options_are_its_own_without_two_dashes(tmp_path: Path) -> None:
    argv = [*WATCH, "--stall-after", "70", sys.executable, "-c", "print('on')", "--box"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, timeout=60, check=False, env=environment())
    assert (done.returncode, done.stdout, done.stderr) == (0, b"on\n", b"")


def test_a_job_that_is_of_ncclcheck_says_nothing_of_our_variables(tmp_path: Path) -> None:
    done = _watch(tmp_path, *WATCH, "--", "true")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_full_disk_at_the_start(tmp_path: Path) -> None:
    """A box that nobody asked for is elsewhere then; one that was asked for is an error, and nothing is left."""
    if os.geteuid():
        pytest.skip("needs root, for a small disk")
    full, other = tmp_path / "full", tmp_path / "other"
    full.mkdir()
    other.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "ncw", full], check=True, timeout=20)
    try:
        with contextlib.suppress(OSError):
            (full / "data").write_bytes(bytes(2**20))
        for options, code, kept in (((), 3, True), (("--box", "box"), 2, False)):
            argv = [*WATCH, *options, "--", "sh", "-c", "echo on; exit 3"]
            env = environment(TMPDIR=str(other))
            done = subprocess.run(argv, cwd=full, capture_output=True, timeout=60, check=False, env=env)
            assert (done.returncode, done.stdout) == (code, b"on\n" if kept else b""), done.stderr
            assert (b"BOX005" if kept else b"No space left on device") in done.stderr
        assert [path.name for path in full.iterdir()] == ["data"]
    finally:
        subprocess.run(["umount", "-l", full], check=True, timeout=20)
