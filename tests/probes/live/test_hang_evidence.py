"""What `hang` takes beside /proc: one program, files that are the rank's own, questions that cannot hurt."""

from __future__ import annotations

import ast
import base64
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ncclcheck.probes.live import ask, evidence, received, records, stream
from ncclcheck.probes.live.machine import gpus, wires
from ncclcheck.probes.live.machine.proc import Proc, fields
from tests.helpers import flight_jobs
from tests.helpers.fake_nvml import built, environment, needs_gcc

PROC = Proc()
_WAITS = "import time; print('ready', flush=True); time.sleep(60)"
_HANDLES = f"import faulthandler, signal; faulthandler.register(signal.SIGUSR1); {_WAITS}"


# --- One program


@pytest.mark.parametrize("module", stream.MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_each_part_is_of_python_3_6_and_the_standard_library(module: Any) -> None:
    tree = ast.parse(Path(module.__file__).read_text(), feature_version=(3, 6))
    nodes = [*ast.walk(tree)]
    named = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    named |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    own = {"ncclcheck.probes.live", "ncclcheck.probes.live.machine", *(part.__name__ for part in stream.MODULES)}
    assert named - own <= sys.stdlib_module_names
    assert "__future__" not in named
    generics = [
        node for node in nodes
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name)
        and node.value.id in ("list", "dict", "tuple", "set", "type")
    ]  # fmt: skip
    unions = [
        node for node in nodes
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)
        and any(isinstance(side, ast.Constant) and side.value is None for side in (node.left, node.right))
    ]  # fmt: skip
    assert not generics
    assert not unions


def test_the_parts_run_as_one_program_where_nothing_is_installed(tmp_path: Path) -> None:
    env = {**os.environ, "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    with subprocess.Popen(["sleep", "60"], env=env) as rank:
        answer = subprocess.run(
            [sys.executable, "-I", "-", *stream.arguments(0.1, passive=True)],
            input=stream.program(), capture_output=True, timeout=60, check=True, cwd=tmp_path,
        )  # fmt: skip
        rank.kill()
    facts = received.host(answer.stdout.decode(), "gpu-a1")
    assert answer.stderr == b""
    assert {process.host for process in facts.live.processes} == {"gpu-a1"}
    assert rank.pid in {process.pid for process in facts.live.processes}
    assert facts.live.seconds >= 0.1


def test_only_one_function_sends_a_signal_and_passive_never_comes_to_it() -> None:
    sends = [
        (module.__name__.rpartition(".")[2], function.name)
        for module in stream.MODULES
        for function in ast.walk(ast.parse(Path(module.__file__ or "").read_text()))
        if isinstance(function, ast.FunctionDef)
        and any(
            isinstance(node, ast.Attribute) and node.attr in ("kill", "killpg", "pidfd_send_signal", "tgkill")
            for node in ast.walk(function)
        )
    ]
    assert sends == [("gpus", "answer"), ("ask", "sent")]  # the first ends its own child
    assert "stacks" not in stream.arguments(1, passive=True, signal="USR1")
    assert not any(word.startswith("signal") for word in stream.arguments(1, passive=True, signal="USR1"))


# --- Signals


@contextmanager
def _rank(code: str, tmp_path: Path, **env: str) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any]]]:
    """A process that stands for rank 1, and what is known of it."""
    log = tmp_path / "log"
    with log.open("wb") as file:
        child = subprocess.Popen([sys.executable, "-c", code], stdout=file, stderr=file, env={**os.environ, **env})
    try:
        while b"ready" not in log.read_bytes():
            assert child.poll() is None
            time.sleep(0.02)
        start = fields(PROC.text(str(child.pid), "stat"))[19]
        yield child, {"pid": child.pid, "rank": 1, "start": start, "env": env, "job": "a:1", "scope": "",
                      "age_s": 60.0, "stack": [], "host": "h"}  # fmt: skip
    finally:
        child.kill()
        child.wait()


def test_a_signal_that_a_process_does_not_handle_is_never_sent(tmp_path: Path) -> None:
    """SIGUSR1 would end it."""
    with _rank(_WAITS, tmp_path) as (child, process):
        (problem,) = ask.stacks(PROC, [process], "USR1")
        time.sleep(0.2)
        assert child.poll() is None
        assert "nothing was sent" in problem
        assert process["stack"] == []


