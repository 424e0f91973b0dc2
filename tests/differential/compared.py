"""What the library did beside what we say it does, case by case."""

from __future__ import annotations

import io
import random
import re
import shutil
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from ncclcheck.probes.facts import Node, Transport
from ncclcheck.probes.logs.files.lines import read
from ncclcheck.probes.logs.nccl_lines.records import Log
from ncclcheck.probes.logs.nccl_lines.transports import transport
from ncclcheck.reports.judgement.findings import State
from ncclcheck.reports.subjects.nccl import wiring
from ncclcheck.reports.subjects.nccl.carrying import carrying
from ncclcheck.reports.subjects.nccl.choice import InterfaceChoice, nccl_choice
from ncclcheck.reports.subjects.nccl.hca import gid_choice
from ncclcheck.reports.subjects.nccl.variables import parse, reference
from ncclcheck.reports.subjects.nccl.variables import values as in_force
from tests.differential.asking import Judge, RankRequest, Request
from tests.differential.machines import (
    MachineOf,
    as_virtual,
    connected_case,
    hca_case,
    roce_case,
    topology_file,
    write,
)
from tests.differential.networks import NetworkCase, network_case
from tests.differential.settings import Setting, setting_case
from tests.differential.shapes import shape
from tests.helpers.clusters import verdict

ETH0 = [
    "link set lo up",
    "link add name eth0 type bridge",
    "addr add 10.0.0.1/24 dev eth0",
    "link set dev eth0 up",
]
QUIET = {"NCCL_DEBUG": "INFO", "NCCL_NET_PLUGIN": "none", "HOME": "/nonexistent"}
_NO_LISTENER = ("No usable listening interface found", "Invalid NCCL_COMM_ID")


@dataclass(frozen=True)
class Compared:
    """One case. limit: why a difference is none of ours to find."""

    about: str
    ours: object
    theirs: object
    limit: str = ""

    @property
    def differs(self) -> bool:
        return self.ours != self.theirs and not self.limit


def differences(judge: Judge, kind: Kind, seed: int, cases: int, folder: Path) -> tuple[int, list[Compared]]:
    """How many things were compared in so many cases, and those that differ."""
    rng = random.Random(seed)
    compared = [compared for _ in range(cases) for compared in kind(judge, rng, folder)]
    assert len(compared) >= cases
    return len(compared), [compared for compared in compared if compared.differs]


Kind = Callable[[Judge, random.Random, Path], Iterator[Compared]]


def interfaces(judge: Judge, rng: random.Random, folder: Path) -> Iterator[Compared]:
    """The interface for bootstrap, those for data, and what NCC007 says of the names."""
    case = network_case(rng)
    env = {**QUIET, **case.env, **_files(case, folder)}
    # A root of NCCL_COMM_ID binds its address: another rank looks for its own interface and then waits.
    rank = RankRequest(env=env, rank=1, ranks=2, alone=True) if _has_comm_id(case) else RankRequest(env=env)
    wanted = ["Bootstrap", "NET/Socket : Using", "Init START"]
    mounts = [(str(folder / "etc"), "/etc")]
    answer = judge.ask(Request(links=case.links(), mounts=mounts, enough=wanted, ranks=[rank], seconds=8))
    assert answer.node is not None
    settings = in_force(answer.node)
    choice = nccl_choice(answer.node.network.interfaces, settings, judge.version)  # type: ignore[union-attr, arg-type]
    log = answer.ranks[0].log
    limit = ""
    if "NCCL_COMM_ID" in settings and choice.bootstrap is None and "NCCL_COMM_ID" not in choice.problem:
        limit = "NCCL_COMM_ID names a host, or no address in full"
    about = f"{settings} {_cards(answer.node)}"
    yield Compared(about, _choice(choice), _bound(log), limit)
    name = settings.get("NCCL_SOCKET_IFNAME", "")
    if len(name) > 1 and "NCCL_COMM_ID" not in settings:
        judged = verdict("NCC007", answer.node)
        yield Compared(f"NCC007 {about}", judged.state is State.FAIL, _bound(log) == (None, []))


def _has_comm_id(case: NetworkCase) -> bool:
    return "NCCL_COMM_ID" in str(case)


