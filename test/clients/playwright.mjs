// A day in the life of a script for Playwright, as it comes, in a clean session.
import { chromium } from 'playwright-core'
import { writeFileSync, mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { step, equal, check, env, done, file } from './steps.mjs'

const site = env('SITE')
let browser, context, page

await step('connect', async () => {
  browser = await chromium.connectOverCDP(env('CDP_URL'))
  context = browser.contexts()[0]
  page = await context.newPage()
  return browser.version()
})
await step('log in', async () => {
  await page.goto(`${site}/login`)
  await page.fill('#user', 'alice')
  await page.fill('#password', 'correct horse')
  await Promise.all([page.waitForURL('**/account'), page.click('button')])
  equal(await page.textContent('h1'), 'Hello alice')
})
await step('headers of a response', async () => {
  const response = await page.goto(`${site}/account`)
  check('content-type' in await response.allHeaders(), 'no content type')
  check('user-agent' in await response.request().allHeaders(), 'no user agent')
})
await step('route', async () => {
  await page.route('**/api/answer', route => route.fulfill({ json: { answer: 42 } }))
  equal(await page.evaluate(() => fetch('/api/answer').then(r => r.json()).then(j => j.answer)), 42)
  await page.unroute('**/api/answer')
  await page.route('**/api/answer', route => route.continue({ headers: { ...route.request().headers(), 'x-added': 'yes' } }))
  equal(await page.evaluate(() => fetch('/api/answer').then(r => r.json()).then(j => j.added)), 'yes')
  await page.unroute('**/api/answer')
  await page.route('**/api/answer', route => route.abort())
  equal(await page.evaluate(() => fetch('/api/answer').then(() => 'answered', () => 'aborted')), 'aborted')
  await page.unroute('**/api/answer')
})
await step('upload', async () => {
  const path = join(mkdtempSync(join(tmpdir(), 'upload-')), 'cv.txt')
  writeFileSync(path, 'my life so far')
  await page.goto(`${site}/upload`)
  await page.setInputFiles('#file', path)
  await Promise.all([page.waitForNavigation(), page.click('button')])
  equal(await page.textContent('#got'), 'cv.txt 14')
})
await step('download', async () => {
  await page.goto(`${site}/downloads`)
  const [download] = await Promise.all([page.waitForEvent('download', { timeout: 15000 }), page.click('#report')])
  equal(download.suggestedFilename(), 'report.bin')
  let bytes
  for (let i = 0; i < 50 && !bytes; i++) {
    bytes = await file('report.bin').catch(() => undefined)
    if (!bytes) await new Promise(r => setTimeout(r, 100))
  }
  equal(bytes?.length, 100000, 'length')
  check(bytes.every((b, i) => b === i % 251), 'the bytes are others')
})
await step('pictures', async () => {
  await page.goto(`${site}/account`)
  check((await page.screenshot({ fullPage: true })).length > 1000, 'no picture')
  check((await page.locator('h1').screenshot()).length > 100, 'no picture of the heading')
})
await step('print', async () => {
  check((await page.pdf()).subarray(0, 5).toString() === '%PDF-', 'no PDF')
})
await step('aria snapshot', async () => {
  check((await page.locator('body').ariaSnapshot()).includes('heading "Hello alice"'), 'no heading')
})
await step('dialog', async () => {
  page.once('dialog', dialog => dialog.accept('my name'))
  equal(await page.evaluate(() => prompt('name?')), 'my name')
})
await step('dialog of a page that was there', async () => {
  const first = context.pages()[0]
  first.once('dialog', dialog => dialog.accept('my name'))
  equal(await first.evaluate(() => prompt('name?')), 'my name')
})
await step('frames', async () => {
  await page.goto(`${site}/frames`)
  equal(await page.frameLocator('iframe').locator('#inner').textContent(), 'inside')
  await page.frameLocator('iframe').locator('button').click()
  equal(await page.frameLocator('iframe').locator('#inner').textContent(), 'clicked')
})
await step('popup', async () => {
  await page.goto(`${site}/account`)
  const [popup] = await Promise.all([page.waitForEvent('popup'), page.evaluate(() => { open('/login') })])
  await popup.waitForLoadState()
  equal(new URL(popup.url()).pathname, '/login')
  await popup.close()
})
await step('own cookies', async () => {
  await context.addCookies([{ name: 'mine', value: 'abc', url: site }])
  const all = await context.cookies(site)
  equal(all.find(c => c.name === 'mine')?.value, 'abc')
  check(all.some(c => c.name === 'lab_session'), 'the login of the script itself is not in its jar')
})
await step('own context', async () => {
  const other = await browser.newContext({ viewport: { width: 400, height: 300 }, locale: 'de-DE' })
  equal((await other.cookies()).length, 0, 'cookies of a new context')
  const tab = await other.newPage()
  await tab.goto(`${site}/account`)
  equal(new URL(tab.url()).pathname, '/login')
  equal(await tab.evaluate(() => navigator.language), 'de-DE')
  await other.close()
})
await step('storage state', async () => {
  const state = await context.storageState()
  check(state.cookies.length > 0, 'no cookies')
})
await step('emulation', async () => {
  await page.setViewportSize({ width: 500, height: 400 })
  await page.emulateMedia({ colorScheme: 'dark' })
  check(await page.evaluate(() => matchMedia('(prefers-color-scheme: dark)').matches), 'not dark')
})
await step('init script and binding', async () => {
  await page.exposeFunction('twice', n => 2 * n)
  await page.addInitScript(() => { window.marked = 1 })
  await page.goto(`${site}/account`)
  equal(await page.evaluate(() => window.twice(21)), 42)
  equal(await page.evaluate(() => window.marked), 1)
})
await step('two clients', async () => {
  const second = await chromium.connectOverCDP(env('CDP_URL'))
  const pages = second.contexts()[0].pages().map(p => p.url())
  check(pages.some(u => u.endsWith('/account')), `it sees ${pages}`)
  const same = second.contexts()[0].pages().find(p => p.url().endsWith('/account'))
  equal(await same.evaluate(() => window.marked), 1)
  await second.close()
  equal(await page.evaluate(() => 1 + 1), 2)
})
await step('disconnect', () => browser.close())
done()
