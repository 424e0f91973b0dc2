"""One file of a script, statement by statement: its calls, and the conditions and loops around each."""

from __future__ import annotations

import ast
import builtins
import functools
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ncclcheck.probes.facts.script import Branch, Call, Guard, GuardKind, Loop
from ncclcheck.probes.script import conditions, names
from ncclcheck.probes.script.names import ScriptNames
from ncclcheck.probes.script.sources import ParsedFile
from ncclcheck.probes.script.words import text

# Names of calls whose lines are kept, so that a fix can be shown as a diff.
LOOKED_AT = re.compile(
    r"barrier|reduce|gather|broadcast|scatter|all_to_all|init_process_group|Data(?:Loader|Parallel)|Distributed\w+"
    r"|set_device|torch\.(?:load|save)|spawn|add_argument|environ|\.(?:cuda|to|backward|item|cpu)$|load_state_dict"
    r"|set_epoch|random_split|launch|^\.(?:fit|validate|test|predict)$|wait_for_everyone|save_(?:state|checkpoint)|manual_seed|^torch(?:vision|audio)\.datasets\.|^torch\.(?:rand|bernoulli|normal)|(?:^|\.)Process$|^import$"
    r"|^\.log(?:_dict)?$|from_pretrained|^text$|(?:Strategy|Kwargs|TrainingArguments)$"
)
# Names of calls that are kept at all; what the script's own functions do is followed, so these are kept too.
_KEPT = re.compile(
    rf"{LOOKED_AT.pattern}|:|^torch\.(?!nn\.(?!parallel|DataParallel)|optim)|^print$|getenv|download|load_dataset"
    r"|tokeni[sz]e|preprocess|prepare_data|urlretrieve|start_processes|start_method|os\.(?:fork|system|popen)"
    r"|(?:^|\.)(?:Process|Pool|ProcessPoolExecutor|run|Fire|elastic_launch)$|^shutil\.|pin_memory$|state_dict"
    r"|wait_for_everyone|save_(?:state|checkpoint|model)|\.initialize$|transformers|datasets\.|^torchaudio|seed|subprocess"
    r"|synchroni[sz]e|webdataset|train_test_split|^import$|^iter$|FullyShardedDataParallel|fully_shard|FSDP|Accelerator$|Trainer$|Fabric$|^\.(?:fit|validate|test|predict|evaluate)$|Gathered|zero3|^horovod|^colossalai|^\.save$|^given$|permutation$|random\.shuffle$"
)
# Where a loss is reported; kept where it is one.
_REPORTS = re.compile(r"(?:^|\.)(?:info|log|log_metrics|add_scalars?|set_postfix|set_description|write)$")
_NO_EXPRESSION = {int, str, type(None), ast.Load, ast.Store}  # parts of a node, half of all
_WRAPPER = re.compile(r"(?:torch\..*\.|^)(?:DDP|DistributedDataParallel)")  # Apex's own is another class
_NO_GRADIENTS = re.compile(r"(?:no_grad|inference_mode)$")
# Of a step that a rank leaves by itself: its loss is no number, or small enough.
_LEFT_BY = re.compile(r"(?i:is_?(?:nan|inf|finite))|^(?:float\()?loss(?:\.item\(\))?\)? ?[<>]=? ?[\w.]+$")
_IMPORTS = ("torch", "numpy", "transformers", "datasets", "huggingface_hub")  # whose import reads variables
_MAPS = ("auto", "balanced", "balanced_low_0", "sequential", "cuda:0")  # of devices


def stands_in(value: ast.expr, lines: Container[int]) -> bool:
    last = value.end_lineno or value.lineno
    return value.lineno in lines or any(at in lines for at in range(value.lineno + 1, last + 1))


def wraps(chain: str, here: ScriptNames, every: Mapping[str, ScriptNames]) -> bool:
    return bool(_WRAPPER.fullmatch(names.resolved(chain, "", here, every)))


@functools.cache
def is_kept(name: str) -> bool:
    return bool(_KEPT.search(name))


@dataclass(frozen=True)
class _Condition:
    """A condition that is put into words when a call is found under it."""

    test: ast.expr
    branch: Branch


