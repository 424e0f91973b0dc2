"""Options that several commands share; each is also a variable, NCCLCHECK_ and the option's name."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec
from click.core import ParameterSource

from ncclcheck.base.errors import UsageError
from ncclcheck.base.progress import complain
from ncclcheck.launch.choose import LAUNCHERS
from ncclcheck.launch.joining import secret
from ncclcheck.probes.facts import Policy
from ncclcheck.run.plan import bench_plan, config, options
from ncclcheck.run.plan.options import Options

_INTERNAL = {
    config.VARIABLE,
    secret.VARIABLE,
    "NCCLCHECK_RUN_DIR",
    "NCCLCHECK_NODE_NAMES",
    "NCCLCHECK_RECORDED",
    "NCCLCHECK_SELECTED",
    "NCCLCHECK_BOX",
    "NCCLCHECK_CLOCKS",
    "NCCLCHECK_BOX_SIGNAL",
}

# A terminal's width is used up to this many columns.
HELP: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 110}

F = TypeVar("F", bound=Callable[..., Any])
if TYPE_CHECKING:
    _Type = click.ParamType[Any]
else:
    _Type = click.ParamType  # generic in newer versions only


# The headings under which --help lists options, in this order.
MEASURE, WHERE, VERDICT, OUTPUT, SELDOM = "What to measure", "Where to run", "Verdict", "Output", "Seldom needed"
GROUPS = (MEASURE, WHERE, VERDICT, OUTPUT, SELDOM)


class GroupedOption(click.Option):
    """An option that --help lists under a heading."""

    def __init__(self, *names: Any, group: str = MEASURE, **attributes: Any) -> None:
        super().__init__(*names, **attributes)
        self.group = group


def option(name: str, *more: str, **attributes: Any) -> Callable[[F], F]:
    """An option with its NCCLCHECK_* variable. group: one of GROUPS."""
    variable = "NCCLCHECK_" + name.lstrip("-").upper().replace("-", "_")
    return click.option(name, *more, cls=GroupedOption, envvar=variable, **attributes)


def plain_option(name: str, *more: str, **attributes: Any) -> Callable[[F], F]:
    """An option without a variable. group: one of GROUPS."""
    return click.option(name, *more, cls=GroupedOption, **attributes)


class Number(_Type):
    """A number within a range; what is wrong is said with the option and what is allowed."""

    name = "number"

    def __init__(
        self, low: float = -math.inf, high: float = math.inf, unit: str = "", *, whole: bool = False
    ) -> None:
        self._low, self._high, self._unit, self._whole = low, high, unit, whole

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number. Raises UsageError."""
        del ctx
        option = max(param.opts, key=len) if param else ""
        try:
            number = int(value) if self._whole else float(value)
        except (ValueError, OverflowError):
            raise UsageError(f"{option}: {value!r} is not a number; allowed are {self}") from None
        if not self._low <= number <= self._high:
            raise UsageError(f"{option}: {value} is out of range; allowed are {self}")
        return number

    def __str__(self) -> str:
        kind = self._unit or ("whole numbers" if self._whole else "numbers")
        if self._high < math.inf:
            return f"{self._low:g} to {self._high:g}{f' {self._unit}' if self._unit else ''}"
        return kind if self._low == -math.inf else f"{self._low:g} and more"


