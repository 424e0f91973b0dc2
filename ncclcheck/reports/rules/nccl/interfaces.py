"""NCC007: the interfaces that the user named for NCCL and gloo."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import Cluster, Interface, Node, at, known, variables
from ncclcheck.reports.judgement.findings import (
    Evidence,
    Finding,
    Remedy,
    State,
    Where,
    admin,
    fail,
    fine,
    seen,
    warn,
    you,
)
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.nccl import lan
from ncclcheck.reports.subjects.nccl.choice import gloo_choice, in_system_order, nccl_choice, parse_pattern
from ncclcheck.reports.subjects.nccl.variables import ValueInForce, assigned, blank_end, effective, nccl_version


@rule(
    "NCC007",
    "NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME name existing interfaces",
    worst=State.FAIL,
    needs=("network.interfaces", "job.variables"),
    gates_job="by any failure",
    of_one_setting=True,
)
def named_interfaces_exist(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Where NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME is set, it selects an interface of every node, in the grammar
    of its reader; the one for gloo has a carrier, where there are several nodes (NET001 says so of NCCL's).

    ## Why it matters
    When NCCL_SOCKET_IFNAME selects nothing, NCCL does not fall back to another interface: it ends with
    `Bootstrap : no socket interface found`, and the other ranks with stranger messages. gloo ends with
    `Unable to find address for: NAME`; it knows neither `^` nor `=`. Names often differ from node to node.

    ## Seen as
    dies

    ## How we know
    NCCL's own rules are applied to the interfaces of each node: `^` and `=` stand first and hold for the whole
    list, a name without `=` is a prefix, a value of one character is ignored, and since 2.28.3 an interface must
    be running. gloo takes exact names, with commas.

    ## Fix
    - **you** List a name or a prefix for every kind of node (`NCCL_SOCKET_IFNAME=eno1,eth0`), or unset it.
    - **admin** Put the right name for each node into its /etc/nccl.conf.

    ## Source
    NCCL user guide, Environment Variables, NCCL_SOCKET_IFNAME; NVIDIA/nccl#286, NVIDIA/nccl#1837,
    NVIDIA/nccl-tests#219; aws-samples/aws-do-eks#51.
    """
    named = False
    for node in cluster.nodes:
        interfaces = known(at(node, "network.interfaces"))
        if setting := effective(node).get("NCCL_SOCKET_IFNAME"):
            named = True
            yield _nccl_names(node, interfaces, setting)
        if value := variables(node).get("GLOO_SOCKET_IFNAME"):
            named = True
            yield _gloo_names(node, interfaces, value, alone=len(cluster.nodes) < 2)
    if not named:
        raise NothingToJudge("neither is set: NCCL and gloo choose by themselves")


def _nccl_names(node: Node, interfaces: list[Interface], setting: ValueInForce) -> Finding:
    value, named = setting.value, assigned("NCCL_SOCKET_IFNAME", setting.value)
    evidence = [seen(setting.source, named), _listed(interfaces)]
    if len(value) < 2:
        return _bad_grammar(node, f"{named} is too short: NCCL ignores it", evidence)
    env = {name: setting.value for name, setting in effective(node).items() if name != "NCCL_COMM_ID"}
    choice = nccl_choice(interfaces, env, nccl_version(node))
    if choice.problem:
        what = _with_blank(choice.problem, named, value)
        why = "NCCL does not fall back to another interface: it ends with 'no socket interface found'."
        return _no_interface(node, what, why, evidence, "NCCL_SOCKET_IFNAME", interfaces, value)
    tokens = parse_pattern(value).tokens
    if wrong := [token for token in tokens if token[0] in "^=" or token != token.strip()]:
        words = f"{', '.join(map(repr, wrong))} matches nothing; ^ and = stand only first, and blanks count"
        what = f"a part of {named} names no interface: {words}"
        return _bad_grammar(node, what, evidence, _cleaned(value))
    return fine(Where(node=node.name), f"{named} selects {', '.join(choice.names)}", *evidence)


