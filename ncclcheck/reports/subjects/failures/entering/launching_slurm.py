"""What srun and a join say when a node cannot be entered or falls away, and what fixes it."""

from __future__ import annotations

from ncclcheck.reports.judgement.findings import admin, you
from ncclcheck.reports.subjects.failures.entering.launching import FELL_SILENT, LaunchCause

_SLURMD = (
    you("Exclude the node until it is repaired.", "sbatch --exclude={node} ..."),
    admin(
        "See whether slurmd answers there.",
        "scontrol show node {node}",
        "ssh {node} systemctl status slurmd",
    ),
)
_SLURMD_WHY = "One such node ends srun on all nodes: a job that starts with srun would not start."
_ENDED = "Slurm ended all that ran in it, on every node: this says nothing of the nodes."
_NEW_ALLOCATION = you("Start a new allocation: salloc -N 2, or sbatch.")
_SRUN = r"^srun: (?:error: )?"

SLURM = (
    LaunchCause(
        pattern=r"^.*\*\*\* (?P<kind>STEP|JOB) (?P<id>\S+) ON \S+ CANCELLED AT \S+ DUE TO (?P<said>[^*]+?) \*\*\*",
        what="Slurm cancelled {kind} {id}: {said}",
        owner="job",
        fix=(
            you(
                "See what Slurm says of the job; ask for more time, or for another queue.",
                "scontrol show job $SLURM_JOB_ID",
                "sbatch --time=HH:MM:SS ...",
            ),
        ),
        why=_ENDED,
        shared=True,
    ),
    LaunchCause(
        pattern=r"^.*\*\*\* (?P<kind>STEP|JOB) (?P<id>\S+) ON \S+ CANCELLED AT ",
        what="{kind} {id} was cancelled: by scancel, or with its job",
        owner="job",
        fix=(
            you(
                "Ask who ran scancel; the record says which user.",
                "sacct -j $SLURM_JOB_ID -o JobID,State,ExitCode,End,Comment",
            ),
            you("Run it again in an allocation that lasts."),
        ),
        why=_ENDED,
        shared=True,
    ),
    LaunchCause(
        pattern=r"(?i)^srun: .*(?:job prolog failed|prolog (?:failed|failure|error))",
        what="Slurm's prolog failed there, so that Slurm gives the node no task and drains it",
        by_prolog=True,
        owner="node",
        fix=(
            you("Exclude the node until it is repaired.", "sbatch --exclude={node} ..."),
            admin(
                "Read what the prolog complained of, correct that, and resume the node.",
                "scontrol show config | grep -iE 'prolog|slurmdlogfile'",
                "ssh {node} grep -i prolog /var/log/slurm/slurmd.log",
                "scontrol update nodename={node} state=resume",
            ),
        ),
        why="slurmd runs the site's prolog before a job's first task, and Slurm ends the job where it fails.",
    ),
    LaunchCause(
        pattern=_SRUN + r"\S+: tasks? \S+: Out Of Memory|oom[_-]kill event",
        what="the kernel killed what ran there for its memory: more than the job was given",
        owner="job",
        fix=(you("Ask for more memory for the job.", "sbatch --mem=0 ...   # all of each node"),),
        why=FELL_SILENT,
    ),
    LaunchCause(
        pattern=r"(?i)^(?:srun|slurmstepd\S*): error: .*(?:credential|munge)",
        what="Slurm's credential was refused there",
        owner="node",
        fix=(
            admin(
                "Set its clock and start munge there, with the same key as everywhere.",
                "timedatectl",
                "systemctl restart munge",
                "munge -n | ssh {node} unmunge",
            ),
        ),
        why="A munge credential holds for minutes, so a clock that is off makes every one look expired.",
    ),
    LaunchCause(
        pattern=r"^srun: error: Task launch for \S+ failed on node \S+: (?P<said>.*)",
        what="srun could not start a task there: {said}",
        owner="node",
        fix=_SLURMD,
        why=_SLURMD_WHY,
    ),
    LaunchCause(
        pattern=r"^ncclcheck: .*: srun started no agent there in (?P<seconds>\d+) s",
        what="srun started no task there in {seconds} s",
        owner="node",
        fix=_SLURMD,
        why=_SLURMD_WHY,
    ),
    LaunchCause(
        pattern=r"^srun ended on all nodes, for it failed on (?P<names>.+)",
        what="srun ended on all nodes, for it failed on {names}",
        owner="node",
        fix=(you("Leave out the node that it failed on.", "sbatch --exclude={names} ..."),),
        why="A consequence: one node that cannot be started ends srun on all.",
        shared=True,
    ),
    LaunchCause(
        pattern=_SRUN + r"Node failure on \S+",
        what="Slurm has lost this node",
        owner="node",
        fix=(admin("See why it is down.", "scontrol show node {node}", "ssh {node} systemctl status slurmd"),),
    ),
    LaunchCause(
        pattern=_SRUN + r"Nodes? \S+ (?:is|are) still not ready",
        what="Slurm still waits for this node: it boots, or its prolog runs",
        owner="node",
        fix=(admin("See what it waits for.", "scontrol show node {node}"), you("Try again once it is up.")),
    ),
    LaunchCause(
        pattern=_SRUN + r".*[Jj]ob allocation (?P<id>\d+) has been revoked",
        what="Slurm took back the allocation {id}: its time is over, it was cancelled, or a node failed",
        owner="job",
        fix=(you("See why.", "sacct -j {id} -o JobID,State,ExitCode,End"), _NEW_ALLOCATION),
        why=_ENDED,
        shared=True,
    ),
    LaunchCause(
        pattern=(
            _SRUN + r".*(?:job (?P<id>\d+): (?:Invalid job id|Job/step already compl)|[Ii]nvalid job (?P<id2>\d+)"
            r"|Slurm job (?P<id3>\d+) has expired)"
        ),
        what="the job of SLURM_JOB_ID has ended: {id}{id2}{id3}",
        owner="job",
        fix=(
            _NEW_ALLOCATION,
            you("In a shell that outlived its job take the variables away.", "unset ${{!SLURM_@}}"),
        ),
        why="Slurm knows no such job any more, so that it starts nothing in it: this says nothing of the nodes.",
        shared=True,
    ),
    LaunchCause(
        pattern=r"(?i)^srun: .*(?:unable to contact slurm controller|slurm controller not responding)",
        what="slurmctld does not answer, so that Slurm starts nothing",
        owner="site",
        fix=(admin("Start slurmctld.", "scontrol ping", "systemctl status slurmctld"),),
        why="This says nothing of the nodes.",
        shared=True,
    ),
    LaunchCause(
        pattern=_SRUN + r".*step creation (?:temporarily|still) disabled.*\((?P<said>[^)]*busy[^)]*)\)",
        what="another step of the same job holds what srun asks for, so that it waits: {said}",
        owner="job",
        fix=(
            you(
                "See which step it is and end it, or let steps share what they have.",
                "squeue --steps --me",
                "scancel $SLURM_JOB_ID.STEP",
                "export SLURM_OVERLAP=1",
            ),
        ),
        why="A step keeps its cores, memory and GPUs to itself until it ends: a second srun waits for ever.",
        shared=True,
    ),
    LaunchCause(
        pattern=r"^srun: fatal: (?P<said>SLURM_MEM_PER_CPU, SLURM_MEM_PER_GPU,? and SLURM_MEM_PER_NODE are .*)",
        what="srun starts nothing: {said}",
        owner="job",
        fix=(
            you(
                "See which of them are set, and keep one: the memory that the job was given stays the same.",
                "env | grep ^SLURM_MEM_PER",
                "unset SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU",
            ),
            you(
                "See where the second one is set.",
                "grep -rsn SLURM_MEM_PER SCRIPT ~/.bashrc ~/.profile /etc/profile.d",
            ),
        ),
        why="No srun of this shell starts anything while two of them are set: this says nothing of the nodes.",
        shared=True,
    ),
    LaunchCause(
        pattern=_SRUN + r".*(?P<said>(?:More processors|Memory required|More nodes) [^\n]*)",
        what="srun asks for more than the job was given: {said}",
        owner="job",
        fix=(
            you(
                "See what the job has, and ask for more.", "scontrol show job $SLURM_JOB_ID", "sbatch --mem=0 ..."
            ),
            you(
                "See whether SLURM_* or SRUN_* variables of the job ask for it.", "env | grep -E '^(SLURM|SRUN)_'"
            ),
        ),
        why="Slurm starts no task of such a step: this says nothing of the nodes.",
        shared=True,
    ),
    LaunchCause(
        pattern=_SRUN + r".*(?P<said>Required node not available[^\n]*)",
        what="Slurm has taken a node of the job out: {said}",
        owner="site",
        fix=(
            you("See which one and why, and start without it.", "sinfo -R", "sbatch --exclude=NODE ..."),
            admin("Repair and resume it.", "sinfo -R", "scontrol update nodename=NODE state=resume"),
        ),
        why="A node that was drained or went down gets no step any more, and srun then starts none at all.",
    ),
    LaunchCause(
        pattern=r"^slurmstepd\S*: error: .*execve\(\): (?P<path>[^:\n]+): (?P<said>.*)",
        what="the command could not be started there: {path}: {said}",
        owner="job",
        fix=(
            you(
                "See whether it is there: a home or an environment that is not shared.",
                "srun -w {node} ls -l {path}",
            ),
            admin("Mount there what the other nodes have.", "findmnt -T {path}"),
        ),
    ),
    LaunchCause(
        pattern=r"^slurmstepd\S*: error: .*(?P<said>[Ee]xceeded (?:job|step|task) memory limit[^\n]*)",
        what="Slurm killed it for its memory: {said}",
        owner="job",
        fix=(you("Ask for more memory for the job.", "sbatch --mem=0 ...   # all of each node"),),
        why=FELL_SILENT,
    ),
    LaunchCause(
        pattern=_SRUN + r"(?P<said>.*(?:Unable to create (?:job )?step|[Nn]odes are busy|Invalid node name).*)",
        what="Slurm creates no job step there: {said}",
        owner="site",
        fix=(
            you("See what Slurm says of the node.", "scontrol show node {node}", "squeue --steps --me"),
            admin(
                "If it is down or drained, repair and resume it.", "scontrol update nodename={node} state=resume"
            ),
        ),
    ),
    LaunchCause(
        pattern=r"^srun: (?:fatal|error): (?!\S+: tasks? )(?P<said>.+)",
        what="srun starts nothing: {said}",
        owner="job",
        fix=(
            you(
                "Correct what it names: an option, or a variable of the job that stands for one.",
                "env | grep -E '^(SLURM|SRUN)_'",
            ),
            you("See whether the plainest step starts, and what it says.", "srun -v --overlap -w {node} true"),
        ),
        why="srun refused it before any node was asked: this says nothing of the nodes.",
        begun=False,
        shared=True,
    ),
)

