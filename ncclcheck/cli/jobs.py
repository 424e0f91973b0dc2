"""The options of every command that starts a job: its ranks, how they begin, its backend, faults of a preview."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict

import click

from ncclcheck.cli.common import SELDOM, WHERE, F, Number, option
from ncclcheck.run.plan import faults, starts
from ncclcheck.run.plan.starts import JobStart

_MOST_RANKS = 1024  # on a node; a number beyond any machine's GPUs or cores is a slip of the fingers; chosen


class Wishes(TypedDict):
    """What was said of any job, as bench_plan.JobOptions names it."""

    nproc_per_node: int | None
    backend: str
    begin: JobStart
    inject: tuple[str, ...]


def of_jobs(forms: str) -> Callable[[F], F]:
    """Add them to a command. forms: the faults that its --inject knows."""
    options = (
        option(
            "--nproc-per-node",
            group=WHERE,
            type=Number(1, _MOST_RANKS, whole=True),
            metavar="N",
            help="ranks per node; default: one per GPU, else by cores",
        ),
        option(
            "--start",
            group=WHERE,
            type=click.Choice(starts.STARTS),
            help="what starts the ranks of a node: torchrun, or torch.multiprocessing.spawn  "
            "[default: torchrun; spawn for tcp and file]",
        ),
        option(
            "--init",
            group=WHERE,
            type=click.Choice(starts.INITS),
            help="how ranks find each other, as init_method says in your script  [default: env]",
        ),
        option(
            "--init-method",
            group=WHERE,
            metavar="URL",
            help="the very place: tcp://HOST:PORT or file:///PATH; it is tried before the job",
        ),
        option(
            "--backend",
            group=WHERE,
            type=click.Choice(["auto", "nccl", "gloo"]),
            default="auto",
            show_default=True,
            help="backend; with nccl several simulated nodes may share a GPU",
        ),
        option(
            "--inject",
            group=SELDOM,
            multiple=True,
            metavar="FAULT",
            help=f"preview the report of a fault: {forms}",
        ),
        option(
            "--force", group=SELDOM, is_flag=True, help="start jobs even if a check says that they cannot work"
        ),
    )

    def add_all(command: F) -> F:
        for add in reversed(options):
            command = add(command)
        return command

    return add_all


def wishes(given: dict[str, Any], *, training: bool = False) -> Wishes:
    """Their values. training: faults of a training may be injected. Raises UsageError."""
    return {
        "nproc_per_node": given["nproc_per_node"],
        "backend": given["backend"],
        "begin": starts.read(given["start"], given["init"], given["init_method"]),
        "inject": faults.read(given["inject"], training=training),
    }
