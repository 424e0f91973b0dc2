"""`ncclcheck logs` as people use it: what it reads, who said what, every form of its report, its exit codes."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from ncclcheck.base.errors import UsageError
from ncclcheck.commands import logs
from ncclcheck.probes.facts import LogEvent
from ncclcheck.probes.logs.files import sources
from ncclcheck.reports.judgement import jsondoc
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.run.plan.options import Options
from tests.conftest import Command, environment
from tests.helpers.logs import parsed

_START = """\
gpu-a17:4711:4711 [0] NCCL INFO Bootstrap : Using eth0:10.0.3.17<0>
gpu-a17:4711:4800 [0] NCCL INFO comm 0x5500 rank 0 nranks 2 cudaDev 0 busId 1b000 commId 0x77 - Init START
gpu-a18:4712:4801 [0] NCCL INFO comm 0x5600 rank 1 nranks 2 cudaDev 0 busId 1b000 commId 0x77 - Init START
gpu-a17:4711:4800 [0] NCCL INFO comm 0x5500 rank 0 nranks 2 cudaDev 0 busId 1b000 commId 0x77 - Init COMPLETE
gpu-a18:4712:4801 [0] NCCL INFO comm 0x5600 rank 1 nranks 2 cudaDev 0 busId 1b000 commId 0x77 - Init COMPLETE
"""
_DESTROYED = """\
gpu-a17:4711:4711 [0] NCCL INFO comm 0x5500 rank 0 nranks 2 cudaDev 0 busId 1b000 - Destroy COMPLETE
gpu-a18:4712:4712 [0] NCCL INFO comm 0x5600 rank 1 nranks 2 cudaDev 0 busId 1b000 - Destroy COMPLETE
"""
_FULL = """\
gpu-a18:4712:4801 [0] NCCL WARN Error: failed to extend /dev/shm/nccl-x6bwvx to 9637892 bytes
gpu-a17:4711:4800 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer gpu-a18<40112>
"""
FAILED = _START + _FULL
_PLACE = "train.log:6"

Told = Callable[..., tuple[int, Document]]


@pytest.fixture
def logs_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Told:
    """Run the command in this process on files below tmp_path: exit code and document."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sources, "_SILENCE_S", 0.2)

    def run(*names: str) -> tuple[int, Document]:
        code = logs.run(Options(command="logs", output="json"), names)
        out = capsysbinary.readouterr().out
        assert out.count(b"\n") == 1
        return code, msgspec.json.decode(out, type=Document)

    return run


def _cause(document: Document) -> tuple[str, str, str]:
    assert document.diagnosis is not None
    first = document.diagnosis.causes[0]
    return first.code, first.where.node or "", first.place


# What it reads


