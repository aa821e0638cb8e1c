"""The pages for users say what is there: their code runs, their tables are complete."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
import pytest

import asyncps
from asyncps import config, errors
from asyncps.cli import cli
from asyncps.observe.metrics import FAMILIES
from asyncps.protocol import messages
from asyncps.protocol.frames import Kind
from asyncps_ext import wire
from tests.test_architecture import FACES, ROOMS, modules_under

ROOT = Path(__file__).parents[1]
WRITTEN_BY_BENCH = ROOT / "docs" / "BENCHMARKS.md"
PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "examples" / "README.md")
    if path != WRITTEN_BY_BENCH
)
FOREIGN_NAMES = {"ASYNCPS_PURE", "ASYNCPS_EXT_DEBUG", "ASYNCPS_EXT_SANITIZE"}


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(text: str, *languages: str) -> Iterator[tuple[int, str]]:
    """The first line number and the source of each fenced block in one of the languages."""
    for found in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        if found[1] in languages:
            yield text[: found.start(2)].count("\n") + 1, found[2]


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command line in the shell blocks, prompts and comments taken away."""
    for _, source in blocks(text, "bash"):
        lines = source.splitlines()
        yield from (words for line in lines if (words := shlex.split(line, comments=True)))
    for _, source in blocks(text, "console"):
        for line in source.splitlines():
            if line.startswith("$ "):
                yield shlex.split(line[2:], comments=True)


def words_after(words: list[str], *first: str) -> list[str] | None:
    return words[len(first) :] if words[: len(first)] == list(first) else None


# ------------------------------------------------------------------------------------ code blocks


WITH_CODE = ["README.md", "docs/kvstore.md", "docs/mxnet.md", "docs/compression.md",
             "docs/groups.md", "docs/communicator.md", "docs/distopt.md"]


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_CODE)
def test_python_blocks_run_from_top_to_bottom(name: str, tmp_path: Path) -> None:
    lines: list[str] = []
    for begin, source in blocks(read(name), "python"):
        lines += [""] * (begin - 1 - len(lines))  # a traceback names the line of the page
        lines += source.splitlines()
    assert lines
    script = tmp_path / "page.py"
    script.write_text("\n".join(lines) + "\n")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("ASYNCPS_", "DMLC_"))}
    run = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        env={**env, "PYTHONPATH": str(ROOT), "ASYNCPS_LOG_LEVEL": "ERROR"}, cwd=tmp_path,
        timeout=60,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert not run.stderr


def test_first_script_of_the_readme_is_the_example() -> None:
    (_, source), *_ = blocks(read("README.md"), "python")
    assert read("examples/first_script.py").endswith(source)


