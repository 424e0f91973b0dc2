"""Names of functions of libraries, by what a call of them does to the values of a script."""

from __future__ import annotations

import re

ENDS = ("sys.exit", "exit", "quit", "os._exit", "os.abort")
# What is the same on all ranks though the tensors are not.
SHAPES = ("shape", "dtype", "device", "ndim", "requires_grad", "is_cuda", "grad_fn", "__class__", "__name__")
SHAPE_OF = re.compile(
    r"^(?:len|isinstance|hasattr|type|callable|id|getattr)$|\.(?:size|dim|numel|keys|ndimension|type)$"
)
RANK_NAMES = re.compile(
    r"^(?:global_|world_|ddp_|dist_|my_|dp_)?rank$|^get_(?:global_|world_)?rank$|^process_index$"
)
LOCAL_NAMES = re.compile(r"^(?:get_)?local_rank$|^get_node_local_rank$|^local_process_index$")
WORLD_NAMES = re.compile(r"^(?:get_|ddp_)?world_size$|^num_processes$")


def is_number_of_job(name: str) -> bool:
    """Whether a name alone tells that it is a rank, or a number of ranks."""
    lower = name.lower()
    return any(pattern.match(lower) for pattern in (LOCAL_NAMES, RANK_NAMES, WORLD_NAMES))


GATHERS = re.compile(
    r"reduc|gather|synchroni|average_across|all_mean|broadcast|sync_|dist_mean|mean_all|across", re.I
)
KINDS = {"int": int, "str": str, "bool": bool}
SUMS = re.compile(r"(?:^|\.)(?:all_reduce|reduce|broadcast|broadcast_object_list|all_reduce_coalesced)_?$")
PASSES = re.compile(  # gives what it is given, or what it is called on
    r"^(?:int|str|list|tuple|sorted|reversed|iter|set|float|tqdm(?:\.\w+)*|trange|track|os\.path\.(?:abspath|expanduser|realpath|normpath)"
    r"|torch\.compile|torch\.device|torch\.nn\.SyncBatchNorm\.convert_sync_batchnorm|apex\.parallel\.convert_syncbn_model|pathlib\.Path|islice|itertools\.islice|alive_it|progress_bar)$"
    r"|tqdm(?:\.\w+)*$|\.(?:cuda|to|half|bfloat16|double|train|eval|requires_grad_|apply|expanduser|resolve|absolute|format|strip|as_posix|log_every|convert_sync_batchnorm)$"
)
DETACHES = re.compile(r"^float$|^int$|\.(?:item|detach|numpy|tolist|data)$")
WRITES = re.compile(
    r"^(?:torch\.save|np\.save\w*|numpy\.save\w*|joblib\.dump|torchvision\.utils\.save_image|shutil\.(?:copy\w*|move)|urllib\.request\.urlretrieve)$"
    r"|\.(?:to_csv|to_json|to_parquet|to_pickle|write_text|write_bytes|save_to_disk|save_pretrained)$"
)
READS = re.compile(
    r"^(?:torch\.load|np\.load\w*|numpy\.load\w*|joblib\.load|pd\.read_\w+|pandas\.read_\w+|datasets\.load_from_disk|load_from_disk)$"
    r"|\.(?:read_text|read_bytes)$"
)
CHANCES = re.compile(
    r"^(?:random|np\.random|numpy\.random|secrets|uuid)\.|^os\.(?:getpid|urandom)$|^torch\.(?:seed|initial_seed)$"
)
TIMES = re.compile(
    r"^(?:time\.)?(?:time|perf_counter|monotonic|strftime)$|(?:^|\.)datetime\.(?:now|today|utcnow)$"
)
DRAWS = re.compile(
    r"^torch\.(?:rand|randn|randint|bernoulli|normal|randperm)(?:_like)?$|\.(?:normal_|uniform_|bernoulli_|random_|exponential_)$"
)
SEEDS = re.compile(
    r"^(?:torch\.(?:cuda\.|random\.)?manual_seed(?:_all)?|lightning\.seed_everything|transformers\.set_seed|accelerate\.utils\.set_seed|pytorch_lightning\.seed_everything)$"
)
REPORTS = re.compile(r"^print$|(?:^|\.)(?:info|log|log_metrics|add_scalars?|set_postfix|set_description)$")
ON_CPU = re.compile(
    r"^torch\.(?:tensor|zeros|ones|full|empty|from_numpy|FloatTensor|IntTensor|LongTensor|Tensor)$"
)
GROUPS = re.compile(r"(?:^|\.)(?:init_process_group|init_device_mesh|init_distributed)$")
RECORDED = re.compile(
    r"^torch\.distributed\.|^detectron2\.utils\.comm\.|(?:^|\.)(?:DistributedDataParallel|FullyShardedDataParallel|fully_shard|DDP|FSDP)$"
    r"|set_device$|^\.(?:backward|step|zero_grad|cuda|to|item|iter|wait_for_everyone|barrier|consolidate_state_dict|fit|validate|test|predict|load_state_dict|state_dict|append|clip_grad_norm_|join|no_sync|wait|accumulate|requires_grad_|log|log_dict)$|clip_grad_\w+$|convert_sync\w*$|(?:^|\.)SummaryWriter$|^wandb\.init$|(?:^|\.)\w*Trainer$|^os\.makedirs$"
    r"|^torch(?:vision|audio)\.datasets\.|^\.(?:shard|evaluate|wrap)$|nn\.(?:parallel\.)?DataParallel$|^torch\.cuda\.(?:set_device|current_device|mem_get_info|empty_cache|device)$|^swanlab\.init$"
    r"|(?:^|\.)ZeroRedundancyOptimizer$|^\.(?:setup(?:_module)?|save|unwrap_model)$|prepare\w*$|^deepspeed\.initialize$|Accelerator$|\.start_processes$|multiprocessing\.spawn$|\.Process$|(?:^|\.)Fabric$|^iter$|^next$|random_split$|^os\.environ|getenv$|(?:^|\.)barrier$"
)
PREPARES = ("prepare", "prepare_data_loader", "prepare_model", "prepare_optimizer", "setup", "setup_dataloaders")
SETTINGS = re.compile(
    r"HParams$|Namespace$|EasyDict$|edict$|(?:Ad|Attr)Dict$|Munch$|Box$|^Config(?:Dict)?$"
)  # their fields are given
OTHER_USES = ("map", "filter", "sorted", "DataLoader", "partial", "functools.partial")  # of a function given
SPAWNS = re.compile(r"(?:^|\.)(?:spawn|start_processes)$")
