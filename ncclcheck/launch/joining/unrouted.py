"""How long it is borne that the kernel here does not send to an address: of that a node is certain by itself."""

from __future__ import annotations

import time
from dataclasses import dataclass

# Seconds for which "no route" is borne: after a boot, or a restart of the network, a link negotiates for 1 to 4 s
# and DHCP answers within a second. A job's network is up before the job is; a route that is missing for longer
# does not come by waiting.
PATIENCE_S = 6.0


@dataclass
class Patience:
    """How long a missing route is borne; it begins anew whenever something else is in the way."""

    since: float | None = None

    def is_over(self, outcome: str) -> bool:
        """Whether every try of the last seconds, and this one, failed for want of a route."""
        if outcome != "unrouted":
            self.since = None
            return False
        self.since = self.since or time.monotonic()
        return time.monotonic() - self.since >= PATIENCE_S
