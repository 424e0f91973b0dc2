"""Why a node is silent: by the words that were said, else by how far it came and what its process does."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, Run, Silence, replace
from ncclcheck.probes.facts.run.course import signal_name
from ncclcheck.reports.judgement.findings import Evidence, Finding, Owner, Remedy, Where, admin, seen, unknown, you
from ncclcheck.reports.subjects.failures import last_words
from ncclcheck.reports.subjects.failures.entering import dialled, let_in, ssh_way, starting
from ncclcheck.reports.subjects.failures.entering.launching import (
    FELL_SILENT,
    NOTHING_KNOWN,
    OWN_WORDS,
    SSH,
    TRY,
    LaunchCause,
)
from ncclcheck.reports.subjects.failures.entering.launching_slurm import JOIN, SLURM
from ncclcheck.reports.subjects.failures.limits import exhausted
from ncclcheck.reports.subjects.links.filters import knocked
from ncclcheck.reports.subjects.nccl.variables import STARTUP_FILES
from ncclcheck.reports.text.words.fold import fold_names

_Words = tuple[LaunchCause, re.Match[str]]
_CAUSES = (*OWN_WORDS, *SSH, *SLURM, *JOIN)
_MOST_TOLD = 16  # nodes whose last step is evidence: a page of text; chosen
_STOPPED = re.compile(r"^ncclcheck: .*: its agent, pid (?P<pid>\d+), is stopped", re.MULTILINE)
_KILLED = re.compile(
    r"^ncclcheck: .*: its agent was ended by (?P<agent>.+)$"
    r"|^srun: (?:error: )?\S+: tasks? \S+: (?P<task>Killed|Terminated)",
    re.MULTILINE,
)
_RESTRICTED = re.compile(
    r"^.*(?:\bonly (?:\S+ ){1,4}(?:is|are) allowed|\bnot allowed to (?:run|execute)|\bcommand (?:is )?not "
    r"(?:allowed|permitted)|\bcommand rejected|\bSSH_ORIGINAL_COMMAND\b|\ballows (?:only )?sftp\b"
    r"|: restricted: ).*$",
    re.IGNORECASE | re.MULTILINE,
)
_SUSPENDED = re.compile(r"job (?P<job>\d+): SUSPENDED")
_NEVER_CAME = re.compile(r"^it did not join within (?P<seconds>\d+) s", re.MULTILINE)
_KILLED_AS = {"Killed": "SIGKILL", "Terminated": "SIGTERM"}
_ONLY_INTERACTIVE = "case $- in *i*) ;; *) return;; esac   # as first line of ~/.bashrc"
_KERNEL_LOG = "dmesg -T | tail -50"


def hurried(run: Run) -> bool:
    """The deadline came before the facts were there, which says nothing of the nodes."""
    return run.stopped_by == "deadline" and not run.started_job and bool(run.silent)


def findings(cluster: Cluster) -> Iterator[Finding]:
    """One finding a silent node with what the others found when they tried it; its cause first."""
    causes = {quiet.node: words for quiet in cluster.run.silent if (words := _by_words(quiet))}
    tried = {quiet.node: quiet for quiet in cluster.run.silent if quiet.knocks}
    for each in _findings(cluster, causes):
        words = causes.get(each.where.node or "")
        finding = dialled.explained(cluster, let_in.explained(cluster, each, words[1] if words else None))
        silence = tried.get(finding.where.node or "")
        yield finding if silence is None else _with_knocks(finding, words, silence, [*tried.values()])


def _with_knocks(finding: Finding, words: _Words | None, silence: Silence, silent: list[Silence]) -> Finding:
    """What was guessed is now known; to what was seen otherwise only an answer that is missing adds something."""
    guessed = words is not None and words[0].guess != ""
    what = words[0].stated(silence, words[1]) if words and guessed else finding.what
    if guessed or not all(each.answered for each in silence.knocks):
        what = f"{what}; {knocked.words(silence, silent)}"
    evidence = [*finding.evidence, *map(knocked.tried, silence.knocks)]
    return replace(finding, what=what, evidence=evidence, remedies=[*knocked.fix(silence), *finding.remedies])


def _findings(cluster: Cluster, causes: dict[str, _Words]) -> Iterator[Finding]:
    """One finding a silent node; what befell all of a job step is said once. causes: by node, its words."""
    silent = cluster.run.silent
    own = [quiet for quiet in silent if quiet.node in causes and not causes[quiet.node][0].shared]
    yield from (causes[quiet.node][0].finding(quiet, causes[quiet.node][1], *_evidence(quiet)) for quiet in own)
    yield from _shared([quiet for quiet in silent if quiet.node in causes and quiet not in own], causes, own)
    left = []
    for silence in (quiet for quiet in silent if quiet.node not in causes):
        if finding := _by_signs(cluster, silence):
            yield finding
        else:
            left.append(silence)
    if left and hurried(cluster.run):
        yield _hurried(cluster.command, left)
    else:
        yield from map(_unexplained, left)


def _by_words(silence: Silence) -> _Words | None:
    return next(((cause, match) for cause in _CAUSES if (match := cause.match(silence))), None)


def _shared(silent: list[Silence], causes: dict[str, _Words], own: list[Silence]) -> Iterator[Finding]:
    """What befell all of a step; it may be the consequence of what befell one node."""
    blamed = [silence.node for silence in own if causes[silence.node][0].by_prolog]
    for cause in {causes[silence.node][0].pattern: causes[silence.node][0] for silence in silent}.values():
        alike = [silence for silence in silent if causes[silence.node][0] is cause]
        finding = cause.finding(alike[0], causes[alike[0].node][1])
        names = fold_names(silence.node for silence in alike)
        if not blamed:
            yield replace(finding, what=f"{finding.what} ({names})")
            continue
        yield unknown(
            Where(),
            f"nothing was started on {names}: Slurm ended the job, for its prolog failed on {fold_names(blamed)}",
            why="A consequence: Slurm takes a job back when the prolog of one of its nodes fails.",
            owner="node",
            evidence=finding.evidence,
            fix=[you("Start a new allocation without that node.", f"sbatch --exclude={fold_names(blamed)} ...")],
        )


def _by_signs(cluster: Cluster, silence: Silence) -> Finding | None:
    """By its agent's state or end, by how far it came: the first that is seen."""
    return next((finding for sign in _SIGNS if (finding := sign(cluster, silence))), None)


