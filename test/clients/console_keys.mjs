// The console with the keyboard alone.
import { origin } from './console_common.mjs'
import { step, check, equal } from './steps.mjs'

// focused says what has the focus, and whether that can be seen.
const focused = page => page.evaluate(() => {
  const e = document.activeElement
  const look = getComputedStyle(e)
  return { text: (e.textContent || e.value || '').trim().slice(0, 60), href: e.getAttribute('href'), inside: e.closest('nav') ? 'nav' : e.closest('main') ? 'main' : '', name: e.localName,
    seen: look.outlineStyle !== 'none' && parseFloat(look.outlineWidth) >= 2 || look.boxShadow !== 'none' }
})

// tabTo presses Tab until something has the focus, and checks that the focus is seen on the way.
async function tabTo(page, what, is, most = 60) {
  for (let n = 0; n < most; n++) {
    await page.keyboard.press('Tab')
    const now = await focused(page)
    check(now.seen || now.name === 'body', `the focus is not seen on ${JSON.stringify(now)}`)
    if (is(now)) return now
  }
  throw new Error(`${what} is not reached with ${most} presses of Tab`)
}

export async function keys(context, pages) {
  const page = await context.newPage()
  await step('keys: skip link, navigation and the first action are reached', async () => {
    await page.goto(`${origin}/console/agents`)
    await page.keyboard.press('Tab')
    equal((await focused(page)).href, '#content', 'the first stop')
    await tabTo(page, 'the navigation', f => f.inside === 'nav')
    await tabTo(page, 'the action', f => f.href === '/console/agents/add')
    await page.keyboard.press('Enter')
    await page.waitForURL('**/console/agents/add')
  })
  await step('keys: the skip link leads past the navigation', async () => {
    await page.goto(`${origin}/console/agents`)
    await page.keyboard.press('Tab')
    await page.keyboard.press('Enter')
    await page.keyboard.press('Tab')
    equal((await focused(page)).inside, 'main', 'what comes next is in')
  })
  await step('keys: what destroys is asked for again, and can be opened', async () => {
    await page.goto(`${origin}/console/credentials/grants`)
    await tabTo(page, 'a button that revokes', f => f.name === 'summary' && /Revoke/.test(f.text))
    await page.keyboard.press('Enter')
    await page.waitForSelector('details.confirm[open] .confirm-box button')
    await tabTo(page, 'the button that does it', f => f.name === 'button' && f.inside === 'main', 3)
  })
  const session = pages.find(path => /^\/console\/sessions\/[^/?]+$/.test(path))
  await step('keys: the live view is reached, and left again', async () => {
    await page.goto(origin + session)
    await page.waitForSelector('.live[data-frames]')
    await page.evaluate(() => document.querySelector('.live canvas').focus())
    check(await page.evaluate(() => document.activeElement.closest('.live') !== null), 'the picture does not take the focus')
    await tabTo(page, 'what is after the live view', f => f.name !== 'body', 5)
    for (let n = 0; n < 40 && await page.evaluate(() => document.activeElement.closest('.live') !== null); n++) await page.keyboard.press('Tab')
    check(await page.evaluate(() => document.activeElement.closest('.live') === null), 'the live view keeps the focus')
  })
  await page.close()
}
