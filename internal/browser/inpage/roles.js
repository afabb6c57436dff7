// Elements in words: their roles, the words for them, and how texts are quoted. See snapshot.js.
const maxVisits = 200000; // nodes
const maxDOMDepth = 600; // elements in elements, which is also how deep the walk calls itself
const maxText = 500; // characters of one text or name
const readText = 4000; // characters of one text that are looked at, most of them may be white
const maxOptions = 50;
const maxNamed = 400; // nodes that are read for one name

const shownBy = get => node => shown(get(node));
const assignedNodes = method(HTMLSlotElement.prototype, 'assignedNodes');
const inputType = getter(HTMLInputElement.prototype, 'type');
const inputValue = shownBy(getter(HTMLInputElement.prototype, 'value'));
const inputChecked = getter(HTMLInputElement.prototype, 'checked');
const inputMixed = getter(HTMLInputElement.prototype, 'indeterminate');
const inputLabels = getter(HTMLInputElement.prototype, 'labels');
const areaValue = shownBy(getter(HTMLTextAreaElement.prototype, 'value'));
const areaLabels = getter(HTMLTextAreaElement.prototype, 'labels');
const selectLabels = getter(HTMLSelectElement.prototype, 'labels');
const selectOptions = getter(HTMLSelectElement.prototype, 'options');
const selectMultiple = getter(HTMLSelectElement.prototype, 'multiple');
const selectSize = getter(HTMLSelectElement.prototype, 'size');
const selectedOptions = getter(HTMLSelectElement.prototype, 'selectedOptions');
const optionLabel = shownBy(getter(HTMLOptionElement.prototype, 'label'));
const optionSelected = getter(HTMLOptionElement.prototype, 'selected');
const linkAddress = shownBy(getter(HTMLAnchorElement.prototype, 'href'));
const areaAddress = shownBy(getter(HTMLAreaElement.prototype, 'href'));
const labelControl = getter(HTMLLabelElement.prototype, 'control');
const tableCaption = getter(HTMLTableElement.prototype, 'caption');

const words = text => new Set(text.split(' '));
const namespaceOf = getter(Element.prototype, 'namespaceURI');
const isHTML = element => namespaceOf(element) === 'http://www.w3.org/1999/xhtml';

// Roles that a page may give; others are ignored.
const knownRoles = words('alert alertdialog application article banner blockquote button caption cell checkbox code ' +
  'columnheader combobox complementary contentinfo definition deletion dialog document emphasis feed figure form generic ' +
  'grid gridcell group heading img image insertion link list listbox listitem log main marquee math menu menubar menuitem ' +
  'menuitemcheckbox menuitemradio meter navigation none note option paragraph presentation progressbar radio radiogroup ' +
  'region row rowgroup rowheader scrollbar search searchbox separator slider spinbutton status strong subscript ' +
  'superscript switch tab table tablist tabpanel term textbox time timer toolbar tooltip tree treegrid treeitem');
const usableRoles = words('button checkbox combobox gridcell link listbox menuitem menuitemcheckbox menuitemradio option radio ' +
  'scrollbar searchbox slider spinbutton switch tab textbox treeitem');
// Those whose name is what they contain.
const namedByContent = words('button cell checkbox columnheader gridcell heading link menuitem menuitemcheckbox ' +
  'menuitemradio option radio row rowheader switch tab tooltip treeitem caption');
// Those that contain so much that their content stays where it is: their name is only a label.
const containers = words('cell columnheader gridcell row rowheader treeitem caption tooltip');
// Those that only group; compact leaves them out when they have no name.
const grouping = words('list listitem row rowgroup paragraph group region cell article section figure form blockquote ' +
  'table gridcell banner contentinfo complementary main navigation search');

