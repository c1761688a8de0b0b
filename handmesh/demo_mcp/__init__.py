"""A real MCP server for the demo and for tests: a small shop that wants a bearer token and counts its calls."""
