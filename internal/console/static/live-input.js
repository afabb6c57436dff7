// The hands: pointer and keyboard, while the person is steering. The keyboard is taken by a field that nobody sees, so that
// input methods, dictation and the keyboards of phones work. F8 gives it back; so does the button below the picture.

const buttonNames = ['left', 'middle', 'right', 'back', 'forward'];
const ownKeys = ['F8', 'F11', 'F12']; // stay the console's
const mac = /Mac|iPhone|iPad/.test(navigator.platform);

export class Hands {
  constructor(view) {
    this.view = view;
    this.canvas = view.canvas;
    this.keys = view.root.querySelector('.live-keys');
    this.down = new Map(); // keys that are pressed, by their place
    this.pressed = ''; // the pointer's button
    this.last = { at: 0, x: 0, y: 0, button: '', clicks: 0 };
    this.pointer();
    this.keyboard();
  }

  pointer() {
    const on = (name, handle, options) => this.canvas.addEventListener(name, (event) => { if (this.view.mine) handle(event); }, options);
    on('pointerdown', (event) => {
      event.preventDefault();
      this.keys.focus({ preventScroll: true });
      this.canvas.setPointerCapture(event.pointerId);
      this.flush();
      this.press('down', event, buttonNames[event.button] ?? 'left');
    });
    on('pointermove', (event) => this.later({ type: 'move', ...this.view.screen.place(event), buttons: event.buttons, button: this.pressed || undefined, modifiers: modifiers(event) }));
    const up = (event) => { this.flush(); this.press('up', event, buttonNames[event.button] ?? (this.pressed || 'left')); };
    on('pointerup', up);
    on('pointercancel', up);
    on('contextmenu', (event) => event.preventDefault());
    on('wheel', (event) => {
      event.preventDefault();
      const unit = [1, 16, this.view.screen.height][event.deltaMode] ?? 1;
      const before = this.waiting?.type === 'wheel' ? this.waiting : { dx: 0, dy: 0 };
      this.later({ type: 'wheel', ...this.view.screen.place(event), dx: before.dx + event.deltaX * unit, dy: before.dy + event.deltaY * unit, modifiers: modifiers(event) });
    }, { passive: false });
    this.view.stage.addEventListener('dragover', (event) => { if (this.view.popups.takesFiles()) { event.preventDefault(); this.view.stage.classList.add('drop'); } });
    this.view.stage.addEventListener('dragleave', () => this.view.stage.classList.remove('drop'));
    this.view.stage.addEventListener('drop', (event) => {
      this.view.stage.classList.remove('drop');
      if (this.view.popups.takesFiles()) { event.preventDefault(); this.view.popups.upload([...event.dataTransfer.files]); }
    });
  }

  // press counts clicks: near each other, soon after each other, with one button.
  press(type, event, button) {
    const at = this.view.screen.place(event);
    if (type === 'down') {
      const again = event.timeStamp - this.last.at < 500 && Math.hypot(event.clientX - this.last.x, event.clientY - this.last.y) < 6 && this.last.button === button;
      this.last = { at: event.timeStamp, x: event.clientX, y: event.clientY, button, clicks: again ? this.last.clicks + 1 : 1 };
    }
    this.pressed = type === 'down' ? button : '';
    this.view.input({ type, ...at, button, buttons: event.buttons, clicks: this.last.clicks, modifiers: modifiers(event) });
  }

  // later keeps the newest move, or the sum of what the wheel turned, until the next picture of this page.
  later(input) {
    if (this.waiting && this.waiting.type !== input.type) this.flush();
    if (!this.waiting) requestAnimationFrame(() => this.flush());
    this.waiting = input;
  }

  flush() {
    if (this.waiting) this.view.input(this.waiting);
    this.waiting = null;
  }

  keyboard() {
    const on = (name, handle) => this.keys.addEventListener(name, handle);
    this.canvas.addEventListener('keydown', (event) => {
      if (event.key === 'Enter' && this.view.mine) { event.preventDefault(); this.keys.focus({ preventScroll: true }); }
    });
    on('keydown', (event) => this.keydown(event));
    on('keyup', (event) => { if (this.down.delete(event.code)) { event.preventDefault(); this.key('keyup', event); } });
    on('compositionupdate', (event) => this.view.input({ type: 'compose', text: event.data, start: event.data.length, end: event.data.length }));
    on('compositionend', (event) => {
      this.view.input(event.data ? { type: 'text', text: event.data } : { type: 'compose', text: '' });
      this.keys.value = '';
    });
    on('beforeinput', (event) => {
      if (event.isComposing || event.inputType === 'insertCompositionText') return;
      event.preventDefault();
      if (event.inputType === 'insertText' && event.data) this.view.input({ type: 'text', text: event.data });
      if (event.inputType === 'deleteContentBackward') this.tap('Backspace');
      if (event.inputType === 'insertLineBreak') this.tap('Enter');
    });
    on('paste', (event) => {
      event.preventDefault();
      const text = event.clipboardData.getData('text/plain');
      if (text) this.view.input({ type: 'text', text });
    });
    on('focus', () => { this.view.bar.typing(true); });
    on('blur', () => { this.view.bar.typing(false); this.letKeys(); });
  }

  keydown(event) {
    if (ownKeys.includes(event.key)) { if (event.key === 'F8') { event.preventDefault(); this.release(); } return; }
    if (!this.view.mine || event.isComposing || event.key === 'Process' || event.key === 'Dead' || event.key === 'Unidentified') return;
    const command = (mac ? event.metaKey : event.ctrlKey) && !event.altKey;
    const letter = event.key.toLowerCase();
    if (command && letter === 'v') return; // comes as a paste
    if (command && (letter === 'c' || letter === 'x')) this.view.input({ type: 'copy' });
    event.preventDefault();
    if (command && letter === 'c') return;
    // What needs AltGr is a text: the browser in the jail has another keyboard.
    if (event.getModifierState('AltGraph') && event.key.length === 1) { this.view.input({ type: 'text', text: event.key }); return; }
    this.down.set(event.code, event);
    this.key('keydown', event);
  }

  key(type, event) {
    this.view.input({ type, key: event.key, code: event.code, location: event.location, repeat: event.repeat || undefined, modifiers: modifiers(event) });
  }

  tap(key) { for (const type of ['keydown', 'keyup']) this.view.input({ type, key, code: key }); }

  // letKeys lets go of every key that is down: no keyup comes for them any more.
  letKeys() {
    for (const event of this.down.values()) this.key('keyup', event);
    this.down.clear();
  }

  // let is for when the person does not steer any more.
  let() { this.down.clear(); this.waiting = null; this.pressed = ''; }

  release() { this.keys.blur(); this.canvas.focus({ preventScroll: true }); }
}

// modifiers are those of the DevTools protocol. The browsers in jails run on Linux: there, Control is the key of shortcuts.
function modifiers(event) {
  const control = event.ctrlKey || (mac && event.metaKey);
  return (event.altKey ? 1 : 0) | (control ? 2 : 0) | (event.metaKey && !mac ? 4 : 0) | (event.shiftKey ? 8 : 0) || undefined;
}
