// The certified authorization server `oidc-provider` with what an MCP client needs: registration, resource indicators,
// rotating refresh tokens with reuse detection, revocation, introspection, and its own pages to log in and to agree.
//
//   node authorization_server.mjs PEERS PORT RESOURCE INTROSPECTOR_SECRET
//
// It says on standard output which grants it has given and refused, one JSON object a line, and no token.
import path from 'node:path';
import { pathToFileURL } from 'node:url';

const [peers, port, resource, secret] = process.argv.slice(2);
const library = path.join(peers, 'node_modules', 'oidc-provider', 'lib', 'index.js');
const { Provider, errors } = await import(pathToFileURL(library));

const say = (what) => process.stdout.write(`${JSON.stringify(what)}\n`);
const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [
    {
      client_id: 'mcp-server',
      client_secret: secret,
      redirect_uris: [],
      grant_types: [],
      response_types: [],
    },
  ],
  cookies: { keys: ['of this run only'] },
  scopes: ['openid', 'offline_access', 'read', 'write'],
  pkce: { required: () => true },
  rotateRefreshToken: true,
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
  ttl: { AccessToken: 3600, Grant: 86400, Interaction: 600, RefreshToken: 86400, Session: 600 },
  features: {
    devInteractions: { enabled: true },
    registration: { enabled: true },
    introspection: { enabled: true },
    revocation: { enabled: true },
    resourceIndicators: {
      enabled: true,
      getResourceServerInfo: (_, indicator) => {
        if (indicator !== resource) throw new errors.InvalidTarget();
        return { scope: 'read write', audience: resource, accessTokenTTL: 3600, accessTokenFormat: 'opaque' };
      },
    },
  },
});
provider.on('grant.success', (ctx) => say({ granted: ctx.oidc.params.grant_type }));
provider.on('grant.error', (ctx, problem) => say({ refused: ctx.oidc.params?.grant_type, error: problem.error }));
provider.on('grant.revoked', () => say({ revoked: true }));
provider.on('server_error', (_, problem) => say({ broken: String(problem.stack) }));
provider.listen(Number(port), '127.0.0.1');