@pytest.mark.parametrize(
    ("files", "asked", "read"),
    [
        ({"train.log": FAILED}, ["train.log"], ["train.log"]),
        ({"a.log": _START, "train.log": FAILED}, ["a.log", "train.log"], ["a.log", "train.log"]),
        ({"train.log": FAILED}, ["train.log", "./train.log", "train.log"], ["train.log", "./train.log"]),
        ({"d/0/out": _START, "d/1/err": FAILED}, ["d"], ["d/0/out", "d/1/err"]),
        ({"d/0/out": _START, "d/1/err": FAILED}, ["d/*/err"], ["d/1/err"]),
        ({"d/0/out": _START, "d/e/f/g": FAILED}, ["d/**"], ["d/0/out", "d/e/f/g"]),
        ({"[x].log": FAILED}, ["[x].log"], ["[x].log"]),
    ],
)
def test_names_stand_for_files(
    logs_of: Told, tmp_path: Path, files: dict[str, str], asked: list[str], read: list[str]
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    code, document = logs_of(*asked)
    assert document.measurements.logs is not None
    assert [file.name for file in document.measurements.logs.files] == read
    assert (code, _cause(document)[:2]) == (1, ("LOG050", "gpu-a18"))


@pytest.mark.parametrize("asked", ["nothing.log", "*.nothing", "empty", "a\0b", "d/**/x"])
def test_a_name_that_stands_for_no_file_is_wrong_usage(logs_of: Told, tmp_path: Path, asked: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="logs: "):
        logs_of(asked)


def _forms() -> dict[str, bytes]:
    lines = FAILED.splitlines()
    bar = "".join(f"\r{percent}%|#####" for percent in range(100))
    glued = "\n".join([*lines[:5], lines[5] + lines[6]])
    return {
        "plain": FAILED.encode(),
        "no newline at the end": FAILED.rstrip().encode(),
        "CRLF": FAILED.replace("\n", "\r\n").encode(),
        "gzip": gzip.compress(FAILED.encode()),
        "gzip in two members": gzip.compress(_START.encode()) + gzip.compress(_FULL.encode()),
        "UTF-16 of a Windows shell": FAILED.replace("\n", "\r\n").encode("utf-16"),
        "UTF-16, the other way round": b"\xfe\xff" + FAILED.encode("utf-16-be"),
        "UTF-8 with its mark": FAILED.encode("utf-8-sig"),
        "colours": "\n".join(f"\x1b[1;36m{line}\x1b[0m" for line in lines).encode(),
        "progress bars": "\n".join([*lines[:5], f"{bar}\r{lines[5]}", lines[6]]).encode(),
        "two records on one line": glued.encode(),
        "bytes that are no text": FAILED.encode().replace(b"nccl-x6", b"nccl-\xff\x80\0"),
        "a line of 5 MB before": "\n".join([*lines[:4], "x" * 5_000_000, *lines[5:]]).encode(),
        "a line that is 5 MB long": "\n".join([*lines[:5], lines[5] + "y" * 5_000_000, *lines[6:]]).encode(),
    }


@pytest.mark.parametrize("form", _forms())
def test_the_cause_is_found_at_its_line_in_every_form(logs_of: Told, tmp_path: Path, form: str) -> None:
    (tmp_path / "train.log").write_bytes(_forms()[form])
    code, document = logs_of("train.log")
    assert (code, *_cause(document)) == (1, "LOG050", "gpu-a18", _PLACE)


def test_what_came_before_the_end_of_a_damaged_file_counts(logs_of: Told, tmp_path: Path) -> None:
    packed = gzip.compress(FAILED.encode() + os.urandom(100_000))
    (tmp_path / "cut.log.gz").write_bytes(packed[:-50_000])
    (tmp_path / "bad.log.gz").write_bytes(gzip.compress(_START.encode())[:-8] + b"damaged!")
    code, document = logs_of("cut.log.gz", "bad.log.gz")
    assert (code, _cause(document)[0]) == (1, "LOG050")
    assert document.measurements.logs is not None
    cut, bad = document.measurements.logs.files
    assert "cut off" in cut.problem
    assert "CRC" in bad.problem
    assert cut.lines > 7
    assert bad.lines == 5


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("empty", ""),
        ("link", "No such file"),
        ("/dev/zero", "device"),
        ("/proc/self/mem", "Input/output error"),  # opens, and reading fails
        ("pipe", "brought nothing for 0 s"),
        ("silent", "brought nothing for 0 s"),
    ],
)
def test_what_cannot_be_read_is_said_and_is_no_health(
    logs_of: Told, tmp_path: Path, name: str, problem: str
) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "link").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "silent")
    holder = os.open(tmp_path / "silent", os.O_RDWR)  # a writer that says nothing
    begun = time.monotonic()
    code, document = logs_of(name)
    os.close(holder)
    assert time.monotonic() - begun < 10
    assert (code, document.state, document.exit_code) == (3, "incomplete", 3)
    assert document.measurements.logs is not None
    assert problem in document.measurements.logs.files[0].problem
    (tmp_path / "train.log").write_text(FAILED)
    assert logs_of(name, "train.log")[0] == 1


