"""Tests of asyncps.protocol."""
