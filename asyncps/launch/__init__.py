"""Launchers: one file each; `local` is the first."""

from __future__ import annotations

from asyncps.launch.course import Deadlines
from asyncps.launch.local import LocalJob, launch_local

__all__ = ["Deadlines", "LocalJob", "launch_local"]