def _files(case: NetworkCase, folder: Path) -> dict[str, str]:
    """Writes the files that configure NCCL, below an /etc and a home of the case's own; its variables."""
    etc, home = folder / "etc", folder / "home"
    if not etc.exists():
        shutil.copytree("/etc", etc, symlinks=True, ignore_dangling_symlinks=True)
        home.mkdir()
        passwd = (etc / "passwd").read_text()
        (etc / "passwd").write_text(
            re.sub(r"^root:.*$", f"root:x:0:0:root:{home}:/bin/sh", passwd, flags=re.MULTILINE)
        )
    named = folder / "named.conf"
    for path, text in (
        (etc / "nccl.conf", case.etc_conf),
        (home / ".nccl.conf", case.home_conf),
        (named, case.named_conf),
    ):
        path.unlink(missing_ok=True)
        if text is not None:
            path.write_bytes(text.encode())
    variables = {"HOME": str(home)}
    return variables if case.named_conf is None else {**variables, "NCCL_CONF_FILE": str(named)}


def _choice(choice: InterfaceChoice) -> object:
    if choice.problem and choice.bootstrap is None:
        return None, []
    first = choice.bootstrap
    return first and f"{first.name}:{first.address}", [f"{chosen.name}:{chosen.address}" for chosen in choice.used]


def _bound(log: str) -> object:
    """What NCCL's own lines name: bootstrap, and sockets for data."""
    if any(words in log for words in _NO_LISTENER):
        return None, []
    first = re.search(r"Bootstrap ?: Using (.*)<\d+>$", log, re.MULTILINE)
    data = re.search(r"NET/Socket : Using (\[0\].*)$", log, re.MULTILINE)
    names = re.findall(r"\[\d+\](\S+?)<\d+>", data[1]) if data else []
    return first and _bare(first[1]), [_bare(name) for name in names]


def _bare(text: str) -> str:
    """Without the scope of a link-local address."""
    return text.partition("%")[0]


def _cards(node: Node) -> list[tuple[str, list[str]]]:
    cards = node.network.interfaces  # type: ignore[union-attr]
    return [(i.name, [f"{a.address}/{a.prefix}" for a in i.addresses]) for i in cards]  # type: ignore[union-attr]


def hcas(judge: Judge, rng: random.Random, folder: Path) -> Iterator[Compared]:
    """The ports of HCAs that NET/IB takes, in its order."""
    machine, settings = hca_case(rng)
    sys = folder / "sys"
    shutil.rmtree(sys, ignore_errors=True)
    write(machine, sys)
    env = {
        **QUIET,
        **machine.variables(),
        "NCCL_IB_MERGE_NICS": "0",
        **settings,
    }  # 2.23 writes merged ones in braces
    answer = judge.ask(Request(links=ETH0, sys=str(sys), ranks=[RankRequest(env=env)], seconds=20))
    assert answer.node is not None
    taken = wiring.choice(answer.node)
    ours = [f"{port.hca.name}:{port.number}/{'RoCE' if port.is_roce else 'IB'}" for port in taken.used]
    match = re.search(r"NET/IB : Using (.*)$", answer.ranks[0].log, re.MULTILINE)
    theirs = re.findall(r"\[\d+\]([^ ;]+?)(?:/SHARP)?(?= |;|$)", match[1]) if match else []
    yield Compared(f"{settings} {answer.node.rdma}", ours, theirs)


def gids(judge: Judge, rng: random.Random, folder: Path) -> Iterator[Compared]:
    """The GID of a RoCE port over which two ranks connect; None where the table holds none at that index."""
    machine, settings = roce_case(rng)
    sys = folder / "sys"
    shutil.rmtree(sys, ignore_errors=True)
    write(machine, sys)
    env = {
        **QUIET,
        **machine.variables(),
        "NCCL_DEBUG_SUBSYS": "INIT,NET",
        "NCCL_RUNTIME_CONNECT": "0",
        **settings,
    }
    ranks = [RankRequest(env={**env, "NCCL_HOSTID": f"h{host}"}, rank=host, ranks=2) for host in range(2)]
    answer = judge.ask(Request(links=ETH0, sys=str(sys), ranks=ranks, enough=[" GID "], seconds=30))
    assert answer.node is not None
    (port,) = wiring.choice(answer.node).used
    taken = gid_choice(port, in_force(answer.node), judge.version)
    assert taken is not None
    match = re.search(r" GID (-?\d+) ", answer.ranks[0].log)
    table = machine.slots[1].cards[0].ports[0].gids
    ours = taken.index if 0 <= taken.index < len(table) else None
    yield Compared(f"{settings} {table}", ours, match and int(match[1]))