_AGAIN = you("Start the same command on every node again.")
JOIN = (
    LaunchCause(
        pattern=r"^.*joined and left again before the run began",
        what="its ncclcheck joined, and left again before the run began",
        owner="job",
        fix=(you("See on that node why: its own last lines, ^C, a scheduler that ended it."), _AGAIN),
    ),
    LaunchCause(
        pattern=r"^ncclcheck on this node was ended by signal (?P<number>\d+)",
        what="its ncclcheck was ended there by signal {number}",
        owner="job",
        fix=(you("See who ended it: ^C, a terminal that was closed (use tmux), a scheduler."), _AGAIN),
        why=FELL_SILENT,
    ),
    LaunchCause(
        pattern=r"^its connection closed; it had joined from (?P<address>\S+)",
        what="its ncclcheck is gone: its connection closed without a message",
        owner="node",
        fix=(
            you("See whether the node still runs, and whether ncclcheck was killed there.", "ping -c 3 {address}"),
            admin(
                "Look for a reboot or the OOM killer.",
                "last -x reboot | head -3",
                "dmesg -T | grep -i 'killed process'",
            ),
        ),
        why=FELL_SILENT,
    ),
    LaunchCause(
        pattern=r"^nothing was heard from it for (?P<seconds>\d+) s; it had joined from (?P<address>\S+)",
        what="nothing came from it for {seconds} s",
        guess="it is cut off, it hangs, or all of it is stopped",
        owner="node",
        fix=(
            you("See whether it still answers.", "ping -c 3 {address}"),
            admin("See whether the link or the whole machine was away.", "ip -s link", "dmesg -T | tail -50"),
        ),
        why=FELL_SILENT,
    ),
    LaunchCause(
        pattern=r"^they could not join: (?P<said>.*)",
        what="it could not join: {said}",
        owner="job",
        fix=(you("Take another port, on every node the same: see RUN007.", "ncclcheck explain RUN007"),),
    ),
)
