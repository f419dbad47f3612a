"""A small real MCP server over stdio, for the tests."""

import os

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


if __name__ == "__main__":
    server.run("stdio")
