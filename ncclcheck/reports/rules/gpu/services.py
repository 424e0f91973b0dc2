"""GPU043: NVIDIA's services and modules run, and are of the driver's version."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, Node, NvFabric, Service, Unread, at, known, value_or
from ncclcheck.reports.judgement.findings import (
    Evidence,
    Finding,
    Remedy,
    State,
    Where,
    admin,
    fail,
    fine,
    note,
    seen,
    warn,
)
from ncclcheck.reports.judgement.rule import NothingToJudge, rule

_IN_TRAYS = re.compile(r"\bGB[23]00\b")
_MANAGER, _IMEX = "nvidia-fabricmanager", "nvidia-imex"


@rule(
    "GPU043",
    "NVIDIA's services are running and match the driver version",
    worst=State.FAIL,
    needs=("gpus.services",),
)
def services(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The fabric manager of machines with NVSwitches, IMEX, nvidia-persistenced and the module nvidia_peermem:
    whether they run, and whether their version is that of the driver.

    ## Why it matters
    Without the fabric manager no program can use a GPU on an NVSwitch board (CUDA error 802, system not yet
    initialized). It starts only with a driver of exactly its own version: after an update of one of the two
    packages all goes well until the next reboot, and then the node is dead.

    ## How we know
    `systemctl show` of the units, `nv-fabricmanager --version`, `nvidia-imex --version` and
    `nvidia-persistenced --version`, /sys/module/nvidia_peermem/version, and the driver's version by NVML. FAIL:
    GPUs wait for the fabric, or CUDA says 802, and the fabric manager failed, does not run or has another
    version. warn: it runs, and the program on the disk no longer fits the driver; IMEX failed, or does not run
    as on other nodes, on a machine of an NVLink domain of several. Everything else is a note: where all GPUs
    are registered with the fabric somebody takes care of it, as a container of the GPU operator. On GB200 and
    GB300 the fabric manager runs in the switch trays. In a container without systemd nothing is reported of
    services.

    ## Fix
    - **admin** install the fabric manager (and IMEX) of the driver's own version, hold both packages together in
      the package manager, `systemctl enable --now nvidia-fabricmanager`, `journalctl -u nvidia-fabricmanager`.

    ## Source
    NVIDIA Fabric Manager user guide; NVIDIA IMEX service guide; NVIDIA/gpu-operator#544, Azure/azhpc-images#86,
    siderolabs/pkgs#720, dstackai/dstack#2348.
    """
    lists = [(node, known(at(node, "gpus.services"))) for node in cluster.nodes]
    if not any(listed for _, listed in lists):
        raise NothingToJudge("no service of NVIDIA's is installed here")
    elsewhere = any(
        service.name == _IMEX and service.state == "active" for _, listed in lists for service in listed
    )
    for node, listed in lists:
        findings = [finding for service in listed for finding in _judged(node, service, imex_elsewhere=elsewhere)]
        yield from findings
        if listed and not findings:
            yield fine(Where(node=node.name), _all_of(listed))


def _judged(node: Node, service: Service, *, imex_elsewhere: bool) -> Iterator[Finding]:
    if service.name == _MANAGER:
        yield from _manager(node, service)
    elif (
        service.name == _IMEX
        and _of_several(node)
        and (service.state == "failed" or _is_left_out(service, imex_elsewhere))
    ):
        does = "failed" if service.state == "failed" else "does not run as it does on other nodes"
        yield warn(
            Where(node=node.name, device=service.name),
            f"IMEX {does}, and its GPUs share an NVLink domain with other machines",
            why="Memory cannot be shared between the machines: NCCL's NVLink between them does not come up.",
            owner="node",
            evidence=_evidence(node, service),
            fix=[
                admin(
                    "See why it ended, and start it.",
                    "journalctl -u nvidia-imex | tail",
                    "systemctl enable --now nvidia-imex",
                    "nvidia-imex-ctl -N",
                ),
            ],
        )
    elif service.state == "failed":
        yield note(Where(node=node.name, device=service.name), f"{service.name} failed", owner="node",
                   evidence=_evidence(node, service))  # fmt: skip
    elif _differs(node, service):
        what = f"{service.name} is {value_or(service.version, '')}, the driver {_driver(node)}"
        yield note(
            Where(node=node.name, device=service.name), what, owner="node", evidence=_evidence(node, service)
        )


