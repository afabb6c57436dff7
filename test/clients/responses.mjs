// Ten turns of OpenAI's Responses API with a tool and a model that reasons, with each of the clients that agents are made with.
// Each turn is a question, a call of the tool, and an answer that says what the model has seen so far. The steps' notes are the last answers.
import OpenAI from 'openai'
import { createOpenAI } from '@ai-sdk/openai'
import { generateText, streamText, tool, jsonSchema, isStepCount } from 'ai'
import { Agent, Runner, OpenAIProvider, tool as agentTool } from '@openai/agents'
import { env, step, done } from './steps.mjs'

const baseURL = env('BASE') + '/v1'
const apiKey = 'none'
const turns = 10
const parameters = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'], additionalProperties: false }
const question = n => `How warm is it in Bern? (${n})`

const openai = new OpenAI({ baseURL, apiKey, maxRetries: 0 })
const tools = [{ type: 'function', name: 'weather', parameters, strict: true }]
const outputs = response => response.output.filter(i => i.type === 'function_call').map(i => ({ type: 'function_call_output', call_id: i.call_id, output: '21' }))
const ask = async (stream, request) => {
  if (!stream) return await openai.responses.create(request)
  return await openai.responses.stream(request).finalResponse()
}

// The loop of OpenAI's guide to function calling: what came is put behind what was sent.
const loop = async (stream, model) => {
  let input = [], response
  for (let n = 0; n < turns; n++) {
    input.push({ role: 'user', content: question(n) })
    do {
      response = await ask(stream, { model, tools, input })
      input = input.concat(response.output, outputs(response))
    } while (outputs(response).length)
  }
  return response.output_text
}

// The guide to the state of a conversation: the last response is named, and only what is new is sent.
const previous = async (stream, model) => {
  let response
  for (let n = 0; n < turns; n++) {
    let input = question(n)
    do {
      response = await ask(stream, { model, tools, input, previous_response_id: response?.id })
      input = outputs(response)
    } while (input.length)
  }
  return response.output_text
}

const vercel = createOpenAI({ baseURL, apiKey })
const sdk = store => async (stream, model) => {
  const request = {
    model: vercel.responses(model), maxRetries: 0, stopWhen: isStepCount(5), providerOptions: { openai: { store, reasoningSummary: 'auto' } },
    tools: { weather: tool({ inputSchema: jsonSchema(parameters), execute: async () => '21' }) },
  }
  const messages = []
  let text
  for (let n = 0; n < turns; n++) {
    messages.push({ role: 'user', content: question(n) })
    let failure
    const result = stream ? streamText({ ...request, messages, onError: ({ error }) => { failure = error } }) : await generateText({ ...request, messages })
    try { text = await result.text } catch (error) { throw failure ?? error }
    if (failure) throw failure
    messages.push(...(await result.responseMessages))
  }
  return text
}

const runner = new Runner({ modelProvider: new OpenAIProvider({ baseURL, apiKey, useResponses: true }), tracingDisabled: true })
const agents = chained => async (stream, model) => {
  const agent = new Agent({
    name: 'a', model, tools: [agentTool({ name: 'weather', description: 'the weather', parameters, strict: true, execute: async () => '21' })],
  })
  let history = [], previousResponseId, result
  for (let n = 0; n < turns; n++) {
    const message = { role: 'user', content: question(n) }
    result = chained ? await runner.run(agent, [message], { stream, previousResponseId }) : await runner.run(agent, [...history, message], { stream })
    if (stream) { for await (const event of result) void event; await result.completed }
    history = result.history
    previousResponseId = result.lastResponseId
  }
  return result.finalOutput
}

for (const model of env('MODELS').split(' ')) {
  for (const stream of [false, true]) {
    const name = what => `${what}, ${model}, ${stream ? 'a stream' : 'whole'}`
    await step(name('the guide\'s loop'), () => loop(stream, model))
    await step(name('the guide\'s previous response'), () => previous(stream, model))
    await step(name('@ai-sdk/openai'), () => sdk(undefined)(stream, model))
    await step(name('@ai-sdk/openai that keeps nothing'), () => sdk(false)(stream, model))
    await step(name('@openai/agents'), () => agents(false)(stream, model))
    await step(name('@openai/agents with the previous response'), () => agents(true)(stream, model))
  }
}
done()
