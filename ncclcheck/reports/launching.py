"""What ssh, srun and our own first step say when a node cannot be entered, and what mends it."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from ncclcheck.probes.facts import Run, Silence
from ncclcheck.reports.findings import Finding, Owner, Remedy, Where, admin, seen, unknown, you

_NOTHING_KNOWN = "No agent ran there, so nothing is known of this node: it is neither ready nor broken."


@dataclass(frozen=True)
class _Cause:
    """One line that is recognised. Texts may use {node} and the groups of the pattern."""

    pattern: str
    what: str
    owner: Owner
    fix: tuple[Remedy, ...]
    why: str = _NOTHING_KNOWN


_TRY = "ssh -o BatchMode=yes {node} true"
_SLURMD = (
    you("Leave the node out until it is mended.", "sbatch --exclude={node} ..."),
    admin(
        "See whether slurmd answers there.",
        "scontrol show node {node}",
        "ssh {node} systemctl status slurmd",
    ),
)
_SLURMD_WHY = "One such node ends srun on all nodes: a job that starts with srun would not start."
_CAUSES = (
    _Cause(
        r"^ncclcheck: .*: no interpreter (?P<python>.+) there",
        "{python}, the interpreter of this side, is not there",
        "job",
        (
            you(
                "Make the same environment on that node, or start ncclcheck from one that all nodes share.",
                "ls -l {python}",
            ),
            you("For containers that run on the hosts, enter them with --via 'docker exec NAME'."),
        ),
    ),
    _Cause(
        r"^ncclcheck: .*: no ncclcheck (?P<version>\S+) there that (?P<python>.+?) can import: (?P<error>.*)",
        "no ncclcheck there: {error}",
        "job",
        (
            you(
                "Install the same version on that node, for this very interpreter, or run from a shared folder.",
                "{python} -m pip install ncclcheck=={version}",
            ),
        ),
    ),
    _Cause(
        r"^ncclcheck: .*: (?P<said>ncclcheck \S+ there speaks protocol \d+, (?P<version>\S+) here speaks \d+)",
        "another ncclcheck there: {said}",
        "job",
        (you("Install the same version on all nodes.", "python3 -m pip install ncclcheck=={version}"),),
        "The two versions do not understand each other, so nothing is known of this node.",
    ),
    _Cause(
        r"^\S+: Permission denied \((?P<said>[^)]*)\)",
        "ssh is not let in: permission denied ({said})",
        "job",
        (
            you("Put your public key there; ncclcheck never types a password.", "ssh-copy-id {node}", _TRY),
            admin("If the key is there, see why sshd refuses it.", "journalctl -u ssh -u sshd | tail -20"),
        ),
    ),
    _Cause(
        r"^Host key verification failed",
        "ssh does not know this host's key, or the key has changed",
        "job",
        (
            you("Connect once by hand, compare the key and accept it.", "ssh {node} true"),
            you("If the host was installed anew, forget its old key first.", "ssh-keygen -R {node}"),
        ),
    ),
    _Cause(
        r"^ssh: Could not resolve hostname",
        "its name does not resolve here",
        "job",
        (
            you("Correct the name, or name its address in ~/.ssh/config (HostName).", "getent hosts {node}"),
            admin("Enter the node in DNS or in /etc/hosts."),
        ),
    ),
    _Cause(
        r"^ssh: connect to .*: Connection refused",
        "its ssh port refuses connections: no sshd listens there",
        "node",
        (
            admin("Start sshd on that node.", "systemctl enable --now ssh || systemctl enable --now sshd"),
            you("If it listens on another port, name it in ~/.ssh/config (Port).", _TRY),
        ),
    ),
    _Cause(
        r"^ssh: connect to .* timed out|^Connection timed out during banner exchange|^Connection to .* timed out",
        "no answer from its ssh port in 10 s: it is down, or a firewall drops the packets",
        "node",
        (
            you("See whether it answers at all.", "ping -c 3 {node}", _TRY),
            admin("Start the node, or open its ssh port to this one."),
        ),
    ),
    _Cause(
        r"^ssh: connect to .*: (?:No route to host|Network is unreachable)",
        "there is no route to it from here, or it is down",
        "site",
        (
            you("See whether other hosts of its network answer.", "getent hosts {node}", "ip route"),
            admin("Start the node, or mend the route and the firewall (REJECT) between the two."),
        ),
    ),
    _Cause(
        r"^Timeout, server \S+ not responding|^Connection (?:to \S+ )?(?:closed|reset) by |^(?:kex_|client_loop)",
        "its ssh connection broke",
        "node",
        (
            you("See whether it still answers.", _TRY),
            admin(
                "See whether it restarted, or its sshd takes too few connections at once (MaxStartups).",
                "journalctl -u ssh -u sshd | tail -20",
            ),
        ),
        "What ran there was ended with the connection, and nothing more was heard.",
    ),
    _Cause(
        r"^Error.*: (?:No such container|[Cc]ontainer \S+ is not running|no container with name)",
        "the container of --via is not there or does not run",
        "job",
        (you("Start the same container on every host.", "ssh {node} docker ps"),),
    ),
    _Cause(
        r"(?i)^(?:srun|slurmstepd): error: .*(?:credential|munge)",
        "Slurm's credential was refused there",
        "node",
        (
            admin(
                "Set its clock and start munge there, with the same key as everywhere.",
                "timedatectl",
                "systemctl restart munge",
                "munge -n | ssh {node} unmunge",
            ),
        ),
        "A munge credential holds for minutes, so a clock that is off makes every one look expired.",
    ),
    _Cause(
        r"^srun: error: Task launch for \S+ failed on node \S+: (?P<said>.*)",
        "srun could not start a task there: {said}",
        "node",
        _SLURMD,
        _SLURMD_WHY,
    ),
    _Cause(
        r"^ncclcheck: .*: srun started no agent there in (?P<seconds>\d+) s",
        "srun started no task there in {seconds} s",
        "node",
        _SLURMD,
        _SLURMD_WHY,
    ),
    _Cause(
        r"^srun: error: Node failure on \S+",
        "Slurm has lost this node",
        "node",
        (admin("See why it is down.", "scontrol show node {node}", "ssh {node} systemctl status slurmd"),),
    ),
    _Cause(
        r"^srun: .*(?:Expired or invalid job|Invalid job id)",
        "the job of SLURM_JOB_ID has ended",
        "job",
        (you("Start a new allocation: salloc -N 2, or sbatch."),),
    ),
    _Cause(
        r"^srun: .*(?:Unable to create (?:job )?step|[Nn]odes are busy|Invalid node name)",
        "Slurm creates no job step there",
        "site",
        (
            you("See what Slurm says of the node.", "scontrol show node {node}", "squeue --steps --me"),
            admin("If it is down or drained, mend and resume it.", "scontrol update nodename={node} state=resume"),
        ),
    ),
)


def hurried(run: Run) -> bool:
    """The deadline came before the facts were there, which says nothing of the nodes."""
    return run.stopped_by == "deadline" and not run.started_job and bool(run.silent)


def recognised(silence: Silence) -> Finding | None:
    """The finding of a node that could not be entered, where the words are known."""
    for cause in _CAUSES:
        if found := re.search(cause.pattern, silence.detail, re.MULTILINE):
            return _finding(silence, cause, found)
    return None


def _finding(silence: Silence, cause: _Cause, found: re.Match[str]) -> Finding:
    said = {name: value or "" for name, value in found.groupdict().items()} | {"node": silence.node}
    safe = {name: shlex.quote(value) for name, value in said.items()}
    line = silence.detail[silence.detail.rfind("\n", 0, found.start()) + 1 :].split("\n", 1)[0].strip()
    source = next((word for word in ("ssh", "srun", "ncclcheck") if line.startswith(f"{word}:")), "its process")
    return unknown(
        Where(node=silence.node),
        cause.what.format(**said),
        why=cause.why,
        owner=cause.owner,
        evidence=[seen(source, line), seen("last step", silence.last_step)],
        fix=[
            Remedy(who=one.who, text=one.text, commands=[command.format(**safe) for command in one.commands])
            for one in cause.fix
        ],
    )
