import { openBrowser, signIn, Picture, until, call, must, stage, shot, consoleURL } from './operator.mjs'
const site = process.env.SITE
const browser = await openBrowser()
const context = await browser.newContext({ viewport: { width: 1400, height: 1000 } })
const s = await must('POST', '/v1/sessions', { })
await must('POST', `/v1/sessions/${s.id}/navigate`, { url: site + '/fields' })
const page = await signIn(context, { next: '/console/sessions/' + s.id })
page.on('websocket', ws => { ws.on('framereceived', f => typeof f.payload === 'string' && console.log('<', f.payload.slice(0, 200))) })
page.on('response', async r => { if (/hand-back/.test(r.url())) console.log(r.status(), await r.allHeaders()) })
await page.reload()
const p = await new Picture(page).seen()
try {
await page.getByRole('button', { name: 'Take over' }).click()
await p.steers(); 
await p.row(1)
await p.type('geheim')
await p.titled('|6')
await page.getByRole('button', { name: 'Hand back', exact: true }).click()
await p.says('a password is in')
console.log(await page.locator('.live-hands').innerHTML())
} catch (e) { console.log(e.message) }
await shot(page, 'tmp')
await must('DELETE', `/v1/sessions/${s.id}?wait=true`)
await browser.close()
