// Playwright as it comes, on orders: one JSON object a line on standard input, one answer a line on standard output.
// Its own start is in no figure, and neither is that of Node. Times are in milliseconds.
import { createRequire } from 'node:module'
import { createInterface } from 'node:readline'

const { chromium } = createRequire(new URL('../../test/clients/package.json', import.meta.url))('playwright-core')
const limit = 30_000

// watch takes the time between its calls.
function watch() {
  let last = performance.now()
  return () => {
    const now = performance.now()
    const took = now - last
    last = now
    return took
  }
}

async function ask(api, key, method, path, body) {
  const answer = await fetch(api + path, {
    method, body: body && JSON.stringify(body), signal: AbortSignal.timeout(limit),
    headers: { Authorization: `Bearer ${key}`, ...(body && { 'Content-Type': 'application/json' }) },
  })
  const text = await answer.text()
  if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${text}`)
  return text ? JSON.parse(text) : undefined
}

async function visit(page, address) {
  const response = await page.goto(address, { timeout: limit })
  if (response?.status() !== 200) throw new Error(`the page answered ${response?.status()}`)
}

const orders = {
  // session is the whole life of a session as its user sees it.
  async session({ api, key, page: address }) {
    const lap = watch()
    const { id, warm } = await ask(api, key, 'POST', '/v1/sessions', {})
    const create = lap()
    const { cdp_url } = await ask(api, key, 'POST', `/v1/sessions/${id}/tokens`, { scope: 'cdp' })
    const token = lap()
    const browser = await chromium.connectOverCDP(cdp_url, { timeout: limit })
    const connect = lap()
    const context = browser.contexts()[0]
    const page = context.pages()[0] ?? await context.newPage()
    await visit(page, address)
    const goto = lap()
    await browser.close()
    await ask(api, key, 'DELETE', `/v1/sessions/${id}`)
    return { id, warm: Boolean(warm), stages: { create, token, connect, goto, release: lap() } }
  },
  // launch is the same without clawjail.
  async launch({ program, sandbox, page: address }) {
    const lap = watch()
    const browser = await chromium.launch({ executablePath: program, chromiumSandbox: sandbox, timeout: limit })
    const launch = lap()
    await visit(await browser.newPage(), address)
    const goto = lap()
    await browser.close()
    return { stages: { launch, goto, release: lap() } }
  },
  // connect is only that, to something that runs.
  async connect({ url }) {
    const lap = watch()
    const browser = await chromium.connectOverCDP(url, { timeout: limit })
    const connect = lap()
    await browser.close()
    return { stages: { connect } }
  },
  // script is what a script does most of the time. Most of use is waiting for frames to be drawn; calls is nothing but
  // messages.
  async script({ url, page: address, times }) {
    const lap = watch()
    const browser = await chromium.connectOverCDP(url, { timeout: limit })
    const page = await browser.contexts()[0].newPage()
    const connect = lap()
    for (let n = 0; n < times; n++) {
      await page.goto(address, { timeout: limit })
      await page.fill('#name', `visitor ${n}`)
      await page.click('#greet')
      const length = await page.evaluate(() => document.querySelectorAll('li').length)
      const text = await page.textContent('#greeting')
      if (text !== `Hello visitor ${n}` || length !== 40) throw new Error(`round ${n}: ${text}, ${length}`)
      await page.screenshot({ type: 'jpeg', clip: { x: 0, y: 0, width: 200, height: 100 } })
    }
    const use = lap()
    for (let n = 0; n < 5 * times; n++) if (await page.evaluate(x => x + 1, n) !== n + 1) throw new Error('it cannot count')
    const calls = lap()
    await page.close()
    await browser.close()
    return { stages: { connect, use, calls } }
  },
}

for await (const line of createInterface({ input: process.stdin })) {
  const { order, ...rest } = JSON.parse(line)
  let answer
  try {
    answer = await orders[order](rest)
  } catch (error) {
    // Playwright writes addresses into its errors, and these have a token in them.
    answer = { error: String(error && error.stack || error).replace(/(token=)[^\s&]+|cj\w*_\w+/g, '$1…').slice(0, 2000) }
  }
  console.log(JSON.stringify(answer))
}
process.exit(0)
