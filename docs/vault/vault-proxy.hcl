path "handmesh/data/tenants/+/vaults/*" { capabilities = ["create", "update", "patch", "read"] }
path "handmesh/data/tenants/+/requests/*" { capabilities = ["create", "update", "read"] }
path "handmesh/data/tenants/+/secrets/*" { capabilities = ["create", "update", "patch"] }
path "handmesh/data/tenants/+/connections/*" { capabilities = ["create", "update", "read"] }
path "handmesh/destroy/tenants/*" { capabilities = ["update"] }
path "handmesh/metadata/tenants/*" { capabilities = ["read", "list", "delete"] }
path "auth/token/renew-self" { capabilities = ["update"] }
