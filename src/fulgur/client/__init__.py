"""Events to objects over one warm socket; the agent, the apps and the tests use this and nothing else."""

from fulgur.client.connection import Connection
from fulgur.client.stream import ResponseStream

__all__ = ["Connection", "ResponseStream"]
