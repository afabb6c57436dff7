// The keyboards of people: what a layout makes of a key is what the page in the jail gets, and what they paste is a paste there.
import { equal, check, env, done } from './steps.mjs'
import { scene, openBrowser, signIn, Picture, until, must, shot } from './operator.mjs'

const site = env('SITE')
const browser = await openBrowser()
const context = await browser.newContext({ viewport: { width: 1400, height: 1000 }, permissions: ['clipboard-read', 'clipboard-write'] })
let session, page, picture, keyboard

// Modifiers of the DevTools protocol. It has none for AltGr, so such a key is an event of the page's own.
const alt = 1, ctrl = 2, meta = 4, shift = 8
const down = (key, code, modifiers = 0, more = {}) => keyboard.send('Input.dispatchKeyEvent', { type: 'rawKeyDown', key, code, modifiers, ...more })
const up = (key, code, modifiers = 0, more = {}) => keyboard.send('Input.dispatchKeyEvent', { type: 'keyUp', key, code, modifiers, ...more })
const press = async (...key) => { await down(...key); await up(...key) }
const event = (type, init) => page.evaluate(([type, init]) => document.activeElement.dispatchEvent(new KeyboardEvent(type, { bubbles: true, cancelable: true, ...init })), [type, init])
const altGr = async (key, code, more = {}) => { for (const type of ['keydown', 'keyup']) await event(type, { key, code, modifierAltGraph: true, ...more }) }
const typed = text => keyboard.send('Input.insertText', { text }) // what comes without a key

// dead is an accent and its letter: the letter's own key says less than what the two make.
const dead = async (accent, letter, made) => {
  await press('Dead', accent)
  await down(letter, 'Key' + letter.toUpperCase())
  await typed(made)
  await up(letter, 'Key' + letter.toUpperCase())
}
// holds waits until the page says what its field has, and what the last key was. It is asked at once: the live view tells of titles later.
const holds = (text, last) => until(`the page has ${text} ${last ?? ''}`, async () => {
  const { value } = await must('POST', `/v1/sessions/${session.id}/eval`, { js: 'document.title' })
  const title = value.replace(/ @0$/, ''), wanted = JSON.stringify(text)
  return (title + ' ').startsWith(wanted + ' ') && (last === undefined || title === `${wanted} ${last}`) || Promise.reject(new Error(title))
})
const clear = async () => { await press('a', 'KeyA', ctrl); await press('Backspace', 'Backspace'); await holds('') }

// enter opens the live view as a person with such a machine has it.
async function enter(platform) {
  await keyboard.send('Emulation.setUserAgentOverride', { userAgent: await page.evaluate(() => navigator.userAgent), platform })
  await page.goto(`${env('CONSOLE')}/console/sessions/${session.id}`)
  picture = await new Picture(page).seen()
}
const arrive = async (path, title) => {
  await picture.go(site + path)
  await picture.titled(title)
}

