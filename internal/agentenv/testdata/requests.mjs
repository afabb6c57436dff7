// Asks for things the way programs do, with what a payload gave it and nothing else. Prints a line of JSON per step.
import http from 'node:http';
import https from 'node:https';
import { get as namedGet } from 'node:https';

const { PLAIN, SECURE, REFUSED, DIRECT, STEPS } = process.env;
const wanted = STEPS ? new Set(STEPS.split(',')) : undefined;

async function step(name, run) {
  if (wanted && !wanted.has(name)) return;
  let line;
  try {
    line = { step: name, answer: String(await run()) };
  } catch (err) {
    const causes = [];
    for (let e = err; e && causes.length < 5; e = e.cause) causes.push(`${e.message} ${e.code ?? ''}`);
    line = { step: name, error: causes.join('\n') };
  }
  console.log(JSON.stringify(line));
}

const read = (get, url, options = {}) =>
  new Promise((resolve, reject) => {
    get(url, options, (answer) => {
      let text = '';
      answer.setEncoding('utf8').on('data', (chunk) => (text += chunk)).on('end', () => resolve(`${answer.statusCode} ${text}`)).on('error', reject);
    }).on('error', reject);
  });

const send = (request, url, options, body) =>
  new Promise((resolve, reject) => {
    const r = request(url, options, (answer) => {
      let text = '';
      answer.setEncoding('utf8').on('data', (chunk) => (text += chunk)).on('end', () => resolve(`${answer.statusCode} ${text}`));
    }).on('error', reject);
    r.on('continue', () => r.end(body));
    if (!options.headers?.expect) r.end(body);
  });

const fetched = async (url, init) => {
  const answer = await fetch(url, init);
  return `${answer.status} ${await answer.text()}`;
};

// events reads server-sent events, and acknowledges each before the server sends the next: none may wait in a buffer.
async function events(base) {
  const answer = await fetch(base + '/events');
  let text = '';
  for await (const chunk of answer.body) {
    text += Buffer.from(chunk).toString();
    await fetch(base + '/ack', { method: 'POST' });
  }
  return text.match(/data: \w+/g).join(' ');
}

async function aborted(base) {
  const controller = new AbortController();
  const answer = await fetch(base + '/endless', { signal: controller.signal });
  const reader = answer.body.getReader();
  await reader.read();
  controller.abort();
  try {
    for (;;) if ((await reader.read()).done) return 'ended';
  } catch (err) {
    return err.name;
  }
}

const stream = (...parts) => new ReadableStream({
  start(c) {
    for (const p of parts) c.enqueue(new TextEncoder().encode(p));
    c.close();
  },
});

await step('fetch http', () => fetched(PLAIN + '/path?q=1'));
await step('fetch https', () => fetched(SECURE + '/path?q=1'));
await step('http.get', () => read(http.get, PLAIN + '/path?q=1'));
await step('https.get', () => read(https.get, SECURE + '/path?q=1'));
await step('named get', () => read(namedGet, SECURE + '/path?q=1'));
await step('post', () => fetched(SECURE + '/echo', { method: 'POST', body: 'hello' }));
await step('post plain', () => fetched(PLAIN + '/echo', { method: 'POST', body: 'hello', headers: { 'x-own': 'a' } }));
await step('post stream', () => fetched(SECURE + '/echo', { method: 'POST', body: stream('a', 'b', 'c'), duplex: 'half' }));
await step('post stream plain', () => fetched(PLAIN + '/echo', { method: 'POST', body: stream('a', 'b', 'c'), duplex: 'half' }));
await step('events http', () => events(PLAIN));
await step('events https', () => events(SECURE));
await step('abort http', () => aborted(PLAIN));
await step('abort https', () => aborted(SECURE));
await step('head', () => fetched(PLAIN + '/path', { method: 'HEAD' }));
await step('gzip', () => fetched(SECURE + '/gzip'));
await step('redirect', () => fetched(PLAIN + '/redirect'));
await step('many', async () => new Set(await Promise.all(Array.from({ length: 20 }, (_, n) => fetched((n % 2 ? PLAIN : SECURE) + '/path?q=1')))).size);
await step('many http', async () => new Set(await Promise.all(Array.from({ length: 20 }, () => read(https.get, SECURE + '/path?q=1')))).size);
await step('fetch direct', () => fetched(DIRECT + '/path?q=1'));
await step('http.get direct', () => read(http.get, DIRECT + '/path?q=1'));
await step('fetch refused', () => fetched(REFUSED));
await step('https.get refused', () => read(https.get, REFUSED));
await step('raw headers', () => send(http.request, PLAIN + '/path?q=1', { headers: ['host', new URL(PLAIN).host, 'x-own', 'a'] }, ''));
await step('expect', () => send(http.request, PLAIN + '/echo', { method: 'POST', headers: { expect: '100-continue' } }, 'hello'));
await step('own https agent', () => read(https.get, SECURE + '/path?q=1', { agent: new https.Agent({ keepAlive: false }) }));
await step('own http agent', () => read(http.get, PLAIN + '/path?q=1', { agent: new http.Agent({ keepAlive: false }) }));
await step('no agent', () => read(https.get, SECURE + '/path?q=1', { agent: false }));
