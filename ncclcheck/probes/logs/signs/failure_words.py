"""Words of failure in a line that no sign knows: whether it says how a process ended, or complains of anything.

Most lines with such a word say nothing bad: QUIET tells which, and why.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple


class WordForm(NamedTuple):
    """Words of which one is in every such line, the pattern (both in lower case, unless `case`), and why it is here.

    ends: it also speaks against a line that tells how a process ended.
    """

    words: tuple[str, ...]
    pattern: re.Pattern[str]
    why: str
    ends: bool = False
    case: bool = False


def _form(words: str, pattern: str, why: str, *, ends: bool = False, case: bool = False) -> WordForm:
    return WordForm(tuple(words.split("|")), re.compile(pattern), why, ends, case)


_CODE = r"[\s:='\"(]{0,4}(?!0\b)-?\d"
ENDS = (
    _form("exit", rf"exit(?:ed|s|ing)?(?: with)?(?: a)?(?: non-?zero)? ?(?:code|status){_CODE}"
          r"|\bexited with (?!0\b)-?\d|^\s*exitcode {0,4}:", "a process left with a code that is not 0"),
    _form("return", rf"return(?:ed)?[ _]?code{_CODE}", "the same, as DeepSpeed and shells say it"),
    _form("non-zero|nonzero", r"non-?zero (?:exit|status)", "the same, as Python and mpirun say it"),
    _form("signal", r"\b(?:received|got|caught|killed by|terminated (?:by|with)|exited on|died with|due to|on|by) "
          r"(?:unhandled |fatal )?signal\b|\bsignal: \w+ \w+|\*\*\* process received signal", "a signal ended it"),
    _form("sig", r"\b(?:received|got|caught|killed by|by|with) (?:signal )?sig(?:kill|segv|abrt|bus|ill|fpe|term|hup"
          r"|int)\b", "the same by its name"),
    _form("died|crashed|dead|killed", r"\b(?:process|worker|actor|engine|core|rank|task|job|node|proc)\b.{0,40}?\b"
          r"(?:died|crashed|dead|(?:was|been) killed)\b|enginedead|actordied", "somebody else says that it is gone"),
    _form("last error|nccl error|nccl", r"\blast error: ?|\bnccl error\b|\bnccl(?:system|internal|remote|invalidusage"
          r"|invalidargument|unhandledcuda)(?:error\b|(?=[ :]))", "a result of NCCL's that is no success"),
    _form("unhandled", r"\bunhandled (?:system|cuda) error\b", "the same in words"),
    _form("core dumped|panicked at|segmentation fault", r"", "the process was ended by a fault of its own"),
    _form("fatal", r"^\s*fatal\b|\bfatal error\b", "whoever says this does not go on"),
    _form("FATAL", r"\bFATAL\b", "the same as a level", case=True),
    _form("heartbeat", r"\bheartbeat\b.{0,60}\btime-?d? ?out\b", "a watchdog gave up"),
    _form("out of memory|outofmemory|oom killed|oom-killed|oomkilled", r"", "there was no memory left"),
)  # fmt: skip
COMPLAINTS = (
    _form("error", r"(?<![\w/.-])errors?(?![\w/-]|\.\w)", "an error"),
    _form("fail", r"(?<![\w/.-])(?:failed|failures?)(?![\w/-]|\.\w)", "a failure"),
    _form("abort", r"(?<![\w/.-])(?:aborted|aborting)(?![\w/-]|\.\w)", "somebody gave up"),
    _form(
        "timed out|killed|watchdog", r"\b(?:timed out|killed|watchdog)\b", "somebody waited in vain, or is gone"
    ),
    _form(
        "crashloopbackoff|back-off",
        r"\bcrashloopbackoff\b|\bback-off \w{1,12} restarting failed\b|\bback-off restarting failed\b",
        "Kubernetes starts a container again and again",
    ),
    _form("exception", r"\bexception\b", "an exception"),
    _form(
        " lost ",
        r"\b(?:has|have|was|were|been|is) lost (?:communication|connection|contact|the connection)\b"
        r"|\blost (?:communication|connection|contact) (?:with|to)\b",
        "somebody is gone",
    ),
    _form(
        "ERROR_|_ERR_|_STATUS_",
        r"\b(?:[A-Z][A-Z0-9]{1,20}_){1,2}(?:ERROR|ERR|STATUS)_(?!SUCCESS|OK\b|NONE|HANDL|LEVEL|CODE|FILE|LOG)"
        r"[A-Z][A-Z_]{3,60}\b(?!=)",
        "an error by the name of its number",
        case=True,
    ),
    _form(
        "DEADLINE_EXCEEDED|UNAVAILABLE|RESOURCE_EXHAUSTED|FAILED_PRECONDITION|DATA_LOSS|INVALID_ARGUMENT|UNIMPLEMENTED",
        r"\b(?:DEADLINE_EXCEEDED|UNAVAILABLE|RESOURCE_EXHAUSTED|FAILED_PRECONDITION|DATA_LOSS|INVALID_ARGUMENT"
        r"|UNIMPLEMENTED): ?\S",
        "gRPC's and XLA's codes of a call that failed",
        case=True,
    ),
    _form(
        ".cc:|.cpp:",
        r"(?:^|[\s\[])[EF]\d{4} [\d:.]+ .{0,40}?\w\.(?:cc|cpp):\d|^(?:\d{4}-\d\d-\d\d [\d:.]+: )?[EF] \S{1,100}\.cc:\d",
        "glog's and TensorFlow's level of an error",
        case=True,
    ),
    _form("Error|Exception", r"\b[A-Z]\w{0,60}(?:Error|Exception)\b", "an exception by its type", case=True),
)
_BAD = r"(?:errors?|failures?|failed|exceptions?|killed|aborted|timed out)"
QUIET = (
    _form("code 0|status 0|code: 0|status: 0|code=0|status=0", r"(?:code|status)[ :=]{0,3}0\b", "it ended well",
          ends=True),
    _form("if|when|whether|unless|in case|should|would|may|might|could|can|avoid|prevent",
          r"^(?:(?!\bfailed\b|\berror\b).){0,400}?"
          r"\b(?:if|when|whether|unless|in case|should|would|may|might|could|can|to avoid|to prevent)\b.{0,80}"
          r"(?:exit|signal|error|fail|died|dead|killed|out of memory|outofmemory|segmentation fault|time)",
          "it says what may be", ends=True),
    _form("if you", r"^[\s*>•-]{0,8}if you(?:'re| are| want| need| see| get| use| have| would)\b.{0,400}\b(?:please|try|set|use|you can)\b",
          "advice to a reader, for a case that need not be his"),
    _form("otherwise", r"\botherwise,? (?:you|it|this|they)(?:'ll| will|'d| would)? (?:get|see|raise|throw|fail|end)\b",
          "it says what would be"),
    _form("install|register|handl|forward|ignor", r"\b(?:install|register|handl|forward|ignor)\w{0,6}\b.{0,40}\bsig",
          "who listens for signals", ends=True),
    _form("recent failures:", r"^\s*recent failures:\s*$", "a heading of `ray status`, mostly of none"),
    _form("git|dubious", r"git repository|\bcmd\('git'\)|\bgit root error\b|dubious ownership",
          "git was asked for a version", ends=True),
    _form("│|╰|×", r"^\s{0,6}[│╰×]", "what pip quotes of a package that it could not build", ends=True),
    _form("expected|caught|intended|intentional|demonstrat", r"\bcaught (?:an? |the )?(?:expected|error|exception)"
          r"|\b(?:as|was) (?:expected|intended)\b|\bexpected (?:error|failure|exception)\b|\bintentional\w{0,2}\b|\bdemonstrat",
          "a program that shows it, or a test that wants it"),
    _form("passed", r"\b\d{1,7} passed\b", "a count of tests or of answers"),
    _form("cannot uninstall|failed building wheel|subprocess-exited-with-error|failed-wheel", r"", "pip, before the job"),
    _form("shell has not been properly configured|lmod has detected", r"", "the shell, before the job"),
    _form("returned 1 exit status", r"\bld returned 1", "a linker that was tried for an optional library"),
    _form("add an exception", r"", "git's advice"),
    _form("no name was specified", r"", "kubectl was to delete what is not there"),
    _form("file exists", r"\bfailed to create\b.{0,300}: file exists", "it is there already"),
    _form("no|0|zero|without|any", rf"(?<!=)\b(?:no|0|zero|without|any|not an?) (?:\w{{1,20}} )?{_BAD}\b",
          "none were there"),
    _form("0|none|null|false|n/a|[]|-", rf"\b{_BAD}['\"]?\s{{0,20}}[:=|]\s{{0,20}}['\"]?"
          r"(?:0+(?:\.0+)?\b(?!\.)|none|null|false|n/?a|\[\]|-)", "a count that is nought"),
    _form("error", r"\berrors?['\"]?(?:\s*\([^)]{1,20}\))?\s{0,9}[:=|]?\s{0,9}[+-]?"
          r"(?:\d{0,9}\.\d|\d[\d.]{0,9}e[+-]?\d|nan\b)"
          r"|\b(?:mean|squared?|abs\w{0,10}|word|character|train\w{0,4}|val\w{0,8}|test|eval\w{0,8}|relative|max\w{0,4}"
          r"|rms|reconstruction|l[12]|prediction|quanti[sz]ation|rounding|standard|percent\w{0,4}|top-?\d|round-off"
          r"|approximation|numerical|expected|average|total|busbw|algbw)[ _-]errors?\b|\balgbw\s+busbw\s+error\b",
          "a figure of the training or of a measurement"),
    _form("failed|failure", r"\b(?:failed|failures?)[ _-](?:samples?|cases?|items?|examples?|files?|downloads?|rows?|questions?|records?"
          r"|images?|videos?|instances?|urls?|parses?|generations?|responses?|predictions?|rate|ratio|count|list|indices|ids?)\b",
          "a figure of what was measured, and not of the job"),
    _form("error", r"\berror[ -](?:rate|bound|margin|bars?|correct\w{0,4}|check\w{0,4}|handl\w{0,4}|report\w{0,4}"
          r"|feedback|recover\w{0,4}|logs?|log level|messages? will|propagat\w{0,4}|tolerance|threshold|budget"
          r"|callback|hook|file|page)\b", "a thing that is named after errors"),
    _form("using another|from scratch|with a fresh", r"", "the line says what is done in its place"),
    _form("retr|again|fall|fell|default|ignor|skip|optional|fatal|harmless|safe|recover|succe|disabl|instead|attempt",
          r"\b(?:retry(?!_cnt| counter)\w{0,4}|retries|trying again|(?<!and )(?<!lease )try again|falling back|fall back|fallback|fell back|using default"
          r"|ignor(?:ed|ing|e)|skipp(?:ed|ing)|optional|non-?fatal|not fatal|harmless|safe(?:ly)? to|safely|recovered"
          r"|succeeded|disabl(?:ed|ing)|instead|attempt \d)\b", "the line says that it was dealt with"),
    _form("WARN|INFO|DEBUG|NOT|TRACE", r"^[\d:.,TZ/ +\[\]()|-]{0,60}(?:WARN(?:ING)?|INFO|DEBUG|NOTE|NOTICE|TRACE)\b"
          r"|\b(?:WARNING|INFO|DEBUG|NOTICE)\b(?=[ :\]|-])", "its own level is less than an error", case=True),
    _form("W|I", r"\[(?:NeMo )?[WI]\d{0,4} |^\s{0,8}[WI]\d{3,4} ", "the same by glog's letter", case=True),
    _form("Warning", r"\b[A-Z]\w{2,20}Warning\b", "a warning of Python", case=True),
    _form(" |^|#", r"^\s{4,}(?!.{0,200}\b(?:retcode|reason|errno|err_?code)\s?[=:])\S|^\s*\^+\s*$|\bframe #\d|#\d{1,3} {1,3}0x|#\d{1,3}: ", "code or a frame below a line that says it"),
    _form("exception", r"the above exception|another exception occurred|exception ignored in",
          "it joins two exceptions, or nobody was there to take it"),
    _form("raise|except|return|assert|if|def|class|import|from|with|log",
          r"^\s*(?:raise|except|return|assert|if|def|class|import|from|with|log\w{0,6}\.)\b", "a line of code"),
    _form("raise|except", r"^\s*(?:raise|except)\b", "a line of code above the exception itself", ends=True),
    _form("http", r"^(?:(?!\berror\b|\bfail).){0,400}https?://(?!\d{1,3}(?:\.\d{1,3}){3}|localhost)|http error 40[134]",
          "a link, or an answer of a hub of models"),
    _form("wandb|tensorboard|mlflow|comet", r"\b(?:wandb:|(?:tensorboard|mlflow|comet_ml)\b)",
          "who draws the curves is not who trains"),
    _form("logging error", r"", "a line that a logger could not write"),
    _form("pip's", r"", "pip, before the job"),
    _form("cufft|cudnn|cublas|tensorrt|libnvinfer|libtpu|flash|apex|xformers|triton|ninja",
          r"\b(?:cufft|cudnn|cublas|tensorrt|libnvinfer|libtpu|flash[_-]attn|apex|xformers|triton|ninja)\b.{0,80}"
          r"\b(?:not|failed|unable)", "a library that need not be there"),
    _form("failed to", r"\bfailed to (?:open|load|find)\b.{0,80}(?:plugin|libibverbs|libmlx5|libgdr|libnvidia-ml|hfi"
          r"|\.so\b)", "a library that need not be there"),
    _form("chdir|tmpdir", r"couldn't chdir|unable to create tmpdir", "Slurm takes another folder"),
    _form("resource_tracker|leaked|atexit", r"resource_tracker|leaked (?:semaphore|shared_memory)|atexit",
          "what Python says when it tidies up"),
    _form("watchdog", r"watchdog (?:thread |timeout )?(?:started|enabled|is set|init|interval|set)", "a watchdog began"),
    _form("will be raised|connection attempt", r"", "it says what is to come"),
    _form("unable to register cu|cannot register", r"\b(?:unable to|cannot) register cu\w{2,8} factory", "two parts of TensorFlow bring one library"),
    _form("could not find tensorrt|tf-trt", r"", "a library that need not be there"),
)  # fmt: skip
# What says why something cannot be, without a word of failure.
EXPLAINS = (
    _form("no such file|cannot stat|not a directory|is a directory", r"", "a file that is not there"),
    _form("not found", r"\b(?:command|library|file|module|device|driver|symbol|version|path|host|name|executable"
          r"|interface|plugin|package|binary|compiler|gpus?)\b.{0,60}\bnot found\b|\bnot found[:!]|: not found$",
          "something that is not there"),
    _form("denied|not permitted|forbidden|unauthorized", r"\b(?:permission|access) denied\b|\bnot permitted\b"
          r"|\b(?:403 )?forbidden\b|\bunauthorized\b", "what may not be"),
    _form("refused|unreachable|no route|temporarily unavailable|cannot assign|already in use|read-only file system"
          r"|no space left|not recognized|unrecogni", r"", "the words of the operating system, or of options"),
    _form("not supported|unsupported|incompatible|mismatch|not compatible|doesn't support|does not support"
          "|not implemented|no kernel image", r"", "two things that do not go together"),
    _form("not available|unavailable|not installed|not enabled|not initialized|not configured|not loaded"
          "|not reachable|not detected|not allowed", r"", "what is not there"),
    _form("cannot|can't|couldn't|could not|unable to|can not|impossible to", r"\b(?:cannot|can't|can ?not|couldn't"
          r"|could not|unable to|impossible to)\b", "what cannot be"),
    _form("invalid", r"\binvalid (?:option|choice|value|argument|device|configuration|rank|address|host|port|key"
          r"|name|path|usage)", "a setting that is refused"),
    _form("does not exist|doesn't exist|do not match|does not match|doesn't match|don't match|not equal"
          "|insufficient|not enough|exceed|corrupt|unhealthy|inconsistent|conflict", r"", "two things that differ"),
    _form("undefined symbol|symbol lookup error|symbol not found", r"", "a library of another release"),
    _form("exclusive", r"\bmutually[- ]exclusive\b", "two settings of which only one may be"),
    _form("already filled", r"\ballocated\b.{0,60}\balready filled\b", "no place is left"),
    _form(" error: ", r"^(?:\[[^\]]{1,60}\] )?[\w.-]{1,40}: error: \S", "the level that a launcher gives its line"),
    _form("neither ", r"\bneither\b.{1,80}\b(?:detected|found|available|set|installed|loaded|supported|enabled)\b",
          "none of several things is there"),
    _form("machine only has|only has", r"\bonly has\b", "more is asked for than is there"),
    _form("stuck|not all of them|deadlock", r"\b(?:is|are|be|got|gets|seems?) (?:stuck|deadlocked)\b|\bnot all of them (?:arrived|joined)\b"
          r"|\bdeadlock detected\b", "who does not get on"),
    _form("reason: ", r"\breason: \w", "a library that says it under that name"),
    _form("than", r"\b(?:is|are|was) (?:larger|greater|less|smaller|higher|lower|longer|shorter) than\b", "two sizes that do not fit"),
    _form("closed by|exhausted|no reply|overflow", r"\bclosed by (?:the )?remote host\b|\bexhausted\b|\bno reply\b"
          r"|\boverflow (?:detected|error)\b|\boverflow\b", "who went away, or what is used up"),
    _form("too old|too small|too large|too many|too few|out of range", r"", "a size or a version that does not fit"),
    _form("falling back", r"\bfalling back\b.{0,80}\b(?:tcp|socket|ethernet|cpu|gloo)\b", "less than was wanted"),
)  # fmt: skip
_CODE_OR_FRAME = tuple(
    words
    for words in QUIET
    if words.why
    in (
        "code or a frame below a line that says it",
        "a line of code",
        "none were there",
        "advice to a reader, for a case that need not be his",
        "it says what would be",
        "a link, or an answer of a hub of models",
        "git was asked for a version",
        "the shell, before the job",
        "what Python says when it tidies up",
    )
)
_AGAINST_ENDS = tuple(words for words in QUIET if words.ends)


def ended_badly(text: str) -> bool:
    """Whether a line says that a process ended otherwise than well, or cannot go on."""
    return _said(text, ENDS, _AGAINST_ENDS)


def complains(text: str) -> bool:
    """Whether a line tells of an error or a failure, and nothing in it says that it was none."""
    return _said(text, COMPLAINTS, QUIET)


def explains(text: str) -> bool:
    """Whether a line says why something cannot be, whatever its level."""
    return _said(text, EXPLAINS, _CODE_OR_FRAME)


def words_of(forms: Sequence[WordForm]) -> tuple[str, ...]:
    """One of these is in every line that has one of the forms."""
    return tuple(word.lower() for form in forms for word in form.words)


def _said(text: str, forms: Sequence[WordForm], against: Sequence[WordForm]) -> bool:
    lower = text.lower()
    return _any(forms, text, lower) and not _any(against, text, lower)


def _any(forms: Sequence[WordForm], text: str, lower: str) -> bool:
    for words, pattern, _, _, case in forms:
        where = text if case else lower
        for word in words:
            if word in where:
                if pattern.search(where):
                    return True
                break
    return False
