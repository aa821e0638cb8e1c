"""The wire without a socket: frames, control messages, the handshake, one connection's reader."""
