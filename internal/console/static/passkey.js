// Passkeys (WebAuthn): signing in with one, and adding one. Forms that need them stay hidden where the browser has none.

const decode = (text) => Uint8Array.from(atob(text.replace(/-/g, '+').replace(/_/g, '/')), (c) => c.charCodeAt(0));
const encode = (buffer) => btoa(String.fromCharCode(...new Uint8Array(buffer))).replace(/\+/g, '-').replace(/\//g, '_').replace(/=+$/, '');
const decodeID = (one) => ({ ...one, id: decode(one.id) });

// The browser's own words for this (parseCreationOptionsFromJSON, toJSON) are younger than passkeys.
function options(made) {
  const given = made.publicKey ?? made;
  const out = { ...given, challenge: decode(given.challenge) };
  if (out.user) out.user = decodeID(out.user);
  if (out.allowCredentials) out.allowCredentials = out.allowCredentials.map(decodeID);
  if (out.excludeCredentials) out.excludeCredentials = out.excludeCredentials.map(decodeID);
  return out;
}

function answer(credential) {
  const response = {};
  for (const name of ['clientDataJSON', 'attestationObject', 'authenticatorData', 'signature', 'userHandle']) {
    if (credential.response[name]) response[name] = encode(credential.response[name]);
  }
  const transports = credential.response.getTransports?.();
  if (transports) response.transports = transports;
  return {
    id: credential.id, rawId: encode(credential.rawId), type: credential.type, response,
    authenticatorAttachment: credential.authenticatorAttachment ?? undefined, clientExtensionResults: credential.getClientExtensionResults(),
  };
}

// Addresses are relative to this file's, which is console/static/VERSION/passkey.js.
const at = (path) => new URL('../../' + path, import.meta.url);

async function post(path, body = {}) {
  const answered = await fetch(at(path), { method: 'POST', headers: { 'Content-Type': 'application/json', Accept: 'application/json' }, body: JSON.stringify(body) });
  const said = await answered.json().catch(() => ({}));
  if (!answered.ok) throw new Error(said.problem ?? 'clawjail did not answer. Load the page anew, and try again.');
  return said;
}

// during does something while a button waits, and tells what went wrong.
async function during(button, doing) {
  const problem = document.getElementById('passkey-problem');
  problem.textContent = '';
  button.disabled = true;
  try {
    await doing();
  } catch (error) {
    problem.textContent = error.name === 'NotAllowedError' ? 'It was not finished. Try again when you are ready.'
      : error.name === 'InvalidStateError' ? 'This device has a passkey of yours already.'
      : error.name === 'SecurityError' ? `Passkeys need a name: open the console at http://localhost:${location.port}.` : error.message;
    problem.focus?.();
  } finally {
    button.disabled = false;
  }
}

if (window.PublicKeyCredential && window.isSecureContext) {
  const enter = document.getElementById('passkey-sign-in');
  if (enter) {
    enter.hidden = false;
    const button = document.getElementById('passkey-use');
    button.addEventListener('click', () => during(button, async () => {
      const begun = await post('sign-in/passkey/begin');
      const credential = await navigator.credentials.get({ publicKey: options(begun.options) });
      const { to } = await post('sign-in/passkey', { challenge: begun.challenge, response: answer(credential), next: enter.dataset.next });
      location.assign(to);
    }));
  }
  const add = document.getElementById('passkey-add');
  if (add) {
    add.hidden = false;
    const button = document.getElementById('passkey-make');
    button.addEventListener('click', () => during(button, async () => {
      const begun = await post('settings/passkeys/begin');
      const credential = await navigator.credentials.create({ publicKey: options(begun.options) });
      const name = document.getElementById('passkey-name').value.trim() || 'Passkey';
      await post('settings/passkeys/finish', { challenge: begun.challenge, name, response: answer(credential) });
      location.assign(add.dataset.back);
    }));
  }
}
