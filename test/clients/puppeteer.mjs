// The same for Puppeteer.
import puppeteer from 'puppeteer-core'
import { step, equal, check, env, done, file, put } from './steps.mjs'

const site = env('SITE')
let browser, page

await step('connect', async () => {
  browser = await puppeteer.connect({ browserWSEndpoint: env('WS_URL'), defaultViewport: { width: 1000, height: 700 } })
  page = await browser.newPage()
  return browser.version()
})
await step('log in', async () => {
  await page.goto(`${site}/login`)
  await page.type('#user', 'alice')
  await page.type('#password', 'correct horse')
  await Promise.all([page.waitForNavigation(), page.click('button')])
  equal(await page.$eval('h1', e => e.textContent), 'Hello alice')
})
await step('locator', async () => {
  await page.goto(`${site}/login`)
  await page.locator('#user').fill('bob')
  equal(await page.$eval('#user', e => e.value), 'bob')
})
await step('route', async () => {
  await page.goto(`${site}/account`)
  await page.setRequestInterception(true)
  const answer = r => r.url().endsWith('/api/answer') ? r.respond({ contentType: 'application/json', body: '{"answer":42}' }) : r.continue()
  page.on('request', answer)
  equal(await page.evaluate(() => fetch('/api/answer').then(r => r.json()).then(j => j.answer)), 42)
  page.off('request', answer)
  await page.setRequestInterception(false)
})
await step('upload', async () => {
  await put('cv.txt', 'my life so far')
  await page.goto(`${site}/upload`)
  const input = await page.$('#file')
  await input.uploadFile('/home/somebody/cv.txt')
  await Promise.all([page.waitForNavigation(), page.click('button')])
  equal(await page.$eval('#got', e => e.textContent), 'cv.txt 14')
})
await step('download', async () => {
  await page.goto(`${site}/downloads`)
  const client = await page.createCDPSession()
  await client.send('Browser.setDownloadBehavior', { behavior: 'allow', downloadPath: '/tmp/anywhere', eventsEnabled: true })
  await page.click('#report')
  let bytes
  for (let i = 0; i < 50 && !bytes; i++) {
    bytes = await file('report.bin').catch(() => undefined)
    if (!bytes) await new Promise(r => setTimeout(r, 100))
  }
  equal(bytes?.length, 100000, 'length')
})
await step('pictures', async () => {
  await page.goto(`${site}/account`)
  check((await page.screenshot({ fullPage: true })).length > 1000, 'no picture')
})
await step('print', async () => {
  check(Buffer.from(await page.pdf()).subarray(0, 5).toString() === '%PDF-', 'no PDF')
})
await step('accessibility', async () => {
  check(JSON.stringify(await page.accessibility.snapshot()).includes('Hello alice'), 'no heading')
})
await step('dialog', async () => {
  page.once('dialog', dialog => dialog.accept('my name'))
  equal(await page.evaluate(() => prompt('name?')), 'my name')
})
await step('dialog of a page that was there', async () => {
  const first = (await browser.pages())[0]
  first.once('dialog', dialog => dialog.accept('my name'))
  equal(await first.evaluate(() => prompt('name?')), 'my name')
})
await step('frames', async () => {
  await page.goto(`${site}/frames`)
  const frame = page.frames().find(f => f.url().endsWith('/inner'))
  equal(await frame.$eval('#inner', e => e.textContent), 'inside')
})
await step('exposed function', async () => {
  await page.exposeFunction('twice', n => 2 * n)
  await page.goto(`${site}/account`)
  equal(await page.evaluate(() => window.twice(21)), 42)
})
await step('own cookies and context', async () => {
  const context = await browser.createBrowserContext()
  const tab = await context.newPage()
  await context.setCookie({ name: 'mine', value: 'abc', domain: new URL(site).hostname, path: '/' })
  await tab.goto(`${site}/login`)
  check((await context.cookies()).some(c => c.name === 'mine'), 'no cookie')
  await context.close()
})
await step('disconnect', () => browser.disconnect())
done()
