// Everything by which a client of the protocol was seen to leave its jail's intent: files, listeners, other ways out,
// other targets.
import { chromium } from 'playwright-core'
import puppeteer from 'puppeteer-core'
import { attempt, step, env, done, raw } from './steps.mjs'

const site = env('SITE')
const browser = await chromium.connectOverCDP(env('WS_URL'))
const context = browser.contexts()[0]
const page = await context.newPage()
// visit goes to a page of the site, past what an attempt may have begun.
const visit = async path => {
  for (let i = 0; ; i++) {
    try { return await page.goto(site + path) } catch (error) { if (i === 20) throw error }
    await new Promise(r => setTimeout(r, 100))
  }
}
await step('connect', async () => { await visit('/upload') })
const client = await context.newCDPSession(page)
const root = await raw(env('WS_URL'))

for (const url of ['file:///etc/passwd', 'view-source:file:///etc/passwd', 'FILE:///etc/passwd', ' file:///etc/passwd', 'fi\tle:///etc/passwd', 'chrome://version', 'chrome://settings', 'devtools://devtools/bundled/inspector.html',
  'javascript:document.title="ran"', 'filesystem:http://x/temporary/a', 'about:blank#x\nfile:///etc/passwd', 'blob:file:///x', 'intent://x', 'ftp://127.0.0.1/']) {
  await attempt(`createTarget ${url}`, async () => {
    const { targetId } = await root.send('Target.createTarget', { url })
    await new Promise(r => setTimeout(r, 150))
    const { targetInfo } = await root.send('Target.getTargetInfo', { targetId })
    await root.send('Target.closeTarget', { targetId })
    return targetInfo.url
  })
  await attempt(`navigate ${url}`, async () => {
    const answer = await client.send('Page.navigate', { url })
    return [answer.errorText, await page.evaluate(() => document.documentElement.outerHTML).catch(() => '')]
  })
}
await visit('/upload')
await attempt('navigate by the page', () => page.evaluate(() => { location.href = 'file:///etc/passwd'; return new Promise(r => setTimeout(() => r(document.body.innerText), 300)) }))
await visit('/upload')
const read = `() => new Promise(yes => { const f = document.querySelector('#file').files[0]; if (!f) return yes('none'); f.text().then(yes, e => yes(String(e))) })`
for (const path of ['/etc/passwd', '../../../etc/passwd', '/proc/self/cmdline', '/proc/self/environ', '/etc/hostname']) {
  await attempt(`DOM.setFileInputFiles ${path}`, async () => {
    const { root: document } = await client.send('DOM.getDocument')
    const { nodeId } = await client.send('DOM.querySelector', { nodeId: document.nodeId, selector: '#file' })
    await client.send('DOM.setFileInputFiles', { nodeId, files: [path] })
    return page.evaluate(`(${read})()`)
  })
  await attempt(`Input.dispatchDragEvent ${path}`, async () => {
    for (const type of ['dragEnter', 'dragOver', 'drop']) {
      await client.send('Input.dispatchDragEvent', { type, x: 20, y: 20, data: { items: [], files: [path], dragOperationsMask: 1 } })
    }
    return page.evaluate(() => window.dropped ?? 'nothing')
  })
}
const { sessionId } = await root.send('Target.attachToBrowserTarget')
const second = { send: (method, params) => root.send(method, params, sessionId) }
for (const [who, c] of [['root', root], ['page', client], ['second root', second]]) {
  for (const [method, params] of [
    ['Browser.setDownloadBehavior', { behavior: 'allow', downloadPath: '/tmp/escaped', eventsEnabled: true }],
    ['Page.setDownloadBehavior', { behavior: 'allow', downloadPath: '/tmp/escaped' }],
    ['Tethering.bind', { port: 19999 }], ['Tethering.accept', { port: 19999, connectionId: 'x' }],
    ['Target.createBrowserContext', { proxyServer: 'http://127.0.0.1:1', proxyBypassList: '*' }],
    ['Target.createBrowserContext', { originsWithUniversalNetworkAccess: [site] }],
    ['Extensions.loadUnpacked', { path: '/tmp' }], ['Extensions.getExtensions', {}], ['SystemInfo.getInfo', {}], ['SystemInfo.getProcessInfo', {}],
    ['Browser.getBrowserCommandLine', {}], ['Browser.executeBrowserCommand', { commandId: 'openTabSearch' }], ['Browser.crash', {}], ['Browser.crashGpuProcess', {}], ['Page.crash', {}],
    ['WebAuthn.enable', {}], ['WebAuthn.addVirtualAuthenticator', { options: { protocol: 'ctap2', transport: 'internal' } }],
    ['Security.setIgnoreCertificateErrors', { ignore: true }], ['Security.setOverrideCertificateErrors', { override: true }],
    ['PWA.install', { manifestId: site }], ['Cast.enable', {}], ['DeviceAccess.enable', {}], ['BluetoothEmulation.enable', { state: 'powered-on', leSupported: true }],
    ['SmartCardEmulation.enable', {}], ['ServiceWorker.enable', {}], ['Page.addCompilationCache', { url: site, data: 'AAAA' }], ['DOM.getFileInfo', { objectId: '1' }], ['IO.resolveBlob', { objectId: '1' }],
    ['FileSystem.getDirectory', { bucketFileSystemLocator: { storageKey: site, pathComponents: [] } }], ['Network.overrideNetworkState', { offline: false, latency: 0, downloadThroughput: 0, uploadThroughput: 0 }],
    ['Emulation.setDocumentCookieDisabled', { disabled: true }], ['Page.setRPHRegistrationMode', { mode: 'autoAccept' }], ['Page.setSPCTransactionMode', { mode: 'autoAccept' }],
    ['Target.setRemoteLocations', { locations: [{ host: '127.0.0.1', port: 1 }] }], ['Target.getDevToolsTarget', { targetId: 'x' }],
  ]) {
    await attempt(`${who} ${method}`, () => c.send(method, params))
  }
}
await attempt('download elsewhere', async () => {
  await visit('/downloads')
  await page.click('#report')
  await new Promise(r => setTimeout(r, 500))
  return 'clicked'
})
await attempt('other targets', async () => (await root.send('Target.getTargets', { filter: [{}] })).targetInfos.map(t => [t.type, t.url]))
await attempt('auto attach to everything', async () => {
  const seen = []
  root.on('Target.attachedToTarget', e => seen.push(e.targetInfo.type))
  await root.send('Target.setAutoAttach', { autoAttach: true, waitForDebuggerOnStart: false, flatten: true, filter: [{ type: 'browser' }, { type: 'tab' }, {}] })
  await new Promise(r => setTimeout(r, 300))
  return seen
})
await attempt('ignoreHTTPSErrors', async () => (await browser.newContext({ ignoreHTTPSErrors: true })).close())
await attempt('proxy of a context', async () => (await browser.newContext({ proxy: { server: 'http://127.0.0.1:1' } })).close())
root.close()
await step('the browser is still there', async () => { await visit('/upload') })
await browser.close()
const pup = await puppeteer.connect({ browserWSEndpoint: env('WS_URL') })
const tab = await pup.newPage()
await attempt('puppeteer file', async () => { await tab.goto('file:///etc/passwd'); return tab.content() })
await attempt('puppeteer upload', async () => {
  await tab.goto(`${site}/upload`)
  await (await tab.$('#file')).uploadFile('/etc/passwd')
  return tab.evaluate(`(${read})()`)
})
await pup.disconnect()
done()
