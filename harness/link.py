"""Messages between the parent and the child of a cell: JSON over a pipe of their own."""

from __future__ import annotations

import json
from multiprocessing.connection import Connection
from typing import Any

Message = dict[str, Any]


def send(connection: Connection, kind: str, **fields: Any) -> None:
    """Send one message. Raises OSError (BrokenPipeError) when the other side is gone."""
    connection.send_bytes(json.dumps({"kind": kind, **fields}).encode())


def receive(connection: Connection) -> Message:
    """The next message; blocks. Raises EOFError or OSError when the other side is gone."""
    message: Message = json.loads(connection.recv_bytes())
    return message
