"""A small real MCP server for the tests: over stdio, or with a port as its argument over HTTP."""

import os
import sys

from mcp.server import MCPServer

server = MCPServer("testing")


@server.tool()
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return f"{a + b} {os.environ.get('GREETING', '')}"


@server.tool()
def broken() -> str:
    """Always fails."""
    raise ValueError("out of order")


@server.tool()
def long() -> str:
    """More than a model should read."""
    return "begin" + "." * 100_000 + "end"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run("stdio")
