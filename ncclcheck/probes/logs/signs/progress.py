"""What shows that a job works, beside the steps of a training."""

from __future__ import annotations

import re

from ncclcheck.probes.logs.signs.sign import Sign

# Bars of what is done before the work: they are printed while other ranks start, too.
_BEFORE = re.compile(
    r"(?i)\b(?:load|download|fetch|captur|compil|tokeni|map|filter|generating|shard|sanity|resolv|prepar|pack|process"
    r"|preprocess|extract|creat|quanti[sz]|convert|unpack|cach|profil|build|collect|index)\w{0,12}\b.{0,60}"
    r"(?:%\||\[\d\d:\d\d|/s)"
)


# A bar that is drawn once more when its process ends has not advanced; five steps are work.
_BAR = re.compile(rb"%\|[^|]{0,300}\| {0,3}(\d{1,9})/\d{1,10} \[")
_STEPS = 5  # chosen, see above


def _works(text: str) -> bool:
    return _BEFORE.search(text) is None


def advances(parts: list[bytes]) -> bool:
    """Whether a progress bar that is drawn again and again on one line advances by some steps."""
    steps = [int(match[1]) for part in parts if (match := _BAR.search(part[:400]))]
    return bool(steps) and max(steps) - steps[0] >= _STEPS and _works(parts[-1][:400].decode(errors="replace"))


