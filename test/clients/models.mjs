// Uses models with the packages of OpenAI and Anthropic, which find everything in the environment.
import OpenAI from 'openai'
import Anthropic from '@anthropic-ai/sdk'
import { env, equal, step } from './steps.mjs'

const ack = env('PLAIN') + '/ack'

// Each piece of a stream is acknowledged before the provider sends the next: none may wait on the way.
const pieces = async (stream, textOf) => {
  let text = ''
  for await (const event of stream) {
    const piece = textOf(event)
    if (!piece) continue
    text += piece
    await (await fetch(ack, { method: 'POST' })).text()
  }
  return text
}

const openai = new OpenAI({ maxRetries: 0 })
const messages = [{ role: 'user', content: 'hello' }]
await step('openai chat', async () => {
  const got = await openai.chat.completions.create({ model: 'gpt-test', messages })
  equal(got.choices[0].message.content, 'one two')
})
await step('openai chat stream', async () => {
  const stream = await openai.chat.completions.create({ model: 'gpt-test', messages, stream: true })
  equal(await pieces(stream, e => e.choices[0]?.delta?.content), 'one two')
})
await step('openai responses', async () => {
  const got = await openai.responses.create({ model: 'gpt-test', input: 'hello' })
  equal(got.output_text, 'one two')
})
await step('openai embeddings', async () => {
  const got = await openai.embeddings.create({ model: 'embed-test', input: 'hello', encoding_format: 'float' })
  equal(JSON.stringify(got.data[0].embedding), '[0.5,1]')
})

const anthropic = new Anthropic({ maxRetries: 0 })
const request = { model: 'claude-test', max_tokens: 100, messages }
await step('anthropic messages', async () => {
  const got = await anthropic.messages.create(request)
  equal(got.content[0].text, 'one two')
})
await step('anthropic stream', async () => {
  const stream = await anthropic.messages.create({ ...request, stream: true })
  equal(await pieces(stream, e => e.type === 'content_block_delta' && e.delta.text), 'one two')
})
