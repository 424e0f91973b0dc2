"""Commands that were not what the person meant: shells, torchrun's arguments, the environment, the backend."""

from __future__ import annotations

from ncclcheck.probes.logs.signs.sign import Sign

_Q = r"['\"`‘’“”]?"


def _raised(text: str) -> bool:
    """Whether a line tells of more than a warning: of an optional library the program goes on without."""
    return "Warning: " not in text


SIGNS = (
    Sign(
        "command-not-run",
        rf"failed to run (?:the )?command {_Q}(?P<command>[^\s'\"`‘’“”]{{1,200}})"
        rf"|execve\(\): (?P<execve>[^\s:]{{1,200}}): (?:No such file|Permission denied)"
        rf"|(?:line \d{{1,6}}|sh|bash|sudo): (?:\d{{1,6}}: )?(?P<shell>[^\s:]{{1,200}}): (?:command )?not found"
        rf"|(?:sh|bash|line \d{{1,6}}): (?P<program>/[^\s:]{{1,200}}/bin/[^\s:/]{{1,60}}): No such file"
        rf"|zsh: command not found: (?P<zsh>\S{{1,200}})"
        rf"|exec: {_Q}(?P<exec>[^\s'\"`‘’“”:]{{1,200}}){_Q}: (?:executable file )?not found"
        rf"|setsid: failed to execute (?P<setsid>[^\s:]{{1,200}})"
        rf"|(?:numactl|taskset|env|stdbuf|time): (?:failed to execute |cannot run "
        rf"|execution of )?{_Q}(?P<wrapped>[^\s'\"`‘’“”:]{{1,200}}){_Q}: No such file",
        (
            "nohup: failed to run command 'CUDA_VISIBLE_DEVICES=0,1': No such file or directory",
            "nohup: failed to run command ‘NCCL_DEBUG=INFO’: No such file or directory",
            "slurmstepd: error: execve(): NCCL_DEBUG=INFO: No such file or directory",
            "slurmstepd: error: execve(): torchrun: No such file or directory",
            "run.sh: line 12: torchrun: command not found",
            "sh: 1: pythom: not found",
            "bash: /opt/conda/envs/ds/bin/python: No such file or directory",
            "zsh: command not found: torchrun",
            'exec: "torchrun": executable file not found in $PATH: unknown',
            "setsid: failed to execute OMP_NUM_THREADS=8: No such file or directory",
            "env: ‘torchrun’: No such file or directory",
            "numactl: execution of `torchrun': No such file or directory",
        ),
    ),
    Sign(
        "command-denied",
        r"(?:(?:line \d{1,6}|sh|bash|sudo): (?:\d{1,6}: )?(?P<command>[^\s:]{0,200}\.(?:sh|py|bash)|[^\s:]{0,200}/bin/[^\s:]{1,80})"
        r": (?:cannot execute: )?Permission denied"
        r"|zsh: permission denied: (?P<zsh>\S{1,200})|execve\(\): (?P<execve>\S{1,200}): Permission denied)\s*$",
        (
            "slurmstepd: error: execve(): train.sh: Permission denied",
            "bash: line 1: ./see.sh: Permission denied",
            "sh: 1: ./train.py: Permission denied",
            "zsh: permission denied: ./run.sh",
        ),
        words=("permission denied",),
    ),
    Sign(
        "slurm-refused",
        r"(?:srun|sbatch|salloc): (?:fatal: (?P<fatal>.{3,160})|error: (?P<refused>Unable to (?:allocate resources"
        r"|create step for job \d{1,12}): .{3,160}|(?:Batch job submission|Job submit/allocate) failed: .{3,160}"
        r"|Failed to validate job spec\. .{3,160}|Step requested GRES .{3,60} not found in the job"
        r"|[Ii]nvalid (?:generic resource|partition|account|qos).{0,120}))",
        (
            "srun: fatal: Could not establish a configuration source",
            "srun: error: Unable to allocate resources: Invalid account or account/partition combination specified",
            "sbatch: error: Batch job submission failed: Requested node configuration is not available",
            "salloc: error: Job submit/allocate failed: Invalid account or account/partition combination specified",
            "sbatch: error: Failed to validate job spec. --gpus-per-task or --tres-per-task used without either --gpus or "
            "-n/--ntasks is not allowed.",
            "sbatch: error: Invalid generic resource (gres) specification",
            "srun: error: Step requested GRES (gpu:(null)) not found in the job",
        ),
        words=(
            *("fatal: ", "unable to ", "submission failed", "allocate failed", "validate job spec"),
            *(
                "step requested gres",
                "invalid generic resource",
                "invalid partition",
                "invalid account",
                "invalid qos",
            ),
        ),
    ),
    Sign(
        "slurm-launch-failed",
        r"Task launch for \S{1,40} failed on node (?P<here>[\w.-]{1,200}): (?P<why>.{3,120})"
        r"|(?:Task)?Prolog failed status=(?P<prolog>-?\d{1,5})(?: on (?P<node>[\w.-]{1,200}))?"
        r"|Application launch failed: (?P<launch>.{3,120})|slurm\w{0,10}: error: (?P<munge>.{0,60}[Mm]unge.{3,120})"
        r"|(?P<allocation>Unable to confirm allocation for job \d{1,12}: .{3,120})",
        (
            "srun: error: Task launch for StepId=4711.0 failed on node gpu-a17: Job credential expired",
            "srun: error: Application launch failed: Communication connection failure",
            "slurmstepd: error: TaskProlog failed status=1",
            "slurmd: error: Munge decode failed: Expired credential",
            "srun: error: Unable to confirm allocation for job 4711: Invalid job id specified",
        ),
        words=("task launch for", "prolog failed", "launch failed", "munge", "unable to confirm allocation"),
    ),
    Sign(
        "executable-missing",
        r"^\s*Executable: (?P<command>\S{1,200})\s*$",
        ("Executable: NCCL_DEBUG=INFO",),
    ),
    Sign(
        "script-missing",
        rf"can't open file {_Q}(?P<script>[^'\"`‘’“”]{{1,400}}?){_Q}: \[Errno 2\]",
        ("/usr/bin/python3: can't open file '/home/ada/trian.py': [Errno 2] No such file or directory",),
    ),
    Sign(
        "module-missing",
        r"(?:^|/)python[\d.]{0,8}: No module named (?P<module>[\w.'-]{1,120})|No module named '(?P<torch>torch)'"
        r"|Error while finding module specification for '(?P<spec>[\w.-]{1,120})'",
        (
            "/usr/bin/python3: No module named torch.distributed.run",
            "/usr/bin/python3: Error while finding module specification for 'trian.main' (ModuleNotFoundError: No "
            "module named 'trian')",
            "ModuleNotFoundError: No module named 'torch'",
        ),
    ),
    Sign(
        "torchrun-arguments",
        r"^(?:torchrun|run\.py|launch\.py|__main__\.py|python[\d.]{0,8} -m torch\.distributed\.(?:run|launch)): error: (?P<message>.{1,300})",
        (
            "torchrun: error: unrecognized arguments: --nproc-per-nod=8",
            "torchrun: error: the following arguments are required: training_script, training_script_args",
            "launch.py: error: argument --nnodes: expected one argument",
            "python3.14 -m torch.distributed.run: error: unrecognized arguments: --nproc-per-nod=8",
        ),
    ),
    Sign(
        "script-arguments",
        r"(?:^|(?<=[\s\]|>：]))(?P<script>(?!torchrun|run\.py|launch\.py|__main__\.py)[\w.-]{1,120}\.py): error: "
        r"(?P<message>.{1,300})"
        r"|^(?P<program>(?!torchrun|run\.py|launch\.py|__main__\.py)[\w.-]{1,120}(?: [\w-]{1,40}){0,2}): error: (?P<parsed>(?:"
        r"unrecognized arguments|argument |the following arguments are required|one of the arguments|ambiguous option).{0,300})"
        r"|^Error: (?P<click>(?:No such (?:option|command)|Missing (?:option|argument|parameter)|Invalid value(?: for)?|Got unexpected"
        r" extra argument|Option '\S{1,60}' requires)\b.{0,300})"
        r"|^ERROR: (?P<fire>Could not consume arg: .{1,200})|^FATAL Flags parsing error: (?P<flags>.{1,300})"
        r"|^(?P<hydra>Could not override '.{1,200}|In '[^']{1,120}': Could not find '.{1,200}|Cannot find primary config '.{1,200}"
        r"|Primary config (?:directory|module) .{0,200}not found.{0,120}|You must specify '.{1,200}|Error parsing override '.{1,200}"
        r"|(?:mismatched|extraneous|no viable alternative at) input '.{1,200})",
        (
            "train.py: error: unrecognized arguments: --local-rank=3",
            "vllm serve: error: unrecognized arguments: --tensor-paralel-size 2",
            "Error: No such option: --batchsize Did you mean --batch-size?",
            "ERROR: Could not consume arg: --lrr=1e-4",
            "FATAL Flags parsing error: Unknown command line flag 'lrr'. Did you mean: lr ?",
            "2026-03-01 10:00:00 worker 3 | train.py: error: unrecognized arguments: --local-rank=3",
            "Could not override 'trainer.gpus'.",
            "In 'train': Could not find 'data/imagenet'",
        ),
        words=(
            *(
                ".py: error: ",
                "error: unrecognized arguments",
                "error: argument ",
                "error: the following arguments",
            ),
            *("error: one of the arguments", "error: ambiguous option", "error: no such ", "error: missing "),
            *(
                "error: invalid value",
                "error: got unexpected",
                "error: option '",
                "consume arg: ",
                "flags parsing",
            ),
            *(
                "could not override '",
                "could not find '",
                "primary config ",
                "you must specify '",
                "parsing override",
            ),
            *("mismatched input", "extraneous input", "viable alternative"),
        ),
    ),
    Sign(  # argparse prints it before its error, and where it is asked for help
        "script-usage",
        r"^usage: (?P<script>(?!torchrun|run\.py|launch\.py|__main__\.py)[\w.-]{1,120}\.py) (?P<shown>.{1,300})",
        ("usage: train.py [-h] --conf CONF [--local_rank LOCAL_RANK]",),
    ),
    Sign(
        "usage-local-rank",
        r"^\s*\[?(?:usage: .{1,300}\[)?--(?P<form>local[_-]rank) [\w{}]{1,40}\]",
        ("                [--local_rank LOCAL_RANK] [--resume]", "usage: train.py [-h] [--local_rank LOCAL_RANK]"),
        words=("--local-rank", "--local_rank"),
    ),
    Sign(
        "launch-hands-rank",
        r"If your script expects `--local-rank` argument to be set",
        ("If your script expects `--local-rank` argument to be set, please",),
    ),
    Sign(
        "usage-help",
        r"^(?:options|optional arguments|positional arguments|required arguments):\s*$",
        ("options:", "optional arguments:"),
        words=("options:", "arguments:"),
    ),
    Sign(
        "torchrun-values",
        r"(?P<processes>Unsupported nproc_per_node value:(?! \{)(?: .{1,60}|\s*$))|(?P<nodes>nnodes=.{1,40} is not in "
        r"\"MIN:MAX\" format)"
        r"|(?P<bounds>min_nodes must be > 0 and <= max_nodes.{0,80}|assert 0 < min_nodes <= max_nodes)"
        r"|(?P<backend>The rendezvous backend '.{1,40}' is not registered)"
        r"|(?P<endpoint>(?:The )?(?:\w{1,20} ){0,3}of the rendezvous endpoint '.{0,200}' must be .{1,80})",
        (
            "ValueError: Unsupported nproc_per_node value: eight",
            "    assert 0 < min_nodes <= max_nodes",
            'RuntimeError: nnodes=1:2:3 is not in "MIN:MAX" format',
            "ValueError: The rendezvous backend 'c10' is not registered. Did you forget to call `register`?",
            "ValueError: The port number of the rendezvous endpoint 'gpu-a17:abc' must be an integer between 0 "
            "and 65536.",
        ),
        words=("nproc_per_node", "nnodes=", "min_nodes", "rendezvous"),
    ),
    Sign(
        "no-endpoint",
        r"(?:rank|endpoint) is absent in RendezvousParameters|Endpoint is missing in endpoint"
        r"|ort is (?:missing|absent) in endpoint: (?P<endpoint>\S{0,200})",
        (
            "ValueError: endpoint is absent in RendezvousParametersTry add --master-port and --master-addr to "
            "the cmd request",
            "ValueError: port is missing in endpoint: gpu-a17. Try to specify --master-port",
        ),
    ),
    Sign(
        "master-not-used",
        r"master_addr is only used for static rdzv_backend and when rdzv_endpoint",
        (
            "W1109 22:40:00.000000 771 torch/distributed/run.py:855] master_addr is only used for static "
            "rdzv_backend and when rdzv_endpoint is not specified.",
        ),
    ),
    Sign(
        "node-rank-not-used",
        r"node_rank is only used for static rdzv_backend",
        (
            "W1109 22:40:00.000000 771 torch/distributed/run.py:865] node_rank is only used for static "
            "rdzv_backend. It will be ignored for rdzv_backend=c10d.",
        ),
    ),
    Sign(
        "variable-not-set",
        r"[Ee]nvironment variable (?P<name>\w{1,60}) expected, but not set"
        r"|raise _env_error\(['\"](?P<raised>\w{1,60})"
        r"|^'(?P<bare>RANK|LOCAL_RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT)'$"
        r"|KeyError: '(?P<key>RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT)'",
        (
            "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable "
            "RANK expected, but not set",
            "KeyError: 'LOCAL_RANK'",
            '    raise _env_error("MASTER_ADDR")',
            "'LOCAL_RANK'",
        ),
        words=(
            "environment variable",
            "_env_error",
            "keyerror",
            "'rank'",
            "'local_rank'",
            "'world_size'",
            "'master_",
        ),
    ),
    Sign(
        "no-number",
        r"ValueError: invalid literal for int\(\) with base 10: '(?P<value>[^']{0,80})'",
        ("ValueError: invalid literal for int() with base 10: 'two'",),
    ),
    Sign(
        "environment-read",
        r"torch/distributed/rendezvous\.py\", line \d{1,7}, in _env_rendezvous_handler",
        ('  File "/opt/torch/distributed/rendezvous.py", line 258, in _env_rendezvous_handler',),
    ),
    Sign(
        "group-not-made",
        r"Default process group has not been initialized|Default process group is not initialized",
        (
            "ValueError: Default process group has not been initialized, please make sure to call "
            "init_process_group.",
            "AssertionError: Default process group is not initialized",
        ),
    ),
    Sign(
        "group-made-twice",
        r"trying to initialize the default process group twice",
        ("ValueError: trying to initialize the default process group twice!",),
    ),
    Sign(
        "no-cuda",
        r"ProcessGroupNCCL is only supported with GPUs, no GPUs found|ValueError: Cuda is not available"
        r"|No CUDA GPUs are available|(?<!NO_DEVICE: )no CUDA-capable device is detected|Torch not compiled with CUDA enabled"
        r"|module 'torch\._C' has no attribute '(?P<lacks>_cuda_\w{1,60})'|Found no NVIDIA driver on your system",
        (
            "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
            "ValueError: Cuda is not available.",
            "RuntimeError: No CUDA GPUs are available",
            "AssertionError: Torch not compiled with CUDA enabled",
            "AttributeError: module 'torch._C' has no attribute '_cuda_setDevice'",
        ),
    ),
    Sign(
        "not-divisible",
        r"(?P<told>[^:]{0,120}\bmust be divisible by\b.{0,120})|(?:Error|Exception): (?P<raised>.{0,120}\b(?:(?:is|are) not|not|(?:should|needs? to|ha(?:s|ve) to|must) be(?: evenly| exactly)?) divisible by\b"
        r".{0,80})|Error: (?P<nought>[Mm]icro[ _]batch[ _]size per gpu: 0 has to be greater than 0)|(?P<batch>train_batch_size is not(?: equal to .{3,120})?)",
        (
            "ValueError: Total number of attention heads (12) must be divisible by tensor parallel size (8).",
            "AssertionError: 25 is not divisible by 4",
            "ValueError: intermediate_size 18944 needs to be divisible by tensor parallel size (5)",
            "AssertionError: Micro batch size per gpu: 0 has to be greater than 0",
            "AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * "
            "gradient_acc_step * world_size 256 != 2 * 18 * 7",
        ),
        words=("divisible by", "train_batch_size is not", "has to be greater than 0"),
    ),
    Sign(
        "disk-full",
        r"OSError: \[Errno (?:28|122)\] (?P<error>No space left on device|Disk quota exceeded)(?:: '(?P<path>[^']{1,300}))?"
        r"|(?P<write>write\(\): fd \d{1,7} failed with (?:Input/output error|No space left on device|Disk quota exceeded))"
        r"|^(?P<program>[a-z][\w.+/-]{0,40}): (?:[^\n]{0,200}: )?(?P<full>No space left on device|Disk quota exceeded)(?: \(\d{1,3}\))?\s{0,3}$"
        r"|(?P<torch>PytorchStreamWriter failed writing file)|(?P<zip>unexpected pos \d{1,20} vs \d{1,20})",
        (
            "OSError: [Errno 28] No space left on device",
            "OSError: [Errno 122] Disk quota exceeded: 'out/checkpoint-500/optimizer.pt'",
            "tee: write error: Disk quota exceeded",
            "cp: error writing 'out/step-200.pt': No space left on device",
            "RuntimeError: write(): fd 29 failed with Input/output error",
            "RuntimeError: [enforce fail at inline_container.cc:764] . PytorchStreamWriter failed writing file data/12: file "
            "write failed",
            "RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 576 vs 470",
        ),
        words=("no space left", "disk quota", "write(): fd", "pytorchstreamwriter", "unexpected pos"),
    ),
    Sign(
        "weights-differ",
        r"size mismatch for (?P<name>\S{1,200}): copying a param with shape (?P<have>torch\.Size\(\[[\d, ]{0,80}\]\)) from "
        r"checkpoint, the shape in current model is (?P<want>torch\.Size\(\[[\d, ]{0,80}\]\))"
        r"|Trying to set a tensor of shape (?P<given>torch\.Size\(\[[\d, ]{0,80}\]\)) in \"(?P<weight>[^\"\s]{1,200})\" "
        r"\(which has shape (?P<holds>torch\.Size\(\[[\d, ]{0,80}\]\))\)"
        r"|Error\(s\) in loading state_dict for (?P<model>\w{1,120})",
        (
            "        size mismatch for model.norm.weight: copying a param with shape torch.Size([1024]) from checkpoint, the "
            "shape in current model is torch.Size([4096]).",
            "RuntimeError: Error(s) in loading state_dict for DistributedDataParallel:",
            'ValueError: Trying to set a tensor of shape torch.Size([4096, 512]) in "weight" (which has shape '
            "torch.Size([0])), this look incorrect.",
        ),
    ),
    Sign(
        "checkpoint-without-metadata",  # a line of torch.distributed.checkpoint's planner, in a traceback
        r"(?:^|\]:)\s*assert (?:self\.)?metadata is not None\s*$",
        ("    assert metadata is not None", "- INFO - [rank7]:     assert metadata is not None"),
    ),
    Sign(
        "extension-symbol",
        r"(?P<file>[\w.-]{1,120}\.so)\S{0,20}: undefined symbol: (?P<symbol>_Z\w{0,200}(?:3c10|5torch|2at)\w{0,300})"
        r"|ImportError: /\S{1,300}/(?P<cut>[\w.-]{1,120}\.cpython-\d{2,3}[\w-]{0,40}(?:\.so?)?)$",
        (
            "ImportError: /opt/venv/lib/python3.11/site-packages/flash_attn_2_cuda.cpython-311-x86_64-linux-gn",
            "ImportError: /opt/venv/lib/python3.12/site-packages/flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so: undefined "
            "symbol: _ZN3c105ErrorC2ENS_14SourceLocationE",
        ),
        check=_raised,
    ),
    Sign(
        "loss-scale-lowest",
        r"Current loss scale already at minimum|Minimum loss scale reached|overflow.{0,60}loss scale.{0,40}minimum"
        r"|[Aa]ttempted loss scale: (?P<scale>1(?:\.0{1,4})?|0?\.\d{1,9}|0), reducing to (?P=scale)(?![\d.]\d)",
        (
            "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
            "[deepscale] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 1, reducing to 1",
            "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding.",
        ),
        words=("loss scale",),
    ),
    Sign(
        "cuda-forked",
        r"Cannot re-initialize CUDA in forked subprocess",
        (
            "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use "
            "the 'spawn' start method",
        ),
    ),
    Sign(
        "no-nccl",
        r"Distributed package doesn't have NCCL",
        ("RuntimeError: Distributed package doesn't have NCCL built in",),
    ),
    Sign(
        "on-windows",
        r"^\s{0,8}[A-Z]:\\\w|[ \"][A-Z]:\\[\w.-]{1,60}\\|not supported in Windows|\(system error: 1\d{4} - ",
        (
            "NOTE: Redirects are currently not supported in Windows or MacOs.",
            "[W C:\\actions-runner\\_work\\pytorch\\socket.cpp:558] [c10d] The client socket has failed to connect to [ws2]",
            '  File "C:\\Users\\me\\train.py", line 3, in <module>',
        ),
        words=(":\\", "supported in windows", "system error: "),
        often=True,
    ),
    Sign(
        "wrong-backend",
        r"No backend type associated with device type (?P<device>\w{1,20})|Tensors must be CUDA and dense"
        r"|Only CUDA dense tensor is supported for NCCL"
        r"|Unknown (?:c10d )?backend type (?P<backend>\S{1,40})|Invalid backend: (?P<invalid>'[^\s,]{1,40})\.?$",  # of torch.compile it goes on
        (
            "RuntimeError: No backend type associated with device type cpu",
            "RuntimeError: Tensors must be CUDA and dense",
            "AssertionError: Unknown backend type ncl",
            "ValueError: Invalid backend: 'ncl'",
        ),
    ),
    Sign(
        "wrong-buffer",
        r"^(?P<call>\w{1,40}) : (?P<buffer>\w{1,40})(?: (?P<address>0x[0-9a-f]{1,16}|\(nil\)))? "
        r"(?:is not a valid pointer|allocated on device (?P<of>\d{1,4}) mismatchs with NCCL device (?P<mine>\d{1,4}))",
        (
            "elm4:311:311 [0] argcheck.cc:14 NCCL WARN AllReduce : sendbuff 0x40 is not a valid pointer",
            "elm4:311:311 [0] misc/argcheck.cc:14 NCCL WARN Broadcast : recvbuff is not a valid pointer",
            "elm4:311:311 [0] misc/argcheck.cc:19 NCCL WARN AllReduce : sendbuff allocated on device 1 mismatchs with NCCL "
            "device 0",
        ),
    ),
)
