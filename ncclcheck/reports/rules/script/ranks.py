"""SCR021, SCR026: the rendezvous and the rank that each process is given."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclcheck.probes.facts.script import Call, Script
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, fail, note, warn, you
from ncclcheck.reports.subjects.script.processes import INIT, SPAWNS
from ncclcheck.reports.subjects.script.scripts import (
    LOCAL_RANK,
    MOST_PORT,
    SAMPLER,
    edited,
    given_to,
    here,
    in_function,
    indent,
    line_of,
    on_all_ranks,
    says,
    script_rule,
    spawns,
    that_starts,
    with_argument,
    written,
)
from ncclcheck.reports.subjects.script.sides import LOCALS, numbers, starts_by_itself
from ncclcheck.reports.subjects.script.traced import tags
from ncclcheck.reports.subjects.script.world import runs_for_certain, spans_nodes, waits_for_all

_OF_ONE_NODE = re.compile(r"^['\"]file://(/tmp|/dev/shm|/var/tmp|/scratch)/")
_READS_VARIABLE = re.compile(r"^os\.(?:environ\.get|getenv)$")
_OF_TORCHRUN = re.compile(r"os\.(?:environ\[|getenv\(|environ\.get\()['\"](?:LOCAL_)?RANK['\"]")
_QUOTES = "'\""
_WHOLE = re.compile(r"^(?:RANK|SLURM_PROCID|PMI_RANK|OMPI_COMM_WORLD_RANK)$")
_TWICE = "On several nodes each such rank exists twice: they wait for others that never come, or train apart."
_TWICE_READ = "The ranks of two nodes train on the same samples, and an epoch is no faster than on one node."


@script_rule("SCR021", "the rendezvous can be used as it is written", worst=State.FAIL)
def rendezvous(script: Script) -> Iterator[Finding]:
    """
    ## What
    A port above 65535, `tcp://` or `file://` without rank and world_size, `tcp://` with a rank that torchrun has
    given, and `file://` on a folder that each node has for itself, or under one name for all runs (a note).

    ## Why it matters
    `init_process_group` raises "port must have value from 0 to 65535" or "rank parameter missing", and the job
    ends as it starts. With a file that is another one on each node, all wait until the timeout. So they do with
    tcp:// under torchrun: it tells rank 0 that there is a store already, and nobody opens one at that address.

    ## Seen as
    hangs

    ## How we know
    The values as they are written. Each was tried with torch 2.13. A rank that is read from RANK or LOCAL_RANK
    names torchrun; that is a warning, for Slurm and pods may set them too. MPI gives ranks itself and is not
    judged. A file in /tmp, /var/tmp, /scratch or /dev/shm fails where the job is known to have several nodes; else
    it is a note.

    ## Fix
    - **you** use a free port, such as 29500, or `init_process_group("nccl")` under torchrun, which gives all.

    ## Source
    PyTorch documentation, torch.distributed, "TCP initialization" and "Shared file-system initialization".
    """
    for call in that_starts(script):
        if call.name == "os.environ.set" and call.arguments.get("0", "").strip("'\"") == "MASTER_PORT":
            yield from _port(script, call, call.arguments.get("1", "").strip("'\""))
        elif call.name == INIT:
            url = given_to(script, call, "init_method", "1")
            yield from _method(script, call, url)
            yield from _without_address(script, call, url)


def _method(script: Script, call: Call, url: str) -> Iterator[Finding]:
    yield from _port(script, call, port.group(1) if (port := re.search(r"tcp://.*:(\d+)", url)) else "")
    scheme = re.match(r"f?['\"](tcp|file)://", url)
    ranks = {"rank", "4", "world_size", "3", "*", "store"} & {*call.arguments}
    if scheme and not ranks and "rank=" not in url and "mpi" not in call.arguments.get("0", ""):
        line = line_of(script, call.file, call.line)
        both = 'rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"])'
        new = with_argument(line, "init_process_group(", both)
        yield fail(
            here(call),
            f"{scheme.group(1)}:// is given neither rank nor world_size",
            why='init_process_group raises "rank parameter missing": the job ends as it starts.',
            owner="job",
            evidence=[written(script, call)],
            fix=[edited(script, "Give it both.", call.file, {call.line: new} if new else None)],
        )
    if scheme and scheme.group(1) == "tcp" and _by_torchrun(script, call):
        line = line_of(script, call.file, call.line)
        new = re.sub(r"init_method=(['\"])tcp:[^'\"]*\1, |, init_method=(['\"])tcp:[^'\"]*\2", "", line)
        yield warn(
            here(call),
            f"under torchrun, which gives this rank, nobody opens a store at {url.strip(_QUOTES)}",
            why="torchrun has a store of its own, and rank 0 opens none: all ranks wait until the timeout.",
            owner="job",
            evidence=[written(script, call)],
            fix=[
                edited(
                    script,
                    "Leave the address to torchrun: env://.",
                    call.file,
                    {call.line: new} if new != line else None,
                )
            ],
        )
    if (finding := _left_over(script, call, url)) is not None:
        yield finding
    if folder := _OF_ONE_NODE.match(url):
        text = f"the processes meet in a file in {folder.group(1)}, which each node has for itself"
        if (script.nodes or 1) > 1:
            yield fail(
                here(call),
                text,
                why="The ranks of other nodes never come: all wait until the timeout.",
                owner="job",
                evidence=[written(script, call)],
                fix=[edited(script, "Use a folder that all nodes share, or torchrun and env://.", "", None)],
            )
        elif script.nodes is None:
            yield note(here(call), f"{text}: this works on one node only", evidence=[written(script, call)])


def _left_over(script: Script, call: Call, url: str) -> Finding | None:
    """A file by which processes meet, under one name for all runs, which nothing removes."""
    if not re.match(r"f?['\"]file://", url) or re.search(r"\{|%|uuid|time|pid|JOB|tmp_?file|mkstemp", url):
        return None
    if says(script, "unlink", "rmtree", "mkstemp", "mkdtemp", "TemporaryDirectory"):
        return None
    return note(
        here(call),
        "the processes meet in one file in all runs, and nothing removes it",
        why="One that an earlier run has left holds its addresses: new processes wait for those of that run.",
        evidence=[written(script, call)],
        fix=[you("Put the job's number into its name, or leave the meeting to torchrun and env://.")],
    )


def _without_address(script: Script, call: Call, url: str) -> Iterator[Finding]:
    """env:// in processes that the script itself starts, while nothing sets the address."""
    from_variables = (not url or url.strip("'\"").startswith("env")) and not {"store", "*"} & {*call.arguments}
    starts = any(spawn.name in SPAWNS for spawn in script.calls)
    if from_variables and starts and not says(script, "MASTER_ADDR"):
        yield note(
            here(call),
            "the script starts its processes itself, and nothing sets MASTER_ADDR, which env:// reads",
            evidence=[written(script, call)],
            fix=[you('Give it init_method="tcp://127.0.0.1:29500", or set both before.')],
        )


