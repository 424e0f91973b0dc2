"""Whatever stands in the files and variables of a machine: it is surveyed, judged, printed and saved."""

from __future__ import annotations

import importlib
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec import Struct

from ncclcheck.base.errors import UsageError
from ncclcheck.launch.choose import choose
from ncclcheck.probes.facts import Cluster, Job, Node, Policy, Unread, at, replace
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.survey import survey
from ncclcheck.reports.judgement import jsondoc
from ncclcheck.reports.judgement.findings import Finding
from ncclcheck.reports.output import terminal
from ncclcheck.reports.subjects.nccl import variables
from ncclcheck.results import finish, safe
from ncclcheck.run.plan.options import Options
from tests.conftest import Command
from tests.helpers.damage import WORDS, Damage, asked, damaged, damages
from tests.helpers.trees import ROOT

_THAT_READ_IT = {"job": "environment.job_system", "nccl": "software.nccl", "storage": "host.storage"}
MACHINES = ("bad-container", "h100-node")
_SCHEMA = jsonschema.Draft202012Validator(jsondoc.schema())
_FIXED = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("machines")
    for name in MACHINES:
        shutil.copytree(ROOT / "tests/machines" / name, folder / name, symlinks=True)
    return folder


@cache
def _paths(name: str) -> list[str]:
    return asked(ROOT / "tests/machines" / name)


@cache
def _sound(name: str) -> Node:
    return survey("sound", Machine(str(ROOT / "tests/machines" / name), recorded=True), 20.0)


def _survives(node: Node, other: Node) -> None:
    """This node and a healthy one through everything up to the report; any defect is an AssertionError."""
    assert [run for run in node.probes if run.unread and "raised" in run.unread.why] == []
    assert list(_endless(node, "node")) == []
    cluster = Cluster(nodes=[node, other], job=Job(nodes_asked=2, nodes_answered=2))
    document = finish.make(cluster, Options(command="env"), finish.Story(started="2026-01-01", seconds=1.0))
    assert [finding.what for v in document.verdicts for finding in v.findings if _is_crash(finding)] == []
    for style in (terminal.Style(), terminal.Style(verbose=True, colour=True)):
        terminal.text(document, style).encode()
        terminal.short(document, style).encode()
    written = jsondoc.encode(document)
    _SCHEMA.validate(json.loads(written))
    assert jsondoc.decode(written, Policy()).cluster.nodes == safe.cluster(cluster).nodes


def _is_crash(finding: Finding) -> bool:
    return finding.owner == "tool"


def _endless(fact: Any, path: str) -> Iterator[str]:
    """Where a number is not finite."""
    if isinstance(fact, float) and not math.isfinite(fact):
        yield path
    elif isinstance(fact, Struct):
        for name in fact.__struct_fields__:
            yield from _endless(getattr(fact, name), f"{path}.{name}")
    elif isinstance(fact, list):
        for item in fact:
            yield from _endless(item, path)


def _survives_damage(copies: Path, name: str, wanted: list[Damage]) -> None:
    with damaged(copies / name, wanted):
        node = survey("damaged", Machine(str(copies / name), recorded=True), 20.0)
    _survives(node, _sound(name))


@settings(_FIXED, max_examples=20)
@given(wanted=damages(_paths("bad-container")))
def test_a_damaged_container(copies: Path, wanted: list[Damage]) -> None:
    _survives_damage(copies, "bad-container", wanted)


@settings(_FIXED, max_examples=8)
@given(wanted=damages(_paths("h100-node")))
def test_a_damaged_node(copies: Path, wanted: list[Damage]) -> None:
    _survives_damage(copies, "h100-node", wanted)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", MACHINES)
def test_much_damage(copies: Path, name: str) -> None:
    @settings(_FIXED, max_examples=400, derandomize=False)
    @given(wanted=damages(_paths(name)))
    def survives(wanted: list[Damage]) -> None:
        _survives_damage(copies, name, wanted)

    survives()


_TEXTS = [word.decode(errors="replace") for word in WORDS]
_PIECES = st.lists(st.sampled_from([*_TEXTS, *"=^:,;#@!0123456789[]-"]))
_VALUES = st.text(max_size=40) | _PIECES.map("".join)
_NAMES = st.sampled_from(sorted(variables.reference())) | st.builds(
    str.__add__, st.sampled_from(["NCCL_", "SLURM_", "GLOO_", "TORCH_", "CUDA_", "MASTER_"]), st.text(max_size=9)
)
ENVIRONMENTS = st.dictionaries(_NAMES, _VALUES, max_size=12)


