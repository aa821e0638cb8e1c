"""The rooms and floors of ARCHITECTURE.md, enforced on the source text with plain `ast`.

A module imports from its own room or from lower floors, wherever in it the import stands. A module
that stands nowhere in ROOMS fails: put it into the table here and in ARCHITECTURE.md.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAX_LINES = 400

ASYNCIO = frozenset({"asyncio", "uvloop"})
SOCKETS = frozenset({"socket", "socketserver", "ssl", "select", "selectors"})
CLOCKS = frozenset({"time", "random", "secrets"})
THREADS = frozenset({"threading", "_thread", "concurrent", "multiprocessing", "queue"})
GPU_LIBRARIES = frozenset({"torch", "cupy"})
DEPENDENCIES = frozenset({"numpy", "msgspec", "click", "rich", "safetensors", "uvloop",
                          "ml_dtypes", "prometheus_client"})
PICKLES = frozenset({"pickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve"})


@dataclass(frozen=True)
class Room:
    """A package or module, the floor it stands on, and what its code must not import.

    `floor` orders the rooms, decimals those of one floor of ARCHITECTURE.md; rooms of the very
    same number do not import each other.
    """

    name: str
    floor: float
    forbidden: frozenset[str] = frozenset()


WIRE = frozenset({"asyncps.protocol", "asyncps.transport"})

ROOMS = (
    Room("asyncps_ext", 0, ASYNCIO),
    Room("asyncps.errors", 1.0, ASYNCIO),
    Room("asyncps.config", 1.1, ASYNCIO),
    Room("asyncps.observe.endpoint", 1.15, ASYNCIO),
    Room("asyncps.observe.metrics", 1.2, ASYNCIO),
    Room("asyncps.observe.tables", 1.2, ASYNCIO),
    Room("asyncps.observe.trace", 1.2, ASYNCIO),
    Room("asyncps.observe", 1.3, ASYNCIO),  # only its __init__: status has a floor of its own
    Room("asyncps.initializer", 1.5, ASYNCIO | SOCKETS),
    Room("asyncps.optim", 2.0, ASYNCIO | SOCKETS),
    Room("asyncps.tensor", 2.1, ASYNCIO | SOCKETS),
    Room("asyncps.protocol", 3, ASYNCIO | SOCKETS | CLOCKS),
    Room("asyncps.state", 4, ASYNCIO | SOCKETS | CLOCKS | THREADS | {"numpy"}),
    Room("asyncps.transport", 5, frozenset({"asyncps.state"})),
    Room("asyncps.roles", 6),
    Room("asyncps.data", 7.0, WIRE),
    Room("asyncps.hosting", 6.9, frozenset({"asyncps.protocol"})),  # it may choose a Channel
    Room("asyncps.ticket", 7.0, WIRE),
    Room("asyncps.mpiplace", 6.9, WIRE | ASYNCIO | SOCKETS),
    Room("asyncps.session", 6.9, WIRE | ASYNCIO | SOCKETS),
    Room("asyncps.mpi", 7.0, WIRE),
    Room("asyncps.starting", 7.01, WIRE | ASYNCIO | SOCKETS),
    Room("asyncps.later", 7.0, WIRE),
    Room("asyncps.following", 7.0, WIRE),
    Room("asyncps.updating", 7.0, WIRE),
    Room("asyncps.values", 7.1, WIRE),
    Room("asyncps.budget", 7.1, WIRE),
    Room("asyncps.tablevalues", 7.11, WIRE),
    Room("asyncps.call", 7.12, WIRE),
    Room("asyncps.tablecall", 7.13, WIRE),
    Room("asyncps.codedcall", 7.135, WIRE),
    Room("asyncps.rowverbs", 7.18, WIRE),
    Room("asyncps.storefacts", 7.18, WIRE),
    Room("asyncps.core", 7.15, WIRE),
    Room("asyncps.wholecalls", 7.18, WIRE),
    Room("asyncps.localvalues", 7.18, WIRE),
    Room("asyncps.localtables", 7.185, WIRE),
    Room("asyncps.parameters", 7.18, WIRE),
    Room("asyncps.checkpointverbs", 7.18, WIRE),
    Room("asyncps.compressionverbs", 7.18, WIRE),
    Room("asyncps.localcheckpoints", 7.19, WIRE),
    Room("asyncps.exchange", 7.19, WIRE),
    Room("asyncps.localstore", 7.2, WIRE),
    Room("asyncps.kvstore", 7.2, WIRE),
    Room("asyncps.allended", 7.0, WIRE),
    Room("asyncps.collectivecall", 7.0, WIRE),
    Room("asyncps.plainobjects", 7.0, WIRE),
    Room("asyncps.fusing", 7.1, WIRE),
    Room("asyncps.choosing", 7.0, WIRE),
    Room("asyncps.objectverbs", 7.11, WIRE),
    Room("asyncps.groupedverbs", 7.11, WIRE),
    Room("asyncps.processset", 7.11, WIRE),
    Room("asyncps.sparsecall", 7.11, WIRE),
    Room("asyncps.sparseverbs", 7.12, WIRE),
    Room("asyncps.aside", 7.0, WIRE),
    Room("asyncps.codedframe", 7.0, WIRE),
    Room("asyncps.codedsum", 7.11, WIRE),
    Room("asyncps.codedfactors", 7.12, WIRE),
    Room("asyncps.codedsums", 7.13, WIRE),
    Room("asyncps.codedverbs", 7.135, WIRE),
    Room("asyncps.embedded", 7.25, frozenset({"asyncps.protocol"})),
    Room("asyncps.forming", 7.26, WIRE),
    Room("asyncps.communicator", 7.27, WIRE),
    Room("asyncps.withoutservers", 7.0, WIRE),
    Room("asyncps.allreducecalls", 7.28, WIRE),
    Room("asyncps.codedstore", 7.285, WIRE),
    Room("asyncps.allreducestore", 7.29, WIRE),
    Room("asyncps.cluster", 7.3, frozenset({"asyncps.protocol"})),  # it may choose a Channel
    Room("asyncps.localcluster", 7.35, frozenset({"asyncps.protocol"})),  # and another
    Room("asyncps.trainer", 7.4, WIRE),
    Room("asyncps.distopt", 7.4, WIRE),
    Room("asyncps.integrations", 8),
    Room("asyncps.launch", 8),
    Room("asyncps.observe.status", 8),
    Room("asyncps.observe.display", 8.1),
    Room("asyncps.observe.doctor", 8.1),
    Room("asyncps", 8.5, WIRE),  # only its __init__, the face: public names from floors 1 to 8
    Room("asyncps.cli", 9.0),
    Room("asyncps.__main__", 9.1),
)
BY_NAME = {room.name: room for room in ROOMS}
FACES = ("asyncps", "asyncps.observe")  # rooms of an __init__ alone: what is below needs its own

# torch and cupy are imported in integrations. The modules beside it that may load a library by its
# name, where it is there:
LOADERS = {"asyncps.tensor.arrays": frozenset({"cupy"}), "asyncps.mpi": frozenset({"mpi4py"})}

# Who reads the environment, and which names (None is any).
ENVIRON_READERS = {"asyncps.config": None, "asyncps_ext": frozenset({"ASYNCPS_PURE"})}


@dataclass
class Module:
    """One source file under its dotted name."""

    name: str
    path: Path
    source: str
    is_package: bool

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source, filename=str(self.path))


def modules_under(root: Path) -> Iterator[Module]:
    for package in ("asyncps", "asyncps_ext"):
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            yield Module(name, path, path.read_text(encoding="utf-8"), is_package)


def room_of(name: str) -> Room | None:
    """The room of a module, or of a name imported from one; None when it stands nowhere."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        prefix = ".".join(parts[:length])
        if prefix in BY_NAME and (length == len(parts) or prefix not in FACES):
            return BY_NAME[prefix]
    return None


