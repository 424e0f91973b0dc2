"""LOG118-LOG120: by the log, PCIe links, NVLinks and GPUs have their full speed."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import Logs
from ncclcheck.reports.judgement.findings import Finding, State, Where, admin, you
from ncclcheck.reports.subjects.logs.logged import by_host, cause, events_of, log_rule
from ncclcheck.reports.subjects.logs.network import values_of

_NAMED = ("upper", "lower", "named", "behind", "worst", "last")
_LOW = 5.9  # GB/s: fewer than eight lanes of the third generation


@log_rule("LOG118", "GPU PCIe links have full width and speed", worst=State.WARN)
def wide_links(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    `PCI[3.0] - GPU/1b000` in NCCL's topology (below 6 GB/s, or half of what other GPUs of the host have), the
    kernel's `available PCIe bandwidth, limited by 2.5 GT/s PCIe x4 link`, or lspci's `(downgraded)`.

    ## Why it matters
    All data of that GPU goes through this link. One slow link slows every rank of the job.

    ## Seen as
    slow

    ## How we know
    The line itself; where all GPUs of a host are alike it is a virtual machine's topology, and nothing is
    reported. NCCL counts 12 GB/s for 16 lanes of the third generation, and twice as much for each later one. A
    log shows these lines only with NCCL_DEBUG_SUBSYS=GRAPH, or where the job script prints dmesg or lspci.

    ## Fix
    - **admin** confirm under load (idle links save power): `nvidia-smi -q -d PERFORMANCE`, then reseat the card,
      look at risers and at the slot's setting in the firmware.
    - **you** leave the host out.

    ## Source
    NCCL user guide, NCCL_DEBUG_SUBSYS; lspci(8), nvidia-smi(1).
    """
    for host, own in by_host(events_of(logs, "pcie-gpu", "pcie-narrow")).items():
        links = [event for event in own if event.sign == "pcie-gpu"]
        best = max((float(link.fields["speed"]) for link in links), default=0.0)
        slow = [link for link in links if float(link.fields["speed"]) <= max(_LOW, best / 2)]
        slow = slow if best > _LOW or len(values_of(links, "gpu")) == 1 else []  # all alike: a virtual machine
        events = [*slow, *(event for event in own if event.sign == "pcie-narrow")]
        if not events:
            continue
        which = ", ".join(values_of(slow, "gpu"))
        yield cause(
            events,
            f"the PCIe link of GPU {which} is slow" if which else "a PCIe link is below its width or speed",
            why="All data of the GPU goes through this link, and all ranks wait for the slowest.",
            owner="node",
            fix=[
                admin("Confirm under load, then reseat the card.",
                      "nvidia-smi --query-gpu=pcie.link.gen.current,pcie.link.width.current --format=csv",
                      "lspci -vv | grep -i downgraded"),
                you("Leave the host out.", f"srun --exclude={quote(host or 'HOST')} ..."),
            ],
            state=State.WARN,
        )  # fmt: skip


@log_rule("LOG119", "all NVLinks of a host are up", worst=State.WARN)
def links_up(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    GPUs of one host reach the NVSwitch at different speeds (`NVL[240.0] - NVS/0` and `NVL[200.0] - NVS/0`), or
    nvidia-smi prints `Link 3: <inactive>`.

    ## Why it matters
    A ring is as fast as its slowest GPU: the whole host works at that GPU's speed.

    ## Seen as
    slow

    ## How we know
    NCCL's topology (NCCL_DEBUG_SUBSYS=GRAPH), the GPUs of a host compared; NCCL adds up the links that are up.

    ## Fix
    - **admin** confirm with `nvidia-smi nvlink -s`, reset the GPUs, restart fabricmanager, call for service.
    - **you** leave the host out.

    ## Source
    NCCL user guide, NCCL_DEBUG_SUBSYS; nvidia-smi(1).
    """
    for host, events in by_host(events_of(logs, "nvlink-seen", "nvlink-inactive")).items():
        speeds = {float(event.fields["speed"]): event for event in events if event.fields.get("to") == "NVS"}
        down = [event for event in events if event.sign == "nvlink-inactive"]
        if not down and len(speeds) < 2:
            continue
        rates = " and ".join(f"{speed:g}" for speed in sorted(speeds))
        yield cause(
            down or [speeds[speed] for speed in sorted(speeds)],
            f"GPUs reach the NVSwitch at {rates} GB/s" if len(speeds) > 1 else "NVLinks are inactive",
            why="A ring is as fast as its slowest GPU.",
            owner="node",
            fix=[
                admin("Confirm, then reset the GPUs and restart fabricmanager.", "nvidia-smi nvlink -s",
                      "systemctl restart nvidia-fabricmanager"),
                you("Leave the host out.", f"srun --exclude={quote(host or 'HOST')} ..."),
            ],
            state=State.WARN,
        )  # fmt: skip


@log_rule("LOG120", "no GPU or rank is reported as slow", worst=State.WARN)
def none_slow(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    The job's own tools say that a rank is slow (`STRAGGLER .. ranks: [5]`), or nvidia-smi prints `HW Slowdown :
    Active`.

    ## Why it matters
    All ranks wait for the slowest in each step.

    ## Seen as
    slow

    ## How we know
    The words of those tools, which measured it. NCCL itself prints no durations.

    ## Fix
    - **you** confirm: `ncclcheck bench` names the late rank by waiting times; leave its host out.
    - **admin** temperatures, power and clocks: `nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER`.

    ## Source
    nvidia-smi(1).
    """
    if events := events_of(logs, "slow-rank-said", "throttled"):
        ranks = [rank for field in _NAMED for rank in values_of(events, field)]
        hosts = {process.rank: process.host for process in logs.processes}
        first = int(ranks[0]) if ranks else events[0].rank
        throttled = any(event.sign == "throttled" for event in events)
        what = f"rank {ranks[0]} is slow" if ranks else "a GPU lowers its clocks"
        yield cause(
            events,
            what + (": its clocks are lowered, for heat or power" if ranks and throttled else ""),
            why="All ranks wait for the slowest in each step.",
            owner="node",
            fix=[
                you("Confirm, and leave the host out.", "ncclcheck bench"),
                admin("Look at temperature, power and clocks.", "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER"),
            ],
            state=State.WARN,
            at=Where(node=hosts.get(first) or events[0].host or None, rank=first),
        )
