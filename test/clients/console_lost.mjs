// A connection that is lost and comes back.
import { equal, check, env, done } from './steps.mjs'
import { scene, openBrowser, signIn, Picture, until, must, stage, shot } from './operator.mjs'

const site = env('SITE')
const browser = await openBrowser()
const context = await browser.newContext({ viewport: { width: 1400, height: 1000 } })
let session, picture

await scene('an operator steers', async () => {
  session = await must('POST', '/v1/sessions', {})
  await must('POST', `/v1/sessions/${session.id}/navigate`, { url: site + '/fields' })
  picture = await new Picture(await signIn(context, { next: `/console/sessions/${session.id}` })).seen()
  await picture.page.getByRole('button', { name: 'Take over' }).click()
  await picture.steers()
  await picture.field(0)
  await picture.type('before')
  await picture.titled('before|0')
})
await scene('the connection is lost, and the page says so', async () => {
  await stage('cut')
  await picture.says('Connection lost, trying again')
  equal(await picture.root.locator('.live-note').getAttribute('role'), 'status')
  await shot(picture.page, 'lost')
})
await scene('it comes back by itself, and the operator still steers', async () => {
  const since = (await must('GET', `/v1/sessions/${session.id}`)).control.since
  await stage('mend')
  await until('the note is gone', async () => (await picture.root.locator('.live-note').textContent()) === '')
  await picture.steers()
  equal((await must('GET', `/v1/sessions/${session.id}`)).control.since, since, 'since when they steer')
  await picture.seen()
  await picture.field(0)
  await picture.press('End')
  await picture.type(' after')
  await picture.titled('before after|0')
})
await scene('a session that ends is not tried again', async () => {
  await must('DELETE', `/v1/sessions/${session.id}?wait=true`)
  // The view says so, and seconds later, or at once, the page is loaded again and tells how it has ended.
  await picture.page.getByText('It is over').or(picture.page.getByRole('heading', { name: 'It has ended' })).first().waitFor()
  check(!(await picture.page.locator('body').innerText()).includes('trying again'), 'it is tried again')
})
await browser.close()
done()
