"""What holds for every test: the event loop under it, the leak check, the caps on its time."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import hypothesis
import pytest
from pytest_asyncio import is_async_test

from asyncps import optim
from tests.support import leaks
from tests.support.processes import ProcessGroup

SLOW_TIMEOUT_S = 300  # the cap of tests marked slow; the others' is in pyproject.toml

# What the environment may choose for a test run; any other ASYNCPS_ or DMLC_ name is a cluster's.
RUN_CHOICES = ("ASYNCPS_LOOP", "ASYNCPS_PURE")
CLUSTERS = ("ASYNCPS_", "DMLC_", "OMPI_COMM_", "PMI_", "PMIX_", "SLURM_")

hypothesis.settings.register_profile(
    "asyncps",
    deadline=None,  # the 30 s cap counts, not one example's time on a busy machine
    derandomize=bool(os.environ.get("CI")),  # the same examples in each CI run
    print_blob=True,
)
hypothesis.settings.load_profile("asyncps")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the ini value `leak_grace_s`: how long what is on its way out may take."""
    parser.addini("leak_grace_s", "seconds until it is a leak", default=str(leaks.GRACE_S))


def pytest_configure(config: pytest.Config) -> None:
    """Takes a cluster that surrounds the test run out of the environment; adopts orphans."""
    for name in list(os.environ):
        if name.startswith(CLUSTERS) and name not in RUN_CHOICES:
            del os.environ[name]
    # A shell lets its background jobs ignore SIGINT, and whoever they start would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    leaks.adopt_orphans()
    # libuv keeps one pipe a process from its first loop on: no test's leak.
    for factory in _loop_factories().values():
        factory().close()


def pytest_report_header(config: pytest.Config) -> str:
    """Tells which loop and which kernels a run is about."""
    kernels = "reference" if os.environ.get("ASYNCPS_PURE") == "1" else "compiled"
    return f"asyncps: loop {_chosen_loop()}, kernels {kernels}"


@pytest.fixture
def torch() -> Any:
    """The module; who asks for it has the marker `torch`."""
    return pytest.importorskip("torch", reason="torch is not installed")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Gives slow tests their own cap, and skips GPU tests where there is no device."""
    for item in items:
        if "torch" in getattr(item, "fixturenames", ()):
            item.add_marker("torch")
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT_S))
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu and not _has_gpu():
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device and CuPy"))


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """ASYNCPS_LOOP chooses the loop (default uvloop) of all tests that do not name theirs.

    A test that must hold on both whatever was chosen is marked
    `@pytest.mark.asyncio(loop_factories=["uvloop", "asyncio"])`.
    """
    factories = _loop_factories()
    marker = item.get_closest_marker("asyncio")
    if marker is not None and marker.kwargs.get("loop_factories"):
        return factories
    chosen = _chosen_loop()
    if chosen not in factories:
        raise pytest.UsageError(f"ASYNCPS_LOOP={chosen}: choose one of {', '.join(factories)}")
    return {chosen: factories[chosen]}


@pytest.fixture(scope="session")
def leak_grace_s(pytestconfig: pytest.Config) -> float:
    """How long what is on its way out may take before it is a leak."""
    return float(pytestconfig.getini("leak_grace_s"))


@pytest.fixture(autouse=True)
def _no_leaks(leak_grace_s: float) -> Iterator[None]:
    """Fails a test that leaves threads, descriptors, processes or tasks behind."""
    before = leaks.Snapshot()
    yield
    found = before.close(leak_grace_s)
    if found:
        pytest.fail("the test leaks:\n  " + "\n  ".join(found), pytrace=False)


@pytest.fixture(autouse=True)
def _no_leaked_tasks(request: pytest.FixtureRequest, _no_leaks: None) -> None:
    # Closing the loop would cancel them: they are counted while it still runs.
    if is_async_test(request.node):
        request.getfixturevalue("_no_tasks_on_this_loop")


@pytest.fixture
async def _no_tasks_on_this_loop(leak_grace_s: float) -> AsyncIterator[None]:
    before = leaks.running_tasks()
    yield
    extra = leaks.running_tasks() - before
    if extra:
        _, left = await asyncio.wait(extra, timeout=leak_grace_s)
        if left:
            told = "\n  ".join(repr(task) for task in left)
            pytest.fail(f"the test leaks tasks:\n  {told}", pytrace=False)


@pytest.fixture
def processes() -> Iterator[ProcessGroup]:
    """Starts real processes; none of them outlives the test."""
    with ProcessGroup() as group:
        yield group


def _loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {}
    try:
        import uvloop
    except ImportError:  # not on Windows
        pass
    else:
        factories["uvloop"] = uvloop.new_event_loop
    factories["asyncio"] = asyncio.new_event_loop
    return factories


def _chosen_loop() -> str:
    return os.environ.get("ASYNCPS_LOOP") or next(iter(_loop_factories()))


def _has_gpu() -> bool:
    try:
        import cupy
    except ImportError:
        return False
    return bool(cupy.cuda.is_available())


@pytest.fixture
def registered() -> Iterator[None]:
    """Optimizers that a test registers are forgotten with it."""
    before = dict(optim.REGISTRY)
    yield
    optim.REGISTRY.clear()
    optim.REGISTRY.update(before)
