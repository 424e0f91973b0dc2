"""Options of the table as click's, and what click gives as a record; most are variables too, NCCLCHECK_NAME."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec
from click.core import ParameterSource

from ncclcheck.base.errors import UsageError
from ncclcheck.base.progress import complain
from ncclcheck.launch.joining.trust import secret
from ncclcheck.probes import facts
from ncclcheck.run.plan import config, option_table
from ncclcheck.run.plan.option_table import GROUPS, SELDOM, CommandOption, Flag, Json, Kind, WordChoice, options_of
from ncclcheck.run.plan.options import ONLY, Options

_INTERNAL = {
    config.VARIABLE,
    secret.VARIABLE,
    "NCCLCHECK_RUN_DIR",
    "NCCLCHECK_NODE_NAMES",
    "NCCLCHECK_RECORDED",
    "NCCLCHECK_SELECTED",
    "NCCLCHECK_BOX",
    "NCCLCHECK_BOX_OUTPUT",
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


class GroupedOption(click.Option):
    """An option that --help lists under a heading."""

    def __init__(self, *names: Any, group: str, **attributes: Any) -> None:
        super().__init__(*names, **attributes)
        self.group = group


class _NumberOption(_Type):
    """A number within a range; what is wrong is said with the option and what is allowed."""

    name = "number"

    def __init__(self, allowed: option_table.NumberRange) -> None:
        self._allowed = allowed

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number. Raises UsageError."""
        del ctx
        option = max(param.opts, key=len) if param else ""
        try:
            number = int(value) if self._allowed.whole else float(value)
        except (ValueError, OverflowError):
            raise UsageError(f"{option}: {value!r} is not a number; allowed are {self._allowed}") from None
        if not self._allowed.low <= number <= self._allowed.high:
            raise UsageError(f"{option}: {value} is out of range; allowed are {self._allowed}")
        return number


class _JsonObject(_Type):
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


def _attributes(kind: Kind) -> dict[str, Any]:
    """What click is told of a kind."""
    if isinstance(kind, option_table.NumberRange):
        return {"type": _NumberOption(kind)}
    if isinstance(kind, WordChoice):
        return {"type": click.Choice(kind.words)}
    if isinstance(kind, Json):
        return {"type": _JsonObject()}
    return {"is_flag": True} if isinstance(kind, Flag) else {}


def _variable(key: str) -> str:
    return f"NCCLCHECK_{key.upper()}"


def with_options(*options: CommandOption) -> Callable[[F], F]:
    """Add these options to a command."""

    def add_all(command: F) -> F:
        for option in reversed(options):
            attributes = _attributes(option.kind)
            if option.default is not None:
                attributes["default"] = option.default
            if option.variable:
                attributes["envvar"] = _variable(option.key)
            if option.multiple:
                attributes["multiple"] = True
            names = [option.name, *([option.short] if option.short else []), option.key]
            command = click.option(
                *names,
                cls=GroupedOption,
                group=option.group,
                metavar=option.metavar,
                help=option.help,
                show_default=option.show_default or None,
                **attributes,
            )(command)
        return command

    return add_all


_OF_JOBS = ("force",)
_COMMON = tuple(option for option in options_of(Options) if option.key not in _OF_JOBS)
common = with_options(*_COMMON)
# A command that reads files, and no node.
_OF_FILES = (
    "output",
    *(f"{name}_file" for name in ("json", "save", "html", "markdown", "junit", "prometheus", "env", "nccl_conf")),
    *("anonymise", "only", "ignore", "strict", "quiet", "verbose", "color"),
)


def of_job(record: type[Any]) -> Callable[[F], F]:
    """Add what a command that starts a job takes: the common options, those of any job, and the record's own."""
    return with_options(*_COMMON, *options_of(record), *options_of(Options, *_OF_JOBS))


def of_files(example: str, **changed: Mapping[str, Any]) -> Callable[[F], F]:
    """The options of a command that reads files and no node. example: codes for --only."""
    return with_options(*options_of(Options, *_OF_FILES, only={"help": ONLY.format(example)}, **changed))


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
        site = config.SiteFiles() if asks_help else config.read(os.environ)
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
    known = {str(parameter.envvar) for parameter in command.params if parameter.envvar}
    known |= {_variable(key) for key in (*config.KEYS, *(option.key for option in _COMMON))}
    for name in os.environ:
        if name.startswith("NCCLCHECK_") and name not in known | _INTERNAL:
            near = difflib.get_close_matches(name, known, 1)
            complain(f"no option is set by the variable {name}" + (f"; {near[0]} is one" if near else ""))


def parse(command: str, site: config.SiteFiles, given: dict[str, Any], **others: Any) -> Options:
    """The common options out of what click gives; those that the command does not have are as by default.

    others: fields of Options that this command sets. Raises UsageError.
    """
    _check_roots(given)
    if given.get("via") and not (given["hosts"] or given["hostfile"]):
        raise UsageError("--via: it goes with --hosts or --hostfile, whose machines it enters")
    options = option_table.read(Options, given, command=command)
    policy = facts.replace(options.policy, thresholds=site.thresholds, contact=site.contact)
    return replace(options, policy=policy, **others)


def _check_roots(given: dict[str, Any]) -> None:
    for name in ("sysroot", "host_root"):
        folder = given.get(name)
        if folder is not None and not os.path.isdir(folder):
            raise UsageError(f"--{name.replace('_', '-')}: {folder} is no directory")
    if given.get("sysroot") and given.get("host_root"):
        raise UsageError("--sysroot and --host-root: give one of them, a recorded machine or a live one")
