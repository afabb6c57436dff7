// Windows that a browser draws outside of its page: dialogs, file choosers, passwords of HTTP, lists. They are not in the
// picture, so they are made here. The texts are the page's, and are shown as text that says whose it is.

export class Popups {
  constructor(view) {
    this.view = view;
    this.box = view.root.querySelector('.live-popup');
    this.all = [];
    this.box.addEventListener('keydown', (event) => { if (event.key === 'Escape') { event.preventDefault(); this.refuse(); } });
  }

  show(all) { this.all = all; this.settle(); }

  control(mine) { this.mine = mine; this.settle(); }

  takesFiles() { return this.mine && this.all[0]?.kind === 'files'; }

  // settle shows the first that waits, to who can answer it.
  settle() {
    const popup = this.mine ? this.all[0] : undefined;
    if (popup?.id === this.shown) return;
    const before = this.box.contains(document.activeElement) || document.activeElement === this.view.keyboard?.field;
    this.shown = popup?.id;
    this.box.hidden = !popup;
    this.box.replaceChildren();
    if (popup) this.open(popup);
    else if (before) this.view.keyboard.focus();
  }

  open(popup) {
    const form = make('form', { className: 'panel' });
    const title = make('h2', { id: 'live-popup-title', textContent: titles[popup.kind] ?? 'The browser asks' });
    form.setAttribute('role', 'dialog');
    form.setAttribute('aria-labelledby', title.id);
    form.append(title);
    if (popup.origin) form.append(make('p', { className: 'help', textContent: `From ${popup.origin}` }));
    if (popup.message) form.append(make('p', { className: 'live-message', textContent: popup.message }));
    const fields = (makers[popup.kind] ?? (() => []))(popup, form);
    const flaw = make('p', { className: 'flaw' });
    flaw.setAttribute('role', 'alert');
    const actions = make('div', { className: 'actions' });
    actions.append(make('button', { className: 'primary', textContent: agree[popup.kind] ?? 'OK' }));
    if (popup.kind !== 'alert') {
      const no = make('button', { type: 'button', textContent: 'Cancel' });
      no.addEventListener('click', () => this.refuse());
      actions.append(no);
    }
    form.append(flaw, actions);
    form.addEventListener('submit', async (event) => {
      event.preventDefault();
      if (popup.kind === 'files') { await this.upload([...form.elements.files.files]); return; }
      this.answer({ accept: true, ...(answers[popup.kind]?.(form) ?? {}) });
    });
    this.box.replaceChildren(form);
    (fields[0] ?? actions.firstChild).focus();
  }

  answer(rest) {
    if (this.shown) this.view.input({ type: 'answer', popup: this.shown, ...rest });
  }

  refuse() { if (this.offering) this.settleOffer(); else this.answer({}); }

  // upload puts files into the browser's folder, and gives them to the page.
  async upload(files) {
    const popup = this.all[0];
    const flaw = this.box.querySelector('.flaw');
    if (popup?.kind !== 'files' || !files.length) { if (flaw) flaw.textContent = 'Choose a file.'; return; }
    try {
      const names = [];
      for (const file of popup.multiple ? files : files.slice(0, 1)) {
        flaw.textContent = `Sending ${file.name}…`;
        names.push(await this.view.remote.upload(file));
      }
      this.answer({ accept: true, files: names });
    } catch (problem) {
      flaw.textContent = problem.message;
    }
  }

  // offer shows a text to be copied by hand, where the browser lets no page copy.
  offer(text) {
    const area = make('textarea', { readOnly: true, rows: 6, value: text });
    this.sheet('Copy this', 'The copied text', area);
    area.select();
  }

  // wanted takes a text to be pasted, where the browser lets no page look into the clipboard.
  wanted(give) {
    const area = make('textarea', { rows: 6, autocomplete: 'off', spellcheck: false });
    const send = make('button', { type: 'button', className: 'primary', textContent: 'Paste it there' });
    send.addEventListener('click', () => { this.settleOffer(); give(area.value); });
    this.sheet('Paste here', 'The text to paste', area, send);
    area.focus();
  }

  sheet(title, label, area, ...buttons) {
    const panel = make('div', { className: 'panel' });
    const actions = make('div', { className: 'actions' });
    const close = make('button', { type: 'button', textContent: 'Close' });
    area.setAttribute('aria-label', label);
    close.addEventListener('click', () => this.settleOffer());
    actions.append(...buttons, close);
    panel.append(make('h2', { textContent: title }), area, actions);
    this.offering = true;
    this.box.hidden = false;
    this.box.replaceChildren(panel);
  }

  settleOffer() {
    this.offering = false;
    this.shown = '';
    this.settle();
    this.view.keyboard.focus();
  }
}

const titles = { alert: 'The page says', confirm: 'The page asks', prompt: 'The page asks', leave: 'Leave this page?', files: 'The page wants a file', auth: 'A user and a password are asked for', select: 'Choose from the list' };
const agree = { leave: 'Leave', files: 'Send', auth: 'Log in', select: 'Choose' };

const makers = {
  prompt: (popup, form) => [labelled(form, 'Your answer', make('input', { name: 'text', value: popup.default ?? '', autocomplete: 'off' }))],
  files: (popup, form) => [labelled(form, `${popup.multiple ? 'Files' : 'File'}, at most 32 MiB each; you can drop them here too`, make('input', { type: 'file', name: 'files', multiple: popup.multiple === true, accept: popup.accept ?? '' }))],
  auth: (_, form) => [
    labelled(form, 'User', make('input', { name: 'user', autocomplete: 'off', autocapitalize: 'none' })),
    // A page in the jail asks: a browser that knows the key of this console must not fill it in.
    labelled(form, 'Password', make('input', { name: 'password', type: 'password', autocomplete: 'new-password' })),
  ],
  select: (popup, form) => [labelled(form, 'Options', list(popup))],
};

const answers = {
  prompt: (form) => ({ text: form.elements.text.value }),
  auth: (form) => ({ user: form.elements.user.value, password: form.elements.password.value }),
  select: (form) => ({ options: [...form.elements.options.querySelectorAll('option')].flatMap((option, n) => (option.selected ? [n] : [])) }),
};

function list(popup) {
  const select = make('select', { name: 'options', multiple: popup.multiple === true, size: Math.min(10, Math.max(2, popup.options?.length ?? 2)) });
  let group, name;
  for (const { label, group: of, selected, disabled } of popup.options ?? []) {
    if (of && of !== name) select.append((group = make('optgroup', { label: of })));
    name = of;
    (of ? group : select).append(make('option', { textContent: label, selected: selected === true, disabled: disabled === true }));
  }
  return select;
}

function labelled(form, text, field) {
  const box = make('div', { className: 'field' });
  field.id = `live-popup-${field.name}`;
  box.append(make('label', { htmlFor: field.id, textContent: text }), field);
  form.append(box);
  return field;
}

function make(tag, properties) { return Object.assign(document.createElement(tag), properties); }
