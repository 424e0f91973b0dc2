"""What the user's settings of ssh have to do with a node that does not answer, or that is another one."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote

from ncclcheck.probes.facts import Cluster, Dialled, Node, replace
from ncclcheck.reports.judgement.findings import Evidence, Finding, Remedy, Where, admin, fail, seen, you

# In the order in which ssh reads them: the first that sets an option decides.
_FILES = "~/.ssh/config /etc/ssh/ssh_config /etc/ssh/ssh_config.d/*.conf"


_NO_BANNER = "sent no banner"  # launching.py's words
_WAITED = "neither came in nor was refused"  # silent.py's words
_ASKED = "^(hostname|port|user|proxy|controlpath|bind|address|remote|ciphers|kex)"
# Options that a whole site may set, and that are told as evidence alone.
_HARMLESS = ("identitiesonly", "identityagent", "preferredauthentications", "pubkeyauthentication")


def of(cluster: Cluster, node: str) -> Dialled | None:
    """The settings for a node, where they were asked for."""
    return next((dialled for dialled in cluster.run.dialled if dialled.node == node), None)


def shown(dialled: Dialled) -> Evidence:
    """As `ssh -G` tells them."""
    user, by = f"{dialled.user}@" if dialled.user else "", f", by {dialled.by}" if dialled.by else ""
    master = f", over the connection of {dialled.master}" if dialled.master else ""
    to = ", ".join(address for address in dialled.addresses if address != dialled.host)
    own = "".join(f"; {line}" for line in dialled.own)
    return seen(
        f"ssh -G {dialled.node}", f"{user}{dialled.host}:{dialled.port}{by}{master}{f' ({to})' if to else ''}{own}"
    )


def see(*nodes: str) -> Remedy:
    """Where they come from."""
    names = "|".join(nodes)
    return you(
        "Correct what these files say of it: HostName, Port, User, ProxyJump, ControlPath, and what is named.",
        *(f"ssh -G {quote(node)} | grep -E {quote(_ASKED)}" for node in nodes),
        f"grep -nsiE -A6 {quote(f'^ *(host|match)[ =].*({names}|[*])')} {_FILES}",
    )


def unlike(cluster: Cluster, node: str) -> str:
    """What of them is unlike those of a node that answered: a port, a user, a way."""
    dialled = of(cluster, node)
    silent = {each.node for each in cluster.run.silent}
    sound = next((each for each in cluster.run.dialled if each.node not in silent), None)
    if dialled is None:
        return ""
    ways = []
    if dialled.port != (sound.port if sound else 22):
        ways.append(f"to port {dialled.port}" + (f" ({sound.port} for {sound.node})" if sound else ""))
    if sound and dialled.user != sound.user:
        ways.append(f"as user {dialled.user} ({sound.user} for {sound.node})")
    if dialled.by and (sound is None or dialled.by != sound.by):
        ways.append(f"by {dialled.by}")
    options = [line for line in dialled.own if sound is None or line not in sound.own]
    if options and not any(line.partition(" ")[0] in _HARMLESS for line in options):
        ways.append(f"with {', '.join(options)}")
    return " and ".join(ways)


def explained(cluster: Cluster, finding: Finding) -> Finding:
    """The finding of a silent node, with whither ssh's settings lead where that is unlike elsewhere."""
    node = finding.where.node or ""
    way = of(cluster, node)
    if way is None or way.port_now:  # it had led to the node before
        return finding
    if way.silent_master:
        return replace(
            finding,
            what=f"ssh goes there over the connection of an earlier ssh (ControlPath {way.master}), and that one "
            "does not answer: it is stopped, or hangs",
            evidence=[shown(way), seen("ssh -O check", "no answer in 2 s"), *finding.evidence],
            remedies=[
                you(
                    "Take its socket away: ssh then connects anew. Or end or continue the process that holds it.",
                    f"mv {quote(way.master)} {quote(f'{way.master}.old')}",
                    f"ss -xlp | grep {quote(way.master)}",
                ),
                you("Or do without shared connections for it.", f"ssh -o ControlPath=none {quote(node)} true"),
            ],
        )
    if way.greeting and _NO_BANNER in finding.what:
        return _no_sshd(finding, way)
    if way.silent_agent and _WAITED in finding.what:
        return _agent_hangs(finding, way)
    if way.no_arp and "No route to host" in finding.what:
        return _mute(finding, way)
    if led := unlike(cluster, node):
        return replace(
            finding,
            what=f"ssh's own settings lead it {led}: {_through(way, finding.what)}",
            evidence=[*finding.evidence, shown(way)],
            remedies=[see(node), *finding.remedies],
        )
    return finding


