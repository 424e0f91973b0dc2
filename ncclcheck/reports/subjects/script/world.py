"""Over how many nodes a script counts its ranks, and what it runs for certain."""

from __future__ import annotations

import re

from ncclcheck.probes.facts.script import Call, Script
from ncclcheck.reports.subjects.script.processes import INIT, SPAWNS, started_by
from ncclcheck.reports.subjects.script.scripts import in_function, reached, says, spawns

# Variables of launchers that hold the number of all ranks, or of nodes.
_OF_THE_JOB = re.compile(r"WORLD_SIZE|NTASKS|NPROCS|NNODES|NUM_NODES")
# Options by which a script that spawns its processes is told of other nodes.
_OPTIONS = (
    "--nodes", "--nnodes", "--num-nodes", "--num_nodes", "--n_nodes",
    "--node-rank", "--node_rank", "--num-machines", "--num_machines", "--machine-rank", "--machine_rank", "--nr",
)  # fmt: skip


def spans_nodes(script: Script) -> bool:
    """Whether the ranks that wait for each other are those of all nodes, as far as the script says.

    A script that spawns as many processes as it has GPUs, and is told of no other node, trains on each node by
    itself.
    """
    return any(_counts_all(script, call) for call in reached(script) if call.name == INIT)


def _counts_all(script: Script, init: Call) -> bool:
    count = init.arguments.get("world_size", init.arguments.get("3", ""))
    if "*" in init.arguments:
        return False
    if not count or count == "-1" or _OF_THE_JOB.search(count):
        return not _sets_size(script)
    if spawns(script) or any(call.name in SPAWNS for call in script.calls):
        return says(script, *_OPTIONS) or _is_read(script, count)
    return count.isdecimal() or says(script, *_OPTIONS) or _is_read(script, count)


def waits_for_all(script: Script, init: Call) -> bool:
    """Whether it waits for as many ranks as the launcher has started, or a number that is written there."""
    count = init.arguments.get("world_size", init.arguments.get("3", ""))
    given = not count or count.isdecimal() or _OF_THE_JOB.search(count) or _is_read(script, count)
    return bool(given) and not _sets_size(script)


def _is_read(script: Script, count: str) -> bool:
    """Whether what is called like this anywhere is read from a launcher's variable."""
    name = count.rpartition(".")[2]
    read = (call for call in script.calls if name and call.target.rpartition(".")[2] == name)
    return any(_OF_THE_JOB.search(f"{call.name} {' '.join(call.arguments.values())}") for call in read)


def _sets_size(script: Script) -> bool:
    """Whether it gives the number of ranks to the environment itself."""
    return any(
        call.name == "os.environ.set" and call.arguments.get("0", "").strip("'\"") == "WORLD_SIZE"
        for call in reached(script)
    )


def runs_for_certain(script: Script) -> set[str]:
    """Functions that are run whatever the options are: under no condition but on the group or the rank."""
    functions: set[str] | None = script.__dict__.get("runs_for_certain")
    if functions is None:
        functions = {f"{file.name}:" for file in script.files if file.named} or {f"{script.files[0].name}:"}
        waiting = [*functions]
        while waiting:
            for call in in_function(script, waiting.pop()):
                if all(guard.kind in ("main", "group", "rank") for guard in call.guards):
                    new = {call.name, f"{call.name}.__init__", *started_by(call)} - functions
                    functions |= new
                    waiting += new
        script.__dict__["runs_for_certain"] = functions
    return functions
