"""torch.distributed: the watchdog of ProcessGroupNCCL, gloo's time-outs, DDP, and what stops a rank before them."""

from __future__ import annotations

import re

from ncclcheck.probes.logs.signs.sign import Sign

# A process group is told by its GUID: its ID is a number of the process. Both ranks are those within the group; the
# rank of the world stands in torch's own prefix, [rank2]:, since 2.2.
_WHO = (
    r"^(?:.{0,120}?(?:\[PG (?:ID \d{1,6} PG GUID )?(?P<group>[^\s\](]{1,100})(?: ?\([^\]]{0,80}\))? ?"
    r"Rank (?P<me>\d{1,7})\]|\[Rank (?P<self>\d{1,7})\]))?"
)
_E = "[rank2]:[E1109 22:46:25.933 ProcessGroupNCCL.cpp:632] "

_LONG_S = 540  # of a progress bar: the shortest default time-out of torch's groups is 600 s
_ELAPSED = re.compile(r" \[(\d{1,3}(?::\d\d){1,2})<")


def is_long(text: str) -> bool:
    """Whether a progress bar has gone on for so long that others may have given up waiting."""
    return any(_seconds(elapsed) >= _LONG_S for elapsed in _ELAPSED.findall(text))


def _seconds(elapsed: str) -> int:
    *hours, minutes, rest = map(int, elapsed.split(":"))
    return 3600 * sum(hours) + 60 * minutes + rest


