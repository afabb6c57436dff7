// The keyboard and the clipboard of the person who steers. A field that nobody sees takes the keys, so that input methods, dictation,
// pickers of emoji and the keyboards of phones work. F8 gives the keyboard back; so does the button below the picture.
//
// A key counts as what the person's layout made of it. A key with AltGr, or with Option on a Mac, counts as the sign that it makes,
// and is no shortcut. A text that comes without a key arrives as an input of the field.

const ownKeys = ['F8', 'F11', 'F12']; // stay the console's
const notYet = ['Dead', 'Compose', 'Process', 'Unidentified']; // the text comes later
const mac = /Mac|iPhone|iPad/.test(navigator.platform);
const maxMessage = 1 << 20; // bytes, of the server's
const filler = '  '; // the keyboard of a phone deletes nothing from an empty field
const deletions = {
  deleteContentBackward: ['Backspace'], deleteContentForward: ['Delete'],
  deleteWordBackward: ['Backspace', 2], deleteWordForward: ['Delete', 2],
};

export class Keyboard {
  constructor(view) {
    this.view = view;
    this.field = view.root.querySelector('.live-keys');
    this.down = new Map(); // what was sent for the keys that are down, by their place
    this.accent = false; // a dead key waits for its letter
    this.composing = false;
    this.copies = []; // that were asked for and not answered, in their order
    const on = (name, handle) => this.field.addEventListener(name, handle);
    view.canvas.addEventListener('keydown', (event) => {
      if (event.key === 'Enter' && view.mine) { event.preventDefault(); this.focus(); }
    });
    on('keydown', (event) => this.keydown(event));
    on('keyup', (event) => this.keyup(event));
    on('compositionstart', () => { this.composing = true; });
    on('compositionupdate', (event) => view.input({ type: 'compose', text: event.data, start: event.data.length, end: event.data.length }));
    on('compositionend', (event) => {
      this.composing = false;
      view.input(event.data ? { type: 'commit', text: event.data } : { type: 'compose', text: '' });
      this.empty();
    });
    on('input', (event) => this.input(event));
    on('paste', (event) => { event.preventDefault(); this.paste(event.clipboardData.getData('text/plain')); });
    on('focus', () => { this.empty(); view.bar.typing(true); });
    on('blur', () => { view.bar.typing(false); this.raise(); });
  }

  focus() { this.field.focus({ preventScroll: true }); }

  release() { this.field.blur(); this.view.canvas.focus({ preventScroll: true }); }

  keydown(event) {
    const { key } = event;
    if (ownKeys.includes(key)) { if (key === 'F8') { event.preventDefault(); this.release(); } return; }
    if (!this.view.mine) return;
    if (event.isComposing || event.keyCode === 229 || notYet.includes(key)) { this.accent = key === 'Dead' || key === 'Compose'; return; }
    const shortcut = mac ? event.metaKey : event.ctrlKey && !event.altKey && !event.getModifierState('AltGraph');
    const letter = shortcut ? latin(event) : '';
    const writes = !named(key) && !shortcut;
    if (this.accent && writes) return; // the field gets what the two make
    if (!['Shift', 'AltGraph', 'CapsLock'].includes(key)) this.accent = false;
    if (letter === 'v' || (key === 'Insert' && event.shiftKey)) return; // comes as a paste
    if (mac && event.ctrlKey && event.metaKey && key === ' ') return; // the picker of emoji
    event.preventDefault();
    const copies = letter === 'c' || (key === 'Insert' && event.ctrlKey) ? 'copy' : letter === 'x' || (key === 'Delete' && event.shiftKey && !event.ctrlKey) ? 'cut' : '';
    if (copies) { if (!event.repeat) this.copy(copies, !mac && letter === 'c'); return; }
    if (writes && [...key].length > 1) { this.view.input({ type: 'commit', text: key }); return; }
    const made = writes && (event.getModifierState('AltGraph') || (mac && event.altKey && !event.ctrlKey));
    const place = event.code || key;
    const sent = { key: asControl(key), code: asControl(event.code), location: event.location, made };
    this.down.set(place, sent);
    this.send('keydown', sent, event);
    // A Mac does not say when a key goes up while Command is down.
    if (mac && event.metaKey && key !== 'Meta' && key !== 'Shift') this.up(place, event);
  }

