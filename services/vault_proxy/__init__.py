"""vault_proxy: MCP tools called with credentials that nobody else can read."""