SIGNS = (
    Sign(
        "internal-assert",
        r'INTERNAL ASSERT FAILED at "(?P<path>[^"]{1,200})":(?P<at>\d{1,7})(?:, please report a bug to PyTorch\.(?P<words>.{0,200}))?',
        (
            'stack.size() INTERNAL ASSERT FAILED at "../torch/csrc/autograd/profiler_python.cpp":964, please report a bug to '
            "PyTorch. Python replay stack is empty.",
        ),
    ),
    Sign(
        "watchdog-timeout",
        _WHO + r".{0,120}?(?:Watchdog c|C)aught collective operation timeout: WorkNCCL\(SeqNum=(?P<seq>\d{1,12}), "
        r"OpType=(?P<op>\w{1,40})(?:, NumelIn=(?P<numel_in>\d{1,20}), NumelOut=(?P<numel_out>\d{1,20})"
        r"|, TensorShape=\[[\d, ]{0,200}\])?, "
        r"Timeout\(ms\)=(?P<timeout>\d{1,12})\) ran for (?P<ran>\d{1,12}) m",
        (
            "[E ProcessGroupNCCL.cpp:828] [Rank 7] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1547, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1802380 milliseconds before timing out.",
            "[rank5]:[E ProcessGroupNCCL.cpp:563] [PG 0 Rank 5] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=493, OpType=ALLGATHER, NumelIn=1, NumelOut=4, Timeout(ms)=60000) ran for 60123 milliseconds before timing out.",
            "[rank1]:[E1103 07:34:57.461 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=COALESCED, NumelIn=18446744073709551615, NumelOut=18446744073709551615, Timeout(ms)=600000) ran for 600014 milliseconds before timing out.",
            "RuntimeError: [Rank 1] Caught collective operation timeout: WorkNCCL(SeqNum=17, OpType=ALLREDUCE, TensorShape=[7, 3], Timeout(ms)=1800000) ran for 1802380 milliseconds before timing out.",
            _E
            + "[PG ID 0 PG GUID 0(default_pg) Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=_ALLGATHER_BASE, NumelIn=4096, NumelOut=16384, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.",
        ),
    ),
    Sign(
        "watchdog-cut",
        r"(?:Watchdog c|C)aught collective operation timeout:(?! WorkNCCL\(SeqNum=\d.{1,300}? ran for \d)"
        r"(?: WorkNCCL\(SeqNum=(?P<seq>\d{1,12}))?",
        (
            "[Rank 0] Watchdog caught collective operation timeout:",
            "[rank2]:[E1109 22:47:01.100 ProcessGroupNCCL.cpp:629] [Rank 2] Watchdog caught collective operation timeout: "
            "WorkNCCL(SeqNum=4, OpTy",
        ),
    ),
    Sign(
        "watchdog-status",
        _WHO
        + r"(?:.{0,160}?(?:work sequence id|at NCCL work|at work): (?P<seq>\d{1,12})\b)?.{0,300}?[Ll]ast enqueued (?:NCCL )?work: (?P<enqueued>-?\d{1,12}), "
        r"last completed (?:NCCL )?work: (?P<completed>-?\d{1,20})",
        (
            _E
            + "[PG ID 0 PG GUID 0(default_pg) Rank 2]  failure detected by watchdog at work sequence id: 493 PG status: last enqueued work: 493, last completed work: 492",
            "[rank7]:[E ProcessGroupNCCL.cpp:1537] [PG 0 Rank 7] Timeout at NCCL work: 1, last enqueued NCCL work: 1, last completed NCCL work: 0.",
            "[rank6]:[E1003 18:37:01.833 ProcessGroupNCCL.cpp:1709] [PG 3 (mesh_tp) Rank 2] Timeout at NCCL work: 63, last enqueued NCCL work: 63, last completed NCCL work: 62.",
            _E
            + "[PG ID 0 PG GUID 0 Rank 2] Received a dump signal due to a collective timeout from this local rank and we will try our best to dump the debug info. Last enqueued NCCL work: 460631, last completed NCCL work: 460630.",
        ),
    ),
    Sign(
        "desync-rank",
        r"^\s{0,12}\[(?P<behind>\d[\d, ]{0,200})\] finished collective #(?P<finished>\d{1,12}), but didn't join collective #\d",
        ("     [1] finished collective #2, but didn't join collective #3 (count from 1)",),
    ),
    Sign(
        "watchdog-stuck",
        _WHO + r".{0,120}?ProcessGroupNCCL's watchdog got stuck for (?P<seconds>\d{1,6}) ?s",
        (
            _E
            + "[PG 0 Rank 2] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives.",
        ),
    ),
    Sign(
        "first-pairing",
        r"An unbatched P2P op \(send/recv\) was called on this ProcessGroup with size (?P<size>\d{1,7})\b",
        (
            "[rank0]:[W1123 03:26:46.972 ProcessGroupNCCL.cpp:4004] Warning: An unbatched P2P op (send/recv) was called on this ProcessGroup with size 2.  In lazy initialization mode, this will result in a new 2-rank NCCL communicator to be created. (function operator())",
        ),
    ),
    Sign(
        "no-flight-recorder",
        r"Stack trace of the failed collective not found, potentially because FlightRecorder is disabled",
        (
            _E
            + "Stack trace of the failed collective not found, potentially because FlightRecorder is disabled. You can enable it by setting TORCH_NCCL_TRACE_BUFFER_SIZE to a non-zero value.",
        ),
    ),
    Sign(
        "monitored-barrier",
        r"Ranks? (?P<missing>\d[\d, ]{0,200}) failed to pass monitoredBarrier",
        ("RuntimeError: [Rank 0]: Rank 3 failed to pass monitoredBarrier in 1800000 ms",),
    ),
    Sign(
        "awaited-in-barrier",
        r"[Rr]ank (?P<me>\d{1,7}) successfully reached monitoredBarrier, but received errors while waiting",  # which tells who did not come
        (
            "[rank1]: RuntimeError: Rank 1 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank.",
        ),
    ),
    Sign(
        "gloo-timeout",
        r"Timed out waiting \d{1,12}ms for (?:recv|send) operation to complete|Application timeout caused pair closure",
        (
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete",
            "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Application timeout caused pair closure",
        ),
    ),
    Sign(
        "ranks-disagree",
        r"Detected mismatch between collectives on ranks\. Rank (?P<one>\d{1,7}) is running (?:collective|inconsistent collective): "
        r"(?P<first>.{1,300}?), ?but Rank (?P<other>\d{1,7}) is running (?:collective|inconsistent collective): (?P<second>.{1,300})",
        (
            "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: CollectiveFingerPrint(SequenceNumber=12, OpType=ALLREDUCE, TensorShape=[195], TensorDtypes=Float), but Rank 0 is running collective: CollectiveFingerPrint(SequenceNumber=12, OpType=BROADCAST, TensorShape=[195], TensorDtypes=Float).",
        ),
    ),
    Sign(
        "nccl-suspects-mismatch",
        r"Mismatched collective detected, please check your collective calls at and around rank (?P<me>\d{1,7})"
        r"|may be caused by a collective mismatch around rank (?P<self>\d{1,7})",
        (
            "gpu-a17:1:1 [0] init.cc:1321 NCCL WARN Mismatched collective detected, please check your collective calls at "
            "and around rank 3. You can use NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=COLL to see the collective logs",
            "gpu-a17:1:1 [0] init.cc:1331 NCCL WARN Your program may be hanging, this may be caused by a collective "
            "mismatch around rank 3. Please check your collective calls at and around this rank.",
        ),
    ),
    Sign(
        "ranks-disagree-short",
        r"Detected mismatch between collectives on ranks",
        ("RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running something else",),
    ),
    Sign(
        "message-truncated",
        r"message truncated : receiving (?P<got>\d{1,15}) bytes instead of (?P<wanted>\d{1,15})|collective mismatch error"
        r"|(?P<gloo>\d{1,15} vs \d{1,15})\. Received data size doesn't match expected size",
        (
            "gpu-a17:4711:4800 [3] transport/net_socket.cc:520 NCCL WARN NET/Socket : peer 10.0.3.18<40112> message truncated : receiving 1048576 bytes instead of 65536",
            "gpu-a17:4711:4800 [3] transport/net_ib.cc:901 NCCL WARN NET/IB : collective mismatch error, local size 4096 remote size 8192",
            "  what():  [enforce fail at ../third_party/gloo/gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 8 vs 4. Received data size doesn't match expected size. Is there a distributed collective mismatch in your code?",
        ),
    ),
    Sign(
        "models-differ",
        r"DDP expects same model across all ranks|appears not to match (?:sizes|strides) of the same param in process",
        (
            "RuntimeError: DDP expects same model across all ranks, but Rank 1 has 161 params, while rank 0 has inconsistent 160 params.",
            "RuntimeError: [1]: params[3] in this process with strides [7, 1] appears not to match strides of the same param in process 0.",
        ),
    ),
    Sign(
        "optimizer-states-differ",  # FSDP compares what is one number for all
        r"Rank (?P<odd>\d{1,7}) has different values for (?P<state>[\w.]{1,80}): (?P<own>[^\s]{1,80}?)\.? Other ranks: "
        r"(?P<other>\S{1,80}?)\.?(?=\s|$)",
        ("AssertionError: Rank 3 has different values for step: 1200.0. Other ranks: 1100.0",),
        words=("has different values for",),
    ),
    Sign(
        "parameters-without-gradient",
        r"Expected to have finished reduction in the prior iteration before starting a new one"
        r"|has parameters that were not used in producing the loss returned",
        (
            "RuntimeError: It looks like your LightningModule has parameters that were not used in producing the loss "
            "returned by training_step.",
            "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This error indicates that your module has parameters that were not used in producing loss.",
        ),
    ),
    Sign(
        "parameter-indices",
        r"Parameter indices which did not receive grad for rank (?P<rank>\d{1,7}): (?P<indices>[\d .]{1,200})"
        r"|Parameters which did not receive grad for rank (?P<of>\d{1,7}): (?P<named>.{1,200})",
        (
            "Parameter indices which did not receive grad for rank 0: 12 13 14",
            "Parameters which did not receive grad for rank 3: model.22.cv4.bias, model.22.cv4.weight",
        ),
    ),
    Sign(
        "barrier-without-device",
        r"using (?:best-guess )?GPU (?P<gpu>\d{1,4}) (?:to perform barrier )?as (?:the )?devices? used by this process (?:is|are) currently unknown|"
        r"Guessing device ID based on global rank|No device id is provided via `?init_process_group`? or `?barrier"
        r"|barrier\(\): using the device under current context",
        (
            "/opt/torch/distributed/distributed_c10d.py:4807: UserWarning: barrier(): using the device under current context. You can specify `device_id` in `init_process_group` to mute this warning.",
            "[rank3]:[W1109 22:40:00.100 ProcessGroupNCCL.cpp:4571] [PG ID 0 PG GUID 0 Rank 3]  using GPU 3 as device used by this process is currently unknown. This can potentially cause a hang if this rank to GPU mapping is incorrect.",
            "[W ProcessGroupNCCL.cpp:1569] Rank 0 using best-guess GPU 0 to perform barrier as devices used by this process are currently unknown.",
            "[W ProcessGroupNCCL.cpp:1569] Rank 0 using best-guess, using GPU 0 to perform barrier as devices used by this process are currently unknown.",
        ),
    ),
    Sign(
        "device-assert",
        r"device-side assert triggered|an illegal memory access was encountered"
        r"|(?:CUDA error: |Cuda failure (?:\d{1,4} )?')(?:misaligned address|an illegal instruction was encountered"
        r"|invalid program counter|operation not supported on global/shared address space)"
        r"|Memory access fault by GPU node-\d{1,4}|HSA_STATUS_ERROR_MEMORY_(?:APERTURE_VIOLATION|FAULT)|HSAIL operation resulted in",
        (
            "RuntimeError: CUDA error: device-side assert triggered",
            "gpu-a17:4711:4790 [0] enqueue.cc:1519 NCCL WARN Cuda failure 716 'misaligned address'",
            "Memory access fault by GPU node-4 (Agent handle: 0x55) on address 0x7f0. Reason: Unknown.",
            "HSA_STATUS_ERROR_EXCEPTION: An HSAIL operation resulted in a hardware exception. code: 0x1016",
            "[rank2]:[E ProcessGroupNCCL.cpp:1182] [Rank 2] NCCL watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered",
        ),
        words=(
            *("device-side assert", "illegal memory access", "misaligned address", "illegal instruction"),
            *(
                "program counter",
                "address space",
                "memory access fault",
                "hsa_status_error_memory_",
                "hsail operation",
            ),
        ),
    ),
    Sign(
        "kernel-named",
        r"(?:^|[ /])[\w./+-]{1,200}\.(?:cuh?|hip|h|cpp):\d{1,6}: (?P<kernel>[\w:<>,&* ]{1,160}?)(?:\([^)]{0,400}\))?: "
        r"(?:block: \[.{1,120}Assertion|Device-side assertion) `(?P<assertion>.{1,160}?)[`'] failed"
        r"|^=+ {1,8}at (?:0x[0-9a-f]{1,16} in )?(?P<read>[\w:<>,&* ]{2,160}?)(?:\(.{0,400})?\+0x"
        r"|kernel (?:launch )?failed in (?P<own>\w{2,120})",
        (
            "/torch/aten/src/ATen/native/cuda/Loss.cu:250: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], thread: [4,0,0] "
            "Assertion `t >= 0 && t < n_classes` failed.",
            "=========     at fused_rope_fwd(float *, int)+0x1d0 in rope.cu:41",
        ),
        words=("assertion `", "=     at ", "kernel failed in", "launch failed in"),
    ),
    Sign(
        "nan-loss",
        r"(?i)\b(?!best)\w{0,20}loss['\"]?(?: is)?\s{0,3}[:=]?\s{0,4}['\"]?(?:tensor\()?(?P<value>nan|-?inf)\b",
        (
            "step 120 loss nan lr 3e-4",
            "{'loss': nan, 'epoch': 1.2}",
            "{'loss': 'nan', 'grad_norm': 'nan', 'learning_rate': '1e-05', 'epoch': '1.2'}",
        ),
        words=tuple(before + value for value in ("nan", "inf") for before in "'\" \t:=(-s"),
    ),
    Sign(
        "saving",
        r"(?i)\bsaving (?:the |current |DeepSpeed )?(?:model|checkpoint|state|weights|training state|optimizer)|\bsave_(?:16bit_model|checkpoint|pretrained|state)\b|"
        r"zero3_consolidated|Begin saving|Saving model checkpoint|\[Torch\] Saving |is (?:about to be saved|begin to save)!",
        (
            "Saving model checkpoint to out/checkpoint-500",
            "Saving current state to out/checkpoint-500",
            "[Torch] Saving out/global_step5/mp_rank_00_model_states.pt...",
            "[Torch] Checkpoint global_step5 is about to be saved!",
            "[2026-03-01 10:00:00,100] [INFO] [logging.py:96:log_dist] [Rank 0] Saving model checkpoint: out/mp_rank_00_model_states.pt",
        ),
        words=("saving", "save_", "zero3_consolidated", "be saved!", "to save!"),
    ),
    Sign(
        "save-frame",
        r'^\s*(?:#\d{1,3} |File "[^"]{1,400}", line \d{1,7},? in )'  # without a comma: faulthandler
        r"(?P<function>(?!_?load|set_)(?:_?\w{0,40}save\w{0,40}|_?zero3_consolidated\w{0,40}|\w{0,40}state_dict))\b",
        (
            '  File "/app/train.py", line 118, in save_checkpoint',
            '  File "/app/train.py", line 118 in save_checkpoint',
            "#5 save_16bit_model from /opt/train/deepspeed/runtime/engine.py:3704",
        ),
        words=("save", "state_dict", "zero3"),
    ),
    Sign(
        "first-frame",
        r'^\s*(?:#\d{1,3} |File "[^"]{1,400}", line \d{1,7},? in )(?P<function>(?:local_)?main_process_first'
        r"|torch_distributed_zero_first|(?:local_)?rank_zero_first|zero_first)\b",
        (
            '  File "/opt/transformers/training_args.py", line 2503, in main_process_first',
            '  File "/app/utils/torch_utils.py", line 40, in torch_distributed_zero_first',
        ),
        words=("main_process_first", "zero_first"),
    ),
    Sign(
        "alone-frame",
        r'^\s*(?:#\d{1,3} |File "[^"]{1,400}", line \d{1,7},? in )(?P<function>load_dataset|_prepare_dataset'
        r"|preprocess_dataset|tokenize\w{0,30}|build_dataset|get_dataset|evaluate|evaluation_loop|compute_metrics"
        r"|push_to_hub|snapshot_download)\b",
        (
            '  File "/opt/datasets/load.py", line 2132, in load_dataset',
            '  File "/opt/transformers/trainer.py", line 3900, in evaluation_loop',
        ),
        words=("_dataset", "tokenize", "evaluat", "compute_metrics", "push_to_hub", "snapshot_download"),
    ),
    Sign(
        "state-gathered",
        r"(?P<what>Retrieving (?:full model|optimizer) state dict|Getting (?:full model|optimizer) state dict took"
        r"|Saving (?:full |model |the )?checkpoint\b.{0,60}(?:some time|\.\.\.)|Gathering (?:full |the )?(?:model |optimizer )?"
        r"(?:state|weights|parameters))",
        (
            "Saving checkpoint. This may take some time. Retrieving full model state dict...",
            "Getting optimizer state dict took 120.03 secs",
            "Saving model checkpoint to /out/checkpoint-500 ...",
        ),
        words=("retrieving", "state dict took", "saving", "gathering"),
    ),
    Sign(
        "long-bar",
        r"(?:^|[^\d.])(?P<percent>\d{1,2})%.{0,400}?\d/\d{1,20} \[(?P<elapsed>\d{1,3}(?::\d\d){1,2})<",
        (
            " 35%|####      | 73811210851/208140108456 [30:01<57:14, 39115047.81MB/s]",
            "Scanning:  7%|#         | 700/10000 [1:10:02<15:31:00, 6.0s/it]",
        ),
        words=("%|", "% |", "% 0"),
        often=True,
        check=is_long,
    ),
    Sign(
        "preparing",
        r"(?P<what>Running tokenizer on dataset|Converting format of dataset|Tokenizing[\w ]{0,40}|Map|Filter"
        r"|Generating \w{1,20} (?:split|examples)|Grouping texts[\w ]{0,40}|Packing[\w ]{0,40}"
        r"|Applying chat template[\w ]{0,40}|Truncating[\w ]{0,40}|Extracting prompt[\w ]{0,40})"
        r"(?: \([^)|]{1,40}\))?: {1,4}(?P<percent>\d{1,3})%\|",
        (
            "Running tokenizer on dataset:  47%|####7     | 1695000/3634744 [30:09<33:25, 967.30 examples/s]",
            "Map (num_proc=16):  12%|#2        | 12000/100000 [10:00<1:12:00, 20.1 examples/s]",
        ),
        words=(
            "running tokenizer",
            "converting format",
            "tokenizing",
            *("map: ", "map (", "filter: ", "filter ("),
            "generating",
            "grouping texts",
            "packing",
            "applying chat",
            "truncating",
            "extracting prompt",
        ),
    ),
    Sign(
        "zero3",
        r"(?i)\bzero[ _-]?(?:stage)?[ _-]?3\b|stage3\.py|zero/partition\w{0,20}\.py|_zero3_|[\"']stage[\"']: 3|zero_optimization.{0,20}3\b",
        ('  File "/opt/deepspeed/runtime/zero/stage3.py", line 900, in step', "DeepSpeed ZeRO-3 enabled"),
        words=("zero", "stage3", "stage"),
    ),
    Sign(
        "monitor-frame",
        r"callbacks/(?:model_checkpoint|early_stopping)\.py(?:\", line |:)\d{1,7}(?!\d|: )|"
        r"rank_zero_only=True",
        ('  File "/opt/lightning/pytorch/callbacks/model_checkpoint.py", line 530, in file_exists',),
    ),
    Sign(
        "loader-frame",
        r"(?:torch/utils/data/\w{1,60}|multiprocessing/(?:queues|connection))\.py(?:\", line |:)\d{1,7}"
        r"(?!\d|: \w{0,60}Warning)",
        (
            '  File "/opt/torch/utils/data/dataloader.py", line 1163, in _try_get_data',
            "    _try_get_data (torch/utils/data/dataloader.py:1163)",
        ),
    ),
    Sign(
        "oom-killed",
        r"[Oo]ut of memory: Killed process|invoked oom-killer|oom-kill:|oom[-_]kill event|"
        r"have been OOM Killed|OOM-?[Kk]illed(?!\"?: ?(?:false|0))|OUT_OF_MEMORY|Out Of Memory\s*$"
        r"|earlyoom\S{0,12}: sending SIG\w{3,6} to process|systemd-oomd\S{0,12}: Killed |due to memory (?:used|pressure).{0,60}(?:is|was|being) (?:>|above|over)"
        r"|exceeded (?:job |step )?memory limit.{0,80}being killed",
        (
            "slurmstepd: error: Detected 1 oom_kill event in StepId=4711.0. Some of the step tasks have been OOM Killed.",
            "[812345.1] Out of memory: Killed process 4711 (python3) total-vm:1000kB",
            'gpu-a17 earlyoom[812]: sending SIGTERM to process 4711 uid 1000 "python": badness 967, VmRSS 110221 MiB',
            "systemd-oomd[703]: Killed /user.slice/user-1000.slice due to memory pressure for /user.slice being 78.90% > 50.00% for > 20s",
            "slurmstepd: error: Job 4711 exceeded memory limit (131072000 > 125829120), being killed",
        ),
    ),
    Sign(
        "epoch-ends",
        r"(?i)\bepoch[ :\[]{1,3}\d{1,6}\]?.{0,40}(?:done|finished|complete|ended|end of)|end of epoch",
        ("Epoch 3 finished in 812.1 s",),
        words=("epoch",),
    ),
    Sign(
        "flight-culprit",
        r"Culprit rank (?P<culprit>\d{1,7}); Error type: (?P<kind>[A-Z_]{3,60})(?:, (?P<told>.{1,200}))?",
        ("error msg: Culprit rank 1; Error type: COLLECTIVE_STATE_MISMATCH, Expected state: 'scheduled'",),
    ),
)
