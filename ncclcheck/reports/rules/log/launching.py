"""LOG176 and LOG177: Horovod's ranks that do not come, and launchers that ssh does not let in."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.reports.judgement.findings import Finding, Where, admin, you
from ncclcheck.reports.subjects.logs.logged import cause, events_of, log_rule
from ncclcheck.reports.text.words.fold import fold_numbers


@log_rule("LOG176", "Horovod's ranks submit the same tensors")
def same_tensors(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    Some ranks wait for tensors that others never submitted.

    ## Why it matters
    Horovod waits without end: the job stands still, and only its stall inspector says which ranks are missing.

    ## Seen as
    hangs

    ## How we know
    `One or more tensors were submitted ... by subset of ranks and are waiting for remainder of ranks`, and below
    it `[missing ranks: 3, 6]` or `Missing ranks: 0: [broadcast.x]`. Ranks that are missing for different tensors
    wait for each other: they took different branches. Ranks that are missing for all tensors have ended, raised,
    or still do something else.

    ## Fix
    - **you** as many steps on each rank (`steps // hvd.size()`, `hvd.join()`); what all have to decide alike (is
      there a checkpoint?), rank 0 decides and tells the others.

    ## Source
    Horovod documentation, Stall check and Join; horovod/common/stall_inspector.cc.
    """
    stalls, missing = events_of(logs, "horovod-stall"), events_of(logs, "horovod-missing")
    if not stalls and not any({"ranks", "ready"} & {*event.fields} for event in missing):
        return
    groups = {frozenset(_ranks(event)) for event in missing} - {frozenset()}
    ranks = sorted({rank for group in groups for rank in group})
    differ = any(
        not (group <= other or other <= group) for group in groups for other in groups
    )  # fewer: some came since
    who = f"rank{'s' * (len(ranks) > 1)} {fold_numbers(ranks)}" if ranks else "some ranks"
    yield cause(
        [*stalls[:1], *missing],
        f"{who} wait for each other in different collectives of Horovod" if differ
        else f"{who} did not hand in what Horovod's other ranks wait for",
        why="They took different branches of the program." if differ
        else "They have ended (fewer batches), raised an exception, or do something else meanwhile.",
        owner="job",
        at=Where(rank=ranks[0]) if len(ranks) == 1 else Where(),
        fix=[
            you("Confirm: see where these ranks are.", "py-spy dump --pid PID"),
            you("Give each rank as many steps, or let the last ones wait with hvd.join()."),
            you("Let rank 0 alone decide by a file or a value (is there a checkpoint?), and broadcast the "
                "answer."),
        ],
    )  # fmt: skip


def _ranks(event: LogEvent) -> list[int]:
    listed = event.fields.get("ranks") or event.fields.get("ready") or event.fields.get("alone", "")
    named = [int(number) for number in listed.replace(",", " ").split()]
    return sorted({*range(max(named) + 1)} - {*named}) if "ready" in event.fields else named


@log_rule("LOG177", "the launcher can log in to every node")
def launcher_logs_in(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    ssh rejected the launcher's login: no key is accepted, or the host's own key is not known.

    ## Why it matters
    DeepSpeed (pdsh), mpirun and Horovod start their processes by ssh, on the first node too, and cannot answer a
    question for a password. Nothing starts, or only some nodes do.

    ## How we know
    ssh's `Permission denied (publickey,password)` and `Host key verification failed`; pdsh's `ssh exited with
    exit code 255`, and DeepSpeed's check `ssh -o PasswordAuthentication=no HOST hostname` that returned 255,
    which stand for any failure of ssh.

    ## Fix
    - **you** `ssh-copy-id HOST` for every host of the hostfile, the launching one and localhost included; on one
      node start without ssh (`torchrun`, no hostfile).
    - **admin** sshd that accepts keys; the same home folder on all nodes.

    ## Source
    ssh(1), Exit status; DeepSpeed documentation, Getting started, Resource configuration (multi-node); pdsh(1).
    """
    denied = [
        event for event in events_of(logs, "ssh-denied") if "git@" not in event.text
    ]  # who asks git for a version
    left = events_of(logs, "ssh-left")
    events = [*denied, *left]
    if not events:
        return
    host = next((name for event in events if (name := event.fields.get("host") or event.fields.get("to"))), "")
    key = any("key" in event.fields for event in denied)
    target = quote(host or "HOST")
    to = f" on {host}" if host else ""
    yield cause(
        events,
        f"ssh does not know the key of the host{to}" if key
        else f"ssh does not let the launcher in{to} without a password" if denied
        else f"ssh{to} failed (255): most often it lets nobody in without a password",
        why="The launcher starts its processes by ssh, on its own node too, and answers no questions.",
        owner="job",
        at=Where(node=host or None),
        fix=[
            you("Confirm: it must print the name and ask for nothing.",
                f"ssh -o BatchMode=yes {target} hostname"),
            you("Let your key in on every host of the hostfile, this one included.",
                *([] if key else ["test -f ~/.ssh/id_ed25519 || ssh-keygen -t ed25519"]),
                f"ssh-keyscan {target} >> ~/.ssh/known_hosts" if key else f"ssh-copy-id {target}"),
            you("On one node start without ssh.", "torchrun --standalone --nproc-per-node=8 train.py"),
            admin("Look at what sshd refuses.", "journalctl -u ssh -u sshd -n 20"),
        ],
    )  # fmt: skip
