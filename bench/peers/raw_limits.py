"""Raw limits of the machine with the same sizes: memory, and loopback TCP on blocking sockets.

    python raw_limits.py --cases 4K,16M -s 2 -w 2

ops: memcpy        numpy copyto, out of place; goodput counts n bytes copied
     add_inplace   a += b in float32; goodput counts n bytes of b added
     tcp_oneway    worker -> server, n bytes a round and a 1-byte answer; counts n
     tcp_pingpong  n bytes there and n bytes back (a push-pull with no work); counts 2 n
     tcp_duplex    both directions at once, two threads a connection; counts 2 n
     tcp_ps_floor  pingpong whose server adds into a float32 buffer first: the least that a
                   1x1 push-pull with a sum can cost in Python and numpy on blocking sockets

Over more than 1x1 pingpong and duplex: each of W worker processes exchanges the case's bytes, cut
evenly, with S server processes, one connection a pair (pingpong: one server after the other,
duplex: all at once). A case of many keys is one flat array.
Memory is measured at 1x1 with --memory. Every value that arrives is checked.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import socket
import sys
import threading
import time

import common
import numpy as np
import procs
import values

CHUNK = 1 << 20
OPS = ["tcp_oneway", "tcp_pingpong", "tcp_duplex", "tcp_ps_floor"]
fork = multiprocessing.get_context("fork")


def memory(cases: list[str]) -> None:
    """Copy and add, one stream, and two at once for the largest case."""
    for case in cases:
        n = common.case_bytes(case) // 4
        b = values.gradients([n])[0]
        a = np.zeros_like(b)
        inner = max(1, (1 << 22) // (4 * n))
        ops = {"memcpy": lambda a, b: np.copyto(a, b), "add_inplace": lambda a, b: np.add(a, b, a)}
        for op, fn in ops.items():
            fn(a, b)
            times = []
            for i in range(25):
                t = time.perf_counter()
                for _ in range(inner):
                    fn(a, b)
                if i >= 5:
                    times.append((time.perf_counter() - t) / inner)
            if op == "memcpy" and not np.array_equal(a, b):
                raise values.WrongValueError("memcpy")
            a.fill(0)
            fn(a, b)
            if not np.array_equal(a, b):
                raise values.WrongValueError(op)
            common.emit("raw", op, case, 1, 0, times, moved=4 * n)


def receive(sock: socket.socket, view: memoryview) -> None:
    """Fill the view."""
    got, n = 0, len(view)
    while got < n:
        k = sock.recv_into(view[got:], min(CHUNK, n - got))
        if not k:
            raise EOFError("the other side has gone")
        got += k


def exchange(sock: socket.socket, out: memoryview, into: memoryview) -> None:
    """Send and receive at once."""
    sender = threading.Thread(target=sock.sendall, args=(out,))
    sender.start()
    receive(sock, into)
    sender.join()


def answer(case: str, workers: int, servers: int, server: int, worker: int) -> np.ndarray:
    """What a server sends in tcp_duplex: no worker's gradient, other for each worker."""
    total = sum(common.CASES[case])
    whole = values.gradients([total], worker, workers)[0][::-1]
    return np.ascontiguousarray(np.array_split(whole, servers)[server])


def gradient(case: str, workers: int, servers: int, server: int, worker: int) -> np.ndarray:
    """What a worker sends to one server."""
    whole = values.gradients([sum(common.CASES[case])], worker, workers)[0]
    return np.ascontiguousarray(np.array_split(whole, servers)[server])


def view(array: np.ndarray) -> memoryview:
    """Its bytes."""
    return memoryview(array).cast("B")


def serve_one(sock: socket.socket, plan: list, shape: tuple, server: int, worker: int) -> None:
    """The server's end of one connection, through the whole plan."""
    workers, servers = shape
    for op, case in plan:
        want = gradient(case, workers, servers, server, worker)
        buf, acc = np.zeros_like(want), np.zeros_like(want)
        reply = answer(case, workers, servers, server, worker) if op == "tcp_duplex" else acc
        into, out = view(buf), view(reply)
        for _ in range(sum(common.rounds(case))):
            if op == "tcp_duplex":
                exchange(sock, out, into)
                continue
            receive(sock, into)
            if op == "tcp_oneway":
                sock.sendall(b"k")
            elif op == "tcp_pingpong":
                sock.sendall(into)
            else:
                np.add(acc, buf, out=acc)
                sock.sendall(out)
        if not np.array_equal(buf, want):
            raise values.WrongValueError(f"{op} {case}: server {server} from worker {worker}")
    sock.recv(1)  # stay, for the meter, until the worker goes


def checked(fn, failed: list) -> None:
    """Run in a thread; tell a failure to its owner."""
    try:
        fn()
    except BaseException as error:  # noqa: BLE001  (told to the process, which ends with it)
        failed.append(error)


