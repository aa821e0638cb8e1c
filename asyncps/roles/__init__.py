"""The three roles: they turn events of the protocol into calls of pure state machines."""
