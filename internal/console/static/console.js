// What every page does: parts that are kept up to date, what can be copied, and where problems of such parts are told.

// Parts with data-every="SECONDS" are fetched anew while somebody looks and does nothing in them.
const parts = new Map();
setInterval(() => {
  if (document.hidden) return;
  const now = Date.now();
  const all = document.querySelectorAll('[data-every]');
  for (const part of all) {
    // The menu alone keeps nobody signed in: it is renewed with the other parts of a page.
    if (part.id === 'menu' && all.length === 1) continue;
    const id = part.id || part.getAttribute('hx-get');
    const last = parts.get(id) ?? started;
    const busy = part.contains(document.activeElement) && document.activeElement !== document.body;
    if (busy || part.querySelector('details[open].confirm') || now - last < Number(part.dataset.every) * 1000) continue;
    parts.set(id, now);
    window.htmx?.trigger(part, 'renew');
  }
}, 1000);
const started = Date.now();

// <button data-copy="ID of what to copy">
document.addEventListener('click', async (event) => {
  const button = event.target.closest?.('[data-copy]');
  if (!button) return;
  const text = document.getElementById(button.dataset.copy)?.textContent ?? '';
  try {
    await navigator.clipboard.writeText(text);
    say(button, 'Copied');
  } catch {
    const range = document.createRange();
    range.selectNodeContents(document.getElementById(button.dataset.copy));
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    say(button, 'Selected: copy it now');
  }
});

function say(button, text) {
  const before = button.dataset.label ?? button.textContent;
  button.dataset.label = before;
  button.textContent = text;
  setTimeout(() => { button.textContent = before; }, 2000);
}

// The number of questions that wait stands in the title too: it is seen while the page is not looked at.
document.addEventListener('htmx:afterSettle', () => {
  const waiting = Number(document.getElementById('menu')?.dataset.waiting ?? 0);
  document.title = (waiting ? `(${waiting}) ` : '') + document.title.replace(/^\(\d+\) /, '');
});

// The box leaves when the part that had the problem is renewed.
document.addEventListener('htmx:afterRequest', (event) => {
  const box = document.getElementById('part-problem');
  if (box && event.detail.successful && box.dataset.part === event.target.id) box.remove();
});

document.addEventListener('problem', (event) => {
  let box = document.getElementById('part-problem');
  if (!box) {
    box = document.createElement('div');
    box.id = 'part-problem';
    box.className = 'told bad';
    box.setAttribute('role', 'alert');
    document.querySelector('main').prepend(box);
  }
  box.dataset.part = event.target.id ?? '';
  box.textContent = event.detail?.value ?? 'A part of this page could not be renewed.';
});

// On a phone the menu begins closed.
if (matchMedia('(max-width: 760px)').matches) document.querySelector('details.menu')?.removeAttribute('open');
// One question at a time, and none that stays open when somebody goes on elsewhere.
document.addEventListener('click', (event) => {
  for (const open of document.querySelectorAll('details.confirm[open]')) if (!open.contains(event.target)) open.removeAttribute('open');
});
document.addEventListener('keydown', (event) => {
  if (event.key !== 'Escape') return;
  for (const open of document.querySelectorAll('details.confirm[open]')) { open.removeAttribute('open'); open.querySelector('summary')?.focus(); }
});
