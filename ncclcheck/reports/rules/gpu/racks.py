"""GPU031: machines that share one NVLink domain (GB200, GB300) can share memory over it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ncclcheck.probes.facts import Cluster, Node, NvFabric, at, known, value_or
from ncclcheck.reports.judgement.findings import (
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
    you,
)
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.nccl.variables import parse_int, values
from ncclcheck.reports.subjects.nodes.agree.agreement import disagreements, group
from ncclcheck.reports.text.words.fold import fold_names

_FOLDER = "/dev/nvidia-caps-imex-channels"
_Place = tuple[str, int]  # the domain's UUID and the clique in it


@rule(
    "GPU031",
    "machines of one NVLink domain can share memory over NVLink (IMEX)",
    worst=State.FAIL,
    needs=("gpus.cards", "gpus.imex"),
    at_least=2,
    between_machines=True,
)
def one_domain(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    On nodes whose GPUs are in one NVLink domain and clique (GB200 and GB300 racks): each has an IMEX channel that
    this process can open, and all GPUs of a node are in the same clique.

    ## Why it matters
    Between such nodes NCCL goes over NVLink (MNNVL), for which the driver must hand memory from one machine to
    another through an IMEX channel. Where the channel is not there, as in a pod without its claim, NCCL ends in
    init with `MNNVL ... is available but not working on this system. Check the IMEX channel configuration`. Nodes
    in different cliques of one rack use the network, at a tenth of the speed.

    ## Seen as
    does not start, slow, dies

    ## How we know
    cluster UUID and clique by nvmlDeviceGetGpuFabricInfoV, the files in /dev/nvidia-caps-imex-channels, and
    open(2) of each. With NCCL_MNNVL_ENABLE=0 no channel is needed. A node in another clique of the rack than
    most others is a warning; different racks are a note: a job may span several.

    ## Fix
    - **you** in a pod, claim the channel (a ComputeDomain of NVIDIA's DRA driver); until then
      `export NCCL_MNNVL_ENABLE=0`.
    - **admin** `systemctl status nvidia-imex`, `nvidia-imex-ctl -N`; the driver makes channel 0 by itself with the
      option `NVreg_CreateImexChannel0=1` of the module nvidia.

    ## Source
    NVIDIA/nccl src/mnnvl.cc; NVIDIA IMEX service guide; NCCL user guide, NCCL_MNNVL_ENABLE.
    """
    places = {node.name: _places(node) for node in cluster.nodes}
    of_racks = {name: cliques for name, cliques in places.items() if cliques}
    if len(of_racks) < 2:
        raise NothingToJudge("fewer than two nodes with GPUs in an NVLink domain of several machines")
    for node in cluster.nodes:
        if len(places[node.name]) > 1:
            yield _torn(node, places[node.name])
    together = _together({name: next(iter(cliques)) for name, cliques in of_racks.items() if len(cliques) == 1})
    yield from _racks(together)
    for node in cluster.nodes:
        shares = any(node.name in names and len(names) > 1 for names in together.values())
        if shares and parse_int(values(node).get("NCCL_MNNVL_ENABLE", "")).value != 0:
            yield _channel(node)


def _places(node: Node) -> set[_Place]:
    """Where its GPUs are; a domain of one machine has no name."""
    fabrics = [card.fabric for card in value_or(at(node, "gpus.cards"), [])]
    ready = [fabric for fabric in fabrics if isinstance(fabric, NvFabric) and fabric.state == "completed"]
    return {(fabric.cluster, fabric.clique) for fabric in ready if fabric.cluster.strip("0-")}


def _together(places: Mapping[str, _Place]) -> dict[_Place, list[str]]:
    groups: dict[_Place, list[str]] = {}
    for name, place in places.items():
        groups.setdefault(place, []).append(name)
    return groups


def _torn(node: Node, cliques: set[_Place]) -> Finding:
    text = ", ".join(f"{domain} clique {clique}" for domain, clique in sorted(cliques))
    return warn(
        Where(node=node.name),
        f"its GPUs are in {len(cliques)} different NVLink domains or cliques",
        why="NVLink between machines is used only where all GPUs of a node are in one clique.",
        owner="node",
        evidence=[seen("nvmlDeviceGetGpuFabricInfoV", text)],
        fix=[admin("Look at the registration of each GPU.", "nvidia-smi -q -d FABRIC")],
    )


def _racks(together: Mapping[_Place, list[str]]) -> Iterator[Finding]:
    """Cliques of one domain are partitions, of which a job wants one; domains are racks; one node makes none."""
    domains = {domain for domain, _ in together}
    apart = len(domains) > 1 and all(len(names) == 1 for names in together.values())
    if len(together) < 2 or apart:
        return
    text = "; ".join(
        f"clique {clique} of {domain}: {fold_names(names)}" for (domain, clique), names in together.items()
    )
    if len(domains) == 1:
        cliques = {name: clique for (_, clique), names in together.items() for name in names}
        yield from disagreements(
            cliques,
            "the NVLink clique",
            "nvmlDeviceGetGpuFabricInfoV",
            level=note if group(cliques).majority is None else warn,
            why="Between cliques NVLink is not used: the network carries a tenth of its speed.",
            owner="site",
            fix=[you("Take nodes of one partition of the rack.", "nvidia-smi -q -d FABRIC | grep -i clique"),
                 admin("See that the node is in the partition of the others.", "nvidia-imex-ctl -N")],
        )  # fmt: skip
        return
    split = len(domains) < len(together)
    yield note(
        Where(),
        f"the nodes are in {len(together)} {'cliques' if split else 'NVLink domains'}: the network joins these",
        why="A job over several racks uses the network between them.",
        owner="site",
        evidence=[seen("nvmlDeviceGetGpuFabricInfoV", text)],
        fix=_even(together),
    )


def _even(together: Mapping[_Place, list[str]]) -> list[Remedy]:
    """What to do about groups of unequal size."""
    sizes = sorted(len(names) for names in together.values())
    if sizes[0] == sizes[-1]:
        return []
    counts = " and ".join(map(str, sizes))
    return [you(f"Take as many nodes of each ({counts} now), or part the larger groups by NCCL_MNNVL_CLIQUE_ID, a "
                "number for each group of nodes (NCCL 2.25 and later), and measure.")]  # fmt: skip


def _channel(node: Node) -> Finding:
    files = known(at(node, "gpus.imex"))
    opened = [file.name for file in files if not file.error]
    if opened:
        return fine(Where(node=node.name), f"IMEX {opened[0]} can be opened")
    what = f"{files[0].name} cannot be opened: {files[0].error}" if files else "there is no IMEX channel here"
    return fail(
        Where(node=node.name),
        f"its GPUs share an NVLink domain with other nodes, and {what}",
        why="NCCL ends in init: MNNVL is available but not working.",
        owner="node",
        evidence=[seen(_FOLDER, ", ".join(f"{file.name}: {file.error}" for file in files) or "no file")],
        fix=_make_one(),
    )


def _make_one() -> list[Remedy]:
    return [
        admin("See that IMEX runs on all nodes of the domain, and that channel 0 is there.",
              "systemctl status nvidia-imex", "nvidia-imex-ctl -N", "modinfo -p nvidia | grep -i imex"),
        you("In a pod, claim the channel; until then go over the network.", "export NCCL_MNNVL_ENABLE=0"),
    ]  # fmt: skip
