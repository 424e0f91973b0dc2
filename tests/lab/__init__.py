"""Hosts on one machine: network namespaces with their own links, names, /etc and firewall, for tests of real runs.

    with Lab(hosts=3) as lab:
        start_sshd(lab)
        with faults.mtu(lab["h2"], 1400):
            done = lab["h1"].run([*PYTHON, "-m", "ncclcheck", "bench", "--hosts", "h1,h2,h3"], seconds=60)

Each host has eth0 (data; made first, owns the host's name) and, unless `mgmt=False`, mgmt0 on a switch of its own.
`faults` breaks one thing at a time and mends it at the end of its `with`. Whatever happens, leaving the Lab kills
every process of every host and removes namespaces and files. Without root or a package the tests are skipped.
"""

from tests.lab import faults
from tests.lab.hosts import PYTHON, Host, Lab
from tests.lab.needs import need
from tests.lab.slurm import Slurm
from tests.lab.sshd import another_host_key, configured, mute_sshd, start_sshd, stop_sshd, wrong_key

__all__ = [
    "PYTHON",
    "Host",
    "Lab",
    "Slurm",
    "another_host_key",
    "configured",
    "faults",
    "mute_sshd",
    "need",
    "start_sshd",
    "stop_sshd",
    "wrong_key",
]
