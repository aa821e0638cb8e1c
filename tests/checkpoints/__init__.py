"""Checkpoints of cluster stores."""
