// Two people at one browser, people who may only look, and ends that come at once.
import { equal, check, env, done } from './steps.mjs'
import { scene, openBrowser, signIn, Picture, until, call, must, shot, consoleURL } from './operator.mjs'

const site = env('SITE'), size = { viewport: { width: 1400, height: 1000 } }, stamp = Date.now()
const browser = await openBrowser()
const people = {}
let session, a, b, watcher

const person = async (name, role) => {
  const { key } = await must('POST', '/v1/operators', { name: `${name}${stamp}`, role, tenant: 'default' })
  const context = await browser.newContext(size)
  people[name] = { key, context, name: `${name}${stamp}`, page: await signIn(context, { key, next: `/console/sessions/${session.id}` }) }
  return people[name]
}
const frames = async picture => Number(await picture.root.getAttribute('data-frames') ?? 0)

await scene('two operators look at one session', async () => {
  session = await must('POST', '/v1/sessions', {})
  await must('POST', `/v1/sessions/${session.id}/navigate`, { url: site + '/fields' })
  a = await new Picture((await person('ann', 'operator')).page).seen()
  b = await new Picture((await person('ben', 'operator')).page).seen()
})
await scene('the one takes over, and the other sees who it is', async () => {
  await a.page.getByRole('button', { name: 'Take over' }).click()
  await a.steers()
  await b.steers(`${people.ann.name} is steering`)
  check(await b.page.getByRole('button', { name: 'Take over', exact: true }).isHidden(), 'it is offered to the other as if it were free')
})
await scene('the other cannot steer', async () => {
  await a.field(0)
  await a.type('ann')
  await a.titled('ann|0')
  await b.row(0)
  await b.type('nobody')
  await a.type('!')
  await a.titled('ann!|0')
  await b.titled('ann!|0')
  // Not by a program that speaks the protocol either.
  const url = new URL(`${env('API')}/v1/sessions/${session.id}/live`.replace('http', 'ws'))
  const { token } = await must('POST', `/v1/sessions/${session.id}/tokens`, { scope: 'control' }, people.ben.key).catch(() => ({}))
  if (token) {
    url.searchParams.set('token', token)
    const socket = new WebSocket(url)
    const told = new Promise(yes => { socket.onmessage = ({ data }) => { if (typeof data === 'string' && JSON.parse(data).error) yes(JSON.parse(data).error.code) } })
    await new Promise(yes => { socket.onopen = yes })
    socket.send(JSON.stringify({ type: 'text', text: 'nobody' }))
    equal(await told, 'taken_over')
    socket.close()
  }
})
await scene('by force it is the other\'s, and the first is told at once', async () => {
  await b.page.getByRole('button', { name: 'Take it from them' }).click()
  await b.steers()
  await a.steers(`${people.ben.name} is steering`)
  await a.type('lost')
  await b.field(0)
  await b.press('End')
  await b.type('?')
  await b.titled('ann!?|0')
  await a.titled('ann!?|0')
  await shot(a.page, 'two-a')
})
await scene('both see the picture go on', async () => {
  const before = [await frames(a), await frames(b)]
  await b.type('more')
  await until('a new picture for both', async () => await frames(a) > before[0] && await frames(b) > before[1])
})
await scene('a viewer sees no picture and does nothing', async () => {
  const viewer = await person('vic', 'viewer')
  equal(await viewer.page.locator('[data-live]').count(), 0, 'live views')
  for (const [path, body] of [['take-over', {}], ['hand-back', {}], ['tokens', { scope: 'view' }]]) {
    equal((await call('POST', `/v1/sessions/${session.id}/${path}`, body, viewer.key)).status, 403, path)
  }
  const status = await viewer.page.evaluate(path => new Promise(yes => { const s = new WebSocket(`ws://${location.host}${path}`); s.onopen = () => yes('open'); s.onerror = () => yes('refused') }), new URL(`${consoleURL}/console/sessions/${session.id}/live`).pathname)
  equal(status, 'refused')
})
await scene('a share link shows the picture and steers nothing, without a key', async () => {
  const issued = await must('POST', `/v1/sessions/${session.id}/tokens`, { scope: 'view' })
  const context = await browser.newContext(size)
  const page = await context.newPage()
  await page.goto(`${consoleURL}/console/watch#${session.id}:${issued.token}`)
  watcher = await new Picture(page).seen()
  await watcher.steers(`${people.ben.name} is steering`)
  const { status } = await call('POST', `/v1/sessions/${session.id}/take-over`, { force: true }, issued.token)
  equal(status, 403)
  await page.getByRole('button', { name: 'Take it from them' }).click()
  await until('a sentence', async () => (await page.locator('.live-note').textContent()).length > 10)
  await b.steers()
  check((await context.cookies()).length === 0, 'it has cookies')
  const { tokens } = await must('GET', `/v1/sessions/${session.id}/tokens`)
  const began = Date.now()
  await must('DELETE', `/v1/sessions/${session.id}/tokens/${tokens.find(t => t.scope === 'view').id}`)
  await watcher.steers('It is over')
  check(Date.now() - began < 20000, `it took ${Date.now() - began} ms`)
  const last = await frames(watcher)
  await b.type('unseen')
  await b.titled(/unseen/)
  equal(await frames(watcher), last, 'pictures after the end')
})
await scene('a key that ends closes the live view', async () => {
  const operators = (await must('GET', '/v1/operators')).operators
  const other = await people.ann.context.newPage()
  await other.goto(consoleURL + '/console/')
  // Not the session's page: it loads itself anew when it is told that nobody is signed in.
  const still = await people.ann.context.newPage()
  await still.goto(consoleURL + '/console/watch')
  const socket = still.evaluate(path => new Promise(yes => { const s = new WebSocket(`ws://${location.host}${path}`); let end = ''; s.onmessage = ({ data }) => { if (typeof data === 'string' && JSON.parse(data).end) end = data }; s.onclose = e => yes(`${e.code} ${end}`); s.onopen = () => { window.opened = true } }), new URL(`${consoleURL}/console/sessions/${session.id}/live`).pathname)
  await until('it is open', () => still.evaluate(() => window.opened))
  await other.getByRole('button', { name: 'Sign out' }).click()
  const ended = await Promise.race([socket, new Promise(yes => setTimeout(yes, 10_000, 'still open'))])
  check(ended !== 'still open', ended)
  check(operators.length >= 3, 'there are no operators')
  return ended
})
for (const name of ['ann', 'ben', 'vic']) await people[name]?.context.close()
await must('DELETE', `/v1/sessions/${session.id}?wait=true`)
await browser.close()
done()
