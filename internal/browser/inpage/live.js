// These tell a person who steers about a document.

const own = (prototype, name) => Object.getOwnPropertyDescriptor(prototype, name).get;

// at is the element at a point of this document, or of this shadow root.
function at(root, x, y) {
	const prototype = own(Node.prototype, 'nodeType').call(root) === 9 ? Document.prototype : ShadowRoot.prototype;
	return prototype.elementFromPoint.call(root, x, y);
}

// inner is where the content of a frame element begins, and how it is scaled.
function inner(element) {
	const box = Element.prototype.getBoundingClientRect.call(element);
	const width = own(HTMLElement.prototype, 'offsetWidth').call(element);
	const height = own(HTMLElement.prototype, 'offsetHeight').call(element);
	const sx = width ? box.width / width : 1, sy = height ? box.height / height : 1;
	const style = getComputedStyle(element);
	const side = name => (parseFloat(style['border' + name + 'Width']) || 0) + (parseFloat(style['padding' + name]) || 0);
	return {X: box.x + side('Left') * sx, Y: box.y + side('Top') * sy, ScaleX: sx, ScaleY: sy};
}

// focused is the element of this document, or of this shadow root, that has the focus.
function focused(root) {
	const prototype = own(Node.prototype, 'nodeType').call(root) === 9 ? Document.prototype : ShadowRoot.prototype;
	return own(prototype, 'activeElement').call(root);
}

// kind is what has to be done with an element.
function kind(element) {
	if (element instanceof HTMLSelectElement) {
		const listed = own(HTMLSelectElement.prototype, 'multiple').call(element) ||
			own(HTMLSelectElement.prototype, 'size').call(element) > 1;
		return listed || own(HTMLSelectElement.prototype, 'disabled').call(element) || Element.prototype.matches.call(element, ':disabled')
			? '' : 'select';
	}
	if (element instanceof HTMLIFrameElement || element instanceof HTMLFrameElement) return 'frame';
	return '';
}

// options lists what a select element has to choose from, and gives it the focus.
function options(element) {
	HTMLElement.prototype.focus.call(element, {preventScroll: true});
	const list = own(HTMLSelectElement.prototype, 'options').call(element);
	const out = [];
	const length = own(HTMLCollection.prototype, 'length').call(list);
	for (let i = 0; i < length && i < 1000; i++) {
		const option = HTMLCollection.prototype.item.call(list, i);
		const parent = own(Node.prototype, 'parentNode').call(option);
		const group = parent instanceof HTMLOptGroupElement ? parent : null;
		out.push({
			label: own(HTMLOptionElement.prototype, 'label').call(option).slice(0, 300),
			group: group ? own(HTMLOptGroupElement.prototype, 'label').call(group).slice(0, 300) : '',
			selected: own(HTMLOptionElement.prototype, 'selected').call(option),
			disabled: own(HTMLOptionElement.prototype, 'disabled').call(option) ||
				!!group && own(HTMLOptGroupElement.prototype, 'disabled').call(group),
		});
	}
	return out;
}

// choose sets the choice, as a person does. It is false when the list has changed and there is no such option.
function choose(element, index) {
	const list = own(HTMLSelectElement.prototype, 'options').call(element);
	const option = HTMLCollection.prototype.item.call(list, index);
	if (!option || !own(Node.prototype, 'isConnected').call(element)) return false;
	if (own(HTMLOptionElement.prototype, 'selected').call(option)) return true;
	Object.getOwnPropertyDescriptor(HTMLSelectElement.prototype, 'selectedIndex').set.call(element, index);
	EventTarget.prototype.dispatchEvent.call(element, new Event('input', {bubbles: true, composed: true}));
	EventTarget.prototype.dispatchEvent.call(element, new Event('change', {bubbles: true}));
	return true;
}

// field is the prototype of a text field; nothing for any other element.
function field(element) {
	if (element instanceof HTMLInputElement) return HTMLInputElement.prototype;
	return element instanceof HTMLTextAreaElement ? HTMLTextAreaElement.prototype : null;
}

// hidden says whether a field is for a password.
function hidden(element) {
	return element instanceof HTMLInputElement && own(HTMLInputElement.prototype, 'type').call(element) === 'password';
}