def serve(listener: socket.socket, plan: list, shape: tuple, server: int) -> None:
    """One server process: a thread for each worker."""
    failed: list[BaseException] = []
    threads = []
    for _ in range(shape[0]):
        sock, _ = listener.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        worker = sock.recv(1)[0]

        def one(sock: socket.socket = sock, worker: int = worker) -> None:
            with sock:
                serve_one(sock, plan, shape, server, worker)

        threads.append(threading.Thread(target=checked, args=(one, failed)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def work(ports: list, plan: list, shape: tuple, rank: int, barrier, pids) -> None:
    """One worker process: a connection to each server, the plan in step with the others."""
    workers, servers = shape
    socks = [socket.create_connection(("127.0.0.1", port)) for port in ports]
    for sock in socks:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(bytes([rank]))
    meter = common.Meter(pids.recv()) if rank == 0 else None
    ack = memoryview(bytearray(1))
    for op, case in plan:
        grads = [gradient(case, workers, servers, s, rank) for s in range(servers)]
        outs = [np.zeros_like(g) for g in grads]
        pairs = [(sock, view(g), view(o)) for sock, g, o in zip(socks, grads, outs, strict=True)]

        def duplex(pairs: list = pairs) -> None:
            others = [threading.Thread(target=exchange, args=pair) for pair in pairs[1:]]
            for thread in others:
                thread.start()
            exchange(*pairs[0])
            for thread in others:
                thread.join()

        def there_and_back(pairs: list = pairs, op: str = op) -> None:
            for sock, out, into in pairs:
                sock.sendall(out)
                receive(sock, ack if op == "tcp_oneway" else into)

        n = common.case_bytes(case)
        moved = n if op == "tcp_oneway" else 2 * n
        one = duplex if op == "tcp_duplex" else there_and_back
        times, use = common.measure(one, case, barrier.wait, meter, workers, moved=moved)
        for s, (grad, out) in enumerate(zip(grads, outs, strict=True)):
            good = True
            if op == "tcp_pingpong":
                good = np.array_equal(out, grad)
            elif op == "tcp_duplex":
                good = np.array_equal(out, answer(case, workers, servers, s, rank))
            elif op == "tcp_ps_floor":
                good = np.allclose(out, grad * sum(common.rounds(case)), rtol=1e-4)
            if not good:
                raise values.WrongValueError(f"{op} {case}: worker {rank} from server {s}")
        common.emit("raw", op, case, workers, servers, times, use, moved=moved, rank=rank)
    barrier.wait()


def tcp(plan: list, workers: int, servers: int, timeout_s: float) -> int:
    """Start the processes, wait for them; 0 when all ended well."""
    shape = (workers, servers)
    barrier = fork.Barrier(workers)
    reader, writer = fork.Pipe(duplex=False)
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(servers)]
    ports = [x.getsockname()[1] for x in listeners]
    roles = {
        "server": [
            fork.Process(target=serve, args=(x, plan, shape, s), daemon=True)
            for s, x in enumerate(listeners)
        ],
        "worker": [
            fork.Process(target=work, args=(ports, plan, shape, r, barrier, reader), daemon=True)
            for r in range(workers)
        ],
    }
    all_procs = [p for ps in roles.values() for p in ps]
    for p in all_procs:
        p.start()
    for listener in listeners:
        listener.close()
    writer.send({role: [p.pid for p in ps] for role, ps in roles.items()})
    end = time.monotonic() + timeout_s
    left = {p.sentinel: p for p in all_procs}
    code = 0
    while left and not code:
        ready = multiprocessing.connection.wait(list(left), max(0.0, end - time.monotonic()))
        code = max([abs(left.pop(s).exitcode or 0) for s in ready], default=procs.TIMED_OUT)
    for p in left.values():
        p.kill()
    for p in all_procs:
        p.join()
    return code


def main() -> int:
    """The ops of this topology over the cases."""
    a = procs.parser(__doc__.splitlines()[0])
    a.add_argument("--cases", type=common.parse_cases, default=["4K"])
    a.add_argument("--memory", action="store_true", help="measure memory, too")
    a.add_argument("--ops", default=None, help="comma-separated; default: those of the topology")
    a = a.parse_args()
    procs.end_on_sigterm()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if a.memory:
        memory([case for case in a.cases if len(common.CASES[case]) == 1])
    single = a.workers == a.servers == 1
    ops = a.ops.split(",") if a.ops else OPS if single else OPS[1:3]
    if not set(ops) <= set(OPS):
        raise SystemExit(f"--ops: there are {OPS}")
    plan = [(op, case) for op in ops for case in a.cases]
    return tcp(plan, a.workers, a.servers, a.timeout)


if __name__ == "__main__":
    sys.exit(main())
