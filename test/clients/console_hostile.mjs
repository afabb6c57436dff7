// A page in a jail that does all it can to get out of the box in which it is shown.
import { chromium } from 'playwright-core'
import { equal, check, env, done } from './steps.mjs'
import { scene, openBrowser, signIn, Picture, until, call, must, shot, consoleURL } from './operator.mjs'

const site = env('SITE'), markup = '<img src=x onerror=document.title="got"><b>bold</b>'
const browser = await openBrowser()
const context = await browser.newContext({ viewport: { width: 1400, height: 1000 } })
let session, client, inside, page, picture, before

// shape is what no page in a jail may change: where the console is, what it is called, how it is laid out, and where it is.
const shape = () => page.evaluate(() => {
  const box = what => { const { x, y, width, height } = document.querySelector(what).getBoundingClientRect(); return [x, y + scrollY, width, height].map(Math.round).join(' ') }
  return JSON.stringify({ url: location.href, title: document.title, wide: document.documentElement.scrollWidth, window: `${innerWidth} ${innerHeight} ${screenX} ${screenY}`,
    main: box('main').split(' ').slice(0, 3).join(' '), live: box('.live'), stage: box('.live-stage'), canvas: box('.live canvas') }, null, 1)
})
const same = async when => { equal(await shape(), before, `the console's shape ${when}`); equal(context.pages().length, 1, 'windows of the operator') }
const untouched = async () => {
  equal(await page.locator('.live-tabs :not(button, span)').count(), 0, 'elements in the tabs')
  equal(await page.locator('.live-popup img, .live-popup b').count(), 0, 'elements of the page in a dialog')
}

await scene('an operator looks at a page whose owner has its protocol', async () => {
  session = await must('POST', '/v1/sessions', { access: 'cdp' })
  await must('POST', `/v1/sessions/${session.id}/navigate`, { url: site + '/hostile' })
  const token = await must('POST', `/v1/sessions/${session.id}/tokens`, { scope: 'cdp' })
  client = await chromium.connectOverCDP(token.cdp_url)
  inside = client.contexts()[0].pages()[0]
  page = await signIn(context, { next: `/console/sessions/${session.id}` })
  picture = await new Picture(page).seen()
  await picture.titled('hostile')
  before = await shape()
})
await scene('a long title with markup, and a long address, are text in their place', async () => {
  await inside.evaluate(text => { history.pushState(null, '', '/hostile?' + 'w'.repeat(3000)); document.title = text + 'W'.repeat(3000) }, markup)
  await until('the title', async () => (await picture.title()).startsWith(markup))
  await until('the address', async () => (await picture.address()).includes('?www'))
  await untouched()
  await same('after a long title')
  await shot(page, 'hostile-title')
})
await scene('windows of any shape are shown in the same box', async () => {
  const protocol = await inside.context().newCDPSession(inside)
  for (const [width, height] of [[60, 1900], [2400, 90], [1280, 800]]) {
    const frames = Number(await picture.root.getAttribute('data-frames'))
    await protocol.send('Emulation.setDeviceMetricsOverride', { width, height, deviceScaleFactor: 1, mobile: false })
    await inside.evaluate(() => { document.body.style.background = `rgb(${Math.random() * 255},200,200)` })
    await until('a new picture', async () => Number(await picture.root.getAttribute('data-frames')) > frames)
    await until(`a picture of ${width}×${height}`, () => picture.canvas.evaluate((canvas, want) => Math.abs(Math.log(canvas.width / canvas.height / want)) < 0.3, width / height))
    await same(`with a window of ${width}×${height}`)
  }
  await protocol.send('Emulation.clearDeviceMetricsOverride')
})
await scene('fifteen tabs stay in their row', async () => {
  for (let n = 0; n < 15; n++) await inside.evaluate(() => { window.open('about:blank') })
  await until('the tabs', async () => await picture.root.getByRole('tab').count() === 16)
  await same('with many tabs')
  for (const other of client.contexts()[0].pages()) if (other !== inside) await other.close()
  await until('one tab', async () => await picture.root.getByRole('tab').count() === 1)
})
await scene('the console is reached from no jail', async () => {
  // The same way leads to the site, which is on the same machine.
  check(JSON.stringify(await must('GET', `/v1/sessions/${session.id}/snapshot`)).includes('attack'), 'the site is not reached either')
  const ports = [new URL(consoleURL).port, new URL(env('API')).port], hosts = ['127.0.0.1', 'localhost', '[::1]', new URL(site).hostname, 'gateway', '0.0.0.0']
  const all = ports.flatMap(port => hosts.map(host => `${host}:${port}`))
  const reached = await inside.evaluate(all => Promise.all(all.map(at => new Promise(yes => {
    const socket = new WebSocket(at)
    socket.onopen = () => yes(at)
    socket.onerror = () => yes('')
    setTimeout(yes, 5000, '') // no answer
  }))), all.map(at => `ws://${at}/console/sessions/${session.id}/live`))
  equal(reached.join(''), '', 'WebSockets that were opened')
  for (const at of all) {
    const { status, text } = await call('POST', `/v1/sessions/${session.id}/navigate`, { url: `http://${at}/console/sign-in` })
    const seen = JSON.stringify(await must('GET', `/v1/sessions/${session.id}/snapshot`))
    check(!seen.includes('Sign in') && !text.includes('Sign in'), `${at} answers ${status} with the console`)
  }
  await must('POST', `/v1/sessions/${session.id}/navigate`, { url: site + '/hostile' })
})
await scene('in the hands of a person it attacks, and the console stays as it is', async () => {
  await client.close()
  await page.getByRole('button', { name: 'Take over' }).click()
  await picture.steers()
  await picture.titled('hostile')
  before = await shape()
  const dialog = picture.root.getByRole('dialog', { name: 'The page says' })
  await until('the attack', async () => { if (!(await dialog.isVisible())) await picture.row(0); return until('the storm', () => dialog.isVisible(), 4000) })
  await shot(page, 'hostile-storm')
  await same('during the attack')
  await untouched()
})
await scene('while it asks again and again, handing back and other tabs are at hand', async () => {
  for (const name of ['Hand back', 'New tab']) {
    const button = page.getByRole('button', { name, exact: true })
    await button.scrollIntoViewIfNeeded()
    await button.click({ trial: true }) // nothing is in front of it
  }
})
await scene('the storm ends with its last answer', async () => {
  for (let n = 0; n < 5; n++) {
    const dialog = picture.root.getByRole('dialog', { name: 'The page says' })
    await until(`storm ${n}`, async () => (await dialog.textContent()).includes(`storm ${n}`))
    await dialog.getByRole('button', { name: 'OK' }).click()
  }
  await until('no dialog', () => picture.root.locator('.live-popup').isHidden())
  await until('its title', async () => (await picture.root.getByRole('tab').allTextContents()).includes('stormed'))
  await same('after the storm')
  await untouched()
  equal(page.problems.join('\n'), '', 'problems')
})
await must('DELETE', `/v1/sessions/${session.id}?wait=true`)
await browser.close()
done()
