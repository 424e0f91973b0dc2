"""The fields of a line of a log that is known: what its sign names in it. One list, by which mypy reads every use.

On the wire and in JSON every value is text, as the log has it. A key stands for the named group of a sign in
probes/logs/signs, where its lines are; a test compares the two. Those after it are of the traceback above the line
(probes/logs/tracebacks.py), and of NCCL's lines for each collective (probes/logs/nccl_lines/calls.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, TypedDict, cast

from msgspec import Meta

# A whole number without a sign, as the log prints it: int() takes it. A saved file may hold nothing else here.
Digits = Annotated[str, Meta(pattern=r"^\d{1,1200}$")]  # characters: as many as are kept of a line


_Keywords = TypedDict("_Keywords", {"from": str, "for": Digits}, total=False)  # no names of attributes in Python


class LogFields(_Keywords, total=False):
    """What may be named in a line; what its sign does not name is not there."""

    a: Digits
    address: str
    admission: str
    after: str
    allocation: str
    alone: Digits
    amd: str
    arch: str
    asked: str
    assertion: str
    at: str
    attribute: str
    b: Digits
    backend: str
    bare: str
    batch: str
    behind: str
    bits: str
    bounds: str
    buffer: str
    built: str
    by: str
    by_hand: str
    by_shell: Digits
    bytes: str
    call: str
    called: Digits
    came: Digits
    caught: str
    cdi: str
    chip: Digits
    cli: str
    click: str
    closing: str
    code: Digits
    command: str
    completed: str
    config: str
    count: Digits
    culprit: Digits
    cut: str
    dead: Digits
    detail: str
    detected: str
    device: str
    dialled: str
    doing: str
    drained: str
    driver: str
    elapsed: str
    endpoint: str
    engine: str
    enqueued: str
    entry: Digits
    errno: Digits
    error: str
    error_of: str
    event: str
    exec: str
    execve: str
    exitcode: str
    ext: str
    extension: str
    family: Digits
    far: str
    fatal: str
    file: str
    finished: Digits
    fire: str
    first: str
    flags: str
    form: str
    found: Digits
    full: str
    function: str
    fused: str
    given: str
    gloo: str
    gnu: str
    got: str
    gpu: str
    graph: str
    group: str
    hardware: str
    has: Digits
    have: str
    hca: str
    header: str
    high: Digits
    holds: str
    home: str
    host: str
    hosts: str
    how: str
    http: str
    hydra: str
    image: str
    in_place: str
    index: Digits
    indices: str
    init: str
    installed: str
    interface: str
    invalid: str
    ip: str
    job: str
    joined: Digits
    kernel: str
    key: str
    keys: str
    kind: str
    lacks: str
    last: Digits
    late: str
    launch: str
    launcher: str
    least: Digits
    level: str
    library: str
    limit: str
    local: str
    local_rank: Digits
    look: str
    lower: Digits
    machine: str
    map: str
    mask: str
    master: str
    merge: str
    message: str
    mine: Digits
    missing: str
    model: str
    module: str
    most: Digits
    ms: Digits
    mtu: Digits
    munge: str
    name: str
    named: str
    nccl: str
    net: Digits
    network: str
    new: str
    ninja: str
    node: str
    nodes: str
    none: str
    nought: str
    nranks: Digits
    number: str
    numel_in: Digits
    numel_out: Digits
    nvcc: str
    oci: str
    odd: Digits
    of: Digits
    old: str
    one: Digits
    ooo: str
    op: str
    operation: Digits
    other: str
    own: str
    owner: Digits
    panic: str
    parsed: str
    part: str
    parts: str
    path: str
    peer: str
    pending: str
    percent: Digits
    pid: Digits
    port: Digits
    process: Digits
    processes: str
    program: str
    prolog: str
    python: str
    pyxis: str
    queue: str
    raised: str
    ran: Digits
    rank: str
    rank_a: Digits
    rank_b: Digits
    ranks: str
    rate: str
    rc: str
    read: str
    ready: str
    reason: str
    refused: str
    remote: str
    request: str
    resource: str
    result: str
    ring: str
    sampled: str
    scale: str
    script: str
    second: str
    seconds: str
    seq: Digits
    server: str
    set: str
    setsid: str
    shell: str
    short: Digits
    shown: str
    signal: str
    size: str
    small: str
    sockets: Digits
    sort: str
    source: str
    spec: str
    speed: str
    spent: str
    ssh: str
    stacked: str
    state: str
    static: str
    status: str
    step: str
    store: str
    subsystem: str
    symbol: str
    system: str
    taint: str
    taken: Digits
    task: str
    tens: Digits
    tensor: str
    tests: str
    text: str
    threads: Digits
    thrown: str
    timeout: Digits
    to: str
    token: str
    told: str
    torch: str
    total: str
    trap: str
    type: str
    ucx: str
    upper: Digits
    url: str
    used: str
    value: str
    vendor: Digits
    verify: str
    version: str
    waited: Digits
    walked: str
    want: str
    wanted: Digits
    warned: str
    ways: str
    weight: str
    what: str
    why: str
    width: Digits
    words: str
    worker: Digits
    workers: str
    world: Digits
    worst: Digits
    wrapped: str
    write: str
    wrong: str
    xfs: str
    xid: Digits
    zip: str
    zsh: str

    # The traceback that the line ends, or begins
    called_at: str
    chained: str
    client: str
    code_line: str
    condition: str
    ends: str
    helper: str
    main: str
    raised_at: str
    raised_in: str
    spawned: str
    unreadable: str
    place: str

    # A collective as a rank called it
    communicator: str
    datatype: Digits
    root: str


class WrittenFields(LogFields, total=False):
    """As a sign names them, with who wrote the line: a rank by either name, a host. The reader takes these out."""

    me: Digits
    self: Digits
    here: str


def named_in(match: re.Match[str]) -> WrittenFields:
    """What a pattern of the list above names in a line; what it leaves empty is not named."""
    return cast(WrittenFields, {name: text for name, text in match.groupdict().items() if text})


def set_only(fields: LogFields) -> LogFields:
    """Without what is empty."""
    return cast(LogFields, {name: text for name, text in fields.items() if text})


def first_named(fields: LogFields, *names: str) -> str:
    """The first of these that the line names, empty: none. Each alternative of a pattern has a name of its own."""
    known = cast("Mapping[str, str]", fields)
    return next((known[name] for name in names if name in known), "")
