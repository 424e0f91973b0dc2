"""The examples are what people copy: shell that parses, manifests that hold what they promise."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from ncclcheck.cli import cli
from tests.conftest import ROOT, environment

EXAMPLES = ROOT / "examples"
SCRIPTS = [path for path in EXAMPLES.iterdir() if path.suffix in (".sh", ".sbatch")]
COMMANDS = ("env", "bench", "data", "smoke", "preflight", "report", "explain")
TEXTS = [*EXAMPLES.iterdir(), *(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "README.zh-CN.md"]
_STUB = '#!/bin/sh\necho "$@" >>{said}\n'


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shell_parses(script: Path) -> None:
    shell = "bash" if "bash" in script.read_text().splitlines()[0] else "sh"
    subprocess.run([shell, "-n", str(script)], check=True, timeout=10)


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: path.name)
def test_options_in_examples_and_docs_exist(text: Path) -> None:
    for command, options in _typed(text.read_text()):
        assert options <= _options(command), f"{command}: {options - _options(command)}"


def test_every_example_types_something() -> None:
    silent = [path.name for path in EXAMPLES.iterdir() if not _typed(path.read_text())]
    assert silent == []


def _typed(text: str) -> list[tuple[str, set[str]]]:
    """Each `ncclcheck COMMAND` with its options: up to ` -- `, a remark, or the end of the quote."""
    joined = re.sub(r"\\\n\s*|\n\s+(?=--)", " ", text.replace('", "', " ").replace('"$ncclcheck"', "ncclcheck"))
    lines = re.findall(rf"\bncclcheck ({'|'.join(COMMANDS)})\b([^`\n]*)", joined)
    return [
        (command, set(re.findall(r"(?<=\s)--[a-z][a-z-]+", re.split(r" -- | +# ", rest)[0])))
        for command, rest in lines
    ]


@cache
def _options(command: str) -> set[str]:
    return set(re.findall(r"--[a-z][a-z-]+", CliRunner().invoke(cli, [command, "--help"]).output))


def test_the_indexed_job() -> None:
    service, job = yaml.safe_load_all((EXAMPLES / "kubernetes-job.yaml").read_text())
    spec = job["spec"]
    assert (service["kind"], service["spec"]["clusterIP"]) == ("Service", "None")
    assert (job["apiVersion"], job["kind"], spec["completionMode"]) == ("batch/v1", "Job", "Indexed")
    assert spec["completions"] == spec["parallelism"] == 2
    pod = spec["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"]
    (container,) = pod["containers"]
    line = " ".join(container["args"])
    assert f"--nodes {spec['completions']}" in line
    assert f"{job['metadata']['name']}-0.{pod['subdomain']}:" in line
    _has_shm(pod)


def test_the_pytorchjob() -> None:
    job = yaml.safe_load((EXAMPLES / "kubeflow-pytorchjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert set(replicas) == {"Master", "Worker"}
    for part in replicas.values():
        pod = part["template"]["spec"]
        assert [container["name"] for container in pod["containers"]] == ["pytorch"]
        _has_shm(pod)


def test_the_init_container() -> None:
    service, job = yaml.safe_load_all((EXAMPLES / "kubernetes-init-container.yaml").read_text())
    spec = job["spec"]
    assert spec["completionMode"] == "Indexed"
    assert service["spec"]["publishNotReadyAddresses"], "a pod whose init runs is not ready, and needs its name"
    pod = spec["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert pod["initContainers"][0]["resources"] == pod["containers"][0]["resources"]
    for part in (pod["initContainers"], pod["containers"]):
        line = " ".join(part[0]["args"])
        assert f"{job['metadata']['name']}-0.{pod['subdomain']}" in line
        assert re.search(rf"--n?nodes {spec['completions']}\b", line)
        _has_shm({"containers": part, "volumes": pod["volumes"]})


def test_github_actions() -> None:
    workflow = yaml.safe_load((EXAMPLES / "github-actions.yml").read_text())
    (job,) = workflow["jobs"].values()
    lines = " ".join(step.get("run", "") for step in job["steps"])
    assert "--simulate --backend gloo" in lines, "a runner has no cluster and no GPU"
    written = re.findall(r"ncclcheck\.(?:md|xml|json)", lines)
    assert {"ncclcheck.md", "ncclcheck.xml", "ncclcheck.json"} == set(written)


@pytest.mark.parametrize(("given", "asked"), [((), "bench"), (("torchrun", "x.py"), "preflight -- torchrun x.py")])
def test_docker_starts_a_command_only_behind_the_gate(given: tuple[str, ...], asked: str, tmp_path: Path) -> None:
    _stub(tmp_path, "docker")
    _run("docker-two-machines.sh", tmp_path, "1", "10.0.0.1", *given)
    line = _said(tmp_path)
    assert "--network host" in line
    command, *rest = asked.split(" -- ")
    assert f"ncclcheck {command} --nodes 2 --node-rank 1 --rdzv-endpoint 10.0.0.1:29500" in line
    assert line.endswith("".join(f" -- {word}" for word in rest))


@pytest.mark.parametrize("script", ["slurm-prolog.sh", "slurm-health-check.sh"])
def test_slurm_gets_its_answer_in_time(script: str) -> None:
    text = (EXAMPLES / script).read_text()
    killed, seconds = map(int, re.findall(r"--kill-after=(\d+) (\d+)", text)[0])
    (deadline,) = map(int, re.findall(r"--deadline (\d+)", text))
    others = sum(map(int, re.findall(r"timeout (\d+)", text)))
    assert deadline < seconds, "its own limit comes first, so that there is a report"
    assert seconds + killed + others < 60, "Slurm ends a HealthCheckProgram after 60 s"


@pytest.mark.parametrize(("require", "code"), [("", 0), ("gpu=99", 1)])
def test_the_prolog_fails_for_broken_hardware(require: str, code: int, tmp_path: Path) -> None:
    done = _run(
        "slurm-prolog.sh", tmp_path, NCCLCHECK_REQUIRE=require, SLURM_JOB_ID="7", SLURM_JOB_NODELIST="a[1-9]"
    )
    assert (done.returncode, "GPU002" in done.stderr) == (code, bool(code)), done.stderr


@pytest.mark.parametrize(
    ("require", "state", "expected"),
    [
        ("", "idle", ""),
        ("gpu=99", "drained", ""),
        ("gpu=99", "idle", "update NodeName=a1 State=DRAIN Reason=ncclcheck GPU002"),
    ],
)
def test_the_health_check_drains(require: str, state: str, expected: str, tmp_path: Path) -> None:
    _stub(tmp_path, "scontrol")
    (tmp_path / "sinfo").write_text(f"#!/bin/sh\necho {state}\n")
    (tmp_path / "sinfo").chmod(0o755)
    done = _run("slurm-health-check.sh", tmp_path, NCCLCHECK_REQUIRE=require, SLURMD_NODENAME="a1")
    assert (done.returncode, _said(tmp_path)) == (0, expected), done.stderr


@pytest.mark.parametrize("script", ["slurm-prolog.sh", "slurm-health-check.sh"])
@pytest.mark.parametrize("code", [2, 3, 127])
def test_what_could_not_be_judged_drains_nothing(script: str, code: int, tmp_path: Path) -> None:
    for name in ("scontrol", "sinfo"):
        _stub(tmp_path, name)
    (tmp_path / "ncclcheck").write_text(f"#!/bin/sh\nexit {code}\n")
    (tmp_path / "ncclcheck").chmod(0o755)
    done = _run(script, tmp_path, NCCLCHECK=str(tmp_path / "ncclcheck"))
    assert (done.returncode, "DRAIN" in _said(tmp_path)) == (0, False)


def _stub(folder: Path, name: str) -> None:
    """A program of this name that only writes down what it was asked."""
    (folder / name).write_text(_STUB.format(said=folder / "said"))
    (folder / name).chmod(0o755)


def _said(folder: Path) -> str:
    path = folder / "said"
    return path.read_text().strip() if path.exists() else ""


def _run(script: str, folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    ours = folder / "ours"
    ours.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ncclcheck "$@"\n')
    ours.chmod(0o755)
    given = environment(**{"NCCLCHECK": str(ours), **env}, PATH=f"{folder}:{os.environ['PATH']}")
    return subprocess.run(
        [str(EXAMPLES / script), *arguments],
        env={name: value for name, value in given.items() if value}, cwd=folder, capture_output=True, text=True,
        timeout=60, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def _has_shm(pod: dict[str, object]) -> None:
    """More /dev/shm than the 64 MB of a pod's default."""
    containers, volumes = pod["containers"], pod["volumes"]
    assert isinstance(containers, list)
    assert isinstance(volumes, list)
    assert {"name": "shm", "mountPath": "/dev/shm"} in containers[0]["volumeMounts"]
    assert volumes[0]["emptyDir"]["medium"] == "Memory"
