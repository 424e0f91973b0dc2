"""LOG060, LOG061, LOG062, LOG071, LOG178: the ways between the GPUs of a node."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import LogEvent, LogProcess, Logs
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, Where, admin, seen, you
from ncclcheck.reports.rules.log.bootstrap_agree import SHARED
from ncclcheck.reports.subjects.logs.logged import cause, events_of, log_rule
from ncclcheck.reports.subjects.logs.logged_node import BY_NCCL, cuda_errors, hosts, in_nvls, on, ranks
from ncclcheck.reports.subjects.logs.reported import set_apart, setting, settings_seen, version_seen, within_a_host
from ncclcheck.reports.subjects.logs.start.machines import machines, of_the_job

_NOT_OPENED = ("invalid argument", "invalid resource handle", "mapping of buffer")
_NOT_PERMITTED = "operation not permitted"
_ACS = admin(
    "Turn ACS off on the bridges above the GPUs, and let the IOMMU pass.",
    "lspci -vvv | grep -i acsctl",
    "setpci -s ADDRESS ECAP_ACS+0x6.w=0000",
    "grep -o 'iommu[^ ]*' /proc/cmdline",
)
# bytes of a P2P chunk that NCCL logs without NVLink (524288 with it); GPUs of one rank's host from which on the
# tree of PCIe matters: chosen
_OVER_PCIE, _MANY = 131072, 4


@log_rule("LOG060", "every pair of ranks has a usable transport")
def transport(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    NCCL found neither peer to peer, nor shared memory, nor a network between two ranks.

    ## Why it matters
    The start ends with a system error. It needs settings, for the network over sockets nearly always works:
    NCCL_P2P_DISABLE=1 with NCCL_SHM_DISABLE=1 and no network, NCCL_NET=none-such, or an interface filter that
    leaves nothing.

    ## Seen as
    dies

    ## How we know
    `No transport found for rank A[..] -> rank B[..]` (2.12 and later), and the settings that NCCL logged.

    ## Fix
    - **you** unset NCCL_P2P_DISABLE, NCCL_SHM_DISABLE, NCCL_NET and NCCL_SOCKET_IFNAME, one after the other.

    ## Source
    NCCL user guide, Environment variables; NVIDIA/nccl source, transport.cc.
    """
    names = (
        "NCCL_P2P_DISABLE",
        "NCCL_P2P_LEVEL",
        "NCCL_SHM_DISABLE",
        "NCCL_NET",
        "NCCL_IB_DISABLE",
        "NCCL_SOCKET_IFNAME",
        "NCCL_NET_PLUGIN",
    )
    all_evidence = settings_seen(logs, *names)
    for where, events in hosts(events_of(logs, "no-transport")):
        a, b = events[0].fields["a"], events[0].fields["b"]
        yield cause(
            events,
            f"NCCL finds no transport from rank {a} to rank {b}"
            + (", after its settings forbade some" if all_evidence else ""),
            why="Peer to peer, shared memory and the network are all off or impossible for these two.",
            owner="job",
            fix=[
                you("Confirm: nothing is forbidden.", "env | grep -E 'NCCL_(P2P|SHM|NET|IB|SOCKET)'"),
                you(
                    "Allow all transports again.",
                    "unset NCCL_P2P_DISABLE NCCL_SHM_DISABLE NCCL_NET NCCL_SOCKET_IFNAME",
                ),
            ],
            at=where,
            more=all_evidence,
        )


