"""The directories in which a job works, for rules about them."""

from __future__ import annotations

from ncclcheck.probes.facts import Mount, Node, Place, Room, at, known, value_or
from ncclcheck.reports.judgement.findings import Evidence, seen
from ncclcheck.reports.text.words.fold import size


def places(node: Node, *names: str) -> list[Place]:
    """Those of these names."""
    listed: list[Place] = known(at(node, "storage.places"))
    return [place for place in listed if place.name in names]


def mounted(mount: Mount) -> str:
    """From which server it comes, or that it comes from none."""
    return f"{mount.source} ({mount.kind})" if mount.network else "a local file system"


def working(node: Node) -> Place | None:
    """The working directory, where it is known."""
    listed: list[Place] = value_or(at(node, "storage.places"), [])
    return next((place for place in listed if place.name == "working directory"), None)


def about(place: Place) -> list[Evidence]:
    """Who names the directory, how much room it has, and what is mounted there."""
    all_evidence = [seen(place.told_by, place.path)]
    if isinstance(place.room, Room):
        room = place.room
        inodes = f", {room.inodes_free} of {room.inodes} inodes free" if room.inodes else ""
        all_evidence.append(seen(f"statvfs({room.path})", f"{size(room.free)} free of {size(room.size)}{inodes}"))
    if isinstance(place.mount, Mount):
        options = ",".join(place.mount.options)
        all_evidence.append(seen("/proc/self/mountinfo", f"{place.mount.source} {place.mount.kind} {options}"))
    return all_evidence
