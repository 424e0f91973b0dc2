"""Objects that calls of torch and other libraries make: wraps, loaders, samplers, optimizers."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ncclcheck.probes.script.running.values import NOTHING, AbstractValue, carried, join

if TYPE_CHECKING:
    from ncclcheck.probes.script.running.calling import Calling as Run

OPTIMIZERS = re.compile(
    r"^torch\.optim\.(?!lr_scheduler|swa_utils|Optimizer$)\w+(?:\.\w+)?$|(?:^|\.)(?:FusedAdam|FusedLAMB|AdamW\w*|Adam8bit|Lion)$"
)
LOADERS = re.compile(r"(?:^|\.)(?:DataLoader|DataLoaderX|MultiEpochsDataLoader|StatefulDataLoader|GeoDataLoader)$")
_SAMPLER = re.compile(r"(?:^torch\.utils\.data\.(?:distributed\.)?|^)DistributedSampler$")
ANY_SAMPLER = re.compile(r"Sampler$")


@dataclass(frozen=True)
class KnownCall:
    """A call, and what is known of what it is given."""

    run: Run
    node: ast.Call
    name: str
    given: list[AbstractValue]
    named: Mapping[str, AbstractValue]


def _wrap(kind: str) -> Callable[[KnownCall], AbstractValue]:
    def made(asked: KnownCall) -> AbstractValue:
        module = asked.given[0] if asked.given else asked.named.get("module", NOTHING)
        return AbstractValue(frozenset({asked.run.make(kind, asked.node, fields={"module": module})}))

    return made


def _shards(asked: KnownCall) -> AbstractValue:
    return asked.given[0] if asked.given else NOTHING


def loader_fields(given: list[AbstractValue], named: Mapping[str, AbstractValue]) -> dict[str, AbstractValue]:
    """What a loader is made of, by name."""
    places = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler")
    fields = dict(zip(places, given, strict=False)) | dict(named)
    if "batch_sampler" in fields:
        fields["sampler"] = join([fields.get("sampler", fields["batch_sampler"]), fields["batch_sampler"]])
    fields.pop("", None)
    return fields


def _loader(asked: KnownCall) -> AbstractValue:
    return AbstractValue(
        frozenset({asked.run.make("loader", asked.node, fields=loader_fields(asked.given, asked.named))})
    )


def _sampler(asked: KnownCall) -> AbstractValue:
    places = ("dataset", "num_replicas", "rank", "shuffle", "seed")
    fields = dict(zip(places, asked.given, strict=False)) | dict(asked.named)
    fields.pop("", None)
    return AbstractValue(frozenset({asked.run.make("sampler", asked.node, fields=fields)}))


def _other_sampler(asked: KnownCall) -> AbstractValue:
    tags = carried(*asked.given, *asked.named.values())
    inner = frozenset(tag for value in asked.given for tag in value.of("sampler", "sampled"))
    kind = "plain" if asked.name.startswith("torch.utils.data") else "sampled"
    return AbstractValue(tags | (inner or {asked.run.make(kind, asked.node)}))


def _optimizer(asked: KnownCall) -> AbstractValue:
    return AbstractValue(
        frozenset(
            {
                asked.run.make(
                    "optimizer", asked.node, fields={"params": asked.given[0] if asked.given else NOTHING}
                )
            }
        )
    )


def _plateau(asked: KnownCall) -> AbstractValue:
    return AbstractValue(frozenset({asked.run.make("plateau", asked.node)}))


KINDS: tuple[tuple[re.Pattern[str], Callable[[KnownCall], AbstractValue]], ...] = (
    (re.compile(r"^(?:torch\.nn|apex)\.parallel\.(?:distributed\.)?DistributedDataParallel$"), _wrap("ddp")),
    (
        re.compile(
            r"^torch\.distributed\.fsdp\..*FullyShardedDataParallel$|^torch\.distributed\.fsdp\.FullyShardedDataParallel$|^FSDP$"
        ),
        _wrap("fsdp"),
    ),
    (re.compile(r"^torch\.distributed\..*\bfully_shard$"), _shards),
    (LOADERS, _loader),
    (_SAMPLER, _sampler),
    (ANY_SAMPLER, _other_sampler),
    (OPTIMIZERS, _optimizer),
    (re.compile(r"(?:^|\.)ReduceLROnPlateau$"), _plateau),
)
