// The server side of the live view: the console, for a person who is signed in, or the API, with a token that stands behind
// the # of the address.

// remote is the way to one session: the address of its WebSocket, and what is asked besides.
export function remote(path) {
  return path ? consoleRemote(path) : tokenRemote();
}

const secure = location.protocol === 'https:' ? 'wss:' : 'ws:';

function consoleRemote(path) {
  const ask = (to, init = {}) => fetch(path + to, { ...init, headers: { 'HX-Request': 'true', ...init.headers } });
  return {
    socket: `${secure}//${location.host}${path}/live`,
    // why is what hinders for good; empty when trying again may help.
    async why() {
      try {
        const answer = await ask('/facts');
        if (answer.status === 401) { location.reload(); return 'Sign in again.'; }
        return answer.status === 404 || answer.status === 403 ? reason(answer) || 'The session is not there any more.' : '';
      } catch { return ''; }
    },
    // hands takes over or hands back. It returns what went wrong, and how to insist.
    async hands(what, values) {
      const answer = await ask('/' + what, { method: 'POST', body: new URLSearchParams(values) });
      return answer.ok ? null : { text: reason(answer) || 'This did not work.', insist: answer.headers.get('X-Insist') };
    },
    async upload(file) {
      const body = new FormData();
      body.append('file', file);
      const answer = await ask('/files', { method: 'POST', body });
      if (!answer.ok) throw new Error(reason(answer) || 'The file did not arrive.');
      return (await answer.json()).name;
    },
  };
}

function reason(answer) {
  try { return JSON.parse(answer.headers.get('HX-Trigger')).problem; } catch { return ''; }
}

function tokenRemote() {
  const [id, token] = decodeURIComponent(location.hash.slice(1)).split(':');
  if (!/^s_[a-z0-9]+$/.test(id ?? '') || !/^cjses_[A-Z0-9]+$/i.test(token ?? '')) return { bad: 'This link is not whole. Ask for it again.' };
  const path = new URL(`../../../v1/sessions/${id}`, import.meta.url).pathname; // this file is console/static/VERSION/live-remote.js
  const ask = (to, init = {}) => fetch(path + to, { ...init, headers: { Authorization: `Bearer ${token}`, ...init.headers } });
  const problem = async (answer) => { try { return (await answer.json()).detail ?? ''; } catch { return ''; } };
  addEventListener('hashchange', () => location.reload());
  return {
    socket: `${secure}//${location.host}${path}/live?token=${encodeURIComponent(token)}`,
    async why() {
      try {
        const answer = await ask('');
        return answer.ok || answer.status >= 500 ? '' : (await problem(answer)) || 'The link is invalid or has expired.';
      } catch { return ''; }
    },
    async hands(what, values) {
      const wanted = { 'take-over': { force: values.has('force') }, 'hand-back': { anyway: values.has('anyway') } }[what];
      const answer = await ask('/' + what, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(wanted) });
      if (answer.ok) return null;
      return { text: (await problem(answer)) || 'This did not work.', insist: answer.status === 409 ? Object.keys(wanted)[0] : '' };
    },
    async upload(file) {
      const answer = await ask(`/files/${encodeURIComponent(file.name)}`, { method: 'PUT', headers: { 'Content-Type': 'application/octet-stream' }, body: file });
      if (!answer.ok) throw new Error((await problem(answer)) || 'The file did not arrive.');
      return (await answer.json()).name;
    },
  };
}
