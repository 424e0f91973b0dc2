"""Settings that contradict each other, need another one, or are hidden by another one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ncclcheck.probes.facts import Cluster, Node, at, value_or, variables
from ncclcheck.reports.judgement.findings import Finding, State, Where, note, seen, warn, you
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.nccl import carrying
from ncclcheck.reports.subjects.nccl.hca import AUTOMATIC_GID_SINCE, automatic_gid
from ncclcheck.reports.subjects.nccl.settings import Settings, nodes_with
from ncclcheck.reports.subjects.nccl.variables import assigned, nccl_version, parsed_value, values


@rule("NCC021", "NCCL_P2P_DISABLE and NCCL_P2P_LEVEL do not contradict each other", worst=State.WARN,
      needs=("job.variables",))  # fmt: skip
def peer_to_peer(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    NCCL_P2P_DISABLE=1 beside an NCCL_P2P_LEVEL that asks for direct traffic between GPUs.

    ## Why it matters
    NCCL_P2P_DISABLE=1 means the same as NCCL_P2P_LEVEL=LOC and wins: the level has no effect, all data between
    the GPUs of a node goes through memory of the host, and the script reads as if NVLink were used.

    ## Seen as
    setting without effect

    ## How we know
    Both values as NCCL parses them. Only the value 1 disables.

    ## Fix
    - **you** remove NCCL_P2P_DISABLE; if it is there for a fault, remove the level instead and write down why.

    ## Source
    NCCL user guide, NCCL_P2P_DISABLE and NCCL_P2P_LEVEL; huggingface/accelerate#2328.
    """
    for settings in nodes_with(cluster, "NCCL_P2P_LEVEL"):
        level = settings.text("NCCL_P2P_LEVEL")
        if settings.number("NCCL_P2P_DISABLE") == 1 and level not in ("", "LOC", "0"):
            yield warn(
                settings.where,
                f"NCCL_P2P_LEVEL={level} has no effect: NCCL_P2P_DISABLE=1 turns it off",
                why="Data between the GPUs of the node goes through memory of the host.",
                owner="job",
                evidence=settings.evidence("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL"),
                fix=[you("Remove the one that is not meant.", "unset NCCL_P2P_DISABLE")],
            )


@rule("NCC022", "ranks of one node have a transport other than the network", worst=State.WARN,
      needs=("job.variables",))  # fmt: skip
