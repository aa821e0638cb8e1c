"""Start the roles of a benchmark cluster, wait for them, leave none behind. Python 3.8+."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TIMED_OUT = 124  # the exit code of coreutils' timeout
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def free_port():
    """A TCP port of the loopback that nobody listens on now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def peer_python(name):
    """The interpreter of a peer's environment (setup.sh makes them)."""
    root = os.environ.get("PEERS_ENVS", "~/.cache/asyncps-peers")
    return os.path.join(os.path.expanduser(root), name, "bin", "python")


def end_on_sigterm():
    """Turn SIGTERM into SystemExit, so that `Cluster` gets to end its processes."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def die_with_parent(signum=signal.SIGKILL):
    """To be called in a new child: it gets that signal when the starting thread ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signum)


def parser(description):
    """The options that all launchers share."""
    a = argparse.ArgumentParser(description=description)
    a.add_argument("-s", "--servers", type=int, default=1)
    a.add_argument("-w", "--workers", type=int, default=1)
    a.add_argument("--timeout", type=float, default=300, help="seconds for one cluster")
    a.add_argument("--env", action="append", default=[], metavar="K=V")
    return a


def extra_env(options):
    """The --env options as a dict."""
    return dict(e.split("=", 1) for e in options.env)


class Cluster:
    """Processes by role. The first that fails ends all; leaving the block ends all."""

    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="peers-")
        self.pids_path = os.path.join(self.dir, "pids.json")
        self._procs = []  # (role, number, Popen)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        for _, _, p in self._procs:
            if p.poll() is None:
                p.kill()
            p.wait()
        shutil.rmtree(self.dir, ignore_errors=True)

    def start(self, role, count, command, env, per_rank=None, quiet=False):
        """Start `count` processes; `per_rank(i)` gives more environment. quiet: to a log."""
        for i in range(count):
            full = dict(env, PEERS_PIDS=self.pids_path, **(per_rank(i) if per_rank else {}))
            with contextlib.ExitStack() as stack:
                log = None
                if quiet:
                    log = stack.enter_context(open(self._log(role, i), "wb"))
                p = subprocess.Popen(
                    command,
                    env=full,
                    cwd=self.dir,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT if quiet else None,
                    preexec_fn=die_with_parent,
                )
            self._procs.append((role, i, p))

    def write_pids(self):
        """Tell the workers everyone's pid (see meters.wait_pids)."""
        by_role = {}
        for role, _, p in self._procs:
            by_role.setdefault(role, []).append(p.pid)
        with open(self.pids_path + ".tmp", "w") as f:
            json.dump(by_role, f)
        os.rename(self.pids_path + ".tmp", self.pids_path)

    def wait(self, timeout_s, grace_s=20):
        """0 when all ended well; else the first bad exit code, or 124 for a late process.

        Workers have `timeout_s`; the others must end within `grace_s` after the last worker.
        """
        ended = queue.Queue()
        for item in self._procs:
            threading.Thread(target=self._watch, args=(item, ended), daemon=True).start()
        left = {(role, i) for role, i, _ in self._procs}
        deadline, workers_left = time.monotonic() + timeout_s, True
        while left:
            if workers_left and not any(role == "worker" for role, _ in left):
                workers_left, deadline = False, time.monotonic() + grace_s
            try:
                role, i, p = ended.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                late = ", ".join(f"{role} {i}" for role, i in sorted(left))
                sys.stderr.write(f"timed out waiting for {late}\n")
                self._show_logs(left)
                return TIMED_OUT
            left.discard((role, i))
            if p.returncode:
                sys.stderr.write(f"{role} {i} ended with {p.returncode}\n")
                self._show_logs({(role, i)} | {x for x in left if x[0] != "worker"})
                return p.returncode if p.returncode > 0 else 128 - p.returncode
        return 0

    @staticmethod
    def _watch(item, ended):
        item[2].wait()
        ended.put(item)

    def _log(self, role, i):
        return os.path.join(self.dir, f"{role}-{i}.log")

    def _show_logs(self, which, last_bytes=3000):
        for role, i in sorted(which):
            try:
                with open(self._log(role, i), "rb") as f:
                    text = f.read()[-last_bytes:].decode(errors="replace")
            except OSError:
                continue
            if text.strip():
                sys.stderr.write(f"--- last words of {role} {i}\n{text.rstrip()}\n")
