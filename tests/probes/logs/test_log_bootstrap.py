"""Rules about how ranks find each other, and about commands that start nothing: small logs -> codes."""

from __future__ import annotations

import pytest

from ncclcheck.reports.judgement.findings import State
from tests.helpers.logs import judged, raised

MINE = {f"LOG{number:03}" for number in [*range(10, 30), *range(160, 170)]}
WARN = "elm04:2890:2930 [0] misc/socket.cc:441 NCCL WARN "
OLD = "elm04:2890:2930 [0] include/socket.h:403 NCCL WARN "
C10D = "[E1012 08:16:02.448 socket.cpp:1011] [c10d] "


def start(host: str, address: str, rank: int, *more: str, over: str = "eth0", ranks: int = 2) -> str:
    """A process that begins. more: lines of its own."""
    pid = 2890 if host == "elm04" else 3110
    head = f"{host}:{pid}:{pid + 40} [0] NCCL INFO "
    texts = [
        f"Bootstrap : Using {over}:{address}<0>",
        *more,
        f"ncclCommInitRank comm 0x55d0{pid} rank {rank} nranks {ranks} cudaDev 0 nvmlDev 0 busId 1b000 commId "
        f"0x7 - Init START",
    ]
    return "".join(f"{head}{text}\n" for text in texts)


def complete(host: str, rank: int) -> str:
    pid = 2890 if host == "elm04" else 3110
    return (
        f"{host}:{pid}:{pid + 40} [0] NCCL INFO ncclCommInitRank comm 0x55d0{pid} rank {rank} nranks 2 cudaDev 0 "
        "nvmlDev 0 busId 1b000 commId 0x7 - Init COMPLETE\n"
    )


DONE = complete("elm03", 0) + complete("elm04", 1)
TWO = start("elm03", "10.44.7.3", 0) + start("elm04", "10.44.7.4", 1)
BRIDGED = start("elm03", "172.17.0.1", 0, over="docker0") + start("elm04", "172.17.0.1", 1, over="docker0")
LOOPED = start("elm03", "127.0.0.1", 0, over="lo") + start("elm04", "127.0.0.1", 1, over="lo")
LISTED = "NET/Socket : Using [0]eth0:10.44.7.{0}<0> [1]virbr0:192.168.122.1<0>"
VIRBR = start("elm03", "10.44.7.3", 0, LISTED.format(3), "Using network Socket") + start(
    "elm04", "10.44.7.4", 1, LISTED.format(4), "Using network Socket"
)
TWINS = start("elm03", "10.44.7.3", 0) + start(
    "elm04", "10.44.7.4", 1, "NET/Socket : Using [0]eth0:10.44.7.4<0> [1]eth1:10.44.7.104<0>"
)
MIXED = start("elm03", "10.44.7.3", 0, "Using network IB") + start("elm04", "10.44.7.4", 1, "Using network Socket")
VERSIONS = start("elm03", "10.44.7.3", 0, "NCCL version 2.19.3+cuda12.3") + start(
    "elm04", "10.44.7.4", 1, "NCCL version 2.20.5+cuda12.4"
)
FAMILY = "ncclSocketInit: connecting to address  with family {0} is neither AF_INET(2) nor AF_INET6(10)"
IFNAME = "elm04:2890:2890 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth2\n"
BIND = "The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use)."
UNKNOWN_NAME = (
    "[W1012 08:15:02.447 socket.cpp:764] [c10d] The IPv6 network addresses of (elm-03, 29500) cannot be retrieved "
    "(gai error: -2 - Name or service not known).\n"
)
NO_ANSWER = "The client socket has timed out after 60000ms while trying to connect to ({0}, 29500)."
GLOO = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:799] connect "
FELL_BACK = (
    "[W ProcessGroupGloo.cpp:751] Warning: Unable to resolve hostname to a (local) address. Using the loopback "
    "address as fallback. Manually set the network interface to bind to with GLOO_SOCKET_IFNAME.\n"
)
NOT_USED = (
    "W1012 run.py:855] master_addr is only used for static rdzv_backend and when rdzv_endpoint is not specified.\n"
)