def _by_torchrun(script: Script, call: Call) -> bool:
    """Whether its rank is that of a variable which torchrun sets, and its address is no variable's."""
    url = given_to(script, call, "init_method", "1")
    if not re.fullmatch(r"['\"]tcp://[^{}%'\"]+['\"]", url):
        return False  # made of MASTER_ADDR it is where torchrun's own store is
    if any(guard.text == "except" for guard in call.guards):
        return False  # where a variable is missing there is no torchrun
    rank = call.arguments.get("rank", call.arguments.get("4", ""))
    reads = (call for call in in_function(script, call.function) if rank and call.target == rank)
    named = any(_READS_VARIABLE.search(read.name) and _is_ranks(read.arguments.get("0", "")) for read in reads)
    return not spawns(script) and (named or bool(_OF_TORCHRUN.search(rank)))


def _is_ranks(text: str) -> bool:
    return text.strip(_QUOTES) in ("RANK", "LOCAL_RANK")


def _port(script: Script, call: Call, port: str) -> Iterator[Finding]:
    if port.isdecimal() and int(port) > MOST_PORT:
        line = line_of(script, call.file, call.line)
        new = line.replace(port, "29500") if line.count(port) == 1 else ""
        if call.name == "os.environ.set" and re.fullmatch(r"\s*os\.environ\[[^=]*=[^=;#]*", line):
            new = f'{indent(line)}os.environ.setdefault("MASTER_PORT", "29500")'
        yield fail(
            here(call),
            f"{port} is no port: the largest is {MOST_PORT}",
            why='init_process_group raises "port must have value from 0 to 65535".',
            owner="job",
            evidence=[written(script, call)],
            fix=[edited(script, "Use another one.", call.file, {call.line: new} if new else None)],
        )


