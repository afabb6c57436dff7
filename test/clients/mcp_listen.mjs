// A stock MCP client that listens: it prints its tools when it has connected, and again whenever it hears that they have changed.
import { Client } from '@modelcontextprotocol/sdk/client/index.js'
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js'
import { ToolListChangedNotificationSchema } from '@modelcontextprotocol/sdk/types.js'

const [url, key] = process.argv.slice(2)
const client = new Client({ name: 'listener', version: '1' })
const show = async () => console.log(JSON.stringify((await client.listTools()).tools.map((tool) => tool.name)))
client.setNotificationHandler(ToolListChangedNotificationSchema, show)
await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers: { Authorization: `Bearer ${key}` } } }))
if (!client.getServerCapabilities().tools.listChanged) throw new Error('the server says that its tools do not change')
await show()
process.stdin.resume().on('end', () => process.exit(0))