class JsonObject(_Type):
    """Keyword arguments as one JSON object."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The keyword arguments. Raises UsageError."""
        del ctx
        option = max(param.opts, key=len) if param else ""
        try:
            return value if isinstance(value, dict) else msgspec.json.decode(value, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise UsageError(f'{option}: {error}; allowed is a JSON object such as {{"root": "data"}}') from None


SECONDS = Number(1, 86400, "seconds")
WHOLE = Number(whole=True)
_REPORTS = (
    option("--json", "json_file", group=OUTPUT, metavar="FILE", help="write the result as JSON"),
    option("--save", "save_file", group=OUTPUT, metavar="FILE", help="the same: keep the result for --from"),
    option(
        "--html",
        "html_file",
        group=OUTPUT,
        metavar="FILE",
        help="write a page for the browser; needs ncclcheck[report]",
    ),
    option(
        "--markdown",
        "markdown_file",
        group=OUTPUT,
        metavar="FILE",
        help="write Markdown for an issue or a CI summary",
    ),
    option("--junit", "junit_file", group=OUTPUT, metavar="FILE", help="write JUnit XML: a check is a test case"),
    option(
        "--prometheus",
        "prometheus_file",
        group=OUTPUT,
        metavar="FILE",
        help="write metrics for a textfile collector",
    ),
    option(
        "--env-file",
        "env_file",
        group=OUTPUT,
        metavar="FILE",
        help="write the recommended settings as export lines",
    ),
    option(
        "--nccl-conf",
        "nccl_conf_file",
        group=OUTPUT,
        metavar="FILE",
        help="write the recommended settings as nccl.conf",
    ),
    option(
        "--anonymise",
        group=OUTPUT,
        is_flag=True,
        help="replace names, addresses, paths and users in every output",
    ),
)
_EVIDENCE = "list every check and its evidence"


def _output(kind: Callable[..., Callable[[F], F]]) -> Callable[[F], F]:
    return kind(
        "--output",
        "-o",
        group=OUTPUT,
        type=click.Choice(["text", "short", "json"]),
        default="text",
        help="format of stdout",
    )


def _only(example: str) -> Callable[[F], F]:
    words = f"judge these codes or families only: {example}"
    return option("--only", group=VERDICT, metavar="CODES", default="", help=words)


def _verbose(words: str) -> Callable[[F], F]:
    return option("--verbose", "-v", group=OUTPUT, is_flag=True, help=words)


def require(command: F) -> F:
    """Add --require."""
    words = "gpu=8,hca=8,CODE: absent and unknown are failures"
    return option("--require", group=VERDICT, metavar="SPEC", default="", help=words)(command)


_IGNORE = option("--ignore", group=VERDICT, metavar="CODES", default="", help="downgrade these codes to notes")
_STRICT = option("--strict", group=VERDICT, is_flag=True, help="warnings and unknowns are failures too")
_QUIET = option("--quiet", "-q", group=OUTPUT, is_flag=True, help="print nothing when all is well")
_COLOR = option(
    "--color",
    group=OUTPUT,
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    help="colour the text",
)
_COMMON = (
    option(
        "--nodes",
        group=WHERE,
        type=WHOLE,
        metavar="N",
        help="number of nodes; without a cluster they are simulated here",
    ),
    option("--launch", group=WHERE, type=click.Choice(LAUNCHERS), help="set the launcher instead of detecting it"),
    option("--hosts", group=WHERE, metavar="LIST", help="nodes by ssh: a,b:8"),
    option(
        "--hostfile",
        group=WHERE,
        metavar="FILE",
        help="nodes by ssh, one per line, in OpenMPI or DeepSpeed format",
    ),
    option(
        "--via", group=WHERE, metavar="COMMAND", help="prefix for the command on each host: 'docker exec NAME'"
    ),
    option(
        "--node-rank",
        group=WHERE,
        type=WHOLE,
        metavar="R",
        help="join as node R: run the same command on every node",
    ),
    option("--rdzv-endpoint", group=WHERE, metavar="HOST:PORT", help="the rendezvous: an address of node 0"),
    option(
        "--rdzv-id",
        group=WHERE,
        metavar="ID",
        default="",
        help="distinguishes runs that share a port; not a secret",
    ),
    option(
        "--secret-file",
        group=WHERE,
        metavar="FILE",
        help="the shared secret of a join, or NCCLCHECK_SECRET; mode 0600",
    ),
    option(
        "--wait",
        group=WHERE,
        type=SECONDS,
        metavar="S",
        help="how long to wait for the other nodes of a join  [default: 600]",
    ),
    _output(option),
    *_REPORTS,
    option(
        "--from", "from_file", group=VERDICT, metavar="FILE", help="judge a saved result again; measures nothing"
    ),
    option(
        "--baseline",
        "baseline_file",
        group=VERDICT,
        metavar="FILE",
        help="a saved result to compare this one with",
    ),
    _only("NET,NCC003"),
    _IGNORE,
    require,
    _STRICT,
    option(
        "--deadline",
        group=VERDICT,
        type=SECONDS,
        metavar="S",
        help="seconds until the report is printed, whatever happens",
    ),
    _QUIET,
    _verbose(_EVIDENCE),
    _COLOR,
    option("--sysroot", group=SELDOM, metavar="DIR", help="read a recorded machine below DIR"),
    option("--host-root", group=SELDOM, metavar="DIR", help="read a live host that is mounted at DIR"),
)


def common(command: F) -> F:
    """Add the common options to a command."""
    for add in reversed(_COMMON):
        command = add(command)
    return command


def of_files(example: str, *, verbose: str = _EVIDENCE, output_variable: bool = True) -> Callable[[F], F]:
    """The options of a command that reads files and no node. example: codes for --only.

    output_variable: whether NCCLCHECK_OUTPUT sets --output here too.
    """
    shown = (
        _output(option if output_variable else plain_option),
        *_REPORTS,
        _only(example),
        _IGNORE,
        _STRICT,
        _QUIET,
        _verbose(verbose),
        _COLOR,
    )

    def add_all(command: F) -> F:
        for add in reversed(shown):
            command = add(command)
        return command

    return add_all


def file_options(
    command: str, site: config.Site, given: dict[str, Any], families: tuple[str, ...] = ()
) -> Options:
    """What `of_files` gives. families: what is judged where --only names nothing. Raises UsageError."""
    return Options(
        command=command,
        output=given["output"],
        **_report_options(given),
        only=options.codes("--only", given["only"]) or families,
        ignore=options.codes("--ignore", given["ignore"]),
        strict=given["strict"],
        deadline=given.get("deadline"),
        quiet=given["quiet"],
        verbose=given["verbose"],
        color=given["color"],
        policy=_policy(site, given.get("require", "")),
    )


def _report_options(given: dict[str, Any]) -> dict[str, Any]:
    """The files to write, as fields of Options."""
    files = ("json", "save", "html", "markdown", "junit", "prometheus", "env", "nccl_conf")
    return {"anonymise": given["anonymise"], **{f"{name}_file": given[f"{name}_file"] for name in files}}


class SiteCommand(click.Command):
    """A command whose defaults come from the site files, and whose --help lists its options by group."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options under their headings, those that are asked for most first."""
        rows: dict[str, list[tuple[str, str]]] = {group: [] for group in GROUPS}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Option) and (row := parameter.get_help_record(ctx)):
                rows[getattr(parameter, "group", SELDOM)].append(row)
        for group, listed in rows.items():
            if listed:
                with formatter.section(group):
                    formatter.write_dl(listed)
        if any(parameter.envvar for parameter in self.params):
            formatter.write_paragraph()
            formatter.write_text("Options are variables too: --strict is NCCLCHECK_STRICT.")

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        asks_help = {"-h", "--help"} & set(args)
        site = config.Site() if asks_help else config.read(os.environ)
        _warn_of_typos(self)
        defaults = dict(site.defaults.get(self.name or "", {}))
        if site.require:
            defaults["require"] = site.require
        extra["default_map"] = defaults
        extra["obj"] = site
        context = super().make_context(info_name, args, parent, **extra)
        _tell_what_a_file_chose(context, site.set_by.get(self.name or "", {}))
        return context