NAMED = {
    "a bridge that every host has": (
        BRIDGED + WARN + "Net : Connect to 172.17.0.1<4> failed : Connection refused",
        "LOG010",
    ),
    "a bridge, and silence": (BRIDGED, "LOG010"),
    "data over virbr0": (VIRBR, "LOG010"),
    "an address that two hosts have": (
        start("elm03", "10.9.0.1", 0)
        + start("elm04", "10.9.0.1", 1)
        + WARN
        + "socketPollConnect: Connect to 10.9.0.1<4> returned 111(Connection refused) errno 115(x)",
        "LOG010",
    ),
    "a link-local address": (
        TWO + WARN + "socketStartConnect: Connect to fe80::8c%veth1<4> failed : Network is unreachable",
        "LOG010",
    ),
    "loopback, and silence": (LOOPED, "LOG011"),
    "loopback is dialled": (
        WARN + "socketStartConnect: Connect to 127.0.0.1<4> failed : Connection refused",
        "LOG011",
    ),
    "no interface of that name": (IFNAME + WARN + "Bootstrap : no socket interface found", "LOG012"),
    "memory that nobody wrote": (WARN + FAMILY.format(59936), "LOG012"),
    "family 0, but an interface was asked for": (TWO + IFNAME + WARN + FAMILY.format(0), "LOG012"),
    "no network in the container": (
        OLD + "Socket creation failed : Address family not supported by protocol",
        "LOG013",
    ),
    "family 0 on one host": (start("elm04", "10.44.7.4", 0, ranks=1) + WARN + FAMILY.format(0), "LOG013"),
    "a firewall that rejects, 2.7": (
        TWO + OLD + "Connect to 10.44.7.3<39127> failed : No route to host",
        "LOG014",
    ),
    "a firewall that drops, 2.19": (
        TWO
        + WARN
        + "socketPollConnect: connect returned Connection timed out, exceeded error retry count (20001)",
        "LOG014",
    ),
    "a peer that went silent": (
        TWO + WARN + "socketProgressOpt: Call to recv from 10.44.7.3<39127> failed : Connection timed out",
        "LOG014",
    ),
    "nobody listens, 2.27": (
        TWO
        + WARN
        + "socketPollConnect: connect to 10.44.7.3<39127> returned Connection refused, exceeded error retry "
        "count after 35 attempts",
        "LOG015",
    ),
    "two cards in one subnet": (
        TWINS + WARN + "socketStartConnect: Connect to 10.44.7.3<39127> failed : Connection timed out",
        "LOG026",
    ),
    "TCP here and RDMA there": (WARN + "socketFinalizeAccept: wrong type 4 != 3", "LOG016"),
    "2.27 tells no types": (WARN + "socketFinalizeAccept from 10.44.7.3<39127>: wrong type", "LOG016"),
    "networks that differ, and silence": (MIXED, "LOG016"),
    "a stranger's number": (TWO + WARN + "socketFinalizeAccept: wrong magic 5a5a != 9d0c1a77e02b46f1", "LOG017"),
    "a stranger's type": (TWO + WARN + "socketFinalizeAccept: wrong type 1 != 3", "LOG017"),
    "versions, as 2.23 tells them": (
        WARN + "Mismatched NCCL version detected : rank 0 version 22105 rank 8 version 22005",
        "LOG018",
    ),
    "versions that processes told": (VERSIONS + WARN + FAMILY.format(0), "LOG018"),
    "another layout": (TWO + WARN + "Message truncated : received 1024 bytes instead of 256", "LOG018"),
    "channels that differ leave an odd family too": (
        TWO + WARN + FAMILY.format(1) + "\n" + WARN + "Message truncated : received 1024 bytes instead of 512",
        "LOG018",
    ),
    "family 0 on two hosts": (TWO + WARN + FAMILY.format(0), "LOG018"),
    "the port is taken": (f"{C10D}{BIND}\ntorch.distributed.DistNetworkError: {BIND}", "LOG019"),
    "the port is taken, libuv": (
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
        "port: 29400, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
        "LOG019",
    ),
    "a name that nobody knows": (UNKNOWN_NAME + C10D + NO_ANSWER.format("elm-03"), "LOG020"),
    "such a name, and the job was ended": (UNKNOWN_NAME * 40, "LOG020"),
    "no answer of the master": (C10D + NO_ANSWER.format("10.44.7.3"), "LOG027"),
    "the port is taken in the second run": (f"{TWO}{DONE}torch.distributed.DistNetworkError: {BIND}", "LOG019"),
    "no answer of the master, 1.10": (
        "RuntimeError: connect() timed out. Original timeout was 60000 ms.",
        "LOG027",
    ),
    "clients that did not come": (
        "torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. 1/2 clients joined.",
        "LOG021",
    ),
    "nodes that did not come": ("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError", "LOG021"),
    "one rank twice": (TWO + WARN + "Bootstrap Root : rank 1 of 2 ranks has already checked in", "LOG022"),
    "two numbers of ranks": (TWO + WARN + "Bootstrap Root : mismatch in rank count from procs 16 : 8", "LOG022"),
    "gloo dials itself": (GLOO + "[127.0.1.1]:24791: Connection refused", "LOG023"),
    "gloo fell back to loopback": (
        FELL_BACK + "RuntimeError: Gloo connectFullMesh failed with [../gloo/transport/tcp/pair.cc:144] no error",
        "LOG023",
    ),
    "NCCL's form for gloo": ("RuntimeError: ifa != nullptr. Unable to find address for: ^lo", "LOG024"),
    "gloo and a firewall": (GLOO + "[10.44.7.3]:24791: No route to host", "LOG028"),
    "too many sockets": (TWO + OLD + "Net : Call to accept failed : Too many open files", "LOG025"),
    "a variable behind nohup": (
        "nohup: failed to run command ‘NCCL_DEBUG=INFO’: No such file or directory",
        "LOG160",
    ),
    "a variable behind srun": ("slurmstepd: error: execve(): A=1: No such file or directory", "LOG160"),
    "no torchrun": ("job.sh: line 12: torchrun: command not found", "LOG161"),
    "no torch": ("/usr/bin/python3: No module named torch.distributed.run", "LOG161"),
    "no script": (
        "/usr/bin/python3: can't open file '/home/ada/trian.py': [Errno 2] No such file or directory",
        "LOG162",
    ),
    "no module": ("/usr/bin/python3: No module named trian", "LOG162"),
    "no such option": ("torchrun: error: unrecognized arguments: --nproc_per_nod=8", "LOG163"),
    "no script given": ("torchrun: error: the following arguments are required: training_script", "LOG163"),
    "no number of processes": ("ValueError: Unsupported nproc_per_node value: eight", "LOG163"),
    "no port": ("ValueError: port is missing in endpoint: elm03. Try to specify --master-port", "LOG163"),
    "c10d without an endpoint": (
        NOT_USED + "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
        "LOG163",
    ),
    "the launcher's local rank": ("train.py: error: unrecognized arguments: --local-rank=3", "LOG164"),
    "no rank": (
        "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK "
        "expected, "
        "but not set",
        "LOG165",
    ),
    "no local rank": ("KeyError: 'LOCAL_RANK'", "LOG165"),
    "no GPU": ("ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!", "LOG166"),
    "no NCCL": ("RuntimeError: Distributed package doesn't have NCCL built in", "LOG166"),
    "a tensor of the CPU": ("RuntimeError: No backend type associated with device type cpu", "LOG167"),
}

