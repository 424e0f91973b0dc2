"""`ncclcheck script`: faulty sources are named, their sound twins are not; a printed diff ends a finding."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from ncclcheck.probes.facts import Cluster, Measurements
from ncclcheck.probes.script import reading, sources
from ncclcheck.reports.judgement import jsondoc
from ncclcheck.reports.judgement.findings import Finding, State
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from ncclcheck.reports.output.anonymise import anonymised
from ncclcheck.results import finish
from ncclcheck.run.plan.options import Options
from tests.conftest import Command

FOLDER = Path(__file__).resolve().parents[1] / "data/script"
RULES = [rule for rule in all_rules() if rule.code.startswith("SCR")]
CODES = sorted(path.name[:6] for path in FOLDER.glob("*_faulty.py"))


def _findings(name: str = "train.py") -> dict[str, list[Finding]]:
    script = reading.read([name], [])
    verdicts = judge(Cluster(command="script", measurements=Measurements(script=script)), RULES)
    return {one.code: one.findings for one in verdicts if one.findings}


def _put(folder: Path, source: str) -> None:
    (folder / "train.py").write_text((FOLDER / source).read_text())


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_rule_has_its_sources() -> None:
    assert [*CODES] == [rule.code for rule in RULES if rule.code != "SCR001"]


@pytest.mark.parametrize("code", CODES)
def test_a_faulty_source_is_named_with_its_line(code: str, tmp_path: Path) -> None:
    _put(tmp_path, f"{code}_faulty.py")
    found = _findings()
    assert code in found
    assert all(str(one.where).startswith("train.py:") for one in found[code])
    others = {other for other, findings in found.items() for one in findings if one.state is not State.NOTE}
    assert others <= {code}


@pytest.mark.parametrize("code", CODES)
def test_its_sound_twin_is_silent(code: str, tmp_path: Path) -> None:
    _put(tmp_path, f"{code}_sound.py")
    found = _findings()
    assert code not in found
    assert not [one for findings in found.values() for one in findings if one.state is not State.NOTE]


@pytest.mark.parametrize("code", CODES)
def test_a_printed_diff_ends_the_finding(code: str, tmp_path: Path) -> None:
    _put(tmp_path, f"{code}_faulty.py")
    remedies = [remedy for one in _findings()[code] for remedy in one.remedies if remedy.commands]
    assert bool(remedies) == (code not in _WITHOUT_DIFF)
    for remedy in remedies:
        diff = f"{remedy.commands[0]}\n"
        subprocess.run(["patch", "-p0"], input=diff, text=True, cwd=tmp_path, check=True, timeout=20)
        assert code not in _findings()


_WITHOUT_DIFF = {"SCR003", "SCR015", "SCR017", "SCR018", "SCR019", "SCR020"}


def test_imports_of_the_folder_are_followed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from tools import comm\nif comm.rank() == 0 and comm.is_main():\n    comm.sync()\n"
    )
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/__init__.py").write_text("")
    (tmp_path / "tools/comm.py").write_text("import torch.distributed as dist\ndef sync():\n    dist.barrier()\n")
    assert [str(one.where) for one in _findings()["SCR002"]] == ["train.py:3"]


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out.py").write_text("x = 1\n")
    (tmp_path / "in/other.py").symlink_to(tmp_path / "out.py")
    (tmp_path / "in/train.py").write_text("import other\n")
    assert [one.name for one in reading.read(["in/train.py"], []).files] == ["in/train.py"]


def test_an_import_that_is_broken_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import broken\n")
    (tmp_path / "broken.py").write_text("import torch.distributed\ndef (:\n")
    assert [one.state for one in _findings()["SCR001"]] == [State.UNKNOWN]


@pytest.mark.parametrize(
    "text",
    [
        "def (:\n", "x = '\0'\n", "-" * 50_000 + "1", "(" * 5_000 + ")" * 5_000, "a" + ".b" * 5_000,
        "x = 1\n" * 400_000,
        "\n".join(" " * at + "if x:" for at in range(300)), "+".join(["1"] * 3_000),
    ],
)  # fmt: skip
def test_hostile_sources_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(text)
    with pytest.raises(sources.NotRead, match=r"train\.py"):
        reading.read(["train.py"], [])


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.py").write_bytes(b"x = 1\n# caf\xe9\n")
    os.mkfifo(tmp_path / "pipe.py")
    for name, why in (
        ("latin.py", "latin.py:2: this is not UTF-8"),
        ("pipe.py", "regular"),
        ("none.py", "No such"),
    ):
        with pytest.raises(sources.NotRead, match=why):
            reading.read([name], [])


def test_two_hundred_files_in_a_second(tmp_path: Path) -> None:
    text = (FOLDER / "SCR009_faulty.py").read_text()
    for at in range(200):
        (tmp_path / f"part{at}.py").write_text(text)
    (tmp_path / "train.py").write_text("".join(f"import part{at}\n" for at in range(200)))
    begun = time.process_time()
    found = _findings()
    assert time.process_time() - begun < 5  # far more than it takes: what grows with the square would be seen
    assert len(found["SCR009"]) == 200


@pytest.mark.parametrize(
    ("source", "code"), [("SCR002_faulty.py", 1), ("SCR002_sound.py", 0), ("SCR004_faulty.py", 0)]
)
def test_the_command(source: str, code: int, ncclcheck: Command, tmp_path: Path) -> None:
    _put(tmp_path, source)
    ran = ncclcheck("script", "train.py", "-o", "json", "--save", "a.json", "--", "--lr", "0.1")
    assert ran.code == code
    script = ran.document.measurements.script
    assert script is not None
    assert script.arguments == ["--lr", "0.1"]
    assert ncclcheck("report", "a.json").code == code


def test_wrong_usage(ncclcheck: Command, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def (:\n")
    for given in ([], ["train.py"], ["none.py"]):
        ran = ncclcheck("script", *given)
        assert ran.code == 2
        assert "Traceback" not in ran.err


def test_preflight_judges_a_script_that_it_was_given(tmp_path: Path) -> None:
    _put(tmp_path, "SCR002_faulty.py")
    given = Measurements(script=reading.read(["train.py"], []))
    for measured, found in ((given, {"SCR002"}), (Measurements(), set())):
        verdicts = judge(Cluster(command="preflight", measurements=measured))
        assert {one.code for one in verdicts if one.code.startswith("SCR") and one.state is State.FAIL} == found


def test_preflight_refuses_a_script_that_is_not_there(ncclcheck: Command) -> None:
    ran = ncclcheck("preflight", "--script", "none.py")
    assert ran.code == 2
    assert "none.py: No such file" in ran.err


@pytest.mark.parametrize("code", CODES)
def test_an_anonymised_result_says_what_and_where_and_quotes_nothing(code: str, tmp_path: Path) -> None:
    _put(tmp_path, f"{code}_faulty.py")
    (tmp_path / "train.py").rename(tmp_path / "Zebra.py")
    script = reading.read(["Zebra.py"], ["--secret", "Quagga"])
    cluster = Cluster(command="script", measurements=Measurements(script=script))
    document = finish.make(cluster, Options(command="script", policy=cluster.policy), finish.Story("", 0.0))
    bare = anonymised(document)
    before = [(one.code, one.state) for one in document.verdicts]
    assert [(one.code, one.state) for one in bare.verdicts] == before
    found = next(one.findings for one in bare.verdicts if one.code == code)
    assert all(str(one.where).startswith("file1.py:") for one in found)
    text = jsondoc.encode(bare).decode()
    assert not [word for word in ("Zebra", "Quagga", "import torch", "init_process_group(") if word in text]
    again = judge(Cluster(command="script", measurements=bare.measurements), RULES)
    assert {one.state for one in again} == {State.UNKNOWN, State.SKIPPED}
