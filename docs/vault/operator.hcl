path "auth/approle/role/vault-proxy/role-id" { capabilities = ["read"] }
path "auth/approle/role/vault-proxy/secret-id" { capabilities = ["update"], min_wrapping_ttl = "1s", max_wrapping_ttl = "10m" }
