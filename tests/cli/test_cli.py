"""The command line as users meet it: wrong input is one clear line and exit 2, odd places are survived."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from shlex import quote

import click
import jsonschema
import pytest

from ncclcheck import cli
from ncclcheck.reports.judgement import jsondoc
from ncclcheck.run.plan.option_table import GROUPS
from tests.conftest import ROOT, Command, environment
from tests.helpers import stories

WRONG = [
    (("bench", "--ops", "all_reduce,nonsense"), "--ops", "broadcast"),
    (("bench", "--sizes", "1Q"), "--sizes", "1K:256M:x4"),
    (("bench", "--sizes", "1M:1K"), "--sizes", "larger than its last"),
    (("bench", "--sizes", "1:1G:+1"), "--sizes", "100"),
    (("bench", "--sizes", "0"), "--sizes", "1 to 1T"),
    (("bench", "--nodes", "0"), "--nodes", "1 to 64"),
    (("bench", "--nodes", "two"), "--nodes", "whole numbers"),
    (("bench", "--nodes", "2", "--nproc-per-node", "5000"), "--nproc-per-node", "allowed are 1 to"),
    (("bench", "--nproc-per-node", "0"), "--nproc-per-node", "1 to 1024"),
    (("bench", "--time-budget", "0"), "--time-budget", "0.1 to"),
    (("bench", "--time-budget", "long"), "--time-budget: 'long'", "0.1 to 86400 seconds"),
    (("bench", "--soak", "abc"), "--soak: 'abc'", "1 to 86400 seconds"),
    (("bench", "--soak", "nan"), "--soak: nan", "1 to 86400 seconds"),
    (("bench", "--wait", "1e9"), "--wait", "1 to 86400 seconds"),
    (("bench", "--inject", "slow-rank=1,slow-rank=1:3ms"), "slow-rank=1", "one slow-rank a rank"),
    (("bench", "--reduce-op", "premul_sum", "--dtype", "int8"), "--reduce-op", "float32"),
    (("bench", "--reduce-op", "band", "--dtype", "float32"), "--reduce-op", "int32"),
    (("bench", "--reduce-op", "mean"), "--reduce-op", "premul_sum"),
    (("bench", "--backend", "mpi"), "--backend", "gloo"),
    (("bench", "--backend", "nccl"), "--backend nccl", "auto, gloo"),
    (("bench", "--rdzv-endpoint", "nowhere"), "--rdzv-endpoint", "HOST:PORT"),
    (("env", "--launch", "slurm"), "--launch slurm", "SLURM_JOB_NODELIST"),
    (("env", "--deadline", "-3"), "--deadline", "1 to 86400"),
    (("env", "--deadline", "soon"), "--deadline: 'soon'", "1 to 86400 seconds"),
    (("env", "--only", "XYZ"), "--only", "families are"),
    (("env", "--ignore", "NET999"), "--ignore", "families are"),
    (("env", "--require", "gpus=8"), "--require", "gpu=N"),
    (("env", "--sysroot", "/nowhere"), "--sysroot", "no directory"),
    (("env", "--json", "/nowhere/x.json"), "--json", "cannot be written"),
    (("env", "--save", "/"), "--save", "cannot be written"),
    (("env", "--from", "/nowhere.json"), "--from", "cannot be read"),
    (("env", "--baseline", "/nowhere.json"), "--baseline", "cannot be read"),
    (("report",), "report", "report FILE"),
    (("report", "/nowhere.json"), "report", "cannot be read"),
    (("report", "a.json", "b.json"), "report", "a.json cannot be read"),
    (("report", "--compare", "a.json"), "report", "BEFORE AFTER"),
    (("explain", "NET0001"), "NET001", "explain"),
    (
        ("explian",),
        "explian",
        "env bench tune data smoke preflight logs hang watch script report fleet explain",
    ),
    (("env", "--no-such-option"), "--no-such-option", "o such option"),
]


@pytest.mark.parametrize(("arguments", "names", "allowed"), WRONG, ids=lambda value: " ".join(value)[:40])
def test_wrong_input(ncclcheck: Command, arguments: tuple[str, ...], names: str, allowed: str) -> None:
    ran = ncclcheck(*arguments)
    assert (ran.code, ran.out) == (2, "")
    last = ran.err.splitlines()[-1]
    assert names in last
    assert allowed in last
    assert "Traceback" not in ran.err


def test_nothing_is_written_on_wrong_input(ncclcheck: Command, tmp_path: Path) -> None:
    assert ncclcheck("bench", "--json", "out.json", "--ops", "nonsense").code == 2
    assert ncclcheck("env", "--json", "ok.json", "--save", "/nowhere/x").code == 2
    assert list(tmp_path.iterdir()) == []


def test_env_text(ncclcheck: Command) -> None:
    ran = ncclcheck("env")
    assert ran.code == 0, ran.out
    lines = ran.out.splitlines()
    assert lines[0].startswith("ncclcheck ")
    assert "launcher local:" in " ".join(lines[:2])
    assert max(map(len, lines)) <= 100
    assert "Ready." in ran.out
    assert "\x1b" not in ran.out


def test_env_json_follows_the_schema_and_is_one_document(ncclcheck: Command, tmp_path: Path) -> None:
    ran = ncclcheck("env", "-o", "json", "--save", "saved.json", "--json", "same.json")
    assert ran.out.count("\n") == 1
    schema = json.loads((ROOT / "ncclcheck/reports/schema.json").read_text())
    jsonschema.validate(json.loads(ran.out), schema)
    assert (tmp_path / "saved.json").read_text() == (tmp_path / "same.json").read_text() == ran.out
    document = ran.document
    assert document.schema == 1
    assert document.exit_code == ran.code
    assert sum(document.counts.values()) == len(document.verdicts)


def test_a_saved_run_is_judged_anew(ncclcheck: Command, tmp_path: Path) -> None:
    first = ncclcheck("env", "-o", "json", "--save", "saved.json").document
    forged = json.loads((tmp_path / "saved.json").read_text())
    for verdict in forged["verdicts"]:
        verdict["state"] = "fail"
    forged["unknown key"] = {"a": 1}
    (tmp_path / "forged.json").write_text(json.dumps(forged))
    again = ncclcheck("env", "--from", "forged.json", "-o", "json")
    assert again.document.counts == first.counts
    assert again.code == 0


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "not a document"),
        ("{", "not a document"),
        ("[]", "not a document"),
        ('{"schema": 2}', "newer"),
        ('{"schema": 0}', "does not exist"),
        ('{"schema": 1}', "command"),
        ("[" * 5000, "not a document"),
        ('{"schema": 1, "command": "env", "started": "", "seconds": 1, "job": {}, "run": {}, "measurements": {},'
         ' "nodes": [{"name": "a", "facts": {"name": "a", "host": {"type": "host", "cores": "many"}}}]}', "cores"),
        ('{"schema": 1, "command": "env", "started": "", "seconds": 1, "job": {}, "run": {}, "measurements": {},'
         ' "nodes": [{"name": "a", "facts": {"name": "a"}}, {"name": "a", "facts": {"name": "a"}}]}', "unique"),
    ],
)  # fmt: skip
def test_damaged_saved_files(ncclcheck: Command, tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "bad.json").write_text(content)
    ran = ncclcheck("env", "--from", "bad.json")
    assert (ran.code, ran.out) == (2, "")
    assert "--from" in ran.err
    assert says in ran.err


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("nodes = 'two'", "key nodes: allowed is 1 to 100000"),
        ("nodes = 100001", "key nodes: allowed is 1 to 100000"),
        ("backend = 'mpi'", "key backend: allowed is auto, nccl, gloo"),
        ("strict = 'yes'", "key strict: allowed is true or false"),
        ("only = 3", "key only: allowed is a list of texts"),
        ("nodse = 2", "key nodse: there is no such key; did you mean nodes?"),
        ("[bench]\nxyzzy = 'x'", "key bench.xyzzy: there is no such key; docs/options.md lists"),
        ("bench = 3", "key bench: allowed is a table of options"),
        ("require = 3", "key require: allowed is a table of NAME"),
        ("= 3", "not TOML"),
        ("[thresholds]\nx = 'y'", "key thresholds"),
        ("[thresholds]\n'HST999.x' = 1", "HST999"),
        ("[thresholds]\n'HST003.shm_gib' = nan", "HST003.shm_gib"),
        ("[bench]\ntime-budget = 0", "key bench.time-budget: allowed is"),
        ("ignore = ['NET9']", "key ignore"),
        ("only = ['XYZ']", "XYZ"),
    ],
)
def test_site_file_errors_name_file_and_key(ncclcheck: Command, tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "ncclcheck.toml").write_text(content)
    ran = ncclcheck("env")
    assert ran.code == 2
    assert says in ran.err


def test_site_file_variables_and_options_in_order(ncclcheck: Command, tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    site.write_text("contact = 'ask the cluster team'\noutput = 'json'\n[require]\ngpu = 8\n")
    ran = ncclcheck("env", NCCLCHECK_CONFIG=str(site))
    assert ran.code == 1
    assert {v.code: v.state.value for v in ran.document.verdicts}["GPU002"] == "fail"
    text = ncclcheck("env", "-o", "text", NCCLCHECK_CONFIG=str(site))
    assert "ask the cluster team" in text.out
    short = ncclcheck("env", NCCLCHECK_CONFIG=str(site), NCCLCHECK_OUTPUT="short", NCCLCHECK_REQUIRE="")
    assert short.out.startswith("ncclcheck")
    assert ncclcheck("env", NCCLCHECK_CONFIG="/nowhere.toml").code == 2


def test_require_and_strict(ncclcheck: Command) -> None:
    ran = ncclcheck("env", "--require", "gpu=1,hca=1", "-o", "json")
    states = {v.code: v.state.value for v in ran.document.verdicts}
    assert (ran.code, states["GPU002"], states["RDM001"]) == (1, "fail", "fail")


def test_explain(ncclcheck: Command) -> None:
    listing = ncclcheck("explain")
    assert "NET003" in listing.out
    page = ncclcheck("explain", "net003")
    assert page.out.startswith("# NET003")
    assert page.out == (ROOT / "docs/checks/NET003.md").read_text()


def test_a_closed_stdout_is_no_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        f"{quote(sys.executable)} -m ncclcheck explain | head -1; exit ${{PIPESTATUS[0]}}",
        shell=True, executable="/bin/bash", cwd=tmp_path, env=environment(), capture_output=True, check=False,
        timeout=60,
    )  # fmt: skip
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr
    shut = subprocess.run(
        f"{quote(sys.executable)} -m ncclcheck env >&- 2>&-",
        shell=True, cwd=tmp_path, env=environment(), check=False, timeout=60,
    )  # fmt: skip
    assert shut.returncode == 3


@pytest.mark.parametrize("command", ["env", "explain NET001", "report before.json after.json"])
@pytest.mark.parametrize(
    ("where", "why"), [(">&-", "stdout is closed"), ("> /dev/full", "No space left on device")]
)
def test_a_report_that_nobody_can_get_is_no_success(tmp_path: Path, command: str, where: str, why: str) -> None:
    for name in ("before", "after"):
        (tmp_path / f"{name}.json").write_bytes(jsondoc.encode(stories.document("healthy")))
    done = subprocess.run(
        f"{quote(sys.executable)} -m ncclcheck {command} {where}",
        shell=True, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1] == f"ncclcheck: the report could not be printed: {why}"


def test_a_read_only_home_is_survived(ncclcheck: Command) -> None:
    assert ncclcheck("env", HOME="/proc").code == 0
    assert ncclcheck("env", HOME="/nonexistent").code == 0


def test_env_imports_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom ncclcheck.cli import cli\n"
        "try: cli.main(['env', '-q'], standalone_mode=False)\n"
        "finally: print(sorted({'torch', 'matplotlib', 'jinja2', 'numpy'} & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, check=True, timeout=60
    )
    assert done.stderr.decode().splitlines()[-1] == "[]"


def test_modules_of_the_working_directory_do_no_harm(ncclcheck: Command, tmp_path: Path) -> None:
    for name in ("reports", "probes", "random", "logging", "socket"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module was imported')\n")
    assert ncclcheck("env").code == 0


def test_the_schema_describes_the_document() -> None:
    assert json.loads((ROOT / "ncclcheck/reports/schema.json").read_text()) == json.loads(
        json.dumps(jsondoc.schema())
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a user without rights")
def test_an_ordinary_user(tmp_path: Path) -> None:
    """As nobody: everything that may not be read is unknown or skipped, and the exit code stays 0."""
    tmp_path.chmod(0o755)
    argv = [sys.executable, "-m", "ncclcheck", "env", "-o", "short"]
    try:
        done = subprocess.run(
            argv, cwd="/", env=environment(HOME="/none"), capture_output=True, check=False, timeout=60, user=65534
        )
    except PermissionError:
        pytest.skip("nobody may not run this interpreter")
    if b"No module named" in done.stderr:
        pytest.skip("nobody may not read this checkout")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_login_node_says_that_no_gpu_node_was_judged(ncclcheck: Command, tmp_path: Path) -> None:
    srun = tmp_path / "srun"
    srun.write_text("#!/bin/sh\n")
    srun.chmod(0o755)
    ran = ncclcheck("env", PATH=f"{tmp_path}:{os.environ['PATH']}")
    last = " ".join(ran.out.split()[-40:])
    assert "no GPU node was judged" in last
    assert "salloc" in last


def test_the_gate_runs_the_commands_of_the_readme() -> None:
    gate, readme = (ROOT / ".ci/run").read_text(), (ROOT / "README.md").read_text()
    install, tests = next(line for line in readme.splitlines() if "pytest -q" in line).rsplit(" && ", 1)
    assert f"\n{install}\n" in gate
    assert f"\n{tests} " in gate


def test_a_link_is_followed_and_a_pipe_is_written(ncclcheck: Command, tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    ran = ncclcheck("env", "--json", "link.json", "-o", "json")
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "real.json").read_text() == ran.out
    assert ncclcheck("env", "--json", "/dev/null").code == 0
    os.mkfifo(tmp_path / "pipe")
    assert ncclcheck("env", "--json", "pipe", seconds=20).code == 2
    os.mkfifo(tmp_path / "ncclcheck.toml")
    assert ncclcheck("env", seconds=20).code == 2


def test_children_that_were_there_before_are_the_users(tmp_path: Path) -> None:
    """`sleep & exec ncclcheck env`: the sleep is a child of ours then, and none of ours."""
    script = f"sleep 30 & echo $! > pid; exec {quote(sys.executable)} -m ncclcheck env -q"
    subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment(), check=True, timeout=60)
    pid = int((tmp_path / "pid").read_text())
    os.kill(pid, 9)


def test_hostile_words_of_a_saved_file_do_not_reach_a_line_to_paste(ncclcheck: Command, tmp_path: Path) -> None:
    saved = json.loads(ncclcheck("env", "-o", "json").out)
    for change in (
        {"command": "rm -rf /"},
        {"job": {"ranks": 10**11}},
        {"run": {"ranks": [{"rank": 0, "pid": -1}]}},
    ):
        (tmp_path / "bad.json").write_text(json.dumps({**saved, **change}))
        assert ncclcheck("env", "--from", "bad.json").code == 2
    saved["nodes"][0]["facts"]["host"]["system"] = "evil\x1b]0;title\x07\x1b[2J"
    (tmp_path / "odd.json").write_text(json.dumps(saved))
    assert "\x1b" not in ncclcheck("env", "--from", "odd.json").out


def test_what_nobody_foresaw_is_one_line_and_not_a_failed_check(tmp_path: Path) -> None:
    code = "import ncclcheck.run.conduct as c; c.conduct = None\nfrom ncclcheck.cli import main; import sys\n"
    code += "import ncclcheck.commands.env as e; e.conduct = lambda *a: 1 / 0\n"
    code += "sys.argv = ['ncclcheck', 'env']\nmain()\n"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 3
    assert b"ZeroDivisionError" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    "command", ["env", "bench", "data", "smoke", "preflight", "logs", "hang", "script", "report"]
)
def test_help_lists_each_option_once_under_its_heading(command: str) -> None:
    asked = import_module(f"ncclcheck.cli.{command}").__dict__[command]
    text = asked.get_help(click.Context(asked, info_name=command))
    headings = [line.rstrip(":") for line in text.splitlines() if line.rstrip(":") in GROUPS]
    assert headings == [group for group in GROUPS if group in headings]
    assert {"Verdict", "Output"} <= {*headings}
    for parameter in asked.params:
        if isinstance(parameter, click.Option):
            name = max(parameter.opts, key=len)
            assert len(re.findall(rf"^  (?:-\w, )?{name}(?![\w-])", text, re.MULTILINE)) == 1, name


def test_without_a_command_it_says_how_to_begin(ncclcheck: Command) -> None:
    ran = ncclcheck()
    assert ran.code == 2
    assert "Begin with:\n    ncclcheck env " in ran.err


def test_help_names_what_each_command_does_in_a_line_of_80_columns(ncclcheck: Command) -> None:
    ran = ncclcheck("--help", COLUMNS="80")
    listed = ran.out.split("Commands:\n")[1].split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in listed] == [*cli.COMMANDS]
    assert all(line.endswith(".") and not line.endswith("...") and len(line) <= 80 for line in listed)