def test_a_pipe_is_read_as_long_as_it_brings_something(logs_of: Told, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = subprocess.Popen(["sh", "-c", "cat train.log > pipe; exec sleep 0"], cwd=tmp_path)
    (tmp_path / "train.log").write_text(FAILED)
    code, document = logs_of("pipe")
    writer.wait(timeout=10)
    assert (code, _cause(document)) == (1, ("LOG050", "gpu-a18", "pipe:6"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (_START, "do not show that the job ended or went on"),
        (_START + _DESTROYED, "Healthy"),
        (_START + "step 100 loss 2.31\n", "No failure so far"),
        (_START + "a word of the program\n" * 3, "do not show that the job ended or went on"),
        (_START + "a word of the program\n" * 10, "No failure so far"),
        (_START + "# Avg bus bandwidth    : 41.8\n", "Healthy"),
        ("step 1\nstep 2\n", "no line is NCCL's, torch's or a launcher's"),
        ("\0\xff\n" * 50, "no line is NCCL's, torch's or a launcher's"),
    ],
)
def test_health_is_said_of_known_lines_only(ncclcheck: Command, tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "a.log").write_text(text)
    ran = ncclcheck("logs", "a.log")
    assert ran.code == (0 if words in ("Healthy", "No failure so far") else 3)
    assert words in " ".join(ran.out.split())


# Who said it


_SAID = "RuntimeError: shape '[4, 8]' is invalid for input of size 31"
_OF_17 = "gpu-a17:4711:4800 [0] NCCL INFO comm 0x5 rank 6 nranks 8 cudaDev 0 busId a commId 0x7 - Init COMPLETE"
_OF_18 = "gpu-a18:4711:4800 [0] NCCL INFO comm 0x5 rank 7 nranks 8 cudaDev 0 busId a commId 0x7 - Init COMPLETE"


@pytest.mark.parametrize(
    ("mine", "other"),
    [
        ("6: ", "7: "),  # srun --label
        ("[default6]:", "[default7]:"),  # torchrun --tee
        ("[trainer6]:", "[trainer7]:"),  # torchrun --role
        ("[1,6]<stdout>:", "[1,7]<stdout>:"),  # mpirun --tag-output
        ("[prterun-gpu-a17-4711@1,6]<stderr>:", "[prterun-gpu-a17-4711@1,7]<stderr>:"),  # mpirun 5
        ("[1,mpirank:6,algo-1]<stdout>:", "[1,mpirank:7,algo-2]<stdout>:"),  # SageMaker
        ("(RayTrainWorker pid=4711, ip=10.0.3.17) ", "(RayTrainWorker pid=4711, ip=10.0.3.18) "),
        ("\x1b[36m(Worker pid=81)\x1b[0m ", "\x1b[36m(Worker pid=82)\x1b[0m "),
        ("[pod/train-0/worker] ", "[pod/train-1/worker] "),  # kubectl logs --prefix
        ("[pod/train-0/w] 2026-03-01T10:00:00.123456789Z ", "[pod/train-1/w] 2026-03-01T10:00:01.123456789Z "),
        ("trainer-1  | ", "trainer-2  | "),  # docker compose
        ("gpu-a17: ", "gpu-a18: "),  # pdsh
        ("0: [default6]:", "1: [default6]:"),  # torchrun --tee below srun --label
        ("[rank6]: ", "[rank7]: "),  # torch itself
        ("2026-03-01T10:00:00.123456789Z stderr F [rank6]: ", "2026-03-01T10:00:00.123456789Z stderr F [rank7]: "),
    ],
)
def test_a_line_is_of_the_process_that_its_prefix_stands_for(mine: str, other: str) -> None:
    """NCCL's own lines tell which process wrote under a prefix, and all its other lines are its too."""
    log = f"{mine}{_OF_17}\n{other}{_OF_18}\nstep 3\n{mine}{_SAID}\n"
    (event,) = _errors(log)
    assert (event.host, event.pid, event.rank, event.text) == ("gpu-a17", 4711, 6, _SAID)


@pytest.mark.parametrize(
    ("prefix", "host", "rank"),
    [
        ("gpu-a17: ", "gpu-a17", None),
        ("gpu-a17.example.org: [rank3]: ", "gpu-a17", 3),
        ("[1,3]<stderr>:", "", 3),
        ("(Worker pid=4711, ip=10.0.3.17) ", "10.0.3.17", None),
        ("3: ", "", None),  # of tasks it is not known how many ranks each has
        ("error: ", "", None),
    ],
)
def test_without_lines_of_nccl_only_what_the_prefix_says_is_known(
    prefix: str, host: str, rank: int | None
) -> None:
    events = _errors(f"{prefix}{_SAID}\n")
    assert [(event.host, event.rank) for event in events] == ([] if prefix == "error: " else [(host, rank)])


def test_a_file_of_one_process_is_its_own() -> None:
    facts = parsed(f"{_OF_17}\n{_SAID}\n", f"{_OF_18}\n{_SAID}\n")
    raised = [(event.file, event.rank) for event in facts.events if event.sign == "python-error"]
    assert raised == [("log", 6), ("log1", 7)]


def _errors(text: str) -> list[LogEvent]:
    return [event for event in parsed(text).events if event.sign == "python-error"]


# The command as a process: streams, forms of the report, exit codes


def test_nothing_given_is_wrong_usage(ncclcheck: Command) -> None:
    ran = ncclcheck("logs")
    assert (ran.code, ran.out) == (2, "")
    assert "ncclcheck logs FILE" in ran.err


def test_stdin_is_read_and_never_waited_for_without_a_limit() -> None:
    argv = [sys.executable, "-m", "ncclcheck", "logs", "-", "-o", "json", "--deadline", "1.5"]
    given = subprocess.run(
        argv, input=FAILED.encode(), env=environment(), capture_output=True, timeout=60, check=False
    )
    assert given.returncode == 1
    assert _cause(msgspec.json.decode(given.stdout, type=Document))[2] == "standard input:6"
    silent, writer = os.pipe()
    os.write(writer, FAILED.encode())
    part = subprocess.run(argv, stdin=silent, env=environment(), capture_output=True, timeout=60, check=False)
    os.close(writer)
    os.close(silent)
    document = msgspec.json.decode(part.stdout, type=Document)
    assert _cause(document)[0] == "LOG050"
    assert document.measurements.logs is not None
    assert re.search("not waited for|deadline passed", document.measurements.logs.files[0].problem)


def test_stdout_is_one_document_and_may_be_closed(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(FAILED)
    command = f"'{sys.executable}' -m ncclcheck logs train.log"
    for shell in (f"{command} >&-", f"{command} | true; exit ${{PIPESTATUS[0]}}", f"{command} - <&- 2>&1"):
        done = subprocess.run(
            ["bash", "-c", shell], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
        assert done.returncode == 1, shell
        assert "Traceback" not in done.stdout + done.stderr


def test_every_form_tells_the_story(ncclcheck: Command, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(FAILED)
    ran = ncclcheck(
        "logs", "train.log", "--save", "a.json", "--markdown", "a.md", "--junit", "a.xml", "--prometheus", "a.prom"
    )
    assert ran.code == 1
    assert ran.err == ""
    for form in (ncclcheck("logs", "train.log", "-v").out, (tmp_path / "a.md").read_text()):
        assert "What happened first: train.log:6" in form
        assert "Follows from it, and is no cause:" in form
        assert "2 ranks, all heard of" in form
    assert (
        ran.out.splitlines()[-1] == "Cause: LOG050 on gpu-a18 rank 1, sure: the only cause that these lines show."
    )
    failed = ElementTree.parse(tmp_path / "a.xml").findall(".//failure")
    assert "LOG050" in {failure.get("type") for failure in failed}
    assert 'ncclcheck_state{state="fail"} 1' in (tmp_path / "a.prom").read_text()
    again = ncclcheck("report", "a.json")
    assert (again.code, again.out) == (1, ran.out)
    short = ncclcheck("report", "a.json", "-o", "short")
    assert short.out.splitlines()[-1].startswith("Cause: LOG050")
    assert jsondoc.decode((tmp_path / "a.json").read_bytes(), Options(command="logs").policy)


def test_the_page_tells_the_story(logs_of: Told, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from ncclcheck.reports.output import html  # noqa: PLC0415 - wants the extra

    (tmp_path / "train.log").write_text(FAILED.replace("nccl-x6bwvx", "<b>x"))
    page = html.text(logs_of("train.log")[1])
    assert "What happened first: train.log:6" in page
    assert "<b>x" not in page


@pytest.mark.parametrize(
    ("text", "options", "code"),
    [
        (_START, [], 3),
        (_START, ["--ignore", "LOG007"], 0),
        (_START + _DESTROYED, [], 0),
        (_START + _DESTROYED, ["--strict"], 0),
        (FAILED, [], 1),
        (FAILED, ["--ignore", "LOG"], 0),
        (FAILED, ["--only", "LOG002"], 0),
        ("", [], 3),
        ("", ["--strict"], 1),
        (FAILED, ["--only", "XYZ"], 2),
    ],
)
def test_exit_codes(ncclcheck: Command, tmp_path: Path, text: str, options: list[str], code: int) -> None:
    (tmp_path / "train.log").write_text(text)
    assert ncclcheck("logs", "train.log", *options).code == code


def test_what_a_site_requires_of_its_nodes_is_not_asked_of_logs(ncclcheck: Command, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(_START + _DESTROYED)
    (tmp_path / "ncclcheck.toml").write_text('contact = "help@example.org"\n[require]\ngpu = 8\nNCC002 = true\n')
    ran = ncclcheck("logs", "train.log", "-q")
    assert (ran.code, ran.out) == (0, "")


def test_no_name_is_left_when_it_is_to_be_hidden(ncclcheck: Command, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/llama-of-alice.out").write_text(_ANONYMOUS)
    hidden = ncclcheck("logs", "runs", "--anonymise", "--save", "a.json", "--markdown", "a.md", "--junit", "a.xml")
    everything = "".join((tmp_path / name).read_text() for name in ("a.json", "a.md", "a.xml")) + hidden.out
    assert [name for name in _SECRET if name in everything] == []
    shown = ncclcheck("logs", "runs")
    assert [name for name in _SECRET if name not in _ANONYMOUS + "llama-of-alice.out"] == []
    assert hidden.code == shown.code == 1
    assert hidden.out.count("FAIL") == shown.out.count("FAIL")
    assert ncclcheck("report", "a.json").out == hidden.out


_SECRET = ["zebra", "alice", "llama", "10.31.7.", "b8:3f:d2", "2001:610", "quagga", "okapi", "tapir"]
_ANONYMOUS = """\
zebra17:4711:4711 [0] NCCL INFO Bootstrap : Using eth0:10.31.7.17<0>
zebra17:4711:4800 [0] NCCL INFO NCCL_TOPO_FILE set by environment to /home/alice/topo.xml
zebra17:4711:4800 [0] NCCL INFO comm 0x5500 rank 0 nranks 2 cudaDev 0 busId 1b000 commId 0x77 - Init START
zebra17:4711:4800 [0] NCCL WARN Error: failed to extend /dev/shm/nccl-x6bwvx to 9637892 bytes
zebra17:4711:4800 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer quagga18<40112>
[rank0]:[W1109 22:47:02.100 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=3, addr=[okapi1]:49152, \
remote=[okapi1]:29500): Connection reset by peer
[rank0]:   File "/home/alice/llama/../llama/train.py", line 118, in main
[rank0]: FileNotFoundError: [Errno 2] No such file or directory: '/scratch/alice/llama/x.bin'
[rank0]: RuntimeError: peer [2001:610:1::7]:29500 with b8:3f:d2:0a:7c:91 at 10.31.7.18 is gone
srun: error: tapir[03-04]: tasks 8-15: Terminated
"""


def test_an_empty_folder_beside_a_log_is_a_note(logs_of: Told, tmp_path: Path) -> None:
    """A rank that was killed leaves no dump: the folder for them is empty, and the log is judged all the same."""
    (tmp_path / "train.log").write_text(FAILED)
    (tmp_path / "flight").mkdir()
    code, document = logs_of("train.log", "flight")
    assert (code, _cause(document)[0]) == (1, "LOG050")
    (verdict,) = [verdict for verdict in document.verdicts if verdict.code == "LOG003"]
    assert (verdict.findings[0].state.value, verdict.findings[0].what) == ("note", "flight holds no file")
    with pytest.raises(UsageError, match="'flight' holds no file"):
        logs_of("flight")
