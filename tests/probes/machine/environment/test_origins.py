"""Which file sets a variable on a node, and that findings say so."""

from __future__ import annotations

import site
from pathlib import Path

import pytest

from ncclcheck.probes.facts import JobFacts, Node, Variable, replace
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.environment.origins import origins
from tests.helpers.clusters import node, verdict


def _tree(root: Path, files: dict[str, str]) -> Machine:
    for path, text in files.items():
        (root / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (root / path.lstrip("/")).write_text(text)
    return Machine(str(root))


def test_the_last_file_that_is_read_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "getsitepackages", lambda: ["/venv/site-packages"])
    machine = _tree(
        tmp_path,
        {
            "/etc/environment": "NCCL_DEBUG=INFO\nGLOO_SOCKET_IFNAME=ib0\n",
            "/etc/profile.d/nccl.sh": "# export NCCL_IB_HCA=mlx5_0\nexport NCCL_IB_HCA=$(first_hca)\n",
            "/home/kim/.bashrc": "NCCL_DEBUG=WARN  # was INFO\nexport MY_NCCL_DEBUG=INFO\nNCCL_DEBUG='INFO'\n",
            "/venv/site-packages/site-defaults.pth": "import os; os.environ['GLOO_SOCKET_IFNAME'] = 'lo'\n",
        },
    )
    asked = {"NCCL_DEBUG": "INFO", "GLOO_SOCKET_IFNAME": "lo", "NCCL_IB_HCA": "mlx5_1", "NCCL_ALGO": "Ring"}
    assert origins(machine, asked, "/home/kim") == {
        "NCCL_DEBUG": "/home/kim/.bashrc:3",
        "NCCL_IB_HCA": "/etc/profile.d/nccl.sh:2",
        "GLOO_SOCKET_IFNAME": "/venv/site-packages/site-defaults.pth:1",
    }
    assert origins(machine, {}, "/home/kim") == {}


def _set(name: str, place: str) -> Node:
    debug = Variable(name="NCCL_DEBUG", value="TRACE", set_in=place)
    return replace(node(name), job=JobFacts(variables=[debug]))


def test_a_finding_says_which_file_to_change() -> None:
    judged = verdict("NCC006", _set("a", "/venv/site-packages/x.pth:3"), _set("b", "/etc/environment:1"))
    lines = [line for finding in judged.findings for fix in finding.remedies for line in fix.commands]
    assert "sed -n 3p /venv/site-packages/x.pth   # on a" in lines
    assert "sed -n 1p /etc/environment   # on b" in lines
    without = verdict("NCC006", _set("a", ""))
    assert not any(
        "sed -n" in line for finding in without.findings for fix in finding.remedies for line in fix.commands
    )