def settings(judge: Judge, rng: random.Random, folder: Path) -> Iterator[Compared]:  # noqa: ARG001
    """What values mean: numbers as NCCL prints them, words as taken or passed over, lists as refused or not."""
    case: Setting = setting_case(rng)
    env = {**QUIET, "NCCL_DEBUG_SUBSYS": "INIT,ENV,TUNING,GRAPH", "FAKECUDA_P2P": "1", **case.env}
    ranks = [RankRequest(env=env, rank=number, ranks=2, device=number) for number in range(2)]
    answer = judge.ask(Request(links=ETH0, ranks=ranks, seconds=30))
    log, refused = answer.ranks[0].log, answer.ranks[0].result != 0
    parsed = {name: parse(reference()[name], value, judge.version) for name, value in case.env.items()}
    yield Compared(f"refused: {case.env}", any(parsed.raises for parsed in parsed.values()), refused)
    for name, setting in parsed.items() if not refused else ():
        echo = re.search(rf"{name} set by environment to (.*?)\.?$", log, re.MULTILINE)
        if name in case.numbers:
            yield Compared(
                f"{name}={case.env[name]!r}",
                None if setting.value is None else str(setting.value),
                echo and echo[1],
            )
        elif name in case.levels:
            yield Compared(f"{name}={case.env[name]!r}", bool(setting.value), echo is not None)
        elif name == "NCCL_DEBUG":
            silent = bool(setting.complaint) or setting.value in (None, "", "NONE")
            yield Compared(f"{name}={case.env[name]!r}", silent, "NCCL" not in log)


