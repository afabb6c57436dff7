// The parts around the picture: tabs, where the browser is, and who has it in hand. Titles and addresses are text, and nothing
// of them leaves the box.

export class Bar {
  constructor(view) {
    this.view = view;
    const { root } = view;
    this.tabs = root.querySelector('.live-tabs');
    this.form = root.querySelector('[data-live-bar]');
    this.address = this.form.elements.address;
    this.who = root.querySelector('[data-live-who]');
    this.state = { tabs: [] };
    root.addEventListener('click', (event) => { const what = event.target.closest('[data-do]')?.dataset.do; if (what) this.do(what); });
    this.form.addEventListener('submit', (event) => {
      event.preventDefault();
      const url = this.address.value.trim();
      if (url) view.input({ type: 'go', url: /^(https?:|about:|data:|blob:)/i.test(url) ? url : `https://${url}` });
      view.keyboard.focus();
    });
    this.tabs.addEventListener('keydown', (event) => this.arrows(event));
    for (const form of root.querySelectorAll('[data-hands]')) form.addEventListener('submit', (event) => { event.preventDefault(); this.change(form); });
  }

  do(what) {
    const current = this.state.tabs.find((tab) => tab.current);
    if (what === 'release') this.view.keyboard.release();
    else if (what === 'paste') this.view.keyboard.fetch();
    else if (what === 'copy') this.view.keyboard.copy('copy');
    else if (what === 'reload') this.view.input({ type: this.state.loading ? 'stop' : 'reload' });
    else if (what === 'open') this.view.input({ type: 'open', url: 'about:blank' });
    else if (what === 'close') { if (current) this.view.input({ type: 'close', tab: current.id }); }
    else if (what === 'size') {
      const box = this.view.stage.getBoundingClientRect();
      this.view.input({ type: 'size', width: Math.max(320, Math.round(box.width)), height: Math.max(320, Math.round(box.height)) });
    } else this.view.input({ type: what });
  }

  show(state) {
    this.state = state;
    if (document.activeElement !== this.address) this.address.value = state.url === 'about:blank' ? '' : state.url;
    const focused = this.tabs.contains(document.activeElement);
    this.tabs.replaceChildren(...state.tabs.map((tab) => this.tab(tab)));
    this.tabs.removeAttribute('aria-busy');
    if (focused) this.tabs.querySelector('[aria-selected="true"]')?.focus();
    this.enable();
  }

  tab(tab) {
    const button = document.createElement('button');
    const title = document.createElement('span');
    title.textContent = (tab.crashed ? 'Crashed: ' : '') + (tab.title || tab.url || 'New tab');
    button.type = 'button';
    button.setAttribute('role', 'tab');
    button.setAttribute('aria-selected', String(tab.current));
    button.tabIndex = tab.current ? 0 : -1;
    button.append(title);
    button.addEventListener('click', () => this.view.input({ type: 'tab', tab: tab.id }));
    return button;
  }

  arrows(event) {
    const all = [...this.tabs.children];
    const to = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!to) return;
    event.preventDefault();
    all[(all.indexOf(document.activeElement) + to + all.length) % all.length]?.focus();
  }

  enable() {
    const { mine } = this.view;
    const may = { back: this.state.back, forward: this.state.forward, reload: true, open: true, close: this.state.tabs.length > 0 };
    for (const [what, possible] of Object.entries(may)) this.form.querySelector(`[data-do="${what}"]`).disabled = !mine || !possible;
    this.address.readOnly = !mine;
  }

  // control says who has the browser in hand, and offers what can be done about it.
  control(control, instead) {
    const { root, mine } = this.view;
    const name = control && (control.name || control.by);
    this.who.textContent = instead ?? (mine ? 'You are steering' : control ? `${name} is steering` : root.dataset.by ? `${root.dataset.by} is driving` : 'Nobody has it in hand');
    const now = instead ? 'over' : mine ? 'mine' : control ? 'other' : 'free';
    for (const part of root.querySelectorAll('[data-when]')) part.hidden = part.dataset.when !== now;
    // The question stays while it is the same one's: they are told anew when a hand-back was refused.
    const whose = `${now} ${control?.by} ${control?.since}`;
    if (whose !== this.whose) for (const part of root.querySelectorAll('[data-insist="anyway"]')) part.hidden = true;
    this.whose = whose;
    this.enable();
  }

  typing(yes) {
    this.view.root.querySelector('[data-do="release"]').hidden = !yes;
  }

  // change takes over or hands back, without leaving the page.
  async change(form) {
    const button = form.querySelector('button');
    button.disabled = true;
    this.view.say('One moment…');
    try {
      const wrong = await this.view.remote.hands(form.dataset.hands, new URLSearchParams(new FormData(form)));
      this.view.say(wrong?.text ?? '', wrong ? 'for a while' : undefined);
      if (wrong?.insist) for (const other of this.view.root.querySelectorAll(`[data-insist="${wrong.insist}"]`)) other.hidden = false;
      if (!wrong && form.dataset.hands === 'take-over') this.view.canvas.focus({ preventScroll: true });
    } catch {
      this.view.say('The server does not answer. Try again.', 'for a while');
    }
    button.disabled = false;
  }
}
