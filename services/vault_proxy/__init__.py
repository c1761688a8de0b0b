"""The vault_proxy service: calls the tools of MCP servers with credentials that only it reads."""
