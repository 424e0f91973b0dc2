"""RUN013: what the job's own srun meets, where ours gets round it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ncclcheck.probes.facts import Cluster, PlainStep, variables
from ncclcheck.reports.judgement.findings import Finding, State, Where, fail, seen, warn, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.nccl.variables import STARTUP_FILES

# What is set for a job, by the one who starts it: without these its ranks meet nobody, or run with other settings.
_OF_JOB = ("MASTER_", "NCCL_", "GLOO_", "PET_", "WORLD_SIZE")
_MOST_NAMED = 8  # variables that are named; chosen
_EXPORT = "SLURM_EXPORT_ENV"


@rule("RUN013", "a job step starts promptly, with the job script's environment", worst=State.FAIL, over="")
def plain_step(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Whether `srun` without any option starts in this allocation at once, and hands the variables of this shell to
    its tasks.

    ## Why it matters
    ncclcheck starts its own agents with `--overlap` and `--export=ALL`, so it runs where the job would not. A
    step keeps its cores, memory and GPUs until it ends: a monitor or a server that a script starts by
    `srun ... &` lets every later srun of the script wait, for ever and with one line on stderr. And
    SLURM_EXPORT_ENV=NONE, which `sbatch --export=NONE` and the settings of some sites leave in the job, makes srun
    start tasks without MASTER_ADDR, NCCL_* and PATH.

    ## Seen as
    hangs, slow

    ## How we know
    One `srun --immediate=4` beside ncclcheck's own step, which runs a shell that lists the names of its
    variables and ends. `squeue --steps` names the other steps. Where preflight is given a command that begins
    with srun, its `--overlap` and `--export` are tried, and what the job needs and lacks is a failure. Else it
    is not known how the job will be started (at sites that hand nothing over many type `srun --export=ALL`): it
    is a warning then, and only where this shell has MASTER_*, NCCL_*, GLOO_*, PET_* or WORLD_SIZE set. Nothing
    is reported where neither an answer nor a refusal came within 10 s, and none of variables that Slurm itself
    sets. A join in the shell of an allocation tries it too; a task of a step does not: its own step holds what
    an srun needs.

    ## Fix
    - **you**: end the other step, or start it with `srun --overlap`, so that it leaves the rest its resources.
    - **you**: `unset SLURM_EXPORT_ENV` at the top of the job script, or `srun --export=ALL`.

    ## Source
    srun(1), --overlap, --export and INPUT ENVIRONMENT VARIABLES; sbatch(1), --export; eth-cscs/DLA-Future#337,
    llnl/smith#688 and ARCHER2-HPC/archer2-docs#531 (steps that wait for another step of their job).
    """
    step = cluster.job.step
    if step is None:
        raise NothingToJudge("no step of Slurm was tried")
    if not cluster.nodes:
        raise NothingToJudge("its ground failed: RUN001")
    by_us = cluster.job.launcher == "slurm"
    if step.outcome == "waits":
        yield _waits(step, fail if by_us or step.typed else warn)
    elif step.outcome == "refused":
        if by_us or step.typed:
            yield _refused(step)
    elif step.lost if step.typed else any(name.startswith(_OF_JOB) for name in step.lost):
        set_to = [variables(node)[_EXPORT] for node in cluster.nodes if _EXPORT in variables(node)]
        yield _lost(step, set_to[0] if set_to else "")


def _waits(step: PlainStep, level: Callable[..., Finding]) -> Finding:
    others = ", ".join(f"{step.id} ({step.name} on {step.nodes})" for step in step.others[:_MOST_NAMED])
    return level(
        Where(),
        f"srun does not start: step {others} of this job holds what it needs",
        why="A step keeps its cores, memory and GPUs to itself until it ends; the next srun waits, for ever.",
        owner="job",
        evidence=[seen("srun --immediate=4", step.said), seen("squeue --steps", others)],
        fix=[
            you("Let the job's srun share what that step holds.", "export SLURM_OVERLAP=1"),
            you(
                "Or end that step, if nobody needs it.",
                *(f"scancel {step.id}" for step in step.others[:_MOST_NAMED]),
            ),
            you("Or let the script start it so that it holds nothing.", "srun --overlap ... &"),
        ],
    )


def _refused(step: PlainStep) -> Finding:
    return warn(
        Where(),
        f"srun without options starts nothing: {step.said}",
        why="The job's variables act as srun options. ncclcheck's own step clears them; other steps do not.",
        owner="job",
        evidence=[seen("srun --immediate=4", step.said)],
        fix=[
            you(
                "Correct or unset the variable that asks for it, or say it otherwise as an option of srun.",
                "env | grep -E '^(SLURM|SRUN)_'",
            )
        ],
    )


def _lost(step: PlainStep, set_to: str) -> Finding:
    needed = [name for name in step.lost if name.startswith(_OF_JOB)]
    first = sorted(step.lost, key=lambda name: name not in needed)[:_MOST_NAMED]
    more = f" and {len(step.lost) - len(first)} more" if len(step.lost) > len(first) else ""
    by = f", for {_EXPORT}={set_to} is set" if set_to and set_to != "ALL" else ""
    unknown = "" if step.typed else "; whether the job is started so is not known"
    return (fail if needed and step.typed else warn)(
        Where(),
        f"srun does not hand variables of this shell to its tasks{by}: {', '.join(first)}{more}",
        why=f"Ranks start without what the script has set for them: no MASTER_ADDR, no NCCL_*, no PATH{unknown}.",
        owner="job",
        evidence=[seen("variables of the shell that a task of srun lacks", ", ".join(step.lost[:40]))],
        fix=[
            you(
                "Take the setting away at the top of the job script, before its first srun.",
                "unset SLURM_EXPORT_ENV",
            ),
            you("Or say it with every srun.", "srun --export=ALL ..."),
            you(
                "See who sets it: sbatch --export, SBATCH_EXPORT, or a startup file.",
                f"grep -rsnE 'S(LURM_EXPORT_ENV|BATCH_EXPORT)' {STARTUP_FILES}",
            ),
        ],
    )
