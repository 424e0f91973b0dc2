"""NCCL itself in the tests, without a GPU: its own library from its wheel, on a CUDA and verbs of ours.

    with Lab(hosts=2) as lab:
        job = Job(lab, [Rank("h1"), Rank("h2", steps="init all_reduce sync destroy")], env={"NCCL_DEBUG": "INFO"})
        ended = job.run(seconds=30)
        print(ended.log, ended.ranks[1].code, ended.ranks[1].said)

Bootstrap, choice of interfaces, topology, rings and trees, NET/Socket, SHM, P2P, NET/IB, RAS, warnings and aborts
are NCCL's own code, unchanged on disk. What is ours: the CUDA runtime, driver and NVML (native/fake.h), libibverbs
(native/verbs.c), and what a kernel would do (native/ring.c). Only wheels whose own metadata names a BSD or Apache
licence are run.
"""

from tests.nccl.build import libraries
from tests.nccl.job import Ended, Job, Rank, RankEnded
from tests.nccl.wheels import NEWEST, OLDEST, VERSIONS, libnccl, need

__all__ = ["NEWEST", "OLDEST", "VERSIONS", "Ended", "Job", "Rank", "RankEnded", "libnccl", "libraries", "need"]
