"""Every message between the controller and a fork server, which takes an `Order` at a time and answers by `Notice`s."""

from multiprocessing import reduction
from multiprocessing.connection import Connection
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
NOTICE: TypeAdapter[Notice] = TypeAdapter(Notice)


def receive_order(control: Connection) -> tuple[Order, int]:
    """Return the next order and the descriptor that came with it. Raises EOFError or OSError when the controller is
    gone."""
    order = _ORDER.validate_json(control.recv_bytes())
    return order, -1 if isinstance(order, Preload) else reduction.recv_handle(control)
