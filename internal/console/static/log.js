// A log that goes on: what an agent prints is put behind what the page began with. All of it is text here.

const most = 2000;
const log = document.getElementById('log');
const tools = document.querySelector('.log-tools');
const shown = document.getElementById('log-state');
const pause = document.getElementById('log-pause');
const find = document.getElementById('log-find');

let paused = false;
let waiting = [];
let left = 0;

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function bytes(n) {
  for (const unit of ['B', 'KiB', 'MiB']) {
    if (n < 1024) return `${n < 10 && unit !== 'B' ? n.toFixed(1) : Math.round(n)} ${unit}`;
    n /= 1024;
  }
  return `${n.toFixed(1)} GiB`;
}

function clip(text, length) {
  const letters = Array.from(text.slice(0, 4 * length));
  return letters.length > length ? letters.slice(0, length - 1).join('') + '…' : text;
}

const saying = ['message', 'msg', 'text', 'content', 'summary', 'title', 'name', 'tool', 'command', 'path', 'url', 'status', 'error'];

// summary is what a line of JSON is about, in short. The server makes the same of the lines that a page begins with.
function summary(event) {
  const parts = event.name ? [event.name] : [];
  for (const name of saying) {
    const text = Object.hasOwn(event.json, name) ? event.json[name] : '';
    if (typeof text === 'string' && text.trim()) {
      parts.push(text.slice(0, 1000).trim().split(/\s+/).join(' '));
      break;
    }
  }
  return clip(parts.length ? parts.join(' · ') : JSON.stringify(event.json), 160);
}

// exit is how something ended, as jail.Exit.Words has it.
function exit(e) {
  if (!e) return 'It ended.';
  let words = e.signal ? `signal ${e.signal}` : e.code < 0 ? 'nobody knows how' : `status ${e.code}`;
  if (e.cause === 'memory') words = 'out of memory';
  if (e.cause === 'wall_clock') words = 'its time was over';
  const hit = (e.hit ?? []).filter((limit) => limit !== 'memory' || e.cause !== 'memory');
  return `It ended: ${words}${hit.length ? `, at its limit of ${hit.join(' and ')}` : ''}.`;
}

function line(event) {
  const row = element('div', 'log-line');
  const at = new Date(event.at);
  const time = element('time', '', at.toISOString().slice(11, 19));
  time.dateTime = event.at;
  time.title = `${at.toISOString().replace('T', ' ').slice(0, 19)} UTC`;
  row.append(time);
  if (event.stream === 'stderr') row.classList.add('stderr');
  let text = event.text ?? '';
  if (event.type === 'started') text = 'The program began.';
  if (event.type === 'missed') text = `${bytes(event.missed)} are missing here: they were gone before they could be read.`;
  if (event.type === 'exit') text = exit(event.exit);
  if (['started', 'missed', 'exit'].includes(event.type)) row.classList.add('note');
  if (event.cut) text += ' … (the rest of the line was not kept)';
  if (event.type !== 'json') {
    row.append(element('span', '', text));
    return row;
  }
  const details = element('details');
  details.append(element('summary', '', summary(event)));
  // Written out when somebody looks: most of it nobody does.
  details.addEventListener('toggle', () => {
    if (!details.querySelector('pre')) details.append(element('pre', '', JSON.stringify(event.json, null, 2)));
  }, { once: true });
  row.append(details);
  row.data = JSON.stringify(event.json).toLowerCase();
  return row;
}

function wanted(row) {
  const text = find.value.trim().toLowerCase();
  return !text || row.textContent.toLowerCase().includes(text) || (row.data ?? '').includes(text);
}

// A person who has scrolled up reads: the log stays where it is.
function atTheEnd() {
  return log.scrollHeight - log.scrollTop - log.clientHeight < 24;
}

function put(events) {
  const following = atTheEnd();
  document.getElementById('log-none')?.remove();
  const rows = document.createDocumentFragment();
  for (const event of events.slice(-most)) {
    const row = line(event);
    row.hidden = !wanted(row);
    rows.append(row);
  }
  log.append(rows);
  while (log.children.length > most) log.firstElementChild.remove();
  if (following) log.scrollTop = log.scrollHeight;
}

function say(text, tone) {
  shown.textContent = text;
  shown.className = `badge ${tone}`;
}

function state() {
  if (paused) say(waiting.length + left ? `paused, ${waiting.length + left} more` : 'paused', 'warn');
  else say(source?.readyState === EventSource.OPEN ? 'live' : ended ? 'ended' : 'connecting', source?.readyState === EventSource.OPEN ? 'good' : 'quiet');
}

// Lines come faster than a page is drawn: they are put in together.
let drawing = false;
function come(event) {
  waiting.push(event);
  if (waiting.length > most) {
    waiting.shift();
    left++;
  }
  if (paused) state();
  if (paused || drawing) return;
  drawing = true;
  requestAnimationFrame(draw);
}
function draw() {
  drawing = false;
  if (paused) return;
  const now = waiting;
  waiting = [];
  left = 0;
  if (now.length) put(now);
}

let source = null;
let ended = log?.dataset.ended === 'yes';
let last = log?.dataset.after ?? '';
let again = 0;

function listen() {
  clearTimeout(again);
  source?.close();
  source = new EventSource(`${log.dataset.events}?after=${encodeURIComponent(last || '')}`);
  source.onopen = state;
  source.onerror = () => {
    state();
    // A request that the server refuses is not tried again by the browser.
    if (source.readyState === EventSource.CLOSED && !ended) again = setTimeout(listen, 5000);
  };
  for (const type of ['started', 'json', 'text', 'missed', 'exit']) {
    source.addEventListener(type, (message) => {
      last = message.lastEventId || last;
      come(JSON.parse(message.data));
    });
  }
  source.addEventListener('end', () => {
    ended = true;
    source.close();
    state();
  });
  state();
}

if (log && tools) {
  tools.hidden = false;
  log.scrollTop = log.scrollHeight;
  pause.addEventListener('click', () => {
    paused = !paused;
    pause.setAttribute('aria-pressed', String(paused));
    pause.textContent = paused ? 'Go on' : 'Pause';
    draw();
    state();
  });
  find.addEventListener('input', () => {
    const following = atTheEnd();
    for (const row of log.children) row.hidden = !wanted(row);
    if (following) log.scrollTop = log.scrollHeight;
  });
  if (ended) state();
  else listen();
  // A page that is left keeps no connection: browsers have few for one server.
  addEventListener('pagehide', () => { clearTimeout(again); source?.close(); });
  addEventListener('pageshow', (event) => { if (event.persisted && !ended) listen(); });
}
