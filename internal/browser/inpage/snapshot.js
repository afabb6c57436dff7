// The ai snapshot: one walk over what is shown, with roles, names, states and refs, and every bound kept while walking.
class Walk {
  constructor(options) {
    this.options = options;
    this.lines = [];
    this.chars = 0;
    this.visits = 0;
    this.until = performance.now() + options.ms;
    this.truncated = false;
    this.refs = [];
    this.interactive = 0;
    this.frames = [];
    this.text = '';
  }

  // visit counts a node and says whether the walk may go on.
  visit() {
    if (this.truncated) return false;
    if (++this.visits > maxVisits || (this.visits & 63) === 0 && performance.now() > this.until) this.truncated = true;
    return !this.truncated;
  }

  // line adds a line, or says that there is no room.
  line(depth, text) {
    const cost = 2 * depth + text.length + 1;
    if (this.truncated || this.chars + cost > this.options.chars) {
      this.truncated = true;
      return false;
    }
    this.chars += cost;
    this.lines.push({depth, text, words: false});
    return true;
  }

  // flush writes the text that has gathered.
  flush(depth) {
    const text = tidy(this.text);
    this.text = '';
    if (text === '' || depth > this.options.depth) return;
    if (this.line(depth, '- text: ' + quote(text))) this.lines[this.lines.length - 1].words = true;
  }

  children(element, visitor) {
    const root = isElement(element) ? shadowRootOf(element) : null;
    if (!root && isElement(element) && localName(element) === 'slot' && isHTML(element)) {
      const assigned = assignedNodes(element);
      if (assigned.length) {
        for (let i = 0; i < assigned.length && !this.truncated; i++) visitor(assigned[i]);
        return;
      }
    }
    for (let child = firstChild(root ?? element); child && !this.truncated; child = nextSibling(child)) visitor(child);
  }

  // content is the text within an element, for its name.
  content(element, most = maxText) {
    let text = '', left = maxNamed;
    const read = (node, deep, shown) => {
      if (text.length > readText || left-- <= 0 || !this.visit()) return;
      const type = nodeType(node);
      if (type === 3) {
        if (shown) text += textOf(node, readText);
      } else if (type === 1 && deep < 50) {
        const tag = localName(node);
        if (skippedTags.has(tag) || attribute(node, 'aria-hidden') === 'true') return;
        const style = getComputedStyle(node);
        if (style.display === 'none') return;
        const visible = style.visibility === 'visible';
        const label = attribute(node, 'aria-label') || (tag === 'img' || tag === 'area') && attribute(node, 'alt') ||
          tag === 'svg' && this.drawingName(node);
        const space = !style.display.startsWith('inline') || tag === 'br';
        if (space) text += ' ';
        if (label) text += visible ? label.slice(0, readText) : '';
        else if (!leaves.has(tag)) this.children(node, child => read(child, deep + 1, visible));
        if (space) text += ' ';
      }
    };
    this.children(element, child => read(child, 0, true));
    return tidy(text, most);
  }

  drawingName(element) {
    for (let child = firstChild(element), i = 0; child && i < 20; child = nextSibling(child), i++) {
      if (isElement(child) && localName(child) === 'title') {
        const text = firstChild(child);
        return text && nodeType(text) === 3 ? textOf(text, readText) : '';
      }
    }
    return '';
  }

  // labelled follows aria-labelledby one step: labels that name each other are no circle then.
  labelled(element) {
    const ids = attribute(element, 'aria-labelledby');
    if (!ids) return '';
    const root = getRootNode(element);
    const lookUp = nodeType(root) === 9 ? getElementById : nodeType(root) === 11 ? getElementInShadow : () => null;
    let name = '';
    for (const id of ids.slice(0, 1000).split(/\s+/).slice(0, 10)) {
      const label = id && lookUp(root, id);
      if (label) name += ' ' + (attribute(label, 'aria-label') || this.content(label));
    }
    return tidy(name);
  }

