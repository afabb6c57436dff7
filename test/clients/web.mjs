// Asks as programs for Node do that know nothing of a gateway: fetch, node:http and node:https, with events that come one by one.
import http from 'node:http'
import https from 'node:https'
import { env, equal, step } from './steps.mjs'

const plain = env('PLAIN'), secure = env('SECURE')

const read = (get, url) => new Promise((yes, no) => {
  get(url, answer => {
    let text = ''
    answer.setEncoding('utf8').on('data', chunk => { text += chunk }).on('end', () => yes(`${answer.statusCode} ${text}`)).on('error', no)
  }).on('error', no)
})
const fetched = async (url, init) => {
  const answer = await fetch(url, init)
  return `${answer.status} ${await answer.text()}`
}

// Each event is acknowledged before the server sends the next: none may wait on the way.
const events = async base => {
  const answer = await fetch(base + '/events')
  let text = ''
  for await (const chunk of answer.body) {
    text += Buffer.from(chunk)
    equal(await fetched(base + '/ack', { method: 'POST' }), '200 ', 'acknowledgement')
  }
  return text.match(/data: \w+/g).join(' ')
}

await step('fetch http', async () => equal(await fetched(plain + '/hello'), '200 hello'))
await step('fetch https', async () => equal(await fetched(secure + '/hello'), '200 hello'))
await step('http.get', async () => equal(await read(http.get, plain + '/hello'), '200 hello'))
await step('https.get', async () => equal(await read(https.get, secure + '/hello'), '200 hello'))
await step('post', async () => equal(await fetched(secure + '/echo', { method: 'POST', body: 'a body' }), '200 a body'))
await step('events http', async () => equal(await events(plain), 'data: e0 data: e1 data: e2'))
await step('events https', async () => equal(await events(secure), 'data: e0 data: e1 data: e2'))
await step('service', async () => equal(await fetched(env('API_URL') + '/hello'), '200 hello'))
