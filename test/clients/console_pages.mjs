// Every page of the console: whether it is whole, light, accessible in both themes and at the width of a phone, and keeps what
// others say as text. With SCREENSHOTS, a folder, pictures are made in the view VIEW, light, dark or phone, and nothing else.
import fs from 'node:fs'
import path from 'node:path'
import { createRequire } from 'node:module'
import { everyPage, launch, nameOf, origin, over, signedIn, views } from './console_common.mjs'
import { step, check, done, env, equal } from './steps.mjs'

const view = process.env.VIEW ?? 'light'
const pictures = process.env.SCREENSHOTS
const heaviest = 150 * 1024
const axe = fs.readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8')

const browser = await launch()
const context = await signedIn(browser, env('KEY'), views[view])
await context.addInitScript(() => {
  window.violations = []
  document.addEventListener('securitypolicyviolation', e => window.violations.push(`${e.violatedDirective} ${e.blockedURI}`))
})
let pages = []
await step('the pages are found', async () => {
  pages = await everyPage(context, (process.env.MORE ?? '').split(' ').filter(Boolean))
  check(pages.length > 30, `only ${pages.length} pages: ${pages}`)
  return pages
})

// One page looks at all: a new one for each would be a new process of the browser each time.
const page = await context.newPage()
let wrong = [], weighs = 0
page.on('console', m => { if (m.type() === 'error') wrong.push(`console: ${m.text()}`) })
page.on('pageerror', e => wrong.push(`script: ${e.message}`))
// What a page is made of is weighed with nothing kept from before.
const wire = await context.newCDPSession(page)
await wire.send('Network.enable')
await wire.send('Network.setCacheDisabled', { cacheDisabled: true })
wire.on('Network.loadingFinished', e => { weighs += e.encodedDataLength })

// look asks axe-core about a page as it is.
async function look(page, how, options) {
  const report = await page.evaluate(options => window.axe.run(document, { resultTypes: ['violations'], ...options }), options)
  return report.violations.flatMap(v => v.nodes.map(n => ({ how, impact: n.impact ?? v.impact, rule: v.id, target: n.target.join(' '), what: n.failureSummary?.slice(0, 160) })))
}

for (const address of pages) {
  await step(`${view} ${address}`, async () => {
    await page.goto('about:blank') // what the page before still loads is not this one's
    await page.emulateMedia({ colorScheme: views[view].colorScheme })
    await page.setViewportSize(views[view].viewport)
    wrong = []
    weighs = 0
    const answer = await page.goto(origin + address, { waitUntil: 'load' })
    if (answer.status() === 404 && over(address)) return 'it was forgotten meanwhile'
    equal(answer.status(), 200, 'the status')
    if (await page.$('.live')) await page.waitForSelector('.live[data-frames]', { timeout: 20000 })
    if (pictures) {
      fs.mkdirSync(path.join(pictures, view), { recursive: true })
      await page.screenshot({ path: path.join(pictures, view, nameOf(address) + '.png'), fullPage: true })
      return
    }
    const weight = weighs
    equal(await page.locator('h1').count(), 1, 'the number of first headings')
    equal(await page.locator('main').count(), 1, 'the number of mains')
    await page.evaluate(axe)
    const findings = await look(page, 'light', {})
    wrong.push(...(await page.evaluate(() => window.violations)).map(v => `policy: ${v}`))
    check(!(await page.title()).startsWith('got'), 'what others wrote has run')
    // What else the colours and the width decide.
    await page.emulateMedia({ colorScheme: 'dark' })
    findings.push(...await look(page, 'dark', { runOnly: ['color-contrast', 'link-in-text-block'] }))
    await page.setViewportSize(views.phone.viewport)
    findings.push(...await look(page, 'phone', { runOnly: ['target-size', 'scrollable-region-focusable', 'label', 'button-name', 'link-name', ...process.env.ALIKE ? ['color-contrast'] : []] }))
    const wide = await page.evaluate(() => [document.scrollingElement.scrollWidth, innerWidth])
    if (wide[0] > wide[1] || wide[1] > 390) wrong.push(`it is ${wide[0]} wide in a window of ${wide[1]}`)
    wrong.push(...findings.filter(f => ['serious', 'critical'].includes(f.impact)).map(f => JSON.stringify(f)))
    if (weight > heaviest) wrong.push(`it weighs ${weight} bytes`)
    check(wrong.length === 0, wrong.join('\n'))
    return { weighs: weight, minor: findings.filter(f => !['serious', 'critical'].includes(f.impact)).map(f => `${f.rule} ${f.target}`) }
  })
}
await page.close()
if (!pictures) await import('./console_keys.mjs').then(m => m.keys(context, pages))
await browser.close()
done()