def _exhausted(cluster: Cluster, silence: Silence) -> Finding | None:
    """Its last words, or the signal that ended it, say which limit of the node it had reached."""
    spent = exhausted.of_silence(cluster, silence)
    if spent is None:
        return None
    ended = _killed(cluster, silence) or _ended(cluster, silence)
    finding = _found(
        silence,
        f"{spent.words}; {ended.what}" if ended else f"{spent.words}{_in_step(silence)}",
        FELL_SILENT if silence.last_step else NOTHING_KNOWN,
        spent.owner,
        *spent.fix,
    )
    return replace(finding, evidence=[*finding.evidence, *spent.evidence])


def _suspended(_: Cluster, silence: Silence) -> Finding | None:
    match = _SUSPENDED.match(silence.look.said) if silence.look else None
    if match is None:
        return None
    return _found(
        silence,
        f"Slurm has suspended job {match['job']}: all its processes are stopped{_in_step(silence)}",
        "Nothing of a suspended job runs, on no node, until it is resumed: somebody typed scontrol suspend, or a "
        "job of higher priority took its place (PreemptMode=SUSPEND, gang scheduling).",
        "site",
        you("See who holds its nodes meanwhile.", f"squeue -j {match['job']} -o '%i %T %r'; squeue -w {{node}}"),
        admin("Let it go on.", f"scontrol resume {match['job']}"),
    )


def _stopped(_: Cluster, silence: Silence) -> Finding | None:
    words = _STOPPED.search(silence.detail)
    if not words and not (silence.look and silence.look.state in ("T", "t")):
        return None
    return _found(
        silence,
        f"its agent, ncclcheck's process there, is stopped (state T){_in_step(silence)}",
        FELL_SILENT,
        "job",
        you(
            "See who stopped it (a debugger, Ctrl-Z, a suspended job, a frozen container), and let it go on.",
            "ps -eo pid,stat,wchan:20,args | grep ncclcheck   # on that node",
            "pkill -CONT -f ncclcheck.node.agent   # on that node",
        ),
    )


