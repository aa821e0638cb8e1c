"""Pure state machines: who is a member, where keys live, what workers agreed on, rounds.

Nothing here waits, reads a clock or touches a socket: events come in as calls with `now`, and
instructions go out as plain values that a role carries out.
"""
