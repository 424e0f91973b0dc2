"""NVIDIA's services: what systemd and the programs say, and what is said of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from ncclcheck.probes.facts import Gpus, NvFabric, Service, Unread, replace
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.gpu.services import services
from ncclcheck.probes.machine.process import Output
from tests.helpers.cards import FABRIC, four, gpu_node
from tests.helpers.clusters import DENIED, verdict

DRIVER = "570.133.20"
MANAGER, IMEX = "nvidia-fabricmanager", "nvidia-imex"
UNITS = """Id=nvidia-fabricmanager.service
LoadState=loaded
ActiveState=active

Id=nvidia-imex.service
LoadState=not-found
ActiveState=inactive

Id=nvidia-persistenced.service
LoadState=loaded
ActiveState=failed
"""


class Host(Machine):
    """A machine with these files and these answers of programs."""

    def __init__(self, files: Mapping[str, str], answers: Mapping[str, Output | Unread]) -> None:
        super().__init__()
        self.files, self.answers = files, answers

    def exists(self, path: str) -> bool:
        return path in self.files

    def line(self, path: str) -> str | Unread:
        return self.files.get(path, Unread("absent", path))

    def run(self, argv: Sequence[str], seconds: float, env: object = None) -> Output | Unread:
        assert env is None
        assert seconds <= 2
        return self.answers[argv[0]]


SYSTEMD = {"/run/systemd/system": ""}
PROGRAM = {"/usr/bin/nv-fabricmanager": ""}


def output(*lines: str) -> Output:
    return Output(0, "\n".join(lines), "")


def services_of(files: Mapping[str, str], **answers: Output | Unread) -> dict[str, Service]:
    given = {"systemctl": answers["systemctl"]} if "systemctl" in answers else {}
    program = answers.get("manager", output("", "Fabric Manager version is : 570.133.20", ""))
    listed = services(Host(files, {**given, "/usr/bin/nv-fabricmanager": program}))
    assert not isinstance(listed, Unread)
    return {unit.name: unit for unit in listed}


def test_what_a_host_tells() -> None:
    module = {"/sys/module/nvidia_peermem": "", "/sys/module/nvidia_peermem/version": DRIVER}
    seen = services_of({**SYSTEMD, **PROGRAM, **module}, systemctl=output(UNITS))
    assert seen[MANAGER] == Service(name=MANAGER, state="active", version=DRIVER)
    assert seen["nvidia-persistenced"].state == "failed"
    assert IMEX not in seen
    assert seen["nvidia_peermem"] == Service(name="nvidia_peermem", state="loaded", version=DRIVER)


def test_a_container_has_programs_and_no_systemd() -> None:
    seen = services_of(PROGRAM)[MANAGER]
    assert isinstance(seen.state, Unread)
    assert (seen.state.kind, seen.version) == ("absent", DRIVER)


def test_a_systemd_or_a_program_that_does_not_answer() -> None:
    late = Unread("timed_out", "systemctl gave no answer in 2 s")
    seen = services_of({**SYSTEMD, **PROGRAM}, systemctl=late, manager=output("usage: ..."))[MANAGER]
    assert seen.state == late
    assert isinstance(seen.version, Unread)
    assert seen.version.kind == "broken"


def test_nothing_is_installed() -> None:
    assert services_of({}) == {}
    assert services_of(SYSTEMD, systemctl=Output(1, "", "Failed to connect to bus")) == {}


def of(
    *listed: Service, fabric: Any = FABRIC, model: str = "NVIDIA H100 80GB HBM3", error: str = ""
) -> tuple[str, str]:
    facts = {"services": list(listed), "nvml_driver": DRIVER, "cuda_error": error}
    node = gpu_node("a", *four(every={"fabric": fabric, "model": model}), facts=facts)
    judged = verdict("GPU043", node)
    return judged.state.value, "; ".join(finding.what for finding in judged.findings)


def service(name: str = MANAGER, state: Any = "active", version: Any = DRIVER) -> Service:
    return Service(name=name, state=state, version=version)


WAITS = NvFabric(state="in_progress")
RACK = replace(FABRIC, cluster="a1b2", clique=1)
NONE = Unread("absent", "there is none")


@pytest.mark.parametrize(
    ("listed", "facts", "state", "word"),
    [
        ([service()], {}, "ok", DRIVER),
        ([], {}, "skipped", ""),
        ([service(version="570.124.06")], {}, "warn", "will not start again"),
        ([service(version="570.124.06", state="inactive")], {}, "note", "570.124.06"),
        ([service(version="570.124.06", state="failed")], {"fabric": WAITS}, "fail", "570.124.06"),
        ([service(version="570.124.06", state=NONE)], {"fabric": WAITS}, "fail", "570.124.06"),
        ([service(state="failed")], {"fabric": WAITS}, "fail", "failed"),
        ([service(state="inactive")], {"fabric": NONE, "error": "CUDA_ERROR_SYSTEM_NOT_READY (802)"}, "fail",
         "does not run"),
        ([service(state="failed")], {}, "note", "registered"),
        ([service(state="inactive")], {}, "ok", DRIVER),
        ([service(state="active")], {"fabric": WAITS}, "ok", DRIVER),
        ([service(state="inactive")], {"fabric": WAITS, "model": "NVIDIA GB200"}, "ok", DRIVER),
        ([service(IMEX, "failed")], {"fabric": RACK}, "warn", "IMEX failed"),
        ([service(IMEX, "failed")], {}, "note", "failed"),
        ([service(IMEX, version="570.124.06")], {"fabric": RACK}, "note", "570.124.06"),
        ([service("nvidia-persistenced", "failed")], {}, "note", "failed"),
        ([service("nvidia_peermem", "loaded", "550.54.15")], {}, "note", "550.54.15"),
        ([service(version=DENIED)], {}, "ok", ""),
    ],
)  # fmt: skip
def test_what_is_said(listed: list[Service], facts: dict[str, Any], state: str, word: str) -> None:
    judged, what = of(*listed, **facts)
    assert judged == state
    assert word in what


def test_what_was_not_read() -> None:
    assert verdict("GPU043", gpu_node("a", *four(), facts={"services": DENIED})).state.value == "unknown"
    assert Gpus().services != []