def test_one_that_it_ignores_or_blocks_is_not_sent_either(tmp_path: Path) -> None:
    ignores = f"import signal; signal.signal(signal.SIGUSR1, signal.SIG_IGN); {_WAITS}"
    with _rank(ignores, tmp_path) as (_, process):
        assert not records.handles(PROC, process["pid"], signal.SIGUSR1)


def test_faulthandler_tells_the_line(tmp_path: Path) -> None:
    with _rank(_HANDLES, tmp_path) as (child, process):
        assert ask.stacks(PROC, [process], "USR1") == []
        assert child.poll() is None
        assert process["stack"][0] == "<module> (<string>:1)"


def test_a_process_that_took_the_number_of_another_gets_none(tmp_path: Path) -> None:
    with _rank(_HANDLES, tmp_path) as (_, process):
        assert ask.sent(PROC, {**process, "start": "1"}, signal.SIGUSR1) == "it has ended"


# --- Flight Recorder's pipe and files


_PIPE = """
import os, sys, time
path, dump = sys.argv[1:]
os.mkfifo(path, 0o666)
pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
print("ready", flush=True)
while True:
    time.sleep(0.05)
    try:
        asked = os.read(pipe, 128)
    except BlockingIOError:
        continue
    if asked:
        open(dump, "wb").write(open(dump + ".made", "rb").read())
"""


def test_the_pipe_that_a_rank_holds_open_brings_its_dump(tmp_path: Path) -> None:
    """As torch reads it; the dump is of a job whose rank 2 stays away."""
    made = Path(flight_jobs.one_stays_away().write(tmp_path)[1])
    dump = tmp_path / "fr_1"
    made.rename(f"{dump}.made")
    code = f"import sys; sys.argv[1:] = [{str(tmp_path / 'fr_1.pipe')!r}, {str(dump)!r}]; exec({_PIPE!r})"
    with _rank(code, tmp_path, TORCH_NCCL_DEBUG_INFO_PIPE_FILE=f"{tmp_path}/fr_",
               TORCH_FR_DUMP_TEMP_FILE=f"{tmp_path}/fr_") as (_, process):  # fmt: skip
        taken = records.Taken()
        assert ask.dumps(PROC, [process], taken) == []
    [piece] = taken.pieces
    [record] = received.records(
        [received.ReceivedPiece(**{k: piece[k] for k in received.ReceivedPiece.__struct_fields__})]
    )
    assert record.flight is not None
    assert [(dump.rank, dump.file) for dump in record.flight.dumps] == [(1, str(dump))]


@pytest.mark.parametrize("kind", ["no pipe", "a file", "a link", "not open"])
def test_nothing_is_written_elsewhere(tmp_path: Path, kind: str) -> None:
    """The name comes from a process's environment: it may be any file of anybody."""
    place, other = tmp_path / "fr_1.pipe", tmp_path / "precious"
    other.write_text("kept")
    if kind == "a file":
        place.write_text("kept")
    elif kind == "a link":
        place.symlink_to(other)
    elif kind == "not open":
        os.mkfifo(place)
    with _rank(_WAITS, tmp_path, TORCH_NCCL_DEBUG_INFO_PIPE_FILE=f"{tmp_path}/fr_") as (_, process):
        (problem,) = ask.dumps(PROC, [process], records.Taken())
    assert "not a pipe that it holds open" in problem
    assert other.read_text() == "kept"
    assert kind != "a file" or place.read_text() == "kept"


def _taken(tmp_path: Path) -> list[str]:
    with _rank(_WAITS, tmp_path, TORCH_FR_DUMP_TEMP_FILE=str(tmp_path / "fr_")) as (_, process):
        taken = records.Taken()
        records.files(PROC, [process], taken)
    return [piece["name"] for piece in taken.pieces] + taken.skipped


def test_a_dump_that_lies_there_is_taken(tmp_path: Path) -> None:
    (tmp_path / "fr_1").write_bytes(b"x")
    assert _taken(tmp_path) == [str(tmp_path / "fr_1")]


def test_a_dump_of_an_earlier_job_is_not(tmp_path: Path) -> None:
    (tmp_path / "fr_1").write_bytes(b"x")
    os.utime(tmp_path / "fr_1", (time.time() - 600, time.time() - 600))
    assert _taken(tmp_path) == []


