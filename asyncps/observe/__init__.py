"""Seeing what a job does: its status, metrics, and what this machine offers."""
