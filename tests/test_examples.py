"""The examples are what people copy: shell that parses, manifests that hold what they promise."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from ncclcheck.cli import cli
from tests.conftest import ROOT

EXAMPLES = ROOT / "examples"
SCRIPTS = [path for path in EXAMPLES.iterdir() if path.suffix in (".sh", ".sbatch")]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shell_parses(script: Path) -> None:
    shell = "bash" if "bash" in script.read_text().splitlines()[0] else "sh"
    subprocess.run([shell, "-n", str(script)], check=True, timeout=10)


def test_options_in_examples_and_docs_exist() -> None:
    texts = [path.read_text() for path in [*EXAMPLES.iterdir(), ROOT / "docs/clusters.md", ROOT / "README.md"]]
    lines = [line for text in texts for line in text.splitlines() if re.search(r"ncclcheck (env|bench)\b", line)]
    assert lines
    for command in ("env", "bench"):
        shown = CliRunner().invoke(cli, [command, "--help"]).output
        for line in lines:
            after = line.split(f"ncclcheck {command}", 1)
            for option in re.findall(r"--[a-z][a-z-]+", after[1]) if len(after) == 2 else []:
                assert option in shown, f"{option} of {line!r}"


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


def _has_shm(pod: dict[str, object]) -> None:
    """More /dev/shm than the 64 MB of a pod's default."""
    containers, volumes = pod["containers"], pod["volumes"]
    assert isinstance(containers, list)
    assert isinstance(volumes, list)
    assert {"name": "shm", "mountPath": "/dev/shm"} in containers[0]["volumeMounts"]
    assert volumes[0]["emptyDir"]["medium"] == "Memory"
