"""Who lifts the CPU quota of a control group, by the path of its file."""

from __future__ import annotations

import re
from shlex import quote

from ncclcheck.reports.judgement.findings import Remedy, admin, you

_UNIT = re.compile(r"/([^/]+\.(?:service|scope|slice))(?=/)")
_CONTAINER = re.compile(r"(?:docker[-/])([0-9a-f]{12})[0-9a-f]*")


def lift(path: str, node: str) -> list[Remedy]:
    """What takes the quota away; path: empty where its file is not known, as of an old result."""
    if "kubepods" in path or not path:
        asked = [you("Ask for more CPU time: the limit of the pod (resources.limits.cpu), or of the container.",
                     "docker run --cpus=N ...", "srun --cpus-per-task=N ...")]  # fmt: skip
    else:
        asked = [you("Or ask whoever starts the job or container for more CPU time.")]
    on = f"# on {node}"
    if match := _CONTAINER.search(path):
        direct = [f'docker update --cpus="$(nproc)" {match[1]}   {on}']
    elif units := _UNIT.findall(path):
        direct = [f"systemctl set-property --runtime {quote(units[-1])} CPUQuota=   {on}"]
    elif path:
        direct = [f"echo {'max' if path.endswith('cpu.max') else '-1'} >{quote(path)}   {on}"]
    else:
        direct = ["systemctl set-property UNIT CPUQuota="]
    lifted = admin(
        "Raise the quota of that control group, or take it away; here, and where it is set up.", *direct
    )
    return [*asked, lifted] if "kubepods" in path or not path else [lifted, *asked]
