// Looks at the document for Query and DOM, in an isolated world. Answers are bounded here, before they travel.
// Accessors are taken from the prototypes: inputs of a form hide the form's own, and images and forms the document's.
const look = (request) => {
  const getter = (type, name) => {
    const get = Object.getOwnPropertyDescriptor(type.prototype, name).get;
    return (object) => get.call(object);
  };
  const typeOf = getter(Node, 'nodeType');
  const firstOf = getter(Node, 'firstChild');
  const nextOf = getter(Node, 'nextSibling');
  const plainData = getter(CharacterData, 'data');
  const dataOf = (node) => shown(plainData(node));
  const attributesOf = getter(Element, 'attributes');
  const nameOf = getter(Element, 'localName');
  const tagOf = getter(Element, 'tagName');
  const attribute = (element, name) => shown(Element.prototype.getAttribute.call(element, name));

  const HIDDEN = '[hidden]';
  const MOST_VISITS = 1000000;
  const VOID = new Set(['area', 'base', 'br', 'col', 'embed', 'hr', 'img', 'input', 'link', 'meta', 'param', 'source',
    'track', 'wbr']);
  const RAW = new Set(['script', 'style', 'xmp', 'iframe', 'noembed', 'noframes', 'noscript', 'plaintext']);
  const SILENT = new Set(['script', 'style', 'noscript', 'template', 'head']);

  // A field for a password, also one that the page shows in clear.
  const isSecret = (element) => element instanceof HTMLInputElement &&
    (getter(HTMLInputElement, 'type')(element) === 'password' ||
      /password/i.test(attribute(element, 'autocomplete') || ''));

  const escape = (text, quotes) => {
    text = text.replace(/&/g, '&amp;').replace(/\u00a0/g, '&nbsp;').replace(/</g, '&lt;').replace(/>/g, '&gt;');
    return quotes ? text.replace(/"/g, '&quot;') : text;
  };

  // Text with an end: what does not fit is not even looked at.
  const writer = (most) => {
    const pieces = [];
    let room = most;
    const w = {
      cut: false,
      put(text, encode) {
        if (w.cut) return;
        if (text.length > room) text = text.slice(0, room + 1);
        if (encode) text = encode(text);
        if (text.length > room) {
          w.cut = true;
          text = text.slice(0, room);
        }
        room -= text.length;
        pieces.push(text);
      },
      text: () => pieces.join(''),
    };
    return w;
  };

  // Markup as the page would write it, but for secrets.
  const html = (root, most) => {
    const w = writer(most);
    const stack = []; // of {close, next, raw}
    let visits = 0;
    let node = root;
    while (node || stack.length) {
      if (w.cut) break;
      if (++visits > MOST_VISITS) {
        w.cut = true;
        break;
      }
      if (!node) {
        const up = stack.pop();
        w.put(up.close);
        node = up.next;
        continue;
      }
      const after = node === root ? null : nextOf(node);
      switch (typeOf(node)) {
        case Node.ELEMENT_NODE: {
          const name = node instanceof HTMLElement ? nameOf(node) : tagOf(node);
          const secret = isSecret(node);
          w.put('<' + name);
          for (const { name: key, value } of attributesOf(node)) {
            if (w.cut) break;
            w.put(' ' + key + '="');
            w.put(secret && key.toLowerCase() === 'value' ? HIDDEN : shown(value), (text) => escape(text, true));
            w.put('"');
          }
          w.put('>');
          if (node instanceof HTMLElement && VOID.has(name)) {
            node = after;
            continue;
          }
          stack.push({ close: '</' + name + '>', next: after, raw: RAW.has(name) });
          node = firstOf(node instanceof HTMLTemplateElement ? getter(HTMLTemplateElement, 'content')(node) : node);
          continue;
        }
        case Node.TEXT_NODE:
        case Node.CDATA_SECTION_NODE: {
          const raw = stack.length > 0 && stack[stack.length - 1].raw;
          w.put(dataOf(node), raw ? undefined : (text) => escape(text, false));
          break;
        }
        case Node.COMMENT_NODE:
          w.put('<!--');
          w.put(dataOf(node));
          w.put('-->');
          break;
        case Node.DOCUMENT_TYPE_NODE:
          w.put('<!DOCTYPE ' + getter(DocumentType, 'name')(node) + '>');
          break;
        case Node.DOCUMENT_NODE:
          stack.push({ close: '', next: after, raw: false });
          node = firstOf(node);
          continue;
      }
      node = after;
    }
    return { text: w.text(), truncated: w.cut };
  };

  // The words of an element, without those of scripts and styles.
  const words = (root, most) => {
    let text = '';
    let visits = 0;
    const stack = [];
    let node = firstOf(root);
    while ((node || stack.length) && text.length <= most && ++visits <= 2000) {
      if (!node) {
        node = stack.pop();
        continue;
      }
      const after = nextOf(node);
      if (typeOf(node) === Node.TEXT_NODE) {
        text += dataOf(node).slice(0, 4 * most).replace(/\s+/g, ' ');
      } else if (typeOf(node) === Node.ELEMENT_NODE && !SILENT.has(nameOf(node))) {
        stack.push(after);
        node = firstOf(node);
        continue;
      }
      node = after;
    }
    return text.replace(/\s+/g, ' ').trim().slice(0, most);
  };

  const valueOf = (element) => {
    if (isSecret(element)) return getter(HTMLInputElement, 'value')(element) ? HIDDEN : '';
    for (const type of [HTMLInputElement, HTMLTextAreaElement, HTMLSelectElement, HTMLOptionElement, HTMLButtonElement]) {
      if (element instanceof type) return shown(getter(type, 'value')(element)).slice(0, 500);
    }
    return '';
  };

  const summary = (element, index) => ({
    index,
    tag: nameOf(element).slice(0, 100),
    id: (attribute(element, 'id') || '').slice(0, 200),
    class: (attribute(element, 'class') || '').slice(0, 300),
    text: words(element, 500),
    value: valueOf(element),
    href: element instanceof HTMLAnchorElement || element instanceof HTMLAreaElement
      ? shown(getter(element instanceof HTMLAnchorElement ? HTMLAnchorElement : HTMLAreaElement, 'href')(element)).slice(0, 2000) : '',
    outerHTML: html(element, 1500).text,
  });

  if (request.most) {
    let all;
    try {
      all = Document.prototype.querySelectorAll.call(document, request.selector);
    } catch {
      return { bad: true };
    }
    const elements = [];
    for (let i = 0; i < all.length && i < request.most; i++) elements.push(summary(all[i], i));
    return { elements, total: all.length };
  }

  let root = document;
  if (request.selector) {
    try {
      root = Document.prototype.querySelector.call(document, request.selector);
    } catch {
      return { bad: true };
    }
    if (!root) return { none: true };
  }
  if (request.format === 'html') return html(root, request.chars);
  if (root === document) root = getter(Document, 'body')(document) || getter(Document, 'documentElement')(document);
  if (!root) return { text: '', truncated: false };
  const text = shown((root instanceof HTMLElement ? getter(HTMLElement, 'innerText') : getter(Node, 'textContent'))(root));
  return { text: text.slice(0, request.chars), truncated: text.length > request.chars };
}

// inspect answers with all that was read beside it when there are texts to take out.
function inspect(request, { texts }) {
  if (!texts) return look(request);
  conceal(texts);
  return { Answer: look(request), Read: everything() };
}