  // name returns the accessible name, and whether it is what the element contains.
  name(element, tag, role) {
    let name = this.labelled(element) || tidy(attribute(element, 'aria-label') ?? '');
    if (name) return [name, false];
    if (isHTML(element)) {
      switch (tag) {
        case 'input': {
          const type = inputType(element);
          if (type === 'submit' || type === 'button' || type === 'reset') {
            name = tidy(inputValue(element)) || (type === 'button' ? '' : type);
          } else if (type === 'image') {
            name = tidy(attribute(element, 'alt') ?? '');
          } else {
            name = this.labels(inputLabels(element));
          }
          break;
        }
        case 'textarea': name = this.labels(areaLabels(element)); break;
        case 'select': name = this.labels(selectLabels(element)); break;
        case 'img': case 'area': name = tidy(attribute(element, 'alt') ?? ''); break;
        case 'table': { const caption = tableCaption(element); name = caption ? this.content(caption) : ''; break; }
        case 'fieldset': name = this.first(element, 'legend'); break;
        case 'figure': name = this.first(element, 'figcaption'); break;
        case 'details': name = this.first(element, 'summary'); break;
        case 'optgroup': name = tidy(attribute(element, 'label') ?? ''); break;
      }
    } else if (tag === 'svg') {
      name = tidy(this.drawingName(element));
    }
    if (!name && namedByContent.has(role) && tag !== 'input' && tag !== 'select') {
      if (!containers.has(role)) {
        name = this.content(element);
        if (name) return [name, true];
      }
    }
    return [name || tidy(attribute(element, 'title') ?? '') || tidy(attribute(element, 'placeholder') ?? ''), false];
  }

  labels(list) {
    let name = '';
    for (let i = 0; list && i < list.length && i < 5; i++) name += ' ' + this.content(list[i]);
    return tidy(name);
  }

  first(element, tag) {
    for (let child = firstChild(element), i = 0; child && i < 20; child = nextSibling(child), i++) {
      if (isElement(child) && localName(child) === tag) return this.content(child);
    }
    return '';
  }

  // states are those that a reader needs: only words and numbers of ours, nothing that a page could make up.
  states(element, tag, role) {
    let out = '';
    const flag = (word, value) => {
      if (value === 'true' || value === true) out += ` [${word}]`;
      else if (value === 'mixed') out += ` [${word}=mixed]`;
      else if ((value === 'false' || value === false) && (word === 'expanded' || word === 'pressed')) out += ` [${word}=false]`;
    };
    const aria = word => attribute(element, 'aria-' + word);
    const type = tag === 'input' && isHTML(element) ? inputType(element) : '';
    if (type === 'checkbox' || type === 'radio') flag('checked', inputMixed(element) ? 'mixed' : inputChecked(element));
    else flag('checked', aria('checked'));
    flag('disabled', aria('disabled') === 'true' || (fieldTags.has(tag) || tag.includes('-')) && matches(element, ':disabled'));
    if (tag === 'details') flag('expanded', hasAttribute(element, 'open'));
    else if (tag === 'summary' && parentNode(element) && isElement(parentNode(element))) {
      flag('expanded', hasAttribute(parentNode(element), 'open'));
    } else flag('expanded', aria('expanded'));
    flag('selected', tag === 'option' && isHTML(element) ? optionSelected(element) : aria('selected'));
    flag('pressed', aria('pressed'));
    if (role === 'heading') {
      const level = parseInt(aria('level') ?? (/^h[1-6]$/.test(tag) ? tag[1] : '2'), 10);
      if (level > 0 && level < 100) out += ` [level=${level}]`;
    }
    flag('required', hasAttribute(element, 'required') || aria('required'));
    const invalid = aria('invalid');
    flag('invalid', invalid !== null && invalid !== '' && invalid !== 'false');
    return out;
  }

  // value is what a field holds, quoted; of a field for passwords it is nothing.
  value(element, tag) {
    if (!isHTML(element)) return '';
    let value = '';
    if (tag === 'textarea') {
      if (getComputedStyle(element).webkitTextSecurity === 'none') value = areaValue(element);
    } else if (tag === 'select') {
      if (!selectMultiple(element)) {
        const chosen = selectedOptions(element)[0];
        value = chosen ? optionLabel(chosen) : '';
      }
    } else if (tag === 'input') {
      const type = inputType(element);
      if (['checkbox', 'radio', 'submit', 'button', 'reset', 'image', 'hidden'].includes(type)) return '';
      if (secret(element)) return '';
      value = inputValue(element);
      if (type === 'file') value = value.replace(/^.*[\\/]/, '');
    } else if (tag === 'progress' || tag === 'meter') {
      value = attribute(element, 'value') ?? '';
    } else {
      return '';
    }
    value = tidy(value);
    return value && quote(value);
  }