  keyup(event) {
    if (!this.down.has(event.code || event.key)) return;
    event.preventDefault();
    this.up(event.code || event.key, event);
  }

  up(place, event) {
    const sent = this.down.get(place);
    this.down.delete(place);
    this.send('keyup', sent, event);
  }

  send(type, { made, ...key }, event) {
    this.view.input({ type, ...key, repeat: (type === 'keydown' && event?.repeat) || undefined, modifiers: event && modifiers(event, made) });
  }

  // raise lets go of every key that is down: no keyup comes for them any more.
  raise() {
    for (const sent of [...this.down.values()].reverse()) this.send('keyup', sent);
    this.down.clear();
    this.accent = false;
  }

  // let is for when the person does not steer any more.
  let() { this.down.clear(); this.accent = false; this.copies = []; }

  // input takes what got into the field without a key, and empties it.
  input(event) {
    if (this.composing || event.isComposing) return;
    this.accent = false;
    const { value } = this.field;
    this.empty();
    if (!this.view.mine || event.inputType?.startsWith('history')) return;
    if (deletions[event.inputType]) { this.tap(...deletions[event.inputType]); return; }
    let same = 0;
    while (same < filler.length && value[same] === filler[same]) same++;
    for (let n = same; n < filler.length; n++) this.tap('Backspace');
    for (const text of value.slice(same).split(/(\n)/)) {
      if (text === '\n') this.tap('Enter');
      else if (/^[ -~]$/.test(text)) this.tap(text); // some pages listen to keys alone
      else if (text) this.view.input({ type: 'commit', text });
    }
  }

  empty() {
    if (this.field.value !== filler) this.field.value = filler;
    this.field.setSelectionRange(filler.length, filler.length);
  }

  tap(key, modifiers) {
    for (const type of ['keydown', 'keyup']) this.view.input({ type, key, code: named(key) ? key : undefined, modifiers });
  }

  paste(text) {
    if (!this.view.mine) return;
    if (!text) { this.view.say('Only text can be pasted, and there is none.', 'for a while'); return; }
    const input = { type: 'text', text };
    if (new Blob([JSON.stringify(input)]).size > maxMessage) {
      this.view.say(`This text has ${(new Blob([text]).size / 1e6).toFixed(1)} MB. At most 1 MB can be pasted at once. Paste it in parts, or send it as a file.`, 'for a while');
      return;
    }
    this.view.input(input);
  }

  // fetch pastes what the person's clipboard has, where their browser shows it to this page when a button is pressed.
  async fetch() {
    let text;
    try {
      text = await navigator.clipboard.readText();
    } catch {
      this.view.popups.wanted((typed) => this.paste(typed));
      return;
    }
    this.paste(text);
  }

  // copy asks for what is selected in the page. Where nothing is, the key itself is the page's: it ends a program in a terminal.
  copy(type, orKey = false) {
    if (!this.view.mine) return;
    this.copies.push({ orKey });
    this.view.input({ type });
  }

  // copied takes the answer, which only who has asked for it gets.
  copied(text) {
    const asked = this.copies.shift();
    if (!asked) return '';
    if (!text && asked.orKey) this.tap('c', 2);
    if (!text) this.view.say('Nothing is selected there.', 'for a while');
    return text;
  }
}

// named says whether a key writes nothing. Names of keys are made of Latin letters and digits, and have more than one.
function named(key) { return /^[A-Z][A-Za-z0-9]+$/.test(key); }

// latin is the letter of a shortcut. Layouts without Latin letters have them where a keyboard of the US does.
function latin({ key, code }) {
  return (/^[ -~]$/.test(key) ? key : /^Key([A-Z])$/.exec(code)?.[1] ?? '').toLowerCase();
}

// asControl: the browsers in jails run on Linux, where Control is what Command is on a Mac.
function asControl(name) { return mac ? name.replace(/^Meta/, 'Control') : name; }

// modifiers are those of the DevTools protocol. Those that made a sign are left out.
export function modifiers(event, made = false) {
  const shift = event.shiftKey ? 8 : 0;
  if (made) return shift || undefined;
  const control = event.ctrlKey || (mac && event.metaKey);
  return (event.altKey ? 1 : 0) | (control ? 2 : 0) | (event.metaKey && !mac ? 4 : 0) | shift || undefined;
}
