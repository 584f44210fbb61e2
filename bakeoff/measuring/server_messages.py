"""Every message between the controller and a fork server, which takes an `Order` at a time and answers by `Notice`s."""

import array
import socket
from typing import Annotated

from pydantic import Field, TypeAdapter

from bakeoff.measuring.messages import Assignment, Message


class Preload(Message):
    """Import these modules before another worker is forked. It is answered by `Preloaded`."""

    modules: tuple[str, ...]
    for_cuda: bool = False  # workers will use CUDA: what the modules find out about GPUs must hold for them


class Branch(Message):
    """Fork a server that imports these modules, too. It takes its orders from the socket that comes along, and says
    `Preloaded` there when it can fork workers."""

    modules: tuple[str, ...]
    for_cuda: bool = False  # as in `Preload`


Order = Annotated[Assignment | Preload | Branch, Field(discriminator="kind")]


class Serving(Message):
    """The fork server has imported torch, and can fork."""


class Preloaded(Message):
    modules: tuple[str, ...]  # those that could be imported


class Forked(Message):
    pid: int


class Exited(Message):
    pid: int
    status: int  # exit code, or minus the number of the signal


Notice = Annotated[Serving | Preloaded | Forked | Exited, Field(discriminator="kind")]

_ORDER: TypeAdapter[Order] = TypeAdapter(Order)
_NOTICE: TypeAdapter[Notice] = TypeAdapter(Notice)


def send_order(control: socket.socket, order: Order, *descriptors: int) -> None:
    """Send an order to a fork server, with file descriptors for the worker. Raises OSError when the server is gone."""
    body = order.model_dump_json().encode()
    socket.send_fds(control, [array.array("I", [len(body)]).tobytes()], descriptors)
    control.sendall(body)


def receive_order(control: socket.socket) -> tuple[Order, list[int]] | None:
    """Return the next order and the descriptors that came with it, or None when the controller is gone."""
    size = array.array("I")
    try:
        header, descriptors, _, _ = socket.recv_fds(control, size.itemsize, 1)
        if len(header) < size.itemsize:
            return None
        size.frombytes(header)
        body = b""
        while len(body) < size[0]:
            part = control.recv(size[0] - len(body))
            if not part:
                return None
            body += part
    except OSError:
        return None
    return _ORDER.validate_json(body), descriptors


def notice_line(notice: Notice) -> bytes:
    """Return a fork server's notice as a line to send."""
    return notice.model_dump_json().encode() + b"\n"


def parse_notice(line: bytes) -> Notice:
    return _NOTICE.validate_json(line)
