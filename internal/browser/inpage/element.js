// All scripts of the world use these: safe access to the document, refs, and the search for elements.
//
// A form shows its inputs, and a document its forms and images, as properties of their own names, also here. So every
// property of a node is read through the getter of its prototype, and every method is called that way.
const getter = (proto, name) => {
  const get = Object.getOwnPropertyDescriptor(proto, name).get;
  return node => get.call(node);
};
const method = (proto, name) => {
  const call = proto[name];
  return (node, ...args) => call.apply(node, args);
};
const nodeType = getter(Node.prototype, 'nodeType');
const firstChild = getter(Node.prototype, 'firstChild');
const nextSibling = getter(Node.prototype, 'nextSibling');
const parentNode = getter(Node.prototype, 'parentNode');
const isConnected = getter(Node.prototype, 'isConnected');
const getRootNode = method(Node.prototype, 'getRootNode');
const localName = getter(Element.prototype, 'localName');
const shadowRootOf = getter(Element.prototype, 'shadowRoot');
const plainAttribute = method(Element.prototype, 'getAttribute');
const attribute = (element, name) => shown(plainAttribute(element, name));
const hasAttribute = method(Element.prototype, 'hasAttribute');
const matches = method(Element.prototype, 'matches');
const boxOf = method(Element.prototype, 'getBoundingClientRect');
const checkVisibility = method(Element.prototype, 'checkVisibility');
const dataLength = getter(CharacterData.prototype, 'length');
const dataPart = method(CharacterData.prototype, 'substringData');
const createTreeWalker = method(Document.prototype, 'createTreeWalker');
const documentElement = getter(Document.prototype, 'documentElement');
const getElementById = method(Document.prototype, 'getElementById');
const getElementInShadow = method(DocumentFragment.prototype, 'getElementById');

const isElement = node => nodeType(node) === 1;

// text of a character node, as far as anybody reads it.
const textOf = (node, most) => shown(dataPart(node, 0, concealed ? dataLength(node) : Math.min(dataLength(node), most))).slice(0, most);

// search calls a query in the document, and, while it finds nothing, in every open shadow root.
const search = (query, from) => {
  const found = query(from);
  if (found) return found;
  let left = 200000;
  const roots = [from];
  for (let i = 0; i < roots.length && i < 10000; i++) {
    const walker = createTreeWalker(document, roots[i], NodeFilter.SHOW_ELEMENT);
    while (left-- > 0 && walker.nextNode()) {
      const root = shadowRootOf(walker.currentNode);
      if (!root) continue;
      const found = query(root);
      if (found) return found;
      roots.push(root);
    }
  }
  return null;
};

const queryDocument = method(Document.prototype, 'querySelector');
const queryFragment = method(DocumentFragment.prototype, 'querySelector');
const queryAny = (root, selector) => nodeType(root) === 9 ? queryDocument(root, selector) : queryFragment(root, selector);

// Refs: the same element keeps its number for the life of the document, and no number is given twice.
const numbers = new WeakMap();
const elements = new Map();
const mostRefs = 100000;
let lastNumber = start;

const numberOf = element => {
  let number = numbers.get(element);
  if (number === undefined) {
    number = ++lastNumber;
    numbers.set(element, number);
    elements.set(number, new WeakRef(element));
    if (elements.size > mostRefs) elements.delete(elements.keys().next().value);
  }
  return number;
};

const elementOf = number => {
  const element = elements.get(number)?.deref();
  return element && isConnected(element) ? element : null;
};

const offsetWidth = getter(HTMLElement.prototype, 'offsetWidth');
const offsetHeight = getter(HTMLElement.prototype, 'offsetHeight');

let latest = []; // the numbers in the last snapshot

const registry = {
  __proto__: null,

  ping() { return true; },

  // read is all that the document says, and openly a method's answer without some texts, beside it.
  read() { return everything(); },

  openly([method, argument, texts]) {
    conceal(texts);
    try {
      return {Answer: this[method](argument), Read: everything()};
    } finally {
      conceal([]);
    }
  },

  element(number) { return elementOf(number); },

  // query returns an element, null, or a text for what is no selector.
  query(selector) {
    try {
      return search(root => queryAny(root, selector), document);
    } catch {
      return 'bad';
    }
  },

  // frameAt says where the viewport of an iframe is in this one.
  frameAt(number) {
    const element = elementOf(number);
    if (!element) return null;
    const box = boxOf(element), style = getComputedStyle(element);
    const width = offsetWidth(element), height = offsetHeight(element);
    const scaleX = width ? box.width / width : 1, scaleY = height ? box.height / height : 1;
    const left = parseFloat(style.borderLeftWidth) + parseFloat(style.paddingLeft);
    const top = parseFloat(style.borderTopWidth) + parseFloat(style.paddingTop);
    return {X: box.x + (left || 0) * scaleX, Y: box.y + (top || 0) * scaleY, ScaleX: scaleX, ScaleY: scaleY};
  },

  // boxes are those of the last snapshot's refs that are in view.
  boxes(most) {
    const out = [];
    for (const number of latest) {
      if (out.length >= most) break;
      const element = elementOf(number);
      if (!element) continue;
      const box = boxOf(element);
      if (box.width <= 0 || box.height <= 0 || box.right <= 0 || box.bottom <= 0 ||
        box.x >= innerWidth || box.y >= innerHeight) continue;
      out.push({Number: number, X: box.x, Y: box.y, Width: box.width, Height: box.height});
    }
    return out;
  },
};
