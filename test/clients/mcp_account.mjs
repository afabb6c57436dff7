// A stock MCP client with the configuration of Claude Code: --mcp-config FILE. It has no model, and does what one is asked for
// in docs/accounts.md: it opens a session in the account, and sees who is logged in. It does so twice.
import { readFileSync } from 'node:fs'
import { Client } from '@modelcontextprotocol/sdk/client/index.js'
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js'

const [flag, file] = process.argv.slice(2)
if (flag !== '--mcp-config') throw new Error(`${flag} is no flag of this client`)
const { type, url, headers } = JSON.parse(readFileSync(file, 'utf8')).mcpServers.clawjail
if (type !== 'http') throw new Error(`a server of type ${type}`)
const client = new Client({ name: 'stock', version: '1' })
await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }))
const call = async (name, args) => {
  const { content, isError } = await client.callTool({ name, arguments: args })
  const text = content.map((one) => one.text ?? '').join('\n')
  if (isError) throw new Error(`${name}: ${text}`)
  return text
}
for (const session of ['the first', 'the second']) {
  await call('browser_open_session', { credential_mode: 'operator', domains: ['example.com'] })
  const page = await call('browser_navigate', { url: 'https://example.com/', snapshot: true })
  await call('browser_close_session', {})
  if (!page.includes('Hello alice.')) throw new Error(`${session}: ${page}`)
  console.log(`${session} session: ${page}`)
}
await client.close()
