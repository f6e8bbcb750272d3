# SPDX-License-Identifier: Apache-2.0
"""What both ends of a connection to a standing worker do: addresses, secrets and messages. Control messages are JSON."""

from __future__ import annotations

import json
import os
import socket
import struct
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from atomo import Error

ADDRESS = "127.0.0.1:15387"
PATIENCE = 30  # seconds for an answer, before a job runs
_LEAST_SECRET = 16  # bytes
# Seconds without a sign of life until the other end is asked, between questions, and questions: it is given up after a minute.
_KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))


def address_of(text: str) -> tuple[str, int]:
    """(host, port) of "HOST:PORT"."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 <= int(port) < 65536:
        raise Error(f"'{text}' is no address: write HOST:PORT, as {ADDRESS}")
    return host, int(port)


def secret_of(path: str | os.PathLike[str]) -> bytes:
    """The secret in a file that nobody but its owner can read."""
    try:
        shared = os.stat(path).st_mode & 0o077
        secret = Path(path).read_bytes().strip()
    except OSError as error:
        raise Error(f"secret: cannot read '{os.fspath(path)}': {error.strerror}") from error
    if shared:
        raise Error(f"secret: others can read '{os.fspath(path)}'; chmod 600 makes it yours alone")
    if len(secret) < _LEAST_SECRET:
        raise Error(f"secret: '{os.fspath(path)}' has {len(secret)} bytes, at least {_LEAST_SECRET} are wanted")
    return secret


def hosts_of(path: str | os.PathLike[str]) -> list[tuple[str, int]]:
    """The workers of a host file, `{"workers": ["127.0.0.1:15387", ...]}`."""
    try:
        workers = json.loads(Path(path).read_text(encoding="utf-8"))["workers"]
        return [address_of(worker) for worker in workers]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise Error(f"workers: '{os.fspath(path)}' is no host file ({error}); it holds "
                    f'{{"workers": ["{ADDRESS}"]}}') from error


def say(connection: Connection, **message: Any) -> None:
    connection.send_bytes(json.dumps(message).encode())


def hear(connection: Connection) -> dict[str, Any]:
    return dict(json.loads(connection.recv_bytes()))


def limit(connection: Connection, seconds: float) -> None:
    """Reading and writing fail with OSError after `seconds` in which nothing moves; 0: after a minute without a sign of life
    from the other machine, however long its process is silent."""
    time = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
    with socket.socket(fileno=os.dup(connection.fileno())) as handle:
        handle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, time)
        handle.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, time)
        handle.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEP_ALIVE:
            handle.setsockopt(socket.IPPROTO_TCP, option, value)