const layouts = [
  ['Win32', 'US', async () => { await press('a', 'KeyA'); await press('#', 'Digit3', shift) }, 'a#'],
  ['Win32', 'German', async () => { await press('z', 'KeyY'); await altGr('@', 'KeyQ'); await altGr('€', 'KeyE', { ctrlKey: true, altKey: true }) }, 'z@€'],
  ['Win32', 'Swedish, AltGr as Ctrl+Alt', async () => { await press('@', 'Digit2', ctrl | alt); await press('å', 'BracketLeft') }, '@å'],
  ['Win32', 'French, with a dead key', async () => { await press('q', 'KeyA'); await dead('BracketLeft', 'e', 'ê'); await press('1', 'Digit1', shift) }, 'qê1'],
  ['Linux x86_64', 'Polish', async () => { await altGr('ą', 'KeyA'); await altGr('Ł', 'KeyL', { shiftKey: true }) }, 'ąŁ'],
  ['Linux x86_64', 'Russian', async () => { await press('ф', 'KeyA'); await press('Ы', 'KeyS', shift) }, 'фЫ'],
  ['Linux x86_64', 'Czech', async () => { await press('ě', 'Digit2'); await altGr('#', 'KeyX'); await press('2', 'Digit2', shift) }, 'ě#2'],
  ['Win32', 'Japanese', async () => {
    await keyboard.send('Input.imeSetComposition', { text: 'かん', selectionStart: 2, selectionEnd: 2 })
    await holds('かん')
    await typed('漢')
  }, '漢'],
  ['MacIntel', 'British', async () => { await press('#', 'Digit3', alt); await press('£', 'Digit3', shift); await press('€', 'Digit2', alt) }, '#£€'],
  ['MacIntel', 'Norwegian', async () => { await press('@', 'Digit2', alt); await press('|', 'Digit7', alt); await press('{', 'Digit8', alt | shift) }, '@|{'],
  ['MacIntel', 'Hebrew, Latin letters with Option', async () => { await press('ש', 'KeyA'); await press('q', 'KeyQ', alt) }, 'שq'],
  ['MacIntel', 'Spanish, with a dead key', async () => { await dead('BracketLeft', 'a', 'à'); await press('ñ', 'Semicolon'); await press('@', 'Digit2', alt) }, 'àñ@'],
]

