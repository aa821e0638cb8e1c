"""Channels that carry frames: TCP on the event loop, and its twin inside one process."""