def _no_sshd(finding: Finding, way: Dialled) -> Finding:
    """It accepts, and speaks in words that are not ssh's."""
    return replace(
        finding,
        what=f"what listens on port {way.port} there is no sshd: it says {way.greeting!r}, which is no greeting "
        "of ssh (a tarpit such as endlessh, or another service); sshd may listen on another port",
        evidence=[seen(f"port {way.port} of {way.addresses[0] if way.addresses else way.host}", way.greeting),
                  *finding.evidence],
        remedies=[
            you("Name the port of its sshd.",
                f"ssh -o BatchMode=yes -p 2222 {quote(way.node)} true   # if it is 2222",
                f"printf 'Host %s\\n    Port 2222\\n' {quote(way.node)} >> ~/.ssh/config"),
            admin("See on its console where sshd listens, and what has this port.",
                  f"ss -tlnp | grep -E 'sshd|:{way.port} '   # there"),
        ],
    )  # fmt: skip


def _agent_hangs(finding: Finding, way: Dialled) -> Finding:
    """ssh asks it after it has connected, and waits without a limit of time."""
    socket = quote(way.silent_agent)
    return replace(
        finding,
        what=f"ssh here waits for the ssh agent at {way.silent_agent}, which does not answer (stopped, or "
        "forwarded from a machine that sleeps): no login gets any further, to no host",
        owner="job",
        evidence=[seen(f"a request for its keys to {way.silent_agent}", "no answer in 1.5 s"), *finding.evidence],
        remedies=[
            you("Do without that agent, or start one that answers.",
                "unset SSH_AUTH_SOCK", f"ssh -o IdentityAgent=none {quote(way.node)} true"),
            you("See who holds the socket.", f"ss -xlp | grep {socket}", "timeout 2 ssh-add -l"),
        ],
    )  # fmt: skip


def _mute(finding: Finding, way: Dialled) -> Finding:
    """On a network of this host, where its kernel asked for it by ARP: no router is between."""
    address, device = way.addresses[0], quote(way.no_arp)
    return replace(
        finding,
        what=f"{address} does not answer ARP on {way.no_arp} here, a network that it shares with this host: it is "
        "down or unplugged, its port is in another VLAN, its address is another one, or its kernel answers no ARP",
        evidence=[
            *finding.evidence, seen("/proc/net/arp here", f"{address} on {way.no_arp}: no hardware address"),
        ],
        remedies=[
            you("See whether anybody on that network says that it has the address.",
                f"arping -c 3 -I {device} {address}   # here"),
            *(remedy for remedy in finding.remedies if remedy.who == "you" and "exclude" in remedy.text),
            admin(
                "On its console: is the interface up with this address, and does the kernel answer? 0 is the "
                "kernel's own setting, 1 and 2 are usual; 8 answers nobody.",
                f"ip -br addr | grep -w {address}   # there",
                "sysctl net.ipv4.conf.all.arp_ignore; sysctl -w net.ipv4.conf.all.arp_ignore=0   # there",
                "arptables -L; nft list tables arp   # there: a filter of ARP",
            ),
        ],
    )  # fmt: skip


def _through(dialled: Dialled, what: str) -> str:
    """Whoever is silent behind a program of the user's may be that program."""
    if dialled.by and "sent no banner" in what:
        return "nothing came back through it in 10 s"
    if dialled.by and "before any login" in what:
        return "it ended before any sshd had answered"
    return what


def same_machine(cluster: Cluster, same: Sequence[Node], hostname: str) -> Finding | None:
    """Two names of the list that ssh's settings, or the name service, lead to one address."""
    ways = [dialled for node in same if (dialled := of(cluster, node.name))]
    ends = {(way.port, way.by, *sorted(way.addresses or [way.host])) for way in ways}
    if len(ways) < len(same) or len(ends) > 1:
        return None
    wrong = next((way for way in ways if way.node.partition(".")[0] != hostname.partition(".")[0]), ways[-1])
    right = next(way for way in ways if way is not wrong)
    led = f"HostName {wrong.host}" if wrong.host != wrong.node else f"its name resolves to {wrong.addresses[0]}"
    return fail(
        Where(node=wrong.node, peer=right.node),
        f"ssh leads {wrong.node} to the machine of {right.node} ({led}): one machine is in the list twice, and "
        f"{wrong.node} itself was not looked at",
        why="Two ranks of a job then share one machine, and NCCL takes them for neighbours; the other one idles.",
        owner="job",
        evidence=[*map(shown, ways), seen("/proc/sys/kernel/hostname", f"{hostname} on both, with one boot id")],
        fix=[
            see(wrong.node) if wrong.host != wrong.node else _by_name(wrong, right),
            you("Until then leave the name out.", f"#SBATCH --exclude={quote(wrong.node)}"),
        ],
    )


def _by_name(wrong: Dialled, right: Dialled) -> Remedy:
    return you(
        f"Correct the address of {wrong.node} in /etc/hosts or DNS: {right.node} has the same.",
        f"getent ahosts {quote(wrong.node)} {quote(right.node)}",
        f"grep -nw {quote(wrong.node)} /etc/hosts",
    )
