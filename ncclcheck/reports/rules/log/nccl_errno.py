"""What the system's answer to a call of NCCL means: errno by what NCCL called."""

from __future__ import annotations

from ncclcheck.reports.rules.log.nccl_words import meant

_THREAD = r"(?:pthread_create|[Tt]hread creation|creat\w{1,3} .{0,40}thread)"
_SOCKET = (
    r"(?:Call to (?:socket|listen|accept|fcntl|[sg]etsockopt)|[Ss]ocket creation|[Aa]ccept failed"
    r"|TryAccept: exceeded)"
)
_NETWORK = r"(?:[Ss]ock|[Aa]ccept|Call to (?:bind|listen|recv|send|getifaddrs)|[Pp]oll|UDS: )"
_LIMIT_OF_THREADS = (
    "Confirm: threads in use, and how many may be: of the user, and of the container or job.",
    "ps -eLf --no-headers | awk '{print $1}' | sort | uniq -c; ulimit -u",
    "cat /sys/fs/cgroup/pids.max /sys/fs/cgroup/pids.current",
)

# By the words of strerror(); what other checks know better is not here: ports taken, open files, /dev/shm,
# peers that are gone. Source: errno(3) and the manual pages of the calls.
SYSTEM = (
    meant(
        rf"{_THREAD}.{{0,80}}(?:Resource temporarily unavailable|Cannot allocate memory)",
        "NCCL may start no more threads: the limit of processes and threads (ulimit -u, pids.max) is reached",
        "NCCL starts several threads a communicator, OpenMP and loaders many more: each counts as a process.",
        _LIMIT_OF_THREADS,
        ("Use fewer: threads of OpenMP, workers of loaders.", "export OMP_NUM_THREADS=1"),
        ("Raise the limit before the ranks start; of a container, as it is started.", "ulimit -u $(ulimit -Hu)",
         "docker run --pids-limit=-1 IMAGE"),
        owner="node",
    ),
    meant(
        r"pthread_(?:attr_setstacksize|setattr_default_np|attr_init).{0,80}failed"
        rf"|{_THREAD}.{{0,80}}Invalid argument",
        "the stack that NCCL's threads are to have is refused",
        "Its size comes from ulimit -s (NCCL_SET_STACK_SIZE): too large, or below what threads need.",
        ("Confirm with the usual one.", "ulimit -s; ulimit -v", "unset NCCL_SET_STACK_SIZE", "ulimit -s 8192"),
    ),
    meant(
        rf"{_THREAD}.{{0,80}}Operation not permitted",
        "NCCL may not start threads",
        "A filter of system calls (seccomp) or a policy of the container forbids it: old filters refuse clone3.",
        ("Confirm without the filter.", "docker run --security-opt seccomp=unconfined IMAGE"),
        ("Update the container's runtime (docker 20.10.10, runc 1.0.2).", "docker version; runc --version"),
        owner="node",
    ),
    meant(
        r"Call to bind.{0,160}Permission denied",
        "NCCL may not listen on the port that it was given",
        "Ports below 1024 are the superuser's: NCCL_COMM_ID or NCCL_RAS_ADDR names one, else a policy forbids it.",
        ("Confirm, and name a port above 1024.", "env | grep -E 'NCCL_(COMM_ID|RAS_ADDR)'",
         "sysctl net.ipv4.ip_unprivileged_port_start"),
    ),
    meant(
        r"Call to (?:recv|send).{0,160}(?:Operation not permitted|Permission denied)",
        "the host itself forbids what NCCL sends",
        "A rule of the host's own firewall (OUTPUT), or a network policy of the container, refuses the packets.",
        ("Confirm, on that host.", "nft list ruleset | grep -A9 'hook output'; iptables -S OUTPUT",
         "kubectl get networkpolicy -A"),
        ("Let the nodes of the job send to each other on all ports.",),
        owner="node",
    ),
    meant(
        rf"(?:{_SOCKET}|Call to bind).{{0,160}}(?:Operation not permitted|Permission denied)",
        "NCCL may not make or use sockets",
        "A filter of system calls, SELinux, AppArmor or a policy of the container forbids it.",
        ("Confirm: what the kernel refused, and whether it works without the filter.",
         "dmesg -T | grep -iE 'audit|denied|apparmor'",
         "docker run --security-opt seccomp=unconfined --security-opt label=disable IMAGE"),
        owner="node",
    ),
    meant(
        r"Call to bind.{0,160}(?:Invalid argument|No such device)",
        "the address that NCCL is to listen on belongs to no interface",
        "An address that counts on one link only (fe80::) was given without its interface, or with another's.",
        ("Confirm: the addresses, and the variables that name one.", "ip -br addr",
         "env | grep -E 'NCCL_(COMM_ID|SOCKET_IFNAME|SOCKET_FAMILY)'"),
        owner="node",
    ),
    meant(
        rf"(?:{_SOCKET}|{_NETWORK}).{{0,200}}(?:Address family not supported|Protocol not supported)",
        "the kind of address that NCCL uses is switched off",
        "IPv6 is off in this kernel or container (or a filter forbids it), and an address of it was to be used.",
        ("Confirm, and take the other.", "cat /proc/sys/net/ipv6/conf/all/disable_ipv6; ip -br addr",
         "export NCCL_SOCKET_FAMILY=AF_INET"),
        owner="node",
    ),
    meant(
        rf"{_NETWORK}.{{0,200}}(?:No buffer space available|Cannot allocate memory)",
        "the kernel has no memory for NCCL's sockets",
        "The memory of TCP (net.ipv4.tcp_mem), of the host or of the job's cgroup is used up.",
        ("Confirm: what sockets take, and what they may.", "cat /proc/net/sockstat; sysctl net.ipv4.tcp_mem",
         "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory.current; free -m"),
        ("Raise it, or end what holds so many connections.", "ss -s"),
        owner="node",
    ),
    meant(
        rf"{_NETWORK}.{{0,200}}(?:Network is down|Host is down|Machine is not on the network)",
        "a network interface went down, or the neighbour does not answer",
        "The kernel has no way to send: the link or the interface of NCCL's address is down.",
        ("Confirm, on that host: the interfaces, and when they went down.", "ip -br link",
         "dmesg -T | grep -iE 'link (?:is )?down|link down|carrier'"),
        owner="node",
    ),
    meant(
        r"[Aa]ccept\b.{0,160}(?:No route to host|Network is unreachable|Connection timed out|Connection refused)",
        "the network lost a connection while NCCL took it",
        "The kernel hands on what happened to a connection before it was taken: the peer went away, or no path "
        "leads back to it.",
        ("Confirm: whether each node reaches each other, both ways.", "ncclcheck env --hosts HOST1,HOST2"),
        ("Look at the routes of this host, and at firewalls that answer with a reset.", "ip route; ip -br addr"),
    ),
    meant(
        rf"{_NETWORK}.{{0,200}}(?:Function not implemented|Operation not supported|Protocol not available)",
        "the kernel, or the sandbox around the process, does not have a call that NCCL needs",
        "Sandboxes that stand in for the kernel (gVisor), and very old kernels, know no such socket option.",
        ("Confirm: which kernel answers.", "uname -a; dmesg | head -3", "docker run --runtime=runc IMAGE"),
        owner="node",
    ),
    meant(
        r"sched_[gs]etaffinity.{0,80}(?:failed|error)",
        "NCCL may not choose the cores of its threads",
        "The job's cpuset holds none of the cores that are near the GPU, or a policy forbids the call.",
        ("Confirm, and let NCCL leave the cores as they are.", "grep Cpus_allowed_list /proc/self/status",
         "export NCCL_IGNORE_CPU_AFFINITY=1"),
    ),
    meant(
        r"Call to pthread_\w{3,40} failed|Error waiting for pthread_join|[Tt]hread join failed",
        "a thread of NCCL could not be handled as usual",
        "It ended or was overwritten: memory that the program damaged, a fork after NCCL's start, or a defect.",
        ("Confirm with the newest NCCL, and without forks after the start.",
         "python -m pip install -U nvidia-nccl-cu12", "export PYTHONFAULTHANDLER=1"),
    ),
)  # fmt: skip