@log_rule("LOG061", "peer-to-peer access works between GPUs of a node", risk=True)
def peers(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    The driver does not allow GPUs of a node to read each other's memory (P2P), or the platform has no CUDA IPC.

    ## Why it matters
    Between GPUs that are joined by NVLink it is a broken link or switch, and NCCL ends. Between GPUs on PCIe
    NCCL goes through the host's memory instead: it works, at a fraction of the speed.

    ## Seen as
    slow

    ## How we know
    An error of CUDA in transport/p2p.cc on a single machine: the memory of another rank could not be opened; or
    `Cuda failure 800 'operation not permitted'` of such a job: a rank may not hand its memory to another process.
    `hipIpcGetMemHandle failed`, `cudaIpcOpenMemHandle failed`: a rank could not export or open such memory at all.
    `P2P is disabled between NVLINK connected GPUs` ends the start (2.12 and later). `P2P is disabled between
    connected GPUs`, `Could not enable P2P` and `Legacy IPC not supported` are notes: usual for GeForce, L4 and
    A10, on WSL2, with vGPU and in virtual machines, worth a look on bare metal with data centre GPUs.

    ## Fix
    - **admin** NVLink: `nvidia-smi nvlink -s`, reset the GPUs, else exchange; PCIe: ACS and IOMMU, a newer driver.
    - **you** where the platform has no P2P there is nothing to do; give /dev/shm room.

    ## Source
    NVIDIA/nccl source, graph/paths.cc and transport/p2p.cc; NVIDIA/nccl#631; NCCL user guide, Troubleshooting, GPU
    to GPU communication.
    """
    for where, events in hosts(events_of(logs, "p2p-nvlink-off")):
        pair = f"{events[0].fields['a']} and {events[0].fields['b']}"
        yield cause(
            events,
            f"the NVLink between GPUs {pair}{on(where)} is there, and they may not use it: a fault of the "
            "hardware",
            why="NCCL refuses to start on GPUs whose NVLinks do not work.",
            owner="node",
            fix=[
                admin(
                    "Confirm: all links must be up, and all pairs OK.",
                    "nvidia-smi nvlink -s",
                    "nvidia-smi topo -p2p r",
                ),
                admin(
                    "Reset all GPUs, or reboot; exchange what stays broken.",
                    "nvidia-smi --gpu-reset",
                    "dmesg | grep -i xid",
                ),
                you("Leave these GPUs out until then.", "export CUDA_VISIBLE_DEVICES=0,1,2,3"),
            ],
            at=where,
        )
    if not events_of(logs, "p2p-nvlink-off"):
        yield from _without(logs)
    yield from _not_opened(logs)
    yield from _refused(logs)
    yield from _unsupported(logs)


def _unsupported(logs: Logs) -> Iterator[Finding]:
    """CUDA's own word that two GPUs cannot read each other's memory; where NCCL asked for it that is LOG186."""
    asked = {
        (event.file, event.line) for event in events_of(logs, "ipc-refused", "ipc-handle", "nccl-cuda-failure")
    }
    lines = [event for event in events_of(logs, "p2p-unsupported") if (event.file, event.line) not in asked]
    for where, events in hosts(lines):
        own = any("custom_all_reduce" in event.text for event in events)
        yield cause(
            events,
            f"two GPUs{on(where)} cannot read each other's memory (P2P), and the program wants it",
            why="GeForce cards, GPUs on different root complexes and virtual machines have no P2P; two processes "
            "that see one GPU each by CUDA_VISIBLE_DEVICES may be told so, too.",
            owner="job",
            fix=[
                you("Confirm: what the driver says of each pair.", "nvidia-smi topo -p2p r"),
                you("Let NCCL, and an engine's own all_reduce, go through the host's memory.",
                    "export NCCL_P2P_DISABLE=1",
                    *(["vllm serve MODEL --disable-custom-all-reduce",
                       "python -m sglang.launch_server --disable-custom-all-reduce"] if own else [])),
                you("Let every process see all GPUs of the node, and choose its own by number."),
            ],
            at=where,
            more=version_seen(logs, events[0]),
        )  # fmt: skip


def _refused(logs: Logs) -> Iterator[Finding]:
    """Calls for memory between processes (IPC) that the driver refused by name."""
    for where, events in hosts(events_of(logs, "ipc-refused")):
        fields = events[0].fields
        exports = "Get" in fields["call"]
        amd = fields["call"].startswith("hip")
        what = "export its GPU memory to other processes" if exports else "open the GPU memory of another one"
        yield cause(
            events,
            f"a rank cannot {what}{on(where)}: {fields['call']} failed: {fields['error'].strip()}",
            why="Direct access between the processes of a node (P2P) needs it: the IOMMU, the driver or the "
            "container's namespaces do not allow it.",
            owner="node",
            fix=[
                you("Confirm: without P2P the job starts.", "export NCCL_P2P_DISABLE=1"),
                you("Let the containers of a node share what IPC needs.",
                    "docker run --ipc=host --device=/dev/kfd --device=/dev/dri IMAGE" if amd
                    else "docker run --ipc=host --gpus all IMAGE"),
                admin("Let the IOMMU pass (iommu=pt), and look at the driver's words.",
                      "cat /proc/cmdline", f"dmesg -T | grep -iE '{'amdgpu|iommu' if amd else 'nvrm|iommu'}'"),
            ],
            at=where,
            more=version_seen(logs, events[0]),
        )  # fmt: skip


def not_opened(logs: Logs) -> list[LogEvent]:
    """CUDA errors of NCCL's P2P transport, where all ranks are on one machine (else LOG059 may be the cause)."""
    job = of_the_job(logs)
    failed = cuda_errors(logs, *_NOT_OPENED, _NOT_PERMITTED, by=BY_NCCL)
    events = [
        event
        for event in failed
        if "captur" not in event.fields["error"]
        and ("/p2p.cc" in event.fields.get("place", "") or _not_shared(logs, event))
    ]
    if (
        not events
        or len(machines(job)) != 1
        or len({process.host for process in job}) != 1
        or set_apart(logs, SHARED)
    ):
        return []
    return events


def _not_opened(logs: Logs) -> Iterator[Finding]:
    for where, events in hosts(not_opened(logs)):
        error = events[0].fields["error"]
        cannot = "share GPU memory with" if _NOT_PERMITTED in error else "open the GPU memory of"
        yield cause(
            events,
            f"a rank cannot {cannot} another one{on(where)}: CUDA says {error!r}",
            why="CUDA IPC needs ranks that see each other: one container, or shared IPC and PID namespaces, and "
            "all GPUs in each.",
            owner="node",
            fix=[
                you("Confirm: without P2P the job starts.", "export NCCL_P2P_DISABLE=1"),
                you(
                    "Let the containers of a node share what IPC needs.", "docker run --ipc=host --gpus all IMAGE"
                ),
                admin("Where they do, look at the driver, the IOMMU and ACS.", "nvidia-smi topo -p2p r"),
            ],
            at=where,
            more=version_seen(logs, events[0]),
        )


def _not_shared(logs: Logs, event: LogEvent) -> bool:
    """Whether memory may not leave the process that has it; NCCL's proxy asks for that, whatever the transport."""
    if _NOT_PERMITTED not in event.fields["error"] or "captur" in event.fields["error"]:
        return False
    return within_a_host(logs) and event not in in_nvls(logs)


def _without(logs: Logs) -> Iterator[Finding]:
    """What NCCL says as it takes the other path: it works, sound jobs say it too, and it ends none."""
    for where, events in hosts(events_of(logs, "p2p-off", "p2p-not-enabled", "legacy-ipc")):
        ipc = all(event.sign == "legacy-ipc" for event in events)
        what = "the platform has no CUDA IPC (WSL2, vGPU)" if ipc else "the driver forbids P2P between GPUs"
        yield cause(
            events,
            f"{what}{on(where)}: ranks go through the host's memory",
            why="It works, at a fraction of the speed; it is normal for GeForce, L4, A10, WSL2 and virtual "
            "machines.",
            owner="node",
            state=State.NOTE,
            fix=[
                you("Confirm: what the driver says of each pair.", "nvidia-smi topo -p2p r", "nvidia-smi topo -m"),
                _ACS,
                you("Where it cannot be had, give /dev/shm room.", "df -h /dev/shm"),
            ],
            at=where,
            more=version_seen(logs, events[0]),
        )


@log_rule("LOG062", "peer-to-peer transfers over PCIe arrive intact")
def pcie(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    On one node all ranks were ready and connected by P2P over PCIe, and the first collective never ended, or gave
    wrong results.

    ## Why it matters
    Where ACS or an IOMMU that translates sends traffic between GPUs by another path, or a driver offers P2P that
    the GPUs do not have (GeForce RTX 4090 and 5090), data never arrive or arrive wrong. NCCL sees nothing: all
    GPUs show 100 %, and after its time the watchdog ends the job.

    ## Seen as
    dies

    ## How we know
    It is a conclusion, and reported as one: one machine, every rank's init complete, connections via P2P,
    chunks of 128 KB (NCCL uses 512 KB over NVLink), and either the watchdog's time-out of one of the first
    collectives, the same on all ranks, or wrong values in nccl-tests, or a time limit with GeForce GPUs. Proof
    is a run with NCCL_P2P_DISABLE=1 that ends.

    ## Fix
    - **you** NCCL_P2P_DISABLE=1 for now; `ncclcheck bench` shows wrong or missing data between two GPUs.
    - **admin** ACS off on the bridges, `iommu=pt` or VT-d off in the BIOS; a newer driver.

    ## Source
    NVIDIA/nccl#2079, NVIDIA/nccl#257, NVIDIA/nccl#667, NVIDIA/nccl#631, NVIDIA/nccl-tests#117, dmlc/xgboost#11242;
    NCCL user guide, Troubleshooting, PCI Access Control Services.
    """
    job = of_the_job(logs)
    if not _all_over_pcie(job) or setting(logs, "NCCL_P2P_DISABLE") == "1":
        return
    if wrong := events_of(logs, "tests-wrong-data"):
        yield _astray(job, wrong, "results over PCIe P2P are wrong")
    elif stuck := _first_hangs(logs, job) or _until_the_limit(logs):
        yield _astray(job, stuck, "all ranks wait for ever in a first collective over PCIe P2P")


def wrong_over_pcie(logs: Logs) -> bool:
    """Whether values were wrong that GPUs sent each other over PCIe."""
    return (
        bool(events_of(logs, "tests-wrong-data"))
        and _all_over_pcie(of_the_job(logs))
        and (setting(logs, "NCCL_P2P_DISABLE") != "1")
    )


def _astray(job: list[LogProcess], events: list[LogEvent], what: str) -> Finding:
    return cause(
        events,
        f"{what}: likely ACS, the IOMMU or the driver",
        why="Peer-to-peer transfers are lost or corrupted silently.",
        owner="node",
        fix=[
            you("Confirm: it works with this, and fails without.", "export NCCL_P2P_DISABLE=1"),
            you("See which GPUs it is.", "nvidia-smi topo -p2p r", "ncclcheck bench --nodes 1"),
            _ACS,
            admin(
                "For GeForce GPUs install a driver that does not offer P2P.",
                "nvidia-smi --query-gpu=name,driver_version --format=csv",
            ),
        ],
        at=Where(node=job[0].host),
        more=[seen("connections", ", ".join(sorted({kind for process in job for kind in process.vias})))],
    )


# collectives up to this number belong to a job's start, where a P2P path that does not work shows: chosen
_FIRST_CALLS = 10
_FOLLOWED = (
    "remote-closed",
    "connection-reset",
    "broken-pipe",
    "proxy-failed",
    "store-broken",
    "aborted-by-watchdog",
)


def _first_hangs(logs: Logs, job: list[LogProcess]) -> list[LogEvent]:
    """The watchdogs' time-outs, where all are of one collective, one of the first, and no rank is missing."""
    events = events_of(logs, "watchdog-timeout")
    which = {(event.fields.get("seq", ""), event.fields.get("op", "")) for event in events}
    number = next(iter(which))[0] if len(which) == 1 else ""
    heard = {event.rank for event in (*events, *events_of(logs, *_FOLLOWED))}
    there = number.isdecimal() and int(number) <= _FIRST_CALLS and {process.rank for process in job} <= heard
    return events if there else []


def _until_the_limit(logs: Logs) -> list[LogEvent]:
    """GeForce GPUs under nccl-tests: nothing watches there, until the job's time is over."""
    return events_of(logs, "time-limit") if events_of(logs, "gpu-geforce") else []


def _all_over_pcie(job: list[LogProcess]) -> bool:
    """Whether the job is on one machine, is ready, and has no NVLink."""
    kinds = {kind for process in job for kind in process.vias}
    direct = any(kind.startswith("P2P/") for kind in kinds) and "P2P/MNNVL" not in kinds
    alone = not any("NET/" in kind for kind in kinds) and len(machines(job)) == 1
    slow = not any(process.nvls for process in job) and {process.chunk for process in job} <= {None, _OVER_PCIE}
    one_node = all(process.nnodes in (None, 1) for process in job)
    return direct and alone and one_node and slow and all(process.completed for process in job)


_TOPOLOGY: list[Remedy] = [
    you(
        "Confirm: what NCCL thinks of the machine.",
        "export NCCL_TOPO_DUMP_FILE=/tmp/topo.xml NCCL_DEBUG_SUBSYS=INIT,GRAPH",
        "nvidia-smi topo -m",
    ),
    you(
        "Give it the provider's file, inside of the container too.",
        "ls /opt/microsoft/*topo*.xml /var/run/nvidia-topologyd/",
        "export NCCL_TOPO_FILE=/opt/microsoft/ndv5-topo.xml",
    ),
]


@log_rule("LOG071", "NCCL detects the machine's topology", worst=State.WARN, risk=True)
def topology(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    NCCL works without the real PCIe tree: a virtual machine hides it, and the file that describes it is not given.

    ## Why it matters
    All GPUs and NICs then seem equally far from each other. NCCL pairs them at random, turns GPUDirect RDMA off
    for the distance, and reaches a fraction of the network's speed.

    ## Seen as
    slow

    ## How we know
    `Could not open XML topology file` (NCCL_TOPO_FILE names one that is not there, often not mounted into the
    container). With NCCL_TOPO_FILE not set: paths of type PHB or SYS between GPUs and NICs, and either four
    NICs or more, as only machines with PCIe switches have, or `Topology detection : could not read
    /sys/devices/pci...`. Without the subsystem GRAPH in NCCL_DEBUG_SUBSYS a log does not show it.

    ## Fix
    - **you** NCCL_TOPO_FILE of the provider (Azure: /opt/microsoft/*.xml), mounted into the container.
    - **admin** an image that has the file; in own virtual machines the real tree, or a file of your own.

    ## Source
    NCCL user guide, Troubleshooting, GPU topology, and Environment variables, NCCL_TOPO_FILE.
    """
    missing = events_of(logs, "topology-file-missing")
    for where, events in hosts(missing or _virtual(logs)):
        path = events[0].fields.get("path", "")
        what = (
            f"the topology file {path} is not there"
            if missing
            else "NCCL sees a virtual PCIe tree, and has no file of it"
        )
        yield cause(
            events,
            f"{what}{on(where)} ({ranks(events)})",
            why="GPUs and NICs are paired by chance, and the network reaches a fraction of its speed.",
            owner="job",
            state=State.WARN,
            fix=_TOPOLOGY,
            at=where,
            more=settings_seen(logs, "NCCL_TOPO_FILE"),
        )


def _virtual(logs: Logs) -> list[LogEvent]:
    """The lines that show a tree of a virtual machine, where no file describes the real one."""
    unread, far = events_of(logs, "topology-unread"), events_of(logs, "graph-far")
    many = any(len(process.devices) >= _MANY for process in logs.processes)
    out = any(process.devices and (process.nnodes or 1) > 1 for process in logs.processes)
    shown = (far and (unread or many)) or (unread and out)
    return [*unread, *far] if shown and not setting(logs, "NCCL_TOPO_FILE") else []


@log_rule("LOG178", "no process maps more peers than CUDA allows")
def peers_can_be_mapped(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    CUDA refused to map one more peer into a GPU's memory.

    ## Why it matters
    Without NVSwitch a GPU can be mapped by eight others at a time, of all processes together. With ten GPUs in one
    machine NCCL's direct access (P2P) between all of them asks for more; so does another process, such as Xorg,
    that has switched peer access on.

    ## How we know
    `Cuda failure 711 'peer mapping resources exhausted'` (cudaErrorTooManyPeers).

    ## Fix
    - **you** at most nine GPUs that reach each other directly; else only below one PCIe switch
      (`NCCL_P2P_LEVEL=PIX`), or without P2P (`NCCL_P2P_DISABLE=1`).
    - **admin** end what else uses peer access (Xorg on all GPUs).

    ## Source
    CUDA programming guide, Peer-to-peer memory access; CUDA Runtime API, cudaErrorTooManyPeers; NVIDIA/nccl#241.
    """
    for where, events in hosts(cuda_errors(logs, "peer mapping resources exhausted")):
        yield cause(
            events,
            f"more GPUs are to reach into one GPU's memory than CUDA allows{on(where)}: eight peers each",
            why="With more than nine GPUs, or another process that maps them (Xorg), the last ones are refused.",
            owner="job",
            fix=[
                you("Confirm: count the GPUs, and see who else uses them.", "nvidia-smi"),
                you("Use nine GPUs at most.", "export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7"),
                you("Or let NCCL go without direct access, or only below one PCIe switch.",
                    "export NCCL_P2P_LEVEL=PIX", "export NCCL_P2P_DISABLE=1"),
                admin("Take Xorg off the GPUs that compute.", "systemctl isolate multi-user.target"),
            ],
            at=where,
            more=version_seen(logs, events[0]),
        )  # fmt: skip