def _killed(_: Cluster, silence: Silence) -> Finding | None:
    """SIGKILL is mostly the kernel's answer to a lack of memory; ssh passes no signal on (status 255, no word)."""
    words = _KILLED.search(silence.detail)
    name = (words["agent"] or _KILLED_AS[words["task"]]) if words else ""
    if not words and silence.via == "agent" and silence.exit is not None and silence.exit < 0:
        name = signal_name(-silence.exit)
    no_word = bool(silence.last_step) and silence.via == "ssh" and silence.exit == 255 and not silence.detail
    gone = silence.look is not None and silence.look.state == "gone" and bool(silence.last_step)
    if not name and not gone and not (no_word and silence.look is None):
        return None
    how = f"was killed by {name}" if name else "is gone without a word: killed"
    if silence.look is not None and silence.look.oom is False:
        how += ", not by the OOM killer (dmesg)"
    return _found(
        silence,
        f"its agent, ncclcheck's process there, {how}{_in_step(silence)}",
        FELL_SILENT,
        "node",
        *(
            []
            if silence.look is not None and silence.look.oom is False
            else [you("Ask for more memory where the job or container has a limit.", "sbatch --mem=0 ...")]
        ),
        admin(
            "See whether the OOM killer did it, else who kills there: a person, a clean-up by cron, or the epilog "
            "of another job that ends all processes of its user.",
            "dmesg -T | grep -i 'killed process'",
            "grep -rnE 'pkill|killall|kill -' /etc/slurm/ /etc/cron* 2>/dev/null | head",
        ),
    )


def _at_start(_: Cluster, silence: Silence) -> Finding | None:
    """It never spoke, and how far its start came is known; a signal that stopped it is said before."""
    if silence.last_step or silence.exit is not None or not (start := starting.unfinished(silence)):
        return None
    what = f"our agent did not begin to speak{_waited(silence)}: {start.words}"
    return _found(silence, what, NOTHING_KNOWN, "node", *start.fix)


def _in_kernel(_: Cluster, silence: Silence) -> Finding | None:
    if silence.look is None or silence.look.state != "D":
        return None
    where = f" in {silence.look.wchan}" if silence.look.wchan else ""
    return _found(
        silence,
        f"its agent waits in the kernel (state D{where}){_in_step(silence)}",
        "A device or file system does not answer it; a job would wait there too.",
        "node",
        admin("Look at the kernel log for that driver or file system.", _KERNEL_LOG),
    )


def _other_command(_: Cluster, silence: Silence) -> Finding | None:
    """ssh logged in and ended, and nothing that was ours ran."""
    if silence.last_step or silence.via != "ssh" or silence.exit in (None, 255) or silence.detail:
        return None
    words = f" and said {_first_line(silence.printed)!r}" if silence.printed else ""
    return _found(
        silence,
        f"sshd let us in and ran another command than ours, which ended with status {silence.exit}{words}; or its "
        "login shell ended first (exit or set -e in .bashrc)",
        "ncclcheck, like every launcher by ssh, needs an account that may run commands there.",
        "site",
        you("See what a command gives.", TRY, "ssh -o BatchMode=yes {node} echo it runs"),
        you("Let nothing but an interactive shell read what exits.", _ONLY_INTERACTIVE),
        admin(
            "Look for ForceCommand (sshd_config), command= (authorized_keys), or a login shell like nologin.",
            "sshd -T -C user=USER | grep -i forcecommand",
            "getent passwd USER",
        ),
    )


def _restricted(_: Cluster, silence: Silence) -> Finding | None:
    """A command of sshd's choice, or a shell that lets only some commands through, refused ours in its words."""
    words = _RESTRICTED.search(silence.detail)
    if silence.last_step or silence.via != "ssh" or silence.exit in (None, 255) or words is None:
        return None
    return _found(
        silence,
        f"sshd let us in and ran another command than ours, which refused it: {words[0].strip()!r} "
        "(a forced command: command= before the key in authorized_keys, ForceCommand in sshd_config, "
        "or a restricted login shell)",
        "ncclcheck, like every launcher by ssh, needs an account that may run commands there.",
        "site",
        you(
            "Use a key that may run any command, or take command= from its line there.",
            "grep -n 'command=' ~/.ssh/authorized_keys   # on {node}",
            "ssh -o BatchMode=yes {node} echo it runs",
        ),
        admin(
            "Look for ForceCommand (sshd_config) and at the login shell.",
            "sshd -T -C user=USER | grep -i forcecommand   # on {node}",
            "getent passwd USER   # on {node}",
        ),
    )


def _died_at_start(_: Cluster, silence: Silence) -> Finding | None:
    """The shell, the interpreter or a library there said why it ended: in words that are known."""
    known = last_words.meaning(silence.detail) or last_words.by_shell(silence.detail)
    if known is None or silence.exit == 0 or silence.last_step:
        return None
    return _found(
        silence,
        f"Python does not start there: {known.line}: {known.means}",
        "What ends it in a login by ssh ends every rank there: it comes from that node's own files.",
        "node",
        *known.fix,
        *_where_set(known.bears),
    )