// receiver is where the browser would send a clipboard event: a text field, the place of the caret, or the body.
function receiver(element) {
	if (field(element)) return element;
	const selection = getSelection();
	const at = selection && own(Selection.prototype, 'anchorNode').call(selection);
	const type = at ? own(Node.prototype, 'nodeType').call(at) : 0;
	const near = type === 1 ? at : type === 3 ? own(Node.prototype, 'parentElement').call(at) : null;
	if (near && element instanceof Element && Node.prototype.contains.call(element, near)) return near;
	return element instanceof Element ? element : own(Document.prototype, 'body').call(document) ?? document;
}

// clipboard tells the page of a paste, a copy or a cut. The text is what is pasted, or what the page wants copied instead of the
// selection.
function clipboard(kind, element, text) {
	const data = new DataTransfer();
	if (text) data.setData('text/plain', text);
	const event = new ClipboardEvent(kind, {clipboardData: data, bubbles: true, cancelable: true, composed: true});
	const taken = !EventTarget.prototype.dispatchEvent.call(receiver(element), event);
	return {taken, text: taken && !text ? data.getData('text/plain') : ''};
}

// insert puts a text where the caret is, as one step that can be undone.
function insert(element, text) {
	if (!(document instanceof HTMLDocument)) return false; // no other has editing of its own
	const lines = text.split('\n');
	const rich = !field(element);
	// Line by line is slow, and a text field would report every line as an input of its own.
	if (lines.length === 1 || element instanceof HTMLInputElement || rich && lines.length <= 100)
		return Document.prototype.execCommand.call(document, 'insertText', false, text);
	const escaped = line => line.replace(/&/g, '&amp;').replace(/</g, '&lt;');
	const spaced = line => line.replace(/ {2}/g, '&nbsp; ').replace(/^ /, '&nbsp;').replace(/\t/g, '<span style="white-space:pre">\t</span>');
	// A field leaves the last line break out.
	const html = lines.map(line => rich ? spaced(escaped(line)) : escaped(line)).join('<br>') + (!rich && lines.at(-1) === '' ? '<br>' : '');
	return Document.prototype.execCommand.call(document, 'insertHTML', false, html);
}

// pasted gives the page a text as a paste does: the page is asked first, and may take the text by itself. It is false when the
// text is neither taken nor inserted. The clipboard of the browser is not used: other pages and later users could read it.
function pasted(element, text) {
	if (clipboard('paste', element, text).taken) return true;
	// The page may have moved the focus.
	const active = focused(Node.prototype.getRootNode.call(element)) ?? focused(document);
	if (!field(active) && !(active instanceof HTMLElement && own(HTMLElement.prototype, 'isContentEditable').call(active))) return true;
	const data = new DataTransfer();
	data.setData('text/plain', text);
	const before = new InputEvent('beforeinput', {inputType: 'insertFromPaste', bubbles: true, cancelable: true, composed: true,
		...(field(active) ? {data: text} : {dataTransfer: data})});
	return !EventTarget.prototype.dispatchEvent.call(active, before) || insert(active, text);
}

// copied is the text that is selected here, or what the page has copied instead. A password is nobody's. When it is cut, it is
// taken out of the page.
function copied(element, cut) {
	if (hidden(element)) return '';
	const told = clipboard(cut ? 'cut' : 'copy', element, '');
	if (told.taken) return told.text;
	const text = selected(element);
	if (cut && text) Document.prototype.execCommand.call(document, 'delete');
	return text;
}

function selected(element) {
	const prototype = field(element);
	if (!prototype) return Selection.prototype.toString.call(getSelection());
	const from = own(prototype, 'selectionStart').call(element), to = own(prototype, 'selectionEnd').call(element);
	// A field for numbers does not say what is selected in it.
	return from === null ? '' : own(prototype, 'value').call(element).slice(from, to);
}

// secret says whether a password field below this node has text in it.
function secret(root) {
	const roots = [root];
	for (let n = 0; n < roots.length && n < 10000; n++) {
		const walker = document.createTreeWalker(roots[n], NodeFilter.SHOW_ELEMENT);
		for (let node = walker.nextNode(); node; node = walker.nextNode()) {
			if (node instanceof HTMLInputElement && own(HTMLInputElement.prototype, 'type').call(node) === 'password' &&
				own(HTMLInputElement.prototype, 'value').call(node) !== '') return true;
			const shadow = own(Element.prototype, 'shadowRoot').call(node);
			if (shadow) roots.push(shadow);
		}
	}
	return false;
}
