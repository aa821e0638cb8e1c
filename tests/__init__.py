"""The tests of asyncps: one folder a package, tests/support for what they share."""
