// The console without JavaScript: every page is whole, and every form that takes text says what is wrong with nonsense and
// keeps it.
import { everyPage, launch, origin, over, signedIn } from './console_common.mjs'
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
const page = await context.newPage()
for (const address of pages) {
  await step(`plain ${address}`, async () => {
    const answer = await context.request.get(origin + address)
    if (answer.status() === 404 && over(address)) return 'it was forgotten meanwhile'
    equal(answer.status(), 200, 'the status')
    const text = await answer.text()
    equal((text.match(/<h1/g) ?? []).length, 1, 'the number of first headings')
    await page.goto(origin + address, { waitUntil: 'domcontentloaded' })
    check((await page.locator('h1').innerText()).trim() !== '', 'the heading is empty')
    // What a form is sent with when somebody fills in its texts and leaves the rest.
    const here = await page.$$eval('main form[method="post"]', all => all.map(form => ({
      action: new URL(form.getAttribute('action'), location.href).href, multipart: form.enctype === 'multipart/form-data',
      rest: Object.fromEntries([...form.querySelectorAll('input[type=hidden], select')].map(e => [e.name, e.value])),
      texts: [...form.querySelectorAll('input:not([type]),input[type=text],input[type=url],input[type=number],textarea')].filter(e => e.required).map(e => e.name) })))
    for (const form of here) if (form.texts.length && !forms.has(form.action)) forms.set(form.action, form)
  })
}
await step('there are forms', async () => { check(forms.size >= 8, `only ${[...forms.keys()]}`); return [...forms.keys()].map(a => new URL(a).pathname) })
for (const form of forms.values()) {
  if (form.action.endsWith('/type')) continue // a program may be told anything
  await step(`nonsense is answered: ${new URL(form.action).pathname}`, async () => {
    const fields = { ...form.rest, ...Object.fromEntries(form.texts.map(name => [name, nonsense])) }
    const answer = await context.request.post(form.action, { [form.multipart ? 'multipart' : 'form']: fields, headers: { Origin: origin, 'Sec-Fetch-Site': 'same-origin', Accept: 'text/html' }, maxRedirects: 0 })
    check(answer.status() >= 400 && answer.status() < 500, `the status is ${answer.status()}`)
    const text = await answer.text()
    equal((text.match(/<h1/g) ?? []).length, 1, 'the number of first headings')
    check(/class="flaw"|role="alert"/.test(text), 'nothing says what is wrong')
    check(text.includes('not/right'), 'what was written is gone')
    return answer.status()
  })
}
await browser.close()
done()
