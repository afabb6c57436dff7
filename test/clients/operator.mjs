// The operator: somebody in front of the console, in a browser of their own, who sees pictures and has a mouse and keys.
import { chromium } from 'playwright-core'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { step, env, done } from './steps.mjs'

export const consoleURL = env('CONSOLE')
const limit = 20_000

export async function openBrowser(more = {}) {
  const home = mkdtempSync(join(tmpdir(), 'operator-'))
  const browser = await chromium.launch({ executablePath: env('CHROMIUM'), env: { ...process.env, HOME: home }, ...more })
  process.on('exit', () => rmSync(home, { recursive: true, force: true, maxRetries: 5 }))
  return browser
}

// scene is a step that the later ones need: without it nothing else is tried.
export async function scene(name, what) {
  let failed = false
  await step(name, async () => { try { return await what() } catch (error) { failed = true; throw error } })
  if (failed) done()
}

// until waits for a condition with a deadline, and says what it last saw.
export async function until(what, look, ms = limit) {
  let last
  for (const end = Date.now() + ms; Date.now() < end;) {
    try { last = await look(); if (last) return last } catch (error) { last = error }
    await new Promise(yes => setTimeout(yes, 50))
  }
  throw new Error(`${what}: not within ${ms} ms, last ${last?.stack ?? JSON.stringify(last)}`)
}

// call asks the API, as whom the key is of.
export async function call(method, path, body, key = env('KEY')) {
  const answer = await fetch(env('API') + path, { method, body: body === undefined ? undefined : JSON.stringify(body),
    headers: { Authorization: `Bearer ${key}`, ...(body === undefined ? {} : { 'Content-Type': 'application/json' }) } })
  const text = await answer.text()
  let value
  try { value = JSON.parse(text) } catch { value = text }
  return { status: answer.status, value, text }
}

export async function must(method, path, body, key) {
  const { status, value, text } = await call(method, path, body, key)
  if (status >= 300) throw new Error(`${method} ${path}: ${status} ${text}`)
  return value
}

export const stage = async what => {
  const answer = await fetch(`${env('STAGE')}/${what}`)
  const text = await answer.text()
  if (!answer.ok) throw new Error(`${what}: ${text}`)
  return text
}

// signIn opens a link that is good once, and presses its button.
export async function signIn(context, { key, link, next = '/console/' } = {}) {
  const url = new URL(link ?? (await must('POST', '/v1/console/links', undefined, key)).url)
  if (!link) url.searchParams.set('next', next)
  const page = await context.newPage()
  page.setDefaultTimeout(limit)
  page.problems = []
  page.on('pageerror', error => page.problems.push(String(error)))
  page.on('console', message => { if (message.type() === 'error') page.problems.push(message.text()) })
  await page.goto(consoleURL + url.pathname + url.search)
  await page.getByRole('button', { name: 'Sign in', exact: true }).click()
  await page.waitForURL(to => !to.pathname.includes('/console/sign-in'))
  return page
}

// Picture is the live view as a person has it.
export class Picture {
  constructor(page) {
    this.page = page
    this.root = page.locator('[data-live]')
    this.canvas = this.root.locator('canvas')
  }

  async seen() {
    await until('a picture', () => this.root.getAttribute('data-frames'))
    await this.canvas.scrollIntoViewIfNeeded()
    return this
  }

  // spot is where a place of the page in the jail is on this screen. The canvas is as large as the window there.
  async spot(x, y) {
    const box = await this.canvas.boundingBox()
    const size = await this.canvas.evaluate(canvas => ({ width: canvas.width, height: canvas.height }))
    const scale = Math.min(box.width / size.width, box.height / size.height)
    return { x: box.x + (box.width - size.width * scale) / 2 + x * scale, y: box.y + y * scale }
  }

  async click(x, y) { const at = await this.spot(x, y); await this.page.mouse.click(at.x, at.y) }

  // row clicks what is in a row of the portal's pages.
  row(n) { return this.click(150, 100 + 60 * n) }

  type(text) { return this.page.keyboard.type(text) }

  press(key) { return this.page.keyboard.press(key) }

  async paste(text) {
    await this.root.locator('.live-keys').evaluate((keys, text) => {
      const data = new DataTransfer()
      data.setData('text/plain', text)
      keys.dispatchEvent(new ClipboardEvent('paste', { clipboardData: data, bubbles: true, cancelable: true }))
    }, text)
  }

  // field clicks into an input of the portal's pages, which say in their title which one has the focus. A click may be
  // refused while the machine is slow; people see that, and click again.
  async field(n) {
    await until(`the focus in field ${n}`, async () => {
      await this.row(n)
      return until('the focus', async () => (await this.title()).endsWith(`@${n}`), 4000)
    })
  }

  title() { return this.root.locator('[role="tab"][aria-selected="true"]').textContent() }

  titled(text) { return until(`the title ${text}`, async () => { const got = (await this.title()).replace(/ ?@\d+$/, ''); return got === text || (text instanceof RegExp && text.test(got)) || Promise.reject(new Error(`the title is ${got}, the note ${await this.root.locator('.live-note').textContent()}`)) }) }

  address() { return this.root.locator('#live-address').inputValue() }

  async go(url) {
    const field = this.root.locator('#live-address')
    await until('steering', async () => !(await field.getAttribute('readonly') !== null))
    await field.fill(url)
    await field.press('Enter')
  }

  who() { return this.root.locator('[data-live-who]').textContent() }

  says(text) { return until(`the note ${text}`, async () => { const got = await this.root.locator('.live-note').textContent(); return got.includes(text) || Promise.reject(new Error(`the note is ${got}`)) }) }

  async popup(title) {
    const dialog = this.root.getByRole('dialog', { name: title })
    await dialog.waitFor()
    return dialog
  }

  steers(text = 'You are steering') { return until(text, async () => { const got = await this.who(); return got === text || Promise.reject(new Error(`it says ${got}`)) }) }
}

export async function shot(page, name) {
  if (process.env.SHOTS) await page.screenshot({ path: join(process.env.SHOTS, `${name}.png`), fullPage: true, caret: 'initial' })
}
