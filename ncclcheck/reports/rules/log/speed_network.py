"""LOG113, LOG115-LOG117: by the log, the network between hosts is used as well as it can be."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Logs
from ncclcheck.reports.judgement.findings import Finding, State, Where, admin, note, seen, you
from ncclcheck.reports.subjects.logs.logged import by_host, cause, events_of, lines, log_rule
from ncclcheck.reports.subjects.logs.network import link, over_sockets, over_verbs
from ncclcheck.reports.subjects.logs.reported import processes_by_host, settings_seen, several_hosts, within_a_host
from ncclcheck.reports.text.words.fold import fold_names

_FAST = 3.0  # GB/s, as of 25 Gb/s: what one TCP stream does not fill
_SMALL_MTU = "3"  # 1024 bytes, which a RoCE card takes of an Ethernet MTU of 1500
_FULL_HOST = 8  # ranks of a host as HGX and DGX have GPUs; such hosts have several HCAs


@log_rule("LOG113", "a fast TCP network is used with several sockets", worst=State.WARN)
def streams(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    `NET/Socket: Using 1 threads and 1 sockets per thread` between hosts whose network card has 25 Gb/s or more.

    ## Why it matters
    One TCP stream rarely fills such a card, and clouds limit each stream besides. The rest of the card is idle.

    ## How we know
    NCCL's line, and the speed of the card in its topology (`+ NET[12.5]`, in GB/s, with NCCL_DEBUG_SUBSYS=GRAPH).
    Where the log does not give the speed it is a note. NCCL's default is 1 and 1, on AWS 2 and 8, on Google's
    gVNIC 4 and 1.

    ## Fix
    - **you** try `export NCCL_SOCKET_NTHREADS=4 NCCL_NSOCKS_PERTHREAD=4` (the product at most 64), and measure.
      Confirm: `iperf3 -P 1` against `iperf3 -P 8` between the two hosts.

    ## Source
    NCCL user guide, NCCL_SOCKET_NTHREADS, NCCL_NSOCKS_PERTHREAD; NVIDIA/nccl-tests#83.
    """
    events = [
        event
        for event in events_of(logs, "socket-streams")
        if (event.fields["threads"], event.fields["sockets"]) == ("1", "1")
    ]
    if not events or not several_hosts(logs) or not any(over_sockets(process) for process in logs.processes):
        return
    speeds = [event for event in events_of(logs, "net-speed") if float(event.fields["speed"]) >= _FAST]
    limited = [process for process in logs.processes if process.settings.get("NCCL_SOCKET_NTHREADS") == "1"]
    fix = [you("Confirm by one stream against eight, then try more, and measure.", "iperf3 -c OTHER_HOST -P 1",
               "iperf3 -c OTHER_HOST -P 8", "export NCCL_SOCKET_NTHREADS=4 NCCL_NSOCKS_PERTHREAD=4")]  # fmt: skip
    if speeds:
        yield cause(
            [events[0], speeds[0]],
            f"one TCP stream for each connection, on a network of {float(speeds[0].fields['speed']) * 8:.0f} Gb/s",
            why="A single TCP stream rarely fills such a card; the rest of it is idle.",
            owner="job",
            fix=fix,
            state=State.WARN,
            at=Where(),
        )
    elif limited:
        yield cause(
            events[:1],
            "NCCL_SOCKET_NTHREADS=1 keeps each connection to one TCP stream",
            why="More streams help where the card has 25 Gb/s or more.",
            owner="job",
            fix=fix,
            state=State.WARN,
            at=Where(node=limited[0].host, rank=limited[0].rank),
        )
    else:
        why = "More streams help where the card has 25 Gb/s or more."
        yield note(Where(), "one TCP stream for each connection", why=why, evidence=lines(events[:1]), fix=fix)


