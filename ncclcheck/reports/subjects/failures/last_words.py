"""What a dying process printed last, or the signal that ended it: what it usually means, and what fixes it."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from shlex import quote

from ncclcheck.probes.facts.run.course import signal_name
from ncclcheck.reports.judgement.findings import Remedy, admin, you

# Names of variables that bring it about.
_LOADER = r"LD_\w+"
_PYTHON = r"PYTHON\w+"
LIBRARIES = r"LD_\w+|MALLOC_\w+|GLIBC_TUNABLES|PYTHONMALLOC|\w+_(?:CAPABILITY|ISA)|OMP_\w+|KMP_\w+|MKL_\w+"
_THREADS = r"(?:OMP|KMP|GOMP|MKL|OPENBLAS)_\w+"


@dataclass(frozen=True, kw_only=True)
class LastWords:
    """Words that are recognised. Texts may use the groups of the pattern.

    bears: a pattern of the variables that bring it about; empty: none does.
    """

    pattern: str
    means: str
    fix: tuple[Remedy, ...] = ()
    bears: str = ""
    regex: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "regex", re.compile(self.pattern, re.MULTILINE))

    def meaning(self, text: str) -> WordsMeaning | None:
        """The last line of a text that has these words."""
        match = _last(self.regex, text)
        if match is None:
            return None
        groups = {name: value or "" for name, value in match.groupdict().items()}
        return WordsMeaning(
            match[0].strip(),
            self.means.format(**groups),
            [_filled(remedy, groups) for remedy in self.fix],
            self.bears,
        )


@dataclass(frozen=True)
class WordsMeaning:
    """The line that tells it, what it means, what fixes it, and a pattern of the variables that bring it about."""

    line: str
    means: str
    fix: list[Remedy]
    bears: str = ""


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return next(iter(deque(pattern.finditer(text), maxlen=1)), None)


def _filled(remedy: Remedy, groups: Mapping[str, str]) -> Remedy:
    safe = {name: quote(value) for name, value in groups.items()}
    return Remedy(who=remedy.who, text=remedy.text, commands=[line.format(**safe) for line in remedy.commands])


_REINSTALL = you(
    "Install the package that it belongs to again on this node.",
    "python -m pip install --force-reinstall --no-cache-dir PACKAGE",
)
_ORDER = you(
    "See what these variables load first, and take the folder or library that does not fit out of them.",
    "env | grep ^LD_",
    "unset LD_LIBRARY_PATH LD_PRELOAD",
)
_OWN_PYTHON = you(
    "Take these out of the environment: an interpreter finds its own library by itself.",
    "unset PYTHONHOME PYTHONPATH",
)
_FAILED_TO_LOAD = r"(?:error while loading shared libraries: |(?:Import|OS)Error: )"

_SIGNS = (
    LastWords(
        pattern=r"^ncclcheck: (?P<folder>\S+) was removed while the job ran",
        means="something there empties the temporary directory of running jobs: sockets and logs go with it",
        fix=(
            you("Give the job a temporary directory that nothing cleans.", "export TMPDIR=/dev/shm"),
            admin(
                "Let the cleaner (systemd-tmpfiles, tmpreaper, an epilog) pass over files in use.",
                "grep -rsnE 'tmp' /etc/tmpfiles.d /etc/cron* /etc/slurm | head",
            ),
        ),
    ),
    LastWords(
        pattern=r"^.*version [`'](?P<version>(?:GLIBCXX|CXXABI)_[\d.]+)' not found "
        r"\(required by (?P<file>[^)\n]+)\).*",
        means="the libstdc++ that was loaded is older than {file} needs: it has no {version}",
        fix=(_ORDER, you("Or put a newer one into the environment.", "conda install -c conda-forge libstdcxx-ng")),
        bears=_LOADER,
    ),
    LastWords(
        pattern=r"^.*version [`'](?P<version>GLIBC_[\d.]+)' not found \(required by (?P<file>[^)\n]+)\).*",
        means="the C library of this system is older than {file} needs: it has no {version}",
        fix=(you("Use the image of the other nodes, or packages for this system.", "ldd --version"),),
        bears=_LOADER,
    ),
    LastWords(
        pattern=r"^.*(?:symbol lookup error: |(?:Import|OS)Error: )(?P<file>/[^\s:]+): undefined symbol: \w+.*",
        means="a library of another version was loaded before the one that {file} needs",
        fix=(_ORDER, _REINSTALL),
        bears=_LOADER,
    ),
    LastWords(
        pattern=rf"^.*{_FAILED_TO_LOAD}(?P<file>[^\s:]+): (?P<how>file too short|invalid ELF header"
        r"|wrong ELF class|cannot read file data|ELF (?:load command|file).*).*",
        means="{file} is damaged, not complete, or made for another kind of machine ({how})",
        fix=(you("Compare it with the one of a healthy node.", "sha256sum {file}"), _REINSTALL),
        bears=_LOADER,
    ),
    LastWords(
        pattern=rf"^.*{_FAILED_TO_LOAD}(?P<file>[^\s:]+): cannot open shared object file.*",
        means="{file} is needed, and found nowhere on this node",
        fix=(you("Look for it on a healthy node.", "ldconfig -p | grep {file}", "env | grep ^LD_"), _REINSTALL),
        bears=_LOADER,
    ),
    LastWords(
        pattern=r"^.*(?:error while loading shared libraries|symbol lookup error): .*",
        means="the dynamic linker could not put the program together",
        fix=(_ORDER,),
        bears=_LOADER,
    ),
    LastWords(
        pattern=r"^.*(?:Fatal Python error: init_fs_encoding|No module named 'encodings').*",
        means="Python does not find its own standard library: PYTHONHOME or PYTHONPATH leads elsewhere, or the "
        "installation is not complete",
        fix=(
            _OWN_PYTHON,
            you("If none is set, install Python again.", "python -c 'import encodings, sys; print(sys.prefix)'"),
        ),
        bears=_PYTHON,
    ),
    LastWords(
        pattern=r"^.*(?:Fatal Python error: init_import_site|Failed to import the site module).*",
        means="Python could not read its site: a sitecustomize, a usercustomize or a .pth file ends it",
        fix=(
            you("See which file it is; Python without it is -S or -s.", "python -v -c '' 2>&1 | grep -i custom"),
            _OWN_PYTHON,
        ),
        bears=_PYTHON,
    ),
    LastWords(
        pattern=r"^.*Fatal Python error: (?:init_sys_streams|config_|preconfig|pyinit|init_set|_PyPathConfig).*",
        means="Python does not start with the settings of its environment",
        fix=(you("See which of its variables are set, and unset them.", "env | grep ^PYTHON"),),
        bears=_PYTHON,
    ),
    LastWords(
        pattern=r"^.*(?:numpy\.core\.multiarray failed to import|numpy\.dtype size changed"
        r"|Numpy is not available).*",
        means="this numpy does not fit a package that was built for another one",
        fix=(
            you("Install the version of the healthy nodes.", "python -m pip list | grep -iE 'numpy|torch'"),
            you("A torch before 2.3 needs numpy 1.", "python -m pip install 'numpy<2'"),
        ),
    ),
    LastWords(
        pattern=r"^.*(?:cannot import name '\w+' from (?:partially initialized module )?'(?P<module>[\w.]+)' "
        r"\((?:most likely due to a circular import\) \()?"
        r"(?P<file>/(?![^)\n]*/(?:python3\.\d+|site-packages|dist-packages)/)[^)\n]+)\)).*",
        means="{file} is imported in place of Python's own module {module}",
        fix=(you("Rename it.", "mv {file} {file}.hidden"),),
        bears=_PYTHON,
    ),
    LastWords(
        pattern=r"^.*ImportError: cannot import name '\w+' from '[\w.]+' "
        r"\((?P<file>/[^)\n]*/(?:site|dist)-packages/(?P<package>[^)\n/]+)/[^)\n]*)\).*",
        means="{file} lacks what the rest of its package imports: it is empty or cut short, or of another version",
        fix=(
            you("Compare it with the one of a healthy node; 0 bytes are left by a power cut or a full disk.",
                "ls -l {file}; sha256sum {file}   # there, and on a healthy node"),
            you("Copy it from a healthy node, or install the package again in the version of the others.",
                "scp SOUND_NODE:{file} {file}",
                "python -m pip install --force-reinstall --no-deps {package}==VERSION"),
        ),
    ),
    LastWords(
        pattern=r"^.*(?:No usable temporary directory found in).*",
        means="no temporary directory can be written to",
        fix=(
            you("Let TMPDIR name a folder that is there and that you may write to.", "export TMPDIR=/tmp"),
            admin("See whether the disk is full or read-only.", "df -h /tmp; df -i /tmp"),
        ),
        bears="TMPDIR|TEMP|TMP",
    ),
    LastWords(
        pattern=r"^.*OMP: Error #15: .*",
        means="two OpenMP libraries are in one process",
        fix=(_ORDER, you("Install torch and what brings the other one from one source: pip or conda.")),
        bears=LIBRARIES,
    ),
    LastWords(
        pattern=r"^.*(?:libgomp: Thread creation failed|OMP: Error|can't start new thread|pthread_create failed"
        r"|(?i:fork|thread).*Resource temporarily unavailable).*",
        means="no more threads may be started: too many are asked for, or the limit is low",
        fix=(
            you("Ask for fewer threads.", "export OMP_NUM_THREADS=1"),
            admin("Raise the limit of processes.", "ulimit -u; cat /sys/fs/cgroup/pids.max"),
        ),
        bears=_THREADS,
    ),
    LastWords(
        pattern=r"^.*(?:double free or corruption|free\(\): invalid|malloc\(\): |munmap_chunk\(\)"
        r"|corrupted size vs\.|malloc_consolidate\(\)|realloc\(\): invalid).*",
        means="memory was damaged: two allocators or two versions of a library in one process do that",
        fix=(_ORDER,),
        bears=LIBRARIES,
    ),
    LastWords(
        pattern=r"^.*(?:start a new process before the\s+current process has finished its bootstrapping).*",
        means="a module starts processes while it is imported, and each of them imports it again",
        fix=(
            you("Put the call that starts them below the main guard of the script.",
                "if __name__ == '__main__': torch.multiprocessing.spawn(run, nprocs=2)"),
        ),
    ),
    LastWords(
        pattern=r"^.*Cannot re-initialize CUDA in forked subprocess.*",
        means="CUDA was used before this process was forked, and does not survive a fork",
        fix=(
            you("Start processes and loader workers by spawn.",
                "torch.multiprocessing.set_start_method('spawn')   # DataLoader(multiprocessing_context='spawn')"),
            you("Or let nothing touch CUDA before they are started: no tensor, no set_device."),
        ),
    ),
    LastWords(
        pattern=r"^.*(?:cannot serialize a (?:bytes|string) object larger than 4 ?GiB"
        r"|'i' format requires -2147483648 <= number <= 2147483647).*",
        means="this Python pickles no argument of more than 2 or 4 GiB for a process that it starts",
        fix=(
            you("Hand over a path or a name, and build the dataset in the process; or take Python 3.8 or newer.",
                "def run(rank, path): dataset = MyDataset(path)   # mp.spawn(run, args=(path,))"),
        ),
    ),
    LastWords(pattern=r"^.*Intel (?:oneAPI )?MKL FATAL ERROR: .*", means="MKL cannot load its own libraries",
         fix=(_ORDER, _REINSTALL), bears=LIBRARIES),
    LastWords(
        pattern=r"^.*unsupported gloo device.*",
        means="the gloo of this torch has no such transport as GLOO_DEVICE_TRANSPORT names",
        fix=(you("Take it out: gloo chooses TCP by itself.", "unset GLOO_DEVICE_TRANSPORT"),),
        bears="GLOO_DEVICE_TRANSPORT",
    ),
)  # fmt: skip

_CRASHED = you("See where: the stack is printed at the end.", "export PYTHONFAULTHANDLER=1")
# Words of a shell, of faulthandler or of Slurm, and what usually sends that signal to a process.
_SIGNALS = {
    "SIGKILL": WordsMeaning("Killed",
        "mostly the kernel's answer to a lack of memory, else a person or the job system", [
        you("Ask for more memory where the job or container has a limit.", "sbatch --mem=0 ..."),
        admin("See whether the kernel ended it.", "dmesg -T | grep -i -E 'killed process|oom'")]),
    "SIGBUS": WordsMeaning("Bus error",
        "mapped memory has nothing behind it: /dev/shm is full, or a file was cut short", [
        you("See whether there is room; install a library again that was not copied whole.", "df -h /dev/shm")],
        LIBRARIES),
    "SIGILL": WordsMeaning("Illegal instruction", "a library was built for another processor than this one", [
        you("Compare the processor with that of a healthy node.", "lscpu | grep -iE 'model name|flags'")],
        LIBRARIES),
    "SIGXFSZ": WordsMeaning("File size limit exceeded", "it wrote a file larger than its limit (ulimit -f)", [
        you("Raise it where the job starts.", "ulimit -f unlimited"),
        admin("Or where the limit is set for all.", "grep -rs fsize /etc/security")]),
    "SIGXCPU": WordsMeaning("CPU time limit exceeded", "its limit of processor time is used up (ulimit -t)", [
        you("Raise it where the job starts.", "ulimit -t unlimited"),
        admin("Or where the limit is set for all.", "grep -rs cpu /etc/security")]),
    "SIGSYS": WordsMeaning("Bad system call", "a filter (seccomp) forbids a system call that it made", [
        you("Start the container with another profile.", "docker run --security-opt seccomp=unconfined ...")]),
    "SIGSEGV": WordsMeaning("Segmentation fault", "a library crashed", [_CRASHED], LIBRARIES),
    "SIGABRT": WordsMeaning("Aborted", "it ended itself: a check in a library failed", [_CRASHED], LIBRARIES),
    "SIGFPE": WordsMeaning("Floating point exception", "an arithmetic error in a library", [_CRASHED], LIBRARIES),
    "SIGTRAP": WordsMeaning("Trace/breakpoint trap", "a check in a library failed", [_CRASHED], LIBRARIES),
}  # fmt: skip
_SHELL = re.compile(
    r"^(?:.*[:\d] +)?(?P<words>"
    + "|".join(map(re.escape, (signal.line for signal in _SIGNALS.values())))
    + r")(?: +\(core dumped\))?(?:\s.*)?$|^Fatal Python error: (?P<fatal>.+)$",
    re.MULTILINE,
)
# Of a stack: where it was, not why.
_PLACES = re.compile(
    r"\s*<no Python frame>|\s*File \"|(?:Current t|T)hread 0x|Extension modules:|\s*$|Stack \(most recent"
    r"|Traceback \(most recent|ERROR: ld\.so: object .*: ignored\.|\s*\^+\s*$|.*\(most recent call first\)"
)


def meaning(text: str) -> WordsMeaning | None:
    """What recognised words mean; of several the surest, and of those the last."""
    return next((means for sign in _SIGNS if (means := sign.meaning(text))), None)


def by_signal(status: int | None) -> WordsMeaning | None:
    """What the signal of an exit status usually means; None where none ended it, or where it tells nothing."""
    return _SIGNALS.get(signal_name(-status)) if status is not None and status < 0 else None


def by_shell(text: str) -> WordsMeaning | None:
    """What a shell's or Python's word for a signal means."""
    match = _last(_SHELL, text)
    if match is None:
        return None
    words = match["words"] or match["fatal"]
    known = next((signal for signal in _SIGNALS.values() if signal.line.lower() in words.lower()), None)
    if known is None:
        return WordsMeaning(match[0].strip(), "the interpreter ended itself", [_CRASHED], f"{_PYTHON}|{LIBRARIES}")
    return WordsMeaning(match[0].strip(), known.means, known.fix, known.bears)


def telling(text: str, most: int = 5) -> list[str]:
    """The last lines that say what happened, not where."""
    return [line for line in text.splitlines() if not _PLACES.match(line)][-most:]
