"""The forms of recommended settings: each is read back by what it is for, with hostile values."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclcheck.probes.machine.software.nccl_files import parse_conf
from ncclcheck.reports.judgement.jsondoc import Recommendation
from ncclcheck.reports.output import settings_forms

HOSTILE = [
    "=eth0,eth1",
    "^docker0",
    "two words",
    "it's",
    '"quoted"',
    "$(touch /tmp/pwned)",
    "`id`",
    "a;b&c|d>e",
    "back\\slash",
    "-n",
    "*",
    "~",
    "",
    "line\nrm -rf nothing",
    "\t",
    "ünïcode",
    "!history",
]


def rec(variable: str = "NCCL_A", value: str | None = "1", action: Any = "set", **changes: Any) -> Recommendation:
    given: dict[str, Any] = {
        "why": "Because.", "evidence": ["seen"], "source": "s", "basis": "rule", "gain": "", "risk": "",
        "valid_for": "every NCCL", "undo": f"unset {variable}",
        "set_in": [] if action == "set" else ["environment"],
    }  # fmt: skip
    return Recommendation(variable=variable, value=value, action=action, **{**given, **changes})


def sourced(script: str, tmp_path: Path, **before: str) -> dict[str, str]:
    """The environment after /bin/sh has sourced a script."""
    path = tmp_path / "nccl.env"
    path.write_text(script)
    run = subprocess.run(
        ["/bin/sh", "-eu", "-c", '. "$0" && exec env -0', str(path)],
        env={"PATH": os.environ["PATH"], **before},
        capture_output=True,
        check=True,
        timeout=20,
    )
    assert run.stderr == b""
    pairs = (entry.partition("=") for entry in run.stdout.decode().split("\0") if entry)
    return {name: value for name, _, value in pairs}


@pytest.mark.parametrize("value", HOSTILE)
def test_the_script_sets_exactly_the_value(value: str, tmp_path: Path) -> None:
    assert sourced(settings_forms.env_file([rec(value=value)]), tmp_path)["NCCL_A"] == value


@given(st.text(alphabet=st.characters(exclude_characters="\0\r", exclude_categories=["Cs"]), max_size=40))
@settings(max_examples=25, deadline=None)
def test_no_text_breaks_out_of_a_script(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    recs = [rec(value=text, why=text), rec("NCCL_B", None, "unset", why=text, set_in=[text, "environment"])]
    after = sourced(settings_forms.env_file(recs), tmp_path_factory.mktemp("s"), NCCL_B="x")
    assert after["NCCL_A"] == text
    assert set(after) - {"PWD", "OLDPWD", "SHLVL", "_"} == {"PATH", "NCCL_A"}


def test_the_script_takes_away_and_tries_nothing(tmp_path: Path) -> None:
    recs = [rec("NCCL_A", None, "unset"), rec("NCCL_B", "4", "try"), rec("NCCL_C", "3", "keep")]
    after = sourced(settings_forms.env_file(recs), tmp_path, NCCL_A="1", NCCL_C="3")
    assert "NCCL_A" not in after
    assert "NCCL_B" not in after
    assert after["NCCL_C"] == "3"
    assert "ncclcheck bench --with NCCL_B=4" in settings_forms.env_file(recs)


def test_a_line_of_a_file_is_named_for_it_cannot_be_taken_away_by_a_script() -> None:
    script = settings_forms.env_file([rec("NCCL_A", None, "unset", set_in=["/etc/nccl.conf:3"])])
    assert "# NCCL_A stands in /etc/nccl.conf:3: take that line out" in script
    assert "unset NCCL_A" not in script


def test_a_name_that_is_none_is_left_out(tmp_path: Path) -> None:
    recs = [rec("NCCL_A; touch pwned"), rec("NCCL_A\nB", None, "unset"), rec("NCCL_B")]
    for form in (settings_forms.env_file, settings_forms.sbatch, settings_forms.torchrun, settings_forms.docker):
        assert "pwned" not in form(recs)
    assert sourced(settings_forms.env_file(recs), tmp_path)["NCCL_B"] == "1"


@pytest.mark.parametrize("value", HOSTILE)
def test_nccl_reads_exactly_the_value_or_no_line(value: str) -> None:
    read = {line.name: line.value for line in parse_conf(settings_forms.nccl_conf([rec(value=value)]))}
    assert read == ({} if "\n" in value else {"NCCL_A": value})


def test_nccls_file_sets_only_what_nccl_reads_and_takes_nothing_away() -> None:
    text = settings_forms.nccl_conf(
        [rec("GLOO_SOCKET_IFNAME", "eth0"), rec("NCCL_B", None, "unset"), rec("NCCL_C", "x" * 2000)]
    )
    assert parse_conf(text) == []
    assert "GLOO_SOCKET_IFNAME is not read from this file" in text
    assert "remove it from the job's environment" in text


@pytest.mark.parametrize("value", HOSTILE)
def test_other_forms_carry_exactly_the_value(value: str) -> None:
    recs = [rec(value=value), rec("NCCL_B", None, "unset")]
    words = shlex.split(settings_forms.docker(recs).replace("\\\n", ""))
    assert words[words.index("-e") + 1] == f"NCCL_A={value}"
    assert words[-4:] == ["-u", "NCCL_B", "torchrun", "..."]
    assert f"NCCL_A={value}" in shlex.split(settings_forms.torchrun(recs))
    container = yaml.safe_load(settings_forms.kubernetes(recs))
    assert container == {"env": [{"name": "NCCL_A", "value": value.replace("$(", "$$(")}]}


def test_torchrun_gets_its_variables_and_loses_others() -> None:
    run = settings_forms.torchrun([rec(), rec("NCCL_B", None, "unset")]).replace("torchrun ...", "env")
    env = {"PATH": os.environ["PATH"], "NCCL_B": "1"}
    out = subprocess.run(
        ["/bin/sh", "-c", run], env=env, capture_output=True, text=True, check=True, timeout=20
    ).stdout
    assert "NCCL_A=1" in out.splitlines()
    assert "NCCL_B" not in out


def test_the_way_back_brings_back_what_was(tmp_path: Path) -> None:
    recs = [rec("NCCL_A", "2", undo="export NCCL_A=1"), rec("NCCL_B", None, "unset", undo="export NCCL_B='a b'")]
    before = {"NCCL_A": "1", "NCCL_B": "a b"}
    script = settings_forms.env_file(recs) + settings_forms.revert(recs)
    after = sourced(script, tmp_path, **before)
    assert {name: after[name] for name in before} == before


def test_nothing_to_set_is_still_a_script(tmp_path: Path) -> None:
    assert "NCCL" not in "".join(sourced(settings_forms.env_file([]), tmp_path))
    assert settings_forms.kubernetes([]) == "env: []\n"
