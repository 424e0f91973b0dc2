"""NCC008, NCC060, NCC062: the plugins that NCCL loads by their names."""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator

from ncclcheck.probes.facts import EXAMPLE_TUNER, Cluster, Node, PluginFile, Unread, at, known, value_or
from ncclcheck.reports.judgement.findings import Finding, State, Where, admin, fail, fine, seen, warn, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.nccl.settings import settings_of
from ncclcheck.reports.subjects.nccl.variables import Version, nccl_version
from ncclcheck.reports.subjects.nodes.agree.agreement import disagreements

# Interfaces of plugins that NCCL takes, from this version on: the first and the last. Source: the names that
# src/plugin and, before 2.24, src/net.cc look up, release by release.
_NET: tuple[tuple[Version, int, int], ...] = (
    ((2, 18, 0), 4, 6), ((2, 19, 0), 5, 7), ((2, 20, 0), 5, 8), ((2, 24, 0), 5, 9), ((2, 26, 0), 6, 10),
    ((2, 28, 0), 6, 11), ((2, 30, 0), 6, 12),
)  # fmt: skip
_TUNER: tuple[tuple[Version, int, int], ...] = (
    ((2, 19, 0), 1, 1), ((2, 21, 0), 2, 2), ((2, 22, 0), 2, 3), ((2, 24, 0), 2, 4), ((2, 28, 0), 2, 5),
    ((2, 30, 0), 2, 6),
)  # fmt: skip
_LAST_READ = (2, 31, 0)  # NCCL whose plugin headers were read; of later ones nothing is known
_TAKES = {"net": _NET, "tuner": _TUNER}
_EXAMPLE = re.compile(r"(libnccl-tuner-)?(example|basic)(\.so)?")


