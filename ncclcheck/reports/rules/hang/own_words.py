"""HNG026, HNG027: what the ranks' own logs say, and what could not be seen of a job that hangs."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, Measurements
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, Where, note, seen, warn, you
from ncclcheck.reports.judgement.rule import all_rules
from ncclcheck.reports.subjects.live import words
from ncclcheck.reports.subjects.live.witnesses import SeenJob, witness_rule
from ncclcheck.reports.subjects.logs.answer.story import diagnosis
from ncclcheck.reports.text.words.fold import many

_MOST_TOLD = 3  # causes of a log, and gaps of a host: chosen, the rest is counted


@witness_rule("HNG026", "NCCL's own log of a running job names no failure", worst=State.WARN)
def its_log_names_no_failure(seen_job: SeenJob) -> Iterator[Finding]:
    """
    ## What
    The file in which a rank's NCCL writes (NCCL_DEBUG_FILE) names a cause, by the rules of `ncclcheck logs`.

    ## Why it matters
    NCCL often says what failed long before torch's watchdog ends the job: a completion with an error, a peer that
    closed, a plugin that is not there.

    ## Seen as
    dies

    ## How we know
    The last 256 KiB of the file of each rank on the hosts that were looked at, where it was written since the rank
    began; judged as `ncclcheck logs FILE` does.

    ## Fix
    - **you** read the page of the check that is named: `ncclcheck explain CODE`.

    ## Source
    NCCL user guide, NCCL_DEBUG_FILE.
    """
    from ncclcheck.reports.judgement.judge import judge  # noqa: PLC0415  (it imports all rules)

    record = seen_job.record
    if record is None or record.logs is None:
        return
    cluster = Cluster(command="logs", measurements=Measurements(logs=record.logs))
    verdicts = judge(cluster, [rule for rule in all_rules() if rule.code.startswith("LOG")])
    answer = diagnosis(record.logs, verdicts)
    for cause in answer.causes[:_MOST_TOLD] if answer else []:
        yield warn(
            cause.where,
            f"NCCL's log: {cause.what} ({cause.code})",
            why=f"{cause.confidence}: {cause.reason}",
            owner="job",
            evidence=[seen(cause.place or cause.code, cause.what)],
            fix=[you("Read its page.", f"ncclcheck explain {cause.code}")],
        )


@witness_rule("HNG027", "what would name the rank can be seen", worst=State.NOTE)
def it_can_be_seen(seen_job: SeenJob) -> Iterator[Finding]:
    """
    ## What
    What of a job that seems to stand still could not be seen, and the line that makes it visible the next time:
    NCCL's RAS, Flight Recorder, GPUs.

    ## Why it matters
    /proc alone shows which rank sleeps or computes, not which collective each is in. What is not switched on
    before a hang cannot be asked for in it.

    ## Seen as
    hangs

    ## How we know
    Why RAS was not asked or did not answer; which ranks gave no record; why NVML reported nothing.

    ## Fix
    - **you** add the line to the job's environment. The pipe costs nothing until it is written to.

    ## Source
    NCCL user guide, NCCL_RAS_ENABLE and NCCL_RAS_ADDR; torch ProcessGroupNCCL.hpp (environment variables).
    """
    if seen_job.judged.kind in ("stopped", "missing"):
        return
    gaps = [*_gaps(seen_job)]
    if gaps:
        yield note(
            Where(),
            f"{seen_job.judged.job.name}: not seen: {', '.join(what for what, _, _ in gaps)}",
            evidence=[seen(what, why) for what, why, _ in gaps],
            fix=[fix for _, _, fix in gaps if fix is not None],
        )


def _gaps(seen_job: SeenJob) -> Iterator[tuple[str, str, Remedy | None]]:
    nccl = any("nccl" in rank.libraries for rank in seen_job.judged.job.ranks)
    ras = seen_job.ras
    if ras is not None and ras.problem:
        yield "NCCL's RAS", ras.problem, _ras_line(ras.problem)
    if nccl and (seen_job.record is None or seen_job.record.flight is None):
        yield (
            "Flight Recorder",
            "no file of it, no worker server, no pipe that a rank holds open",
            words.record_next(),
        )
    elif seen_job.record is not None and seen_job.record.flight is not None:
        unread = [refused.why for refused in seen_job.record.flight.refused]
        if unread:
            yield f"{len(unread)} records of Flight Recorder", unread[0], None
    for host in seen_job.hosts:
        if host.gpu_problem:
            yield f"GPUs of {host.host}", host.gpu_problem, None
        mine = [gap.why for gap in host.not_had if (gap.job, gap.scope) == seen_job.key]
        if mine:
            more = f"; {len(mine) - _MOST_TOLD} more" if len(mine) > _MOST_TOLD else ""
            yield f"{many(len(mine), 'answer')} of {host.host}", "; ".join(mine[:_MOST_TOLD]) + more, None


def _ras_line(problem: str) -> Remedy | None:
    if "switched off" in problem:
        return you("Next time: leave RAS on.", "unset NCCL_RAS_ENABLE")
    if "namespace" in problem:
        return you("Look from inside the container.", "ncclcheck hang --via 'docker exec -i NAME'")
    if "crash" in problem or "not known" in problem:
        return you("Ask it all the same, where the job is lost anyway.", "ncclcheck hang --ras always")
    if "listens" in problem:
        return you("Next time: give RAS of each job a port of its own.", "export NCCL_RAS_ADDR=localhost:28029")
    return None
