// Fields of forms. The value of a field is set as a person would leave it there, with the events that follow.

const own = (prototype, name) => Object.getOwnPropertyDescriptor(prototype, name).get;
const field = element => element instanceof HTMLLabelElement && element.control || element;
const attribute = (element, name) => Element.prototype.getAttribute.call(element, name);

function describe(element) {
	const cut = text => text.slice(0, 20000); // what is shown is cut later
	let text = '<' + own(Element.prototype, 'localName').call(element);
	if (attribute(element, 'id')) text += ' id=' + cut(attribute(element, 'id'));
	return text.replace(/\s+/g, ' ') + '>';
}

// holder is the element that has the focus, in whatever shadow root.
function holder() {
	let active = own(Document.prototype, 'activeElement').call(document);
	for (let depth = 0; active && depth < 100; depth++) {
		const root = own(Element.prototype, 'shadowRoot').call(active);
		const inner = root && own(ShadowRoot.prototype, 'activeElement').call(root);
		if (!inner) break;
		active = inner;
	}
	return active;
}

function focusOn(element, caret) {
	element = field(element);
	if (holder() !== element) element.focus({preventScroll: true});
	const active = holder();
	if (active !== element && !(active && Node.prototype.contains.call(active, element) && active.isContentEditable)) {
		return {holder: active ? describe(active) : 'nothing'};
	}
	if (!caret) return {};
	if (element instanceof HTMLInputElement || element instanceof HTMLTextAreaElement) {
		if (caret === 'all') {
			element.select();
			return {};
		}
		try {
			element.setSelectionRange(element.value.length, element.value.length);
			return {};
		} catch {
			// Numbers and addresses of mail have no selection that scripts may set.
			return {endKey: true};
		}
	}
	const selection = getSelection();
	const range = document.createRange();
	range.selectNodeContents(element);
	if (caret === 'end') range.collapse(false);
	selection.removeAllRanges();
	selection.addRange(range);
	return {};
}

// kindOf says how a field is filled: text, picked (a date, a colour: set, not typed), checkbox, radio, select, none.
function kindOf(element) {
	element = field(element);
	if (element instanceof HTMLSelectElement) return 'select';
	if (element instanceof HTMLTextAreaElement) return 'text';
	if (element instanceof HTMLInputElement) {
		const type = element.type;
		if (type === 'checkbox' || type === 'radio') return type;
		if (['color', 'date', 'datetime-local', 'month', 'range', 'time', 'week'].includes(type)) return 'picked';
		if (['button', 'file', 'hidden', 'image', 'reset', 'submit'].includes(type)) return 'none';
		return 'text';
	}
	const role = attribute(element, 'role');
	if (['checkbox', 'switch', 'menuitemcheckbox'].includes(role)) return 'checkbox';
	if (['radio', 'menuitemradio'].includes(role)) return 'radio';
	return element instanceof HTMLElement && element.isContentEditable ? 'text' : 'none';
}

function checkedState(element) {
	element = field(element);
	return element instanceof HTMLInputElement ? element.checked : attribute(element, 'aria-checked') === 'true';
}

function changed(element) {
	element.dispatchEvent(new Event('input', {bubbles: true, composed: true}));
	element.dispatchEvent(new Event('change', {bubbles: true}));
}

// pick sets a value that is chosen and not typed. It answers whether the field took it.
function pick(element, value) {
	element = field(element);
	element.focus({preventScroll: true});
	element.value = value;
	if (element.value.toLowerCase() !== value.trim().toLowerCase() && element.type !== 'range' &&
		!(value && element.value && element.type !== 'color')) return false;
	changed(element);
	return true;
}

// choose selects the options with these values or labels. It answers the numbers of those that are missing.
function choose(element, wanted) {
	element = field(element);
	if (!(element instanceof HTMLSelectElement)) return {none: true};
	if (wanted.length > 1 && !element.multiple) return {single: true};
	const squeeze = text => text.trim().replace(/\s+/g, ' ');
	const options = [...element.options].slice(0, 10000);
	const missing = [], found = new Set();
	wanted.forEach((text, i) => {
		const usable = option => !option.disabled && !(option.parentNode instanceof HTMLOptGroupElement && option.parentNode.disabled);
		const option = options.find(option => usable(option) && option.value === text) ||
			options.find(option => usable(option) && squeeze(option.label) === squeeze(text));
		if (option) found.add(option); else missing.push(i);
	});
	if (missing.length) return {missing, known: options.slice(0, 20).map(option => squeeze(option.label).slice(0, 20000))};
	element.focus({preventScroll: true});
	if (element.multiple) for (const option of options) option.selected = found.has(option);
	else for (const option of found) option.selected = true;
	changed(element);
	return {};
}
