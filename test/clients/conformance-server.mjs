// The tools that @modelcontextprotocol/conformance asks of a server, over standard input and output. It runs in a jail.
import { Server } from '@modelcontextprotocol/sdk/server/index.js'
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js'
import { CallToolRequestSchema, ListToolsRequestSchema } from '@modelcontextprotocol/sdk/types.js'

const png = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=='
const wav = 'UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA='
const text = (text) => ({ type: 'text', text })
const image = { type: 'image', data: png, mimeType: 'image/png' }
const resource = (uri, mimeType, text) => ({ type: 'resource', resource: { uri, mimeType, text } })

const answers = {
  test_simple_text: () => ({ content: [text('This is a simple text response for testing.')] }),
  test_image_content: () => ({ content: [image] }),
  test_audio_content: () => ({ content: [{ type: 'audio', data: wav, mimeType: 'audio/wav' }] }),
  test_embedded_resource: () => ({ content: [resource('test://embedded-resource', 'text/plain', 'This is an embedded resource content.')] }),
  test_multiple_content_types: () => ({
    content: [text('Multiple content types test:'), image, resource('test://mixed', 'application/json', '{"test":"data","value":123}')],
  }),
  test_error_handling: () => ({ isError: true, content: [text('This tool intentionally returns an error for testing')] }),
  test_tool_with_progress: async (request, extra) => {
    const progressToken = request.params._meta?.progressToken
    for (const progress of [0, 50, 100]) {
      if (progressToken !== undefined) {
        await extra.sendNotification({ method: 'notifications/progress', params: { progressToken, progress, total: 100 } })
      }
      await new Promise((done) => setTimeout(done, 50))
    }
    return { content: [text('done')] }
  },
  json_schema_2020_12_tool: () => ({ content: [text('done')] }),
}

const schemas = {
  json_schema_2020_12_tool: {
    $schema: 'https://json-schema.org/draft/2020-12/schema',
    type: 'object',
    $defs: { address: { type: 'object', properties: { street: { type: 'string' }, city: { type: 'string' } } } },
    properties: { name: { type: 'string' }, address: { $ref: '#/$defs/address' } },
    additionalProperties: false,
  },
}

const server = new Server({ name: 'conformance', version: '1' }, { capabilities: { tools: {} } })
server.setRequestHandler(ListToolsRequestSchema, () => ({
  tools: Object.keys(answers).map((name) => ({ name, description: name, inputSchema: schemas[name] ?? { type: 'object' } })),
}))
server.setRequestHandler(CallToolRequestSchema, (request, extra) => answers[request.params.name](request, extra))
await server.connect(new StdioServerTransport())
