"""The files that a run leaves behind: tried before anything is measured, written whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple

from ncclcheck.base.errors import UsageError
from ncclcheck.base.progress import complain
from ncclcheck.reports.judgement import jsondoc
from ncclcheck.results import destination
from ncclcheck.run.plan.options import Options

_EXTRA = ("jinja2", "matplotlib")


class _OutputForm(NamedTuple):
    """One way to write a document: `render` of reports.`module`, loaded only where it is asked for."""

    option: str
    field: str
    module: str
    render: str = "text"


_FORMS = (
    _OutputForm("--html", "html_file", "output.html"),
    _OutputForm("--markdown", "markdown_file", "output.markdown"),
    _OutputForm("--junit", "junit_file", "output.junit"),
    _OutputForm("--prometheus", "prometheus_file", "output.prometheus"),
)
_SETTINGS = (
    _OutputForm("--env-file", "env_file", "output.settings_forms", "env_file"),
    _OutputForm("--nccl-conf", "nccl_conf_file", "output.settings_forms", "nccl_conf"),
)
_JSON = (
    _OutputForm("--json", "json_file", "judgement.jsondoc", "encode"),
    _OutputForm("--save", "save_file", "judgement.jsondoc", "encode"),
)


def check(options: Options) -> None:
    """Fail now, not after minutes of measuring. Raises UsageError; leaves nothing behind."""
    if options.html_file is not None and (missing := [name for name in _EXTRA if find_spec(name) is None]):
        raise UsageError(f"--html: it needs {' and '.join(missing)}; type: pip install 'ncclcheck[report]'")
    for form, path in _asked(options, (*_JSON, *_FORMS, *_SETTINGS)):
        if options.anonymise and form in _SETTINGS:
            raise UsageError(f"{form.option}: settings need the true names; give it or --anonymise, not both")
        check_file(form.option, path)


def check_file(option: str, path: str) -> None:
    """Whether it can be written. Raises UsageError."""
    try:
        destination.check(path)
    except OSError as error:
        raise UsageError(f"{option}: {path!r} cannot be written: {error.strerror or error}") from None


def asked(options: Options) -> list[str]:
    """The options that name a file to write."""
    return [form.option for form, _ in _asked(options, (*_JSON, *_FORMS, *_SETTINGS))]


def _asked(options: Options, forms: tuple[_OutputForm, ...]) -> Iterator[tuple[_OutputForm, str]]:
    for form in forms:
        path: str | None = getattr(options, form.field)
        if path is not None:
            yield form, path


def write_all(document: jsondoc.Document, options: Options, node: str) -> bool:
    """Every file that was asked for; whether all could be written. node: this node's own name."""
    done = [options.json_file is None or write_json(options, node, jsondoc.pieces(document))]
    done.append(options.save_file is None or write_file(options.save_file, jsondoc.saved(document)))
    done += [_render(form, path, document) for form, path in _asked(options, _FORMS)]
    done += [_render(form, path, document.recommendations) for form, path in _asked(options, _SETTINGS)]
    return all(done)


def write_json(options: Options, node: str, data: bytes | Iterable[bytes]) -> bool:
    """`--json F`, where %n in F is this node's name; whether it could be written."""
    return options.json_file is None or write_file(options.json_file.replace("%n", node.replace("/", "_")), data)


def _render(form: _OutputForm, path: str, what: jsondoc.Document | list[jsondoc.Recommendation]) -> bool:
    """A defect in one renderer takes no other output away."""
    try:
        text: str = getattr(import_module(f"ncclcheck.reports.{form.module}"), form.render)(what)
    except Exception as error:
        complain(f"a defect of ncclcheck, in {form.option}: {type(error).__name__}: {error}")
        return False
    return write_file(path, text.encode(errors="backslashreplace"))


def write_file(path: str, data: bytes | Iterable[bytes]) -> bool:
    """Whole or not at all; whether it could be written."""
    try:
        destination.write(path, data)
    except OSError as error:
        complain(f"{path} could not be written: {error.strerror or error}")
        return False
    return True
