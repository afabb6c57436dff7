// The tools of a hidden page: one file that it was given by the browser is read in slices, and one that it was given in
// parts is saved. It runs in an isolated world of an empty page. The completion value is the object of tools.
(() => {
  const input = document.createElement('input');
  input.type = 'file';
  const parts = [];

  const save = (blob, name) => {
    const link = document.createElement('a');
    link.download = name;
    link.href = URL.createObjectURL(blob);
    link.click();
  };

  return {
    input,
    size: () => input.files[0].size,
    // Reading fails for a file that is not there, and for one that was changed since it was chosen.
    slice: (from, to) => new Promise((resolve, reject) => {
      const reader = new FileReader();
      reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(',') + 1));
      reader.onerror = () => reject(reader.error);
      reader.readAsDataURL(input.files[0].slice(from, to));
    }),
    add: (base64) => {
      // The first is new in 2025; a browser of the host may be older.
      if (Uint8Array.fromBase64) parts.push(Uint8Array.fromBase64(base64));
      else parts.push(Uint8Array.from(atob(base64), (c) => c.charCodeAt(0)));
    },
    saveParts: (name) => { save(new Blob(parts, { type: 'application/octet-stream' }), name); parts.length = 0; },
    saveInput: (name) => save(input.files[0], name),
  };
})()