def _is_left_out(service: Service, imex_elsewhere: bool) -> bool:
    """Where a container keeps it, as NVIDIA's driver for DRA does, the service is inactive on all nodes."""
    return service.state == "inactive" and imex_elsewhere


def _manager(node: Node, service: Service) -> Iterator[Finding]:
    if any(_IN_TRAYS.search(value_or(card.model, "")) for card in value_or(at(node, "gpus.cards"), [])):
        return
    where, evidence = Where(node=node.name, device=service.name), _evidence(node, service)
    other = _differs(node, service)
    versions = f"the fabric manager is {value_or(service.version, '')}, the driver {_driver(node)}"
    if _waits(node) and (other or service.state in ("failed", "inactive")):
        state = "failed" if service.state == "failed" else "does not run"
        yield fail(
            where,
            f"GPUs wait for the fabric: {versions}" if other else f"GPUs wait for the fabric: its manager {state}",
            why="No program can use a GPU until it runs (CUDA error 802); it wants exactly its own version.",
            owner="node",
            evidence=evidence,
            fix=_install(node) if other else _start(),
        )
    elif other and service.state == "active":
        yield warn(
            where,
            f"{versions}: it will not start again",
            why="It runs from before the update; after the next reboot no program can use a GPU.",
            owner="node",
            evidence=evidence,
            fix=_install(node),
        )
    elif other or service.state == "failed":
        what = versions if other else "the fabric manager failed, and all GPUs are registered with the fabric"
        yield note(where, what, owner="node", evidence=evidence)


def _waits(node: Node) -> bool:
    """Whether a GPU is not registered with the fabric, or CUDA says that the system is not yet initialized."""
    fabrics = [card.fabric for card in value_or(at(node, "gpus.cards"), [])]
    waiting = any(isinstance(fabric, NvFabric) and fabric.state != "completed" for fabric in fabrics)
    return waiting or "802" in value_or(at(node, "gpus.cuda_error"), "")


def _of_several(node: Node) -> bool:
    fabrics = [card.fabric for card in value_or(at(node, "gpus.cards"), [])]
    return any(isinstance(fabric, NvFabric) and bool(fabric.cluster.strip("0-")) for fabric in fabrics)


def _driver(node: Node) -> str:
    return str(value_or(at(node, "gpus.nvml_driver"), "") or value_or(at(node, "stack.driver"), ""))


def _differs(node: Node, service: Service) -> bool:
    return not isinstance(service.version, Unread) and bool(_driver(node)) and service.version != _driver(node)


def _evidence(node: Node, service: Service) -> list[Evidence]:
    state = service.state.why if isinstance(service.state, Unread) else service.state
    version = service.version.why if isinstance(service.version, Unread) else service.version
    return [
        seen(f"systemctl show {service.name}", state),
        seen(f"{service.name} --version", version),
        seen("driver, by NVML", _driver(node) or "not known"),
    ]


def _all_of(listed: list[Service]) -> str:
    return ", ".join(f"{service.name} {value_or(service.version, '')}".strip() for service in listed)


def _install(node: Node) -> list[Remedy]:
    return [
        admin(f"Install the fabric manager of version {_driver(node)}, and hold both packages together.",
              "nv-fabricmanager --version", "systemctl restart nvidia-fabricmanager"),
    ]  # fmt: skip


def _start() -> list[Remedy]:
    return [
        admin("See why it ended, and start it.", "journalctl -u nvidia-fabricmanager | tail",
              "systemctl enable --now nvidia-fabricmanager"),
    ]  # fmt: skip