def _survives_environment(copies: Path, env: dict[str, str]) -> None:
    """All that looks at the environment, on a node with GPUs and HCAs whose NCCL knows most variables."""
    recorded = copies / "h100-node/.ncclcheck/environment.json"
    before = recorded.read_bytes()
    recorded.write_text(json.dumps(env))
    machine = Machine(str(copies / "h100-node"), recorded=True)
    facts = {
        name: importlib.import_module(f"ncclcheck.probes.machine.{module}").probe(machine)
        for name, module in _THAT_READ_IT.items()
    }
    recorded.write_bytes(before)
    sound = _sound("h100-node")
    assert not isinstance(facts["job"].variables, Unread)
    _survives(replace(sound, name="set", **facts), sound)


@settings(_FIXED, max_examples=15)
@given(env=ENVIRONMENTS)
def test_any_environment(copies: Path, env: dict[str, str]) -> None:
    _survives_environment(copies, env)


def _hard_words() -> list[pytest.param]:  # type: ignore[valid-type]
    """All of them; those that have broken something are in the gate."""
    gate = ("9" * 4400, "9" * 20, "", "²")
    marks = {True: (), False: (pytest.mark.nightly,)}
    return [pytest.param(word, id=ascii(word[:12]), marks=marks[word in gate]) for word in _TEXTS]


@pytest.mark.parametrize("word", _hard_words())
def test_all_variables_at_once(copies: Path, word: str) -> None:
    names = sorted(variables.reference())
    for part in range(3):  # a recorded environment of more than 1 MiB is not read
        _survives_environment(copies, dict.fromkeys(names[part::3], word))


_LAUNCHING = [
    "SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_NODEID", "SLURM_NNODES",
    "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_PROCID",
    "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_LAUNCH_NODE_IPADDR", "SLURMD_NODENAME", "MASTER_ADDR",
    "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK",
    "GROUP_WORLD_SIZE", "TORCHELASTIC_RUN_ID", "PET_NNODES", "PET_NODE_RANK", "PET_RDZV_ENDPOINT",
    "PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_NPROC_PER_NODE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
]  # fmt: skip
_RIGHT = st.sampled_from(["0", "1", "2", "a[1-3]", "a1,a2", "10.0.0.1", "29500", "2(x2)", "h1:29500"])


@settings(_FIXED, max_examples=400)
@example(env={"SLURM_STEP_ID": "9" * 5000}, launch=None, nodes=None)
@example(env={"MASTER_ADDR": "a", "RANK": "0", "PET_NPROC_PER_NODE": "9" * 5000}, launch=None, nodes=None)
@given(
    env=st.dictionaries(st.sampled_from(_LAUNCHING), _RIGHT | _VALUES, max_size=14),
    launch=st.sampled_from([None, "slurm", "join", "local"]),
    nodes=st.sampled_from([None, 1, 2]),
)
def test_a_launcher_is_chosen_or_the_variable_named(
    env: dict[str, str], launch: str | None, nodes: int | None
) -> None:
    with suppress(UsageError):
        assert choose(Options(command="env", launch=launch, nodes=nodes), env).names


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_many_environments(copies: Path) -> None:
    @settings(_FIXED, max_examples=1000, derandomize=False)
    @given(env=ENVIRONMENTS)
    def survives(env: dict[str, str]) -> None:
        _survives_environment(copies, env)

    survives()


@pytest.mark.parametrize("name", ["NCCL_SOCKET_IFNAME", "SLURM_JOB_NODELIST", "MASTER_ADDR", "LD_LIBRARY_PATH"])
def test_bytes_that_are_no_text(ncclcheck: Command, name: str) -> None:
    ran = ncclcheck("env", "--launch", "local", "-o", "json", **{name: os.fsdecode(b"\xff\xfe=%s")})
    assert "Traceback" not in ran.err
    values = {variable.name: variable.value for variable in at(ran.document.nodes[0].facts, "job.variables")}
    assert values[name] == "\\xff\\xfe=%s"


def test_nothing_registers_with_fork_while_probes_fork() -> None:
    """concurrent.futures does so when it is imported: it must be there before the probes' threads are."""
    code = "import ncclcheck.probes.machine.survey, sys; sys.exit('concurrent.futures.thread' not in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
