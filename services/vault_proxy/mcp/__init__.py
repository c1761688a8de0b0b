"""Talking to MCP servers. `connection` is imported on first use: the package `mcp` costs 0.5 s and 40 MB."""
