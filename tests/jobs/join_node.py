"""One process of a join for tests: reads its identity as the command does, and prints what it ended with as JSON.

python -m tests.jobs.join_node COMMAND [--nodes N --node-rank R --rdzv-endpoint HOST:PORT ...] [--linger S]
"""

from __future__ import annotations

import argparse
import json
import os
import sys

import msgspec

from ncclcheck.base.clock import Deadline
from ncclcheck.base.errors import Interrupted, UsageError
from ncclcheck.base.progress import Progress
from ncclcheck.launch import join
from ncclcheck.launch.agents import Events
from ncclcheck.launch.joining.trust.identity import JoinIdentity, identity
from ncclcheck.run import follower
from ncclcheck.run.own_command import OwnCommand
from ncclcheck.run.plan.options import Options
from ncclcheck.run.session import Session, signals_as_events

_AGENT = ("--probe-seconds", "5")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("command")
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--node-rank", type=int)
    parser.add_argument("--rdzv-endpoint")
    parser.add_argument("--rdzv-id", default="")
    parser.add_argument("--secret-file")
    parser.add_argument("--wait", type=float)
    parser.add_argument("--name", default="")
    parser.add_argument("--linger", type=float, default=0.0)
    given = parser.parse_args()
    options = Options(
        command=given.command,
        nodes=given.nodes,
        node_rank=given.node_rank,
        rdzv_endpoint=given.rdzv_endpoint,
        rdzv_id=given.rdzv_id,
        secret_file=given.secret_file,
    )
    who = identity(options, os.environ, given.name or f"host{given.node_rank}")
    assert who is not None
    wait = join.wait_of(who, given.wait)
    return _lead(who, options, wait, given.linger) if who.is_lead else _follow(who, options, wait)


def _lead(who: JoinIdentity, options: Options, wait: float, linger: float) -> int:
    events, progress = Events(), Progress()
    lead = join.JoinLead(who, options.command)
    code = 0
    with signals_as_events(events):
        session = Session(lead.start(events, wait, progress, *_AGENT), events, Deadline(30), progress)
        try:
            session.facts(15)
            session._listen(linger, lambda: False)
        except Interrupted as interrupted:
            code = 128 + interrupted.number
        run = session.gathered.run(started_job=False, stopped_by="")
        summary = {
            "answered": [node.name for node in session.gathered.answered],
            "closed": {n.name: n.closed.detail for n in session.gathered.nodes.values() if n.closed is not None},
            "silent": {silence.node: silence.detail for silence in run.silent},
            "meeting": json.loads(msgspec.json.encode(lead.fact)),
            "endpoint": lead.endpoint(),
            "addresses": dict(lead.addresses),
        }
        session.close()
    code = code or (3 if run.silent else 0)
    lead.done(code, f"decided for {len(summary['answered'])} nodes", b"document")
    print(json.dumps(summary))
    return code


def _follow(who: JoinIdentity, options: Options, wait: float) -> int:
    ended = follower.follow(who, options.command, Events(), wait, OwnCommand(seconds=60), Progress(), *_AGENT)
    if ended.unreached is not None:
        cluster = follower.alone(who, ended, options)
        print(
            json.dumps(
                {"meeting": json.loads(msgspec.json.encode(cluster.job.meeting)), "nodes": len(cluster.nodes)}
            )
        )
    sys.stderr.write(f"{ended.line}\n")
    return ended.exit_code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UsageError as error:
        sys.stderr.write(f"usage: {error}\n")
        sys.exit(2)