def test_what_another_user_owns_a_link_and_a_pipe_are_not_read(tmp_path: Path) -> None:
    dump = tmp_path / "fr_1"
    dump.symlink_to("/etc/hostname")
    assert _taken(tmp_path) == []
    dump.unlink()
    os.mkfifo(dump)
    assert _taken(tmp_path) == []
    dump.unlink()
    dump.write_bytes(b"x")
    if os.geteuid() == 0:
        os.chown(dump, 1234, 1234)
        assert _taken(tmp_path) == []


def test_a_dump_that_is_too_large_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_MOST_BYTES", 10)
    (tmp_path / "fr_1").write_bytes(b"x" * 11)
    assert "11 bytes, more than 10" in _taken(tmp_path)[0]


def test_a_hostile_pickle_runs_nothing(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {tmp_path}/ran",)

    data = base64.b64encode(zlib.compress(pickle.dumps({"version": "2.9", "entries": [Evil()]}))).decode()
    [record] = received.records(
        [received.ReceivedPiece(job="a:1", rank=1, source="file", name="/tmp/fr_1", data=data)]
    )
    assert record.flight is not None
    assert [(refused.file, refused.hostile) for refused in record.flight.refused] == [("/tmp/fr_1", True)]
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("data", ["", "!!!", "AAAA", base64.b64encode(zlib.compress(b"")).decode()])
def test_a_damaged_piece_is_refused(data: str) -> None:
    [record] = received.records(
        [received.ReceivedPiece(job="a:1", rank=1, source="file", name="/tmp/fr_1", data=data)]
    )
    assert record.flight is not None
    assert len(record.flight.refused) == 1


def test_a_piece_that_unpacks_to_gigabytes_is_bounded() -> None:
    bomb = base64.b64encode(zlib.compress(bytes(64 * 2**20), 9)).decode()
    piece = received.ReceivedPiece(job="a:1", rank=1, source="file", name="/tmp/fr_1", data=bomb)
    assert len(received._data(piece)) == received._MOST_BYTES


# --- NCCL's log file


def test_nccls_own_log_is_read_as_logs_reads_it(tmp_path: Path) -> None:
    line = "h:{pid}:99 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4> with status=12 opcode=0 len=0\n"
    with _rank(_WAITS, tmp_path, NCCL_DEBUG_FILE=f"{tmp_path}/nccl.%h.%p") as (child, process):
        (tmp_path / f"nccl.h.{child.pid}").write_text(line.format(pid=child.pid))
        taken = records.Taken()
        records.files(PROC, [process], taken)
    [piece] = [
        received.ReceivedPiece(**{k: p[k] for k in received.ReceivedPiece.__struct_fields__}) for p in taken.pieces
    ]
    assert piece.source == "log"
    [record] = received.records([piece])
    assert record.logs is not None
    assert record.logs.events


# --- Torch's worker server


def test_a_worker_server_is_asked_on_a_socket_of_the_rank(tmp_path: Path) -> None:
    path, body = tmp_path / "server.sock", json.dumps({"version": "2.9", "entries": []}).encode()
    asked: list[bytes] = []

    def serve() -> None:
        for _ in range(2):
            talk, _ = door.accept()
            asked.append(talk.recv(4096).split(b" HTTP")[0])
            traced = b"fr_trace_json" in asked[-1]
            head = b"HTTP/1.1 200 OK" if traced else b"HTTP/1.1 404 Not Found"
            talk.sendall(head + b"\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            talk.close()

    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(path))
        door.listen()
        threading.Thread(target=serve, daemon=True).start()
        with _rank(_WAITS, tmp_path, TORCH_WORKER_SERVER_SOCKET=str(path)) as (_, process):
            taken = records.Taken()
            records.servers(PROC, [process], taken)
    assert asked == [b"POST /handler/dump_nccl_trace_json", b"POST /handler/fr_trace_json"]
    [piece] = taken.pieces
    assert zlib.decompress(base64.b64decode(piece["data"])) == body


def test_a_silent_server_is_left_alone_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_SERVER_S", 0.2)
    path = tmp_path / "server.sock"
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(path))
        door.listen()
        with _rank(_WAITS, tmp_path, TORCH_WORKER_SERVER_SOCKET=str(path)) as (_, process):
            taken, begun = records.Taken(), time.monotonic()
            records.servers(PROC, [process], taken)
            assert time.monotonic() - begun < 5
            monkeypatch.setattr(records, "_SERVERS_S", 0.1)
            records.servers(PROC, [process] * 3, taken)
    assert taken.pieces == []
    assert len(taken.skipped) == 2  # others than the first are not waited for as long


