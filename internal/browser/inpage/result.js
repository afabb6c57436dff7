// Looks at what an evaluation ended with, in the page's own world: a list of the value, or of nothing and of what was
// thrown. A page may have replaced everything that is called here; it can lie, and cannot make the answer longer.
function (most) {
  const primitive = (value) => typeof value === 'string' && value.length <= most;
  const thrown = this.length === 2;
  const value = this[thrown ? 1 : 0];
  const answer = { type: value === null ? 'null' : typeof value, thrown };
  if (typeof value === 'string') {
    if (thrown || !primitive(value)) {
      const cut = value.slice(0, thrown ? 4096 : most);
      answer.text = primitive(cut) ? cut : '';
      answer.truncated = !thrown;
      return answer;
    }
  } else if (typeof value === 'object' || typeof value === 'function') {
    if (thrown || typeof value === 'function') return answer;
  }
  try {
    const json = JSON.stringify(value);
    if (primitive(json)) answer.json = json;
    else if (typeof json === 'string') answer.length = json.length;
  } catch { /* a circle, or a number beyond JSON */ }
  return answer;
}
