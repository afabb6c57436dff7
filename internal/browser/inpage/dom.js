// The domSnapshot: the elements as they are in the document, with their own text and the attributes that tell what
// they are. Values of fields are not among them.
const shownAttributes = ['id', 'class', 'href', 'src', 'name', 'type', 'role', 'aria-label', 'title', 'alt', 'placeholder',
  'for', 'action', 'method', 'hidden', 'disabled'];
const maxAttribute = 300;
const maxDOMChars = 2000000; // of the whole answer

registry.dom = options => {
  let from = documentElement(document);
  if (options.selector) {
    const found = registry.query(options.selector);
    if (found === 'bad') return {Bad: true};
    if (!found) return {None: true};
    from = found;
  }
  const nodes = [], until = performance.now() + options.ms;
  let visits = 0, chars = 0, truncated = false;
  const stack = from ? [[from, 0]] : [];
  while (stack.length) {
    const [node, depth] = stack.pop();
    if (nodes.length >= options.nodes || chars > maxDOMChars || (nodes.length & 63) === 63 && performance.now() > until) {
      truncated = true;
      break;
    }
    const tag = localName(node);
    const entry = {tag: tag.slice(0, 100), depth};
    let text = '';
    const below = [];
    for (const root of [shadowRootOf(node), node]) {
      if (!root) continue;
      for (let child = firstChild(root); child; child = nextSibling(child)) {
        if (++visits > maxVisits) {
          truncated = true;
          break;
        }
        const type = nodeType(child);
        if (type === 1) below.push(child);
        else if (type === 3 && text.length < readText && tag !== 'script' && tag !== 'style') text += textOf(child, readText);
      }
    }
    text = tidy(text);
    if (text) entry.text = text;
    for (const name of shownAttributes) {
      let value = attribute(node, name);
      if (value === null) continue;
      value = tidy(value, maxAttribute);
      (entry.attributes ??= {})[name] = value;
      chars += name.length + value.length + 8;
    }
    chars += entry.tag.length + text.length + 40;
    nodes.push(entry);
    if (depth < options.depth) {
      // No more than could still be shown.
      for (let i = Math.min(below.length, options.nodes) - 1; i >= 0; i--) stack.push([below[i], depth + 1]);
      if (below.length > options.nodes) truncated = true;
    }
  }
  return {Nodes: nodes, Truncated: truncated, Chars: chars};
};
