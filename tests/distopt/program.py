"""What each worker of a launched job runs: all ways to update, written to a file of its rank."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from asyncps import optim
from asyncps.distopt import DistOpt
from tests.distopt.ways import UPDATES, trained


def main() -> None:
    with DistOpt(optim.SGD()) as opt:  # of the environment
        comm = opt.communicator
        found = {name: np.concatenate([each.ravel() for each in trained(comm, name)])
                 for name in UPDATES}
        np.savez(Path(sys.argv[1]) / f"{opt.global_rank}.npz", **found)


if __name__ == "__main__":
    main()
