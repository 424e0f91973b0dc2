"""Exceptions of Python by their words: what stands behind each family, and what fixes it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ncclcheck.probes.facts import LogEvent
from ncclcheck.reports.judgement.findings import Remedy, admin, you


class Family(NamedTuple):
    """Exceptions with one reason. words: searched for in `type: message`. of_all: no rank is at fault."""

    words: re.Pattern[str]
    why: str
    fix: tuple[Remedy, ...]
    of_all: bool = False


def made(words: str, why: str, *fix: Remedy, of_all: bool = False) -> Family:
    """A family, its words compiled."""
    return Family(re.compile(words), why, fix, of_all)


_PACKAGES = "python -m pip list | grep -iE 'torch|nvidia|flash|xformers|vllm|transformers|deepspeed|numpy'"
_FAMILIES = (
    made(
        r"make_empty_intermediate_tensors|SupportsPP|[Pp]ipeline parallel\w{0,4} (?:is|are) (?:not|only)",
        "The model does not have what pipeline parallelism asks for, in this release of the engine.",
        you("Spread it by tensor parallelism alone.", "vllm serve MODEL --pipeline-parallel-size 1 "
            "--tensor-parallel-size 8"),
        you("Or take a release in which the model supports it."),
    ),
    made(
        r"tcp_transport\.cpp.{0,60}Body failed.{0,40}Bad address",
        "The transfer engine (Mooncake) sends by TCP from memory that the kernel cannot read: as a rule a GPU's.",
        you("Let it take RDMA, by the cards of the compute network.",
            "python -m sglang.launch_server --disaggregation-ib-device mlx5_0 ..."),
        you("Without RDMA take a release of it whose TCP transport copies through the host."),
    ),
    made(
        r"transport retry counter exceeded",
        "Packets between two cards were never acknowledged: the cards that are paired do not reach each other, or "
        "a link is down.",
        you("Confirm: the pair of cards that the line names.", "ib_write_bw -d mlx5_0   # there",
            "ib_write_bw -d mlx5_0 HOST   # here"),
        you("Name the cards that reach each other, the same on both sides."),
        admin("Look at the links and the fabric's routes.", "ibstat", "rdma link"),
    ),
    made(
        r"op\.preamble\.length <= op\.nbytes|op\.nbytes (?:>=|==) op\.preamble",
        "Two ranks of a gloo group called one collective with tensors of different sizes, or different "
        "collectives.",
        you("Confirm: torch compares what the ranks call, and names the first difference.",
            "export TORCH_DISTRIBUTED_DEBUG=DETAIL"),
        you("Give it the same shape and dtype on all ranks, in the same order; one group is used by one thread at "
            "a time. Within an engine take a release in which its ranks agree."),
    ),
    made(
        r"hostname can't be empty|unsupported gloo device",
        "gloo looks for an address of the host's own name, and this host has no name or no address that it can "
        "use.",
        you("Confirm: both print something.", "python -c 'import socket; print(socket.gethostname())'",
            "python -c 'import socket; print(socket.gethostbyname(socket.gethostname()))'"),
        you("Tell gloo the interface, on all nodes.", "export GLOO_SOCKET_IFNAME=eth0"),
        admin("Give the host a name that its own /etc/hosts (on Windows: the network) resolves."),
    ),
    made(
        r"NPU function error|\bACL (?:stream|error)|\baclrt?\w{4,}|error code(?: is|:) ?507\d{3}|\bHCCL\b"
        r"|\brt[A-Z]\w{3,40} execute failed|\bretCode=0x7\d{6}",
        "A call of Ascend's CANN failed; torch only hears of it later. CANN's own lines (EZ9999, EI0002, ...), "
        "above or below, name the kernel or the rank.",
        you("Confirm: where it fails, one kernel at a time, and what the device says.",
            "export ASCEND_LAUNCH_BLOCKING=1", "npu-smi info"),
        you("Read CANN's log of that process, to its first ERROR.", "ls ~/ascend/log/debug/plog"),
        you("Take releases of CANN, torch_npu and the operators that go together."),
    ),
    made(
        r"(?:DEADLINE_EXCEEDED|UNAVAILABLE).{0,200}(?:Barrier|RegisterTask|Coordination|all addresses)"
        r"|PjRT_Client_Connect|coordination service as cluster registration failed|CoordinationService/",
        "JAX's processes meet at a coordinator: not all of them came in time, or it is not reached.",
        you("Confirm: every process was started, with one coordinator and its own process_id.",
            "env | grep -iE 'coordinator|process_id|num_processes'", "nc -vz COORDINATOR PORT"),
        you("Start those that are missing; where they come late, wait longer.",
            "jax.distributed.initialize(..., initialization_timeout=1800)"),
        admin("Open the coordinator's port between the nodes."),
    ),
    made(
        r"DistributedOperationException|accelerate\.utils\.operations",
        "accelerate compared the tensors of one gather or reduce: their lengths differ between the ranks, as "
        "they do where each pads to its own longest sample. No rank is at fault.",
        you("Confirm: the list of input shapes below the exception differs in one dimension."),
        you("Bring them to one length on all ranks before the call.",
            "tensor = accelerator.pad_across_processes(tensor, dim=1, pad_index=0)"),
        you("Or pad every batch to one fixed length (padding='max_length'); where the call is a Trainer's own, "
            "update that library."),
        of_all=True,
    ),
    made(
        r"RESOURCE_EXHAUSTED.{0,120}(?:memory|allocat|hbm)|Ran out of memory in memory space",
        "The step needs more memory (HBM) than one device has.",
        you("Confirm: XLA lists the largest allocations below the exception."),
        you("Let it take less: a smaller micro batch or shorter sequences, activation checkpointing, bf16."
            ),
        you("Or spread weights and optimizer state over more devices (FSDP, tensor parallel)."),
    ),
    made(
        r"DatasetNotFound|Dataset \S{1,80} (?:not found|doesn't exist)|BuilderConfig .{0,80}not found"
        r"|Unknown split",
        "The dataset is not where it is looked for: its name, its configuration, or the folder of this node.",
        you("Confirm, on the node that failed.", "ls DATA_FOLDER; env | grep -iE 'TFDS|HF_'"),
        you("Correct the name, or prepare the dataset once in the folder that all nodes read."),
    ),
    made(
        r"GLIBC(?:XX)?_[\d.]+' not found|CXXABI_[\d.]+' not found",
        "The library was built on a newer system than the one it is loaded on; each node or image may differ.",
        you("Confirm: the newest version that is there.",
            "strings $(gcc -print-file-name=libstdc++.so.6) | grep GLIBCXX | tail -1",
            "ldd --version | head -1"),
        you("GLIBCXX: let a newer libstdc++ be found first (conda's), or delete a cached build.",
            "conda install -c conda-forge libstdcxx-ng", "rm -rf ~/.cache/torch_extensions"),
        you("GLIBC itself cannot be updated: build the library here, take an older wheel, or run in a container."),
    ),
    made(
        r"__nvJitLink|libnvJitLink|undefined symbol: (?:__cu|cu(?:sparse|blas|solver|fft)|_?_?nv)",
        "As a rule two releases of CUDA's libraries meet: one from pip beside torch, another one from "
        "LD_LIBRARY_PATH.",
        you("Confirm: what already exists there.", "echo $LD_LIBRARY_PATH", _PACKAGES),
        you("Let torch find its own.", "unset LD_LIBRARY_PATH"),
        you("Or install torch anew with all that it wants.", "python -m pip install --force-reinstall torch"),
    ),
    made(
        r"lib(?:cudart|cublas|cudnn|nvrtc|cufft|cusparse|cusolver|nvJitLink|nvToolsExt"
        r"|cupti)[\w.-]{0,20}: cannot open shared",
        "As a rule an extension was built for another release of CUDA than the one of torch in this environment.",
        you("Confirm: the number in the library's name against torch's CUDA.",
            "python -c 'import torch; print(torch.__version__, torch.version.cuda)'", _PACKAGES),
        you("Install the extension for torch's CUDA, in the same environment on all nodes."),
    ),
    made(
        r"cannot open shared object file|DLL load failed",
        "A system library that the module wants is not installed on this node, or not where it is looked for.",
        you("Confirm: which one is missing.", "ldd FILE.so | grep 'not found'"),
        you("Install it in the image or environment of all nodes, or add its folder to LD_LIBRARY_PATH."),
    ),
    made(
        r"numpy\.dtype size changed|_ARRAY_API not found|compiled using NumPy 1\.x|numpy\.core\.multiarray failed",
        "As a rule the module was compiled for another major version of numpy.",
        you("Take the numpy that it was built for, or a newer release of the module.",
            "python -m pip install 'numpy<2'"),
    ),
    made(
        r"cuDNN version incompatibility|CUDNN_STATUS_(?:VERSION_MISMATCH|SUBLIBRARY)",
        "A cuDNN of LD_LIBRARY_PATH is taken in place of the one that came with torch.",
        you("Confirm: where it comes from.", "echo $LD_LIBRARY_PATH; ldconfig -p | grep libcudnn"),
        you("Take its folder out.", "unset LD_LIBRARY_PATH"),
    ),
    made(
        r"CUBLAS_STATUS_(?:NOT_INITIALIZED|ALLOC_FAILED)|CUDNN_STATUS_(?:NOT_INITIALIZED|ALLOC_FAILED"
        r"|INTERNAL_ERROR)",
        "The library found no room for its workspace: as a rule the GPU's memory is full, or an earlier kernel "
        "failed (an index out of range).",
        you("Confirm: free memory of that GPU, and the program with one kernel at a time.",
            "nvidia-smi --query-gpu=index,memory.used,memory.total --format=csv", "export CUDA_LAUNCH_BLOCKING=1"),
        you("Take a smaller batch, or end what else uses the GPU."),
        you("Where memory is free compare labels and token ids with their ranges, and CUDA's libraries.",
            _PACKAGES),
    ),
    made(
        r"CUBLAS_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR|INVALID_VALUE|NOT_SUPPORTED)"
        r"|CUDNN_STATUS_EXECUTION_FAILED",
        "A kernel of cuBLAS or cuDNN failed: by an earlier fault of the program, by libraries that do not fit, "
        "or by a GPU that is broken.",
        you("Confirm: where it fails, one kernel at a time.", "export CUDA_LAUNCH_BLOCKING=1"),
        you("Where a matrix product alone fails, let torch find its own libraries.", "unset LD_LIBRARY_PATH",
            _PACKAGES),
        admin("Where one GPU or node alone does it, look at the driver's words.",
            "dmesg -T | grep -iE 'xid|nvrm'"),
    ),
    made(
        r"device\(s\) is/are busy or unavailable",
        "Another process holds the GPU in exclusive mode, or it waits for a reset.",
        you("Confirm: the compute mode, and who uses the GPU.",
            "nvidia-smi --query-gpu=index,compute_mode --format=csv",
            "nvidia-smi --query-compute-apps=pid,gpu_uuid --format=csv"),
        you("End the process that an earlier job left, or take another GPU."),
        admin("Let several processes use it. All users of the GPU are touched; undo: -c EXCLUSIVE_PROCESS.",
              "nvidia-smi -c DEFAULT"),
    ),
    made(
        r"[Gg]ated[ R]|401 Client Error|403 Client Error|is restricted|must be authenticated"
        r"|[Rr]epository Not Found|RepositoryNotFound|Invalid (?:username or password|user token)"
        r"|not a local folder and is not a valid model",
        "The hub does not give the files to this user: the repository is gated, private or not there, or the "
        "name is a path that this node does not have.",
        you("Confirm: the name, and who asks, on the node that failed.", "ls -d MODEL", "hf auth whoami"),
        you("Ask for access on the model's page, then log in or give the token to all nodes.",
            "export HF_TOKEN=..."),
        you("Or download it once to a folder that all nodes see, and give that path.",
            "hf download MODEL --local-dir /shared/MODEL"),
    ),
    made(
        r"429 Client Error|Too Many Requests|HTTP Error 429",
        "Each rank asked the hub by itself, and the hub refuses so many requests.",
        you("Download once before the job, and let the ranks read the cache.", "hf download MODEL",
            "export HF_HUB_OFFLINE=1"),
    ),
    made(
        r"couldn't connect to 'https?://|LocalEntryNotFound|OfflineModeIsEnabled|offline mode"
        r"|Max retries exceeded|MaxRetryError|HTTPSConnectionPool|CERTIFICATE_VERIFY_FAILED|NameResolutionError"
        r"|Cannot (?:find the requested files|connect to host)|ProxyError|ConnectTimeout|ReadTimeout.{0,80}http"
        r"|Network is unreachable",
        "This node does not reach the outside: no route, no proxy, or a certificate of the proxy that Python "
        "does not know; or the file is not in the cache that it was configured to use.",
        you("Confirm, on the node that failed.", "curl -sSI https://huggingface.co | head -1",
            "env | grep -iE 'proxy|HF_|SSL'"),
        you("Download it where there is a network, to a folder that all nodes see.",
            "hf download MODEL", "export HF_HOME=/shared/hf HF_HUB_OFFLINE=1"),
        you("Or hand the proxy and its certificate to the ranks.",
            "export https_proxy=http://PROXY:3128 SSL_CERT_FILE=..."),
    ),
    made(
        r"Repo id must (?:be|use)|Incorrect path_or_model_id|HFValidationError",
        "The path is not there on this node, and was taken for a name on the hub.",
        you("Confirm, on every node.", "srun --ntasks-per-node=1 ls -d PATH"),
        you("Correct the path, without a slash at its end; or put it where all nodes see it."),
    ),
    made(
        r"(?i)free memory on device.{0,120}less than desired GPU memory utilization",
        "Less of the GPU's memory is free than the engine was set to take: another process holds the rest, or "
        "one of its own that has not ended.",
        you("Confirm: who holds it.", "nvidia-smi --query-compute-apps=pid,used_memory --format=csv"),
        you("End that process; or let the engine take less than what is free: a lower --gpu-memory-utilization."),
    ),
    made(
        r"(?:KV cache|cache blocks)(?! (?:transfer|receiv|send|connector|event)).{0,200}(?:memory|larger|enough"
        r"|blocks|exceed|space|tokens|util)|(?:memory|room|space|tokens|blocks).{0,80}(?:KV cache|cache blocks)"
        r"|max seq len|gpu_memory_utilization|mem-fraction-static|GPU memory utilization"
        r"|maximum model length",
        "After the weights too little of the GPU's memory is left for the cache of keys and values, or another "
        "process holds it.",
        you("Confirm: nothing else may be on these GPUs.",
            "nvidia-smi --query-compute-apps=pid,used_memory --format=csv"),
        you("Take shorter contexts, or give the engine more of the memory (vLLM; SGLang: --context-length, "
            "--mem-fraction-static).",
            "vllm serve MODEL --max-model-len 32768 --gpu-memory-utilization 0.95"),
        you("Or spread the weights over more GPUs.", "vllm serve MODEL --tensor-parallel-size 8"),
    ),
    made(
        r"memory capacity is unbalanced",
        "As a rule another process holds memory on some of the GPUs.",
        you("Confirm: who does.", "nvidia-smi --query-compute-apps=pid,gpu_uuid,used_memory --format=csv"),
        you("End what an earlier run left, or leave those GPUs out.", "export CUDA_VISIBLE_DEVICES=4,5,6,7"),
    ),
    made(
        r"larger than the number of available GPUs|number of required GPUs|available GPUs .{0,20}is less than"
        r"|not schedulable|[Tt]otal desired GPUs|Unschedulable|No available node types"
        r"|world_size .{0,30}(?:greater|larger) than .{0,30}(?:GPU|device)",
        "More GPUs are asked for than this node, or the Ray cluster, has free.",
        you("Confirm: what is there.", "nvidia-smi -L | wc -l; echo $CUDA_VISIBLE_DEVICES", "ray status"),
        you("Ask for as many as there are (tensor x pipeline parallel size, n_gpus_per_node x nnodes), or let "
            "all nodes join first.",
            "ray start --address=HEAD:6379"),
    ),
    made(
        r"running Ray instance|Ray cluster|cluster was started with|GCS (?:server|address)|RAY_ADDRESS",
        "As a rule the program did not come to a Ray cluster, or to one of another version of Ray or Python.",
        you("Confirm: the same environment on all nodes.", "ray status", "ray --version; python -V"),
        you("Start Ray on all nodes, in the same environment, before the program.",
            "ray start --head --port=6379", "ray start --address=HEAD:6379"),
    ),
    made(
        r"[Cc]an't (?:get|pickle) local object|[Cc]an't pickle|[Cc]annot pickle|PicklingError",
        "A process that is spawned gets what it is given as a pickle; lambdas, functions within functions, open "
        "files and process groups have none.",
        you("Move the function to the top of its module, or use functools.partial on one that is there."),
        you("Make in each process what cannot be handed over: files, connections, locks, process groups."),
    ),
    made(
        r"attempt has been made to start a new process before|freeze_support",
        "Each spawned process runs the script anew, and starts processes itself.",
        you('Put what starts them below `if __name__ == "__main__":`.'),
    ),
    made(
        r"can't start new thread|pthread_create|BlockingIOError: \[Errno 11\]"
        r"|\b(?:fork|clone|thread|spawn)\w*\b(?:(?!(?i:accept|socket|recv)).){0,80}Resource temporarily "
        r"unavailable",
        "The limit of processes and threads is reached: of the user (ulimit -u), or of the cgroup or container "
        "(pids).",
        you("Confirm, where the job runs.", "ulimit -u; ps -eLf | wc -l", "cat /sys/fs/cgroup/pids.max"),
        you("Use fewer threads and loader workers.", "export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1"),
        admin("Raise the limit (docker run --pids-limit, kubelet's podPidsLimit, TasksMax of slurmd)."),
    ),
    made(
        r"CUDA_HOME|CUDAMismatch|MissingCUDA|Installed CUDA version|detected CUDA version .{0,40}mismatches"
        r"|Unsupported gpu architecture",
        "An extension is compiled at the start of the job, and the CUDA toolkit for it is missing or of another "
        "release than torch's.",
        you("Confirm: both must be of one major release.", "nvcc --version | tail -2; echo $CUDA_HOME",
            "python -c 'import torch; print(torch.version.cuda)'"),
        you("Point CUDA_HOME to a toolkit of torch's release, or take the operator that needs none.",
            "ls -d /usr/local/cuda*", "module avail cuda"),
    ),
    made(
        r"Error building extension|Ninja is required|C compiler|C\+\+ extension|CppCompileError|nvcc"
        r"|Command '\['?\S*(?:gcc|cc|clang|ninja)\b",
        "Code is compiled while the job starts, and the compiler failed or is not there; what it said stands "
        "above.",
        you("Confirm: what is there.", "which gcc g++ ninja nvcc; ls $(python -c 'import sysconfig as s; "
                                       "print(s.get_paths()[\"include\"])')/Python.h"),
        you("Install what is missing in the image of all nodes, and delete what a failed build left.",
            "apt-get install -y build-essential ninja-build python3-dev",
            "rm -rf ~/.cache/torch_extensions ~/.triton/cache"),
    ),
    made(
        r"OutOfResources|out of resource: shared memory|CompilationError|BackendCompilerFailed|InductorError"
        r"|TritonError|PTXAS|ptxas",
        "Triton or torch.compile could not build a kernel for this GPU: as a rule it wants more shared memory "
        "than this GPU has, or the release does not know the GPU.",
        you("Confirm: it runs without compiling.", "export TORCHDYNAMO_DISABLE=1   # vLLM: --enforce-eager"),
        you("Take a release of triton and torch that go together; delete the cache of kernels.",
            "rm -rf ~/.triton/cache /tmp/torchinductor_*", _PACKAGES),
    ),
    made(
        r"StorageFull|No space left|Disk quota",
        "The disk that it writes to is full, or the user's quota is used up.",
        you("Confirm, on the node that wrote.", "df -h . /tmp; df -i .", "quota -s"),
        you("Remove what is not needed, or write elsewhere.", "du -sh checkpoint-* | sort -h"),
    ),
    made(
        r"Stale file handle|\[Errno 116\]",
        "A file of a shared folder was replaced or deleted while this node had it open, or the server was "
        "restarted.",
        you("Write to a new name and rename it; let one rank delete old checkpoints, after a barrier."),
        admin("Where the whole mount is stale, mount it anew.", "umount -l DIR && mount DIR"),
    ),
    made(
        r"\[Errno 5\]|Input/output error|\[Errno 121\]|Remote I/O error|Transport endpoint is not connected"
        r"|\[Errno 107\]",
        "The storage below the file failed, or its mount was lost.",
        admin("Confirm: the kernel's words, and the mount.", "dmesg -T | tail -50", "findmnt -T DIR"),
        you("Write elsewhere until then."),
    ),
    made(
        r"Read-only file system|\[Errno 30\]",
        "The folder may not be written in this container or on this node.",
        you("Point the caches and the output to a folder that may.",
            "export HF_HOME=/scratch/hf TRITON_CACHE_DIR=/scratch/triton TMPDIR=/scratch/tmp"),
        admin("A disk that was writable before: the kernel makes it read-only after errors.",
            "dmesg -T | grep -iE 'remount|i/o error'"),
    ),
    made(
        r"PermissionError|\[Errno 13\]|\[Errno 1\]",
        "The user of the job may not read or write this file on that node.",
        you("Confirm, as that user on that node.", "id; ls -ld PATH"),
        you("Give another folder, or the right to this one; caches of others too.",
            "export HF_HOME=$HOME/hf TRITON_CACHE_DIR=$HOME/.triton"),
    ),
    made(
        r"FileNotFoundError|\[Errno 2\]|No such file or directory|NotADirectoryError|No valid checkpoint found",
        "The file is not there on the node that asked for it: a path of another machine, a mount that is "
        "missing, or another rank had not written it yet.",
        you("Confirm, on every node.", "srun --ntasks-per-node=1 ls -l PATH"),
        you("Put it where all nodes see it; where rank 0 makes it, let the others wait at a barrier."),
    ),
    made(
        r"PytorchStreamReader|central directory|deserializing header|HeaderTooLarge|Incomplete(?:Buffer"
        r"|Metadata)|invalid load key|Ran out of input|UnpicklingError: (?!Weights)|BadZipFile"
        r"|unexpected EOF|file is corrupted|InvalidHeader",
        "What was read ended too early, or is not what its name says: as a rule a download or a save that was cut "
        "off, or a pointer of git-lfs in place of the weights.",
        you("Confirm: its size, and what it begins with.", "ls -l FILE; head -c 100 FILE"),
        you("Fetch it anew, or go back to the checkpoint before it.", "git lfs pull",
            "hf download MODEL --force-download"),
    ),
    made(
        r"[Ww]eights[ _]only|Unsupported (?:global|class)",
        "Since torch 2.6 torch.load reads tensors alone, unless the file is marked as trusted.",
        you("Of a file of your own say so: torch.load(..., weights_only=False); or update the library that loads "
            "it."),
    ),
    made(
        r"(?i)found (?:nan|inf)|result nan|\bnan\b.{0,40}(?:loss|grad|norm|tensor)|(?:loss|grad"
        r"|norm)\w{0,12} (?:is|became|contains) (?:nan|inf)|probability tensor contains",
        "The loss or a gradient is not a number: a bad sample, too high a learning rate, fp16, or a GPU that "
        "computes wrongly.",
        you("Confirm: go back to the last checkpoint and run the same steps; where another rank has it, or none, "
            "it is the GPU."),
        you("Train in bf16, with clipped gradients and a lower learning rate; look at that step's samples."),
        admin("Where it is always the same GPU, test it.", "dcgmi diag -r 3"),
    ),
    made(
        r"all tensors to be on the same device|two devices, c|on different devices|not on the expected device"
        r"|is on cuda:",
        "Tensors of one operation are on two GPUs, or on CPU and GPU.",
        you("Select the rank's GPU first of all, and put model and batch onto it; no device_map=\"auto\" with "
            "several processes.",
            'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))'),
    ),
    made(
        r"expected scalar type|only supports? fp16|same dtype|dtype mismatch|uniform dtype"
        r"|must have the same dtype|Input type .{0,60} and (?:weight|bias) type",
        "Parts of the model, or model and batch, have different data types.",
        you("Cast all to one (model.to(torch.bfloat16), inputs too), or run the step under torch.autocast."),
    ),
    made(
        r"'weight' must be 2-D|weight should have at least|should have at least three dim|ds_status"
        r"|'status': 'NOT_AVAILABLE'|ds_shape|size of tensor .{0,60}\(0\)|but got weight .{0,20}\[0\]",
        "A part of a ZeRO-3 model was used while its weights were spread over the ranks: outside of the engine's "
        "forward, or in another order than before.",
        you("Call the engine and not the module within it; around other uses gather the weights on all ranks: "
            "with deepspeed.zero.GatheredParameters(params): ..."),
        you("Of generation: synced_gpus=True, all ranks as often; of experts: "
            "deepspeed.utils.set_z3_leaf_modules."),
    ),
    made(
        r"\bshape\b.{0,80}\bshape\b.{0,80}\bnot compatible|mat1 and mat2"
        r"|shapes? .{0,60}(?:mismatch|cannot be|is invalid|do not match|incompatible)"
        r"|size of tensor .{0,40}must match|Sizes of tensors must|index out of range|out of bounds"
        r"|stack expects each tensor",
        "Sizes in the program do not fit: as a rule of the model and its input, or of a sample that differs from "
        "all others; where one size is the other divided by the number of tensor-parallel ranks, one is sharded "
        "and the other is not.",
        you("Run that step on one process, and print the shapes at the line that is named."),
        you("Where one rank alone raised it, look at the sample that this rank had."),
    ),
    made(
        r"trust_remote_code|custom code which must be executed",
        "The model brings code of its own, which runs only where that is allowed.",
        you("Read that code, then say so.", "--trust-remote-code"),
    ),
    made(
        r"does not recognize this architecture|[Mm]odel architectures? .{0,120}not supported"
        r"|Unrecognized configuration class|model type .{0,60}not",
        "The installed release of the library does not know the model: as a rule it is older.",
        you("Update it, and what builds on it, in the environment of all nodes.",
            "python -m pip install -U transformers"),
    ),
    made(
        r"(?i)bf(?:loat)?16.{0,60}(?:support|only)|support bf16|FP8.{0,60}(?:support|require)|compute capability"
        r"|only supports? (?:Ampere|Hopper)",
        "As a rule this GPU is older than what was asked for.",
        you("Confirm: 8.0 is an A100, 8.9 Ada, 9.0 an H100.",
            "nvidia-smi --query-gpu=name,compute_cap --format=csv"),
        you("Take fp16 or fp32 in place of bf16 (--dtype half, --fp16), the attention that needs less (sdpa), or "
            "another node."),
    ),
    made(
        r"ModuleNotFoundError|No module named|seems to be not installed|is not installed",
        "The package is not installed in the Python that runs this rank: another environment, or a node without "
        "it.",
        you("Confirm, on every node.", "srun --ntasks-per-node=1 python -c 'import sys; print(sys.executable, "
                                       "sys.path)'"),
        you("Install it there, or start the ranks with the environment that has it.",
            "python -m torch.distributed.run ... train.py"),
    ),
    made(
        r"cannot import name '\w{1,80}' from '[\w.]{1,200}' \((?!.{0,300}(?:site|dist)-packages)",
        "The package is one of the program's own folders, and has nothing of that name: as a rule an extension in "
        "C++ that was not built on this node, two files that import each other, or another release of the code.",
        you("Confirm, on each node: whether it is a compiled file, and there.", "ls -l FOLDER/*.so FOLDER/*.cpp"),
        you("Build it, once on each node or in the image, before the job.",
            "make -C FOLDER   # or: python setup.py build_ext --inplace"),
        you("Where it is Python's, take the release of the code that has it."),
    ),
    made(
        r"cannot import name|has no attribute '|partially initialized module|unexpected keyword argument"
        r"|missing \d+ required|(?:takes|got) .{0,60}argument|PackageNotFoundError|VersionConflict"
        r"|is required for a normal functioning",
        "As a rule the code was written for another release of a library than the one that is installed, or the "
        "model does not have what was asked of it; a wrapper (DDP, FSDP) hides methods: .module has them.",
        you("Confirm: the releases, against those that the program asks for.", _PACKAGES),
        you("Install those that it was written for, the same on all nodes.",
            "python -m pip install -r requirements.txt"),
    ),
    made(
        r"(?i)\b(?:requires?|needs?|must be|expects?|only supports?|supported (?:on|by|with)) (?:\w{1,20} ){0,3}"
        r"(?:torch|pytorch|transformers|accelerate|deepspeed|peft|trl|vllm|flash[-_ ]attn|numpy|cuda|ray|lightning"
        r"|bitsandbytes|triton|python)\b.{0,20}?(?:[<>=~!]=?|version|or (?:later|newer|higher)|\d+\.\d)",
        "A library of this environment is not of the release that another one asks for.",
        you("Confirm: what is installed, in the environment of the job.", _PACKAGES),
        you("Update the library that is too old, or take the release of the other one that goes with it; the same "
            "on all nodes.", "python -m pip install -U PACKAGE"),
    ),
    made(
        r"JSONDecodeError|yaml\.|TOMLDecodeError|not in struct|MissingMandatory|ConfigAttribute|ConfigKey"
        r"|validation errors? for \w{0,60}(?:Config|Settings|Arg(?:ument)?s|Options)"
        r"|DeepSpeedConfig|mismatch TrainingArguments|ds_config"
        r"|config(?:uration)? (?:file|value)|HfArgumentParser",
        "Settings, or an answer that was to be JSON, cannot be read or say what the program does not take.",
        you("Correct the line or key that the message names; an older or newer release may call it otherwise."),
        you("In DeepSpeed's file leave to transformers what both set: \"auto\"."),
    ),
    made(
        r"another process is utilizing it|[Pp]ort .{0,40}(?:in use|occupied|not available)",
        "A second job on the node has the same port, or an earlier one left a process.",
        you("Confirm: who listens.", "ss -ltnp | grep 29500"),
        you("Take another port.", "accelerate launch --main_process_port 29511 ...", "torchrun --standalone ..."),
    ),
    made(
        r"(?i)server (?:launch failed|(?:never|did not|not) (?:become|became|get|be)? ?ready|failed to start)",
        "The launcher waited for a server that did not become ready: why is in the server's own log.",
        you("Read the log that the server's process wrote, to its first exception."),
        you("Or start the server by hand, with the same arguments, on the node where it was to run."),
    ),
    made(
        r"server can't be reached|Failed to connect to .{0,60}server|Cannot connect to (?:the )?(?:vLLM|SGLang)",
        "The server that the program calls was not started, is still loading its weights, or its port cannot be "
        "reached from this node.",
        you("Confirm, on the node that failed.", "curl -sS http://HOST:8000/health"),
        you("Start it first, wait until it answers, and give the address by which this node reaches it."),
    ),
    made(
        r"CUDA Setup failed|bitsandbytes",
        "bitsandbytes has no binary for this release of CUDA, or does not find CUDA's libraries.",
        you("Confirm: what it finds.", "python -m bitsandbytes"),
        you("Take a release of it that knows torch's CUDA.", "python -m pip install -U bitsandbytes"),
    ),
    made(
        r"BrokenProcessPool|terminated abruptly|subprocesses has abruptly died|worker .{0,40}exited unexpectedly",
        "A process of a pool ended before its work did: killed for want of host memory, or a crash; the line does "
        "not say which.",
        admin("Confirm on its host.", "dmesg -T | grep -iE 'oom|killed process'",
            "cat /sys/fs/cgroup/memory.events"),
        you("Use fewer processes (num_proc, num_workers), or give the job more memory."),
    ),
    made(
        r"(?i)\b(?:loss|grad\w{0,12}|logits?|activations?|weights?|parameters?|outputs?)\b.{0,40}"
        r"\b(?:nan|inf(?:inity)?|(?:not|non)[ -]?finite)\b"
        r"|\b(?:nan|non[ -]?finite|infinite)\b.{0,30}\b(?:loss|grad\w{0,12}|logits?|activations?|weights?)\b"
        r"|probability tensor contains",
        "The values have ceased to be finite: as a rule a learning rate too high, fp16 that overflows, a bad "
        "sample or bad weights.",
        you("Find the first value that is not finite.", "torch.autograd.set_detect_anomaly(True)"),
        you("Try a lower learning rate with a warm-up, clip the gradients, or take bf16 in place of fp16."),
    ),
    made(
        r"torch\._dynamo|TorchRuntimeError|torch\.compile",
        "torch.compile could not trace a call of the program, or of a library that it goes through.",
        you("Confirm: it runs without compiling.", "export TORCHDYNAMO_DISABLE=1"),
        you("Keep that call out of what is compiled (@torch.compiler.disable on its function), or do not compile; "
            "fullgraph=False lets torch break the graph there."),
    ),
    made(
        r"(?i)timed? ?out",
        "What it called did not answer in time; that one may hang, or wait for another rank.",
        you("See what the other processes printed at that time, and where they stand.", "py-spy dump --pid PID"),
    ),
)  # fmt: skip


_REFUSED = re.compile(r"ConnectionRefused|Connection refused|Errno 111")
_HERE = r"(?:localhost|127\.0\.0\.1|\[?::1\]?|0\.0\.0\.0)"
_OWN_PORT = re.compile(rf"(?<![\w.]){_HERE}['\"]?(?::|, (?:port=)?)(?P<port>\d{{2,5}})\b")


def own_service(events: Sequence[LogEvent]) -> Family | None:
    """Where a port of the node itself refused a connection: no network is at fault, a service does not run."""
    refused = (event.text for event in events if _REFUSED.search(event.text))
    port = next((match["port"] for text in refused if (match := _OWN_PORT.search(text))), "")
    if not port:
        return None
    client = next((event.fields["client"] for event in events if "client" in event.fields), "")
    who, whose = client or "the program", f"{client}'s server" if client else "that service"
    return made(
        "",
        f"Nothing listens on port {port} of this node itself: the service that {who} calls there does not run, or "
        "runs on another node. The network is not at fault.",
        you("Confirm, on the node that failed: nothing is printed.", f"ss -ltnp | grep :{port}"),
        you(f"Start {whose} on this node before the program, or give the address of the node where it runs."),
        you(f"Or let the program do without it: switch {client or 'it'} off in its settings."),
    )


_OTHER_END = ("EOFError", "ConnectionResetError", "BrokenPipeError")
_PIPE = made(
    "",
    "The process at the other end of this pipe ended: the exception follows from that, and why it ended is in its "
    "own lines, if anywhere.",
    you("Confirm: look for a kill by the kernel, and for a crash.", "dmesg -T | grep -iE 'oom|killed|segfault'",
        "export PYTHONFAULTHANDLER=1"),
    you("Read what the child process printed last, above the exception or in a log of its own."),
)  # fmt: skip


# What a program picks a GPU by, in the line of code that raised.
_PICKS_A_GPU = re.compile(
    r"(?i)(?:gpus?|devices?|device_ids|cuda_devices|available_gpus|gpu_ids|\w*gpu_list)\w*\[[^\]]{0,80}(?:rank|local|idx|index|\bi\b)"
    r"|set_visible_devices\(|set_device\(|visible_device_list"
)
_NO_SUCH_ITEM = ("IndexError", "KeyError")
_TOO_FEW_GPUS = made(
    "",
    "A process picks its GPU by its number on the node, and there is none of that number: more processes were "
    "started on the node than GPUs are seen by them.",
    you("Confirm, on that node, started as the job is.", "nvidia-smi -L; echo $CUDA_VISIBLE_DEVICES"),
    you("Start one process a GPU.", "torchrun --nproc-per-node=gpu train.py"),
    you("Or give the job as many GPUs as it has processes on a node (-H host:GPUS of mpirun and horovodrun, "
        "--gpus-per-node of Slurm, CUDA_VISIBLE_DEVICES)."),
)  # fmt: skip


def family(event: LogEvent) -> Family | None:
    """The first that the words of an exception belong to, or the library that raised it while it compiled.

    The line of code that raised it may say more than they do.
    """
    code = event.fields.get("code_line", "")
    if event.fields.get("type", "").rpartition(".")[2] in _NO_SUCH_ITEM and _PICKS_A_GPU.search(code):
        return _TOO_FEW_GPUS
    inner = event.fields.get("raised_in", event.fields.get("raised_at", ""))
    if inner.startswith("multiprocessing/connection.py") and event.fields.get("type") in _OTHER_END:
        return _PIPE
    return of_words(f"{event.text} (torch._dynamo)" if inner.startswith("torch/_dynamo/") else event.text)


def of_words(text: str) -> Family | None:
    """The first family that a text belongs to."""
    text = " ".join(text.split())
    return next((kind for kind in _FAMILIES if kind.words.search(text)), None)
