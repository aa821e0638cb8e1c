"""The leak check finds each kind of leak, and nothing in tests that clean up."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.support.processes import clean_environment

pytestmark = pytest.mark.slow  # each of the two inner runs waits for what it leaks

ROOT = Path(__file__).parents[2]

SUITE = """
import asyncio, logging, os, socket, subprocess, sys, threading, time, warnings
import pytest

KEEP = []

async def test_task():
    KEEP.append(asyncio.create_task(asyncio.Event().wait(), name="the-lost-task"))

def test_task_of_another_loop():
    loop = asyncio.new_event_loop()
    KEEP.append(loop.create_task(asyncio.Event().wait(), name="the-lost-task"))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()

def test_thread():
    thread = threading.Thread(target=threading.Event().wait, name="the-lost-thread", daemon=True)
    thread.start()

def test_file_descriptor():
    KEEP.append(os.open("/dev/null", os.O_RDONLY))

def test_socket():
    KEEP.append(socket.socket())

def test_socket_in_a_reference_cycle():
    circle = [socket.socket()]
    circle.append(circle)

def test_child_process():
    KEEP.append(subprocess.Popen(["sleep", "60"]))

def test_orphaned_grandchild():
    done = subprocess.run(["sh", "-c", "sleep 60 >/dev/null 2>&1 & echo started"],
                          stdout=subprocess.PIPE, check=True)
    assert done.stdout == b"started\\n"

def test_warning():
    warnings.warn("beware", UserWarning)

def test_warning_of_unawaited_coroutine():
    asyncio.sleep(0)

def test_exception_in_a_thread():
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()

async def test_exception_that_nobody_fetched():
    async def fail():
        raise RuntimeError("lost words")
    task = asyncio.create_task(fail())
    await asyncio.wait([task])
    del task

@pytest.fixture
async def ticker():
    task = asyncio.create_task(asyncio.Event().wait())
    yield task
    task.cancel()
    await asyncio.wait([task])

async def test_clean_with_a_task_of_a_fixture(ticker):
    assert not ticker.done()

async def test_clean_connection():
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
    server.close()
    await server.wait_closed()

def test_clean_thread_that_is_just_ending():
    threading.Timer(0.05, lambda: None).start()

def test_clean_child_that_is_just_ending():
    child = subprocess.Popen(["sleep", "60"])
    child.kill()
    child.wait()

async def test_clean_child_of_the_loop():
    child = await asyncio.create_subprocess_exec("true")
    assert await child.wait() == 0
"""

LEAKS = {
    "test_task": "the-lost-task",
    "test_task_of_another_loop": "the-lost-task",
    "test_thread": "the-lost-thread",
    "test_file_descriptor": "/dev/null",
    "test_socket": "socket:",
    "test_socket_in_a_reference_cycle": "ResourceWarning",
    "test_child_process": "sleep 60",
    "test_orphaned_grandchild": "sleep 60",
    "test_warning": "beware",
    "test_warning_of_unawaited_coroutine": "never awaited",
    "test_exception_in_a_thread": "ZeroDivisionError",
    "test_exception_that_nobody_fetched": "lost words",
}
CLEAN = (
    "test_clean_with_a_task_of_a_fixture",
    "test_clean_connection",
    "test_clean_thread_that_is_just_ending",
    "test_clean_child_that_is_just_ending",
    "test_clean_child_of_the_loop",
)


def run_suite(folder: Path, loop: str) -> dict[str, str]:
    """Runs SUITE under this project's conftest and settings; returns each test's complaints."""
    (folder / "test_leaking.py").write_text(SUITE)
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml")]
    command += ["-p", "tests.conftest", "-p", "no:cacheprovider", "-o", "leak_grace_s=0.5"]
    command += ["-q", f"--junitxml={report}"]
    env = clean_environment({"ASYNCPS_LOOP": loop, "PYTHONPATH": str(ROOT)})
    done = subprocess.run(
        [*command, str(folder / "test_leaking.py")],
        cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    complaints: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        found = [*case.iter("failure"), *case.iter("error")]
        name = case.attrib["name"]
        complaints[name] = complaints.get(name, "") + "".join(
            f"{entry.attrib.get('message')} {entry.text}" for entry in found
        )
    return complaints


@pytest.fixture(scope="module", params=["uvloop", "asyncio"])
def complaints(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    return run_suite(tmp_path_factory.mktemp("leaks"), request.param)


@pytest.mark.parametrize("name", LEAKS)
def test_a_leak_fails_its_test_and_is_named(complaints: dict[str, str], name: str) -> None:
    assert LEAKS[name] in complaints[name]


@pytest.mark.parametrize("name", CLEAN)
def test_a_test_that_cleans_up_passes(complaints: dict[str, str], name: str) -> None:
    assert complaints[name] == ""
