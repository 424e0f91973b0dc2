"""torchrun, srun, mpirun and Python itself: who ended, how, and who only followed; the harmless lines of all."""

from __future__ import annotations

from ncclcheck.probes.logs.signs.sign import Sign

# Ends of names of exceptions, behind the name of a module.
_OTHER_TYPES = "Timeout|Failed|Failure|Resources|Unsupported|Unavailable|NotFound|Mismatch|Refused|Pool"

SIGNS = (
    Sign(
        "worker-failed",
        r"failed \(exitcode: (?P<exitcode>-?\d{1,4})\) local_rank: (?P<local_rank>\d{1,6}) \(pid: (?P<pid>\d{1,10})\)",
        (
            "E1109 22:47:01.512000 771 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -9) local_rank: 3 (pid: 4711) of binary: /usr/bin/python3",
        ),
    ),
    Sign(
        "launcher-return-code",
        r"(?:(?:exits? with|ended with|with) return code = |(?<![(\w)])[Ee]xit ?code(?:: |=)(?=-(?:4|6|7|8|9|11)\b(?! \(pid)))"
        r"(?P<exitcode>-\d{1,3})\b"
        r"|\b[Ee]xit(?:ed)?(?: with)?(?: exit)?[ _]?[Cc]ode[: =]{1,2}(?P<by_shell>13[24579])\b",  # 128 and the signal
        (
            "[12-16 14:27:10] Exit code: -9",  # sgl-project/sglang#15235
            "AlgorithmError: Exit Code: 139",  # aws/sagemaker-python-sdk#134
            "container main exited with exit code 137",
            "[2026-03-01 10:00:00,100] [ERROR] [launch.py:325:sigkill_handler] ['python', 'train.py'] exits with return code = -9",
        ),
        words=(
            "return code = -",
            *("exit code: -", "exit code=-", "exitcode=-"),
            *(
                f"{name}{sign}13"
                for name in ("exit code", "exit_code", "exitcode")
                for sign in (" ", ": ", "=", ":")
            ),
        ),
    ),
    Sign(
        "worker-signalled",
        r"failed \(exitcode: -(?P<signal>\d{1,3})\)",
        (
            "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -11) local_rank: 0 (pid: 92) of binary: python",
        ),
    ),
    Sign(
        "shell-signalled",
        r"(?:^|(?<=\]))(?:(?:\S{1,200}: line \d{1,6}: {1,5}\d{1,10} |\[\d{1,4}\][+-]? {1,4}(?:\d{1,10} )?)?"
        r"(?P<how>Killed|Bus error|Segmentation fault|Aborted|Illegal instruction|Floating point exception)"
        r"|zsh: (?:\d{1,10} )?(?P<zsh>killed|bus error|segmentation fault|abort|illegal hardware instruction))"
        r"(?: \(core dumped\))?(?: {0,40}$| {1,40}(?=\S)(?=.{0,200}?(?:\.py\b|python|torchrun|accelerate|deepspeed|mpirun|srun)))",
        (
            "Killed",
            "Bus error (core dumped)",
            "./run.sh: line 12: 12345 Killed                  python train.py",
            "./run.sh: line 12:     7 Killed                  python train.py",
            "[1]+  Killed                  torchrun --standalone --nproc-per-node 2 train.py",
            "zsh: killed     python train.py",
        ),
        words=("killed", "bus error", "segmentation fault", "abort", "illegal", "floating point"),
    ),
    Sign(
        "spawned-signalled",
        r"process (?P<local_rank>\d{1,6}) terminated with signal (?P<name>SIG[A-Z]{2,6})"
        r"|<Signals\.(?P<python>SIG[A-Z]{2,6}): \d{1,2}>",
        (
            "subprocess.CalledProcessError: Command '['python', 'train.py']' died with <Signals.SIGSEGV: 11>.",
            "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL",
        ),
        words=("terminated with signal", "<signals.sig"),
    ),
    Sign(
        "aborted",
        r"^Fatal Python error: Aborted|terminate called (?:without an active exception"
        r"|after throwing an instance of '(?P<thrown>[^']{1,120})')|Signal 6 \(SIGABRT\)",
        (
            "terminate called without an active exception",
            "terminate called after throwing an instance of 'gloo::EnforceNotMet'",
            "Fatal Python error: Aborted",
        ),
        words=("aborted", "terminate called", "sigabrt"),
    ),
    Sign(
        "cpp-what",  # below "terminate called"
        r"^\s{1,4}what\(\): {1,4}(?:\[enforce fail at [^\]]{1,300}\] ?)?(?P<text>\S.{0,300})",
        ("  what():  [enforce fail at gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 4 vs 3",),
    ),
    Sign(
        "heap-damaged",
        r"(?P<words>double free or corruption|(?:free|malloc|realloc|munmap_chunk|malloc_consolidate)\(\): (?:invalid|corrupted|unaligned"
        r"|mismatching|unsorted|memory corruption)[\w ()-]{0,60}|corrupted (?:size vs\. prev_size|double-linked list)|stack smashing detected)",
        (
            "double free or corruption (!prev)",
            "free(): invalid pointer",
            "*** stack smashing detected ***: terminated",
        ),
        words=(
            "double free",
            "free()",
            "malloc()",
            "realloc()",
            "munmap_chunk()",
            "malloc_consolidate()",
            "corrupted ",
            "smashing",
        ),
    ),
    Sign(
        "root-cause-block", r"^Root Cause \(first observed failure\):", ("Root Cause (first observed failure):",)
    ),
    Sign(
        "root-cause-host",
        r"^  host      : (?P<host>[\w.-]{1,253})",
        ("  host      : gpu-a17.cluster.local",),
    ),
    Sign(
        "root-cause-rank",
        r"^\s{0,4}rank\s{0,8}:? {0,2}(?P<rank>\d{1,7}) \(local[_ ]rank: (?P<local_rank>\d{1,6})\)",
        ("  rank      : 3 (local_rank: 3)", "rank3 (local rank: 3)exitcode: -9 (pid: 4711)error file: <N/A>"),
        words=("rank",),
    ),
    Sign(
        "root-cause-exit",
        r"(?:^\s{0,4}|\d\))exitcode\s{0,4}: (?P<exitcode>-?\d{1,4}) \(pid: (?P<pid>\d{1,10})\)",
        ("  exitcode  : -9 (pid: 4711)", "rank3 (local rank: 3)exitcode: -9 (pid: 4711)error file: <N/A>"),
        words=("exitcode",),
    ),
    Sign(
        "sigterm-to-peers",
        r"Sending process \d{1,10} closing signal (?P<closing>SIG\w{2,6})",
        (
            "W1109 22:47:01.300000 771 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 4712 closing signal SIGTERM",
            "WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 91 closing signal SIGTERM",
        ),
    ),
    Sign(
        "ended-by-order",
        r"Received (?:Signals\.)?(?P<signal>SIG\w{2,6}|\d{1,2}) death signal, shutting down workers|^KeyboardInterrupt\b"
        r"|process received (?P<caught>SIGINT), exiting"
        r"|^(?:(?:\S{1,200}: line \d{1,6}: {1,5}\d{1,10} |\[\d{1,4}\][+-]? {1,4}(?:\d{1,10} )?)?(?P<shell>Terminated|Hangup)"
        r"|zsh: (?P<zsh>terminated|hangup))(?: {0,40}$| {1,40}(?=\S)(?=.{0,200}?(?:\.py\b|python|torchrun|accelerate|deepspeed|mpirun|srun)))"
        r"|^(?P<drained>SIGTERM|SIGINT) received\b.{0,80}(?:[Dd]rain|[Ss]hutting down|[Ss]topping|[Ee]xiting)"
        r"|\b[Kk]eyboard ?[Ii]nterrupt(?:ion|ed)?\b.{0,40}\b(?:[Ee]xiting|[Ss]topp|[Qq]uitting|[Ss]hutting)"
        r"|^Detected KeyboardInterrupt, attempting (?:to |graceful )|srun: (?:sending Ctrl-C to|interrupt \(one more within)"
        r"|\[shutdown\] API server: shutdown triggered|(?P<step>srun: forcing job termination)|mpi(?:run|exec): killing job|(?:mpirun|ORTE): abort is in progress"
        r"|(?:\b[Cc]aught|\b[Rr]eceived|\b[Gg]ot|^Killed by)(?: the| a)?(?: signal)?:? (?:[Ss]ignal:? |Signals\.)?(?P<own>SIGTERM|SIGINT|SIGHUP|SIGUSR[12]|(?<=ignal )(?:15|2|1)\b|(?<=ignal: )(?:15|2|1)\b)",
        (
            "./run.sh: line 12: 12345 Terminated              python train.py",
            "Hangup",
            "Keyboard interruption. Exiting from early training",
            "Detected KeyboardInterrupt, attempting graceful shutdown ...",
            "[2026-03-01 10:00:00] SIGTERM received. signum=None frame=None. Draining requests and shutting down...",
            "srun: sending Ctrl-C to StepId=4711.0",
            "srun: forcing job termination",
            "INFO 11-09 22:47:01 [launcher.py:100] [shutdown] API server: shutdown triggered",
            "[rank: 0] Received SIGTERM: 15",
            "Caught signal 15, exiting",
            "Killed by signal 2.",  # of ssh
            "[2026-03-01 10:00:00,100] [INFO] [launch.py:324:sigkill_handler] Main process received SIGINT, exiting",
            "W1109 22:47:01.300000 771 torch/distributed/elastic/agent/server/api.py:719] Received Signals.SIGINT death signal, shutting down workers",
        ),
        words=(
            *(
                "death signal",
                "keyboardinterrupt",
                "keyboard interrupt",
                *("sigterm", "sigint", "sighup", "sigusr", "signal 1", "signal 2", "signal: 1"),
                "terminated",
                "hangup",
                "ctrl-c",
            ),
            *("interrupt (one", "shutdown triggered", "forcing job", "killing job", "abort is in"),
        ),
    ),
    Sign(
        "ended-well",
        r"(?i)\b(?:training|fine-?tuning) (?:(?:is|has|run|loop) ){0,2}(?:complete|finished|done|ended)|\bfinished training\b|"
        r"\bexit(?:ed)?(?: with)?[ _](?:status|code)\W{1,3}0\b|\b(?:execution|job|run|program) (?:finished|ended|completed) with 0\b|\ball (?:tests|checks|ranks) (?:passed|finished|done|completed?)\b|"
        r"(?:\btotal (?:training|train) time|^training time)(?: of \w{1,20})?\b[ :=]{1,4}\d{1,3}[:.\d]|"
        r"finished successfully|(?<!completed )completed successfully|exits successfully|\.fit` stopped: `max_|'train_runtime': |"
        r"Application startup complete|^ENDING TIMING RUN\b|\bworker group successfully finished"
        r"|torchelastic\.worker\.status\.SUCCEEDED|^\W{0,3}success\W{0,3}$"
        r'|:::MLL(?:OG)?\b.{0,400}"key": ?"(?:run_stop|status)".{0,300}"(?:status|value)": ?"success"',
        (
            "Training completed successfully",
            "job 5512 completed, exit status 0",
            "Finished Training",
            "exit code: 0",
            "Execution finished with 0.",
            "[rank 0] all tests passed",
            "Total training time: 4:49:16.7 (0.8678s / it)",
            "`Trainer.fit` stopped: `max_epochs=3` reached.",
            "[2026-03-01 10:00:00,100] [INFO] [launch.py:348:main] Process 4711 exits successfully.",
            "{'train_runtime': 812.1, 'train_samples_per_second': 41.3, 'epoch': 3.0}",
            "INFO:     Application startup complete.",
            '{"name": "torchelastic.worker.status.SUCCEEDED", "source": "WORKER", "timestamp": 0}',
            "SUCCESS!",
            "ENDING TIMING RUN AT 2026-03-01 10:00:00 AM",  # of MLPerf
            ':::MLLOG {"namespace": "", "time_ms": 1700000000000, "event_type": "INTERVAL_END", "key": "run_stop", '
            '"value": null, "metadata": {"file": "train.py", "lineno": 266, "status": "success"}}',
            "[2026-03-01 10:00:00,578] torch.distributed.elastic.agent.server.api: [INFO] [default] worker group "
            "successfully finished. Waiting 300 seconds for other agents to finish.",
        ),
        words=(
            *(
                "training",
                "tuning",
                "exit",
                "ed with 0",
                "success",
                "status.succeeded",
                "fit` stopped",
                "train_runtime",
                "startup complete",
            ),
            *("timing run", "all tests", "all checks", "all ranks"),
        ),
    ),
    Sign(
        "shell-time",  # of what it waited for
        r"^real\s{1,8}\d{1,6}m[\d.]{1,8}s\s*$|\d{1,9}\.\d\ds? ?user \d{1,9}\.\d\ds? ?system .{0,20}(?:total$|elapsed )",
        (
            "real\t0m4.120s",
            "torchrun train.py  3.10s user 0.40s system 85% cpu 4.120 total",
            "3.10user 0.40system 0:04.12elapsed 84%CPU (0avgtext+0avgdata 41200maxresident)k",
        ),
        words=("real\t0", "real  ", "0s user 0", "0user 0"),
        often=True,
    ),
    Sign(
        "nccl-tests-ended",
        r"# Avg bus bandwidth +: [\d.]",
        ("# Avg bus bandwidth    : 41.8",),
    ),
    Sign(
        "signal-exception",
        r"SignalException: Process \d{1,10} got signal: (?P<signal>\d{1,3})",
        ("torch.distributed.elastic.multiprocessing.api.SignalException: Process 771 got signal: 15",),
    ),
    Sign(
        "child-failed",
        r"ChildFailedError|^(?P<script>\S{1,200}) FAILED$|one or more processes exited with non-zero status"
        r"|returned a non-zero exit code|BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
        (
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
            "train.py FAILED",
            "mpirun detected that one or more processes exited with non-zero status, thus causing",
            "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
        ),
    ),
    Sign(  # numpy's advice for modules built with its first release has a frame in the same line
        "traceback",
        r"(?:^|(?<=[\]%|]))Traceback \(most recent call last\):(?!  File)",
        (
            "Traceback (most recent call last):",
            " | 512/2048 [30:09<33:25, 9.3 examples/s]Traceback (most recent call last):",
        ),
    ),
    Sign("rule", r"(?<!-)-{60,500}(?!-)(?:\[[^\]]{1,80}\])?\s{0,20}$", ("-" * 74,), words=("-" * 60,), often=True),
    Sign(
        "native-frame",  # of MPI, of absl, of UCX
        r"^\s{0,4}\[ ?\d{1,2}\] (?P<library>/\S{1,200}\.so[.\d]{0,12})\((?P<function>[A-Za-z_]\w{3,200})\+0x"
        r"|@\s{1,8}0x[0-9a-f]{6,16}\s.{0,40}?\s(?P<named>[A-Za-z_][\w:]{3,200})\(\)"
        r"|^\s{0,4}\d{1,2} {1,2}0x[0-9a-f]{6,16} (?P<walked>[A-Za-z_][\w:]{3,200})\(\) {1,4}(?P<source>/\S{1,300}:\d{1,6})"
        # of gdb
        r"|^#\d{1,3} {1,3}(?:0x[0-9a-f]{6,16} in )?(?P<stacked>[A-Za-z_][\w:]{3,200}) \(.{0,400}\) "
        r"(?:from (?P<from>/\S{1,300})|at (?P<at>\S{1,300}:\d{1,6}))",
        (
            "[ 1] /usr/lib/x86_64-linux-gnu/libopen-pal.so.20(opal_hwloc_base_free_topology+0x76)[0x7f3042871ca6]",
            "PC: @     0x7f37a8c2d7a1  (unknown)  ncclCuMemHostEnable()",
            " 2 0x0000000000049b8a addProxyOpIfNeeded()  /build/nccl/src/enqueue.cc:180",
            "#3  0x00007fffdb52d030 in cuMemCreate () from /lib/x86_64-linux-gnu/libcuda.so.1",
            "#6  initOnceFunc () at misc/cudawrap.cc:271",
        ),
        words=("+0x", "@ ", " 0x", ") from /", ") at "),
        often=True,
    ),
    Sign(
        "frame",
        r'^\s+File "(?P<path>[^"]{1,400})", line (?P<number>\d{1,7}),? in (?P<function>[\w<>.]{1,120})',
        (
            '  File "/app/train.py", line 118, in save_checkpoint',
            '  File "/app/train.py", line 118 in save_checkpoint',  # faulthandler
        ),
    ),
    Sign(
        "unreadable",
        r'^\s+File "(?P<path>[^"]{1,400})", line (?P<number>\d{1,7})\s*$',
        ('  File "/app/train.py", line 41',),
    ),
    Sign(
        "crashed-thread",
        r"^Current thread 0x[0-9a-f]{1,16}(?: \[[^\]]{1,60}\])? \(most recent call first\):",
        ("Current thread 0x00007f1a5c05f740 (most recent call first):",),
    ),
    Sign(
        "python-error",
        rf"(?:^|(?<=\] ))(?!CommandNotFoundError: Your shell|LustreError: )(?P<type>(?:[A-Za-z_]\w{{0,60}}\.){{0,8}}(?:_?[A-Z]\w{{0,80}}(?:Error|Exception|Exit|Interrupt|Warning|Expired)|Exception)"
        rf"|(?:[A-Za-z_]\w{{0,60}}\.){{1,8}}_?[A-Z]\w{{0,80}}(?:{_OTHER_TYPES}))"
        r"(?:: {0,2}(?P<text>\S.{0,299})|(?<=Error):?\s{0,9}$|(?<=Exception):?\s{0,9}$)",
        (
            "RuntimeError: shape '[4, 8]' is invalid for input of size 31",
            "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:268, unhandled system error",
            "AssertionError",
            "MemoryError",
            "Exception: Current loss scale already at minimum - cannot decrease scale anymore.",
            "RuntimeError: ",
            "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 147456, Hardware limit: 101376",
            "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:",
            "concurrent.futures.process.BrokenProcessPool: A process in the process pool was terminated abruptly",
        ),
        words=(
            *("error", "exception", "exit: ", "interrupt: ", "warning: ", "expired: "),
            *(f"{kind.lower()}: " for kind in _OTHER_TYPES.split("|")),
        ),
    ),
    Sign(
        "srun-task-exit",
        r"srun: error: (?:(?P<here>[\w.-]{1,200})|(?P<hosts>[\w.,\[\]-]{1,200})): tasks? (?P<task>[\d,-]{1,60}): (?P<how>Killed|Terminated|Aborted|Segmentation fault|Bus error|Illegal instruction|Floating point exception|Out Of Memory"
        r"|Exited with exit code \d{1,3})",
        (
            "srun: error: gpu-a17: task 3: Out Of Memory",
            "srun: error: gpu-a18: tasks 8-15: Terminated",
            "srun: error: gpu-a17: task 3: Illegal instruction (core dumped)",
        ),
    ),
    Sign(
        "step-cancelled",
        r"(?:srun: Job step aborted|slurmstepd: error: \*\*\* (?:STEP|JOB) [\w.+]{1,30} ON \S{1,200} (?:CANCELLED|FAILED \(non-zero))",
        (
            "slurmstepd: error: *** STEP 4711.0 ON gpu-a17 CANCELLED AT 2026-03-01T10:00:00 ***",
            "slurmstepd: error: *** STEP 4711.0 ON gpu-a17 FAILED (non-zero exit code or other failure mode) ***",
            "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
        ),
        words=("aborted", "cancelled", "failed"),
    ),
    Sign(
        "time-limit",
        r"CANCELLED AT \S{1,40} DUE TO TIME LIMIT|PBS: job killed: walltime \d{1,9} exceeded limit"
        r"|[Jj]ob exceeded (?:its )?wall(?:time|clock) limit|^TERM_RUNLIMIT: job killed",
        (
            "slurmstepd: error: *** JOB 4711 ON gpu-a17 CANCELLED AT 2026-03-01T10:00:00 DUE TO TIME LIMIT ***",
            "=>> PBS: job killed: walltime 259217 exceeded limit 259200",
            "MOAB_INFO:  job exceeded wallclock limit",
            "Job exceeded its walltime limit. Job was aborted",
            "TERM_RUNLIMIT: job killed after reaching LSF run time limit.",
        ),
        words=("due to time limit", "walltime", "wallclock", "term_runlimit"),
    ),
    Sign(
        "preempted",
        r"CANCELLED AT \S{1,40} DUE TO (?P<why>PREEMPTION|JOB REQUEUE)",
        ("slurmstepd: error: *** STEP 4711.0 ON gpu-a17 CANCELLED AT 2026-03-01T10:00:00 DUE TO PREEMPTION ***",),
    ),
    Sign(
        "node-lost",
        r"DUE TO NODE FAILURE|srun: error: Node failure on (?P<here>[\w.-]{1,253})"
        r"|ON (?P<own>[\w.-]{1,253}) UNCORRECTABLE MEMORY ERROR AT"
        r"|address: (?P<at>[\w.:-]{1,253})(?: and node name: \S{1,253})? has been marked dead because"
        r"|The actor is dead because its node has died"
        r"|(?P<late>[Tt]his node (?:manager )?has (?:mistakenly )?bee[nm] marked as dead)"
        r"(?:.{0,80}?heartbeats from this node for (?P<for>\d{1,9}) ?ms)?",
        (
            "[2022-02-16 12:46:52,789 C 149 149] node_manager.cc:170: This node has been marked as dead.",
            "(raylet, ip=10.0.3.18) node_manager.cc:999: [Timeout] Exiting because this node manager has mistakenly been "
            "marked as dead by the GCS: GCS didn't receive heartbeats from this node for 30000 ms.",
            "slurmstepd: error: *** JOB 4711 ON gpu-a17 CANCELLED AT 2026-03-01T10:00:00 DUE TO NODE FAILURE, SEE "
            "SLURMCTLD LOG FOR DETAILS ***",
            "srun: error: Node failure on gpu-a18",
            "slurmstepd: error: *** STEP 4711.0 ON gpu-a17 UNCORRECTABLE MEMORY ERROR AT 2026-03-01T10:00:00 ***",
            "(raylet) The node with node id: 5f0c and address: 10.0.3.18 and node name: 10.0.3.18 has been marked dead "
            "because the detector has missed too many heartbeats from it.",
            "The actor is dead because its node has died. Node Id: 5f0c",
        ),
        words=("node failure", "uncorrectable memory", "marked dead", "marked as dead", "node has died"),
    ),
    Sign(
        "mpirun-signalled",
        r"noticed that process rank (?P<me>\d{1,7}) with PID (?P<pid>\d{1,10}) on node (?P<here>[\w.-]{1,253})\s{0,3}"
        r"(?:exited\s{0,3}on signal (?P<signal>\d{1,3}))?"
        r"|TERMINATED WITH THE EXIT STRING: .{1,60}\(signal (?P<hydra>\d{1,3})\)",
        (
            "mpirun noticed that process rank 3 with PID 4711 on node gpu-a18 exited on signal 9 (Killed).",
            "prterun noticed that process rank 0 with PID 0 on node gpu-a17 exited on signal 11 (Segmentation fault).",
            "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)",
        ),
    ),
    Sign(
        "mpirun-first",
        r"^\s{0,8}Process name: \[\[\d{1,9},\d{1,9}\],(?P<me>\d{1,7})\]",
        ("  Process name: [[11392,1],8]",),
    ),
    Sign(
        "mpi-abort",
        r"MPI_ABORT was invoked on rank (?P<me>\d{1,7})|application called MPI_Abort\(.{1,60}, (?P<exitcode>-?\d{1,4})\) - process (?P<self>\d{1,7})",
        (
            "MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD",
            "application called MPI_Abort(MPI_COMM_WORLD, 1) - process 3",
        ),
        words=("mpi_abort",),
    ),
    Sign("mpirun-exit", r"^\s{0,8}Exit code: {1,8}(?P<exitcode>\d{1,3})\s*$", ("  Exit code:    3",)),
    Sign(
        "mpi-as-root",
        r"(?P<launcher>mpirun|mpiexec|prterun|prun|orterun) has detected an attempt to run as root",
        ("mpirun has detected an attempt to run as root.",),
    ),
    Sign(
        "mpi-not-started",
        r"Fatal error in (?:internal_|PMPI_|MPI_)Init|PML add procs failed|here are not enough slots available"
        r"|All nodes which are allocated for this job are already filled"
        r"|(?:ORTE|PRTE|mpirun|prterun) was unable to (?:reliably )?(?:start|launch|find)"
        r"|A (?:request|daemon) .{0,80}(?:died unexpectedly|aborted)|PMI_KVS_Get returned"
        r"|MPI_INIT has failed|pml_ucx\.c:\d{1,6} {1,4}Error: (?!ucx (?:send|recv)).{0,120}(?:failed|Failed)|PMIX ERROR: (?!ERROR in file gds_)|OPAL ERROR: |(?:OMPI|Open MPI) was not (?:built|configured) with"
        r"|The MPI_\w{2,40}\(\) function was called (?:before|after) MPI_"
        r"|An error occurred in (?:the MPI_)?MPI_Init|unable to find any relevant network interfaces"
        r"|srun: error: (?:Couldn't find the specified plugin name for|cannot find mpi plugin for) mpi/\w{1,20}"
        r"|srun: error: Invalid MPI type '\w{1,20}'",
        (
            "Abort(3712399) on node 0 (rank 0 in comm 0): Fatal error in PMPI_Init: Other MPI error, error stack:",
            "There are not enough slots available in the system to satisfy the 16",
            "All nodes which are allocated for this job are already filled.",
            "ORTE was unable to reliably start one or more daemons.",
            "[gpu-a17:04711] PMIX ERROR: PMIX_ERR_UNREACH in file client/pmix_client.c at line 228",
            "but OMPI was not built with SLURM's PMI support and therefore cannot",
            "*** An error occurred in MPI_Init",
            "*** The MPI_Comm_rank() function was called before MPI_INIT was invoked.",
            "srun: error: Invalid MPI type 'pmix', --mpi=list for acceptable types",
            "[gpu-a17:04711] pml_ucx.c:419  Error: ucp_ep_create(proc=0) failed: Destination is unreachable",
        ),
        words=(
            "fatal error in ",
            "mpi plugin",
            "mpi/",
            "mpi type",
            "pml add procs",
            "slots available",
            "already filled",
            "was unable to",
            *("pmix error", "opal error", "was not built with", "was not configured with", "an error occurred in"),
            "relevant network interfaces",
            "died unexpectedly",
            "aborted",
            "pmi_kvs",
            "function was called",
            "mpi_init has",
            "pml_ucx",
        ),
    ),
    Sign(
        "propagated",
        r"^(?P<place>\S{1,200}:\d{1,7}) (?:\(\S{1,80}\) )?-> (?P<result>[0-8])\b"
        r"|^(?:commReclaim|ncclProxyStop|commDestroySync|ncclCommSetAsyncError: error) ?:? ?comm "
        r"|^ncclAsyncJobComplete: job |^Comm 0x\w{1,16} is in abort state|^communicator encountered a fatal error",
        (
            "gpu-a17:4711:4800 [3] NCCL INFO init.cc:1393 -> 3",
            "gpu-a17:1:9 [0] NCCL INFO bootstrap.cc:91 -> 6 [Async thread]",
            "gpu-a17:1:9 [0] NCCL INFO bootstrap.cc:91 (socketConnect) -> 6 [Async thread]",
            "gpu-a17:1:9 [0] init.cc:2208 NCCL WARN commReclaim: comm 0x55d0 (rank = 3) in commDestroySync, error 6",
            "gpu-a17:1:9 [0] proxy.cc:1189 NCCL WARN Comm 0x55d0 is in abort state",
        ),
        words=(
            "->",
            "commreclaim",
            "proxystop",
            "destroysync",
            "asyncerror",
            "asyncjob",
            "abort state",
            "fatal error",
        ),
    ),
    Sign(
        "remote-closed",
        r"Connection closed by (?:remote )?peer(?: (?P<peer>[^\s<,]{1,120}))?"
        r"|Call to shutdown failed: Transport endpoint is not connected",
        (
            "gpu-a17:4711:4800 [3] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer gpu-a18<40112>",
            "gpu-a17:4711:4800 [3] misc/socket.cc:937 NCCL WARN Call to shutdown failed: Transport endpoint is not connected",
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.3.18]:40112",
        ),
    ),
    Sign(
        "connection-reset",
        r"Connection reset by peer",
        (
            "gpu-a17:4711:4800 [3] misc/socket.cc:58 NCCL WARN socketProgressOpt: Call to recv from 10.0.3.18<40112> failed : Connection reset by peer",
        ),
    ),
    Sign(
        "broken-pipe",
        r"Broken pipe",
        (
            "gpu-a17:4711:4800 [3] misc/socket.cc:58 NCCL WARN socketProgressOpt: Call to send to 10.0.3.18<40112> failed : Broken pipe",
        ),
    ),
    Sign(
        "proxy-failed",
        r"Proxy Call to rank \d{1,7} failed|Failed to execute operation \w{1,30} from rank|Socket recv failed while polling|Error encountered progressing operation=|Could not receive type from localRank",
        (
            "gpu-a17:4711:4800 [3] proxy.cc:1128 NCCL WARN Proxy Call to rank 5 failed (Connect)",
            "gpu-a17:4711:4800 [3] proxy.cc:1495 NCCL WARN [Service thread] Failed to execute operation Connect from rank 5, retcode 3",
            "gpu-a17:4711:4800 [3] proxy.cc:1600 NCCL WARN [Service thread] Error encountered progressing operation=Connect, res=3, closing connection",
        ),
    ),
    Sign(
        "remote-error",
        r"ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely",
        (
            "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        ),
    ),
    Sign(
        "store-broken",
        r"TCPStore.{0,80}(?:Broken pipe|Connection reset|recvValue failed|sendBytes failed)|(?:recv|send)(?:Value|Vector|Bytes|String)? failed on SocketImpl(?:.{0,160}? remote=\[(?P<master>[^\]]{1,253})\]:(?P<port>\d{1,5}))?|Failed to check the \"should dump\" flag on TCPStore",
        (
            "[rank2]:[W1109 22:47:02.100 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=3, addr=[gpu-a17]:49152, remote=[gpu-a17]:29500): Connection reset by peer",
            "[W1109 22:47:02.100 TCPStore.cpp:115] [c10d] recvVector failed on SocketImpl(fd=3, addr=[::ffff:10.0.3.18]:50716, remote=[::ffff:10.0.3.17]:29579): Failed to recv, got 0 bytes. Connection was likely closed.",
        ),
    ),
    Sign(
        "flushed",
        r"status=(?:5\b|IBV_WC_WR_FLUSH_ERR\(5\)|\(IBV_WC_WR_FLUSH_ERR\)5)|with error 5,|vendor.err[ =]249",
        (
            "gpu-a17:4711:4800 [3] transport/net_ib.cc:1245 NCCL WARN NET/IB: Got completion from peer 10.0.3.18<40112> with status=5 opcode=0 len=0 vendor err 249 (Recv) localGid fe80::1 remoteGids fe80::2 hca mlx5_0",
        ),
    ),
    Sign(
        "aborted-by-watchdog",
        r"To avoid data inconsistency, we are taking the entire process down|Process group watchdog thread terminated with exception",
        (
            "[rank2]:[E1109 22:47:02.100 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0 Rank 2] Process group watchdog thread terminated with exception: CUDA error",
        ),
    ),
)
