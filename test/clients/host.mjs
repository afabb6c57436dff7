// Playwright and Puppeteer with the endpoint of the host browser.
import { chromium } from 'playwright-core'
import puppeteer from 'puppeteer-core'
import { step, attempt, equal, env, done } from './steps.mjs'

const site = env('SITE')
await step('playwright', async () => {
  const browser = await chromium.connectOverCDP(env('CDP_URL'))
  const page = await browser.contexts()[0].newPage()
  await page.goto(`${site}/frames`)
  equal(await page.textContent('h1'), 'frames')
  await browser.close()
})
await step('puppeteer', async () => {
  const browser = await puppeteer.connect({ browserWSEndpoint: env('WS_URL') })
  const page = (await browser.pages()).find(p => p.url().endsWith('/frames'))
  equal(await page.$eval('h1', e => e.textContent), 'frames')
  await browser.disconnect()
})
await attempt('without a token', async () => (await chromium.connectOverCDP(new URL('/', env('CDP_URL')).href)).close())
done()
