"""What the tests share: a TCP proxy for faults, real processes, and the leak check."""