# ------------------------------------------------------------------------------ links and commands


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_to_files_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    local = [target for target in targets if "://" not in target]
    assert [t for t in local if not (page.parent / t).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
    extras = tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"]
    for words in commands(text):
        if rest := words_after(words, "make"):
            assert rest[0] in targets, words
        elif rest := words_after(words, "pip", "install"):
            wanted = re.findall(r"\[([\w,]+)\]", " ".join(rest))
            assert {name for group in wanted for name in group.split(",")} <= set(extras), words
        elif (rest := words_after(words, "python", "-m", "asyncps")) or (
            rest := words_after(words, "asyncps")
        ):
            check_command(rest)
        elif rest := words_after(words, "python"):
            assert rest[0].startswith("-") or (ROOT / rest[0]).exists(), words
    for target in re.findall(r"`make ([a-z-]+)", text):
        assert target in {*targets, "help"}, target


def check_command(words: list[str]) -> None:
    """Fails for a command or option that `asyncps` does not have, and for a missing program."""
    command = cli.commands.get(words[0])
    assert command is not None, words
    options = {
        name: option
        for option in command.params
        if isinstance(option, click.Option)
        for name in option.opts
    }
    rest = words[1:]
    while rest and rest[0].startswith("-") and rest[0] != "--":
        assert rest[0] in options, words
        rest = rest[1:] if options[rest[0]].is_flag else rest[2:]
    if words_after(rest, "--", "python"):
        assert rest[2] == "train.py" or (ROOT / rest[2]).exists(), words


def test_launching_lists_every_option() -> None:
    text = read("docs/launching.md")
    for name in ("launch", "worker", "server", "scheduler"):
        for option in cli.commands[name].params:
            if isinstance(option, click.Option):
                assert f"`{max(option.opts, key=len)}" in text, (name, option.opts)


def test_observing_lists_every_option_and_every_metric() -> None:
    text = read("docs/observing.md")
    for name in ("status", "doctor"):
        for option in cli.commands[name].params:
            if isinstance(option, click.Option):
                assert f"`{max(option.opts, key=len)}" in text, (name, option.opts)
    listed = {found.removesuffix("_total") for found in re.findall(r"`(asyncps_\w+)`", text)}
    assert listed == set(FAMILIES)


# ---------------------------------------------------------------------------------------- settings


def settings_table() -> str:
    """The table of docs/settings.md; print it by `python -m tests.test_docs`."""
    rows = ["| setting | default | unit | environment | why |", "|---|---|---|---|---|"]
    for name, default, unit, why, env in config.describe():
        shown = f"{default:g}" if isinstance(default, float) else str(default)
        names = ", ".join(f"`{item}`" for item in env)
        rows.append(f"| `{name}` | {shown or 'empty'} | {unit} | {names} | {why} |")
    return "\n".join(rows)


def test_settings_page_lists_every_setting() -> None:
    found = re.search(
        r"<!-- settings:begin -->\n(.*?)\n<!-- settings:end -->",
        read("docs/settings.md"),
        re.DOTALL,
    )
    assert found is not None
    assert found[1] == settings_table(), "python -m tests.test_docs prints the right one"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_of_the_environment_exist(page: Path) -> None:
    known = {name for *_, env in config.describe() for name in env} | FOREIGN_NAMES
    named = set(re.findall(r"\bASYNCPS_[A-Z_]*[A-Z]\b(?!_)", page.read_text(encoding="utf-8")))
    assert named - known == set()


# -------------------------------------------------------------------------- errors, wire, rooms


def test_every_error_is_on_its_pages() -> None:
    store, bytes_ = read("docs/kvstore.md"), read("docs/wire.md")
    codes = {int(code): name for code, name in re.findall(r"\| (\d+) \| (\w+) (?=\|)", bytes_)}
    for kind in all_errors(errors.AsyncPSError):
        assert f"`{kind.__name__}`" in store, kind
        assert codes.get(kind.code) == kind.__name__, kind


def all_errors(root: type[errors.AsyncPSError]) -> Iterator[type[errors.AsyncPSError]]:
    yield root
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from all_errors(child)


def test_troubleshooting_names_real_errors_only() -> None:
    named = set(re.findall(r"`([A-Z][A-Za-z]+)(?:: |`)", read("docs/troubleshooting.md")))
    known = {kind.__name__ for kind in all_errors(errors.AsyncPSError)}
    assert named - known <= {"ImportError", "AttributeError", "BaseException"}
    assert {"RendezvousTimeout", "HandshakeError", "WorkerLost", "DeadlineExceeded"} <= named


def test_wire_page_lists_every_kind_of_frame() -> None:
    rows = dict(re.findall(r"^\| (\d+) \| ([A-Z]+) \|", read("docs/wire.md"), re.MULTILINE))
    assert rows == {str(kind.value): kind.name for kind in Kind}


def test_wire_page_lists_every_message() -> None:
    page = read("docs/wire.md").partition("## Control messages")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+|\*) \| (\w+) \| (.*?) ?\|$", page, re.MULTILINE)
    listed = {name: (tag, re.findall(r"(\w+)\??(?:: [^,(]+)?(?: \([^)]*\))?(?:, |$)", fields))
              for tag, name, fields in rows}  # fmt: skip
    for kind in vars(messages).values():
        is_struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
        if is_struct and kind is not messages.Message:
            tag, fields = listed.pop(kind.__name__)
            assert tag == str(kind.__struct_config__.tag or "*"), kind
            assert tuple(fields) == kind.__struct_fields__, kind
    assert listed == {}


def test_golden_header_of_the_wire_page() -> None:
    ((_, source),) = blocks(read("docs/wire.md"), "text")
    header = wire.pack_header(Kind.PUSHPULL, 0, 7, 1, 42, 3, 5, 9, 0, 4096, 8, 2)
    assert bytes.fromhex(source) == header


def test_architecture_page_agrees_with_the_floors() -> None:
    text = read("ARCHITECTURE.md").partition("## Floors")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([\d.]+) \| ([^|]+) \|", text, re.MULTILINE)
    told = {name: float(floor) for floor, names in rows for name in re.findall(r"`(\S+)`", names)}
    there = {module.name for module in modules_under(ROOT)}
    rooms = {
        room.name.removeprefix("asyncps."): float(room.floor)
        for room in ROOMS
        if room.name in there and (room.name not in FACES or room.name == "asyncps")
    }
    assert told == rooms


def test_architecture_page_names_every_module() -> None:
    tree = next(source for _, source in blocks(read("ARCHITECTURE.md"), "text"))
    words = set(re.findall(r"[\w.]+", tree))
    missing = [
        module.name for module in modules_under(ROOT)
        if not module.is_package and module.path.name not in words
        and module.path.stem not in words
    ]  # fmt: skip
    assert missing == []


def test_public_names_are_told() -> None:
    text = read("README.md") + read("docs/kvstore.md") + read("docs/groups.md")
    silent = {"LocalStore", "Config"}
    assert [name for name in asyncps.__all__ if name not in text and name not in silent] == []


if __name__ == "__main__":
    print(settings_table())
