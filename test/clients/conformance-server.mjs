// The tools, resources and prompts that @modelcontextprotocol/conformance asks of a server, over standard input and output. It runs in a jail.
import { Server } from '@modelcontextprotocol/sdk/server/index.js'
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js'
import {
  CallToolRequestSchema, CompleteRequestSchema, GetPromptRequestSchema, ListPromptsRequestSchema, ListResourcesRequestSchema, ListResourceTemplatesRequestSchema,
  ListToolsRequestSchema, ReadResourceRequestSchema,
} from '@modelcontextprotocol/sdk/types.js'

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

const resources = {
  'test://static-text': { mimeType: 'text/plain', text: 'This is the content of the static text resource.' },
  'test://static-binary': { mimeType: 'image/png', blob: png },
}

const user = (content) => ({ role: 'user', content })
const prompts = {
  test_simple_prompt: { answer: () => [user(text('This is a simple prompt for testing.'))] },
  test_prompt_with_arguments: { takes: ['arg1', 'arg2'], answer: ({ arg1, arg2 }) => [user(text(`Prompt with arguments: arg1='${arg1}', arg2='${arg2}'`))] },
  test_prompt_with_embedded_resource: {
    takes: ['resourceUri'],
    answer: ({ resourceUri }) => [user(resource(resourceUri, 'text/plain', 'Embedded resource content for testing.')), user(text('Please process the embedded resource above.'))],
  },
  test_prompt_with_image: { answer: () => [user(image), user(text('Please analyze the image above.'))] },
}

const server = new Server({ name: 'conformance', version: '1' }, { capabilities: { tools: {}, resources: {}, prompts: {}, completions: {} } })
server.setRequestHandler(ListToolsRequestSchema, () => ({
  tools: Object.keys(answers).map((name) => ({ name, description: name, inputSchema: schemas[name] ?? { type: 'object' } })),
}))
server.setRequestHandler(CallToolRequestSchema, (request, extra) => answers[request.params.name](request, extra))
server.setRequestHandler(ListResourcesRequestSchema, () => ({
  resources: Object.keys(resources).map((uri) => ({ uri, name: uri, description: uri, mimeType: resources[uri].mimeType })),
}))
server.setRequestHandler(ListResourceTemplatesRequestSchema, () => ({
  resourceTemplates: [{ uriTemplate: 'test://template/{id}/data', name: 'template', description: 'template', mimeType: 'application/json' }],
}))
server.setRequestHandler(ReadResourceRequestSchema, ({ params: { uri } }) => {
  const id = uri.match(/^test:\/\/template\/(.+)\/data$/)?.[1]
  const found = id ? { mimeType: 'application/json', text: JSON.stringify({ id, templateTest: true, data: `Data for ID: ${id}` }) } : resources[uri]
  if (!found) throw Object.assign(new Error('there is no such resource'), { code: -32002 })
  return { contents: [{ uri, ...found }] }
})
server.setRequestHandler(ListPromptsRequestSchema, () => ({
  prompts: Object.keys(prompts).map((name) => ({
    name, description: name, arguments: prompts[name].takes?.map((name) => ({ name, description: name, required: true })),
  })),
}))
server.setRequestHandler(GetPromptRequestSchema, ({ params }) => ({ messages: prompts[params.name].answer(params.arguments ?? {}) }))
server.setRequestHandler(CompleteRequestSchema, ({ params }) => ({ completion: { values: ['paris', 'park', 'party'].filter((v) => v.startsWith(params.argument.value)), hasMore: false } }))
await server.connect(new StdioServerTransport())
