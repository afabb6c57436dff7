// A script of an agent's that does all it can to see what an operator types, and an operator who takes the browser over.
import { chromium } from 'playwright-core'
import { equal, check, env, done } from './steps.mjs'
import { scene, openBrowser, signIn, Picture, until, call, must, shot, consoleURL } from './operator.mjs'

const site = env('SITE'), secret = 'hunter2-' + Math.random().toString(36).slice(2)
const agentName = 'listener' + Date.now()
const browser = await openBrowser()
const context = await browser.newContext({ viewport: { width: 1400, height: 1000 } })
const heard = []
let agent, client, page, opener, session, token, operator, picture, running

const listen = () => {
  window.__keys = []
  for (const kind of ['keydown', 'keypress', 'input', 'beforeinput']) addEventListener(kind, event => { window.__keys.push(kind + event.key + event.data); window.__tell?.(location.href + ' ' + kind + ' ' + (event.key ?? event.data)) }, true)
}

await scene('an agent opens a session, and its script listens wherever it can', async () => {
  agent = await must('POST', '/v1/agents', { name: agentName })
  const { key } = agent
  await must('PUT', `/v1/agents/${agentName}/settings`, { browser: 'open' })
  session = await must('POST', '/v1/sessions', { record: 'audit', access: 'cdp' }, key)
  token = await must('POST', `/v1/sessions/${session.id}/tokens`, { scope: 'cdp' }, key)
  client = await chromium.connectOverCDP(token.cdp_url)
  const inside = client.contexts()[0]
  await inside.exposeBinding('__tell', (_, text) => { heard.push(text) })
  await inside.addInitScript(listen)
  opener = inside.pages()[0] ?? await inside.newPage()
  await opener.goto(site + '/still')
  const popup = opener.waitForEvent('popup')
  await opener.evaluate(url => { window.child = window.open(url) }, site + '/fields')
  page = await popup
  await page.waitForLoadState()
  await page.evaluate(listen)
  // The opener reaches into the page that it has opened, again and again.
  await opener.evaluate(() => { setInterval(() => { try { if (!child.__caught) { child.__caught = []; child.addEventListener('keydown', e => { child.__caught.push(e.key); __tell('opener ' + e.key) }, true) } } catch {} }, 50) })
  await page.bringToFront()
})
await scene('its ears are good: they hear the agent\'s own keys', async () => {
  await page.click('input')
  await page.keyboard.type('own')
  await until('the agent\'s own keys', () => heard.some(h => h.includes('keydown o')) && heard.some(h => h.startsWith('opener ')))
  await page.fill('input', '')
  await until('the last of them', () => heard.some(h => h.includes('input null')))
  heard.length = 0
})
await scene('an operator looks on', async () => {
  operator = await signIn(context, { next: `/console/sessions/${session.id}` })
  picture = await new Picture(operator).seen()
  await until('who drives', async () => (await picture.who()).includes('is driving'))
  await shot(operator, 'takeover-before')
})
await scene('Take over: the script is told so within five seconds', async () => {
  running = page.waitForSelector('#never', { timeout: 60_000 }).then(() => 'found', error => error.message)
  // What a program without Playwright is told.
  const plain = new WebSocket(token.ws_url)
  await new Promise(yes => { plain.onopen = yes })
  const closed = new Promise(yes => { plain.onclose = yes })
  const began = Date.now()
  await operator.getByRole('button', { name: 'Take over' }).click()
  const ended = await Promise.race([running, new Promise(yes => setTimeout(yes, 20_000, 'it hangs'))])
  await picture.steers()
  check(Date.now() - began < 20000, `it took ${Date.now() - began} ms`)
  check(ended !== 'it hangs' && ended !== 'found', ended)
  await until('the client is cut', () => !client.isConnected())
  const { code, reason } = await closed
  equal(code, 1008, 'code of the close frame')
  check(reason.startsWith('taken_over: a person has taken over session'), reason)
  return { ended, reason, took: Date.now() - began }
})
await scene('connecting again is refused with a sentence', async () => {
  const connect = url => chromium.connectOverCDP(url).then(c => { c.close(); return 'connected' }, error => error.message)
  const web = await connect(token.cdp_url), socket = await connect(token.ws_url)
  check(web.includes('409'), web) // Playwright does not show the answer's text here
  check(/taken_over|in hand/.test(socket), socket)
  const version = await fetch(token.cdp_url.replace('/cdp', '/cdp/json/version'))
  equal(version.status, 409)
  check((await version.text()).includes('taken_over'), 'the answer does not say why')
  return socket.slice(0, 600)
})
await scene('asking over the API is refused with taken_over', async () => {
  const { key } = agent
  for (const [method, path, body] of [['GET', 'snapshot'], ['POST', 'screenshot', {}], ['POST', 'navigate', { url: site + '/still' }], ['POST', 'tokens', { scope: 'cdp' }]]) {
    const { status, value } = await call(method, `/v1/sessions/${session.id}/${path}`, body, key)
    equal(status, 409, path)
    equal(value.code, 'taken_over', path)
    check(value.hint, `${path} has no hint`)
  }
})
await scene('the operator types a password', async () => {
  await picture.seen()
  await operator.getByRole('tab', { name: 'fields' }).click()
  await picture.titled('fields')
  await picture.field(0)
  await picture.type('hands')
  await picture.titled('hands|0')
  await picture.field(1)
  await picture.type(secret)
  await picture.titled(`hands|${secret.length}`)
  await shot(operator, 'takeover-typed')
})
await scene('handing back is refused while it stands there', async () => {
  await operator.getByRole('button', { name: 'Hand back', exact: true }).click()
  await picture.says('has a password in a field')
  await operator.getByRole('button', { name: 'Hand back anyway' }).waitFor()
  await picture.steers()
})
await scene('handing back works when it is gone', async () => {
  await picture.field(1)
  await picture.press('Control+a')
  await picture.press('Backspace')
  await picture.titled('hands|0')
  await operator.getByRole('button', { name: 'Hand back', exact: true }).click()
  await until('nobody steers', async () => (await picture.who()).includes('is driving'))
  equal((await must('GET', `/v1/sessions/${session.id}`)).control, undefined, 'control')
})
await scene('the agent connects again, has heard nothing, and goes on', async () => {
  const again = await chromium.connectOverCDP(token.cdp_url)
  const pages = again.contexts().flatMap(c => c.pages())
  check(pages.length > 0, 'there are no pages')
  for (const p of pages) {
    const left = await p.evaluate(() => JSON.stringify([window.__keys ?? null, window.__caught ?? null, typeof window.__tell]))
    equal(left, '[null,null,"undefined"]', p.url())
  }
  equal(heard.join(', '), '', 'what was heard')
  const fields = pages.find(p => p.url().endsWith('/fields'))
  await fields.evaluate(listen)
  await fields.click('input')
  await fields.keyboard.type('x')
  check((await fields.evaluate(() => window.__keys.join())).includes('keydownx'), 'its new script hears nothing')
  await again.close()
})
await scene('the recording says who it was, and has no picture from in between', async () => {
  const recording = (await call('GET', `/v1/sessions/${session.id}/recording`)).text
  check(recording.includes('take_over'), 'no take_over')
  check(!recording.includes(secret), 'the password is in it')
  return recording.length
})
await scene('no page had a problem', async () => equal(operator.problems.filter(p => !p.includes('409 (Conflict)')).join('\n'), ''))
await must('DELETE', `/v1/sessions/${session.id}?wait=true`)
await browser.close()
done()