SILENT = {
    "a bridge on one host alone": start("elm04", "172.17.0.1", 0, over="docker0"),
    "a bridge that worked": BRIDGED + DONE,
    "loopback on one host alone": start("elm04", "127.0.0.1", 0, over="lo"),
    "loopback that worked": LOOPED + DONE,
    "retries": TWO + DONE + "elm04:1:1 [0] NCCL INFO Call to connect returned Connection refused, retrying\n",
    "an IPv6 that is switched off": "[W socket.cpp:601] [c10d] The client socket cannot be initialized to "
    "connect to [elm03]:29500 (errno: 97 - Address family not supported by protocol).",
    "one try of IPv6": UNKNOWN_NAME + TWO + DONE,
    "one try of IPv6 without NCCL's words": UNKNOWN_NAME,
    "an agent that goes on as a client": f"{C10D}{BIND}\n" + TWO + DONE,
    "a master that comes late": "[W socket.cpp:752] [c10d] The client socket has failed to connect to "
    "[elm03]:29500 (errno: 111 - Connection refused).\n" + TWO + DONE,
    "strangers, of which 2.30.7 only tells": TWO
    + DONE
    + "elm04:1:1 [0] NCCL INFO socketFinalizeAccept: wrong socket magic (peer 5a != expected 9d) from "
    "10.1.1.1<4>\n",
    "a gloo of one node": FELL_BACK,
    "--master-addr that is not needed": NOT_USED + TWO + DONE,
    "two runs in one log, of two versions, one without an end": TWO.replace("commId", "x")
    + "elm03:3110:3110 [0] NCCL INFO NCCL version 2.19.3+cuda12.3\n"
    + DONE
    + start("elm03", "10.44.7.3", 0, "NCCL version 2.21.5+cuda12.4")
    .replace("3110", "4110")
    .replace("0x7 -", "0x8 -"),
    "a command of no interest": "job.sh: line 3: figlet: command not found",
    "a peer that ended": TWO + WARN + "socketProgress: Connection closed by remote peer elm03<39127>",
}