  // usable says that a person could do something with the element.
  usable(element, tag, role, pointer) {
    if (usableRoles.has(role)) return true;
    if (role === 'color' || role === 'file') return true;
    if (!isHTML(element)) return pointer;
    if (tag === 'video' || tag === 'audio') return hasAttribute(element, 'controls');
    if (pointer || hasAttribute(element, 'onclick')) return true;
    const index = attribute(element, 'tabindex');
    if (index !== null && parseInt(index, 10) >= 0) return true;
    const editable = attribute(element, 'contenteditable');
    return editable === '' || editable === 'true' || editable === 'plaintext-only' || attribute(element, 'draggable') === 'true';
  }

  // at walks one node. covered: the name of an element around it has its text; pointing: it has the pointer already.
  at(node, depth, deep, covered, pointing) {
    if (!this.visit()) return;
    const type = nodeType(node);
    if (type === 3) {
      if (!covered && !this.options.interactive && this.text.length < readText) this.text += textOf(node, readText);
      return;
    }
    if (type !== 1) return;
    const tag = localName(node), html = isHTML(node);
    if (skippedTags.has(tag) || attribute(node, 'aria-hidden') === 'true') return;
    if (tag === 'input' && html && inputType(node) === 'hidden') return;
    if (tag === 'br') { this.text += ' '; return; }
    if (deep > maxDOMDepth) {
      this.truncated = true;
      return;
    }
    const style = getComputedStyle(node), display = style.display;
    if (display === 'none' || display !== 'contents' && !checkVisibility(node)) return;
    const shown = style.visibility === 'visible';
    if (display !== 'contents' && display !== 'inline' && tag !== 'option' && tag !== 'optgroup') {
      const box = boxOf(node);
      if ((box.width === 0 || box.height === 0) && (style.overflowX !== 'visible' || style.overflowY !== 'visible')) return;
    }
    if (!shown) {
      // Elements within it may be shown again.
      this.children(node, child => {
        if (isElement(child)) this.at(child, depth, deep + 1, covered, pointing);
      });
      return;
    }
    const inline = display.startsWith('inline') || display === 'contents';
    const pointer = style.cursor === 'pointer';
    this.element(node, tag, html, depth, deep, covered, pointer && !pointing, pointing || pointer, inline);
  }

  element(node, tag, html, depth, deep, covered, pointer, pointing, inline) {
    const o = this.options;
    let role = roleOf(node, tag), control = null;
    if (tag === 'label' && html && (control = labelControl(node)) && checkVisibility(control)) {
      // Its text is the name of the control.
      covered = true;
      control = null;
    }
    if (tag === 'body' || tag === 'html') pointer = pointing = false;
    const usable = control !== null || this.usable(node, tag, role, pointer);
    const matters = usable || role === 'iframe' || role === 'canvas' || role === 'dialog' || role === 'alertdialog';
    let name = '', byContent = false;
    if (role !== 'generic') [name, byContent] = this.name(node, tag, role);
    else if (usable || !inline) name = tidy(attribute(node, 'aria-label') ?? '');
    if (usable && !name && o.interactive) name = this.content(node, 100);
    let show = matters || role !== 'generic' || name !== '';
    if (role === 'img' && !name && !usable || covered && !usable || o.interactive && !usable && role !== 'iframe' ||
      o.compact && !matters && !name && grouping.has(role)) show = false;
    const leaf = leaves.has(tag) && html || tag === 'svg';
    if (!show) {
      if (!inline) this.flush(depth);
      if (!leaf) this.within(node, depth, deep, covered, pointing);
      if (!inline) this.flush(depth);
      return;
    }
    this.flush(depth);
    if (depth > o.depth) return;
    const numbered = matters || role === 'img', states = this.states(control ?? node, control ? 'input' : tag, role);
    let text = '- ' + role + (name && ' ' + quote(name)) + states, number = 0;
    if (numbered) {
      const known = numbers.has(node);
      number = numberOf(node);
      text += ` [ref=${o.prefix}e${number}]` + (o.again && !known ? ' [new]' : '');
    }
    const listed = tag === 'select' && html && !o.interactive;
    const value = listed ? '' : this.value(node, tag);
    if (value) text += ': ' + value;
    const at = this.lines.length;
    if (!this.line(depth, text)) return;
    if (numbered) this.refs.push(number);
    if (usable) this.interactive++;
    if (o.urls && role === 'link' && html && (tag === 'a' || tag === 'area')) {
      const address = tidy(tag === 'a' ? linkAddress(node) : areaAddress(node));
      if (address && depth < o.depth) this.line(depth + 1, '- /url: ' + quote(address));
    }
    if (role === 'iframe' && html) {
      this.frames.push({Line: at, Depth: depth + 1, Ref: number});
    } else if (listed) {
      this.choices(node, depth + 1);
    } else if (!leaf) {
      this.within(node, depth + 1, deep, covered || byContent, pointing);
      this.flush(depth + 1);
    }
    this.close(at, numbered || name !== '' || states !== '' || value !== '' || tellingRoles.has(role));
  }

