// The console of somebody who may only look: no page offers to change anything but what is their own, and sending what other
// people's pages send is refused.
import { everyPage, launch, origin, signedIn } from './console_common.mjs'
import { step, check, done, env, equal } from './steps.mjs'

const own = /^\/console\/(theme|sign-out|passkeys\/.*|settings\/sign-ins\/[^/]+\/end|network\/explain|audit\/verify)$/
const browser = await launch()
const operator = await signedIn(browser, env('ADMIN'))
const viewer = await signedIn(browser, env('KEY'))

// actions are where the forms of all pages are sent.
async function actions(context) {
  const out = new Set()
  for (const address of await everyPage(context, (process.env.MORE ?? '').split(' ').filter(Boolean))) {
    const answer = await context.request.get(origin + address, { headers: { Accept: 'text/html' } })
    if (answer.status() !== 200) continue
    for (const form of (await answer.text()).match(/<form\b[^>]*method="post"[^>]*>/g) ?? []) out.add(new URL(form.match(/action="([^"]*)"/)[1].replaceAll('&amp;', '&'), origin).pathname)
  }
  return out
}

let all = new Set()
await step('there is much that an admin may do', async () => {
  all = await actions(operator)
  check(all.size > 25, `only ${[...all]}`)
  return all.size
})
await step('a viewer is offered nothing that changes anything', async () => {
  const offered = [...await actions(viewer)].filter(path => !own.test(path))
  check(offered.length === 0, `offered: ${offered}`)
})
for (const path of all) {
  if (own.test(path)) continue
  await step(`a viewer is refused: ${path}`, async () => {
    const answer = await viewer.request.post(origin + path, { form: { text: 'x' }, headers: { Origin: origin, 'Sec-Fetch-Site': 'same-origin' }, maxRedirects: 0 })
    // What is somebody else's is not there for them, and a form with nearly nothing in it may be sent back before anybody is asked: that
    // nothing was done is in the log, which is compared at the end.
    check([400, 403, 404, 422].includes(answer.status()), `the status is ${answer.status()}`)
    return answer.status()
  })
}
await browser.close()
done()
