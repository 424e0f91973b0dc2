"""Settings that scripts carry along: algorithms and sizes that were pinned, dead names, what was for debugging."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclcheck.probes.facts import ConfLine, at, value_or, variables
from ncclcheck.reports.recommend.advice import MANY_NODES, Proposal, SettingRule, number, on, without
from ncclcheck.reports.recommend.site import SetVariable, Site
from ncclcheck.reports.rules.nccl.variables import unread_name
from ncclcheck.reports.subjects.nccl import ll128, wiring
from ncclcheck.reports.subjects.nccl.variables import effective, parse, parsed_value, reference

_ENV = "NCCL user guide, Environment Variables"
_DEBUGGING = f"{_ENV}, Debugging"
# bytes; from here on NCCL_CHUNK_SIZE gave wrong results (NCC016), from half of it on P2P chunks are no default
_MIB = 1 << 20


def dead_names(site: Site) -> Iterator[Proposal]:
    """L9, L13, X4: names that nobody reads."""
    for name in sorted(
        {name for setting in site.settings for name in setting.all if re.fullmatch(r"NCCL_\w+", name)}
    ):
        problems = {node.name: unread_name(node, name) for node in site.nodes if name in effective(node)}
        if all(problems.values()):
            problem, instead = next(pair for pair in problems.values() if pair)
            why = f"It has no effect: {problem}" + (f"; {instead}" if instead else "")
            yield Proposal(name, None, why, site.values_of(name))


def values_read_otherwise(site: Site) -> Iterator[Proposal]:
    """L10: values that do not say what they are read as."""
    for name in sorted({name for setting in site.settings for name in setting.all if name in reference()}):
        readings = {
            parsed.complaint
            for setting in site.settings
            if name in setting.all
            and (parsed := parse(reference()[name], setting.text(name), setting.version)).complaint
            and not parsed.mild
        }
        if readings:
            yield Proposal(name, None, f"Its value {sorted(readings)[0]}.", site.values_of(name))


def verbose_log(site: Site) -> Iterator[Proposal]:
    """L1: a log that is too long; without the variable NCCL would print nothing at all."""
    if evidence := site.values_of("NCCL_DEBUG", on("info", "trace", "abort")):
        why = "Every rank writes thousands of lines; WARN keeps what matters, and unset NCCL prints nothing."
        yield Proposal("NCCL_DEBUG", "WARN", why, evidence)


def silent_nccl(site: Site) -> Iterator[Proposal]:
    """L1: nobody asks NCCL for its warnings, on so many nodes that one of them fails before long."""
    if len(site.nodes) >= MANY_NODES and not site.is_set("NCCL_DEBUG"):
        why = (
            "By itself NCCL prints nothing, also when it fails: its warnings name the peer, the card and the call."
        )
        yield Proposal("NCCL_DEBUG", "WARN", why, [f"{len(site.nodes)} nodes", "NCCL_DEBUG is not set"])


def lines_that_do_nothing(site: Site) -> Iterator[Proposal]:
    """L11: lines of nccl.conf with export, blanks, quotes or a comment, which NCCL takes as they stand."""
    lines: dict[str, list[str]] = {}
    for node in site.nodes:
        for file in value_or(at(node, "nccl.conf_files"), []):
            for line in value_or(file.lines, []):
                if (name := _meant(line)) and name not in variables(node):
                    shown = f"{file.path}:{line.line}: {line.name}={line.value}"
                    lines.setdefault(name, []).append(f"{shown}{site.on([node.name])}")
    for name, evidence in lines.items():
        why = "NCCL trims nothing and knows no export, quotes or trailing comment: the line is not what it says."
        yield Proposal(name, None, why, evidence[:4])


def _meant(line: ConfLine) -> str:
    """The name of a variable in a line that is not written as NCCL wants it; empty where it is, or means none."""
    match = re.fullmatch(r"\s*(?:export\s+)?(NCCL_\w+)\s*", line.name)
    quoted = line.value[:1] in ("'", '"', " ", "\t") or " #" in line.value
    return match[1] if match and (match[1] != line.name or quoted) else ""


def differing_pins(site: Site) -> Iterator[Proposal]:
    """T8: an algorithm or protocol that some nodes pin and others do not."""
    for name in ("NCCL_ALGO", "NCCL_PROTO"):
        if (
            site.several
            and site.is_set(name)
            and len({effective(n).get(name, _None).value for n in site.nodes}) > 1
        ):
            why = "Nodes that choose different algorithms wait for each other, or end with a mismatch of messages."
            yield Proposal(name, None, why, site.values_of(name))


class _None:
    value = None


def _is_debugging(setting: SetVariable) -> bool:
    """Set, and not to what it is by itself. Megatron asks for NCCL_GRAPH_REGISTER=0 with expandable segments."""
    if setting.name == "NCCL_GRAPH_REGISTER" and setting.number == 0:
        return False
    default = parsed_value(setting.name, None)
    return (
        setting.name not in reference() or parsed_value(setting.name, setting.text, setting.on.version) != default
    )


def _plain_pin(setting: SetVariable) -> bool:
    """For all collectives at once: `allreduce:tree` names what it was measured for, and `^` pins nothing."""
    return ":" not in setting.text and not setting.text.startswith("^")


def _leaves_nothing(setting: SetVariable) -> bool:
    """A pin without Ring, from which broadcast has no fall-back."""
    return setting.on.since(2, 24, 0) and _plain_pin(setting) and "ring" not in setting.text.lower()


def _forces_ll128(setting: SetVariable) -> bool:
    return _plain_pin(setting) and "ll128" in setting.text.lower() and not ll128.is_safe(setting.on.node)


def _large_chunk(setting: SetVariable) -> bool:
    return (setting.number or 0) >= _MIB


def _large_p2p_chunk(setting: SetVariable) -> bool:
    return setting.name != "NCCL_P2P_NET_CHUNKSIZE" or (setting.number or 0) > _MIB // 2


def _one_of_efa(site: Site) -> bool:
    """Every RDMA device of every node is an EFA, and its plugin is there."""
    listed = [value_or(at(node, "rdma.hcas"), []) for node in site.nodes]
    return all(listed) and all(
        len(wiring.efa(node)) == len(hcas) for node, hcas in zip(site.nodes, listed, strict=True)
    )


def _stale_efa(setting: SetVariable) -> bool:
    """FI_EFA_USE_HUGE_PAGE=0 is AWS's way out where data loaders cannot fork: only 1 says nothing."""
    return setting.name != "FI_EFA_USE_HUGE_PAGE" or setting.number == 1


