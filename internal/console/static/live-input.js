// The pointer of the person who steers: a mouse, a pen or a finger. The keyboard is in live-keys.js.
import { modifiers } from './live-keys.js';

const buttonNames = ['left', 'middle', 'right', 'back', 'forward'];

export class Hands {
  constructor(view) {
    this.view = view;
    this.canvas = view.canvas;
    this.pressed = ''; // the pointer's button
    this.last = { at: 0, x: 0, y: 0, button: '', clicks: 0 };
    this.pointer();
  }

  pointer() {
    const on = (name, handle, options) => this.canvas.addEventListener(name, (event) => { if (this.view.mine) handle(event); }, options);
    on('pointerdown', (event) => {
      event.preventDefault();
      if (event.pointerType !== 'touch') this.view.keyboard.focus();
      this.canvas.setPointerCapture(event.pointerId);
      this.flush();
      this.press('down', event, buttonNames[event.button] ?? 'left');
    });
    on('pointermove', (event) => this.later({ type: 'move', ...this.view.screen.place(event), buttons: event.buttons, button: this.pressed || undefined, modifiers: modifiers(event) }));
    const up = (event) => { this.flush(); this.press('up', event, buttonNames[event.button] ?? (this.pressed || 'left')); };
    on('pointerup', (event) => {
      up(event);
      if (event.pointerType !== 'touch') return;
      // Phones show their keyboard when a finger goes up, and again only for a field that did not have the focus.
      this.view.keyboard.field.blur();
      this.view.keyboard.focus();
    });
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

  // let is for when the person does not steer any more.
  let() { this.waiting = null; this.pressed = ''; }
}