SIGNS = (
    Sign(
        "work-goes-on",
        r'"(?:GET|POST) (?!/(?:health|metrics|ping|ready|live)\w{0,4}[ /?])\S{1,200} HTTP/[\d.]{1,4}" 200'
        r"|Avg prompt throughput: (?!.{0,120}Running: 0 reqs)|(?:Decode|Prefill) batch[.,:\[ ]"
        r"|\d{1,3}%(?:\|.{0,300}?\|)? {0,3}[1-9]\d{0,9}/\d{1,10} \[\d"
        r"|\d ?(?:img|images?|samples?|tok(?:en)?s?|it|iters?|steps?|examples?|seq(?:uence)?s?|Gi?B)/s(?:ec\w{0,4})?\b"
        r"|\b[Tt]otal (?:img|images|samples|tokens)/sec\b.{0,40}\d|\b[Aa]verage (?:img|images|samples|tokens)(?:/| per )sec\w{0,4}\b.{0,9}\d"
        r"|\b(?:[Aa]cc(?:uracy)?|Acc@1|F1|f1|BLEU|bleu|ppl|[Pp]erplexity|mIoU)['\"]?\s{0,4}[:=|(]?\s{0,4}\d{1,4}\.\d"
        r"|\b(?:[Mm]odel|[Cc]heckpoint|[Ww]eights|[Rr]esults)\b.{0,60}? (?:is |was |are |were )?(?:saved (?:to|in|at|as)|written to)\b"
        r"|\b(?:[Ss]aving|[Ss]aved) (?:the )?(?:model|checkpoint|weights|results)\b"
        r"|\b(?:[Ee]lapsed|[Aa]verage|[Mm]ean|[Mm]edian|P9\d)\b.{0,40}\b(?:[Tt]ime|[Ll]atency|ITL|TTFT|TPOT)\b.{0,80}: {1,40}\d{1,9}\.\d"
        r"|^\W{0,3}(?:[Gg]lobal |[Ll]ocal )?[Rr]ank\b.{0,60}\btensor\("
        r"|^\s{0,12}\d{1,12} {1,30}\d{1,12} {1,30}[\w-]{1,12}(?: {1,30}[\w-]{1,12}){0,2}(?: {1,30}\d{1,9}\.\d{1,9}){2,8}\s*$"
        r"|\b(?:algbw|busbw|bandwidth|throughput)[ :=]{1,4}\d{1,9}\.\d{1,9} {0,3}(?:[KMGT]i?)(?:B|b|bps|b/s|B/s|bit/s)\b"
        r"|^\s{0,8}[Tt]rain (?:loss|metrics|memory|time)/\S{1,60}: \d"
        r"|^(?:\[?[Rr]ank[ =]?\d{1,6}\]?[:,]? {0,2})?(?:[Aa]ll [Dd]one|[Dd]one|DONE)[.!][.! ]{0,5}$"
        r'|:::MLL(?:OG)?\b.{0,400}"key": ?"(?:epoch_stop|block_stop|eval_stop|eval_accuracy|train_loss|tracked_stats)"',
        (
            'INFO:     10.0.3.4:40112 - "POST /v1/completions HTTP/1.1" 200 OK',
            "INFO 11-09 22:47:01 [loggers.py:116] Engine 000: Avg prompt throughput: 12.1 tokens/s, Running: 3 reqs",
            "[2026-03-01 10:00:00 TP0] Decode batch. #running-req: 3, gen throughput (token/s): 41.2",
            " 12%|███       | 120/1000 [01:10<08:40,  1.69it/s]",
            "Epoch 0:  50% 1/2 [00:00<00:00,  6.54it/s, loss=2.29, v_num=0]",
            "Average throughput: 1234.5 img/sec per device",
            "[rank 0] all_reduce 64 MB: 1.21 ms, 98.1 GB/s",
            "Total img/sec on 4 GPU(s): 1200.3 +-5.1",
            "Final test accuracy: 0.9132",
            "Model saved to out/final",
            "Saving model checkpoint to out/checkpoint-500",
            "Done!",
            "[0] Python: Elapsed time in each iter for all_to_all : 0.00005100",
            "P95 ITL (ms):                            77.96",
            "Rank 0 has data tensor([6.], device='cuda:0')",
            "4096      1024      32-bit    thread    112.700796        0.001         0.000",
            " busbw: 40.7806  Gbps",
            "      Train loss/train/total: 7.0952",
            ':::MLLOG {"namespace": "", "time_ms": 1700000000000, "event_type": "INTERVAL_END", "key": "epoch_stop", '
            '"value": null, "metadata": {"file": "train.py", "lineno": 255, "epoch_num": 4}}',
        ),
        words=(
            *(
                "http/",
                "throughput",
                "batch",
                "%|",
                "% ",
                "img/s",
                "image/s",
                "s/s",
                "it/s",
                "tok/s",
                "b/s",
                "/sec",
            ),
            *(
                "acc:",
                "acc=",
                "acc@",
                "accuracy",
                "f1:",
                "f1=",
                "f1'",
                "bleu",
                "ppl",
                "perplexity",
                "miou",
                "tensor(",
            ),
            *(
                "saved to",
                "saved in",
                "saved at",
                "saved as",
                "saving model",
                "saving checkpoint",
                "saved checkpoint",
            ),
            *("saving the", "written to", "done!", "done."),
            *(
                "bit ",
                "busbw",
                "algbw",
                "bandwidth",
                "train loss/",
                "train metrics/",
                "train memory/",
                "train time/",
            ),
            *(
                "elapsed time",
                "average time",
                "mean time",
                "median time",
                "latency",
                " itl ",
                " ttft ",
                " tpot ",
                ":::mll",
            ),
        ),
        often=True,
        check=_works,
    ),
    Sign(
        "profiled-goes-on",  # torch's profiler collected some steps of a process
        r"ActivityProfilerController\.cpp:\d{1,5}\] Completed Stage: (?:Collection|Post Processing)",
        ("STAGE:2026-03-01 10:00:00 4711:4711 ActivityProfilerController.cpp:318] Completed Stage: Collection",),
        words=("completed stage: ",),
        often=True,
    ),
    Sign(
        "nccl-tests-row",
        r"(?:^|[ >:])\d{1,15} {1,20}\d{1,15} {1,20}(?:float|half|double|bfloat16|u?int\d{0,2}|u?char|u?long|f8e\w{1,8}|fp8_e\w{1,8})"
        r"(?: {1,20}(?:sum|prod|min|max|avg|mulsum|none))?"
        r"(?: {1,20}-?\d{1,6} {1,20}\d{1,12}\.?\d| {1,20}\d{1,12}(?:\.\d{1,3})? {1,20}\d{1,6}\.\d\d )",  # before 2.11 of NCCL without the root
        (
            "     1048576        262144     float     sum      -1    31.21   33.60   63.00      0",
            "           8             2     float     sum    40.17    0.00    0.00  1e-07    62.08    0.00    0.00  0e+00",
            "           8             2   float       0    45.82    0.00    0.00    N/A    38.17    0.00",
            "         100           100    char     sum    0.038   0.00   0.00    0e+00    0.046   0.00   0.00    0e+00",
        ),
        words=("float", "half", "double", "int8", "int32", "int64", " int ", "char ", "long ", "f8e", "fp8_e"),
        often=True,
    ),
    Sign(
        "osu-header",  # after MPI has started, whatever it complained of
        r"^# Size {1,40}(?:Avg |Min |Max )?(?:Latency|Bandwidth)",
        ("# Size       Avg Latency(us)", "# Size      Bandwidth (MB/s)"),
        words=("# size ",),
    ),
    Sign(
        "launched",  # a shell's trace or prompt before a launcher, or the first words of one
        r"^(?P<by_hand>\+{1,3} |[\w.@~:/()\[\] -]{0,80}[$#%] {1,2})(?:time |env |exec |nohup |sudo |\w{1,60}=\S{0,200} ){0,12}"
        r"(?:\S{0,200}/)?(?:torchrun|accelerate|deepspeed|srun|mpirun|mpiexec|horovodrun|python[\d.]{0,5}|vllm|llamafactory-cli"
        r"|axolotl|fairseq-train)\s+(?:.{0,1500}?(?P<script>[\w.-]{1,120}\.(?:py|sh|yaml|yml)\b|(?<= -m )(?!torch\.distributed)"
        r"[\w.]{1,120}))?"
        r"|^# (?P<tests>nThread) \d{1,4} nGpus \d|Initializing \d{1,6} distributed tasks at: |\[runner\.py:\d{1,6}:main\] cmd = "
        r"|(?P<server>vLLM API server version)|^\*{5} Running training \*{5}$",
        (
            "+ torchrun --nproc_per_node 4 train.py",
            "(base) ada@gpu-a17:~/proj$ CUDA_VISIBLE_DEVICES=0,1 python -m torch.distributed.run train.py",
            "# nThread 1 nGpus 8 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20",
            "[INFO|2026-03-01 10:00:00] llamafactory.cli:143 >> Initializing 8 distributed tasks at: 127.0.0.1:29500",
            "[2026-03-01 10:00:00,100] [INFO] [runner.py:605:main] cmd = /usr/bin/python3 -u -m deepspeed.launcher.launch",
            "INFO 11-09 22:47:01 [api_server.py:1043] vLLM API server version 0.8.5",
            "***** Running training *****",
        ),
        words=(
            *(
                "torchrun ",
                "accelerate ",
                "deepspeed ",
                "srun ",
                "mpirun ",
                "mpiexec ",
                "horovodrun ",
                "vllm ",
                "python",
            ),
            *("llamafactory-cli ", "axolotl ", "fairseq-train ", "# nthread ", "distributed tasks at", "] cmd = "),
            *("api server version", "running training"),
        ),
        often=True,
    ),
    Sign(
        "item-failed",  # below an exception: one sample was given up for it
        r"(?i)^(?:.{0,80}\b)?(?:error|failed|failure|could not|cannot)\b.{0,80}\b(?:item|sample|example|record|row|prompt|task|document)s? "
        r"(?:id |idx |index |#)?[\w-]{0,12}\d[\w-]{0,60}\s{0,3}$",
        (
            "Error parsing the answer for item 0f7fa891-9ee5-46a3",
            "ERROR: failed to score sample 4711",
        ),
        words=("item ", "sample ", "example ", "record ", "row ", "prompt ", "task ", "document "),
    ),
    Sign(
        "dealt-with",  # below an exception: it was caught
        r"(?i)\b(?:retrying|will retry|trying again|(?<!and )(?<!lease )try again|sampled again|skip(?:ping|ped)|fall(?:ing)? back"
        r"|fell back|(?:training|job|run|rollout|step|loop) continues|continu(?:ing|e) (?:with|anyway|without|training)"
        r"|resum(?:ing|ed) (?:training|from|download)|re-?queu(?:ed|ing)"
        r"|using (?:the )?(?:local|cached|latest cached|default|slower|another)\b"
        r"|(?:starting|training) (?:from scratch|with a fresh|anew))\b",
        (
            "retrying in 5 s (1/3)",
            "WARNING: sample 12 is skipped",
            "rollout 17 is sampled again",
            "hub not reached, falling back to the cache",
            "Using local copy instead",
            "No checkpoint found, training from scratch",
        ),
        words=(
            *(
                f"using {the}{what}"
                for the in ("", "the ")
                for what in ("local", "cached", "latest", "default", "slower")
            ),
            *("using another", "from scratch", "with a fresh", "starting anew"),
            *(
                "retry",
                "trying again",
                "try again",
                "skipping",
                "skipped",
                "falling back",
                "fall back",
                "fell back",
            ),
            *("continuing", "continue ", "continues", "resuming", "resumed", "requeu", "re-queu", "d again"),
        ),
        often=True,
    ),
    Sign(
        "started-anew",
        r"will restart worker group|Restarting worker group|restart_count=[1-9]|\bRequeued? job|Restart(?:ing)? attempt [1-9]",
        (
            "INFO:torch.distributed.elastic.agent.server.api:[default] Worker group FAILED. 3/3 attempts left; will restart "
            "worker group",
            "[I1109 22:47:01 api.py:568] [default] Rendezvous complete for workers. Result: restart_count=1",
        ),
    ),
)
