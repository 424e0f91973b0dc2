"""The gate of a job script: the files of fit nodes, and COMMAND in the place of this process if they are ready."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Sequence

import msgspec

from ncclcheck.base.errors import UsageError
from ncclcheck.base.exits import NOT_FOUND, NOT_STARTED, Exit
from ncclcheck.base.leaving import do_last_acts
from ncclcheck.base.progress import complain
from ncclcheck.commands.steps.cache import Cache
from ncclcheck.probes.facts import Cluster
from ncclcheck.probes.machine import process
from ncclcheck.reports.judgement import selection
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.subjects.links import reached
from ncclcheck.results import outputs
from ncclcheck.run.plan.preflight_plan import PreflightOptions
from ncclcheck.watch.folder import CLOCKS

# srun takes these for wishes, and they speak of all nodes. Source: srun(1), INPUT ENVIRONMENT VARIABLES.
_OF_THE_ALLOCATION = ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_DISTRIBUTION")


def check(wanted: PreflightOptions, *, joins: bool = False) -> None:
    """Before anything is measured. Raises UsageError for what could not be done at the end."""
    for option, path in (("--healthy-file", wanted.healthy_file), ("--exclude-file", wanted.exclude_file)):
        if path:
            outputs.check_file(option, path)
    if wanted.command and shutil.which(wanted.command[0]) is None:
        raise UsageError(f"COMMAND: {wanted.command[0]!r} is not found on PATH")
    if wanted.need and joins:
        raise UsageError("--need: in a join nothing can be started on other nodes; use Slurm's or ssh's launcher")
    for option, given in (("--apply", wanted.apply), ("--watch", wanted.watch)):
        if given and not wanted.command:
            raise UsageError(f"{option}: it goes with a command to start: ncclcheck preflight {option} -- COMMAND")


def after(wanted: PreflightOptions, cache: Cache, strict: bool, code: int, document: Document | None) -> int:
    """What follows the report."""
    if document is not None and document.exit_code == 0:
        cache.keep(document)
    return passed(wanted, document, code, strict=strict)


def passed(wanted: PreflightOptions, document: Document | None, code: int, *, strict: bool) -> int:
    """Write the lists, and become COMMAND if the nodes that it needs are ready; else the exit code."""
    chosen: list[str] = []
    if document is not None:
        healthy, bad = selection.of_document(document)
        if wanted.need:
            against = selection.against_the_rest(document, bad, strict=strict)
            code = _enough(wanted, document, healthy, against, code)
            chosen = selection.best(document, healthy, wanted.need) if code == Exit.READY else []
        if not _write_lists(wanted, chosen or healthy, bad):
            return code or Exit.INCOMPLETE
        _say(wanted, document, bad, chosen)
    if code == Exit.READY and wanted.command:
        return _become(wanted, document, chosen)
    return code


def _write_lists(wanted: PreflightOptions, healthy: Sequence[str], bad: dict[str, str]) -> bool:
    written = [
        outputs.write_file(path, text.encode())
        for path, text in (
            (wanted.healthy_file, selection.healthy_file(healthy)),
            (wanted.exclude_file, selection.exclude_file(bad)),
        )
        if path
    ]
    return all(written)


def _enough(wanted: PreflightOptions, document: Document, healthy: Sequence[str], against: str, code: int) -> int:
    """--need: enough fit nodes are a pass, whatever the others are; what ails more than those is none."""
    if code > Exit.INCOMPLETE or code != document.exit_code:  # a signal, or a report that could not be written
        return code
    if len(healthy) < wanted.need:
        complain(f"--need {wanted.need}: {len(healthy)} of {document.job.nodes_asked} nodes are fit")
        return code or Exit.FAILED
    if code and against:
        complain(f"--need {wanted.need}: {against} speaks against the nodes that are left too")
        return code
    return Exit.READY


def _say(wanted: PreflightOptions, document: Document, bad: dict[str, str], chosen: Sequence[str]) -> None:
    if chosen:
        here = (
            "" if document.job.launcher == "slurm" else f"; {wanted.command[0]} starts here, and is to start there"
        )
        complain(f"selected: {_listed(document, chosen)}{here if wanted.command else ''}")
    for line in selection.out_of_service(bad):
        complain(f"[admin] {line}")


def _become(wanted: PreflightOptions, document: Document | None, chosen: Sequence[str]) -> int:
    """Same pid: signals and the exit code are COMMAND's own. Comes back only where it cannot be started."""
    env = dict(os.environ)
    if wanted.apply and document is not None:
        _apply(env, document)
    argv = _on_nodes(wanted, document, chosen, env)
    if wanted.watch and document is not None:
        env[CLOCKS] = json.dumps(_clocks(document))
    process.leave_orphans()
    do_last_acts()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    try:
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        complain(f"{shlex.join(argv)} could not be started: {error.strerror or error}")
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_STARTED


def _apply(env: dict[str, str], document: Document) -> None:
    """The settings that were recommended, and proved where that was asked for."""
    for recommendation in document.recommendations:
        if recommendation.action == "set" and recommendation.value is not None:
            env[recommendation.variable] = recommendation.value
        elif recommendation.action == "unset":
            env.pop(recommendation.variable, None)


def _on_nodes(
    wanted: PreflightOptions, document: Document | None, chosen: Sequence[str], env: dict[str, str]
) -> list[str]:
    """With --need: on the chosen nodes, by srun; elsewhere here, and COMMAND finds them in its environment."""
    watch = [sys.executable, "-m", "ncclcheck", "watch", "--"] if wanted.watch else []
    command = [*watch, *wanted.command]
    if not wanted.need or document is None:
        return command
    env["NCCLCHECK_SELECTED"] = _listed(document, chosen)
    if document.job.launcher == "slurm":
        for name in _OF_THE_ALLOCATION:
            env.pop(name, None)
        return ["srun", f"--nodelist={selection.slurm_list(chosen)}", f"--nodes={len(chosen)}", *command]
    return command


def _clocks(document: Document) -> dict[str, float]:
    """Each node's clock against that of one of them, as they were compared."""
    nodes = [msgspec.structs.replace(entry.facts, name=entry.name) for entry in document.nodes]
    cluster = Cluster(command=document.command, nodes=nodes, job=document.job, measurements=document.measurements)
    reach = reached.reached(cluster)
    return {name: round(offset, 6) for name, offset in reached.positions(reach).items()} if reach else {}


def _listed(document: Document, chosen: Sequence[str]) -> str:
    """As srun's --nodelist takes them, or else as --hosts and mpirun's --host do."""
    return selection.slurm_list(chosen) if document.job.launcher == "slurm" else ",".join(chosen)
