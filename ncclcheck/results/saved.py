"""Saved results: judged again (`--from`), held against a new one (`--baseline`), compared (`report --compare`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ncclcheck import __version__
from ncclcheck.base.errors import UsageError
from ncclcheck.base.exits import Exit
from ncclcheck.base.progress import complain
from ncclcheck.probes.facts import Baseline, Policy
from ncclcheck.probes.facts.guard.alike import Kinds
from ncclcheck.probes.facts.guard.collection import without_collection
from ncclcheck.probes.machine import files
from ncclcheck.reports import compare
from ncclcheck.reports.judgement import jsondoc
from ncclcheck.results import finish, safe
from ncclcheck.results.merge import merged
from ncclcheck.run.plan.options import Options

_MOST = 2**30  # bytes: 14,000 nodes


def load(path: str, told_by: str, policy: Policy, kinds: Kinds | None = None) -> jsondoc.Saved:
    """Read a saved result. told_by: the option or command that named it. Raises UsageError.

    kinds: of the nodes of results read before it, for what all have in common to be held once.
    """
    try:
        return jsondoc.decode(files.content(path, _MOST), policy, kinds)
    except OSError as error:
        raise UsageError(f"{told_by}: {path} cannot be read: {error.strerror or error}") from None
    except jsondoc.DocumentError as error:
        raise UsageError(f"{told_by}: {path}: {error}") from None


def judge_again(options: Options) -> int:
    """`--from`: judge the nodes, run and measurements of a saved file anew. Raises UsageError."""
    assert options.from_file is not None
    return _judge(load(options.from_file, "--from", options.policy), options)


def judge_files(files: Sequence[str], options: Options, parquet: str | None = None) -> int:
    """`report`: judge a saved file anew, or several as one. parquet: its folder's name. Raises UsageError."""
    kinds = Kinds()
    with without_collection():
        saved = [(path, load(path, "report", options.policy, kinds)) for path in files]
        return _judge(merged(saved) if len(saved) > 1 else saved[0][1], options, parquet)


def _judge(saved: jsondoc.Saved, options: Options, parquet: str | None = None) -> int:
    """A file's verdicts are never trusted."""
    options = with_baseline(dataclasses.replace(options, command=saved.cluster.command))
    story = finish.Story(saved.started, saved.seconds, saved.stages)
    document = finish.make(saved.cluster, options, story)
    kept = parquet is None or _kept(parquet, finish.as_shown(document, options))
    return finish.deliver(document, options) or (Exit.READY if kept else Exit.INCOMPLETE)


def _kept(folder: str, document: jsondoc.Document) -> bool:
    from ncclcheck.fleet import rows, store  # noqa: PLC0415 - few reports are kept

    try:
        store.write(folder, rows.of(document))
    except OSError as error:
        complain(f"{folder} could not be written: {error.strerror or error}")
        return False
    return True


def with_baseline(options: Options) -> Options:
    """The options with the result that `--baseline` names. Raises UsageError for one that cannot serve."""
    path = options.baseline_file
    if path is None:
        return options
    baseline = _end(path, "--baseline", options.policy)
    if options.command == "bench" and not baseline.cluster.measurements.collectives:
        raise UsageError(
            f"--baseline: {path} is a result of {baseline.cluster.command or 'another command'} and holds no "
            "bandwidth; make one with: ncclcheck bench --save FILE"
        )
    if faults := baseline.cluster.job.injected:
        raise UsageError(
            f"--baseline: {path} was measured with injected faults ({', '.join(faults)}), which is nothing to "
            "hold a result against; make one without --inject"
        )
    return dataclasses.replace(options, baseline=baseline)


def compare_files(before: str, after: str, options: Options) -> int:
    """Say what changed between two saved results; the exit code. Raises UsageError."""
    ends = [_end(path, "report", options.policy) for path in (before, after)]
    result = compare.result(ends[0], ends[1], __version__, options.policy.thresholds)
    if options.anonymise:
        from ncclcheck.reports.output.anonymise import Disguise  # noqa: PLC0415 - few runs hide anything

        result = Disguise(*ends, result).on(result)
    printed = True
    if options.output == "json":
        printed = finish.emit(compare.encode(result).decode())
    elif not (options.quiet and result.exit_code == 0):
        render = compare.short if options.output == "short" else compare.text
        printed = finish.say(render(result, finish.style(options)))
    return result.exit_code if printed or result.exit_code else Exit.INCOMPLETE


def _end(path: str, told_by: str, policy: Policy) -> Baseline:
    saved = load(path, told_by, policy)
    return Baseline(name=path, started=saved.started, cluster=safe.cluster(saved.cluster))
