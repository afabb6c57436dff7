// How an element that is to be used stands in its document. The functions are taken from the prototypes, because the
// inputs of a form, and what a document has by name, hide those of the form and of the document.

const BOX = element => Element.prototype.getBoundingClientRect.call(element);
const own = (prototype, name) => Object.getOwnPropertyDescriptor(prototype, name).get;
const parentOf = node => own(Node.prototype, 'parentNode').call(node);
const MAX_CLIMB = 2000;

// up is the parent in what is drawn: through slots and out of shadow roots.
function up(node) {
	const slot = own(Element.prototype, 'assignedSlot').call(node);
	if (slot) return slot;
	const parent = parentOf(node);
	return parent instanceof ShadowRoot ? parent.host : parent;
}

function within(node, ancestor) {
	for (let i = 0; node instanceof Element && i < MAX_CLIMB; i++, node = up(node)) if (node === ancestor) return true;
	return false;
}

// describe names an element for a message, shortly.
function describe(element) {
	const attribute = name => Element.prototype.getAttribute.call(element, name);
	const cut = text => text.slice(0, 20000); // what is shown is cut later
	let text = '<' + cut(own(Element.prototype, 'localName').call(element));
	if (attribute('id')) text += ' id=' + cut(attribute('id'));
	else if (attribute('class')) text += ' class=' + cut(attribute('class'));
	return text.replace(/\s+/g, ' ') + '>';
}

// covering is what lies above the element at a point of its frame, null when nothing does that would take a click.
function covering(element, x, y) {
	let hit = Document.prototype.elementFromPoint.call(document, x, y);
	for (let depth = 0; hit && depth < 100; depth++) {
		const root = own(Element.prototype, 'shadowRoot').call(hit);
		const inner = root && ShadowRoot.prototype.elementFromPoint.call(root, x, y);
		if (!inner || inner === hit) break;
		hit = inner;
	}
	if (!hit) return 'nothing that can be hit';
	const whole = Element.prototype.closest.call(element, 'button,[role=button],a,[role=link]') || element;
	if (within(hit, whole)) return null;
	// A click on the label is a click on its control, and the other way round.
	for (const label of element.labels || []) if (within(hit, label)) return null;
	if (element instanceof HTMLLabelElement && element.control && within(hit, element.control)) return null;
	return describe(hit);
}

function visible(element) {
	const box = BOX(element);
	return box.width > 0 && box.height > 0 && getComputedStyle(element).visibility === 'visible';
}

const CONTROLS = 'button,input,select,textarea,option,[role=button],[role=checkbox],[role=radio],[role=switch]';

function enabled(element) {
	let control = element;
	if (element instanceof HTMLLabelElement && element.control) control = element.control;
	else control = Element.prototype.closest.call(element, CONTROLS) || element;
	if (Element.prototype.matches.call(control, ':disabled')) return false;
	for (let node = control, i = 0; node instanceof Element && i < MAX_CLIMB; i++, node = up(node))
		if (Element.prototype.getAttribute.call(node, 'aria-disabled') === 'true') return false;
	return true;
}

function editable(element) {
	if (element instanceof HTMLLabelElement && element.control) element = element.control;
	if (Element.prototype.getAttribute.call(element, 'aria-readonly') === 'true') return false;
	if (element instanceof HTMLTextAreaElement) return !element.readOnly;
	if (element instanceof HTMLInputElement)
		return !element.readOnly && !['button', 'checkbox', 'file', 'hidden', 'image', 'radio', 'reset', 'submit'].includes(element.type);
	return element instanceof HTMLElement && element.isContentEditable;
}

// frames waits for two frames to be drawn. A page that is not drawn has no frames, and is given a moment instead.
function frames() {
	return new Promise(done => {
		setTimeout(done, 100);
		requestAnimationFrame(() => requestAnimationFrame(done));
	});
}

// scroll brings the element into view. An element that is fixed at an edge may cover it there, so every attempt tries another place.
function scroll(element, attempt) {
	if (attempt === 0) Element.prototype.scrollIntoViewIfNeeded.call(element, true);
	else Element.prototype.scrollIntoView.call(element,
		{block: ['center', 'end', 'start'][(attempt - 1) % 3], inline: 'nearest', behavior: 'instant'});
}

// places are the points of the element that are worth a try: the middle of what is in view of each of its parts.
function places(element) {
	const out = [];
	for (const part of [...Element.prototype.getClientRects.call(element)].slice(0, 4)) {
		const left = Math.max(part.left, 0), right = Math.min(part.right, innerWidth);
		const top = Math.max(part.top, 0), bottom = Math.min(part.bottom, innerHeight);
		if (right - left >= 1 && bottom - top >= 1) out.push([(left + right) / 2, (top + bottom) / 2]);
	}
	return out;
}

// examine answers {check, cover} with the first thing that is missing, or {x, y}: where to click, in the frame.
async function examine(element, needs, attempt) {
	if (!own(Node.prototype, 'isConnected').call(element)) return {check: 'attached'};
	if (!visible(element)) return {check: 'visible'};
	if (needs.enabled && !enabled(element)) return {check: 'enabled'};
	if (needs.editable && !editable(element)) return {check: 'editable'};
	const before = BOX(element);
	// An element in the middle of the window stays where it is.
	if (attempt > 0 || places(element).length === 0 || before.top < 0 || before.left < 0 || before.bottom > innerHeight ||
		before.right > innerWidth) scroll(element, attempt);
	const start = BOX(element);
	await frames();
	if (!own(Node.prototype, 'isConnected').call(element)) return {check: 'attached'};
	const box = BOX(element);
	if (['x', 'y', 'width', 'height'].some(side => Math.abs(box[side] - start[side]) > 0.5)) return {check: 'stable'};
	if (!visible(element)) return {check: 'visible'};
	const candidates = places(element);
	if (candidates.length === 0) return {check: 'in view'};
	let cover = null;
	for (const [x, y] of candidates) {
		cover = needs.hit ? covering(element, x, y) : null;
		if (!cover) return {x, y};
	}
	return {check: 'hit', cover};
}