const tagRoles = {
  __proto__: null,
  article: 'article', aside: 'complementary', blockquote: 'blockquote', button: 'button', canvas: 'canvas',
  caption: 'caption', code: 'code', datalist: 'listbox', dd: 'definition', details: 'group', dialog: 'dialog',
  dt: 'term', fieldset: 'group', figure: 'figure', h1: 'heading', h2: 'heading', h3: 'heading', h4: 'heading',
  h5: 'heading', h6: 'heading', hr: 'separator', iframe: 'iframe', frame: 'iframe', img: 'img', li: 'listitem',
  main: 'main', math: 'math', menu: 'list', meter: 'meter', nav: 'navigation', ol: 'list', optgroup: 'group',
  option: 'option', output: 'status', p: 'paragraph', progress: 'progressbar', search: 'search', summary: 'button',
  svg: 'img', table: 'table', tbody: 'rowgroup', td: 'cell', textarea: 'textbox', tfoot: 'rowgroup', th: 'columnheader',
  thead: 'rowgroup', tr: 'row', ul: 'list', video: 'video', audio: 'audio', embed: 'embed', object: 'object',
};
const inputRoles = {
  __proto__: null,
  button: 'button', checkbox: 'checkbox', color: 'color', file: 'file', image: 'button', number: 'spinbutton',
  radio: 'radio', range: 'slider', reset: 'button', search: 'searchbox', submit: 'button',
};
// Those whose children are not shown, or not as such.
const leaves = words('audio canvas embed frame iframe img input meter object progress select svg textarea video');
// Those that can be disabled, besides elements of the page's own making.
const fieldTags = words('button fieldset input optgroup option select textarea');
// Those that say something when they are empty.
const tellingRoles = words('alert canvas img meter progressbar separator status');
const skippedTags = words('script style noscript template head title meta link base param source track');

// A text of the page is quoted: no line break and no quote of it can end the quotes. A character that steers the direction or the
// width of text is written as its number.
const steering = /[\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;
const quote = text => JSON.stringify(text).replace(steering, c => '\\u' + c.charCodeAt(0).toString(16).padStart(4, '0'));

// tidy makes one line of a text, with an ellipsis where it was cut.
const tidy = (text, most = maxText) => {
  const line = text.slice(0, readText).replace(/\s+/g, ' ').trim();
  if (line.length <= most) return line;
  return line.slice(0, most - 1).replace(/[\ud800-\udbff]$/, '') + '…';
};

const roleOf = (element, tag) => {
  const given = attribute(element, 'role');
  if (given) {
    for (const word of given.slice(0, 200).toLowerCase().split(/\s+/)) {
      if (word === 'presentation' || word === 'none') return 'generic';
      if (word === 'image') return 'img';
      if (knownRoles.has(word)) return word;
    }
  }
  if (!isHTML(element)) return tag === 'svg' || tag === 'math' ? tagRoles[tag] : 'generic';
  switch (tag) {
    case 'a': case 'area': return hasAttribute(element, 'href') ? 'link' : 'generic';
    case 'input': {
      const type = inputType(element);
      return inputRoles[type] ?? (hasAttribute(element, 'list') ? 'combobox' : 'textbox');
    }
    case 'select': return selectMultiple(element) || selectSize(element) > 1 ? 'listbox' : 'combobox';
    case 'img': return attribute(element, 'alt') === '' ? 'generic' : 'img';
    case 'section': return hasLabel(element) ? 'region' : 'generic';
    case 'form': return hasLabel(element) ? 'form' : 'generic';
    case 'header': return inSection(element) ? 'generic' : 'banner';
    case 'footer': return inSection(element) ? 'generic' : 'contentinfo';
  }
  return tagRoles[tag] ?? 'generic';
};

const hasLabel = element => hasAttribute(element, 'aria-label') || hasAttribute(element, 'aria-labelledby');
const closest = method(Element.prototype, 'closest');
const inSection = element => closest(element, 'article, aside, main, nav, section') !== null;

// secret says that the value of a field is not to be shown, and keeps saying so when a page shows it.
const secrets = new WeakSet();
const secret = element => {
  if (secrets.has(element)) return true;
  const type = inputType(element), use = (attribute(element, 'autocomplete') ?? '').toLowerCase();
  if (type !== 'password' && !use.includes('password') && !use.includes('one-time-code') && !use.includes('cc-csc') &&
    getComputedStyle(element).webkitTextSecurity === 'none') return false;
  secrets.add(element);
  return true;
};
