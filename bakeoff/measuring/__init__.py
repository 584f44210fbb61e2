"""One contest measured: the messages, the controller that directs it, and the worker in which a cell lives."""
