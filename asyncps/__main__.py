"""`python -m asyncps` is the `asyncps` command."""

from __future__ import annotations

from asyncps.cli import main

if __name__ == "__main__":
    main()
