import { raw } from './steps.mjs'
import { must } from './operator.mjs'
const site = process.env.SITE
for (const browser of ['full', 'shell']) {
  const s = await must('POST', '/v1/sessions', { browser, access: 'cdp' })
  await must('POST', `/v1/sessions/${s.id}/navigate`, { url: site + '/fields' })
  const t = await must('POST', `/v1/sessions/${s.id}/tokens`, { scope: 'cdp' })
  await must('POST', `/v1/sessions/${s.id}/eval`, { expression: 'document.title="two"' }).catch(e => console.log(String(e)))
  const r = await raw(t.ws_url)
  r.on('Target.targetInfoChanged', p => console.log(browser, 'changed', p.targetInfo.title))
  await r.send('Target.setDiscoverTargets', { discover: true })
  const { targetInfos } = await r.send('Target.getTargets')
  const id = targetInfos.find(i => i.type === 'page').targetId
  const { sessionId } = await r.send('Target.attachToTarget', { targetId: id, flatten: true })
  await r.send('Runtime.evaluate', { expression: 'document.title="three"' }, sessionId)
  await new Promise(y => setTimeout(y, 500))
  console.log(browser, (await r.send('Target.getTargets')).targetInfos.map(i => i.title))
  r.close()
  await must('DELETE', `/v1/sessions/${s.id}?wait=true`)
}
process.exit(0)
