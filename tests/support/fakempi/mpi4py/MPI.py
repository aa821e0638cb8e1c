"""COMM_WORLD of processes that share the directory FAKE_MPI, with bytes only."""

from __future__ import annotations

import os
import time
from pathlib import Path


class _World:
    def __init__(self) -> None:
        self._rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
        self._size = int(os.environ.get("FAKE_MPI_SIZE") or os.environ["OMPI_COMM_WORLD_SIZE"])
        self._number = 0

    def Get_rank(self) -> int:
        return self._rank

    def Get_size(self) -> int:
        return self._size

    def Allgather(self, mine: bytearray, everybody: bytearray) -> None:
        self._number += 1
        self._put(mine)
        for rank in range(self._size):
            begin = rank * len(mine)
            everybody[begin : begin + len(mine)] = self._get(rank, len(mine))

    def Bcast(self, data: bytearray, root: int) -> None:
        self._number += 1
        if self._rank == root:
            self._put(data)
        else:
            data[:] = self._get(root, len(data))

    def _path(self, rank: int) -> Path:
        return Path(os.environ["FAKE_MPI"]) / f"{self._number}-{rank}"

    def _put(self, data: bytearray) -> None:
        aside = self._path(self._rank).with_suffix(".part")
        aside.write_bytes(data)
        aside.rename(self._path(self._rank))

    def _get(self, rank: int, size: int) -> bytes:
        while not self._path(rank).exists():
            time.sleep(0.01)
        found = self._path(rank).read_bytes()
        assert len(found) == size
        return found


COMM_WORLD = _World()
