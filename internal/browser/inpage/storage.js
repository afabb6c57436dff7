// What pages of an origin have stored, read and written in an empty page of that origin. The answer is JSON. In a page of
// another origin, which a browser opens where a site is only of https for example, it says whose it is and does nothing.
function (origin, text) {
  if (location.origin !== origin) return JSON.stringify({ origin: location.origin });
  if (text) {
    for (const { name, value } of JSON.parse(text).localStorage ?? []) localStorage.setItem(name, value);
  }
  const left = [];
  const entries = [];
  let broken = 0;
  for (let n = 0; n < localStorage.length; n++) {
    const name = localStorage.key(n);
    const value = localStorage.getItem(name);
    if (name.isWellFormed() && value.isWellFormed()) entries.push({ name, value });
    else broken++;
  }
  if (broken) left.push(`${broken} of localStorage, which are no text in Unicode`);
  return JSON.stringify({ origin, localStorage: entries, left });
}