def _has_efa(site: Site) -> bool:
    return bool(site.nodes) and all(wiring.efa(node) for node in site.nodes)


RULES = (
    SettingRule(
        rule="L5", title="no chunks so large that data is damaged", action="unset", harmful=True,
        find=without("NCCL_CHUNK_SIZE", when=_large_chunk,
                     why="From 1 MiB on results were wrong without an error."),
        source="NVIDIA/nccl#2408", gain="right results",
        disagree="NVIDIA's page on tuning lists the variable as an option.",
    ),
    SettingRule(
        rule="L8", title="no sizes of the low-latency buffers", action="unset", harmful=True,
        find=without("NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE",
                     why="A size that does not fit NCCL's lines hangs or damages data."),
        source="NVIDIA/nccl#1739", gain="no hang",
    ),
    SettingRule(
        rule="L7", title="not a number of threads", action="unset", harmful=True,
        find=without("NCCL_NTHREADS", why="Numbers that are no power of two gave wrong results."),
        source="NVIDIA/nccl#698", gain="right results",
    ),
    SettingRule(
        rule="T8", title="no algorithm or protocol that only some nodes pin", action="unset", find=differing_pins,
        source="NVIDIA/nccl src/transport/net_socket.cc", gain="no hang, no mismatch", harmful=True,
    ),
    SettingRule(
        rule="L10", title="no value that is read as something else", action="unset", find=values_read_otherwise,
        source="NVIDIA/nccl src/misc/param.cc; strtoll(3)", gain="what the script says is what happens",
        harmful=True,
    ),
    SettingRule(
        rule="L11", title="no line in nccl.conf that NCCL takes otherwise", action="unset",
        find=lines_that_do_nothing,
        source="NVIDIA/nccl src/misc/param.cc (nccl.conf)", gain="what the file says is what happens",
        risk="write it as NAME=value where it is meant",
    ),
    SettingRule(
        rule="L9", title="no name that nobody reads", action="unset", find=dead_names,
        source="the names in libnccl itself; NVIDIA/nccl src/misc/param.cc", gain="none: it had no effect",
        risk="a plugin of your own may read it",
    ),
    SettingRule(
        rule="L2", title="no algorithm that leaves broadcast without one", action="unset",
        find=without("NCCL_ALGO", when=_leaves_nothing,
                     why="It has no Ring, and since NCCL 2.24 broadcast and reduce do not fall back to it."),
        source="NVIDIA/nccl#1304; pytorch/pytorch#163063", gain="the job starts",
    ),
    SettingRule(
        rule="L2", title="no algorithm for all collectives", action="try",
        find=without("NCCL_ALGO", when=_plain_pin,
                     why="NCCL chooses by operation and size; this pins one for all."),
        source="NVIDIA/nccl#1304, NVIDIA/nccl#790; Megatron Core, deterministic training",
        gain="the right algorithm for every size",
        risk="keep it where the training is to be deterministic, as Megatron's --deterministic-mode asks",
        disagree="GCP's TCPX profile pins it, and OCI saw 34 against 21 GB/s with a tree on RTX PRO.",
    ),
    SettingRule(
        rule="L3", title="no protocol that may give wrong results", action="unset",
        find=without("NCCL_PROTO", when=_forces_ll128,
                     why="It forces LL128 on a path on which NCCL does not choose it."),
        source="NVIDIA/nccl#790, NVIDIA/nccl#831, NVIDIA/nccl#1261; NVIDIA/nccl src/graph/tuning.cc",
        gain="right results",
    ),
    SettingRule(
        rule="L3", title="no protocol for all collectives", action="try",
        find=without("NCCL_PROTO", when=_plain_pin,
                     why="NCCL knows when which protocol is faster; a pin turns that off."),
        source="NVIDIA/nccl#790; NCCL user guide, NCCL_PROTO", gain="lower latency of small messages",
        disagree="GCP's TCPX and TCPXO profiles pin it.",
    ),
    SettingRule(
        rule="L4", title="no size of NCCL's buffers", action="try",
        find=without("NCCL_BUFFSIZE",
                     why="NCCL's maintainers advise against it: it costs memory for every channel and peer."),
        source="NVIDIA/nccl#1739", gain="GPU memory",
        disagree="AWS recommends 8 MiB, which its plugin sets from 1.16 on.",
    ),
    SettingRule(
        rule="L6", title="not a number of channels", action="try",
        find=without("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS",
                     why="It takes cores of the GPU from every group, and overrides what torch sets for one."),
        source="NVIDIA/nccl src/init.cc; ClusterMAX criteria", gain="cores of the GPU for the training",
        disagree="GCP's TCPXO profile sets NCCL_MIN_NCHANNELS=4, Azure's recipes 32.",
    ),
    SettingRule(
        rule="L1", title="warnings alone in production", action="set", find=verbose_log,
        source="AWS, EFA cheat sheet; OCI and GCP set WARN", gain="no load on the shared file system",
        risk="the lines of init are gone: ncclcheck bench reads its own",
    ),
    SettingRule(
        rule="L1", title="NCCL's warnings on many nodes, before the first failure", action="try", find=silent_nccl,
        source="NCCL user guide, Environment variables, NCCL_DEBUG", gain="the first failure explains itself",
        risk="some harmless warnings in the log of each rank",
    ),
    SettingRule(
        rule="L13", title="torch's names instead of the old ones", action="unset",
        find=without("NCCL_BLOCKING_WAIT", "NCCL_ASYNC_ERROR_HANDLING", "NCCL_DESYNC_DEBUG", "NCCL_ENABLE_TIMING",
                     why="torch reads it under the name TORCH_ and warns of this one."),
        source="torch c10d/ProcessGroupNCCL.hpp", gain="none now", risk="set the new name where it is meant",
    ),
    SettingRule(
        rule="L23", title="no settings of NVIDIA's debugging section", action="unset",
        find=without("NCCL_IGNORE_DISABLED_P2P", "NCCL_NVB_DISABLE", "NCCL_RUNTIME_CONNECT", "NCCL_GRAPH_REGISTER",
                     "NCCL_NET_SHARED_BUFFERS", "NCCL_NET_SHARED_COMMS", when=_is_debugging,
                     why="NVIDIA's guide has it for debugging, not for production."),
        source=f"{_DEBUGGING}; Megatron Core cuda_graphs.py (NCCL_GRAPH_REGISTER=0)",
        gain="none now; it may break with the next version",
    ),
    SettingRule(
        rule="L24", title="communicators are left to torch", action="unset",
        find=without("NCCL_COMM_BLOCKING", "NCCL_COMM_ID",
                     why="torch sets up communicators itself, and this overrides it."),
        source="NVIDIA/nccl#2047", gain="no hang in init", harmful=True,
    ),
    SettingRule(
        rule="L25", title="NCCL's RAS stays on", action="unset", since=(2, 24, 0),
        find=without("NCCL_RAS_ENABLE", when=number(0), why="It is the only view of a hang from inside the job."),
        source="NCCL user guide, RAS", gain="something to ask when a job hangs",
        risk="it listens on port 28028 of localhost",
        disagree="GCP's recipe for A4X sets 0.",
    ),
    SettingRule(
        rule="L20", title="no settings of other networks on machines with EFA alone", action="unset",
        of_machine=True,
        find=without("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX",
                     "NCCL_IB_TC",
                     "NCCL_IB_TIMEOUT", "NCCL_IB_QPS_PER_CONNECTION", "NCCL_IB_DISABLE", only=_one_of_efa,
                     why="Data goes through the plugin for EFA, which does not read it."),
        source="AWS, EFA cheat sheet (awsome-distributed-training)", gain="none: it had no effect",
    ),
    SettingRule(
        rule="L17", title="no settings of old EFA plugins", action="unset", of_machine=True,
        find=without("FI_PROVIDER", "FI_EFA_FORK_SAFE", "FI_EFA_USE_DEVICE_RDMA", "FI_EFA_USE_HUGE_PAGE",
                     only=_has_efa, when=_stale_efa,
                     why="The plugin chooses EFA by itself; the others were for kernels and plugins of 2021."),
        source="AWS, EFA cheat sheet (awsome-distributed-training)", gain="none now",
        risk="with a plugin up to 1.5 they are still needed",
    ),
    SettingRule(
        rule="L21", title="no sizes of network chunks by hand", action="try",
        find=without("NCCL_P2P_NET_CHUNKSIZE", "NCCL_NVLS_CHUNKSIZE", "NCCL_NVLSTREE_MAX_CHUNKSIZE",
                     when=_large_p2p_chunk,
                     why="What is right depends on the platform; vendors' plugins set it where it helps."),
        source="aws-ofi-nccl src/platform-aws.cpp; NVIDIA/nccl#1112", gain="GPU memory",
    ),
)  # fmt: skip
