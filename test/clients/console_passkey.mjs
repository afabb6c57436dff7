// Signing in with a passkey: an authenticator that is made of software, in the browser of an operator.
import { equal, check, env, done } from './steps.mjs'
import { scene, openBrowser, signIn, until, must, shot, consoleURL } from './operator.mjs'

const name = 'pat' + Date.now()
const browser = await openBrowser()
const context = await browser.newContext({ viewport: { width: 1400, height: 1000 } })
let operator, page, device, authenticator

const trouble = text => until(`the sentence ${text}`, async () => {
  const got = await page.locator('#passkey-problem').textContent()
  return got.includes(text) || Promise.reject(new Error(`it says ${got}`))
})
const keys = async () => (await device.send('WebAuthn.getCredentials', { authenticatorId: authenticator })).credentials
const willing = yes => device.send('WebAuthn.setUserVerified', { authenticatorId: authenticator, isUserVerified: yes })
const add = async called => {
  await page.goto(consoleURL + '/console/settings/people')
  await page.getByLabel('Name of a new passkey').fill(called)
  await page.getByRole('button', { name: 'Add a passkey' }).click()
}
const signOut = async () => {
  await page.getByRole('button', { name: 'Sign out' }).click()
  await page.waitForURL(/\/console\/sign-in/)
  equal((await context.cookies()).length, 0, 'cookies after signing out')
}
const enter = () => page.getByRole('button', { name: 'Sign in with a passkey' }).click()

await scene('an operator signs in with their key', async () => {
  check(new URL(consoleURL).hostname === 'localhost', consoleURL)
  operator = await must('POST', '/v1/operators', { name, role: 'operator', tenant: 'default' })
  page = await signIn(context, { key: operator.key })
  device = await context.newCDPSession(page)
  await device.send('WebAuthn.enable')
  authenticator = (await device.send('WebAuthn.addVirtualAuthenticator', { options: { protocol: 'ctap2', transport: 'internal', hasResidentKey: true,
    hasUserVerification: true, isUserVerified: true, automaticPresenceSimulation: true } })).authenticatorId
})
await scene('a passkey is added in the settings', async () => {
  await add('my <b>laptop</b>')
  await until('its line', async () => await page.getByRole('cell', { name: 'my <b>laptop</b>' }).count() === 1 || Promise.reject(new Error(await page.locator('#passkey-problem').textContent())))
  const all = await keys()
  equal(all.length, 1, 'keys on the device')
  equal(all[0].rpId, 'localhost')
  await shot(page, 'passkey-added')
})
await scene('a device that has one already says so', async () => {
  await add('again')
  await trouble('This device has a passkey of yours already')
  equal((await keys()).length, 1, 'keys on the device')
})
await scene('it signs in, without the key, as the same person', async () => {
  await signOut()
  await page.goto(consoleURL + '/console/sign-in?next=/console/settings/people')
  await enter()
  await page.waitForURL(consoleURL + '/console/settings/people')
  await page.getByRole('cell', { name: 'my <b>laptop</b>' }).waitFor()
  check((await page.textContent('body')).includes(name), 'the page does not say who is signed in')
  const cookies = await context.cookies()
  check(cookies.length === 1 && cookies[0].httpOnly && cookies[0].sameSite === 'Strict', JSON.stringify(cookies))
  const { rows } = await must('GET', '/v1/audit?limit=200')
  check(rows.some(r => JSON.stringify(r).includes('passkey') && JSON.stringify(r).includes(operator.operator.id)), 'the audit log does not say so')
})
await scene('who is not known to the device is not signed in', async () => {
  await signOut()
  await willing(false)
  await page.goto(consoleURL + '/console/sign-in')
  await enter()
  await trouble('It was not finished')
  equal((await context.cookies()).length, 0, 'cookies')
  await willing(true)
})
await scene('an answer that was given once is not good twice', async () => {
  const sent = page.waitForRequest(r => r.url().endsWith('/console/sign-in/passkey'))
  await enter()
  const answer = (await sent).postData()
  await page.waitForURL(consoleURL + '/console/')
  const again = await fetch(consoleURL + '/console/sign-in/passkey', { method: 'POST', headers: { 'Content-Type': 'application/json', Accept: 'application/json' }, body: answer })
  check(again.status >= 400 && !again.headers.get('set-cookie'), `${again.status}`)
})
await scene('one that was removed is not good any more', async () => {
  await page.goto(consoleURL + '/console/settings/people')
  await page.getByText('Remove…').click()
  await page.getByRole('button', { name: 'Remove it' }).click()
  await until('it is gone', async () => await page.getByRole('cell', { name: 'my <b>laptop</b>' }).count() === 0)
  equal((await keys()).length, 1, 'keys on the device')
  await signOut()
  await page.goto(consoleURL + '/console/sign-in')
  await enter()
  await until('a sentence', async () => (await page.locator('#passkey-problem').textContent()).length > 10)
  equal((await context.cookies()).length, 0, 'cookies')
  return page.locator('#passkey-problem').textContent()
})
await scene('an operator who was revoked is not signed in by theirs', async () => {
  await device.send('WebAuthn.clearCredentials', { authenticatorId: authenticator })
  const again = await signIn(context, { key: operator.key })
  await again.close()
  await add('new')
  await page.getByRole('cell', { name: 'new', exact: true }).waitFor()
  await must('DELETE', `/v1/operators/${operator.operator.id}`)
  await page.goto(consoleURL + '/console/sign-in')
  await enter()
  await until('a sentence', async () => (await page.locator('#passkey-problem').textContent()).length > 10)
  check(page.url().includes('/console/sign-in'), page.url())
})
await scene('at an address without a name the page says where passkeys are', async () => {
  const other = await context.newPage()
  await other.goto(consoleURL.replace('localhost', '127.0.0.1') + '/console/sign-in')
  await other.getByRole('button', { name: 'Sign in with a passkey' }).click()
  await until('a sentence', async () => (await other.locator('#passkey-problem').textContent()).includes('http://localhost:'))
  await other.close()
})
await scene('a page at another port has none of the console\'s', async () => {
  const other = await context.newPage()
  await other.goto(env('ELSEWHERE') + '/console/sign-in')
  await other.getByRole('button', { name: 'Sign in with a passkey' }).click()
  await until('a sentence', async () => (await other.locator('#passkey-problem').textContent()).includes('open the console in a browser, at its own address'))
  await other.close()
})
await browser.close()
done()
