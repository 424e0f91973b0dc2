"""Rules about what starts the ranks: what torchrun does to tcp://, and what spawn hands to each rank."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster
from ncclcheck.reports.judgement.findings import Finding, Where, fail, fine, note, seen, warn, you
from ncclcheck.reports.judgement.findings import State as S
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.text.words.fold import size

_JOBS = ("bench", "smoke")
# Bytes that spawn pickles for each rank; chosen. 200,000 dicts of 55 MiB took 0.16 s on a 2026 core: 1 GiB
# takes 3 s for each rank anew, and each rank unpickles it and holds it once more.
_MUCH = 2**30
_REFUSED = 2**32  # bytes; pickle protocol 3, the default until Python 3.7, holds no longer object
_WORTH_A_NOTE = 2**24  # bytes; chosen: the smallest size at which 8 ranks hold more than 100 MiB of copies


@rule(
    "INI007",
    "torchrun and the init method fit together",
    worst=S.FAIL,
    over="",
    commands=_JOBS,
    gates_job="by any failure",
)
def fits(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Whether a script with `init_method="tcp://HOST:PORT"` is started by torchrun.

    ## Why it matters
    torchrun sets TORCHELASTIC_USE_AGENT_STORE=True, and under it rank 0 opens no store of its own: torch takes
    every rank, rank 0 too, for a client of the launcher's store. Nobody listens at HOST:PORT, and all ranks
    wait until the time-out with "failed to connect to host HOST:PORT", which looks like a firewall.

    ## Seen as
    hangs

    ## How we know
    How the ranks of this run are started and how they find each other, as `--start` and `--init-method` say.
    Seen with torch 2.13: two ranks under torchrun and tcp:// with a port of its own never meet; without
    torchrun they do.

    ## Fix
    - **you** `env://` under torchrun, or leave init_method out; or start the script by mp.spawn, or once a rank.

    ## Source
    torch/distributed/rendezvous.py, `_torchelastic_use_agent_store` and `_create_c10d_store`;
    torch/distributed/elastic/agent/server/local_elastic_agent.py.
    """
    job = cluster.job
    if not job.init_method:
        raise NothingToJudge("env://")
    if job.start == "torchrun" and job.init_method.startswith("tcp:"):
        yield fail(
            Where(),
            f"under torchrun no rank opens a store at {job.init_method}: all ranks wait for it",
            why="torchrun lets rank 0 know that the launcher has a store, so rank 0 opens none at this address.",
            owner="job",
            evidence=[
                seen("--start, --init-method", f"torchrun, {job.init_method}"),
                seen("torchrun sets", "TORCHELASTIC_USE_AGENT_STORE=True"),
            ],
            fix=[
                you("Under torchrun let init_process_group find the store by itself.", "init_method='env://'"),
                you("Or start the script without torchrun, and test it so.", "--start spawn"),
            ],
        )
        return
    yield fine(Where(), f"{job.start} with {job.init_method}")


@rule("INI008", "what spawn pickles for each rank is small", worst=S.WARN, over="", commands=("smoke",))
def pickled(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    How many bytes of your model and dataset `mp.spawn(fn, args=(model, dataset))` would pickle, and how long it
    takes. Tensors are not among them: torch shares their memory with the ranks.

    ## Why it matters
    spawn pickles its arguments once for each rank, one rank after the other, and each rank holds a copy of its
    own: a dataset of 2 GB costs 8 ranks 16 GB of memory and many seconds before the first step, on every start.
    What cannot be pickled ends the start.

    ## How we know
    With `--start spawn` each node's first rank pickles the user's model and dataset once, into nothing, and
    counts. A note from 16 MiB, a warning from 1 GiB on.

    ## Fix
    - **you** build model and dataset inside the function that spawn calls, from a path or a name.

    ## Source
    Python documentation, multiprocessing, "spawn"; pickle: protocol 4, the default since Python 3.8, has no limit
    of 4 GiB, protocol 3 has: "cannot serialize a bytes object larger than 4 GiB".
    """
    arguments = cluster.measurements.pickled
    if not arguments:
        raise NothingToJudge("nothing of yours is started by spawn")
    heavy = [part for part in arguments if part.error or part.bytes >= _WORTH_A_NOTE]
    ranks = cluster.job.ranks // max(1, cluster.job.nodes_answered)
    for argument in heavy:
        fix = [
            you(
                "Build it inside the function that spawn calls, and hand over a path or a name.",
                "def run(rank, path): dataset = MyDataset(path)   # mp.spawn(run, args=(path,))",
            )
        ]
        if argument.error:
            yield note(
                Where(),
                f"your {argument.what} cannot be an argument of mp.spawn: {argument.error}",
                why="spawn pickles its arguments for each rank; this run built it in each rank instead.",
                owner="job",
                evidence=[seen("pickle", argument.error)],
                fix=fix,
            )
            continue
        yield (warn if argument.bytes >= _MUCH else note)(
            Where(),
            f"mp.spawn pickles {size(argument.bytes)} of your {argument.what} for each rank, "
            f"{_lasts(argument.seconds)} a rank",
            why=f"A node of {ranks} ranks pickles it {ranks} times in turn and holds as many copies."
            + (" Python 3.7 and older refuse more than 4 GiB." if argument.bytes >= _REFUSED else ""),
            owner="job",
            evidence=[
                seen("pickle, once, without tensors", f"{argument.bytes} bytes in {argument.seconds:.2f} s")
            ],
            fix=fix,
        )
    if not heavy:
        yield fine(Where(), f"{size(sum(part.bytes for part in arguments))} a rank")


def _lasts(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{max(1, round(seconds * 1e3))} ms"
