// The console without JavaScript: every page is whole, and every form that takes text says what is wrong with nonsense and
// keeps it.
import { everyPage, launch, origin, signedIn } from './console_common.mjs'
import { step, check, done, env, equal } from './steps.mjs'

const nonsense = '  ?? not/right \u00e4'
const browser = await launch()
const context = await signedIn(browser, env('KEY'), { javaScriptEnabled: false })
let pages = []
await step('the pages are found', async () => {
  pages = await everyPage(context, (process.env.MORE ?? '').split(' ').filter(Boolean))
  check(pages.length > 30, `only ${pages.length} pages: ${pages}`)
})
const forms = new Map() // by where they are sent
for (const address of pages) {
  await step(`plain ${address}`, async () => {
    const answer = await context.request.get(origin + address)
    equal(answer.status(), 200, 'the status')
    const text = await answer.text()
    equal((text.match(/<h1/g) ?? []).length, 1, 'the number of first headings')
    const page = await context.newPage()
    try {
      await page.goto(origin + address, { waitUntil: 'domcontentloaded' })
      check((await page.locator('h1').innerText()).trim() !== '', 'the heading is empty')
      const here = await page.$$eval('main form[method="post"]', all => all.map((form, n) => ({ n, action: new URL(form.getAttribute('action'), location.href).href,
        texts: [...form.querySelectorAll('input:not([type]),input[type=text],input[type=url],input[type=number],textarea')].filter(e => e.required).map(e => e.name) })))
      for (const form of here) if (form.texts.length && !forms.has(form.action)) forms.set(form.action, { address, ...form })
    } finally {
      await page.close()
    }
  })
}
await step('there are forms', async () => { check(forms.size >= 8, `only ${[...forms.keys()]}`); return [...forms.keys()].map(a => new URL(a).pathname) })
for (const form of forms.values()) {
  await step(`nonsense is answered: ${new URL(form.action).pathname}`, async () => {
    const page = await context.newPage()
    try {
      await page.goto(origin + form.address, { waitUntil: 'domcontentloaded' })
      const it = page.locator('main form[method="post"]').nth(form.n)
      for (const hidden of await page.locator('main details:not([open]) > summary').all()) if (await hidden.isVisible()) await hidden.click()
      for (const name of form.texts) {
        const field = it.locator(`[name="${name}"]`).first()
        await field.fill(await field.getAttribute('type') === 'number' ? '-1' : nonsense)
      }
      const [answer] = await Promise.all([page.waitForResponse(r => r.request().method() === 'POST'), it.evaluate(form => { form.noValidate = true }).then(() => it.locator('button:not([type=button])').last().click())])
      check(answer.status() >= 400 && answer.status() < 500, `the status is ${answer.status()}`)
      await page.waitForLoadState('domcontentloaded')
      equal(await page.locator('h1').count(), 1, 'the number of first headings')
      check(await page.locator('.flaw, [role="alert"]').count() > 0, 'nothing says what is wrong')
      const kept = await page.$$eval('main input, main textarea', all => all.map(e => e.value))
      check(kept.some(value => value.trim() === nonsense.trim() || value === '-1'), 'what was written is gone')
      return answer.status()
    } finally {
      await page.close()
    }
  })
}
await browser.close()
done()
