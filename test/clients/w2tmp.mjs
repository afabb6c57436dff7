import { openBrowser, signIn, Picture, until, call, must, stage, shot, consoleURL } from './operator.mjs'
const site = process.env.SITE
const browser = await openBrowser()
const context = await browser.newContext({ viewport: { width: 1400, height: 1000 } })
const s = await must('POST', '/v1/refreshes', { domain: 'example.org', url: site + '/login' })
const page = await signIn(context, { next: '/console/refresh/' + s.session.id })
page.on('websocket', ws => { ws.on('framesent', f => console.log('>', String(f.payload).slice(0, 200))); ws.on('framereceived', f => typeof f.payload === 'string' && console.log('<', f.payload.slice(0, 300))) })
await page.reload()
const p = await new Picture(page).seen()
try {
await p.steers(); await p.titled('log in')
console.log(await p.canvas.evaluate(c => [c.width, c.height]), await p.canvas.boundingBox(), await p.spot(150, 100))
await p.row(0)
await p.type('alice')
await p.titled('alice|0')
} catch (e) { console.log(e.message) }
await shot(page, 'tmp')
await must('DELETE', `/v1/sessions/${s.session.id}?wait=true`)
console.log(page.problems)
await browser.close()
