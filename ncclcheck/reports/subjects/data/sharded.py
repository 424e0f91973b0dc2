"""What emulated ranks saw of the user's dataset, for rules, and the words for it."""

from __future__ import annotations

from ncclcheck.probes.facts import Cluster
from ncclcheck.probes.facts.data import Sharding
from ncclcheck.reports.judgement.findings import Remedy, you
from ncclcheck.reports.judgement.rule import NothingToJudge
from ncclcheck.reports.subjects.data.examined import why_not

OTHERS_DO = (
    "Lightning, Accelerate and the transformers Trainer put a DistributedSampler in themselves: with one of them "
    "this is as it should be."
)


def shardings(cluster: Cluster, *, several: bool = True) -> list[tuple[str, Sharding]]:
    """Node by node. several: only where ranks can be compared. Raises NothingToJudge."""
    looked = [
        (report.node, report.sharding) for report in cluster.measurements.data if report.sharding is not None
    ]
    if not looked:
        raise NothingToJudge(why_not(cluster.measurements.data, "sharding"))
    compared = [(node, sharding) for node, sharding in looked if sharding.ranks > 1 or not several]
    if not compared:
        raise NothingToJudge(looked[0][1].unjudged or "one rank shares with nobody")
    return compared


def nothing_of(looked: list[tuple[str, Sharding]], otherwise: str) -> NothingToJudge:
    """Why none of them can be judged."""
    return NothingToJudge(next((sharding.unjudged for _, sharding in looked if sharding.unjudged), otherwise))


def joined(numbers: list[int]) -> str:
    """`0 and 1`."""
    return " and ".join(map(str, numbers))


def by_sampler(sharding: Sharding) -> list[Remedy]:
    """The lines that share a dataset out among the ranks."""
    return [
        you(
            "Share the samples out among the ranks, and set the epoch of the sampler.",
            "sampler = torch.utils.data.distributed.DistributedSampler(dataset)",
            f"loader = DataLoader(dataset, batch_size={sharding.batch or 'BATCH'}, sampler=sampler)",
            "sampler.set_epoch(epoch)  # at the start of each epoch",
        )
    ]


def by_local_rank(sharding: Sharding) -> list[Remedy]:
    """What the factory asks for is the number of the rank on its node, and never that in the job."""
    asked = {name for share in sharding.shares for name in share.asked}
    if "LOCAL_RANK" not in asked or asked & {"RANK", "dist.get_rank", "SLURM_PROCID"}:
        return []
    return [
        you(
            "Share the samples out by the rank in the whole job, not on its node.",
            'rank = int(os.environ["RANK"])  # or torch.distributed.get_rank(); LOCAL_RANK is for the device only',
        )
    ]


_WORKER = (
    "    info = torch.utils.data.get_worker_info()",
    "    worker, workers = (info.id, info.num_workers) if info else (0, 1)",
)
_RANK = ('    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))',)


def by_stream(dataset: str = "", *, ranks: bool = True, workers: bool = True) -> list[Remedy]:
    """The lines that share a stream out among the workers of all ranks. dataset: its type, `datasets.X`.

    ranks, workers: which of them do not share it out yet.
    """
    if dataset.startswith("datasets."):
        return [
            you(
                "Let datasets share it out among the ranks; it does so among workers itself, where it has as many "
                "shards (dataset.num_shards) as there are workers of all ranks.",
                "from datasets.distributed import split_dataset_by_node",
                "rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()",
                "dataset = split_dataset_by_node(dataset, rank=rank, world_size=world)",
            )
        ]
    if dataset.startswith("webdataset."):
        return [
            you(
                "Let webdataset share the shards out among the ranks; have at least as many shards as workers.",
                "wds.WebDataset(urls, nodesplitter=wds.split_by_node)  # workersplitter is split_by_worker",
            )
        ]
    who = "worker of each rank" if ranks and workers else "rank" if ranks else "worker"
    done = "" if ranks and workers else " of what its rank reads" if workers else " of what its workers read"
    part = "rank * workers + worker, None, world * workers" if ranks and workers else ""
    part = part or ("rank, None, world" if ranks else "worker, None, workers")
    return [
        you(
            f"Let each {who} take its part{done}: rename __iter__ to samples, and add this.",
            "def __iter__(self):",
            *(_WORKER if workers else ()),
            *(_RANK if ranks else ()),
            f"    yield from itertools.islice(self.samples(), {part})",
        )
    ]


def shared_out_once() -> Remedy:
    """For a stream of which nobody reads a part."""
    return you(
        "It is shared out twice, or among more readers than there are: leave the divisions by rank and worker out "
        "of what gives the samples, and divide once, in __iter__.",
        "def __iter__(self):  # self.samples(): all of them, for every reader",
        *_WORKER,
        *_RANK,
        "    yield from itertools.islice(self.samples(), rank * workers + worker, None, world * workers)",
    )


def in_more_parts(parts: int, dataset: str = "") -> Remedy:
    """For a stream of fewer parts (files, shards) than it has workers."""
    if dataset.startswith("datasets."):
        return you(
            "Save it in at least as many files as there are workers of all ranks, or start no more workers than "
            "it has files.",
            'dataset = load_dataset("json", data_files=FILES, streaming=True)["train"]  # several FILES',
            f"DataLoader(dataset, num_workers={parts})  # dataset.num_shards is {parts} here",
        )
    return you(
        "Start no more workers than the stream has parts, or share out single samples instead of files.",
        f"DataLoader(dataset, num_workers={parts})",
        "samples = itertools.islice(samples, worker, None, workers)  # in __iter__, by get_worker_info()",
    )
