"""Lines of a failure that no rule knows, by their own words: which tells most, and what such words ask for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, admin, seen, you
from ncclcheck.reports.subjects.logs.words import meanings
from ncclcheck.reports.subjects.logs.words.exceptions import Family, made, of_words

_ABOVE = 40  # lines: what a program says of its own failure, and what others print meanwhile
_BELOW = 10  # lines: other processes print their own of it between
_ALIKE = 30  # characters by which a line stands in a heading already
# A finding that leaves open what is behind it.
LEFT_OPEN = re.compile(
    r"\b(?:likely|most often|may|might|perhaps|probably|seems?)\b|,? or (?:a|an|the|it|each|their|went|NCCL)\b"
    r"|(?:which one|why|the error behind it) is not in\b|does not know why|\bcrashed \(|\baborted \("
)
# What a process said of its own failure, though another line is the better known.
_SAID_OF_FAILURES = ("complaint", "nccl-warning", "python-error", "mpi-box")
# An error by its number, or by a place in the source alone: its library says below what it means.
_A_CODE = re.compile(
    r"\berror code (?:is )?:?-?\d{1,6}\b|\berror in: \S{1,200}\.(?:cpp|cc|cu|h):\d{1,6}(?= at |\s*$)"
)
_ANNOUNCED = re.compile(r"\berror stack:")  # what it is made of stands below
_FATAL = re.compile(r"\b(?:[Ff]atal|FATAL)\b(?! error in)")
_BY_A_SIGNAL = re.compile(r"\bcrashed \(|\baborted \(|killed by SIG|does not know why")
_LETTERS = re.compile(r"[a-z]{2,}")
SAID = ("complaint", "explains", "command-not-run", "executable-missing", "ended-badly")
# The level of a line, by Python's loggers, its warnings or glog.
MILD = re.compile(r"(?:\S{1,300} ){0,4}\[?(?:[WI]\d{0,4}\]? |WARN|INFO|DEBUG|\w{0,40}[wW]arning\b)")
SAY_OF_WHY = "these lines say of why"
FAULT_TOLD = "a fault is told, and nothing after it shows that the job went on"
_BAD = re.compile(
    r"(?i)\b(?:\w{0,40}error|fail(?:ed|ure)|exception|aborted|timed out|cannot|can't|could not|unable|invalid"
    r"|exceed\w{0,3})\b"
)
# What a library in C++ writes before its words (glog, Neuron's runtime), and numbers of requests.
_HEAD = re.compile(
    r"^(?:[EF]\d{4} [\d:.]+ +\d+ [\w/.-]+:\d+\]"
    r"|\d{4}-\w{3}-\d\d [\d:.]+ +\d+:\d+ (?:ERROR|FATAL) [A-Z]{2,5}:\w{1,60}) "
    r"|^\{.{0,600}?\"(?:message|error|detail|msg)\": ?\"(?=[^\"]{12})"  # a line of JSON
)
# A command line that a launcher repeats: what it is called with is not what went wrong.
_ARGUMENTS = re.compile(r"\['(?:[^\]]{80,2000})(?:\]|$)")
# gRPC's own words around the answer of the system, which stands in a line beside them.
_HANDS_ON = re.compile(
    r"failed to connect to all addresses(?!.{0,200}(?:refused|timed|route))|Additional GRPC error information"
)
_ADDRESSES = re.compile(r" \|?\s?\d{1,3} {1,9}0x[0-9a-f]{8,16} .{0,4000}$")  # a stack within a line
_POINT = re.compile(r"Assertion (?:failed:|[`'])|\b[A-Z]\w{2,60}(?:Error|Exception): ")  # what others stand before
_CANNOT = re.compile(r"(?i)\b(?:unable|failed) to \w|\b(?:cannot|can't|couldn't|could not) \w")
_BESIDE_AN_END = 30  # characters: a sentence, and not only who ended
_IDENTITY = re.compile(r" [\w.]{1,60}=(?:'[0-9a-f-]{24,40}'|\d{12,20}\b)|(?<=Error)\(\w{1,40}=\d{12,20}\)")
_MOST = 200  # characters of a line in a heading: four lines of a terminal
_AFTER = 10  # what is shown behind the words by which it is known
BESIDE = 140  # characters of a line that stands in a heading beside another one
# Said of an end, whatever it was.
_HOLLOW = re.compile(
    r"(?i)\bTraceback \(most|^\W*Traceback\b|\b(?:hit|encountered|raised|caught) (?:an? )?(?:fatal |unhandled "
    r"|unexpected )?(?:exception|error)\b"
    r"|\bexit(?:s|ed|ing)?\b.{0,30}\b(?:code|status|abnormal\w*)\b|\bexitcode\b|non-?zero|\bdied unexpectedly\b"
    r"|\bchild(?:ren)? (?:process )?(?:failed|died)|\bshutting down\b|\bstack trace\b|\broot cause\b|\bsigquit\b"
    r"|\bSee (?:inner|stack|above)\b|\b(?:job|step|run|process|task)s? (?:was |has been "
    r"|is )?(?:failed|aborted|killed|terminated)\b"
    r"|^\W*(?:errors?|failed|failures?|fatal|fatal error|aborting|aborted)\W*$|core dumped|\bterminate called\b"
    r"|^Exception raised from |sub-exception|might cause deadlock|\bexecuting (?:method|job)\b"
    r"|^\W*(?:ERROR:?\s+)?Exception in (?:worker |the )?\w{1,60}(?: application| while processing.{0,200})?\W*$"
    r"|ORTE_ERROR_LOG: Error in file|^\W*(?:ERROR:?\s+)?Unhandled (?:error|exception)\b(?: \(suppress|\W*$)"
    r"|^\S{1,200} .{0,60}\b(?-i:FAILED)$"
    r"|^ray\.exceptions\.(?!\w*(?:Timeout|OutOf))|^(?:.{0,120}\] )?Some NCCL operations have failed"
    r"|\b(?:Other|Internal|Unknown) MPI error\b|channel initialization failed|\baborting job:?\W*$"
    r"|printing .{0,30}log ?file|\bFile \"[^\"]{1,300}\", line \d{1,7}, in\b"
    r"|^\W*This is usually (?:due to|caused by)|^\W*Please (?:check|verify|make sure)\b.{0,60}(?:and|try again)$"
    r"|\bcouldn't (?:start|execute|get|cleanup) (?:the )?(?:container|enroot|list)\b"
    r"|sigkill_handler\] (?:\[|$)|^Aborted by PBS Server"
)
# A sentence that tells its reader what to do.
_ADVICE = re.compile(
    r"(?:(?<=[.!?:;,] )|^(?=Please make sure))(?:Please|Hint|Try|Use|Set|Make sure"
    r"|Consider|Run|Install|Upgrade|Update|Pass|Specify|Check"
    r"|Increase|Reduce|Enable|Disable|To (?:fix|avoid|resolve|use|solve)|You (?:can|should|must|need|may)"
    r"|In order to|please|try|consider|use|set|increase|increasing|reduce|raise|upgrade"
    r"|install)\b.{10,}?(?:[.!](?= |$)|$)"
)
_MOST_OF_ADVICE = 300  # characters: four lines of a terminal
_WEIGHT = {
    "python-error": 5,
    "nccl-warning": 4,
    "mpi-box": 4,
    "complaint": 3,
    "command-not-run": 3,
    "executable-missing": 3,
    "explains": 2,
    "traceback-cut": 2,
    "ended-badly": 1,
    "mpi-connect-failed": 3,
}
_VAGUE = "did not answer in time"  # the family of any time-out
# Added to these where the text names a known kind, says what to do, is a consequence, or says nothing: chosen so
# that a complaint with a reason outweighs an exception without one.
_KNOWN, _ADVISED, _REASONED, _PASSES_ON, _FOLLOWS, _NOTHING = 2, 1, 1, -2, -3, -4
# A reason stands in the line itself: what the system answered to a call, or a clause that says why.
_REASON = re.compile(
    r"(?i)(?:fail\w{0,4}|error|returned|unable to [^:]{1,80})\b.{0,80}[:(] ?(?:-?\d{1,3}[ ,)-]{1,3})?"
    r"(?:invalid argument|cannot allocate|no such|permission denied|operation not|connection (?:timed out|refused"
    r"|reset)|no route|network is|unsupported"
    r"|not supported|no data|input/output|resource temporarily|bad address|device or resource|out of memory)"
    r"|\b(?:hip|cuda|hsa) (?:failure|error)\b.{0,60}?['\"](?!unhandled|unknown)[a-z][^'\"]{5,}['\"]"
    r"|\b(?:because|due to|caused by|reason ?[=:]|root cause:)\s?\S"
    r"|\berr(?:no)?\s?[=:]\s?-?\d{1,3}\b|\bstatus [a-z]+ [a-z]+\(0x"
)
_ONLY_FAILED = re.compile(r"(?i)\b(?:fail(?:ed|ure|s)?|aborted|aborting)\b")
_RIGHT_ABOVE = 5  # lines: of the same function, as a rule, or of the one that it called
_INSTALLED = "python -m pip list | grep -iE 'torch|nvidia|flash|xformers|vllm|transformers|deepspeed|numpy'"

_BUILT_FOR_OTHERS = (
    you("Confirm: what the library that is named finds, and what is installed.", "ldd -r LIBRARY.so | head -20",
        "echo $LD_LIBRARY_PATH", "python -c 'import torch; print(torch.__version__, torch.version.cuda)'"),
)  # fmt: skip
# By what a message says of a fault of a GPU, a card or a disk; looked at where nothing knows it better.
_FAULTS = (
    made(
        r"undefined symbol: (?:cuda|cu[A-Z])|undefined symbol: \w{0,4}(?:cudnn|cublas|cufft)",
        "The library was built for another release of CUDA, in which that function was still, or already, there.",
        *_BUILT_FOR_OTHERS,
        you("Build it again with this CUDA, or install the build for it.",
            "python -m pip install --no-cache-dir --force-reinstall PACKAGE"),
    ),
    made(
        r"undefined symbol: (?:opal|orte|ompi|mca|prte|pmix|ucp|ucs|[PM]?MPI)_"
        r"|/(?:openmpi|ompi|pmix)/mca_\S{1,80}: undefined",
        "A component of another build of MPI is loaded than the MPI that was started: two installations, or "
        "what an older one left in its folder.",
        you("Confirm: whose it is, and which MPI is found first.", "ldd -r LIBRARY.so | head -20",
            "which -a mpirun; ompi_info | head -3; echo $LD_LIBRARY_PATH $OPAL_PREFIX"),
        you("Take the other installation out of the path, or delete the component that the older one left; build "
            "what uses MPI (horovod, mpi4py) again with this one."),
    ),
    made(
        r"(?i)undefined symbol|symbol lookup error|symbol not found",
        "A library was built for another release of the one that has the symbol, or one of another installation "
        "is found first: the symbol's name says whose it is.",
        *_BUILT_FOR_OTHERS,
        you("Build it again in this environment, or install the build for it.",
            "python -m pip install --no-cache-dir --force-reinstall PACKAGE"),
    ),
    made(
        r"(?i)\bmutually[- ]exclusive\b"
        r"|\bconflicting (?:options|variables|parameters|arguments|settings|values)\b",
        "Two settings that exclude each other are both set: what the job then does is not what was meant.",
        you("Confirm: where each comes from (command line, environment, a file of settings).",
            "env | grep -E '^(OMPI|PRTE|PMIX|UCX|NCCL)_'", "grep -rv '^#' /etc/openmpi*/*.conf ~/.openmpi/*.conf"),
        you("Take one of the two back, on all nodes."),
    ),
    made(
        r"(?i)\b(?:driver|fabric ?manager|kernel module)\b.{0,120}\bversion\b.{0,80}"
        r"(?:do(?:es)?(?:n't| not) match|mismatch)",
        "Two parts of the GPU's driver are of different releases: the one does not start with the other.",
        admin("Confirm, on that node.", "nvidia-smi --query-gpu=driver_version --format=csv,noheader",
              "cat /proc/driver/nvidia/version; nv-fabricmanager --version"),
        admin("Install both of one release, and restart the service or the node.",
              "systemctl restart nvidia-fabricmanager"),
    ),
    made(
        r"(?i)regist\w{0,6} (?:memory|mr|buffer|region)\b.{0,100}bad address"
        r"|\bnv(?:idia)?_peer_?mem\b.{0,40}\b(?:not (?:loaded|found|detected)|missing)|neither .{0,40}peer_?mem\b",
        "The RDMA card cannot register the memory of a GPU: as a rule the driver's part for it is not loaded.",
        admin("Confirm, and load it on every node.", "lsmod | grep nvidia_peermem", "modprobe nvidia_peermem"),
        you("Or let the library copy through the host, where it can."),
    ),
    made(
        r"named symbol not found|PassManager::run failed|invalid device function|no kernel image"
        r"|Cannot find CO in the bundle|Missing CO for|NoBinaryForGpu",
        "As a rule the kernel was not built for this GPU: another architecture, or a build for another CUDA.",
        you("Confirm: the GPU's compute capability, and what the library was built for.",
            "nvidia-smi --query-gpu=name,compute_cap --format=csv",
            "python -c 'import torch; print(torch.version.cuda, torch.cuda.get_arch_list())'"),
        you("Build the library for this GPU, or choose another backend or kernel for the operation."),
    ),
    made(
        r"(?:No such file|File exists|not empty|Stale|corrupt|Permission denied|EOF|JSONDecode|Errno).{0,300}"
        r"(?:(?:triton|inductor)\w{0,20}[/_]cache|torch_compile_cache|torchinductor_|compile[-_]cache)",
        "What is compiled at the start is kept in that folder: as a rule several processes write it at once, or "
        "another release has filled it.",
        you("Give each process its own folder, on a local disk; delete what is there.",
            "rm -rf ~/.triton/cache /tmp/torchinductor_* ~/.cache/vllm/torch_compile_cache",
            "export TRITON_CACHE_DIR=/tmp/triton-$RANK TORCHINDUCTOR_CACHE_DIR=/tmp/inductor-$RANK"),
    ),
    made(
        r"TOO_MANY_PEERS|peer mapping resources",
        "A GPU can be mapped by eight others at a time: with more than nine GPUs, or Xorg on them, the last ones "
        "are refused.",
        you("Confirm: count the GPUs, and see who else uses them.", "nvidia-smi"),
        you("Use nine GPUs at most.", "export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7"),
        you("Or let NCCL go without direct access.", "export NCCL_P2P_DISABLE=1"),
    ),
    made(
        r"(?i)peer[- ]to[- ]peer access|\bp2p\b.{0,40}(?:fail|not|error)|ipcgetmemhandle|ipcopenmemhandle",
        "GPUs of one host do not reach each other's memory: as a rule ACS, an IOMMU, a virtual machine or "
        "containers that see different GPUs.",
        you("Confirm: it runs without.", "export NCCL_P2P_DISABLE=1   # vLLM: --disable-custom-all-reduce",
            "nvidia-smi topo -m"),
        admin("Turn ACS off on the bridges above the GPUs, or the IOMMU to pass-through."),
    ),
    made(
        r"\b169\.254\.\d|(?i:connect|dial|reach)\w{0,6} .{0,60}\bfe80::",
        "An address of 169.254 or fe80 is link-local: an interface gave it to itself (a BMC, usb0, "
        "veth), and other "
        "nodes do not reach it.",
        you("Confirm: which interface has it.", "ip -br address"),
        you("Name the interface of the nodes' own network, for each library.",
            "export NCCL_SOCKET_IFNAME=eth0 GLOO_SOCKET_IFNAME=eth0",
            "mpirun --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0 ..."),
    ),
    made(
        r"(?i)retry count .{0,80}exceeded|RETRY EXCEEDED|IBV_EVENT_PORT_ERR",
        "Packets of the RDMA card were sent again and again and never acknowledged: a link, a route, the peer's "
        "card, or a peer that has ended.",
        admin("Confirm on both hosts that are named.", "ibstat", "dmesg -T | grep -iE 'mlx|link'",
              "grep . /sys/class/infiniband/*/ports/1/counters/{link_downed,symbol_error,port_rcv_errors}"),
        you("Leave the host out until then."),
    ),
    made(
        r"(?i)not enough (?:disk )?space|shared[- ]memory backing file|space available: ",
        "The folder that it writes to has too little room; MPI keeps its shared memory in a file there.",
        you("Confirm, on the host that is named.", "df -h /tmp /dev/shm $TMPDIR"),
        you("Make room, or give MPI another folder.", "mpirun --mca orte_tmpdir_base /scratch ...",
            "export TMPDIR=/scratch"),
    ),
)  # fmt: skip
# By what a message says in general: programs that run say such things, too.
_CLASSES = (
    *_FAULTS,
    made(
        r"Name or service not known|[Nn]ame does not resolve|No address associated with hostname",
        "The name has no address on this node: it is not in the DNS that this node or pod asks, its service or "
        "pod is not there (yet, or any more), or it is misspelt.",
        you("Confirm, on that node, started as the job is.", "getent hosts NAME; cat /etc/resolv.conf"),
        you("Give the master's full name or its address, once its pod or node runs; in Kubernetes the service "
            "must be headless and publish addresses that are not ready.", "kubectl get service,pods -o wide"),
    ),
    made(
        r"(?i)\b(?:version|release|built (?:for|with|against)|compiled (?:for|with"
        r"|against))\b.{0,120}?\b(?:mismatch\w*"
        r"|incompatible|not compatible|does(?:n't| not) match|differ\w*|too old|older|newer|expected"
        r"|required?s?|but)\b"
        r"|\b(?:mismatch\w*|incompatible|too old|requires?)\b.{0,120}?\bversions?\b|(?:version|driver"
        r"|library) .{0,40}too old",
        "By its words two parts are of releases that do not go together; the message says which.",
        you("Confirm: the releases on each node.", _INSTALLED, "nvidia-smi | head -4"),
        you("Install the ones that go together, the same on all nodes; nothing of another installation in "
            "LD_LIBRARY_PATH or PYTHONPATH."),
    ),
    made(
        r"(?i)out of memory|cannot allocate memory|not enough memory|insufficient memory|memory (?:limit"
        r"|exhausted)",
        "It wanted more memory than it could have; of the GPU or of the host, the words before it say.",
        you("Confirm, while it runs: of the GPU and of the host.", "nvidia-smi; free -g"),
        you("Let it take less (a smaller batch, shorter sequences, fewer workers), or give it more."),
    ),
    made(
        r"(?i)connection refused|unreachable|no route to host|could(?:n't| not) (?:connect|resolve)"
        r"|cannot (?:connect"
        r"|resolve|reach)|failed to (?:connect|resolve|reach)|unable to (?:connect|resolve|reach)|name resolution"
        r"|unable to (?:complete|make|establish|open) .{0,20}connection",
        "What it dials does not answer from this node: as a rule nothing listens there (it ended, or has not "
        "started), the address is another one's, or a firewall is between.",
        you("Confirm, on the node that failed.", "getent hosts NAME; nc -vz HOST PORT"),
        you("Start what listens there first, and give its address as this node reaches it."),
        admin("Open the port between the nodes, where a firewall drops it."),
    ),
    made(
        r"(?i)permission denied|access denied|not permitted|forbidden|unauthori[sz]ed|operation not allowed",
        "By its words the user, the container or the token may not do that.",
        you("Confirm, started as the job is.", "id; ls -ld PATH", "cat /proc/self/status | grep Cap"),
        you("Give the right that the message names, or a path or account that has it."),
    ),
    made(
        r"(?i)no such file|not found|does(?:n't| not) exist|\bmissing\b|cannot (?:find|open|locate)"
        r"|could(?:n't| not) "
        r"(?:find|open|locate|load)|unable to (?:find|open|locate|load)|not (?:installed|available|there|detected)"
        r"|unavailable|failed to (?:find|open|load|locate)|no \w{1,20} (?:found|available)",
        "By its words something is not there, on this node or in this container; the message names it.",
        you("Confirm, on every node, started as the job is.",
            "srun --ntasks-per-node=1 bash -c 'hostname; ls -l PATH; command -v PROGRAM'"),
        you("Install it or correct its name or path, on all nodes and in their image."),
    ),
    made(
        r"(?i)not (?:yet )?supported|unsupported|does(?:n't| not) support|not implemented|only supports?"
        r"|incompatible"
        r"|not compatible|(?:cannot|can't|can not) be (?:used|combined|enabled)|not allowed",
        "By its words what was asked for does not go with this model, this hardware or this release.",
        you("Take back the option that it names, or choose one that it supports."),
        you("Where it ought to go, update the library that says so, the same on all nodes.", _INSTALLED),
    ),
    made(
        r"(?i)\b(?:must|should|has to|have to|needs? to) (?:be|have|match|equal|contain)\b|expected"
        r"|invalid|out of range"
        r"|\bnot in\b|\bunknown (?!reason|error|cause)\b|unrecogni[sz]ed|not (?:a )?valid|!=|not equal"
        r"|mismatch|match|greater than|less than"
        r"|larger than|smaller than|at (?:least|most)\b|exceed|refus|differs?\b|different|inconsisten|conflict"
        r"|only has|but (?:got|found|is)|\bgot\b|assert ",
        "A check of the code failed; where the value that it names comes from, the message alone does not say.",
        you("Find what it names: on the command line, in the configuration, in the input; numbers of ranks, nodes "
            "and GPUs must be the launcher's."),
        you("Where all of that is right, look whether two releases differ.", _INSTALLED),
    ),
)  # fmt: skip


_WRONG_SUM = made(
    "",
    "A collective gave a wrong result: as a rule GPUs do not reach each other's memory as they ought to (ACS or "
    "an IOMMU between them), and what is read there is wrong.",
    you("Confirm: it is right without peer-to-peer access, and nccl-tests finds wrong values with it.",
        "export NCCL_P2P_DISABLE=1", "./build/all_reduce_perf -b 8 -e 128M -f 2 -g 4 -c 1"),
    admin("Turn ACS off on the bridges above the GPUs, or the IOMMU to pass-through.",
          "lspci -vvv | grep -i acsctl"),
)  # fmt: skip


def of_class(text: str) -> Family | None:
    """What the words of a message ask for in general."""
    return next((family for family in _CLASSES if family.words.search(text)), None)


def understood(text: str) -> Family | None:
    """What is known of such words, else what they ask for in general."""
    text = _ARGUMENTS.sub("", text)
    return of_words(text) or of_class(text)


# A program's own check of a sum over all ranks.
_OF_A_SUM = re.compile(r"==\s{0,3}(?:\w{1,30}\.)?(?:get_)?world_size\b|\bworld_size(?:\(\))?\s{0,3}==")


def of_a_sum(event: LogEvent) -> Family | None:
    """What a wrong result of a collective asks for, where the program compares it with the number of ranks."""
    own = "raised_in" not in event.fields
    return _WRONG_SUM if own and _OF_A_SUM.search(event.fields.get("condition", "")) else None


def words(text: str) -> str:
    """A line without the time and the place in the source that some libraries write before it, and without a
    command line in it."""
    text = _ADDRESSES.sub("", _ARGUMENTS.sub("[...]", " ".join(text.split())))
    return _HEAD.sub("", text, count=1)


def advice(text: str) -> list[Remedy]:
    """What a message itself says is to be done."""
    sentence = next((match[0] for match in _ADVICE.finditer(words(text))), "").strip()
    return [you(f"Its own advice: {sentence[:_MOST_OF_ADVICE]}")] if sentence else []


def of_a_fault(text: str) -> bool:
    """Whether its words are those of a known fault, and not only such as a program that runs says as well."""
    return any(family.words.search(text) for family in _FAULTS)


def tells_why(event: LogEvent) -> bool:
    """Whether its words say more than that something ended."""
    return _weight(event) >= _WEIGHT["explains"]


def tells_most(events: Sequence[LogEvent]) -> LogEvent:
    """The line whose words say most of why; of those that say as much what is of a kind, and then the first."""
    most = max(enumerate(events), key=lambda pair: (_weight(pair[1]), _is_of_a_kind(pair[1]), -pair[0]))[1]
    return _reason_of(most, events) or most


def _reason_of(failed: LogEvent, events: Sequence[LogEvent]) -> LogEvent | None:
    """What says right above a complaint that only tells of a failure what is not there, or cannot be."""
    bare = failed.sign == "complaint" and _weight(failed) == _WEIGHT["complaint"] and not _is_of_a_kind(failed)
    if not bare or not _ONLY_FAILED.search(failed.text) or _CANNOT.search(failed.text):
        return None
    return next(
        (
            event
            for event in events
            if event.sign == "explains"
            and event.file == failed.file
            and 0 < failed.line - event.line <= _RIGHT_ABOVE
            and tells_why(event)
            and not MILD.match(event.text)
            and (_is_of_a_kind(event) or not _CANNOT.search(event.text))
        ),
        None,
    )


def _is_of_a_kind(event: LogEvent) -> bool:
    """Whether a mere complaint names what is missing, refused or not allowed."""
    return event.sign in ("complaint", "explains") and of_class(_ARGUMENTS.sub("", event.text)) is not None


def _weight(event: LogEvent) -> int:
    text = _ARGUMENTS.sub("[", event.fields.get("text", "") if event.sign == "python-error" else event.text)
    base = _WEIGHT.get(event.sign, 0)
    if event.sign == "traceback-cut":
        return base
    family = of_words(_ARGUMENTS.sub("[", event.text))
    hollow = _HOLLOW.search(text) is not None
    if not text.strip() or (hollow and (family is None or _VAGUE in family.why)):
        return _WEIGHT["complaint"] if event.sign == "ended-badly" and _says_more(text) else base + _NOTHING
    known, advised = (
        family is not None or of_a_fault(event.text),
        bool(advice(event.text)) and not _ADVICE.match(words(event.text)),
    )
    follows = event.sign == "python-error" and meanings.follows(event)
    reasoned = event.sign != "python-error" and _REASON.search(event.text) is not None
    return (
        base
        + _PASSES_ON * (_HANDS_ON.search(text) is not None)
        + _KNOWN * known
        + _ADVISED * advised
        + _REASONED * reasoned
        + _FOLLOWS * follows
    )


def _says_more(text: str) -> bool:
    """Whether a line that tells of an end says why beside it: `Error: unable to unpack: ...: exit status 1`."""
    rest = _ARGUMENTS.sub("", text)
    begins = _HOLLOW.search(rest)
    if begins is None or begins.start() < _BESIDE_AN_END:
        return False
    above = rest[: begins.start()]
    return _CANNOT.search(above) is not None or understood(above) is not None


def quoted(event: LogEvent, most: int = _MOST) -> str:
    """A line in a heading."""
    text = _IDENTITY.sub("", words(event.text))
    if event.sign == "traceback-cut":
        condition, own = event.fields.get("condition", ""), event.fields.get("called_at", "")
        called = f", called at {own}" if own and own != event.fields["raised_at"] else ""
        text += f"{called}: assert {condition}" if condition else called
    if len(text) > most and event.sign == "mpi-box":  # the first sentence says it, and what MPI knows of it
        sentence, *known = text.split("; ")
        text = "; ".join([sentence.partition(". ")[0], *known]) if known else text
    if len(text) > most and event.sign == "mpi-box":
        return f"{text[:most].rpartition(' ')[0]} ..."
    return text if len(text) <= most else _shortened(text, most)


def _shortened(text: str, most: int) -> str:
    """How it begins, and the words by which it is known; where none are, how it ends."""
    known = of_words(text)
    match = known.words.search(text) if known else None
    tail = most // 2
    point = _POINT.search(text)
    if match is None and point and point.start() > 0 and len(text) - point.start() <= most:
        return f"... {text[point.start() :]}"
    bad = _BAD.search(text)
    if match is None and bad and (at := bad.start()) > most - tail:
        begin = max(text.rfind(". ", 0, at) + 2, at - tail)
        return f"... {text[begin : begin + most]}" + (" ..." if begin + most < len(text) else "")
    end = min(len(text), match.end() + _AFTER) if match and match.end() > most - tail else len(text)
    if end <= most:
        return f"{text[:most].rpartition(' ')[0] or text[:most]} ..."
    head, rest = text[: most - tail].rpartition(" ")[0], text[:end][-tail:].partition(" ")[2]
    return f"{head} ... {rest}" + (" ..." if end < len(text) else "")


def with_reasons(logs: Logs, findings: Iterator[Finding], *, always: bool) -> Iterator[Finding]:
    """Each failure with the line before it that says most of why, where there is one.

    always: also what does not say itself that it leaves open what is behind it.
    """
    return (
        _with_reason(logs, finding, always=always) if always or LEFT_OPEN.search(finding.what) else finding
        for finding in findings
    )


def with_meaning(logs: Logs, findings: Iterator[Finding]) -> Iterator[Finding]:
    """Exceptions that give a number, with the line below that says what it means."""
    return (
        _with_reason(logs, finding, always=False) if _A_CODE.search(finding.what) else finding
        for finding in findings
    )


def _says_the_same(event: LogEvent, finding: Finding) -> bool:
    """Whether three words of it on end stand in the finding's heading or evidence, too: an error's name."""
    own = _LETTERS.findall(" ".join([finding.what, *(evidence.value for evidence in finding.evidence)]).lower())
    triples = {*zip(own, own[1:], own[2:], strict=False)}
    others = _LETTERS.findall(event.text.lower())
    return not triples.isdisjoint(zip(others, others[1:], others[2:], strict=False))


def _with_reason(logs: Logs, finding: Finding, *, always: bool) -> Finding:
    orders = {evidence.event for evidence in finding.evidence}
    events = [event for event in logs.events if event.order in orders]
    if finding.state is not State.FAIL or not events:
        return finding
    by_signal = _BY_A_SIGNAL.search(finding.what) is not None
    above = [
        event
        for event in _above(
            logs, min(events, key=lambda event: event.order), SAID if always else _SAID_OF_FAILURES
        )
        if event.order not in orders
        and words(event.text)[:_ALIKE] not in finding.what
        and (
            not (event.sign == "python-error" and meanings.follows(event)) or (by_signal and "NCCL" in event.text)
        )
        and not _says_the_same(event, finding)
    ]
    below = _reasoned_below(logs, events, finding) if always or by_signal or _A_CODE.search(finding.what) else None
    most = tells_most(above) if above else below
    if most is None:
        return finding
    known, beside = understood(most.text), "before it" if above else "after it"
    line = seen(f"{most.file}:{most.line}", most.text, most.order)
    return replace(
        finding,
        what=f"{finding.what}; {beside}: {quoted(most, BESIDE)}",
        evidence=[
            *finding.evidence[:2],
            line,
            *finding.evidence[2:],
        ],
        remedies=[*(known.fix if known else ()), *finding.remedies],
    )


def _reasoned_below(logs: Logs, events: Sequence[LogEvent], finding: Finding) -> LogEvent | None:
    """A line right below that has a reason in itself, where the finding's own words have none."""
    by_signal = _BY_A_SIGNAL.search(finding.what) is not None
    if _REASON.search(finding.what):
        return None
    shown = min(events, key=lambda event: event.order)
    coded = _A_CODE.search(finding.what) is not None
    announced = _ANNOUNCED.search(shown.text) is not None
    last = shown if announced else max(events, key=lambda event: event.order)
    below = [
        event
        for event in logs.events
        if event.sign in (SAID if announced or coded else _SAID_OF_FAILURES)
        and event.file == last.file
        and 0 < event.line - last.line <= _BELOW
        and (announced or (_FATAL if by_signal else _REASON).search(event.text))
        and tells_why(event)
        and not (event.sign == "python-error" and meanings.follows(event))
        and not MILD.match(event.text)
        and not _says_the_same(event, finding)
    ]
    return tells_most(below) if below else None


def before(logs: Logs, event: LogEvent, *signs: str) -> LogEvent | None:
    """The line a little above that says most of why. signs: more that may."""
    above = _above(logs, event, (*SAID, *signs))
    return tells_most(above) if above else None


def _above(logs: Logs, event: LogEvent, signs: Sequence[str]) -> list[LogEvent]:
    """The lines of these signs a little above that say why."""
    return [
        other
        for other in logs.events
        if other.sign in signs
        and other.file == event.file
        and 0 < event.line - other.line <= _ABOVE
        and not MILD.match(other.text)
        and not meanings.ends_nothing(other)
        and tells_why(other)
    ]