# --- GPUs and counters


@needs_gcc
def test_gpus_at_both_looks(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    lines = ("gpus = 2", "0 utilization = 100", "0 processes = 4000:1")
    env = environment(built(tmp_path_factory.mktemp("nvml")), tmp_path / "told", *lines)
    ran = subprocess.run([sys.executable, "-S", gpus.__file__, "0.1"], capture_output=True, timeout=60,
                          check=True, env={**os.environ, **env})  # fmt: skip
    answer = json.loads(ran.stdout)
    assert answer["problem"] == ""
    assert [gpu["index"] for gpu in answer["gpus"]] == [0, 1]
    assert [gpu["busy"] for gpu in answer["gpus"]] == [[100, 100], [0, 0]]
    assert [gpu["power_mw"] for gpu in answer["gpus"]] == [[69850, 69850]] * 2
    assert [gpu["pids"] for gpu in answer["gpus"]] == [[4000], []]


@needs_gcc
def test_a_lost_gpu_and_a_driver_that_fails(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    libraries = built(tmp_path_factory.mktemp("nvml"))
    for lines, wanted in ((("gpus = 1", "0 handle = 15"), (True, "")), (("init = 9",), (None, "NVML says 9"))):
        env = environment(libraries, tmp_path / "told", *lines)
        ran = subprocess.run([sys.executable, "-S", gpus.__file__, "0"], capture_output=True, timeout=60,
                              check=True, env={**os.environ, **env})  # fmt: skip
        answer = json.loads(ran.stdout)
        assert (answer["gpus"][0]["lost"] if answer["gpus"] else None, answer["problem"]) == wanted


def test_where_there_is_no_nvml_nothing_is_amiss() -> None:
    beside = gpus.GpuChild(Path(gpus.__file__).read_text(), 0.1)
    assert beside.answer() == {"gpus": [], "problem": ""}


def test_a_driver_that_hangs_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_MORE_S", 0.3)
    begun = time.monotonic()
    answer = gpus.GpuChild("import time; time.sleep(60)", 0.0).answer()
    assert "no answer in time" in answer["problem"]
    assert time.monotonic() - begun < 5


def test_what_an_hca_counted_between_the_looks(tmp_path: Path) -> None:
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    for name in ("counters", "hw_counters"):
        (port / name).mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    counts = {"counters/port_xmit_data": 100, "counters/port_rcv_data": 50, "hw_counters/local_ack_timeout_err": 3}
    for name, count in counts.items():
        (port / name).write_text(f"{count}\n")
    (tmp_path / "proc").mkdir()
    first = wires.counters(Proc(str(tmp_path)), "1")
    (port / "counters/port_xmit_data").write_text("110\n")
    (port / "hw_counters/local_ack_timeout_err").write_text("8\n")
    [counted] = wires.between(first, wires.counters(Proc(str(tmp_path)), "1"))
    assert (counted["name"], counted["state"], counted["sent"], counted["received"]) == (
        "mlx5_0:1",
        "4: ACTIVE",
        40,
        0,
    )
    assert counted["trouble"] == {"local_ack_timeout_err": 5}


def test_own_addresses_and_interfaces_are_told() -> None:
    processes = evidence.BesideProcesses(PROC, 0.0)
    processes.first([])
    last = processes.last()
    assert all(nic["kind"] in ("interface", "HCA") for nic in last["nics"])
    assert not any(address.startswith("127.") for address in last["addresses"])


def test_jobs_that_are_not_asked_are_told() -> None:
    rank = {
        "pid": os.getpid(),
        "helper": False,
        "scope": "",
        "moved": 0,
        "libraries": [],
        "rank": 0,
        "age_s": 99.0,
    }
    more = {"host": "a", "state": "S", "was": "S"}
    live = {"processes": [{**rank, **more, "job": f"a:{n}"} for n in range(6)]}
    live["processes"][0]["moved"] = 10**6
    left_out = evidence.further(PROC, live, [])["not_had"]
    assert [job["job"] for job in left_out] == ["a:5"]
    assert left_out[0]["why"] == "5 jobs stand still on this host, and 4 of them were asked"
