// Everything by which a client of the protocol was seen to get at a cookie that no script may read. Whether it did is
// judged by who reads the wire; here it is only tried, with all that a client can say.
import { chromium } from 'playwright-core'
import puppeteer from 'puppeteer-core'
import { step, attempt, check, env, done, raw } from './steps.mjs'

const site = env('SITE')
const origin = new URL(site)

async function playwright() {
  const browser = await chromium.connectOverCDP(env('WS_URL'))
  const context = browser.contexts()[0]
  if (process.env.PATIENCE) context.setDefaultTimeout(Number(process.env.PATIENCE)) // milliseconds
  const page = await context.newPage()
  await step('playwright: logged in', async () => {
    const response = await page.goto(`${site}/account`)
    check((await page.textContent('h1')).startsWith('Hello alice'), 'the account is not used')
    await attempt('headers of the response', async () => [await response.allHeaders(), await response.headersArray(), await response.request().allHeaders(),
      await response.request().headersArray(), await response.serverAddr(), await response.securityDetails()])
  })
  // Before the site sets a cookie anew: what a page shows of that one, nobody can take out.
  await attempt('a page that echoes the header', () => page.evaluate(() => fetch('/echo').then(r => r.text())))
  await attempt('context.cookies', () => context.cookies())
  await attempt('context.storageState', () => context.storageState({ indexedDB: true }))
  await attempt('route', async () => {
    const seen = []
    await page.route('**/*', async route => { seen.push(await route.request().allHeaders()); await route.continue() })
    await page.goto(`${site}/account`)
    await page.unroute('**/*')
    return seen
  })
  await attempt('response body and request', async () => (await page.goto(`${site}/account`)).text())
  await attempt('context.request', async () => (await context.request.get(`${site}/echo`)).text())
  const client = await context.newCDPSession(page)
  const root = await raw(env('WS_URL'))
  const events = []
  client.on('event', e => events.push(e))
  await attempt('newBrowserCDPSession', () => browser.newBrowserCDPSession())
  const all = ['Network.enable', 'Page.enable', 'DOM.enable', 'Audits.enable', 'Log.enable', 'Runtime.enable', 'ServiceWorker.enable', 'DOMStorage.enable', 'IndexedDB.enable',
    'Storage.enable', 'BackgroundService.enable', 'Security.enable', 'Performance.enable', 'Inspector.enable', 'DeviceAccess.enable', 'Preload.enable', 'FedCm.enable']
  for (const method of all) await attempt(method, () => client.send(method, {}))
  await attempt('Network.enable with everything', () => client.send('Network.enable', { enableDurableMessages: true, maxTotalBufferSize: 10000000, maxResourceBufferSize: 10000000, reportDirectSocketTraffic: true }))
  await attempt('Network.enableReportingApi', () => client.send('Network.enableReportingApi', { enable: true }))
  await attempt('Network.enableDeviceBoundSessions', () => client.send('Network.enableDeviceBoundSessions', { enable: true }))
  for (const [method, params] of [
    ['Network.getCookies', {}], ['Network.getCookies', { urls: [site] }], ['Network.getAllCookies', {}], ['Storage.getCookies', {}],
    ['Network.loadNetworkResource', { url: `${site}/echo`, options: { disableCache: true, includeCredentials: true } }],
    ['Network.getCertificate', { origin: origin.origin }], ['Network.getSecurityIsolationStatus', {}], ['SystemInfo.getInfo', {}],
    ['Storage.getStorageKeyForFrame', {}], ['Schema.getDomains', {}], ['Memory.getDOMCounters', {}], ['Page.captureSnapshot', {}],
    ['Page.getResourceTree', {}], ['Page.getNavigationHistory', {}], ['DOMSnapshot.captureSnapshot', { computedStyles: [] }], ['Page.getCookies', {}],
    ['Network.setCookie', { name: 'lab_session', value: 'fixed', domain: origin.hostname, path: '/', httpOnly: true }],
    ['Network.deleteCookies', { name: 'lab_session', domain: origin.hostname, path: '/' }], ['Storage.clearCookies', {}], ['Network.clearBrowserCookies', {}],
    ['Storage.setCookies', { cookies: [{ name: 'lab_session', value: 'fixed', domain: origin.hostname, path: '/' }] }],
  ]) {
    await attempt(method, () => client.send(method, params))
    await attempt('root ' + method, () => root.send(method, params))
  }
  await attempt('Target.attachToBrowserTarget', () => root.send('Target.attachToBrowserTarget'))
  await attempt('Target.getTargets', () => root.send('Target.getTargets', { filter: [{}] }))
  const { targetInfos } = await root.send('Target.getTargets')
  const own = targetInfos.find(t => t.url.includes(origin.host))
  await attempt('Target.sendMessageToTarget', async () => {
    const { sessionId } = await root.send('Target.attachToTarget', { targetId: own.targetId, flatten: false })
    return root.send('Target.sendMessageToTarget', { sessionId, message: JSON.stringify({ id: 1, method: 'Storage.getCookies' }) })
  })
  await attempt('Target.exposeDevToolsProtocol', async () => {
    await root.send('Target.exposeDevToolsProtocol', { targetId: own.targetId, bindingName: 'cdp' })
    return page.evaluate(() => new Promise(yes => { window.cdp.onmessage = m => yes(m); window.cdp.send(JSON.stringify({ id: 1, method: 'Storage.getCookies' })) }))
  })
  await attempt('Target.autoAttachRelated', () => root.send('Target.autoAttachRelated', { targetId: own.targetId, waitForDebuggerOnStart: false }))
  await attempt('Target.setRemoteLocations', () => root.send('Target.setRemoteLocations', { locations: [{ host: '127.0.0.1', port: 9222 }] }))
  await attempt('Target.openDevTools', () => root.send('Target.openDevTools', { targetId: own.targetId }))
  await attempt('escaped method', () => { root.say('{"id":900001,"method":"Storage.get\\u0043ookies"}'); return root.send('Browser.getVersion') })
  await attempt('Fetch both stages', async () => {
    const seen = []
    client.on('Fetch.requestPaused', async e => {
      seen.push(e)
      await client.send('Fetch.continueRequest', { requestId: e.requestId }).catch(() => {})
    })
    await client.send('Fetch.enable', { patterns: [{ requestStage: 'Request' }, { requestStage: 'Response' }], handleAuthRequests: true })
    await page.goto(`${site}/rotate`).catch(() => {})
    await client.send('Fetch.disable')
    return seen
  })
  await attempt('a new cookie of the site', async () => (await page.goto(`${site}/rotate`)).allHeaders())
  await attempt('a redirect', async () => (await page.goto(`${site}/redirect`)).request().redirectedFrom()?.allHeaders())
  await attempt('web socket', () => page.evaluate(() => new Promise(yes => { const s = new WebSocket(location.origin.replace('http', 'ws') + '/ws'); s.onopen = s.onerror = s.onclose = () => yes('tried') })))
  await attempt('service worker', () => page.evaluate(() => navigator.serviceWorker?.register('/sw.js').then(() => 'registered', e => String(e))))
  await attempt('Tracing', async () => {
    await root.send('Tracing.start', { traceConfig: { includedCategories: ['netlog', 'disabled-by-default-netlog.sensitive', 'devtools.timeline'] }, transferMode: 'ReturnAsStream' })
    await page.goto(`${site}/account`)
    return root.send('Tracing.end')
  })
  for (const [method, params] of [['HeapProfiler.takeHeapSnapshot', {}], ['DOMStorage.getDOMStorageItems', { storageId: { securityOrigin: origin.origin, isLocalStorage: true } }],
    ['IndexedDB.requestDatabaseNames', { securityOrigin: origin.origin }], ['CacheStorage.requestCacheNames', { securityOrigin: origin.origin }],
    ['IO.read', { handle: '1' }], ['IO.read', { handle: '2' }], ['Network.replayXHR', { requestId: '1' }], ['Audits.getEncodedResponse', { requestId: '1', encoding: 'webp' }]]) {
    await attempt(method, () => client.send(method, params))
    await attempt('root ' + method, () => root.send(method, params))
  }
  await attempt('all events', async () => events.length)
  await step('playwright: still logged in', async () => {
    await page.goto(`${site}/account`)
    check((await page.textContent('h1')).startsWith('Hello alice'), 'somebody logged the account out')
  })
  root.close()
  await browser.close()
}

async function puppet() {
  const browser = await puppeteer.connect({ browserWSEndpoint: env('WS_URL') })
  const page = await browser.newPage()
  await step('puppeteer: logged in', async () => {
    await page.goto(`${site}/account`)
    check((await page.$eval('h1', e => e.textContent)).startsWith('Hello alice'), 'the account is not used')
  })
  await attempt('page.cookies', () => page.cookies(site))
  await attempt('browser.cookies', () => browser.cookies())
  await attempt('request headers', async () => {
    const seen = []
    page.on('request', r => seen.push(r.headers()))
    page.on('response', r => seen.push(r.headers()))
    await page.goto(`${site}/rotate`)
    return seen
  })
  await attempt('interception', async () => {
    const seen = []
    await page.setRequestInterception(true)
    page.on('request', r => { seen.push(r.headers()); r.continue() })
    await page.goto(`${site}/account`)
    await page.setRequestInterception(false)
    return seen
  })
  await attempt('new context', () => browser.createBrowserContext())
  await browser.disconnect()
}

await playwright()
await puppet()
done()
