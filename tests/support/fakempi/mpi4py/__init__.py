"""Stands for mpi4py where there is none: the few words that asyncps says to it, over files."""
