"""Ray: its memory monitor, and the deaths of its workers. Losing a whole node stands among the launchers."""

from __future__ import annotations

from ncclcheck.probes.logs.signs.sign import Sign

SIGNS = (
    Sign(
        "ray-memory",
        r"killed due to the node running low on memory|NODE_OUT_OF_MEMORY"
        r"|[1-9]\d{0,5} Workers \(tasks / actors\) killed due to memory pressure.{0,160}?IP: (?P<here>[\w.:]{1,64})"
        r"|Memory on the node \(IP: (?P<at>[\w.:]{1,64}),.{0,300}? was (?P<used>[\d.]{1,12}GB / [\d.]{1,12}GB)",
        (
            "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
            "2 worker(s) were killed due to the node running low on memory.",
            "(raylet) [2025-04-02 15:02:00,117 E 1357 1357] (raylet) node_manager.cc:3069: 1 Workers (tasks / actors) "
            "killed due to memory pressure (OOM), 0 Workers crashed due to other reasons at node (ID: 351e, IP: "
            "10.95.143.76) over the last time period.",
            "Memory on the node (IP: 10.0.62.231, ID: e5d9) where the task (task ID: 4353, name=f, pid=113, memory "
            "used=1.25GB) was running was 27.71GB / 28.80GB (0.962273), which exceeds the memory usage threshold of 0.95.",
        ),
    ),
    Sign(
        "ray-lacks",
        r"Not enough (?P<kind>[A-Z]{2,8})s available\. Requested (?P<asked>\d{1,6}) \w{2,8}, but only (?P<has>\d{1,6})"
        r"|number of required (?P<sort>GPU|TPU)s exceeds the total number of available"
        r"|(?:No available node types can fulfill|following) resource request(?: cannot be scheduled right now:)?s? "
        r"(?P<request>\{[^{}]{3,200}\})|(?P<pending>\{[^{}]{3,200}\}(?: \* \d{1,6})?) \(\w{3,20}\): \d{1,6}\+ pending placement groups",
        (
            "Not enough GPUs available. Requested 16 GPUs, but only 8 are available in the cluster.",
            "(autoscaler +12s) Error: No available node types can fulfill resource request {'GPU': 16.0}. Add suitable "
            "node types to this cluster to resolve this issue.",
            "Warning: The following resource request cannot be scheduled right now: {'CPU': 1.0, 'GPU': 8.0}. This is "
            "likely due to all cluster resources being claimed by actors.",
            "{'GPU': 1.0} * 2 (PACK): 1+ pending placement groups",
            "WARNING 04-01 02:45:50 ray_utils.py:320] The number of required GPUs exceeds the total number of available "
            "GPUs in the placement group.",
        ),
        words=("not enough ", "resource request", "pending placement group", "number of required "),
    ),
    Sign(
        "ray-worker-died",
        r"Worker exit type: (?P<type>SYSTEM_ERROR|NODE_OUT_OF_MEMORY|USER_ERROR)(?:.{0,40}?Worker exit detail: "
        r"(?P<detail>.{3,160}))?"
        r"|The actor is dead because (?!its node)(?P<reason>.{3,160})"
        r"|A worker died or was killed while executing a task by an unexpected system error",
        (
            "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: "
            "Worker unexpectedly exits with a connection error code 2. End of file.",
            "(raylet) A worker died or was killed while executing a task by an unexpected system error. To troubleshoot "
            "the problem, check the logs for the dead worker.",
        ),
    ),
    Sign(
        "ray-worker-at",
        r"Worker IP address: (?P<here>[\w.:]{1,64}) .{0,40}?Worker PID: (?P<pid>\d{1,10})|^\s{0,20}ip: (?P<ip>[\d.]{7,15})$",
        (
            "RayTask ID: ffff Worker ID: a02f Node ID: df10 Worker IP address: 10.20.150.183 Worker port: 34093 Worker "
            "PID: 288692 Worker exit type: SYSTEM_ERROR",
            "        ip: 10.29.214.5",
        ),
        words=("worker ip address", "ip: "),
    ),
    Sign(
        "ray-total",  # of `ray status`
        r"^\s{0,8}\d{1,6}\.\d/(?P<total>\d{1,6})\.\d (?P<sort>GPU|TPU|NPU)\s*$",
        (" 0.0/1.0 GPU", "0.0/8.0 GPU"),
        words=(" gpu", " tpu", " npu"),
    ),
)
