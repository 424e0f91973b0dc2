"""Files to write: tried before anything is measured, and a defect of one renderer takes no other away."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclcheck.base.errors import UsageError
from ncclcheck.reports.judgement import jsondoc
from ncclcheck.reports.output import markdown
from ncclcheck.results import outputs
from ncclcheck.run.plan.options import Options
from tests.conftest import Command
from tests.helpers import stories

_FORMS = ("json", "save", "markdown", "junit", "prometheus", "env-file", "nccl-conf")


@pytest.mark.parametrize("option", _FORMS)
def test_a_path_that_cannot_be_written_ends_it_before_anything_runs(ncclcheck: Command, option: str) -> None:
    ran = ncclcheck("env", f"--{option}", "no/such/folder/file")
    assert (ran.code, ran.out) == (2, "")
    assert (
        ran.err == f"ncclcheck: --{option}: 'no/such/folder/file' cannot be written: No such file or directory\n"
    )


def test_html_without_its_extra_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "find_spec", lambda name: None if name == "jinja2" else object())
    with pytest.raises(UsageError, match=r"--html: it needs jinja2; type: pip install 'ncclcheck\[report\]'"):
        outputs.check(Options(command="env", html_file="x.html"))


def test_every_file_of_a_run_tells_of_the_same_run(ncclcheck: Command, tmp_path: Path) -> None:
    given = [part for form in _FORMS for part in (f"--{form}", f"out.{form}")]
    ran = ncclcheck("env", "-o", "json", *given)
    assert ran.code == 0, ran.err
    written = {form: (tmp_path / f"out.{form}").read_text() for form in _FORMS}
    assert written["json"] == written["save"] == ran.out
    assert written["junit"].count("<testcase ") == len(ran.document.verdicts)
    assert f"ncclcheck_duration_seconds {ran.document.seconds}" in written["prometheus"]
    assert written["markdown"].startswith("## ncclcheck ")
    assert not list(tmp_path.glob("*.part"))


def test_a_defect_in_one_form_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(markdown, "text")
    document = stories.document("healthy")
    options = Options(command="bench", markdown_file=str(tmp_path / "m"), json_file=str(tmp_path / "%n.json"))
    assert not outputs.write_all(document, options, "gpu/1")
    assert (tmp_path / "gpu_1.json").read_bytes() == jsondoc.encode(document)
    assert "in --markdown: AttributeError" in capsys.readouterr().err