def imports_of(module: Module) -> Iterator[tuple[int, str]]:
    """Line and absolute dotted name of each import, those by a literal name included."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.name.split(".")
                keep = len(parents) - node.level + module.is_package
                base = ".".join(parents[:keep] + ([base] if base else []))
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args:
            called = ast.unparse(node.func).rpartition(".")[2]
            argument = node.args[0]
            is_literal = isinstance(argument, ast.Constant) and isinstance(argument.value, str)
            if called in ("import_module", "__import__") and is_literal:
                yield node.lineno, argument.value


def import_problems(module: Module) -> Iterator[tuple[int, str]]:
    room = room_of(module.name)
    if room is None:
        yield 1, f"{module.name} stands in no room: add it to ROOMS and to ARCHITECTURE.md's floors"
        return
    for line, imported in imports_of(module):
        top = imported.split(".")[0]
        for name in room.forbidden:
            if imported == name or imported.startswith(f"{name}."):
                yield line, f"{room.name} must not import {name}"
        if top in PICKLES:
            yield line, f"{top} runs what it reads: never pickle"
        elif top in GPU_LIBRARIES:
            allowed = LOADERS.get(module.name, frozenset())
            if room.name != "asyncps.integrations" and top not in allowed:
                yield line, f"{top} is imported only in asyncps.integrations"
        elif top in ("asyncps", "asyncps_ext"):
            yield from ((line, text) for text in floor_problems(room, imported))
        elif top not in sys.stdlib_module_names and top not in DEPENDENCIES:
            if top not in LOADERS.get(module.name, frozenset()):
                yield line, f"{top} is no dependency of asyncps"
        elif room.name == "asyncps_ext" and top in DEPENDENCIES - {"numpy"}:
            yield line, f"asyncps_ext imports numpy and nothing else that is installed, not {top}"


def floor_problems(room: Room, imported: str) -> Iterator[str]:
    target = room_of(imported) or room_of(imported.rpartition(".")[0])
    if target is None:
        yield f"{imported} stands in no room"
    elif target is not room and target.floor >= room.floor:
        yield (
            f"{room.name} (floor {room.floor:g}) imports {imported} of {target.name} "
            f"(floor {target.floor:g}): only lower floors"
        )


def environ_problems(module: Module) -> Iterator[tuple[int, str]]:
    reads = [
        node
        for node in ast.walk(module.tree)
        if (isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv"))
        or (
            isinstance(node, ast.ImportFrom)
            and node.module == "os"
            and {alias.name for alias in node.names} & {"environ", "environb", "getenv"}
        )
    ]
    if module.name not in ENVIRON_READERS:
        yield from ((node.lineno, "only config.py reads the environment") for node in reads)
        return
    allowed = ENVIRON_READERS[module.name]
    if allowed is not None:
        # Each read must be os.environ.get("NAME", ...) of an allowed name.
        literal = {
            node.func.value
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "get"
            and node.args
            and isinstance(node.args[0], ast.Constant)
            and node.args[0].value in allowed
        }
        for node in reads:
            if node not in literal:
                yield node.lineno, f"{module.name} reads only {', '.join(sorted(allowed))}"


def text_problems(module: Module) -> Iterator[tuple[int, str]]:
    if ast.get_docstring(module.tree) is None:
        yield 1, "a module tells its one idea in a docstring"
    lines = module.source.count("\n")
    if lines > MAX_LINES:
        yield lines, f"{lines} lines: a module past {MAX_LINES} is two ideas"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            if not (isinstance(node.value, ast.Constant) and node.value.value is False):
                yield node.value.lineno, "allow_pickle: never pickle"


def violations(root: Path) -> list[str]:
    """All violations of the sources below `root`, as `file:line: what`."""
    found: list[str] = []
    for module in modules_under(root):
        where = module.path.relative_to(root)
        for check in (import_problems, environ_problems, text_problems):
            found.extend(f"{where}:{line}: {text}" for line, text in check(module))
    return found


# ---------------------------------------------------------------------------------- this project


def test_every_module_keeps_to_its_room() -> None:
    found = violations(ROOT)
    assert not found, "\n" + "\n".join(found)


def test_there_is_something_to_check() -> None:
    assert any(module.name == "asyncps.errors" for module in modules_under(ROOT))


@pytest.mark.parametrize("path", sorted((ROOT / "asyncps_ext").glob("*.p[yx][xd]")), ids=str)
def test_cython_sources_are_one_idea_and_know_nothing_of_asyncps(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= MAX_LINES
    words = [line.split() for line in lines]
    imported = {w[1].split(".")[0] for w in words if len(w) > 1 and w[0] in IMPORT_WORDS}
    assert not imported & ({"asyncps"} | ASYNCIO | PICKLES)


IMPORT_WORDS = ("import", "cimport", "from")

# ---------------------------------------------------------------------- each kind of violation


def found_in(root: Path, sources: dict[str, str]) -> list[str]:
    """Violations of a small tree of modules, each with a docstring put in front of its source."""
    for name, source in sources.items():
        path = root / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'"""An idea."""\n{source}\n')
    return violations(root)


ALLOWED = [
    ("asyncps/state/rounds", "from asyncps.errors import AsyncPSError"),
    ("asyncps/state/rounds", "from asyncps.state import routing"),
    ("asyncps/state/rounds", "from . import routing\nfrom ..errors import AsyncPSError"),
    ("asyncps/config", "from asyncps.errors import ConfigError\nimport os\nos.environ['X']"),
    ("asyncps/communicator", "from asyncps.fusing import Fusing\nimport threading"),
    ("asyncps/kvstore", "from asyncps.roles.worker import Worker"),
    ("asyncps/cluster", "from asyncps.transport.memory import MemoryChannel"),
    ("asyncps/integrations/torch", "import torch"),
    ("asyncps/cli", "import click\nfrom asyncps import launch, cluster"),
    ("asyncps/observe/status", "from asyncps.roles import server"),
    ("asyncps/roles/node", "import asyncio, time, socket"),
    ("asyncps/transport/tcp", "import asyncio\nfrom asyncps.protocol import frames"),
]

NOT_ALLOWED = [
    ("asyncps_ext/reference", "from asyncps import errors", "only lower floors"),
    ("asyncps_ext/reference", "import asyncio", "must not import asyncio"),
    ("asyncps_ext/reference", "import msgspec", "numpy and nothing else"),
    ("asyncps/errors", "from asyncps.config import Config", "only lower floors"),
    ("asyncps/config", "import asyncio", "must not import asyncio"),
    ("asyncps/observe/metrics", "import uvloop", "must not import uvloop"),
    ("asyncps/observe/metrics", "from asyncps.observe import status", "only lower floors"),
    ("asyncps/optim", "from asyncps.tensor import dtypes", "only lower floors"),
    ("asyncps/tensor/pool", "from asyncps.state import rounds", "only lower floors"),
    ("asyncps/tensor/pool", "import socket", "must not import socket"),
    ("asyncps/tensor/pool", "import cupy", "only in asyncps.integrations"),
    ("asyncps/protocol/frames", "import time", "must not import time"),
    ("asyncps/protocol/frames", "from random import random", "must not import random"),
    ("asyncps/protocol/frames", "import asyncps.transport.tcp", "only lower floors"),
    ("asyncps/state/rounds", "import threading", "must not import threading"),
    ("asyncps/state/rounds", "from concurrent.futures import Future", "not import concurrent"),
    ("asyncps/state/rounds", "import numpy as np", "must not import numpy"),
    ("asyncps/transport/tcp", "from asyncps.state import rounds", "not import asyncps.state"),
    ("asyncps/transport/tcp", "import asyncps.roles", "only lower floors"),
    ("asyncps/roles/server", "import torch", "only in asyncps.integrations"),
    ("asyncps/roles/server", "from asyncps import kvstore", "only lower floors"),
    ("asyncps/kvstore", "from asyncps.transport import tcp", "not import asyncps.transport"),
    ("asyncps/kvstore", "from asyncps import protocol", "must not import asyncps.protocol"),
    ("asyncps/fusing", "from asyncps import kvstore", "only lower floors"),
    ("asyncps/cluster", "from asyncps.protocol import frames", "not import asyncps.protocol"),
    ("asyncps/cluster", "from asyncps.trainer import Trainer", "only lower floors"),
    ("asyncps/launch/local", "from asyncps.observe import status", "only lower floors"),
    ("asyncps/integrations/torch", "from asyncps import launch", "only lower floors"),
    ("asyncps/launch/local", "from asyncps.cli import main", "only lower floors"),
    ("asyncps/launch/local", "import paramiko", "no dependency"),
    ("asyncps/ticket", "import mpi4py", "no dependency"),
    ("asyncps/roles/server", "import asyncps", "only lower floors"),
    ("asyncps/state/rounds", "from asyncps.novelty import x", "stands in no room"),
]


@pytest.mark.parametrize(("name", "source"), ALLOWED)
def test_import_from_the_own_room_or_below_is_allowed(
    tmp_path: Path, name: str, source: str
) -> None:
    assert found_in(tmp_path, {name: source}) == []


@pytest.mark.parametrize(("name", "source", "complaint"), NOT_ALLOWED)
def test_import_against_the_table_is_found(
    tmp_path: Path, name: str, source: str, complaint: str
) -> None:
    (found,) = found_in(tmp_path, {name: source})
    assert found.startswith(f"{name}.py:2: ")
    assert complaint in found


@pytest.mark.parametrize(
    "source",
    [
        "def f():\n    import time",
        "def f():\n    from time import monotonic",
        "class C:\n    async def f(self):\n        import time as t",
        "import typing\nif typing.TYPE_CHECKING:\n    import time",
        "import importlib\nimportlib.import_module('time')",
        "from importlib import import_module\nimport_module('time')",
        "__import__('time')",
    ],
)
def test_import_anywhere_in_a_module_counts(tmp_path: Path, source: str) -> None:
    (found,) = found_in(tmp_path, {"asyncps/protocol/frames": source})
    assert "must not import time" in found


def test_relative_import_is_followed(tmp_path: Path) -> None:
    (found,) = found_in(tmp_path, {"asyncps/tensor/pool": "from ..state import rounds"})
    assert "tensor (floor 2.1) imports asyncps.state.rounds" in found
    (found,) = found_in(
        tmp_path, {"asyncps/tensor/pool": "", "asyncps/state/__init__": "from .. import cli"}
    )
    assert "state (floor 4) imports asyncps.cli" in found


def test_unknown_module_must_be_added_to_the_table(tmp_path: Path) -> None:
    (found,) = found_in(tmp_path, {"asyncps/novelty": ""})
    assert found == (
        "asyncps/novelty.py:1: asyncps.novelty stands in no room: "
        "add it to ROOMS and to ARCHITECTURE.md's floors"
    )
    assert len(found_in(tmp_path, {"asyncps/observe/novelty": ""})) == 2


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.environ['HOME']",
        "import os\nos.environ.get('ASYNCPS_PURE')",
        "import os\nos.getenv('HOME')",
        "from os import environ",
        "from os import getenv as g",
    ],
)
def test_environment_is_read_in_config_only(tmp_path: Path, source: str) -> None:
    (found,) = found_in(tmp_path, {"asyncps/roles/server": source})
    assert "only config.py reads the environment" in found


def test_kernels_read_one_name_of_the_environment(tmp_path: Path) -> None:
    pure = "import os\nPURE = os.environ.get('ASYNCPS_PURE', '') == '1'"
    assert found_in(tmp_path, {"asyncps_ext/__init__": pure}) == []
    other = pure + "\nFAST = os.environ.get('ASYNCPS_FAST')"
    (found,) = found_in(tmp_path, {"asyncps_ext/__init__": other})
    assert found == "asyncps_ext/__init__.py:4: asyncps_ext reads only ASYNCPS_PURE"
    (found,) = found_in(tmp_path, {"asyncps_ext/__init__": "", "asyncps_ext/reference": pure})
    assert "only config.py" in found


@pytest.mark.parametrize(
    "source", ["import pickle", "from pickle import loads", "import cloudpickle", "import marshal"]
)
def test_pickle_is_found_in_every_room(tmp_path: Path, source: str) -> None:
    (found,) = found_in(tmp_path, {"asyncps/launch/local": source})
    assert "never pickle" in found


def test_allow_pickle_is_found(tmp_path: Path) -> None:
    source = "import numpy\nnumpy.load('x', allow_pickle=False)\nnumpy.load('x', allow_pickle=True)"
    (found,) = found_in(tmp_path, {"asyncps/data": source})
    assert found == "asyncps/data.py:4: allow_pickle: never pickle"


def test_module_of_more_than_400_lines_is_found(tmp_path: Path) -> None:
    assert found_in(tmp_path, {"asyncps/data": "\n" * 398}) == []
    (found,) = found_in(tmp_path, {"asyncps/data": "\n" * 399})
    assert "401 lines" in found


def test_module_without_docstring_is_found(tmp_path: Path) -> None:
    (tmp_path / "asyncps").mkdir()
    (tmp_path / "asyncps" / "data.py").write_text("x = 1\n")
    assert violations(tmp_path) == ["asyncps/data.py:1: a module tells its one idea in a docstring"]
