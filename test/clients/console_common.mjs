// What scripts that use the web console share: a browser, a sign-in, and the pages that there are.
import { chromium } from 'playwright-core'
import { env } from './steps.mjs'

export const origin = new URL(env('CONSOLE')).origin

// views are how pages are looked at.
export const views = {
  light: { colorScheme: 'light', viewport: { width: 1280, height: 900 } },
  dark: { colorScheme: 'dark', viewport: { width: 1280, height: 900 } },
  phone: { colorScheme: 'light', viewport: { width: 390, height: 844 }, deviceScaleFactor: 2, hasTouch: true, isMobile: true },
}

export const launch = () => chromium.launch({ executablePath: env('CHROMIUM'), args: ['--no-sandbox', '--hide-scrollbars'] })

// link asks for a link that signs in with a key, once.
export async function link(key) {
  const answer = await fetch(`${origin}/v1/console/links`, { method: 'POST', headers: { Authorization: `Bearer ${key}` } })
  if (!answer.ok) throw new Error(`no link: ${answer.status} ${await answer.text()}`)
  return (await answer.json()).url
}

// signIn goes through a link in a context of a browser.
export async function signIn(context, key) {
  const page = await context.newPage()
  const at = new URL(await link(key))
  await page.goto(origin + at.pathname + at.search)
  await Promise.all([page.waitForURL(`${origin}/console/`), page.click('main form button')])
  await page.close()
}

// signedIn is a context of its own with a sign-in.
export async function signedIn(browser, key, options = {}) {
  const context = await browser.newContext(options)
  await signIn(context, key)
  return context
}

// shape is the address of a page without what tells one thing from another of its kind.
export function shape(path) {
  const url = new URL(path, origin)
  const parts = url.pathname.split('/').map((part, n, all) =>
    ['add', 'plan', 'verify', 'new', 'export', 'import', 'secrets', 'grants', 'issue', 'edit'].includes(part) ? part :
      ['sessions', 'agents', 'audit', 'refresh', 'programs', 'tokens', 'shots'].includes(all[n - 1]) && n > 2 ? '*' :
        ['accounts'].includes(all[n - 1]) || ['accounts', 'agents'].includes(all[n - 2]) && n === 4 + (all[n - 2] === 'accounts') ? '*' : part)
  return parts.join('/') + (url.search ? '?' + [...url.searchParams.keys()].sort().join('&') : '')
}

// links are the addresses below the console that a page leads to, without what is a file.
const links = (html, base) => [...new Set([...html.matchAll(/<a\b[^>]*>/g)].map(([tag]) => tag)
  .filter(tag => !/\sdownload\b/.test(tag))
  .map(tag => /\shref="([^"]*)"/.exec(tag)?.[1].replaceAll('&amp;', '&'))
  .filter(href => href && new URL(href, base).href.startsWith(origin + '/console'))
  .map(href => { const url = new URL(href, base); return url.pathname + url.search })
  .filter(path => !/\/(export|recording|static|shots|thumbnail|sign-in)\b|\/files\/./.test(path)))]

// sections are those of the navigation, and pages that no link of theirs leads to.
const sections = ['/console/', '/console/sessions', '/console/agents', '/console/credentials', '/console/network', '/console/audit', '/console/settings']

// everyPage finds what there is, as a reader without a browser does, two links deep: of each kind of page the first, and of some as many as ALIKE says, because they differ.
export async function everyPage(context, more = []) {
  const seen = new Map()
  const found = []
  const take = path => {
    const kind = shape(path)
    const had = seen.get(kind) ?? 0
    const most = /^\/console\/(sessions|agents)(\/\*)+$/.test(kind) ? Number(process.env.ALIKE ?? 1) : 1
    if (had >= most || found.includes(path)) return false
    seen.set(kind, had + 1)
    found.push(path)
    return true
  }
  let next = [...more, ...sections].filter(take)
  for (let depth = 0; depth < 3 && next.length; depth++) {
    const deeper = []
    for (const path of next) {
      const answer = await context.request.get(origin + path, { headers: { Accept: 'text/html' } })
      if (!(answer.headers()['content-type'] ?? '').startsWith('text/html')) continue
      if (depth < 2) deeper.push(...links(await answer.text(), answer.url()).filter(take))
    }
    next = deeper
  }
  return found
}

// nameOf is a page as a name of a file.
export const nameOf = path => path.replace(/^\/console\/?/, '').replace(/[^a-z0-9]+/gi, '-').replace(/^-|-$/g, '').slice(0, 60) || 'overview'

// over says that a page may be gone by the time it is looked at: a session that ended is forgotten after ten minutes.
export const over = path => /^\/console\/sessions\/s_[^/]+$/.test(path)