def _tell_what_a_file_chose(context: click.Context, set_by: Mapping[str, str]) -> None:
    """Who runs this on which machines is said even with --quiet: the command line does not show it."""
    chosen: dict[str, list[str]] = {}
    for name in (*config.GUARDED, *(() if context.params.get("quiet") else ("output",))):
        if context.get_parameter_source(name) is ParameterSource.DEFAULT_MAP:
            chosen.setdefault(set_by[name], []).append(f"--{name.replace('_', '-')}")
    for path, names in chosen.items():
        complain(f"{path} sets {', '.join(names)}")


def _warn_of_typos(command: click.Command) -> None:
    """A misspelt NCCLCHECK_DEADLIN would change nothing, in silence."""
    names = {parameter.lower() for parameter in config.SiteFile.__struct_fields__}
    shared: list[click.Parameter] = common(lambda: None).__click_params__  # type: ignore[attr-defined]
    known = {str(p.envvar) for p in (*command.params, *shared) if p.envvar}
    known |= {f"NCCLCHECK_{name.upper()}" for name in names}
    for name in os.environ:
        if name.startswith("NCCLCHECK_") and name not in known | _INTERNAL:
            near = difflib.get_close_matches(name, known, 1)
            complain(f"no option is set by the variable {name}" + (f"; {near[0]} is one" if near else ""))


def parse(command: str, site: config.Site, given: dict[str, Any]) -> Options:
    """The common options out of what click gives. Raises UsageError."""
    _check_roots(given)
    if given["via"] and not (given["hosts"] or given["hostfile"]):
        raise UsageError("--via: it goes with --hosts or --hostfile, whose machines it enters")
    return Options(
        command=command,
        nodes=given["nodes"],
        launch=given["launch"],
        hosts=given["hosts"],
        hostfile=given["hostfile"],
        via=given["via"],
        node_rank=given["node_rank"],
        rdzv_endpoint=_endpoint(given["rdzv_endpoint"]),
        rdzv_id=given["rdzv_id"],
        secret_file=given["secret_file"],
        wait=given["wait"],
        output=given["output"],
        **_report_options(given),
        from_file=given["from_file"],
        baseline_file=given["baseline_file"],
        only=options.codes("--only", given["only"]),
        ignore=options.codes("--ignore", given["ignore"]),
        strict=given["strict"],
        force=given.get("force", False),
        deadline=given["deadline"],
        quiet=given["quiet"],
        verbose=given["verbose"],
        color=given["color"],
        sysroot=given["sysroot"],
        host_root=given["host_root"],
        policy=_policy(site, given["require"], given.get("min_busbw", "")),
    )


def _policy(site: config.Site, require: str, min_busbw: str = "") -> Policy:
    """What the site and the user expect. Raises UsageError."""
    return Policy(
        require=options.requirements(require),
        thresholds=site.thresholds,
        contact=site.contact,
        min_busbw=bench_plan.min_busbw(min_busbw),
    )


def _check_roots(given: dict[str, Any]) -> None:
    for name in ("sysroot", "host_root"):
        folder = given[name]
        if folder is not None and not os.path.isdir(folder):
            raise UsageError(f"--{name.replace('_', '-')}: {folder} is no directory")
    if given["sysroot"] and given["host_root"]:
        raise UsageError("--sysroot and --host-root: give one of them, a recorded machine or a live one")


def _endpoint(given: str | None) -> str | None:
    if given is None:
        return None
    host, colon, port = given.rpartition(":")
    if not colon or not host or not port.isdecimal() or len(port) > 5 or not 1 <= int(port) <= 65535:
        raise UsageError(f"--rdzv-endpoint: {given!r} is not HOST:PORT with a port from 1 to 65535")
    return given