def transports(judge: Judge, rng: random.Random, folder: Path) -> Iterator[Compared]:
    """How ranks are connected: what our report reads in the log, against what was built and NCCL's own graph."""
    machine, wanted = connected_case(rng)
    sys, graph = folder / "sys", folder / "graph.xml"
    shutil.rmtree(sys, ignore_errors=True)
    graph.unlink(missing_ok=True)
    write(machine, sys)
    each = len(machine.buses())
    dump = {
        "NCCL_GRAPH_DUMP_FILE": str(graph),
        "NCCL_RUNTIME_CONNECT": "0",
        "NCCL_PAT_ENABLE": "0",  # its neighbours stand in no line
        "NCCL_DEBUG_SUBSYS": "INIT,BOOTSTRAP,ENV,NET",
    }
    env = {**QUIET, **machine.variables(), **dump, **wanted.env}
    ranks = [
        RankRequest(
            env={**env, "NCCL_HOSTID": f"h{host}"}, rank=host * each + gpu, ranks=wanted.hosts * each, device=gpu
        )
        for host in range(wanted.hosts)
        for gpu in range(each)
    ]
    answer = judge.ask_whole(
        Request(links=ETH0, sys=str(sys), ranks=ranks, enough=["Connected all trees", "coll channels"], seconds=60)
    )
    apart = wanted.kinds(machine) & {("intra", "NET"), ("intra", "SHM")}
    limit = "without P2P NCCL may take cards within a host, and counts each rank as a node" if apart else ""
    either = {("intra", "NET"): ("intra", "SHM")} if apart else {}  # within a host NCCL takes the one or the other
    for number, answered in enumerate(answer.ranks):
        local = [other for other in range(len(ranks)) if other // each == number // each]
        facts = _told(answered.log, number, local)
        about = f"rank {number} of {len(ranks)}, {wanted} {machine}"
        kinds = {(c.peers, c.kind.partition("/")[0]) for c in facts.connections}  # type: ignore[union-attr]
        seen, built = ({either.get(kind, kind) for kind in some} for some in (kinds, wanted.kinds(machine)))
        yield Compared(f"transport: {about}", seen, built)
        yield Compared(f"network: {about}", facts.network, wanted.network(machine))
        rings = re.findall(r"NCCL INFO Channel \d+/\d+ : ([ \d]+)$", answer.ranks[0].log, re.MULTILINE)
        yield Compared(f"channels: {about}", facts.channels, len(rings))
        yield Compared(
            f"neighbours: {about}", _reached(answered.log, number), _neighbours(answered.log, number, rings)
        )
        yield Compared(f"nodes: {about}", (facts.nnodes, facts.nranks), (wanted.hosts, len(ranks)), limit)
    here = [_told(answer.log, number, range(each)) for number, answer in enumerate(answer.ranks[:each])]
    used = {d for facts in here for c in facts.connections if c.peers == "inter" for d in c.devices}  # type: ignore[union-attr]
    if wanted.network(machine) == "IB" and wanted.hosts > 1:
        yield Compared(f"network devices: {wanted} {machine}", used, _devices_of(graph), limit)


def _reached(log: str, rank: int) -> set[int]:
    """The ranks to which our reader saw this one connect."""
    (process,) = Log().take(read(io.BytesIO(log.encode()))).processes.values()
    return {target for communicator in process.all for _, _, source, target in communicator.seen if source == rank}


def _neighbours(log: str, rank: int, rings: list[str]) -> set[int]:
    """Those next to it in NCCL's own lines of its rings, and above and below it in the trees.

    Where NCCL counts each rank as a node, it connects those at distances of powers of two as well, both ways: the
    algorithm PAT, which no line draws, and which is connected where it is switched off, too.
    """
    orders = [[int(number) for number in ring.split()] for ring in rings]
    near = {order[(order.index(rank) + 1) % len(order)] for order in orders}
    for below, above in re.findall(rf"\[\d+\] ([-\d/]+)->{rank}->(-?\d+)", log):
        near |= {int(number) for number in (*below.split("/"), above)}
    alone = re.search(rf"rank {rank} nRanks (\d+) nNodes (\d+) ", log)
    if alone and alone[1] == alone[2]:
        ranks = int(alone[1])
        steps = [2**power for power in range(ranks.bit_length()) if 2**power < ranks]
        near |= {(rank + way * step) % ranks for step in steps for way in (1, -1)}
    return near - {-1, rank}


def _devices_of(graph: Path) -> set[int]:
    """The network devices in NCCL_GRAPH_DUMP_FILE."""
    return {int(number, 0) for number in re.findall(r'<net dev="(\w+)"', graph.read_text())}


def carriers(judge: Judge, rng: random.Random, folder: Path) -> Iterator[Compared]:
    """Which HCAs carry the data of a job over two such machines."""
    machine = shape(rng)
    yield from _carried(judge, folder, machine, machine, {})


def told_places(judge: Judge, rng: random.Random, folder: Path) -> Iterator[Compared]:
    """The same of virtual machines, whose /sys is flat, and a provider's NCCL_TOPO_FILE."""
    machine = shape(rng)
    file = folder / "topology.xml"
    file.write_text(topology_file(machine))
    yield from _carried(judge, folder, machine, as_virtual(machine), {"NCCL_TOPO_FILE": str(file)})


def _carried(
    judge: Judge, folder: Path, machine: MachineOf, shown: MachineOf, variables: dict[str, str]
) -> Iterator[Compared]:
    """machine: as it is; shown: by its /sys."""
    sys, graph = folder / "sys", folder / "graph.xml"
    shutil.rmtree(sys, ignore_errors=True)
    graph.unlink(missing_ok=True)
    write(shown, sys)
    each = len(machine.buses())
    env = {
        **QUIET,
        **machine.variables(),
        "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH",
        "NCCL_GRAPH_DUMP_FILE": str(graph),
        **variables,
    }
    ranks = [
        RankRequest(env={**env, "NCCL_HOSTID": f"h{host}"}, rank=host * each + gpu, ranks=2 * each, device=gpu)
        for host in range(2)
        for gpu in range(each)
    ]
    answer = judge.ask_whole(Request(links=ETH0, sys=str(sys), ranks=ranks, enough=["Trees [0]"], seconds=60))
    assert answer.node is not None
    ours = {port.hca.name for port in carrying(answer.node, wiring.choice(answer.node).used)}
    names = dict(re.findall(r"Made virtual device \[(\d+)\] name=(\S+)", answer.ranks[0].log))
    theirs = {name for number in _devices_of(graph) for name in names[str(number)].split("+")}
    speeds = {(card.speed, port.rate) for slot in machine.slots for card in slot.cards for port in card.ports}
    mixed = (
        "where cards differ in speed, NCCL may add slower ones for more channels, or none"
        if len(speeds) > 1
        else ""
    )
    yield Compared(f"left out, but used: {machine}", set(), theirs - ours, mixed)
    limit = mixed if machine.nvlinks else "without NVLink NCCL may use fewer"
    limit = limit or (
        "of cards that are as good, NCCL takes as many as it has channels" if len(ours) > each else ""
    )
    yield Compared(f"named, but idle: {machine}", ours - theirs, set(), limit)


def _told(log: str, rank: int, local: Collection[int]) -> Transport:
    """What our own reader makes of a log."""
    match = re.search(r"^\S+?:(\d+):\d+ \[\d+\] NCCL INFO", log, re.MULTILINE)
    assert match is not None, log[:500]
    return transport(Log().take(read(io.BytesIO(log.encode()))), int(match[1]), rank, "node", local)
