// Waiting for what a page shows. Each wait is a slice: whoever waits longer asks again, also in the next document.

const own = (prototype, name) => Object.getOwnPropertyDescriptor(prototype, name).get;
const MAX_ROOTS = 1000;

// roots are the document, the open shadow roots and the frames of the same origin below it.
function roots() {
	const out = [document];
	for (let i = 0; i < out.length && out.length < MAX_ROOTS; i++) {
		const all = Document.prototype.createTreeWalker.call(document, out[i], NodeFilter.SHOW_ELEMENT);
		for (let visited = 0, node = all.nextNode(); node && visited < 200000 && out.length < MAX_ROOTS; visited++, node = all.nextNode()) {
			const shadow = own(Element.prototype, 'shadowRoot').call(node);
			if (shadow) out.push(shadow);
			if (node instanceof HTMLIFrameElement && node.contentDocument) out.push(node.contentDocument);
		}
	}
	return out;
}

const squeeze = text => text.replace(/\s+/g, ' ');

// text is what the roots show. Shadow roots have no text of their own, only their elements.
function shows(all, wanted) {
	wanted = squeeze(wanted);
	for (const root of all) {
		const tops = root instanceof ShadowRoot ? [...root.children] : [own(Document.prototype, 'documentElement').call(root)];
		for (const top of tops) if (top && squeeze(shown(top.innerText || '')).includes(wanted)) return true;
	}
	return false;
}

function drawn(element) {
	const box = Element.prototype.getBoundingClientRect.call(element);
	return box.width > 0 && box.height > 0 && getComputedStyle(element).visibility === 'visible';
}

function matches(all, selector) {
	for (const root of all) {
		const query = (root instanceof ShadowRoot ? ShadowRoot : Document).prototype.querySelectorAll;
		for (const element of [...query.call(root, selector)].slice(0, 1000)) if (drawn(element)) return true;
	}
	return false;
}

// everythingIn is what is waited for in: all that the document says, and what the other roots show.
function everythingIn(all) {
	const out = everything();
	for (const root of all) {
		const tops = root instanceof ShadowRoot ? [...root.children] : [own(Document.prototype, 'documentElement').call(root)];
		for (const top of tops) if (top) out.Texts += '\n' + (top.innerText || '');
		if (root !== document) {
			const query = (root instanceof ShadowRoot ? ShadowRoot : Document).prototype.querySelectorAll;
			for (const element of query.call(root, '*')) for (const {value} of element.attributes) if (value.length > 7) out.Attributes += '\n' + value;
		}
	}
	return out;
}

// missing is the first of what is wanted that does not hold, null when all does.
function missing(wanted) {
	const state = own(Document.prototype, 'readyState').call(document);
	if (wanted.loadState === 'domcontentloaded' && state === 'loading') return 'loadState';
	if (wanted.loadState === 'load' && state !== 'complete') return 'loadState';
	if (!wanted.text && !wanted.textGone && !wanted.selector) return null;
	const all = roots();
	if (wanted.selector && !matches(all, wanted.selector)) return 'selector';
	if (wanted.text && !shows(all, wanted.text)) return 'text';
	if (wanted.textGone && shows(all, wanted.textGone)) return 'textGone';
	return null;
}

// slice waits for all of it, at most for some milliseconds. A look takes at most a third of the time.
function slice(wanted = {}, most = 0, {texts}) {
	if (texts) conceal(texts);
	return new Promise((done, reject) => {
		const resolve = lacking => done(texts ? {Answer: lacking, Read: everythingIn(roots())} : lacking);
		const end = performance.now() + most;
		const look = () => {
			try {
				const started = performance.now();
				const lacking = missing(wanted);
				const now = performance.now();
				if (!lacking || now >= end) resolve(lacking);
				else setTimeout(look, Math.max(30, 2 * (now - started)));
			} catch (error) {
				if (error instanceof DOMException && error.name === 'SyntaxError') resolve('!selector'); else reject(error);
			}
		};
		look();
	});
}
