// The list of what a browser has seen, kept up to date while somebody ticks boxes in it; and how long they still have.

const every = 3000;
let seen = document.querySelector('[data-merge]');
let last = '';

async function renew() {
  if (!document.hidden && seen.isConnected) {
    try {
      const known = new URLSearchParams(new FormData(seen.closest('form')));
      const answer = await fetch(`${seen.dataset.merge}?${known}`, { headers: { 'HX-Request': 'true' } });
      if (answer.headers.get('HX-Refresh') || answer.status === 401 || answer.status === 404) { location.reload(); return; }
      if (answer.ok) merge(await answer.text());
    } catch {
      // The server is away; the live view says so.
    }
  }
  setTimeout(renew, every);
}

// merge puts the new list in the place of the old one. Boxes that were ticked, parts that were opened and the focus stay.
function merge(text) {
  if (text === last) return;
  last = text;
  const fresh = new DOMParser().parseFromString(text, 'text/html').querySelector('[data-merge]');
  if (!fresh) return;
  const key = (box) => `${box.name} ${box.value}`;
  const before = new Map([...seen.querySelectorAll('input[type="checkbox"]')].map((box) => [key(box), box]));
  const open = new Set([...seen.querySelectorAll('details[open][data-key]')].map((part) => part.dataset.key));
  const focused = seen.contains(document.activeElement) ? document.activeElement : null;
  for (const box of fresh.querySelectorAll('input[type="checkbox"]')) if (before.has(key(box))) box.checked = before.get(key(box)).checked;
  for (const part of fresh.querySelectorAll('details[data-key]')) part.open = open.has(part.dataset.key);
  // A field that the person has changed, or is in, keeps what it has.
  for (const field of fresh.querySelectorAll('input[data-proposed]')) {
    const was = seen.querySelector(`#${field.id}`);
    if (was && (was === focused || was.value !== was.dataset.proposed)) field.value = was.value;
  }
  const node = document.adoptNode(fresh);
  seen.replaceWith(node);
  seen = node;
  if (!focused) return;
  const boxes = [...seen.querySelectorAll('input[type="checkbox"]')];
  const again = focused.matches('summary')
    ? [...seen.querySelectorAll('details[data-key]')].find((part) => part.dataset.key === focused.parentElement.dataset.key)?.querySelector('summary')
    : focused.dataset.proposed !== undefined ? seen.querySelector(`#${focused.id}`) : boxes.find((box) => focused.name && key(box) === key(focused));
  again?.focus({ preventScroll: true });
  if (again?.dataset.proposed !== undefined) again.setSelectionRange(focused.selectionStart, focused.selectionEnd);
}

if (seen) setTimeout(renew, every);

const until = document.querySelector('[data-until]');
if (until) {
  const end = Date.parse(until.dataset.until);
  const time = until.querySelector('time') ?? until;
  const tick = () => {
    const left = Math.max(0, Math.round((end - Date.now()) / 1000));
    time.textContent = left ? `the end of its time, in ${Math.floor(left / 60)}:${String(left % 60).padStart(2, '0')}` : 'now: its time is up';
  };
  tick();
  setInterval(tick, 1000);
}
