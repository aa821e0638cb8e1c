"""CPU seconds and memory of the processes of a cluster, from /proc. Python 3.8 to 3.13."""

from __future__ import annotations

import json
import os
import time


def cpu_s(pid):
    """User and system CPU seconds of a process, all its threads; None when it is gone."""
    try:
        return time.clock_gettime(((~pid) << 3) | 2)  # the CPU-time clock id of that process
    except OSError:
        return None


def status_mib(pid, field):
    """A memory field of /proc/PID/status in MiB ("VmHWM", "VmRSS"); 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/status") as f:
            for line in f:
                if line.startswith(field):
                    return int(line.split()[1]) / 1024.0
    except OSError:
        pass
    return 0.0


def machine_s():
    """(busy, stolen) CPU seconds of the whole machine so far, in ticks of 10 ms."""
    with open("/proc/stat") as f:
        v = [int(x) for x in f.readline().split()[1:9]]
    hz = os.sysconf("SC_CLK_TCK")
    return (v[0] + v[1] + v[2] + v[5] + v[6]) / hz, v[7] / hz


def reset_peak(pid):
    """Let VmHWM of a process start again from what it holds now."""
    try:
        with open(f"/proc/{pid}/clear_refs", "w") as f:
            f.write("5")
    except OSError:
        pass


def wait_pids(path=None, timeout_s=60):
    """{role: [pids]}, which the launcher writes once every process is started."""
    path = path or os.environ["PEERS_PIDS"]
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        try:
            with open(path) as f:
                return json.load(f)
        except (OSError, ValueError):
            time.sleep(0.02)
    raise RuntimeError(f"no pid file after {timeout_s} s")


class Meter:
    """CPU and peak memory of a cluster over one window; `roles` is {role: [pids]}."""

    def __init__(self, roles):
        self.roles = roles

    def reset(self):
        """Forget the peaks so far."""
        for pids in self.roles.values():
            for pid in pids:
                reset_peak(pid)

    def start(self):
        """Open the window."""
        self._cpu = {pid: cpu_s(pid) for pids in self.roles.values() for pid in pids}
        self._machine = machine_s()
        self._t0 = time.perf_counter()

    def stop(self, moved_gb=0.0):
        """Close the window: a dict of figures; `moved_gb` is what all workers moved in it."""
        out = {"window_s": time.perf_counter() - self._t0}
        busy, stolen = machine_s()
        out["machine_busy_s"] = busy - self._machine[0]
        out["machine_steal_s"] = stolen - self._machine[1]
        used = 0.0
        for role, pids in self.roles.items():
            out["peak_rss_MB_" + role] = max([status_mib(pid, "VmHWM") for pid in pids] or [0.0])
            now = [(cpu_s(pid), self._cpu[pid]) for pid in pids]
            if any(None in pair for pair in now):
                used = None  # a process has gone, and its seconds with it: no figure
                continue
            role_s = sum(after - before for after, before in now)
            used = None if used is None else used + role_s
            out["cpu_s_" + role] = role_s
            if moved_gb:
                out["cpu_s_per_GB_" + role] = role_s / moved_gb
        if moved_gb and used is not None:
            out["cpu_s_per_GB"] = used / moved_gb
        return out
