// Values that must not be shown are taken out before anything is cut or compared. The texts to take out are only ones that this
// document has itself: whoever asks looks them up in everything that is here, and asks again with those it found.
let concealed = null;

const conceal = texts => {
	const escaped = texts.map(text => text.replace(/[^A-Za-z0-9]/g, c => '\\u' + c.charCodeAt(0).toString(16).padStart(4, '0')));
	concealed = escaped.length ? new RegExp(escaped.join('|'), 'gi') : null;
};

const shown = text => concealed && typeof text === 'string' ? text.replace(concealed, '[redacted]') : text;

// everything is all that the document and its open shadow roots say, and apart from it what their attributes do.
const everything = () => {
	const get = (proto, name) => Object.getOwnPropertyDescriptor(proto, name).get;
	const typeOf = get(Node.prototype, 'nodeType'), attributesOf = get(Element.prototype, 'attributes');
	const shadowOf = get(Element.prototype, 'shadowRoot'), dataOf = get(CharacterData.prototype, 'data');
	const contentOf = get(HTMLTemplateElement.prototype, 'content');
	const fields = [HTMLInputElement, HTMLTextAreaElement].map(type => [type, get(type.prototype, 'value')]);
	const texts = [], attributes = [], values = [], roots = [document];
	let left = 16000000;
	const add = (list, text) => {
		if ((left -= text.length + 1) < 0) throw new Error('the document is too large to be looked through');
		list.push(text);
	};
	for (let i = 0; i < roots.length; i++) {
		const walker = Document.prototype.createTreeWalker.call(document, roots[i], NodeFilter.SHOW_ALL);
		for (let node = walker.nextNode(); node; node = walker.nextNode()) {
			switch (typeOf.call(node)) {
				case 1:
					for (const {value} of attributesOf.call(node)) if (value.length > 7) add(attributes, value);
					if (shadowOf.call(node)) roots.push(shadowOf.call(node));
					if (node instanceof HTMLTemplateElement) roots.push(contentOf.call(node));
					for (const [type, valueOf] of fields) if (node instanceof type) add(values, valueOf.call(node));
					break;
				case 3: case 4: case 8:
					add(texts, dataOf.call(node));
			}
		}
	}
	// Texts that follow each other are one to who reads them.
	return {Texts: texts.join('') + '\n' + values.join('\n'), Attributes: attributes.join('\n')};
};
