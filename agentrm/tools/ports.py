"""Free ports for environments."""

from __future__ import annotations

import socket

__all__ = ["free_ports"]


def free_ports(count: int, taken: set[int]) -> tuple[int, ...]:
    """Ports on which nobody listens now, on loopback, and that none of our environments has."""
    sockets: list[socket.socket] = []
    try:
        while len(sockets) < count:
            one = socket.socket()
            one.bind(("127.0.0.1", 0))
            if one.getsockname()[1] in taken:
                one.close()
                continue
            sockets.append(one)
        return tuple(one.getsockname()[1] for one in sockets)
    finally:
        for one in sockets:
            one.close()