@log_rule("LOG115", "HCAs are close to the GPUs that use them", worst=State.WARN)
def near(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    In a job over several hosts the topology search ends with `type .. /SYS`: the path from GPU to network card
    goes from one processor to the other. Or with `/PHB` (through the processor), or GPUDirect RDMA is off for
    it (`distance 7 > 5`), while no connection has /GDRDMA.

    ## Why it matters
    NCCL uses GPUDirect RDMA below a common PCIe switch by default. Further away data is copied through the host's
    memory, and the link between the processors carries it.

    ## How we know
    NCCL's GRAPH and NET lines (NCCL_DEBUG_SUBSYS=INIT,GRAPH,NET). In virtual machines the topology is often not
    the real one: the maker's NCCL_TOPO_FILE gives it.

    ## Fix
    - **you** name the near cards in NCCL_IB_HCA, bind ranks to the GPUs' NUMA node, set the cloud's
      NCCL_TOPO_FILE. Confirm: `nvidia-smi topo -m`.
    - **admin** put card and GPU below one PCIe switch.

    ## Source
    NVIDIA/nccl#820; NCCL user guide, NCCL_NET_GDR_LEVEL; NCCL user guide, Troubleshooting, GPU Direct RDMA.
    """
    if within_a_host(logs) or not any(over_verbs(process) for process in logs.processes):
        return
    plain = not any("GDRDMA" in kind for process in logs.processes for kind in process.vias)
    able = any(able for process in logs.processes for able in process.direct.values())
    far = [event for event in events_of(logs, "graph-far") if event.fields["path"] == "SYS" or plain]
    refused = events_of(logs, "gdr-far") if plain and able else []
    if events := [*far[:1], *refused[:2]]:
        yield cause(
            events,
            "GPUs reach their network cards only through the processor",
            why="Data is copied through the host's memory instead of going from GPU to card.",
            owner="node",
            fix=[you("Confirm which cards are near (PIX, PXB), and name these.", "nvidia-smi topo -m",
                     "export NCCL_IB_HCA==mlx5_0,mlx5_1"),
                 you("In a virtual machine give NCCL the maker's topology.", "export NCCL_TOPO_FILE=/PATH/FILE"),
                 admin("Put card and GPU below one PCIe switch.", "lspci -tv")],
            state=State.WARN,
            more=settings_seen(logs, "NCCL_IB_HCA", "NCCL_TOPO_FILE", "NCCL_NET_GDR_LEVEL"),
        )  # fmt: skip


@log_rule("LOG116", "RoCE ports use a large MTU", worst=State.WARN)
def large_packets(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    `mtu 3` in NCCL's NET lines of a RoCE card: packets of 1024 bytes, as an Ethernet MTU of 1500 allows.

    ## Why it matters
    With four times as many packets the card and the switches have four times as much to do: fast cards do not
    reach their rate.

    ## How we know
    NCCL prints the MTU of each connection (NCCL_DEBUG_SUBSYS=NET): 3 is 1024 bytes, 4 is 2048, 5 is 4096. Where
    hosts differ LOG042 says so.

    ## Fix
    - **admin** an MTU of at least 4200 (9000 is usual) on the cards' interfaces and on every switch between.
      Confirm: `ping -M do -s 8972 HOST`, `ibv_devinfo | grep active_mtu`.

    ## Source
    NVIDIA/dgx-spark-playbooks#103; ping(8).
    """
    events = events_of(logs, "ib-path-mtu")
    if (
        events
        and {event.fields["mtu"] for event in events} <= {"1", "2", _SMALL_MTU}
        and link(logs, events[0]) == "RoCE"
    ):
        yield cause(
            events,
            "RoCE sends in packets of 1024 bytes or less",
            why="Small packets: cards and switches have four times as much to do, and do not reach their rate.",
            owner="site",
            fix=[admin("Confirm, then raise the MTU on all interfaces and switches between.",
                       "ibv_devinfo | grep active_mtu", "ip link set IFACE mtu 9000", "ping -M do -s 8972 HOST")],
            state=State.WARN,
            at=Where(),
        )  # fmt: skip


@log_rule("LOG117", "a host uses all of its HCAs", worst=State.WARN)
def all_cards(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    All connections of a host go over one card (`via NET/IB/0`) while NCCL lists several, or NCCL_IB_HCA leaves one
    card to a host of eight GPUs.

    ## Why it matters
    The bandwidth between hosts is the sum over the cards: with one of eight it is an eighth.

    ## Seen as
    slow

    ## How we know
    The list after `NET/IB : Using` and the numbers in the `via` lines of all processes of the host; the value of
    NCCL_IB_HCA. At least two connections for each card must be seen. With NCCL 2.22 and later connections are made
    late: a log that ends early may show too few.

    ## Fix
    - **you** `unset NCCL_IB_HCA NCCL_CROSS_NIC NCCL_TOPO_FILE`, or name all cards for data. Confirm by the `via`
      lines.
    - **admin** see LOG115 where the topology hides cards from GPUs.

    ## Source
    NCCL user guide, NCCL_IB_HCA, NCCL_TOPO_FILE; NCCL user guide, Troubleshooting, Networking.
    """
    listed = by_host(events_of(logs, "ib-devices"))
    for host, processes in processes_by_host(logs).items():
        cards = max((process.devices for process in processes), key=len)
        used = {number for process in processes for number in process.rails if over_verbs(process)}
        ranks = max(process.local_ranks or 0 for process in processes)
        asked = processes[0].settings.get("NCCL_IB_HCA", "")
        events = listed.get(host, [])
        if not events:
            continue
        channels = sum(
            count for process in processes for kind, count in process.vias.items() if kind.startswith("NET/")
        )
        if len(cards) > 1 and len(used) == 1 and len(processes) > 1 and channels >= 2 * len(cards):
            what = f"{host} uses one of its {len(cards)} RDMA cards"
        elif len(cards) == 1 and ranks >= _FULL_HOST and asked and "," not in asked and asked[:1] != "^":
            what = f"{host} has one RDMA card for {ranks} GPUs, by NCCL_IB_HCA={asked}"
        else:
            continue
        yield cause(
            events,
            what,
            why="The bandwidth between hosts is the sum over the cards in use.",
            owner="job",
            fix=[you("Confirm which there are, and let NCCL take all; or name all cards for data.",
                     "ibv_devinfo -l", "unset NCCL_IB_HCA")],
            state=State.WARN,
            more=[seen("cards", fold_names(cards)), *settings_seen(logs, "NCCL_IB_HCA", "NCCL_TOPO_FILE")],
        )  # fmt: skip
