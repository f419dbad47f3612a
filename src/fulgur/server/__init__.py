"""Token streams to events: the Responses API over HTTP, SSE and one warm WebSocket."""
