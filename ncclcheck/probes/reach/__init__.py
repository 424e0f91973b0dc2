"""What every node sees of the others: connections, clocks, packets, routes, names and short bursts. No torch.

Each node opens a Listener; once all doors are known, each runs `measure` at about the same time.
"""

from ncclcheck.probes.reach.knock import knock
from ncclcheck.probes.reach.listener import Listener
from ncclcheck.probes.reach.mark import MarkFile
from ncclcheck.probes.reach.measure import measure

__all__ = ["Listener", "MarkFile", "knock", "measure"]
