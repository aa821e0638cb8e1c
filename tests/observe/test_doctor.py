"""What `asyncps doctor` finds, on machines that lack this or that."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import asyncps_ext
from asyncps import cli
from asyncps.observe import doctor
from asyncps.observe.doctor import MISSING, NOTE, OK, Finding, examine
from tests.faults.job import ReservedPort
from tests.support.processes import ProcessGroup

ROOT = Path(__file__).parents[2]
TOPICS = {"settings", "versions", "kernels", "loop", "extras", "gpu", "machine", "network",
          "sockets"}


def finding(findings: list[Finding], name: str) -> Finding:
    (found,) = [item for item in findings if item.name == name]
    return found


@pytest.fixture(autouse=True)
def _no_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    absent(monkeypatch, "cupy")


def absent(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    real = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> Any:
        return None if name in modules else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)


def test_every_topic_is_looked_at_and_no_check_fails() -> None:
    findings = examine({})
    assert {item.topic for item in findings} >= TOPICS - {"sockets"}
    assert not [item for item in findings if item.name == "this check"]
    assert doctor.is_complete(findings)
    assert finding(findings, "kernels").found.startswith(
        "compiled" if asyncps_ext.COMPILED else "reference, since ASYNCPS_PURE")
    assert finding(findings, "instruction set").found == asyncps_ext.INSTRUCTION_SET
    assert finding(findings, "interface lo").found.startswith("127.0.0.1")
    json.dumps(doctor.as_data(findings))


def test_missing_library_is_named_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    absent(monkeypatch, "prometheus_client", "uvloop", "cupy")
    findings = examine({})
    assert finding(findings, "prometheus-client").advice == "pip install prometheus-client"
    assert finding(findings, "loop").state == MISSING
    assert not doctor.is_complete(findings)
    assert finding(examine({"ASYNCPS_LOOP": "asyncio"}), "loop").state == NOTE


def test_extras_are_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    absent(monkeypatch, "torch", "ml_dtypes", "cupy")
    findings = examine({})
    assert 'in a clone pip install -e ".[bf16]"' in finding(findings, "ml_dtypes").advice
    assert 'in a clone pip install -e ".[torch]"' in finding(findings, "torch").advice
    assert "cuda12" in finding(findings, "cupy").advice
    assert doctor.is_complete(findings)


@pytest.mark.parametrize(("code", "text"), [
    ("raise RuntimeError('no driver here')", "no driver here"),
    ("import os; os.kill(os.getpid(), 11)", "-11"),
    ("import os; os._exit(7)", "7"),
], ids=["raises", "crashes", "exits"])
def test_broken_cupy_is_a_note(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str, text: str
) -> None:
    monkeypatch.undo()
    (tmp_path / "cupy.py").write_text(code + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = finding(examine({}), "cupy")
    assert found.state == NOTE
    assert text in found.found
    assert "cupy" not in sys.modules


def test_cupy_that_hangs_is_a_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    (tmp_path / "cupy.py").write_text("import time; time.sleep(1000)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(doctor, "_GPU_S", 0.3)
    assert "more than 0.3 s" in finding(examine({}), "cupy").found


def test_devices_are_listed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    (tmp_path / "cupy.py").write_text(
        "class cuda:\n  class runtime:\n"
        "    getDeviceCount = staticmethod(lambda: 2)\n"
        "    getDeviceProperties = staticmethod(lambda i: {'name': b'GPU %d' % i})\n"
        "__version__ = '13.9'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    findings = examine({})
    assert (finding(findings, "cupy").state, finding(findings, "cupy").found) == (OK, "13.9")
    assert finding(findings, "devices").found == "GPU 0, GPU 1"


def test_settings_that_cannot_be_right_are_missing() -> None:
    for environ in ({"ASYNCPS_NONSENSE": "1"}, {"ASYNCPS_LOOP": "twisted"}):
        findings = examine(environ)
        assert finding(findings, "environment").state == MISSING
        assert len({item.topic for item in findings}) >= 8  # the rest was looked at


def test_taken_port_and_unknown_host_are_told() -> None:
    with ReservedPort(listening=True) as port:
        found = finding(examine({"ASYNCPS_SCHEDULER": f"127.0.0.1:{port.number}"}),
                        "scheduler's address")
        assert (found.state, str(port.number) in found.found) == (NOTE, True)
    findings = examine({"ASYNCPS_SCHEDULER": "no such host:1"})
    assert finding(findings, "scheduler's address").state == MISSING


def test_advertised_address_is_the_one_of_the_settings() -> None:
    assert "192.0.2.7" in finding(examine({"ASYNCPS_ADVERTISE": "192.0.2.7"}),
                                  "a server advertises").found
    assert "127.0.0.1 (of lo)" in finding(examine({"ASYNCPS_INTERFACE": "lo"}),
                                          "a server advertises").found
    assert finding(examine({"ASYNCPS_INTERFACE": "nonsense0"}),
                   "a server advertises").state == MISSING


def test_check_that_fails_does_not_end_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise PermissionError("not for you")

    monkeypatch.setattr("os.sched_getaffinity", broken)
    findings = examine({})
    assert "not for you" in finding(findings, "this check").found
    assert {"network", "versions"} <= {item.topic for item in findings}


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[Any, str]:
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    return stop.value.code, capsys.readouterr().out


def test_command_exits_with_0_or_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, text = run(capsys, "doctor")
    assert code == 0
    assert text.startswith("everything that is needed is there\n")
    monkeypatch.setenv("ASYNCPS_SHEDULER", "127.0.0.1:1")
    code, text = run(capsys, "doctor", "--json")
    told = json.loads(text)
    assert (code, told["complete"]) == (1, False)
    code, text = run(capsys, "doctor")
    assert (code, text.splitlines()[0]) == (1, "missing: environment")


def test_doctor_runs_with_the_reference_kernels(processes: ProcessGroup) -> None:
    process = processes.asyncps("doctor", "--json", cwd=ROOT, env={"ASYNCPS_PURE": "1"})
    assert process.wait(25) == 0
    assert "reference, since ASYNCPS_PURE is set" in process.output