def _where_set(bears: str) -> list[Remedy]:
    """Who gives a variable to each login on a node."""
    if not bears:
        return []
    names = "LD_|PYTHON|MALLOC_|GLIBC_|OMP_|TMPDIR"
    return [you("Find where it is set on that node.", f"ssh {{node}} \"grep -rsnE '{names}' {STARTUP_FILES}\"")]


def _no_word(_: Cluster, silence: Silence) -> Finding | None:
    """ssh says 255 and nothing more where sshd opens no session, and where a signal ended the command."""
    if silence.last_step or silence.via != "ssh" or silence.exit != 255 or silence.detail or silence.look:
        return None
    return _found(
        silence,
        "ssh ended with status 255 and no word: its shell or Python there most likely died by a signal (a library "
        "that every process loads, ulimit -t or -s), or sshd opened no session (MaxSessions)",
        NOTHING_KNOWN,
        "node",
        you(
            "See whether anything runs there (`exit-signal` is a process that died), and under which limits.",
            "ssh -v {node} true",
            "ssh {node} 'ulimit -a'",
        ),
        admin(
            "Look at its console for what every process there loads, and at what sshd allows and says.",
            "cat /etc/ld.so.preload",
            "grep -rsnE 'LD_(PRELOAD|AUDIT|LIBRARY)' /etc/environment /etc/ssh/sshd_config /etc/profile.d ~/.ssh",
            "sshd -T | grep -i maxsessions",
            "journalctl -u ssh -u sshd | tail -20",
        ),
    )


def _up_elsewhere(cluster: Cluster, silence: Silence) -> Finding | None:
    """Its kernel answers, and ssh's connection is gone: the network of ssh, or a machine that stands still."""
    lost = ssh_way.lost(cluster, silence)
    return (
        _found(silence, f"{lost.words}{_in_step(silence)}", FELL_SILENT, lost.owner, *lost.fix) if lost else None
    )


def _ended(_: Cluster, silence: Silence) -> Finding | None:
    """What spoke for the node has ended, with words that are not known."""
    if silence.exit is None or not silence.via:
        return None
    last = f": {_last_line(silence.detail)}" if silence.detail else " and no word"
    when = _in_step(silence) or ", before its agent had spoken"
    return _found(
        silence,
        f"{_OF[silence.via]} ended with status {silence.exit}{last}{when}{starting.tight(silence.look)}",
        FELL_SILENT if silence.last_step else NOTHING_KNOWN,
        "node",
        *_loosen(silence),
        you("Do the same by hand on that node, and see what it says.", "python3 -m ncclcheck env", *_try(silence)),
    )


def _loosen(silence: Silence) -> list[Remedy]:
    """Where a limit of each login there is too small for a program."""
    if not starting.tight(silence.look):
        return []
    files = f"{STARTUP_FILES} /etc/security/limits.conf /etc/security/limits.d"
    return [you("Take that limit out of what each login reads.", f"ssh {{node}} \"grep -rsn 'ulimit' {files}\"")]


def _turned_elsewhere(_: Cluster, silence: Silence) -> Finding | None:
    """`exec >login.log 2>&1` in a startup file: what began there speaks into that file."""
    if silence.last_step or not silence.mute or silence.detail:
        return None
    return _found(
        silence,
        "ssh goes in, and its channel brings nothing back: what runs there has its output elsewhere, as by "
        "`exec >FILE` or `exec script` in a startup file of the login shell (.bashrc, .profile, /etc/bash.bashrc)",
        "The agent may run there, and nobody hears it; mpirun and every launcher by ssh would wait here too.",
        "job",
        you(
            "See that a command's output comes back: this must print here.",
            "ssh -o BatchMode=yes {node} 'echo here'",
            _ONLY_INTERACTIVE,
        ),
        admin(
            "At its console: see which startup file turns the output away, and take that line out.",
            "grep -nE '^ *exec|script |tee ' ~USER/.bashrc ~USER/.profile ~USER/.bash_profile /etc/bash.bashrc "
            "/etc/profile /etc/profile.d/*",
        ),
    )


