// Logging in for agents, in the console: three ways to begin, one login that is kept, one that is not.
import { equal, check, env, done } from './steps.mjs'
import { scene, openBrowser, signIn, Picture, until, call, must, stage, shot, consoleURL } from './operator.mjs'

const site = env('SITE'), domain = 'example.org'
const browser = await openBrowser()
const context = await browser.newContext({ viewport: { width: 1400, height: 1000 } })
let page, picture, id

const sessions = async () => (await must('GET', '/v1/sessions')).sessions
const sets = async () => (await must('GET', '/v1/cookies')).sets
const logIn = async () => {
  await picture.titled('log in')
  await picture.field(0)
  await picture.type('alice')
  await picture.titled('alice|0')
  await picture.field(1)
  await picture.paste(env('PASSWORD'))
  await picture.titled(`alice|${env('PASSWORD').length}`)
  await picture.row(2)
  await picture.titled('second factor')
  await picture.field(0)
  await picture.type(env('CODE'))
  await picture.press('Enter')
  await picture.titled('account of alice, with picture')
}

await scene('sign in by a link that is good once', async () => {
  const { url } = await must('POST', '/v1/console/links')
  page = await signIn(context, { link: url })
  equal(new URL(page.url()).pathname, '/console/')
  const stranger = await browser.newContext()
  const again = await stranger.newPage()
  await again.goto(consoleURL + new URL(url).pathname + new URL(url).search)
  await again.getByRole('button', { name: 'Sign in', exact: true }).click()
  await again.getByText('Use a key instead').or(again.getByRole('alert')).first().waitFor()
  check(new URL(again.url()).pathname === '/console/sign-in', 'the link was good twice')
  equal((await stranger.cookies()).length, 0, 'cookies of the stranger')
  await stranger.close()
})
await scene('open a browser to log in with', async () => {
  await page.goto(consoleURL + '/console/refresh')
  await page.getByRole('heading', { name: 'Log in to a site for your agents' }).waitFor()
  await page.getByLabel('Site', { exact: true }).fill(domain)
  await page.getByLabel('Where to begin').fill(site + '/login')
  await page.getByRole('button', { name: 'Open the browser' }).click()
  await page.waitForURL(/\/console\/refresh\/s_/)
  id = page.url().split('/').pop()
  picture = await new Picture(page).seen()
  await picture.steers()
})
await scene('it is nobody else\'s', async () => {
  for (const [method, path, body] of [['POST', 'take-over', {}], ['POST', 'tokens', { scope: 'cdp' }], ['GET', 'tabs'], ['GET', 'thumbnail']]) {
    const { status } = await call(method, `/v1/sessions/${id}/${path}`, body)
    check(status >= 400 && status < 500, `${path}: ${status}`)
  }
})
await scene('log in with mouse, keys, paste and a second factor', async () => {
  await shot(page, 'refresh-login')
  await logIn()
})
await scene('the cookies are listed by name, without values', async () => {
  const seen = page.locator('#seen')
  await until('the cookies', async () => (await seen.textContent()).includes('portal_session'))
  const text = await seen.textContent()
  for (const name of ['portal_session', 'portal_remember', 'HttpOnly', 'SameSite=Lax']) check(text.includes(name), `${name} is missing: ${text}`)
  await shot(page, 'refresh-seen')
})
await scene('the tabs are those of pages, and no parts of the window', async () => {
  equal((await page.getByRole('tab').allTextContents()).join(), 'account of alice, with picture')
})
await scene('what is ticked stays so while the list is renewed', async () => {
  const host = page.getByLabel('cdn.example.com')
  check(!(await host.isChecked()), 'cdn.example.com is chosen at first')
  await host.check()
  const marker = page.getByLabel('What only such a page has')
  await marker.fill('.written-by-hand')
  await picture.go(site + '/mark')
  await until('the list is renewed', async () => (await page.locator('#seen').textContent()).includes('portal_mark'))
  check(await page.getByLabel('cdn.example.com').isChecked(), 'the choice was lost')
  equal(await marker.inputValue(), '.written-by-hand', 'the marker that was written')
  await until('the page is proposed', async () => (await page.getByLabel('Page', { exact: true }).inputValue()) === site + '/mark')
  check(await page.locator(`input[name="domain"][value="${domain}"]`).isChecked(), 'the site is not chosen')
})
await scene('Done keeps the account, and ends the browser', async () => {
  await page.getByRole('button', { name: 'Done: keep what is ticked' }).click()
  await page.waitForURL(/\/console\/credentials/)
  check((await page.locator('main').textContent()).includes('Stored: example.org (3 cookies)'), await page.locator('.told').first().textContent())
  await until('the session is gone', async () => !(await sessions()).some(s => s.id === id && !s.ended))
  const all = await sets()
  equal(all.length, 1, 'number of accounts')
  equal(all[0].domain, domain)
  equal(JSON.stringify(all[0].egress_domains), '["cdn.example.com"]')
  equal(JSON.stringify(all[0].signed_in), JSON.stringify({ page: site + '/mark', marker: '.written-by-hand' }))
})
await scene('the audit log says so', async () => {
  const { rows } = await must('GET', `/v1/audit?session=${id}&limit=1000`)
  for (const action of ['session.refresh', 'cookies.capture', 'session.watch', 'session.close']) {
    check(rows.some(r => r.action === action), `no ${action} in ${[...new Set(rows.map(r => r.action))]}`)
  }
})
await scene('a grant proposes the other domain, and an agent\'s session is logged in', async () => {
  await page.goto(`${consoleURL}/console/credentials/grants/issue?domain=${domain}`)
  check(await page.getByLabel('and what its site needs: cdn.example.com').isChecked(), 'it is not proposed')
  await page.getByRole('button', { name: 'Issue the grant' }).click()
  await page.locator('[data-copy="token"]').waitFor() // behind the token, which may come in two pieces
  const token = (await page.locator('#token').textContent()).trim()
  const opened = await must('POST', '/v1/sessions', { credential_mode: 'operator', domains: [domain], grant: token, access: 'tools' })
  id = opened.id
  await must('POST', `/v1/sessions/${id}/navigate`, { url: site + '/account' })
  await until('the account', async () => JSON.stringify(await must('GET', `/v1/sessions/${id}/tabs`)).includes('account of alice, with picture'))
  check(JSON.stringify(await must('GET', `/v1/sessions/${id}/snapshot`)).includes('Hello alice'), 'alice is not greeted')
})
await scene('a session that is asked to log in makes an alert on the overview', async () => {
  await stage('log-out')
  const answer = await call('POST', `/v1/sessions/${id}/navigate`, { url: site + '/account' })
  equal(answer.value.code, 'login_needed', 'in the place of the page')
  await until('the alert', async () => (await must('GET', '/v1/accounts/needs-refresh')).accounts.some(a => a.domain === domain))
  await must('DELETE', `/v1/sessions/${id}?wait=true`)
  await page.goto(consoleURL + '/console/')
  await page.getByRole('button', { name: 'Log in again' }).click()
  await page.waitForURL(/\/console\/refresh\/s_/)
  id = page.url().split('/').pop()
  picture = await new Picture(page).seen()
  await picture.steers()
  await picture.go(site + '/login')
  await logIn()
})
await scene('Cancel keeps nothing', async () => {
  const before = JSON.stringify(await sets())
  await page.getByText('Cancel…').click()
  await page.getByRole('button', { name: 'Cancel the login' }).click()
  await page.waitForURL(/\/console\/refresh$/)
  check((await page.locator('main').textContent()).includes('Nothing of example.org was stored'), 'it does not say that nothing was kept')
  await until('the session is gone', async () => !(await sessions()).some(s => s.id === id && !s.ended))
  equal(JSON.stringify(await sets()), before, 'accounts')
  check((await must('GET', '/v1/accounts/needs-refresh')).accounts.length === 1, 'the alert is gone')
})
await scene('begun at a terminal: the link leads to the browser', async () => {
  const link = await stage('cookies-refresh')
  const other = await browser.newContext({ viewport: { width: 1400, height: 1000 } })
  page = await signIn(other, { link })
  check(/\/console\/refresh\/s_/.test(page.url()), page.url())
  picture = await new Picture(page).seen()
  await logIn()
  await until('the cookies', async () => (await page.locator('#seen').textContent()).includes('portal_session'))
  await page.getByRole('button', { name: 'Done: keep what is ticked' }).click()
  await page.waitForURL(/\/console\/credentials/)
  check((await must('GET', '/v1/accounts/needs-refresh')).accounts.length === 0, 'the alert is still there')
})
await scene('no page had a problem', async () => equal(page.problems.join('\n'), ''))
await browser.close()
done()
