// What every script of a stock client needs: its settings, and a report of one JSON object a line.
export const env = name => {
  const value = process.env[name]
  if (value === undefined) throw new Error(`${name} is not set`)
  return value
}

let failed = 0

// step does one thing and says how it went.
export async function step(name, what) {
  const began = performance.now()
  let line = { step: name, ok: true }
  try {
    const note = await what()
    if (note !== undefined) line.note = note
  } catch (error) {
    failed++
    line = { step: name, ok: false, error: String(error && error.stack || error).slice(0, 1500) }
  }
  line.ms = Math.round(performance.now() - began)
  console.log(JSON.stringify(line))
}

// attempt does what may be refused, and reports what came of it without judging.
export async function attempt(name, what) {
  let line
  try {
    line = { attempt: name, answered: true, answer: JSON.stringify(await bounded(what())) ?? 'undefined' }
  } catch (error) {
    line = { attempt: name, answered: false, error: String(error && error.message || error).slice(0, 500) }
  }
  if (line.answer && line.answer.length > 4000) line.answer = line.answer.slice(0, 4000)
  console.log(JSON.stringify(line))
}

export const bounded = (promise, ms = 8000) => Promise.race([
  promise, new Promise((_, no) => setTimeout(() => no(new Error('no answer')), ms).unref())])

export function equal(got, want, what = 'value') {
  if (got !== want) throw new Error(`${what} is ${JSON.stringify(got)}, not ${JSON.stringify(want)}`)
}

export function check(condition, what) {
  if (!condition) throw new Error(what)
}

export const done = () => process.exit(failed ? 1 : 0)

// file asks the control plane for a file of the session.
export async function file(name) {
  const answer = await fetch(`${env('API')}/v1/sessions/${env('SESSION')}/files/${encodeURIComponent(name)}`,
    { headers: { Authorization: `Bearer ${env('KEY')}` } })
  if (!answer.ok) throw new Error(`${name}: ${answer.status} ${await answer.text()}`)
  return Buffer.from(await answer.arrayBuffer())
}

export async function put(name, bytes) {
  const answer = await fetch(`${env('API')}/v1/sessions/${env('SESSION')}/files/${encodeURIComponent(name)}`,
    { method: 'PUT', body: bytes, headers: { Authorization: `Bearer ${env('KEY')}`, 'Content-Type': 'application/octet-stream' } })
  if (!answer.ok) throw new Error(`${name}: ${answer.status} ${await answer.text()}`)
}

// raw is a client of nobody's make: it says what it is told, on the browser's own session where none is named.
export async function raw(url) {
  const socket = new WebSocket(url)
  await new Promise((yes, no) => { socket.onopen = yes; socket.onerror = () => no(new Error('no connection')) })
  const waiting = new Map()
  const listeners = []
  let last = 0
  socket.onmessage = ({ data }) => {
    const message = JSON.parse(data)
    if (message.id !== undefined) {
      const [yes, no] = waiting.get(message.id) ?? []
      waiting.delete(message.id)
      message.error ? no?.(new Error(message.error.message)) : yes?.(message.result)
    } else listeners.forEach(l => l(message))
  }
  socket.onclose = () => waiting.forEach(([, no]) => no(new Error('the connection was closed')))
  return {
    send: (method, params = {}, sessionId = undefined) => new Promise((yes, no) => {
      waiting.set(++last, [yes, no])
      socket.send(JSON.stringify({ id: last, method, params, sessionId }))
    }),
    say: text => socket.send(text),
    on: (method, listener) => listeners.push(m => m.method === method && listener(m.params)),
    close: () => socket.close(),
  }
}