@pytest.mark.parametrize("name", NAMED)
def test_a_cause_is_named(name: str) -> None:
    text, code = NAMED[name]
    assert {sign: state for sign, state in raised(text).items() if sign in MINE} == {code: "fail"}


@pytest.mark.parametrize("name", SILENT)
def test_nothing_is_named(name: str) -> None:
    assert not set(raised(SILENT[name])) & MINE


@pytest.mark.parametrize(
    ("text", "code", "node", "says"),
    [
        (MIXED, "LOG016", "elm04", "elm04 uses NET/Socket, elm03 IB"),
        (NAMED["versions, as 2.23 tells them"][0], "LOG018", None, "2.21.5 on rank 0, 2.20.5 on rank 8"),
        (
            NAMED["a stranger's number"][0].replace("5a5a", "302e322d485353"),
            "LOG017",
            "elm04",
            "dials NCCL on elm04",
        ),
        (NAMED["a stranger's number"][0].replace("5a5a", "302e322d2d485353"), "LOG017", "elm04", "'SSH--2.0'"),
        (NAMED["two cards in one subnet"][0], "LOG026", "elm04", "eth0 and eth1"),
        (NAMED["no such option"][0], "LOG163", None, "--nproc-per-node is meant"),
        (NAMED["the port is taken"][0], "LOG019", None, "port 29500 (the default)"),
        (NAMED["a firewall that rejects, 2.7"][0], "LOG014", "elm03", "10.44.7.3 (elm03): No route to host"),
    ],
)
def test_a_finding_says_who_and_what(text: str, code: str, node: str | None, says: str) -> None:
    finding = judged(text)[code].findings[0]
    assert finding.state is State.FAIL
    assert finding.where.node == node
    assert says in finding.what


def test_words_of_a_log_are_quoted_in_commands() -> None:
    finding = judged("slurmstepd: error: execve(): A=$(reboot): No such file or directory")["LOG160"].findings[0]
    commands = [command for remedy in finding.remedies for command in remedy.commands]
    assert "A='$(reboot)' nohup torchrun ..." in commands
    assert all(
        "$(reboot)" not in command.replace("'$(reboot)'", "").replace("'A=$(reboot)'", "") for command in commands
    )


_TOLD = "NCCL INFO Bootstrap : Using"
_START = "NCCL INFO ncclCommInitRank comm 0x1 rank {0} nranks {1} cudaDev 0 busId 1000 commId 0x7 - Init START"


def _hosts(*ends: str, world: int) -> str:
    """A rank on each host, all in their start; what each took for the bootstrap."""
    return "".join(
        f"elm0{n}:{n}00:{n}00 [0] {_TOLD} {end}<0>\nelm0{n}:{n}00:{n}00 [0] {_START.format(n, world)}\n"
        for n, end in enumerate(ends)
    )


def test_of_two_ranks_the_other_one_is_dialled_where_nccl_names_none() -> None:
    refused = (
        "elm01:100:100 [0] misc/socket.cc:543 NCCL WARN socketPollConnect: connect returned Connection refused, "
    )
    text = _hosts("eth0:10.44.7.3", "eth0:10.44.7.4", world=2) + refused + "exceeded error retry count (35)\n"
    finding = judged(text)["LOG015"].findings[0]
    assert finding.where.node == "elm00"
    assert "NCCL waits there" in finding.what
    only_made_the_id = text.replace(f"elm00:000:000 [0] {_START.format(0, 2)}\n", "")
    assert "nobody listens at a peer of elm00" in judged(only_made_the_id)["LOG015"].findings[0].what
    of_three = text.replace("nranks 2", "nranks 3")
    assert judged(of_three)["LOG015"].findings[0].where.node == "elm01"


def test_who_took_loopback_is_named_and_not_who_dials_it() -> None:
    text = _hosts("eth0:10.44.7.3", "lo:127.0.0.1", world=2) + (
        "elm00:000:000 [0] misc/socket.cc:582 NCCL WARN socketPollConnect: connect to 127.0.0.1<42349> returned "
        "Connection refused, exceeded error retry count after 35 attempts\n"
    )
    finding = judged(text)["LOG011"].findings[0]
    assert finding.where.node == "elm01"
    assert "elm01 took lo" in finding.what