def _gloo_names(node: Node, interfaces: list[Interface], value: str, *, alone: bool) -> Finding:
    named = assigned("GLOO_SOCKET_IFNAME", value)
    evidence = [seen("environment", named), _listed(interfaces)]
    if len(value) < 2:
        return _bad_grammar(node, f"{named} is too short: torch ignores it", evidence)
    there = {interface.name for interface, _ in in_system_order(interfaces)}
    missing = [name for name in value.split(",") if name not in there]
    down = [
        interface.name
        for interface in interfaces
        if interface.name in value.split(",") and interface.running is False
    ]
    if down and not alone:
        return _without_link(node, named, down, evidence)
    if not missing:
        return fine(Where(node=node.name), f"{named} is there", *evidence)
    grammar = "; gloo takes exact names, no ^ or =" if value[0] in "^=" else ""
    wanted = " or ".join(name if name == name.strip() else repr(name) for name in missing)
    what = _with_blank(f"{named}: no interface with an address is named {wanted}{grammar}", named, value)
    why = "init_process_group with gloo ends with 'Unable to find address for'."
    return _no_interface(node, what, why, evidence, "GLOO_SOCKET_IFNAME", interfaces, value)


def _without_link(node: Node, named: str, down: list[str], evidence: list[Evidence]) -> Finding:
    names = ", ".join(down)
    return fail(
        Where(node=node.name, device=down[0]),
        f"{named}, and {names} has no carrier",
        why="gloo listens on an address of that interface, which no other node reaches.",
        owner="node",
        evidence=evidence,
        fix=[
            admin("Bring the link back: the cable and its switch port, on InfiniBand the subnet manager too.",
                  f"ip -br link show {quote(down[0])}"),
            you("Leave the node out until then.", "#SBATCH --exclude=NODE"),
        ],
    )  # fmt: skip


def _with_blank(what: str, named: str, value: str) -> str:
    """The blank is said before what comes of it."""
    ends = blank_end(value)
    if not ends:
        return what
    return f"{named} {ends}, which is taken for a part of the name: {what.removeprefix(named).lstrip(': ')}"


def _cleaned(value: str) -> str:
    """The list without its blanks."""
    return ",".join(token.strip() for token in value.split(","))


def _listed(interfaces: list[Interface]) -> Evidence:
    addresses: dict[str, list[str]] = defaultdict(list)
    for interface, address in in_system_order(interfaces):
        addresses[interface.name].append(address.address)
    return seen("interfaces with an address", "; ".join(f"{n} {a[0]}" for n, a in addresses.items()) or "none")


def _no_interface(
    node: Node,
    what: str,
    why: str,
    evidence: list[Evidence],
    variable: str,
    interfaces: list[Interface],
    value: str,
) -> Finding:
    """Where the name without its blanks is there, that is what was meant."""
    usable = [i.name for i, _ in in_system_order(interfaces) if i.kind != "loopback" and i.name != "lo"]
    name = _meant(node, variable, usable, _cleaned(value))
    commands = [f"export {variable}={quote(name)}"] if name else [f"unset {variable}"]
    return fail(
        Where(node=node.name),
        what,
        why=why,
        owner="job",
        evidence=evidence,
        fix=[
            you("Name an interface of this node, or unset it and let the library choose.", *commands),
            _per_node(variable),
        ],
    )


def _meant(node: Node, variable: str, usable: list[str], cleaned: str) -> str:
    """The name to write instead; empty where the library by itself takes one that leads out."""
    if cleaned in usable:
        return cleaned
    env = {name: setting.value for name, setting in effective(node).items() if name != variable}
    nccl = variable == "NCCL_SOCKET_IFNAME"
    listed, own_name = lan.interfaces(node), at(node, "host.own_name")
    alone = nccl_choice(listed, env, nccl_version(node)) if nccl else gloo_choice(listed, env, own_name)
    taken = [interface for interface in listed if alone.bootstrap and interface.name == alone.bootstrap.name]
    leads_out = any(lan.leads_out(node, interface) for interface in taken)
    return "" if leads_out or not usable else usable[0]


def _per_node(variable: str) -> Remedy:
    if variable.startswith("NCCL_"):
        return admin("Where names differ from node to node, put each node's own into its /etc/nccl.conf.")
    return you("Where names differ from node to node, set it in the script that runs on each node.")


def _bad_grammar(node: Node, what: str, evidence: list[Evidence], instead: str = "=eth0,eth1") -> Finding:
    return warn(
        Where(node=node.name),
        what,
        why="The library chooses by rules other than the intended ones.",
        owner="job",
        evidence=evidence,
        fix=[
            you(
                "Write the full name; ^ and = go before the whole list.",
                f"export NCCL_SOCKET_IFNAME={quote(instead)}",
            )
        ],
    )