def _on_stderr(_: Cluster, silence: Silence) -> Finding | None:
    """`exec 1>&2`: all that should come as output comes as errors."""
    if silence.last_step or "its agent's words come on its error output" not in silence.detail:
        return None
    return _found(
        silence,
        "its agent runs there, and what it says comes on its error output: a startup file of the login shell "
        "turns output into errors (exec 1>&2, exec >&2 in .bashrc, .profile, /etc/bash.bashrc)",
        "Every launcher by ssh that reads a command's output waits in vain: mpirun, rsync and scp too.",
        "job",
        you(
            "Take that line out; this shows it, and must print nothing.",
            f"ssh {{node}} \"grep -rsnE '^ *exec .*>&' {STARTUP_FILES}\" 2>&1",
            "ssh -o BatchMode=yes {node} 'echo here' >/dev/null",
        ),
    )


def _swallowed(_: Cluster, silence: Silence) -> Finding | None:
    if silence.last_step or silence.via != "ssh" or silence.look is None or silence.look.came != "in":
        return None
    return _found(
        silence,
        f"ssh is let in, but its login shell did not run our command{_waited(silence)}: ~/.ssh/rc or "
        "/etc/ssh/sshrc, which sshd runs first, or a startup file of the shell does not come to its end",
        "A command by ssh first passes these; mpirun would hang here too.",
        "job",
        you(
            "Let .bashrc, .profile or .cshrc wait for nothing and exec nothing where there is no terminal.",
            "ssh -o BatchMode=yes {node} true   # must end at once",
            _ONLY_INTERACTIVE,
        ),
        you(
            "At its console, or by sftp, which does not run it: see ~/.ssh/rc, and take it away while it hangs.",
            "echo 'ls -l .ssh/rc' | sftp -b - {node}",
            "echo 'rename .ssh/rc .ssh/rc.off' | sftp -b - {node}",
        ),
        admin(
            "Else a home directory (NFS) that does not answer keeps the shell waiting.",
            "df ~USER",
        ),
    )


def _slow_login(_: Cluster, silence: Silence) -> Finding | None:
    if silence.last_step or silence.via != "ssh" or silence.exit is not None or silence.look is None:
        return None
    if silence.look.came == "ran":
        return _found(
            silence,
            f"a command runs there by ssh, but our agent did not begin to speak{_waited(silence)}",
            NOTHING_KNOWN,
            "node",
            you(
                "See how long this Python takes to start there: a slow shared file system shows here.",
                "time ssh {node} python3 -c 'import ncclcheck.node.agent'",
            ),
            you("If it is quick: let its shell's startup files read nothing from stdin.", _ONLY_INTERACTIVE),
        )
    return _found(
        silence,
        f"ssh neither came in nor was refused{_waited(silence)}",
        NOTHING_KNOWN,
        "node",
        you("See where the login waits.", "ssh -v -o BatchMode=yes {node} true"),
        admin(
            "A login that hangs waits for PAM, LDAP or DNS on that node, or for the machine.",
            "journalctl -u ssh -u sshd | tail -20",
        ),
    )


def _never_came(cluster: Cluster, silence: Silence) -> Finding | None:
    match = _NEVER_CAME.search(silence.detail)
    rank = silence.node.removeprefix("node rank ")
    meeting = cluster.job.meeting
    if not match or not rank.isdigit() or meeting is None:
        return None
    host, _, port = meeting.endpoint.rpartition(":")
    host = next((address for address in meeting.addresses if ":" not in address), host)  # it may not know the name
    place = f"--nodes {cluster.job.nodes_asked} --node-rank {rank} --rdzv-endpoint {host}:{port}"
    return _found(
        silence,
        f"it did not join within {match['seconds']} s: it was late or not started; or nothing passes from it to "
        "any address of this node: then that node alone knows why, and says so there (RUN010)",
        "torchrun, started like this, would wait for it too.",
        "job",
        you(
            "If it was not started, start the same command there, while this one waits; --wait S waits longer.",
            f"ncclcheck {cluster.command} {place}",
        ),
        you(
            "If it was, read its own report: the first finding names the cause. This shows it again within 30 s.",
            f"ncclcheck env {place} --wait 10   # on that node",
        ),
        you(
            "If it ends there at once, a variable of that shell alone may end Python: start it without them.",
            "env | grep -E '^(LD_|PYTHON|MALLOC_|GLIBC_)'",
            "env $(env | grep -oE '^(LD_|PYTHON|MALLOC_|GLIBC_)[A-Z0-9_]*' | sed 's/^/-u /') "
            f"ncclcheck {cluster.command} {place}",
        ),
    )