  within(node, depth, deep, covered, pointing) {
    this.children(node, child => this.at(child, depth, deep + 1, covered, pointing));
  }

  // close finishes the line of an element when what is in it has been written.
  close(at, keep) {
    const own = this.lines[at], inside = this.lines.length - at - 1;
    if (inside === 0) {
      if (keep || this.truncated) return;
      this.lines.pop();
      this.chars -= 2 * own.depth + own.text.length + 1;
    } else if (inside === 1 && this.lines[at + 1].words) {
      // A text that is all there is within is written behind it.
      const words = this.lines.pop(), moved = words.text.slice('- text'.length);
      this.chars -= 2 * words.depth + words.text.length + 1 - moved.length;
      own.text += moved;
    } else {
      own.text += ':';
      this.chars++;
    }
  }

  // choices are the options of a select.
  choices(node, depth) {
    const all = selectOptions(node), many = all.length;
    if (depth > this.options.depth) return;
    for (let i = 0; i < many && i < maxOptions && this.visit(); i++) {
      const option = all[i];
      this.line(depth, '- option ' + quote(tidy(optionLabel(option), 200)) + this.states(option, 'option', 'option'));
    }
    if (many > maxOptions) this.line(depth, `- /more: ${many - maxOptions} options`);
  }
}

let asked = false; // a snapshot was taken of this document
let iframes = [];

// snapshot returns the text of the document, or of an element, with the frames in it that are still to be asked.
registry.snapshot = options => {
  const walk = new Walk({...options, again: asked});
  let from = documentElement(document);
  if (options.selector) {
    const found = registry.query(options.selector);
    if (found === 'bad') return {Bad: true};
    if (!found) return {None: true};
    from = found;
  }
  asked = true;
  try {
    if (from) walk.at(from, options.base, 0, false, false);
    walk.flush(options.base);
  } catch (error) {
    // A tree that is deeper than the stack.
    if (!(error instanceof RangeError)) throw error;
    walk.truncated = true;
  }
  latest = walk.refs;
  iframes = walk.frames.slice(0, options.frames).map(frame => elementOf(frame.Ref));
  return {
    Text: walk.lines.map(line => '  '.repeat(line.depth) + line.text).join('\n'),
    Truncated: walk.truncated,
    Refs: walk.refs,
    Interactive: walk.interactive,
    Frames: walk.frames.slice(0, options.frames),
    MoreFrames: walk.frames.length > options.frames,
    Last: lastNumber,
  };
};

registry.iframe = index => iframes[index] ?? null;

// about is what the accessibility tree needs to know: how deep the document is fetched so that there are no more than
// so many elements (0: all of it), and the values of fields that are to be kept out of it. They go no further than to
// who takes them out.
registry.about = most => {
  const values = new Set();
  const root = documentElement(document);
  let level = root ? [root] : [], total = 0;
  for (let depth = 0; level.length; depth++) {
    total += level.length;
    // The tree has neither html nor body.
    if (total > most) return {Depth: Math.max(1, depth - 2), Secrets: [...values]};
    const below = [];
    for (const node of level) {
      if (localName(node) === 'input' && isHTML(node) && values.size < 1000 && secret(node)) {
        const value = inputValue(node);
        if (value && value.length <= readText) values.add(value);
      }
      for (const root of [shadowRootOf(node), node]) {
        for (let child = root && firstChild(root); child && below.length <= most; child = nextSibling(child)) {
          if (isElement(child)) below.push(child);
        }
      }
    }
    level = below;
  }
  return {Depth: 0, Secrets: [...values]};
};
