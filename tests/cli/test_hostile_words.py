"""Words of others never steer a terminal: names, values, lines, names of files, and what node rank 0 says."""

from __future__ import annotations

import io
import unicodedata
from pathlib import Path

import msgspec
import pytest

from ncclcheck.base import progress
from ncclcheck.probes.facts import Cluster, Job, JobEnd, Measurements, Run, Silence
from ncclcheck.probes.logs.reading import LogReading
from ncclcheck.reports.judgement import jsondoc
from ncclcheck.reports.output import junit, markdown, prometheus
from ncclcheck.reports.text.words.visible import in_json, visible
from ncclcheck.results import finish
from ncclcheck.run.plan.options import Options
from tests.conftest import Command
from tests.helpers import clusters

EVIL = "gpu\x1b]0;owned\x07\x1b[31m\r\u202etxt.exe\u2066\u200b\x9b2J\x7f\u2028\u2029\nDone: all is well"
_LINE = "Done: all is well"


def _steering(text: str) -> list[str]:
    bad = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return [c for c in text if unicodedata.category(c) in bad and c != "\n"]


def _document() -> jsondoc.Document:
    env = {
        "NCCL_SOCKET_IFNAME": EVIL,
        "NCCL_TOPO_FILE": f"/{EVIL}",
        "MASTER_ADDR": EVIL,
        "SLURM_JOB_NODELIST": EVIL,
    }
    nodes = [clusters.node(f"{EVIL}{at}", clusters.nic(f"eth{EVIL}", f"10.1.0.{at}/24"), env=env) for at in (1, 2)]
    run = Run(
        silent=[Silence(node=f"{EVIL}3", last_step=EVIL, since_s=1.0, detail=EVIL)],
        ends=[JobEnd(node=f"{EVIL}1", exit=1, detail=EVIL)],
        started_job=True,
    )
    job = Job(launcher="ssh", nodes_asked=3, nodes_answered=2, missing=[f"{EVIL}3"], chosen_by=EVIL)
    cluster = Cluster(command="bench", nodes=nodes, job=job, run=run)
    return finish.make(cluster, Options(command="bench"), finish.Story("2026-01-01", 1.0))


def _printed(document: jsondoc.Document, capfdbinary: pytest.CaptureFixture[bytes], **options: object) -> str:
    finish.deliver(document, Options(command=document.command, color="never", **options))  # type: ignore[arg-type]
    return capfdbinary.readouterr().out.decode()


@pytest.mark.parametrize("form", ["text", "short", "json"])
@pytest.mark.parametrize("verbose", [False, True])
def test_stdout(form: str, verbose: bool, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    text = _printed(_document(), capfdbinary, output=form, verbose=verbose)
    assert "gpu" in text
    assert _steering(text) == []
    assert not [line for line in text.splitlines() if line.startswith(_LINE)]


def test_our_own_colours_stay(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    finish.deliver(_document(), Options(command="bench", color="always"))
    text = capfdbinary.readouterr().out.decode()
    assert "\x1b[1;31mFAIL" in text
    assert "\x1b[31m" not in text


def test_markdown_and_the_other_files() -> None:
    document = _document()
    text = markdown.text(document)
    assert _steering(text) == []
    assert not [line for line in text.splitlines() if line.startswith(_LINE)]
    for other in (prometheus.text(document), junit.text(document)):
        assert not [c for c in other if c in "\x1b\x07\x00\x08"]


def test_a_line_of_a_log(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    line = EVIL.replace("\n", "")
    log = f"gpu-a17:4711:4800 [3] misc/socket.cc:50 NCCL WARN Connect to {line} failed\n" * 2
    log += f"[rank0]: RuntimeError: {line} NCCL error in: x.cpp:1, unhandled system error\n"
    reading = LogReading()
    reading.take(f"{EVIL}.log", io.BytesIO(log.encode()))
    cluster = Cluster(command="logs", measurements=Measurements(logs=reading.logs()))
    document = finish.make(cluster, Options(command="logs"), finish.Story("2026-01-01", 1.0))
    for verbose in (False, True):
        assert _steering(_printed(document, capfdbinary, verbose=verbose)) == []
    assert _steering(markdown.text(document)) == []


@pytest.mark.parametrize(
    "arguments", [["report"], ["logs"], ["env", "--from"], ["explain"], ["env", "--hostfile"]]
)
def test_the_name_of_a_file_in_a_complaint(arguments: list[str], ncclcheck: Command) -> None:
    ran = ncclcheck(*arguments, EVIL)
    assert ran.code == 2
    assert ran.err.count("\n") == 1
    assert _steering(ran.err) == []


def test_stderr_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    shown = progress.Progress()
    for say in (progress.complain, shown.say, shown.stage, shown.waiting):
        say(f"node: {EVIL}")
        output = capsys.readouterr().err
        assert (output.count("\n"), _steering(output)) == (1, [])


def test_a_line_that_is_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr("sys.stderr", written)
    shown = progress.Progress()
    shown.tty = True
    for say in (shown.step, shown.stage, shown.waiting):
        say(EVIL)
    assert _steering(written.getvalue().replace("\r\x1b[K", "")) == []


def test_json_says_the_same_and_may_be_printed() -> None:
    text = '{"a": "\u202e \x7f é \U000e0001 \ud83d"}'
    assert in_json('{"a": "é"}') == '{"a": "é"}'
    assert msgspec.json.decode(in_json('{"a": "\u202e \x7f é \U000e0001"}')) == {"a": "\u202e \x7f é \U000e0001"}
    assert _steering(in_json(text)) == []


def test_a_text_that_can_be_seen_is_left_alone() -> None:
    assert visible("é 漢字 – \n\ta") == "é 漢字 – \n\ta"


def test_a_report_of_a_file(ncclcheck: Command, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(jsondoc.encode(_document()))
    ran = ncclcheck("report", "a.json", "-v")
    assert ran.out
    assert _steering(ran.out + ran.err) == []
