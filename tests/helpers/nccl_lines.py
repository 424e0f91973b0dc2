"""Start-up lines of one NCCL process, for logs that tests make."""

from __future__ import annotations

IB = "[0]mlx5_0:1/IB [RO]"
ROCE = "[0]mlx5_0:1/RoCE [RO]"


def info(host: str, text: str, pid: int = 700) -> str:
    """A line of level INFO."""
    return f"{host}:{pid}:{pid + 40} [0] NCCL INFO {text}"


def warn(host: str, text: str, pid: int = 700) -> str:
    """A line of level WARN, after the empty line that NCCL prints first."""
    return f"\n{host}:{pid}:{pid + 40} [0] transport/net_ib.cc:1290 NCCL WARN {text}"


def process(
    host: str,
    rank: int,
    *sentences: str,
    network: str = "IB",
    devices: str = IB,
    version: str = "2.21.5",
    ranks: int = 2,
    local: int = 1,
    pid: int = 700,
) -> list[str]:
    """A process that reaches Init COMPLETE. said: lines before it takes its network. local: ranks of its host."""
    address = f"10.30.0.{rank + 11}"
    comm = f"comm 0x55d{rank}a0 rank {rank} nranks {ranks} cudaDev 0 nvmlDev 0 busId 1b000 commId 0x7e11"
    listed = f"NET/IB : Using {devices}; OOB eth0:{address}<0>" if network == "IB" else ""
    nodes = f"nNodes {ranks // local} localRanks {local} localRank 0 MNNVL 0"
    texts = [
        f"Bootstrap : Using eth0:{address}<0>",
        f"NCCL version {version}+cuda12.4",
        *sentences,
        *([listed] if listed else [f"NET/Socket : Using [0]eth0:{address}<0>"] if network == "Socket" else []),
        f"Using network {network}",
        f"ncclCommInitRank {comm} - Init START",
        f"comm 0x55d{rank}a0 rank {rank} nRanks {ranks} {nodes}",
        f"ncclCommInitRank {comm} - Init COMPLETE",
    ]
    return [info(host, text, pid) for text in texts]


def via(host: str, way: str, pid: int = 700, source: int = 0, target: int = 1) -> str:
    """One connection of this process."""
    return info(host, f"Channel 00/0 : {source}[0] -> {target}[0] via {way}", pid)


def log(*parts: str | list[str]) -> str:
    """All lines, each part after the other."""
    lines = [line for part in parts for line in ([part] if isinstance(part, str) else part)]
    return "\n".join(lines) + "\n"