def way_inside_the_node(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    NCCL_P2P_DISABLE=1 and NCCL_SHM_DISABLE=1 together.

    ## Why it matters
    Ranks of one node then talk over the network card, a hundred times slower than NVLink. Without a network that
    leads back to the node, such as a namespace without one, init ends with `No transport found for rank`.

    ## Seen as
    does not start, slow, dies

    ## How we know
    Both values as NCCL parses them.

    ## Fix
    - **you** remove both; if one is there for a fault, keep that one alone.

    ## Source
    NCCL user guide, NCCL_SHM_DISABLE and NCCL_P2P_DISABLE; NVIDIA/nccl src/transport.cc.
    """
    for settings in nodes_with(cluster, "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"):
        if settings.number("NCCL_P2P_DISABLE") == 1 and settings.number("NCCL_SHM_DISABLE"):
            yield warn(
                settings.where,
                "NCCL_P2P_DISABLE and NCCL_SHM_DISABLE leave only the network between ranks of one node",
                why="That is a hundred times slower than NVLink, or ends with 'No transport found'.",
                owner="job",
                evidence=settings.evidence("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"),
                fix=[you("Remove both.", "unset NCCL_P2P_DISABLE NCCL_SHM_DISABLE")],
            )


@dataclass(frozen=True)
class _Need:
    """`name` does nothing unless `other` is on; add: what turns it on."""

    name: str
    other: str
    add: str

    def is_missing(self, settings: Settings) -> bool:
        if self.name not in settings.all:
            return False
        if self.other == "NCCL_DEBUG":
            return settings.text("NCCL_DEBUG") == ""
        return not settings.is_on(self.other)


_NEEDS = (
    _Need("NCCL_OOB_NET_IFNAME", "NCCL_OOB_NET_ENABLE", "NCCL_OOB_NET_ENABLE=1"),
    _Need("NCCL_COLLNET_NODE_THRESHOLD", "NCCL_COLLNET_ENABLE", "NCCL_COLLNET_ENABLE=1"),
    _Need("NCCL_DEBUG_SUBSYS", "NCCL_DEBUG", "NCCL_DEBUG=INFO"),
    _Need("NCCL_DEBUG_FILE", "NCCL_DEBUG", "NCCL_DEBUG=INFO"),
)


@rule("NCC023", "every setting comes with the settings it depends on", worst=State.WARN, needs=("job.variables",))
def settings_that_need_another(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    NCCL_OOB_NET_IFNAME without NCCL_OOB_NET_ENABLE, NCCL_COLLNET_NODE_THRESHOLD without NCCL_COLLNET_ENABLE,
    NCCL_DEBUG_SUBSYS or NCCL_DEBUG_FILE without NCCL_DEBUG, and NCCL_IB_ADDR_RANGE beside NCCL_IB_GID_INDEX.

    ## Why it matters
    Alone they do nothing, and NCCL does not say so: the log file for which a long run was repeated stays empty,
    or the bootstrap goes over another interface than the one named. With a fixed GID index the range of addresses
    is not looked at.

    ## Seen as
    setting without effect

    ## How we know
    The variables of the environment and of nccl.conf. A range beside an index is a note where both lead to the
    same entry of every RoCE port.

    ## Fix
    - **you** set the other one too, or remove both.

    ## Source
    NCCL user guide, Environment Variables: NCCL_OOB_NET_IFNAME (2.23 and later), NCCL_DEBUG_FILE,
    NCCL_IB_ADDR_RANGE (2.21 and later), NCCL_COLLNET_NODE_THRESHOLD.
    """
    watched = [need.name for need in _NEEDS]
    for settings in nodes_with(cluster, *watched, "NCCL_IB_ADDR_RANGE"):
        for need in _NEEDS:
            if need.is_missing(settings):
                what = f"{need.name}={settings.text(need.name)} does nothing without {need.other}"
                yield _alone(settings, what, [need.name], f"export {need.add}")
        index = settings.number("NCCL_IB_GID_INDEX")
        if "NCCL_IB_ADDR_RANGE" in settings.all and index is not None and index >= 0:
            what = f"NCCL_IB_ADDR_RANGE does nothing beside NCCL_IB_GID_INDEX={settings.text('NCCL_IB_GID_INDEX')}"
            # before 2.21 the index is all that leads to RoCE v2
            needless = "NCCL_IB_ADDR_RANGE" if settings.before(*AUTOMATIC_GID_SINCE) else "NCCL_IB_GID_INDEX"
            names = ["NCCL_IB_ADDR_RANGE", "NCCL_IB_GID_INDEX"]
            level = note if _in_range_anyway(settings.node, index) else warn
            yield _alone(settings, what, names, f"unset {needless}", level)


def _in_range_anyway(node: Node, index: int) -> bool:
    """Whether the range alone would lead to the entry that the index names, on every RoCE port."""
    tables = [value_or(port.port.gids, []) for port in carrying.choice(node).used if port.is_roce]
    return bool(tables) and all(automatic_gid(gids, values(node)) == index for gids in tables)


def _alone(
    settings: Settings, what: str, names: list[str], command: str, level: Callable[..., Finding] = warn
) -> Finding:
    return level(
        settings.where,
        what,
        why="NCCL does not say that a setting has no effect.",
        owner="job",
        evidence=settings.evidence(*names),
        fix=[you("Set what it needs, or remove it.", command)],
    )


@rule("NCC024", "the environment and nccl.conf agree", worst=State.NOTE,
      needs=("job.variables", "nccl.conf_files"))  # fmt: skip
def file_and_environment(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    A variable with one value in the environment and another in an nccl.conf file, or in two such files.

    ## Why it matters
    The environment wins, then the user's file, then /etc/nccl.conf. What the site wrote for its network has no
    effect in a job whose image or script sets the variable, and comes back with the next image.

    ## Seen as
    setting without effect

    ## How we know
    Values that mean the same to NCCL are not reported.

    ## Fix
    - **you** keep one of them. The site's file usually knows the network better than an image does.

    ## Source
    NCCL user guide, Environment Variables (nccl.conf; NCCL_CONF_FILE from 2.23 on).
    """
    for node in cluster.nodes:
        by_name: dict[str, tuple[str, str]] = {
            name: (value, "environment") for name, value in variables(node).items()
        }
        for file in value_or(at(node, "nccl.conf_files"), []):
            for line in value_or(file.lines, []):
                first = by_name.setdefault(line.name, (line.value, f"{file.path}:{line.line}"))
                if line.name.startswith("NCCL_") and _differ(node, line.name, first[0], line.value):
                    yield _hidden(node, line.name, first, (line.value, f"{file.path}:{line.line}"))


def _differ(node: Node, name: str, value: str, other: str) -> bool:
    version = nccl_version(node)
    return value != other and parsed_value(name, value, version) != parsed_value(name, other, version)


def _hidden(node: Node, name: str, wins: tuple[str, str], loses: tuple[str, str]) -> Finding:
    return note(
        Where(node=node.name),
        f"{name} is {wins[0]} by {wins[1]}; {loses[1]} says {loses[0]} in vain",
        why="The environment wins, then the user's file, then /etc/nccl.conf.",
        evidence=[seen(wins[1], assigned(name, wins[0])), seen(loses[1], assigned(name, loses[0]))],
        fix=[you("Keep one of the two.")],
    )


@rule("NCC033", "NVLink SHARP may fall back where it is unavailable", worst=State.NOTE, needs=("job.variables",))
def forced_nvls(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    NCCL_NVLS_ENABLE=1 with NCCL 2.27 and 2.28.

    ## Why it matters
    With these versions the default, 2, uses NVLink SHARP where it works and goes on without it where binding its
    memory fails: a fabric manager that is not ready, a container without its device files. With 1 the same failure
    ends init.

    ## Seen as
    does not start

    ## How we know
    The value and the version of the libnccl that torch would load. Before 2.27 and since 2.29 both values mean the
    same; an unknown version is not judged.

    ## Fix
    - **you** remove it; `NCCL_NVLS_ENABLE=0` is the way around a broken fabric, at the cost of bandwidth.

    ## Source
    NCCL user guide, NCCL_NVLS_ENABLE (2.17 and later); NVIDIA/nccl#1488; pytorch/pytorch#177472.
    """
    for settings in nodes_with(cluster, "NCCL_NVLS_ENABLE"):
        if settings.number("NCCL_NVLS_ENABLE") == 1 and settings.since(2, 27, 0) and settings.before(2, 29, 0):
            yield note(
                settings.where,
                "NCCL_NVLS_ENABLE=1 forbids to go on without NVLink SHARP",
                why="Where its memory cannot be bound, init ends with an error instead of falling back.",
                owner="job",
                evidence=settings.evidence("NCCL_NVLS_ENABLE"),
                fix=[you("Remove it: NCCL uses NVLink SHARP by itself.", "unset NCCL_NVLS_ENABLE")],
            )


@rule("NCC034", "NCCL_CUMEM_ENABLE=0 does not disable a feature that is requested", worst=State.WARN,
      needs=("job.variables",))  # fmt: skip
def without_cumem(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    NCCL_CUMEM_ENABLE=0, alone or together with NCCL_MNNVL_ENABLE=1.

    ## Why it matters
    It came into scripts because NCCL 2.19 took more memory with CUDA graphs, which 2.22.3 fixed. NVLink between
    machines (GB200, GB300) and registered windows need that kind of memory: with 0 they are off, as was found on
    GB300. NVLink SHARP within a node does not ask for it (src/transport/nvls.cc of 2.21 to 2.28).

    ## How we know
    The values as NCCL parses them. Alone it is a note.

    ## Fix
    - **you** remove it with NCCL 2.22.3 and later, and measure once.

    ## Source
    NVIDIA/nccl#1234; vllm-project/vllm#24141; verl-project/verl#7564; NCCL user guide, NCCL_CUMEM_ENABLE.
    """
    for settings in nodes_with(cluster, "NCCL_CUMEM_ENABLE"):
        if settings.number("NCCL_CUMEM_ENABLE") != 0:
            continue
        asked = ["NCCL_MNNVL_ENABLE"] if settings.number("NCCL_MNNVL_ENABLE") == 1 else []
        evidence = settings.evidence("NCCL_CUMEM_ENABLE", *asked)
        fix = [you("Remove it.", "unset NCCL_CUMEM_ENABLE")]
        why = "NVLink between machines and registered windows are off with it."
        if asked:
            what = f"NCCL_CUMEM_ENABLE=0 turns off what {' and '.join(asked)} asks for"
            yield warn(settings.where, what, why=why, owner="job", evidence=evidence, fix=fix)
        else:
            yield note(settings.where, "NCCL_CUMEM_ENABLE=0 is set", why=why, evidence=evidence, fix=fix)