@script_rule("SCR026", "no local rank stands where the rank of the job is asked for", worst=State.FAIL)
def whole_rank(script: Script) -> Iterator[Finding]:
    """
    ## What
    `init_process_group(rank=local_rank)` or `DistributedSampler(rank=local_rank)`; and world_size that is
    `device_count()`, there or in a variable that is given nothing else.

    ## Why it matters
    On several nodes each rank exists twice: `init_process_group` waits until the timeout for those that never
    come, and a sampler gives the same samples to ranks of two nodes.

    ## Seen as
    hangs

    ## How we know
    The argument is called a local rank, or holds LOCAL_RANK. Where the job is known to have several nodes
    (`--nodes`, or a Slurm allocation) it fails in `init_process_group` that waits for as many ranks as the
    launcher has started, and is a warning in a sampler, and where `world_size` is the number of GPUs of one node
    or is not known: a job that counts the ranks of one node trains on each by itself. Where the nodes are not
    known it is a note, and it is right on one node.

    ## Fix
    - **you** leave the argument to torchrun, or take `int(os.environ["RANK"])`; and
      `int(os.environ["WORLD_SIZE"])` where the number of ranks is `device_count()`.

    ## Source
    PyTorch documentation, torchrun, "Environment Variables".
    """
    calls, everywhere = that_starts(script), on_all_ranks(script)
    if script.nodes != 1 and (call := _of_spawned(script)):
        text = f"{call.arguments['rank']} is the rank in one node, and the group is given another one"
        make = warn if (script.nodes or 1) > 1 else note
        yield make(here(call), text, why=_TWICE_READ, owner="job", evidence=[written(script, call)],
                   fix=[_of_the_job(script, call, call.arguments["rank"])])  # fmt: skip
    if script.nodes != 1 and (call := _spawned_alike(script)):
        rank = call.arguments.get("rank", call.arguments.get("4", ""))
        text = f"{rank} is the number of a process on its node: with several nodes each rank is there twice"
        yield note(here(call), text, evidence=[written(script, call)],
                   fix=[you("Add the number of the node, times the processes of a node.")])  # fmt: skip
    if script.nodes == 1 or spawns(script):
        return
    for call in _handed_local(script):
        rank = call.arguments.get("rank", call.arguments.get("4", ""))
        text = f"{rank} is the rank in one node, from $LOCAL_RANK, and is given as that in the whole job"
        several = (script.nodes or 1) > 1
        make = fail if several and waits_for_all(script, call) else warn if several else note
        yield make(here(call), text, why=_TWICE, owner="job", evidence=[written(script, call)],
                   fix=[_of_the_job(script, call, rank)])  # fmt: skip
    for call in calls:
        if call.function not in everywhere:
            continue
        position = "4" if call.name == INIT else "2"
        rank = call.arguments.get("rank", call.arguments.get(position, ""))
        if (call.name == INIT or call.name in SAMPLER) and (LOCAL_RANK.match(rank) or _holds_local(script, rank)):
            text = f"{rank} is the rank in one node, and is given as that in the whole job"
            fix = [_of_the_job(script, call, rank)]
            if (script.nodes or 1) > 1:
                make = fail if call.name == INIT and waits_for_all(script, call) else warn
                why = _TWICE if call.name == INIT else _TWICE_READ
                yield make(here(call), text, why=why, owner="job", evidence=[written(script, call)], fix=fix)
            else:
                yield note(here(call), f"{text}: this works on one node only", evidence=[written(script, call)],
                           fix=fix)  # fmt: skip
        elif call.name == INIT and _is_of_one_node(script, count := _count(call)):
            text = f"world_size={count} is the number of GPUs of one node"
            several = (script.nodes or 1) > 1 and call.function in runs_for_certain(script)
            if several and not {"rank", "4", "init_method", "1", "store", "*"} & {*call.arguments}:
                why = "Other nodes' ranks, which the launcher gives, are not below it."
                evidence, fix = [written(script, call)], [you("Take $WORLD_SIZE.")]
                yield warn(here(call), text, why=why, owner="job", evidence=evidence, fix=fix)
            else:
                yield note(here(call), f"{text}: this works on one node only", evidence=[written(script, call)])


def _spawned_alike(script: Script) -> Call | None:
    """A group of all nodes that is given the number of a spawned process as its rank."""
    for call in script.trace:
        if call.name == INIT and numbers(call, "rank", "4") == LOCALS and spans_nodes(script):
            return call if starts_by_itself(script) else None
    return None


