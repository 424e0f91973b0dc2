"""Counters of network interfaces and HCAs at one look.

A part of the streamed probe: standard library only, Python 3.6.
"""

import socket
from typing import Any, Dict, List

from ncclcheck.probes.live.machine.proc import Proc, number

Raw = Dict[str, Any]

_MOST = 128  # interfaces and HCA ports
_RECEIVED, _RECEIVE_TROUBLE, _SENT, _SEND_TROUBLE = 0, (2, 3), 8, (10, 11)  # columns of /proc/net/dev: errs, drop
_WORD = 4  # bytes: port_xmit_data counts in these
# Counters of an HCA port that stand still on a sound fabric while data is repeated, lost or held back.
_TROUBLE = (
    "symbol_error",
    "port_rcv_errors",
    "port_xmit_discards",
    "link_downed",
    "local_link_integrity_errors",
)
_HW_TROUBLE = (
    "local_ack_timeout_err",
    "out_of_sequence",
    "packet_seq_err",
    "rnr_nak_retry_err",
    "req_cqe_error",
    "roce_adp_retrans_to",
    "np_cnp_sent",
    "rp_cnp_handled",
)


def counters(proc: Proc, pid: str) -> Dict[str, Raw]:
    """name -> bytes and troubles, of the network namespace of a process, and of all HCA ports of the host."""
    wires: Dict[str, Raw] = {}
    for line in proc.text(pid, "net", "dev").splitlines()[2:]:
        name, _, rest = line.partition(":")
        row = rest.split()
        if len(row) >= 12 and name.strip() != "lo" and len(wires) < _MOST:
            wires[name.strip()] = {
                "kind": "interface",
                "received": int(row[_RECEIVED]),
                "sent": int(row[_SENT]),
                "trouble": {
                    "receive errors and drops": sum(int(row[at]) for at in _RECEIVE_TROUBLE),
                    "send errors and drops": sum(int(row[at]) for at in _SEND_TROUBLE),
                },
            }
    for card in proc.names("..", "sys", "class", "infiniband"):
        for port in proc.names("..", "sys", "class", "infiniband", card, "ports"):
            if len(wires) < _MOST:
                wires[f"{card}:{port}"] = port_of(proc, card, port)
    return wires


def traffic(proc: Proc, pid: str) -> Dict[str, List[int]]:
    """name -> bytes received and sent, loopback among them: what is cheap enough for once a second."""
    wires: Dict[str, List[int]] = {}
    for line in proc.text(pid, "net", "dev").splitlines()[2:]:
        name, _, rest = line.partition(":")
        row = rest.split()
        if len(row) > _SENT and len(wires) < _MOST and (row[_RECEIVED], row[_SENT]) != ("0", "0"):
            wires[name.strip()] = [int(row[_RECEIVED]), int(row[_SENT])]
    for card in proc.names("..", "sys", "class", "infiniband"):
        for port in proc.names("..", "sys", "class", "infiniband", card, "ports"):
            folder = ("..", "sys", "class", "infiniband", card, "ports", port, "counters")
            both = [number(proc.text(*folder, "port_%s_data" % way)) * _WORD for way in ("rcv", "xmit")]
            if len(wires) < _MOST and any(both):
                wires["%s:%s" % (card, port)] = both
    return wires


def port_of(proc: Proc, card: str, port: str) -> Raw:
    """One port of an HCA."""
    folder = ("..", "sys", "class", "infiniband", card, "ports", port)
    trouble = {name: number(proc.text(*folder, "counters", name)) for name in _TROUBLE}
    trouble.update({name: number(proc.text(*folder, "hw_counters", name)) for name in _HW_TROUBLE})
    return {
        "kind": "HCA",
        "state": proc.text(*folder, "state").strip(),
        "received": number(proc.text(*folder, "counters", "port_rcv_data")) * _WORD,
        "sent": number(proc.text(*folder, "counters", "port_xmit_data")) * _WORD,
        "trouble": trouble,
    }


def addresses(proc: Proc, pid: str) -> List[str]:
    """All of the namespace of a process but loopback: what NCCL calls its node by."""
    lines = proc.text(pid, "net", "fib_trie").splitlines()
    local = {lines[at - 1].split()[-1] for at, line in enumerate(lines) if at and line.strip() == "/32 host LOCAL"}
    for line in proc.text(pid, "net", "if_inet6").splitlines():
        digits = line.split(" ")[0]
        if len(digits) == 32:
            local.add(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)))
    return sorted(address for address in local if not address.startswith("127.") and address != "::1")[:_MOST]


def between(first: Dict[str, Raw], last: Dict[str, Raw]) -> List[Raw]:
    """What each counted between two looks; of troubles only those that grew."""
    wires = []
    for name in sorted(last):
        before, after = first.get(name), last[name]
        if before is None:
            continue
        grown = {what: after["trouble"][what] - before["trouble"].get(what, 0) for what in after["trouble"]}
        wires.append(
            {
                "name": name,
                "kind": after["kind"],
                "state": after.get("state", ""),
                "received": max(0, after["received"] - before["received"]),
                "sent": max(0, after["sent"] - before["sent"]),
                "trouble": {what: count for what, count in grown.items() if count > 0},
            }
        )
    return wires