_SIGNS = (
    *(
        _suspended,
        _exhausted,
        _stopped,
        _killed,
        _at_start,
        _in_kernel,
        _other_command,
        _restricted,
        _died_at_start,
        _no_word,
    ),
    *(_up_elsewhere, _ended, _on_stderr, _turned_elsewhere, _swallowed, _slow_login, _never_came),
)
_OF = {"agent": "its process", "ssh": "ssh", "srun": "srun"}


def _unexplained(silence: Silence) -> Finding:
    """Exactly what was seen, and how to see more. Only a probe that was the last word points at a driver."""
    probing = silence.last_step.startswith("probes ")
    more = (
        admin("A probe never ended: look at its kernel log for a hung driver or file system.", _KERNEL_LOG)
        if probing
        else you(
            "See whether the node answers and what ncclcheck does there.",
            "ps -eo pid,stat,wchan:20,args | grep ncclcheck",
        )
    )
    if not silence.last_step:
        what = f"it never answered{_waited(silence) or f' in {silence.since_s:.0f} s'}"
    elif silence.step_s is None:
        what = f"it fell silent {silence.since_s:.0f} s before the end; its last step was {silence.last_step!r}"
    else:
        what = f"it fell silent {silence.since_s:.0f} s before the end{_in_step(silence)}"
    return _found(
        silence,
        what,
        NOTHING_KNOWN if not silence.last_step else FELL_SILENT,
        "node",
        more,
        you("See what its own report says.", "ncclcheck env -v   # on that node"),
    )


def _found(silence: Silence, what: str, why: str, owner: Owner, *fix: Remedy) -> Finding:
    safe = shlex.quote(silence.node)
    return unknown(
        Where(node=silence.node),
        what,
        why=why,
        owner=owner,
        evidence=_evidence(silence, words=True),
        fix=[
            replace(remedy, commands=[line.replace("{node}", safe) for line in remedy.commands]) for remedy in fix
        ],
    )


def _evidence(silence: Silence, *, words: bool = False) -> list[Evidence]:
    """All that was seen of it; words: also what was said beside the channel."""
    look, all_evidence = silence.look, [seen("last step", silence.last_step or "none: its agent never spoke")]
    if words and silence.detail:
        all_evidence.append(seen("its process" if silence.via in ("", "agent") else silence.via, silence.detail))
    if silence.printed:
        all_evidence.append(seen("printed before our agent spoke", silence.printed))
    if silence.exit is not None:
        all_evidence.append(seen(f"exit status of {_OF.get(silence.via, silence.via)}", str(silence.exit)))
    if look is not None:
        all_evidence.append(seen("a second look", _looked(silence)))
    if silence.start and not silence.last_step:
        came = ", ".join(f"{each.step} after {each.at_s:g} s" for each in silence.start)
        all_evidence.append(seen("steps of its agent's start", came))
    return all_evidence


def _looked(silence: Silence) -> str:
    """What another command on the same way saw."""
    assert silence.look is not None
    look = silence.look
    if look.said:
        return f"Slurm says of the node: {look.said}"
    came = {"no": "no other command came through either", "in": "let in, but no command ran"}.get(look.came)
    state = (
        f"its agent is {look.state if look.state == 'gone' else f'in state {look.state}'}" if look.state else ""
    )
    waits = f", waiting in {look.wchan}" if look.wchan and look.state != "gone" else ""
    return came or (f"{state}{waits}" if state else "another command runs there")


def _in_step(silence: Silence) -> str:
    """Which step it was in, and for how long it was heard in it."""
    if not silence.last_step:
        return ""
    if silence.step_s is None:
        return f", in {silence.last_step!r}"
    return f", {max(0.0, silence.step_s - silence.since_s):.0f} s into {silence.last_step!r}"


def _waited(silence: Silence) -> str:
    return "" if silence.waited_s is None else f" in {silence.waited_s:.0f} s"


def _try(silence: Silence) -> tuple[str, ...]:
    return (TRY,) if silence.via == "ssh" else ()


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[:120]


def _last_line(text: str) -> str:
    return (last_words.telling(text) or text.strip().splitlines())[-1].strip()[:200]


def _hurried(command: str, silent: list[Silence]) -> Finding:
    names = fold_names(silence.node for silence in silent)
    return unknown(
        Where(),
        f"--deadline is too short: it came before the facts of {names} were there",
        why="Reading the facts takes seconds on a healthy node, so this says nothing of the node.",
        owner="job",
        evidence=[
            seen(f"last step of {silence.node}", silence.last_step or "none") for silence in silent[:_MOST_TOLD]
        ],
        fix=[you("Give it more time, or leave the option out.", f"ncclcheck {command} --deadline 60")],
    )