def _handed_local(script: Script) -> Iterator[Call]:
    """Groups that are given what was read from LOCAL_RANK, handed on under another name."""
    for call in script.trace:
        rank = call.arguments.get("rank", call.arguments.get("4", ""))
        given = tags(call, "rank") | tags(call, "4")
        named = LOCAL_RANK.match(rank) or _holds_local(script, rank)
        if call.name == INIT and rank and not named and "local" in given and not given & {"rank", "byrank"}:
            yield call


def _of_spawned(script: Script) -> Call | None:
    """A sampler that is given the number of a spawned process, where the group is given a rank made of it."""
    inits = [call for call in script.trace if call.name == INIT]
    ranks = [tags(call, "rank") | tags(call, "4") for call in inits]
    if not ranks or any("local" in rank or not rank for rank in ranks):
        return None
    for call in script.trace:
        if call.name in SAMPLER and {"local", "rank"} <= tags(call, "rank") and call.arguments.get("rank"):
            return call
    return None


def _holds_local(script: Script, rank: str) -> bool:
    """Whether what is called like this is read from LOCAL_RANK, and from no rank of the job."""
    read = [
        call.arguments.get("0", "").strip(_QUOTES)
        for call in script.calls
        if rank and call.target == rank and _READS_VARIABLE.search(call.name)
    ]
    return "LOCAL_RANK" in read and not any(_WHOLE.search(name) for name in read)


def _count(init: Call) -> str:
    return init.arguments.get("world_size", init.arguments.get("3", ""))


def _of_the_job(script: Script, call: Call, rank: str) -> Remedy:
    """$RANK, and what must go with it: the number of all ranks, and torchrun's own meeting point."""
    name, position = ("world_size", "3") if call.name == INIT else ("num_replicas", "1")
    count = call.arguments.get(name, call.arguments.get(position, ""))
    if call.name in SAMPLER:
        given = {
            f"{argument}={call.arguments[argument]}": f"{argument}=None"
            for argument in ("rank", name)
            if argument in call.arguments
        }
        text = "Leave rank and num_replicas to the sampler, which takes both from the group."
        return edited(script, text, call.file, _replaced(script, call, given))
    text, new = "Take $RANK", {f"rank={rank}": 'rank=int(os.environ["RANK"])'}
    per_node = _is_of_one_node(script, count)
    if per_node or (call.name == INIT and count and not _is_of_all(script, call, count)):
        text += f", and $WORLD_SIZE for {name}" + (": device_count() is that of one node" if per_node else "")
        new[f"{name}={count}"] = f'{name}=int(os.environ["WORLD_SIZE"])'
    method = call.arguments.get("init_method", call.arguments.get("1", "")) if call.name == INIT else ""
    if method and "env://" not in given_to(script, call, "init_method", "1"):
        text += ", and env:// for the address, where torchrun's ranks meet"
        new[f"init_method={method}"] = 'init_method="env://"'
    return edited(script, f"{text}.", call.file, _replaced(script, call, new), needs="os")


def _replaced(script: Script, call: Call, new: dict[str, str]) -> dict[int, str | None] | None:
    """Its arguments, as written, by others; None where one of them is not found."""
    lines = {at: line_of(script, call.file, at) for at in range(call.first, call.last + 1)}
    change: dict[int, str | None] = {}
    for old, text in new.items():
        head, _, value = old.partition("=")
        value = re.escape(value).replace("'", "['\"]")  # as it is written; ours has plain quotes alone
        spelled = re.compile(rf"\b{head}\s*=\s*{value}(?=\s*(?:[,)]|$))")
        places = [at for at, line in lines.items() if spelled.search(line)]
        if len(places) != 1:
            return None
        change[places[0]] = lines[places[0]] = spelled.sub(text, lines[places[0]])
    return change


def _is_of_one_node(script: Script, count: str) -> bool:
    """Whether the number of ranks is that of the GPUs that a process sees; nothing else is given to its name."""
    if "device_count()" in count:
        return "*" not in count.replace("**", "")
    if "LOCAL_WORLD_SIZE" in count:
        return True
    given = [call for call in script.calls if count and call.target == count]
    if given and all("LOCAL_WORLD_SIZE" in "".join(call.arguments.values()) for call in given):
        return True
    return bool(given) and all(call.name == "torch.cuda.device_count" and not call.inner for call in given)


def _is_of_all(script: Script, call: Call, count: str) -> bool:
    """Whether the number of ranks is that of the variable."""
    reads = (call for call in in_function(script, call.function) if call.target == count)
    return "WORLD_SIZE" in count or any("WORLD_SIZE" in "".join(read.arguments.values()) for read in reads)
