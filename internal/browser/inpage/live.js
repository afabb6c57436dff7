// What a person who steers needs to know of a document.

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

// copied is the text that is selected here. A password is nobody's.
function copied(element) {
	if (element instanceof HTMLInputElement || element instanceof HTMLTextAreaElement) {
		const prototype = element instanceof HTMLInputElement ? HTMLInputElement.prototype : HTMLTextAreaElement.prototype;
		if (own(prototype, 'type').call(element) === 'password') return '';
		const from = own(prototype, 'selectionStart').call(element), to = own(prototype, 'selectionEnd').call(element);
		// A field for numbers does not say what is selected in it.
		if (from === null) return '';
		return own(prototype, 'value').call(element).slice(from, to);
	}
	return Selection.prototype.toString.call(getSelection());
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