await scene('an operator has a browser in hand', async () => {
  session = await must('POST', '/v1/sessions', {})
  await must('POST', `/v1/sessions/${session.id}/navigate`, { url: site + '/keys' })
  page = await signIn(context)
  keyboard = await context.newCDPSession(page)
  await enter('Win32')
  await page.getByRole('button', { name: 'Take over' }).click()
  await picture.steers()
})
let machine = 'Win32'
// at is in front of such a machine, with the focus in the page's field.
const at = async platform => {
  if (platform !== machine) { await enter(platform); await picture.steers() }
  machine = platform
  await picture.field(0)
}
for (const platform of ['Win32', 'Linux x86_64', 'MacIntel']) {
  await scene(`layouts on ${platform}`, async () => {
    await at(platform)
    for (const [on, layout, hit, want] of layouts) {
      if (on !== platform) continue
      await hit()
      await holds(want).catch(error => { throw new Error(`${layout}: ${error.message}`) })
      await clear()
    }
  })
}
await scene('on a Mac Command is Control, and no key stays down', async () => {
  await press('a', 'KeyA')
  await down('Meta', 'MetaLeft', meta)
  await down('z', 'KeyZ', meta) // a Mac says nothing when it goes up
  await up('Meta', 'MetaLeft')
  await holds('', 'C-z up:Control')
  await press('ArrowLeft', 'ArrowLeft', alt)
  await holds('', 'A-ArrowLeft')
  await press('a', 'KeyA', meta | shift)
  await holds('', 'C-S-a')
})
await scene('shortcuts stay shortcuts elsewhere, on every layout', async () => {
  await at('Win32')
  await press('3', 'Digit3', alt)
  await holds('', 'A-3')
  await press('1', 'Digit1', ctrl | alt)
  await holds('', 'C-A-1')
  await press('ArrowRight', 'ArrowRight', ctrl | shift)
  await holds('', 'C-S-ArrowRight')
  await press('A', 'KeyA') // Caps Lock
  await holds('A', 'A')
  await press('я', 'KeyZ', ctrl)
  await holds('', 'C-я')
})
await scene('the number block, a key that is held, and one that is held when the focus goes', async () => {
  await press('5', 'Numpad5', 0, { isKeypad: true, location: 3 })
  await press(',', 'NumpadDecimal', 0, { isKeypad: true, location: 3 })
  await press('Home', 'Numpad7', 0, { isKeypad: true, location: 3 })
  await holds('5,', 'Home')
  await down('x', 'KeyX')
  await down('x', 'KeyX', 0, { autoRepeat: true })
  await up('x', 'KeyX')
  await holds('xx5,', 'x again')
  await down('q', 'KeyQ')
  await press('F8', 'F8')
  await holds('xxq5,', 'q up:q')
  await picture.field(0)
  await clear()
})
await scene('emoji, with a key and without', async () => {
  await typed('👩‍🚀')
  await holds('👩‍🚀')
  await event('keydown', { key: '😀', code: '' })
  await event('keyup', { key: '😀', code: '' })
  await event('keydown', { key: '🇸🇪', code: '' })
  await holds('👩‍🚀😀🇸🇪')
  await clear()
})
await scene('the keyboard of a phone: no key says what it is, and it deletes', async () => {
  const silent = async what => { await press('Unidentified', '', 0, { windowsVirtualKeyCode: 229 }); await what() }
  const delete_ = () => page.evaluate(() => document.execCommand('delete'))
  await silent(() => typed('h'))
  await holds('h', 'h') // pages that listen to keys hear it
  await silent(() => typed('ello'))
  await silent(delete_)
  await silent(delete_)
  await silent(() => typed('p'))
  await silent(() => page.evaluate(() => document.execCommand('insertLineBreak')))
  await silent(() => keyboard.send('Input.imeSetComposition', { text: 'wor', selectionStart: 3, selectionEnd: 3 }))
  await silent(() => keyboard.send('Input.imeSetComposition', { text: 'word', selectionStart: 4, selectionEnd: 4 }))
  await silent(() => typed('word'))
  await silent(() => typed(' '))
  await holds('help\nword ')
  await clear()
})
await scene('Ctrl+V pastes what the person has, also on a layout without Latin letters', async () => {
  const own = text => page.evaluate(text => navigator.clipboard.writeText(text), text)
  const paste = (key, code, modifiers) => down(key, code, modifiers, { commands: ['paste'] })
  await own('one\ntwo 𝒳')
  await paste('v', 'KeyV', ctrl)
  await holds('one\ntwo 𝒳')
  await clear()
  await own('hunter2')
  await paste('м', 'KeyV', ctrl)
  await holds('hunter2')
  await picture.root.getByRole('button', { name: 'Paste', exact: true }).click()
  await holds('hunter2hunter2')
  await own('before')
})
await scene('Copy brings what is selected, when the person asks, and nothing else does', async () => {
  const own = () => page.evaluate(() => navigator.clipboard.readText())
  await picture.root.getByRole('button', { name: 'Copy', exact: true }).click()
  await picture.says('Nothing is selected')
  equal(await own(), 'before', 'the clipboard')
  await picture.field(0)
  await press('a', 'KeyA', ctrl)
  await press('с', 'KeyC', ctrl) // Russian
  await until('the copy', async () => (await own()) === 'hunter2hunter2')
  await press('x', 'KeyX', ctrl)
  await press('c', 'KeyC', ctrl) // before the cut is answered; nothing is selected then, and the key is the page's own
  await holds('', 'C-c')
  equal(await own(), 'hunter2hunter2', 'the clipboard behind both')
})
await scene('a code fills its boxes, and a text that is too large says so', async () => {
  await arrive('/boxes', 'boxes')
  await picture.field(0)
  await picture.paste('123')
  await picture.field(1)
  await picture.titled('1|2|3')
  await picture.paste('x'.repeat(1 << 20))
  await picture.says('At most 1 MB can be pasted at once')
  await picture.steers()
})
await scene('where a browser shows no page its clipboard, the text is pasted by hand', async () => {
  await context.clearPermissions()
  await page.evaluate(() => { navigator.clipboard.readText = () => Promise.reject(new Error('not allowed')) })
  await picture.root.getByRole('button', { name: 'Paste', exact: true }).click()
  await picture.root.getByLabel('The text to paste').fill('987')
  await shot(page, 'paste-by-hand')
  await picture.root.getByRole('button', { name: 'Paste it there' }).click()
  await picture.field(2)
  await picture.titled('1|9|8')
})
await scene('no page had a problem', async () => equal(page.problems.join('\n'), ''))
await must('DELETE', `/v1/sessions/${session.id}?wait=true`)
await browser.close()
done()
