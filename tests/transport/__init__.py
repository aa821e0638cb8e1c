"""Tests of asyncps.transport."""