@rule(
    "NCC008", "the same NCCL plugins are found on all nodes", worst=State.FAIL, needs=("nccl.plugins",), at_least=2
)
def same_plugins_everywhere(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The network, tuner, profiler and environment plugins that NCCL would load by their names are the same files
    on all nodes.

    ## Why it matters
    A network plugin that stands on some nodes only makes these speak another protocol than the others: the job
    hangs while it connects, or ends with `wrong type 3 != 4`.

    ## Seen as
    hangs, dies

    ## How we know
    The names that NCCL tries (`libnccl-net.so` and its kin, and what NCCL_NET_PLUGIN and NCCL_TUNER_PLUGIN say)
    are looked for where the dynamic linker would look: LD_LIBRARY_PATH, then its cache. File names are compared.

    ## Fix
    - **you** Use the same image and the same LD_LIBRARY_PATH on all nodes; `NCCL_NET_PLUGIN=none` on all of them
      leaves network plugins out.
    - **admin** Install the plugin on all nodes, or on none.

    ## Source
    NVIDIA/nccl#1634 (a plugin on some nodes only); ld.so(8); NCCL 2.11 and later read NCCL_NET_PLUGIN.
    """
    yield from disagreements(
        {node.name: _plugins(node) for node in cluster.nodes},
        "the set of NCCL plugins",
        "the dynamic linker's paths",
        level=fail,
        why="Nodes with and without a network plugin cannot connect: the job hangs.",
        owner="site",
        fix=[
            you("Leave network plugins out on all nodes, to get going.", "export NCCL_NET_PLUGIN=none"),
            admin("Install the same plugins on all nodes, or on none."),
        ],
    )


def _plugins(node: Node) -> str:
    paths: list[str] = known(at(node, "nccl.plugins"))
    return ", ".join(sorted(os.path.basename(path) for path in paths)) or "none"


@rule("NCC060", "plugins implement an interface version that NCCL supports", worst=State.WARN,
      needs=("nccl.plugin_files", "nccl.loaded"))  # fmt: skip
def interfaces(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The network and tuner plugins that NCCL finds bring an interface that this version of NCCL takes.

    ## Why it matters
    A plugin has a symbol for each interface that it was built for, as ncclNetPlugin_v8. NCCL takes those of some
    versions only: 2.26 dropped v5, and a plugin built for v11 alone is too new for 2.27. A plugin without a
    common one is passed over with a line at INFO, and NCCL goes on with what it has itself: on EFA, Slingshot or
    TCPX that is TCP at a tenth of the speed.

    ## Seen as
    slow

    ## How we know
    The symbols in the plugin's file and the version that libnccl answers. NCCL 2.18 to 2.30 are known.

    ## Fix
    - **you** take the plugin that goes with this NCCL, or the NCCL that the plugin was built for.

    ## Source
    NVIDIA/nccl src/plugin/net.cc and tuner.cc (2.24 and later), src/net.cc and src/misc/tuner.cc before: they look
    the symbols up.
    """
    judged = False
    for node in cluster.nodes:
        version = nccl_version(node)
        for file in known(at(node, "nccl.plugin_files")):
            for kind, takes in _TAKES.items():
                has, wants = _interfaces(file, kind), _range(takes, version)
                if not has or wants is None or version is None:
                    continue
                judged = True
                if not any(wants[0] <= number <= wants[1] for number in has):
                    yield _passed_over(node, file, kind, has, wants, version)
    if not judged:
        raise NothingToJudge("no network or tuner plugin whose interfaces are known")


def _interfaces(file: PluginFile, kind: str) -> list[int]:
    symbols = [symbol.partition(" v")[::2] for symbol in value_or(file.symbols, [])]
    return sorted(int(number) for name, number in symbols if name == kind and number.isdecimal())


def _range(takes: tuple[tuple[Version, int, int], ...], version: Version | None) -> tuple[int, int] | None:
    if version is None or version >= _LAST_READ:
        return None
    return next(((first, last) for since, first, last in reversed(takes) if version >= since), None)


def _passed_over(
    node: Node, file: PluginFile, kind: str, has: list[int], wants: tuple[int, int], version: Version
) -> Finding:
    shown = ".".join(map(str, version))
    brings = ", ".join(f"v{number}" for number in has)
    goes_on = "its own transports, most often TCP" if kind == "net" else "its own choices"
    return warn(
        Where(node=node.name),
        f"NCCL {shown} takes the {kind} interfaces v{wants[0]} to v{wants[1]}, and {file.name} brings {brings}",
        why=f"The plugin is skipped without a warning, and NCCL continues with {goes_on}.",
        owner="job",
        evidence=[seen(file.path, brings), seen("libnccl", shown)],
        fix=[you("Take a plugin that was built for this NCCL, or an NCCL that takes this plugin.",
                 "export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET  # shows: NET/Plugin: Loaded net plugin")],
    )  # fmt: skip


@rule("NCC062", "no example tuner plugin is in use", worst=State.WARN, needs=("nccl.plugins", "job.variables"))
def example_tuner(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The tuner plugin that NCCL finds is not the example in NVIDIA's source tree.

    ## Why it matters
    The example asks for one channel before it looks into its table. Where no row matches, and where a row has -1
    for channels, which its documentation calls the default, the collective runs in one channel: a fraction of the
    speed on a node with NVLink. A misspelt word in a row means allreduce, ring or simple, lines with fewer than
    eight fields vanish without a message. A table that is not found slows everything down.

    ## Seen as
    slow

    ## How we know
    The plugin's own text (`TUNER/ExamplePlugin`), or its name: libnccl-tuner-example.so, libnccl-tuner-basic.so.

    ## Fix
    - **you** `unset NCCL_TUNER_PLUGIN`. For one algorithm per function no plugin is needed: NCCL_ALGO and
      NCCL_PROTO take lists by function since 2.24. Or set `*nChannels = 0` in the source, which keeps NCCL's own
      number.

    ## Source
    NVIDIA/nccl plugins/tuner/example/plugin.c (`*nChannels = 1`), plugins/tuner/basic/plugin.c and src/enqueue.cc
    (any other number than 0 replaces NCCL's own); NVIDIA/nccl#1661.
    """
    judged = False
    for node in cluster.nodes:
        named = settings_of(node).text("NCCL_TUNER_PLUGIN")
        files = {file.path: file for file in value_or(at(node, "nccl.plugin_files"), [])}
        tuners = [path for path in known(at(node, "nccl.plugins")) if "tuner" in os.path.basename(path)]
        judged = judged or bool(tuners or named)
        bad = [path for path in {*tuners, *files} if _is_example(path, files.get(path))]
        if bad:
            yield _example(node, bad[0], named)
        elif tuners:
            yield fine(Where(node=node.name), f"the tuner is {os.path.basename(tuners[0])}")
    if not judged:
        raise NothingToJudge("no tuner plugin is found")


def _is_example(path: str, file: PluginFile | None) -> bool:
    example = file is not None and not isinstance(file.product, Unread) and file.product == EXAMPLE_TUNER
    return example or bool(_EXAMPLE.fullmatch(os.path.basename(path)))


def _example(node: Node, path: str, named: str) -> Finding:
    source = f"NCCL_TUNER_PLUGIN={named}" if named else "found by its name"
    return warn(
        Where(node=node.name),
        f"the tuner {os.path.basename(path)} is NVIDIA's example: one channel for all that its table does not set",
        why="Collectives without a row, and those of rows with -1 channels, run at a fraction of the speed.",
        owner="job",
        evidence=[seen(path, source)],
        fix=[you("Leave it out; NCCL's own choice has all channels.",
                 "unset NCCL_TUNER_PLUGIN"
                 if named else "export NCCL_TUNER_PLUGIN=none")],
    )  # fmt: skip
