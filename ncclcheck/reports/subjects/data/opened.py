"""Lines that open, or allocate, in each worker what the user's class makes in __init__: for DAT004 and DAT005."""

from __future__ import annotations

import re

from msgspec.structs import replace

from ncclcheck.probes.facts.data import Content, Made
from ncclcheck.probes.facts.data.content import Inherited, Memory
from ncclcheck.probes.facts.data.made import Assigned
from ncclcheck.reports.judgement.findings import Remedy, you

# How a library's handle is opened for reading alone; PATH is the user's.
_OPENED = {
    "h5py.File": 'h5py.File(PATH, "r")',
    "lmdb.Environment": "lmdb.open(PATH, readonly=True, lock=False, readahead=False)",
    "sqlite3.Connection": 'sqlite3.connect(f"file:{PATH}?mode=ro", uri=True)',
    "zipfile.ZipFile": "zipfile.ZipFile(PATH)",
    "tarfile.TarFile": "tarfile.open(PATH)",
    "av.container.InputContainer": "av.open(PATH)",
}
# What makes a private one of memory that processes share; {} is the shared one.
_COPIED = {
    "torch.Tensor": "{}.clone()",
    "numpy.memmap": "numpy.array({})",
    "multiprocessing.Array": "multiprocessing.Array({0}.get_obj()._type_, {0}[:])",
    "multiprocessing.Value": "multiprocessing.Value(type({0}.get_obj()), {0}.value)",
    "multiprocessing.RawArray": "multiprocessing.sharedctypes.copy({})",
    "multiprocessing.shared_memory.SharedMemory": (
        "multiprocessing.shared_memory.SharedMemory(create=True, size={}.size)"
    ),
}
_ATTRIBUTE = re.compile(r"self\.([A-Za-z_]\w*)(\[[^\]]*\])?(.*)")


def class_of(made: Made) -> str:
    """`Frames`, of `project.data.Frames`."""
    return made.dataset.rpartition(".")[2] or "Dataset"


def opened_by_each(made: Made, inherited: Inherited) -> Remedy:
    """With the names of the user's class and attribute, by the library that opened it."""
    match = _ATTRIBUTE.fullmatch(inherited.path)
    name = match[1] if match else "file"
    several, within = bool(match and match[2]), match[3] if match else ""
    if within and (kind := _library_around(made, inherited)):
        inherited, within = replace(inherited, how="library", what=kind), ""
    if not several and (lines := _anew(made, name)):
        return you(f"Let each worker open its own self.{name}: what __init__ has opened is shared by all.", *lines)
    return you(
        f"Open it in each worker, at its first read, and not in {class_of(made)}.__init__.",
        f"self.{name} = None  # in {class_of(made)}.__init__, instead of opening it",
        f"if self.{name} is None:  # the first lines of {class_of(made)}.__getitem__",
        f"    self.{name} = {_call(inherited, several=several, within=within)}",
    )


def _anew(made: Made, name: str) -> list[str]:
    """What the class itself does to open it, done again in each process, with all that it makes of it."""
    code = made.code
    if code is None or not (code.owner and code.assigned):
        return []
    given = {
        assignment.value: assignment.name for assignment in code.assigned if assignment.value in assignment.needs
    }  # self.path = path
    own, read = code.owner.rpartition(".")[2], "__iter__" if made.iterable else "__getitem__"
    first: dict[str, Assigned] = {}
    for assigned in code.assigned:
        first.setdefault(assigned.name, assigned)
    again, kept, lines = {name}, dict[str, None](), list[str]()
    for assigned in first.values():
        if assigned.name == name or (lines and again & {*re.findall(r"self\.(\w+)", assigned.value)}):
            again.add(assigned.name)
            kept |= {
                f"self.{local} = {local}  # in {own}.__init__": None
                for local in assigned.needs
                if local not in given
            }
            lines.append(f"    self.{assigned.name} = {_of_self(assigned, given)}")
    if not lines:
        return []
    return [
        *kept,
        f"self.opened_in = os.getpid()  # the first line of {own}.__init__",
        f"if self.opened_in != os.getpid():  # the first lines of {own}.{read}",
        *lines,
        "    self.opened_in = os.getpid()",
    ]


def _of_self(assigned: Assigned, given: dict[str, str]) -> str:
    """The value, where arguments are attributes: `zipfile.ZipFile(self.path)`."""
    value = assigned.value
    for local in assigned.needs:
        value = re.sub(rf"(?<![\w.]){local}\b(?!\s*=[^=])", f"self.{given.get(local, local)}", value)
    return value


def _library_around(made: Made, inherited: Inherited) -> str:
    """`zipfile.ZipFile`, where a library's handle holds this file."""
    around = [(_from_self(each.path), each.type) for each in made.libraries]
    return next((kind for path, kind in around if path and inherited.path.startswith(f"{path}.")), "")


def _from_self(path: str) -> str:
    """`self.x`, of `self[0].x`: the dataset is the first of what was looked through."""
    return path.replace("self[0]", "self", 1)


def _call(inherited: Inherited, *, several: bool, within: str) -> str:
    """What opens it; where a library's object holds the file, that object is made as it was."""
    if inherited.how == "library":
        call = _OPENED.get(inherited.what, "...  # as it was opened")
    elif inherited.how == "socket":
        call = "socket.create_connection(ADDRESS)"
    elif inherited.how == "process":
        call = "subprocess.Popen(...)  # as it was started"
    elif within not in ("", ".raw"):
        return "...  # what __init__ made of it"
    else:
        call = 'open(PATH, "rb")' if several else f'open({inherited.what!r}, "rb")'
    return f"[{call.replace('PATH', 'path')} for path in PATHS]" if several else call


def _private_memory(made: Made, memory: Memory) -> Remedy:
    """The same attribute, in memory of the worker's own, so that nothing else has to be changed."""
    copied = _COPIED.get(memory.type, "copy.deepcopy({})  # ... in memory that is not shared").format(memory.path)
    owner = f"{memory.path}_of"
    return you(
        f"Give each worker {memory.path} in memory of its own, at its first read: the one of __init__ is shared.",
        f"{owner} = None  # in {class_of(made)}.__init__",
        f"if {owner} != os.getpid():  # the first lines of {class_of(made)}.__getitem__",
        f"    {memory.path}, {owner} = {copied}, os.getpid()",
    )


def own_in_workers(made: Made, content: Content) -> list[Remedy]:
    """What keeps workers from writing over each other's values, by what they are known to share."""
    if content.inherited:
        return [opened_by_each(made, inherited) for inherited in content.inherited[:2]]
    own = [memory for memory in content.memory if re.fullmatch(r"self\.[A-Za-z_]\w*", memory.path)]
    if own:
        return [_private_memory(made, memory) for memory in own[:2]]
    if content.written:
        path = content.written[0].path
        return [
            you(
                f"Give each worker a file of its own, not {path} for all.",
                f'path = f"{path}.{{os.getpid()}}"  # in {class_of(made)}.__getitem__, where it writes and reads',
            )
        ]
    return [
        you(
            f"Find the file or the connection that all workers use while {class_of(made)}.__getitem__ runs; give "
            "each worker one of its own.",
            'path = f"{path}.{os.getpid()}"  # of a scratch file',
        )
    ]
