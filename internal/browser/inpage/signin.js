// Says what of a page has to do with signing in, in an isolated world. It looks into frames of the same origin and into
// open shadow roots. Its answer is numbers and flags, and a selector of a control that signs out.
const signIn = (() => {
  const MOST = 20000; // elements that are looked at
  const MOST_TEXT = 4000; // characters of the page's text
  const MOST_FIELDS = 100;
  const MANY_FIELDS = 30;
  const MOST_CONTROLS = 2000;
  const FEW_CONTROLS = 60;
  const FEW_ELEMENTS = 2000; // in larger pages, shadow roots are not looked for
  // A page's names hide members of the document, but not those of its prototype.
  const own = (name) => Object.getOwnPropertyDescriptor(Document.prototype, name).get.call(document);
  const all = (root, selector) => (root.nodeType === 9 ? Document : DocumentFragment).prototype.querySelectorAll.call(root, selector);
  const attribute = (element, name) => (Element.prototype.getAttribute.call(element, name) || '').toLowerCase();
  const words = (element) => [attribute(element, 'name'), attribute(element, 'id'), attribute(element, 'placeholder'),
    attribute(element, 'aria-label'), attribute(element, 'title'), attribute(element, 'data-testid')].join(' ');
  const said = (element) => ((element.localName === 'input' ? attribute(element, 'value') : element.textContent) ||
    attribute(element, 'aria-label')).trim().toLowerCase().replace(/\s+/g, ' ');
  const seen = (element) => {
    const box = Element.prototype.getBoundingClientRect.call(element);
    return box.width > 2 && box.height > 2 && element.checkVisibility({visibilityProperty: true, contentVisibilityAuto: true});
  };

  const SIGN_OUT = /^(log|sign) ?(out|off)\b.{0,20}$|^(abmelden|ausloggen|logout|déconnexion|se déconnecter|cerrar sesión|salir|esci|sair|uitloggen|afmelden|wyloguj( się)?|logga ut|log ud|logg ut|kirjaudu ulos|выйти|ログアウト|退出登录|退出|登出|로그아웃)$/;
  const SIGN_OUT_ADDRESS = /(^|[/_.?&=#-])(log|sign)[-_]?(out|off)([/_.?&=#-]|$)|session[s]?\/destroy|abmelden|deconnexion/;
  const SIGN_OUT_LINKS = ['logout', 'log-out', 'log_out', 'logoff', 'signout', 'sign-out', 'sign_out', 'signoff', 'abmelden', 'deconnexion']
    .map((word) => `a[href*="${word}" i], form[action*="${word}" i]`).join(', ');
  const SECRETS = 'input[type=password i], input[autocomplete~="current-password" i], input[autocomplete~="one-time-code" i]';
  const SIGN_IN = /^(log|sign)[ -]?(in|on)\b.{0,30}$|^(anmelden|einloggen|login|se connecter|connexion|iniciar sesión|acceder|accedi|entrar|inloggen|zaloguj( się)?|logga in|log ind|logg inn|войти|ログイン|登录|登入|로그인)\b.{0,20}$/;
  const FEDERATED = /\b(continue|sign in|log in|sign up|login|anmelden|weiter|continuer|continuar)\b.{0,12}\b(with|using|mit|avec|con|com)\b|passkey|security key|single sign[- ]on|\bsso\b/;
  const USER = /user|login|mail|account|acct|phone|mobile|identifier|benutzer|kunden|konto|nutzer|utilisateur|identifiant|usuario|correo|utente|usuário|member/;
  const NEW = /\bnew\b|new[-_ ]?(pass|pw)|confirm|repeat|retype|again|verif|neues|wiederhol|nouveau|nueva|nuevo|\bold[-_ ]?(pass|pw)/;
  const CODE = /one[-_ ]?time|\botp\b|otp[-_]|totp|2fa|mfa|two[-_ ]?factor|(verification|security|auth(entication)?|login|access|confirmation)[-_ ]?code|passcode|authenticator|token[-_ ]?code|sms[-_ ]?code|\btan\b/;
  const CAPTCHA = /recaptcha|hcaptcha|turnstile|challenges\.cloudflare|captcha|arkoselabs|funcaptcha|datadome|perimeterx|geetest/;
  const HUMAN = /captcha|(are|you.re|you are) (a )?(human|robot)|not a robot|verify (that )?you|human verification|just a moment|checking your browser|bist du ein mensch/;
  const BLOCKED = /access denied|request (was |has been )?(blocked|rejected|denied)|blocked|firewall|\bwaf\b|attention required|reference #|(incident|request|ray|support|event|trace) ?id|unusual (traffic|activity)|security (policy|service|rule|reason|check)|suspicious|automated|\bbots?\b|your ip|from your (network|country|region|location)/;
  const AWAY = /maintenance|right back|temporarily|try again (later|in)|too many requests|rate limit|unavailable|wartung|offline|out of service/;
  const PAYWALL = /subscri|abonn|suscr|paywall|membership|become a member|premium|free trial|unlimited access|upgrade (your plan|now|to)|buy (a )?(plan|pass)|assinar|abbona/;

  return (selectors = []) => {
    const out = {url: location.href, passwords: 0, newPasswords: 0, form: false, identifier: false, code: false, federated: false, signIn: false, signOut: false,
      captcha: false, human: false, blocked: false, away: false, paywall: false, matches: selectors.map(() => false), bad: selectors.map(() => false), offer: '', status: 0, loaded: own('readyState') === 'complete', cut: false};
    const entry = performance.getEntriesByType('navigation')[0];
    if (entry) out.status = entry.responseStatus || 0;

    const roots = [document];
    const fields = []; // that somebody can see
    const lists = []; // of controls
    let controls = 0;
    let left = MOST;
    for (let n = 0; n < roots.length && left > 0; n++) {
      const root = roots[n];
      selectors.forEach((selector, i) => {
        if (!selector || out.matches[i] || out.bad[i]) return;
        try {
          out.matches[i] = all(root, selector).length > 0;
        } catch {
          out.bad[i] = true;
        }
      });
      const everything = all(root, '*');
      left -= everything.length;
      out.cut = left < 0;
      for (const element of everything.length <= FEW_ELEMENTS ? everything : []) {
        if (element.shadowRoot) roots.push(element.shadowRoot);
      }
      // A page with many fields asks for something else, unless one of them is for a password or a code.
      const inputs = all(root, 'input, select, textarea');
      for (const element of inputs.length <= MANY_FIELDS || all(root, SECRETS).length > 0 ? inputs : []) {
        if (fields.length === MOST_FIELDS) break;
        if (!['submit', 'button', 'image', 'hidden', 'checkbox', 'radio', 'range', 'color'].includes(attribute(element, 'type')) &&
          !element.disabled && seen(element)) fields.push(element);
      }
      for (const element of all(root, 'iframe, frame')) {
        if (CAPTCHA.test(attribute(element, 'src')) && seen(element)) out.captcha = true;
        else if (element.contentDocument && seen(element)) roots.push(element.contentDocument);
      }
      lists.push(all(root, 'a, button, form, input[type=submit i], input[type=button i], [role=button], [role=menuitem]'));
      controls += lists.at(-1).length;
    }

    // A control that signs out counts also while its menu is closed; one that signs in must be seen.
    function control(element) {
      const to = attribute(element, element.localName === 'form' ? 'action' : 'href');
      if (to && SIGN_OUT_ADDRESS.test(to.slice(0, 300))) signsOut(element);
      if (element.localName === 'form') return;
      const text = said(element);
      if (!text || text.length > 60) return;
      if (SIGN_OUT.test(text)) signsOut(element);
      else if (!seen(element)) return;
      else if (FEDERATED.test(text)) out.federated = true;
      else if (SIGN_IN.test(text)) out.signIn = true;
      else if (PAYWALL.test(text)) out.paywall = true;
    }

    function signsOut(element) {
      out.signOut = true;
      if (out.offer) return;
      for (const name of ['id', 'href', 'action', 'data-testid', 'name', 'aria-label']) {
        const value = Element.prototype.getAttribute.call(element, name);
        // A value with a query or a number may be another one tomorrow.
        if (!value || value.length > 100 || /[?#"\\\n]|\d{3}/.test(value)) continue;
        out.offer = `${element.localName}[${name}="${value}"]`;
        return;
      }
    }

    const kind = (field) => field.localName === 'input' ? (attribute(field, 'type') || 'text') : field.localName;
    const completes = (field) => attribute(field, 'autocomplete').split(/\s+/);
    const secret = (field) => kind(field) === 'password' || completes(field).includes('current-password');
    const written = (field) => ['text', 'email', 'tel', 'number', 'url', 'textarea', 'select', 'date', 'file', 'search'].includes(kind(field));
    const labelled = (field) => words(field) + ' ' + Array.from(field.labels || [], (l) => l.textContent.slice(0, 80).toLowerCase()).join(' ');
    const user = (field) => ['text', 'email', 'tel'].includes(kind(field)) &&
      (kind(field) === 'email' || completes(field).some((c) => ['username', 'email', 'tel', 'webauthn'].includes(c)) || USER.test(labelled(field)));
    const oneTime = (field) => completes(field).includes('one-time-code') ||
      ['text', 'tel', 'number', 'password'].includes(kind(field)) && CODE.test(labelled(field));

    const digits = fields.filter((f) => ['text', 'tel', 'number'].includes(kind(f)) && attribute(f, 'maxlength') === '1').length;
    out.code = fields.some(oneTime) || digits >= 4 && digits <= 8;
    // Most pages have nothing of the kind, and are not looked at more closely. One that asks to sign in is small.
    const asks = out.code || fields.some(secret) || fields.length <= 3 && controls <= 200 && fields.some(user) || out.status >= 400 || selectors.some((s) => s);
    if (!asks && controls > FEW_CONTROLS) {
      for (const root of roots) all(root, SIGN_OUT_LINKS).forEach(control);
      return out;
    }
    for (const list of lists) {
      for (let i = 0; i < list.length && i < MOST_CONTROLS; i++) control(list[i]);
    }
    for (const root of roots) {
      for (const element of all(root, 'h1, h2, h3, dialog')) {
        if (!out.paywall && PAYWALL.test(element.textContent.slice(0, 300).toLowerCase()) && seen(element)) out.paywall = true;
      }
      if (Array.from(all(root, '.g-recaptcha, .h-captcha, .cf-turnstile')).some(seen)) out.captcha = true;
    }
    if (fields.some((f) => /captcha/.test(labelled(f)))) out.captcha = true;
    for (const field of fields.filter((f) => secret(f) && !oneTime(f))) {
      out.passwords++;
      const beside = fields.filter((f) => f !== field && (field.form ? f.form === field.form : !f.form));
      if (completes(field).includes('new-password') || NEW.test(labelled(field)) || beside.some(secret)) {
        out.newPasswords++;
        continue;
      }
      // A form to sign in asks who it is, for the password, and for little else.
      const texts = beside.filter((f) => written(f) && kind(f) !== 'search');
      const hidden = field.form && Array.from(field.form.elements).some((f) => f.localName === 'input' && !seen(f) && completes(f).includes('username'));
      const bare = texts.length === 1 && (out.signIn || labelled(texts[0]).trim() === '');
      if ((texts.some(user) || bare || hidden) && texts.length <= 3) out.form = true;
    }
    const users = fields.filter(user);
    out.identifier = out.passwords === 0 && users.length === 1 && fields.filter((f) => written(f) && kind(f) !== 'search').length <= 2;

    if (out.status < 400 && !out.code && !out.passwords && !selectors.some((s) => s)) return out;
    const text = (own('title') + ' ' + (own('body') ? own('body').innerText.slice(0, MOST_TEXT) : '')).toLowerCase();
    out.human = HUMAN.test(text);
    out.blocked = BLOCKED.test(text);
    out.away = AWAY.test(text);
    return out;
  };
})();
