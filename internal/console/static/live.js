// The live view of a browser in a jail: one WebSocket, what it shows, and the hands in it. The messages are in docs/live.md.
// Everything that comes from there is untrusted: it is drawn into a box of a fixed shape, or shown as text, and nothing else.
import { Screen } from './live-screen.js';
import { Hands } from './live-input.js';
import { Keyboard } from './live-keys.js';
import { Popups } from './live-popups.js';
import { Bar } from './live-bar.js';
import { remote } from './live-remote.js';

const firstWait = 500, longestWait = 10000;

class View {
  constructor(root) {
    this.root = root;
    this.remote = remote(root.dataset.live);
    this.note = root.querySelector('.live-note');
    this.stage = root.querySelector('[data-live-stage]');
    this.canvas = root.querySelector('canvas');
    this.mine = this.crashed = false;
    this.wait = firstWait;
    this.failures = 0;
    this.screen = new Screen(this.canvas);
    this.popups = new Popups(this);
    this.hands = new Hands(this);
    this.keyboard = new Keyboard(this);
    this.bar = new Bar(this);
    this.seen = true; // the box is on the screen, as far as scrolling goes
    document.addEventListener('visibilitychange', () => this.tellVisible());
    new IntersectionObserver((all) => { this.seen = all.at(-1).isIntersecting; this.tellVisible(); }).observe(this.stage);
    addEventListener('pagehide', () => { this.over = true; this.socket?.close(); });
    addEventListener('pageshow', (event) => { if (event.persisted) location.reload(); });
    if (this.remote.bad) this.say(this.remote.bad, 'for good');
    else this.connect();
  }

  connect() {
    this.over = false;
    const socket = new WebSocket(this.remote.socket);
    let opened = false;
    socket.binaryType = 'blob';
    socket.onopen = () => { opened = true; this.failures = 0; this.wait = firstWait; this.say(''); this.stage.classList.remove('away'); this.tellVisible(); };
    socket.onmessage = ({ data }) => { if (typeof data === 'string') this.told(JSON.parse(data)); else this.show(data); };
    socket.onclose = () => { if (this.socket === socket && !this.over) this.lost(opened); };
    this.socket = socket;
  }

  // lost waits and connects again. When the server refuses twice in a row, it is asked why: a WebSocket does not say.
  async lost(opened) {
    this.stage.classList.add('away');
    this.letGo();
    this.say('Connection lost, trying again…');
    if (!opened && ++this.failures >= 2) {
      const why = await this.remote.why();
      if (why) { this.end(why); return; }
    }
    const wait = this.wait;
    this.wait = Math.min(longestWait, wait * 2);
    setTimeout(() => this.connect(), wait * (0.8 + 0.4 * Math.random()));
  }

  async show(message) {
    try {
      await this.screen.draw(message);
      this.root.dataset.frames = this.screen.drawn;
    } catch {
      // A picture that cannot be read is left out; the next one is asked for all the same.
    }
    this.send({ type: 'shown' });
  }

  told(message) {
    if (message.state) { this.bar.show(message.state); this.popups.show(message.state.popups ?? []); this.stage.classList.toggle('loading', message.state.loading); this.crash(message.state); }
    if ('control' in message) this.control(message.control);
    if (message.error) this.keyboard.copies = []; // it may have been one, and then no answer comes
    if (message.error) this.say(sentence(message.error), 'for a while');
    if ('copied' in message) this.copied(message.copied);
    if (message.end) this.ended(message.end);
  }

  // crash says that the page has no process: its last picture stays, and nothing in it answers.
  crash(state) {
    const crashed = state.tabs.some((tab) => tab.current && tab.crashed);
    if (crashed === this.crashed) return;
    this.crashed = crashed;
    this.stage.classList.toggle('crashed', crashed);
    this.say(crashed ? 'This page crashed. Load it again, or go to another address.' : '', 'until it is over');
  }

  control(control) {
    this.mine = control?.mine === true;
    if (!this.mine) this.letGo();
    this.root.classList.toggle('held', this.mine);
    this.bar.control(control);
    this.popups.control(this.mine);
  }

  letGo() { this.hands.let(); this.keyboard.let(); }

  // ended is the server's last word. Only what passes by itself is tried again.
  ended({ code, message }) {
    if (code === 'shutting_down' || code === 'canceled') return;
    this.end(message);
  }

  end(message) {
    this.over = true;
    this.screen.over = true;
    this.stage.classList.add('away');
    this.mine = false;
    this.bar.control(null, 'It is over');
    this.popups.control(false);
    this.say(message, 'for good');
    this.socket?.close();
  }

  send(message) {
    if (this.socket?.readyState !== WebSocket.OPEN) return;
    this.socket.send(JSON.stringify(message));
  }

  // input is what the person does; nothing leaves while they are not steering.
  input(input) { if (this.mine) this.send(input); }

  tellVisible() { this.send({ type: 'visible', visible: this.seen && !document.hidden }); }

  async copied(answer) {
    const text = this.keyboard.copied(answer);
    if (!text) return;
    try {
      await navigator.clipboard.writeText(text);
      this.say('Copied.', 'for a while');
    } catch {
      this.popups.offer(text); // browsers let pages copy on secure origins only
    }
  }

  say(text, how) {
    clearTimeout(this.quiet);
    this.note.textContent = text;
    if (how === 'for a while') this.quiet = setTimeout(() => { this.note.textContent = ''; }, 7000);
  }
}

function sentence(problem) { return problem.hint ? `${problem.message} — ${problem.hint}` : problem.message; }

for (const root of document.querySelectorAll('[data-live]')) new View(root);