@dataclass
class Walk:
    """One file, statement by statement."""

    here: ScriptNames
    every: Mapping[str, ScriptNames]
    ranks: set[str]
    unlike: set[str]
    wrapped: set[str]
    source: ParsedFile
    of_rank: Container[int] = ()  # lines in which a rank may stand
    calls: list[Call] = field(default_factory=list)
    guards: list[Guard | _Condition] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)
    scope: list[str] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    statement: ast.stmt = field(default_factory=ast.Pass)
    target: str = ""
    within: int = 0  # calls and sums of which parts are read
    devices: dict[str, str] = field(default_factory=dict)
    parameters: set[str] = field(default_factory=set)  # of the function
    saved: set[str] = field(default_factory=set)  # paths that it has given to torch.save
    wrapped_here: dict[str, bool] = field(
        default_factory=dict
    )  # its variables: do they hold a wrapped model here?
    known: dict[tuple[int, str], Guard] = field(default_factory=dict)

    def block(self, body: Sequence[ast.stmt]) -> None:
        """Statements; after an `if` that leaves, the rest stands under its opposite; a `return` ends them."""
        before = len(self.guards)
        last = {node.name: at for at, node in enumerate(body) if isinstance(node, ast.FunctionDef)}
        for at, statement in enumerate(body):
            other = last[statement.name] if isinstance(statement, ast.FunctionDef) else at
            if at < other and not _is_used(statement, body[at + 1 : other]):
                continue  # the other one has taken its name
            self.visit(statement)
            if _leaves(statement) or isinstance(statement, ast.Raise) or self._is_undefined(statement):
                break
            if isinstance(statement, ast.If) and not statement.orelse and _leaves(statement.body[-1]):
                if conditions.single(statement.test, holds=False):
                    break
                self.guards.append(_Condition(statement.test, "rest"))
            elif isinstance(statement, ast.If) and statement.orelse and _leaves(statement.orelse[-1]):
                self.guards.append(_Condition(statement.test, "if"))
        del self.guards[before:]

    def _is_undefined(self, statement: ast.stmt) -> bool:
        """A bare name that nothing in the file gives a meaning: it raises NameError."""
        if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Name) or self.here.stars:
            return False
        name = statement.value.id
        given = {name.id for name in self.source.of(ast.Name) if isinstance(name.ctx, ast.Store)}
        given |= {argument.arg for argument in self.source.of(ast.arg)}
        given |= {alias.asname or alias.name.partition(".")[0] for alias in self.source.of(ast.alias)}
        given |= {function.name for function in self.source.of(ast.FunctionDef)} | {
            cls.name for cls in self.source.of(ast.ClassDef)
        }
        return name not in given and not hasattr(builtins, name) and "*" not in given

    def visit(self, statement: ast.stmt) -> None:
        """One statement of any kind."""
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            self._function(statement)
        elif isinstance(statement, ast.ClassDef):
            with self._in(self.scope, statement.name), self._in(self.classes, statement.name):
                self.block(statement.body)
        elif isinstance(statement, ast.If):
            if not self.source.named and conditions.kind(statement.test, ()) == "main":
                return  # an imported file is no main module
            if isinstance(statement.test, ast.Constant):
                self.block(statement.body if statement.test.value else statement.orelse)
                return
            self._expression(statement.test, statement)
            for branch, body in (("if", statement.body), ("else", statement.orelse)):
                if not conditions.single(statement.test, branch == "if"):
                    with self._in(self.guards, _Condition(statement.test, "if" if branch == "if" else "else")):
                        self.block(body)
        elif isinstance(statement, ast.For | ast.AsyncFor | ast.While):
            self._loop(statement)
        elif isinstance(statement, ast.Try) or type(statement).__name__ == "TryStar":
            self._try(statement)
        else:
            self._plain(statement)

    def _plain(self, statement: ast.stmt) -> None:
        """Its expressions, then its blocks, if it has some (`with`, `match`)."""
        if isinstance(statement, ast.Import | ast.ImportFrom):
            self._import(statement)
            return
        if isinstance(statement, ast.Break | ast.Continue):
            self._skip(statement)
            return
        self.target = _target(statement)
        if isinstance(statement, ast.Assign) and (plain := _is_plain_map(statement.value)):
            self.statement = statement
            self._add("given", statement.lineno, {"0": plain})
        for value in vars(statement).values():
            for part in value if isinstance(value, list) else (value,):
                if isinstance(part, ast.expr):
                    self._expression(part, statement)
                elif isinstance(part, ast.withitem):
                    self._expression(part.context_expr, statement)
                elif type(part).__name__ == "match_case":
                    with self._in(self.guards, _other("match", statement.lineno)):
                        self.block(part.body)
        self.target = ""
        if self.wrapped and isinstance(statement, ast.Assign):
            self._hold(statement)
        if isinstance(statement, ast.With | ast.AsyncWith):
            self.block(statement.body)

    def _skip(self, statement: ast.Break | ast.Continue) -> None:
        """What leaves a step by a number that is none, or is small: ranks see other samples, and may not agree."""
        test = self.guards[-1] if self.guards else None
        if isinstance(test, _Condition) and test.branch == "if" and _LEFT_BY.search(text(test.test)):
            self.statement = statement
            self._add("break" if isinstance(statement, ast.Break) else "continue", statement.lineno, {})

    def _hold(self, statement: ast.Assign) -> None:
        """Which model a variable holds from here on; `model = model.cuda()` and `compile(model)` keep it."""
        value = statement.value
        for target in {*map(text, statement.targets)} & self.wrapped:
            named = [text(node) for node in ast.walk(value) if isinstance(node, ast.Name | ast.Attribute)]
            if isinstance(value, ast.Call) and wraps(text(value.func), self.here, self.every):
                self.wrapped_here[target] = True
            elif target not in named:
                self.wrapped_here[target] = False

    def _is_wrapped(self, node: ast.expr) -> bool:
        """A variable that is not given here, such as a parameter, is what it is in the rest of the file."""
        if not self.wrapped or not isinstance(node, ast.Name | ast.Attribute):
            return False
        name = text(node)
        return name in self.wrapped and self.wrapped_here.get(name, True)

    def _import(self, statement: ast.Import | ast.ImportFrom) -> None:
        """Imports of libraries that read variables as they are loaded."""
        imported = (
            [name.name for name in statement.names] if isinstance(statement, ast.Import) else [statement.module]
        )
        for name in imported:
            if name and name.partition(".")[0] in _IMPORTS and not self.scope:
                self.statement = statement
                self._add("import", statement.lineno, {"0": name.partition(".")[0]})

    def _function(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        guards, loops, parameters, models = self.guards, self.loops, self.parameters, self.wrapped_here
        saved = self.saved
        self.guards, self.loops, self.wrapped_here, self.saved = [], [], {}, set()
        self.parameters = {parameter.arg for parameter in [*function.args.args, *function.args.kwonlyargs]}
        for node in function.decorator_list:
            called = node.func if isinstance(node, ast.Call) else node
            if conditions.of_one_rank(ast.unparse(called).rpartition(".")[2]):
                self.guards.append(Guard(kind="rank", branch="if", text=f"@{text(node)}", line=node.lineno))
        with self._in(self.scope, function.name):
            for node in function.decorator_list:
                if isinstance(node, ast.Call) and _NO_GRADIENTS.search(name := self._dotted(node.func)):
                    self.statement = ast.copy_location(ast.Expr(node), node)
                    self._add(name, node.lineno, {})
            self.block(function.body)
        self.guards, self.loops, self.parameters, self.wrapped_here = guards, loops, parameters, models
        self.saved = saved

    def _loop(self, statement: ast.For | ast.AsyncFor | ast.While) -> None:
        over = statement.test if isinstance(statement, ast.While) else statement.iter
        self._expression(over, statement)
        target = "" if isinstance(statement, ast.While) else text(statement.target)
        with self._in(self.loops, Loop(line=statement.lineno, target=target, over=text(over))):
            self.block(statement.body)
        self.block(statement.orelse)

    def _try(self, statement: ast.stmt) -> None:
        self.block(getattr(statement, "body", []))
        for handler in getattr(statement, "handlers", []):
            with self._in(self.guards, _other("except", handler.lineno)):
                self.block(handler.body)
        self.block(getattr(statement, "orelse", []))
        self.block(getattr(statement, "finalbody", []))

    def _expression(self, expression: ast.expr, statement: ast.stmt) -> None:
        """Its calls, inner ones first; what a lambda does is done elsewhere."""
        kind = type(expression)
        if kind is ast.Name or kind is ast.Constant or kind is ast.Lambda or _is_chain(expression):
            return
        self.statement = statement
        if isinstance(expression, ast.IfExp):
            self._expression(expression.test, statement)
            for branch, part in (("if", expression.body), ("else", expression.orelse)):
                if not conditions.single(expression.test, branch == "if"):
                    with self._in(self.guards, _Condition(expression.test, "if" if branch == "if" else "else")):
                        self._expression(part, statement)
            return
        for place, value in vars(expression).items():
            if type(value) in _NO_EXPRESSION:
                continue
            if kind is ast.Dict:
                self._table(expression, statement)  # type: ignore[arg-type]
                break
            inner = (kind is ast.Call and place != "func") or kind is ast.BinOp
            self.within += inner
            for child in value if isinstance(value, list) else (value,):
                if isinstance(child, ast.expr):
                    self._expression(child, statement)
                elif isinstance(child, ast.keyword):
                    self._expression(child.value, statement)
                elif isinstance(child, ast.comprehension):
                    self._expression(child.iter, statement)
            self.within -= inner
        self._itself(expression, statement)

    def _table(self, table: ast.Dict, statement: ast.stmt) -> None:
        """Its values; a state that it holds under a key has that as its target."""
        target = self.target
        for key, value in zip(table.keys, table.values, strict=True):
            self.target = f"{target}[{text(key)}]" if key is not None and _is_state(value) else target
            self._expression(value, statement)
        self.target = target

    def _itself(self, expression: ast.expr, statement: ast.stmt) -> None:
        """The expression, after its parts."""
        if isinstance(expression, ast.Call):
            self._call(expression)
        elif isinstance(expression, ast.Dict) and (
            handed := [node for node in expression.values if _is_chain(node)]
        ):
            self._hand_on(expression, handed)
        elif isinstance(expression, ast.Yield) and expression.value and len(self.loops) > 1:
            self._add("yield", expression.lineno, {"0": text(expression.value)})
        elif isinstance(expression, ast.Subscript) and self._dotted(expression.value) == "os.environ":
            set_ = isinstance(expression.ctx, ast.Store)
            value = statement.value if isinstance(statement, ast.Assign) else None
            given = {"0": text(expression.slice)} | ({"1": text(value)} if set_ and value else {})
            self._add(f"os.environ.{'set' if set_ else 'get'}", expression.lineno, given)

    def _hand_on(self, table: ast.Dict, values: Sequence[ast.expr]) -> None:
        """A table of the script's own functions, one of which is chosen later."""
        known = [text(node) for node in values if ":" in self._dotted(node)]
        if known:
            self._add("dict", table.lineno, {str(at): function for at, function in enumerate(known)})

    def _call(self, call: ast.Call) -> None:
        name = self._dotted(call.func)
        wrapped = self._is_wrapped(call.func)
        kept = wrapped or name in self.parameters or is_kept(name) or self._takes_saved(call) or _to_number(call)
        if not kept and not _reports_loss(name, call):
            return
        arguments = {str(at): text(node) for at, node in enumerate(call.args) if not isinstance(node, ast.Starred)}
        arguments |= {keyword.arg: text(keyword.value) for keyword in call.keywords if keyword.arg}
        if any(isinstance(node, ast.Starred) for node in call.args) or any(
            keyword.arg is None for keyword in call.keywords
        ):
            arguments["*"] = "*"
        if name == "torch.save":
            self.saved |= {arguments.get("1", arguments.get("f", ""))} - {""}
        on = text(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        on = text(call.func) if wrapped else on
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        shared = [text(node) for node in given if self._is_wrapped(node)]
        if name in (".state_dict", ".load_state_dict") and isinstance(call.func, ast.Attribute):
            shared += [on] if self._is_wrapped(call.func.value) else []
        device = arguments.get("0", arguments.get("device", ""))
        known = "" if name != ".to" or device in self.parameters else self.devices.get(device, "")
        unlike = self._by_rank(call)
        self._add(name, call.lineno, arguments, on, by_rank=unlike, wrapped=wrapped, shared=shared, device=known)

    def _takes_saved(self, call: ast.Call) -> bool:
        """Whether it is given, or is a method of, a path that was saved to before in this function."""
        if not self.saved:
            return False
        parts = [call.func, *call.args, *(keyword.value for keyword in call.keywords)]
        return any(path in text(part) for path in self.saved for part in parts)

    def _by_rank(self, call: ast.Call) -> list[str]:
        given = [
            *((str(at), node) for at, node in enumerate(call.args)),
            *((keyword.arg, keyword.value) for keyword in call.keywords),
        ]
        return [name for name, value in given if name and self._unlike(value)]

    def _unlike(self, value: ast.expr) -> bool:
        """Whether it differs by rank. Most arguments are a name or a constant, and need no walk."""
        if isinstance(value, ast.Constant) or not self.of_rank or not stands_in(value, self.of_rank):
            return False
        return conditions.by_rank(value, self.unlike)

    def _add(
        self,
        name: str,
        line: int,
        arguments: dict[str, str],
        on: str = "",
        *,
        by_rank: Sequence[str] = (),
        wrapped: bool = False,
        shared: Sequence[str] = (),
        device: str = "",
    ) -> None:
        last = self.statement.end_lineno or line
        if isinstance(self.statement, ast.If | ast.For | ast.AsyncFor | ast.While | ast.With | ast.AsyncWith):
            last = line
        self.calls.append(
            Call(
                name=name,
                file=self.here.file,
                line=line,
                first=self.statement.lineno,
                last=last,
                on=on,
                target=self.target,
                function=f"{self.here.file}:{'.'.join(self.scope)}",
                arguments=arguments,
                by_rank=[*by_rank],
                wrapped=wrapped,
                shared=[*shared],
                inner=self.within > 0,
                device=device,
                guards=[guard if isinstance(guard, Guard) else self._guard(guard) for guard in self.guards],
                loops=[*self.loops],
            )
        )

    def _dotted(self, node: ast.expr) -> str:
        """What is called; a method of what is no name keeps its own name alone."""
        chain = names.chain_of(node)
        if not chain or chain.startswith("."):
            return chain
        return names.resolved(chain, self.classes[-1] if self.classes else "", self.here, self.every)

    def _guard(self, test: _Condition) -> Guard:
        """In words; made once for all calls under it."""
        key = (id(test.test), test.branch)
        if key not in self.known:
            kind: GuardKind = conditions.kind(test.test, self.ranks, holds=test.branch == "if")
            self.known[key] = Guard(kind=kind, branch=test.branch, text=text(test.test), line=test.test.lineno)
        return self.known[key]

    @contextmanager
    def _in(self, stack: list[Guard | _Condition] | list[Loop] | list[str], entry: object) -> Iterator[None]:
        stack.append(entry)  # type: ignore[arg-type]
        yield
        stack.pop()


def _reports_loss(name: str, call: ast.Call) -> bool:
    """`logger.info(f"loss {loss}")`, `wandb.log({"loss": loss})`."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return bool(_REPORTS.search(name)) and any("loss" in text(node).lower() for node in given)


def _to_number(call: ast.Call) -> bool:
    """`float(loss)`, which waits for the GPU as `loss.item()` does."""
    named = isinstance(call.func, ast.Name) and call.func.id == "float" and len(call.args) == 1
    return named and isinstance(call.args[0], ast.Name) and "loss" in call.args[0].id.lower()


def _is_state(value: ast.expr) -> bool:
    called = value.func if isinstance(value, ast.Call) else None
    return isinstance(called, ast.Attribute) and called.attr == "state_dict"


def _is_plain_map(value: ast.expr) -> str:
    """An address, or a device map: what may be handed on by a variable, or by a setting."""
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return text(value) if value.value in _MAPS or re.match(r"(?:env|tcp|file)://", value.value) else ""
    return text(value) if isinstance(value, ast.Dict) and len(value.keys) == 1 else ""


def _is_chain(node: ast.AST) -> bool:
    """`a.b.c`: half of all expressions, and no call is in one."""
    while type(node) is ast.Attribute:
        node = node.value
    return type(node) is ast.Name


def _leaves(statement: ast.stmt) -> bool:
    """It goes no further here: return, continue, break, and calls that end the process."""
    if isinstance(statement, ast.Return | ast.Continue | ast.Break):
        return True
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and text(call.func) in ("sys.exit", "exit", "quit", "os._exit")


def _is_used(function: ast.stmt, before: Sequence[ast.stmt]) -> bool:
    """Whether anything may call it, or keep it, in these statements, as far as they run at once."""
    if not isinstance(function, ast.FunctionDef) or function.decorator_list:
        return True
    waiting: list[ast.AST] = [*before]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting += [*node.decorator_list, *node.args.defaults]
            continue
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return True  # any function of the script may call it
        if isinstance(node, ast.Name) and node.id == function.name:
            return True
        waiting += ast.iter_child_nodes(node)
    return False


def _other(text: str, line: int) -> Guard:
    return Guard(kind="other", branch="if", text=text, line=line)


def _target(statement: ast.stmt) -> str:
    if isinstance(statement, ast.Assign):
        return text(statement.targets[0]) if len(statement.targets) == 1 else ""
    return text(statement.target) if isinstance(statement, ast.AnnAssign | ast.AugAssign) else ""
