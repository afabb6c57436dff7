// Storage of the pages of an origin, read and written in an empty page of that origin. The answer is JSON. In a page of
// another origin, which a browser opens where a site is only of https for example, it says whose it is and does nothing.
//
// Values of IndexedDB are written as Playwright writes them in a storage state: as they are where JSON has them, and else as
// {v}, {d}, {bi}, {e}, {r}, {a}, {o}, {m}, {s}, {ta}, {ab} and {ref}. Beside those: {w} is a text that is no Unicode, {dv} a
// DataView, {bl} a Blob, {f} a File, {ck} a CryptoKey that can be exported, and {hole} is where an array has nothing.
//
// text is what to put in, empty for reading; how is "count" where numbers are enough. most has bounds: a database that is beyond
// one is left out whole, and named, and so is one that a page keeps busy.
async function (origin, text, how, most) {
  if (location.origin !== origin) return JSON.stringify({ origin: location.origin });

  class Refused extends Error {} // what is to be put in cannot be
  class Unkept extends Error {} // a value that is not carried

  const left = new Map();
  const leave = (what) => left.set(what, (left.get(what) ?? 0) + 1);

  const done = (request) => new Promise((ok, no) => {
    request.onsuccess = () => ok(request.result);
    request.onerror = () => no(request.error);
  });

  const arrays = { i8: Int8Array, ui8: Uint8Array, ui8c: Uint8ClampedArray, i16: Int16Array, ui16: Uint16Array, i32: Int32Array, ui32: Uint32Array, f16: Float16Array,
    f32: Float32Array, f64: Float64Array, bi64: BigInt64Array, bui64: BigUint64Array };
  const errors = { Error, EvalError, RangeError, ReferenceError, SyntaxError, TypeError, URIError };
  const numbers = { NaN: NaN, Infinity: Infinity, '-Infinity': -Infinity, '-0': -0 };
  const sum = (list, size) => list.reduce((all, one) => all + size(one), 0);
  const length = (text) => new TextEncoder().encode(text).length;
  const megabytes = (n) => `${Math.ceil(n / 2 ** 20)} MB`;
  const bytes = (buffer, from = 0, length = buffer.byteLength) => new Uint8Array(buffer, from, length).toBase64();
  const units = (text) => bytes(Uint16Array.from({ length: text.length }, (_, n) => text.charCodeAt(n)).buffer);

  // plain says whether JSON has a value as it is.
  function plain(value, seen = new Set()) {
    if (value === null || typeof value === 'boolean') return true;
    if (typeof value === 'string') return value.isWellFormed();
    if (typeof value === 'number') return Number.isFinite(value) && !Object.is(value, -0);
    if (typeof value !== 'object' || seen.has(value)) return false;
    seen.add(value);
    const keys = Object.keys(value);
    if (Array.isArray(value)) return keys.length === value.length && value.every((one) => plain(one, seen));
    return Object.getPrototypeOf(value) === Object.prototype && keys.every((key) => key !== '__proto__' && key.isWellFormed() && plain(value[key], seen));
  }

  async function encode(value, seen = new Map()) {
    switch (typeof value) {
      case 'undefined': return { v: 'undefined' };
      case 'boolean': return value;
      case 'bigint': return { bi: value.toString() };
      case 'string': return value.isWellFormed() ? value : { w: units(value) };
      case 'number': {
        const special = Object.keys(numbers).find((name) => Object.is(numbers[name], value));
        return special ? { v: special } : value;
      }
    }
    if (value === null) return { v: 'null' };
    if (seen.has(value)) return { ref: seen.get(value) };
    if (value instanceof Date) return { d: isNaN(value) ? null : value.toISOString() };
    if (value instanceof RegExp) return { r: { p: value.source, f: value.flags } };
    if (value instanceof Error) return { e: { n: value.name, m: value.message, s: value.stack ?? '' } };
    if (value instanceof ArrayBuffer) return { ab: { b: bytes(value) } };
    if (value instanceof DataView) return { dv: { b: bytes(value.buffer, value.byteOffset, value.byteLength) } };
    for (const [k, kind] of Object.entries(arrays)) if (value instanceof kind) return { ta: { b: bytes(value.buffer, value.byteOffset, value.byteLength), k } };
    if (value instanceof Blob) {
      const b = bytes(await value.arrayBuffer());
      return value instanceof File ? { f: { n: value.name, t: value.type, l: value.lastModified, b } } : { bl: { t: value.type, b } };
    }
    if (globalThis.CryptoKey && value instanceof CryptoKey) { // of secure pages alone
      if (!value.extractable) throw new Unkept('a CryptoKey that cannot be exported');
      return { ck: { k: await crypto.subtle.exportKey('jwk', value), a: await encode(value.algorithm), u: value.usages } };
    }
    const id = seen.size + 1;
    seen.set(value, id);
    const list = async (items) => {
      const out = [];
      for (const item of items) out.push(await encode(item, seen));
      return out;
    };
    const pairs = async (entries) => {
      const out = [];
      for (const [k, v] of entries) out.push({ k: await encode(k, seen), v: await encode(v, seen) });
      return out;
    };
    if (Array.isArray(value)) {
      const a = [];
      for (let n = 0; n < value.length; n++) a.push(n in value ? await encode(value[n], seen) : { hole: true });
      return { a, id };
    }
    if (value instanceof Map) return { m: await pairs(value), id };
    if (value instanceof Set) return { s: await list(value), id };
    if (Object.getPrototypeOf(value) !== Object.prototype) throw new Unkept(`a ${Object.prototype.toString.call(value).slice(8, -1)}`);
    if (!Object.keys(value).every((key) => key.isWellFormed())) throw new Unkept('a name that is no text in Unicode');
    return { o: await pairs(Object.entries(value)), id };
  }

  async function decode(value, made = new Map()) {
    if (typeof value !== 'object' || value === null) return value;
    const own = (name) => Object.hasOwn(value, name);
    const keep = (object) => { made.set(value.id, object); return object; };
    if (own('ref')) return made.get(value.ref);
    if (own('v')) return value.v === 'null' ? null : numbers[value.v];
    if (own('w')) return String.fromCharCode(...new Uint16Array(Uint8Array.fromBase64(value.w).buffer));
    if (own('d')) return new Date(value.d ?? NaN);
    if (own('u')) throw new Refused('has an address (URL), which no database keeps');
    if (own('bi')) return BigInt(value.bi);
    if (own('r')) return new RegExp(value.r.p, value.r.f);
    if (own('e')) {
      const error = new (errors[value.e.n] ?? Error)(value.e.m);
      error.stack = value.e.s;
      return error;
    }
    if (own('ab')) return Uint8Array.fromBase64(value.ab.b).buffer;
    if (own('dv')) return new DataView(Uint8Array.fromBase64(value.dv.b).buffer);
    if (own('ta')) return new arrays[value.ta.k](Uint8Array.fromBase64(value.ta.b).buffer);
    if (own('bl')) return new Blob([Uint8Array.fromBase64(value.bl.b)], { type: value.bl.t });
    if (own('f')) return new File([Uint8Array.fromBase64(value.f.b)], value.f.n, { type: value.f.t, lastModified: value.f.l });
    if (own('ck')) return crypto.subtle.importKey('jwk', value.ck.k, await decode(value.ck.a), true, value.ck.u);
    if (own('a')) {
      const out = keep([]);
      out.length = value.a.length;
      for (const [n, one] of value.a.entries()) if (!one?.hole) out[n] = await decode(one, made);
      return out;
    }
    if (own('s')) {
      const out = keep(new Set());
      for (const one of value.s) out.add(await decode(one, made));
      return out;
    }
    if (own('m')) {
      const out = keep(new Map());
      for (const { k, v } of value.m) out.set(await decode(k, made), await decode(v, made));
      return out;
    }
    if (own('o')) {
      const out = keep({});
      for (const { k, v } of value.o) Object.defineProperty(out, k, { value: await decode(v, made), writable: true, enumerable: true, configurable: true });
      return out;
    }
    throw new Refused('has a value of a kind that is not known');
  }

  const packed = async (name, value) => plain(value) ? { [name]: value } : { [`${name}Encoded`]: await encode(value) };
  const unpacked = (record, name) => Object.hasOwn(record, `${name}Encoded`) ? decode(record[`${name}Encoded`]) : record[name];
  const path = (of) => Array.isArray(of) ? { keyPathArray: [...of] } : of === null ? {} : { keyPath: of };

  // read returns a database, and null when it is left out.
  async function read(name) {
    const request = indexedDB.open(name);
    request.onupgradeneeded = () => request.transaction.abort(); // it was removed meanwhile
    const db = await done(request).catch(() => null);
    if (!db) return null;
    db.onversionchange = () => db.close();
    try {
      const out = { name, version: db.version, stores: [] };
      const names = [...db.objectStoreNames];
      if (!names.length) return out;
      if (names.length > most.stores) {
        leave(`the database ${name}, which has ${names.length} stores`);
        return null;
      }
      const transaction = db.transaction(names);
      const found = await Promise.all(names.map(async (name) => {
        const store = transaction.objectStore(name);
        const indexes = [...store.indexNames].map((name) => {
          const index = store.index(name);
          return { name, ...path(index.keyPath), multiEntry: index.multiEntry, unique: index.unique };
        });
        const about = { name, autoIncrement: store.autoIncrement, ...path(store.keyPath), indexes };
        const [count, keys, values] = await Promise.all([done(store.count()), ...(how === 'count' ? [] : [done(store.getAllKeys(null, most.records)), done(store.getAll(null, most.records))])]);
        return { about, count, keys, values };
      }));
      const records = found.reduce((sum, one) => sum + one.count, 0);
      if (records > most.records) {
        leave(`the database ${name}, which has ${records} records`);
        return null;
      }
      if (how === 'count') return { ...out, records };
      for (const { about, keys, values } of found) {
        const records = [];
        for (const [n, value] of values.entries()) {
          try {
            records.push({ ...('keyPath' in about || 'keyPathArray' in about ? {} : await packed('key', keys[n])), ...await packed('value', value) });
          } catch (error) {
            if (!(error instanceof Unkept || error instanceof RangeError)) throw error;
            leave(`a record of the database ${name}, ${about.name}, with ${error instanceof Unkept ? error.message : 'values too deep in each other'}`);
          }
        }
        out.stores.push({ ...about, records });
      }
      return out;
    } finally {
      db.close();
    }
  }

  // write makes a database, and compares what is in it then.
  async function write(given) {
    const made = [];
    for (const store of given.stores) {
      const records = [];
      for (const record of store.records) records.push({ key: await unpacked(record, 'key'), value: await unpacked(record, 'value') });
      made.push({ ...store, records });
    }
    const of = (one) => one.keyPathArray ?? one.keyPath ?? null;
    const request = indexedDB.open(given.name, given.version);
    let fresh = false;
    let keys = [];
    let why;
    // The records go in with what makes their stores: all of it is there in the end, or nothing.
    request.onupgradeneeded = ({ oldVersion }) => {
      const { transaction } = request;
      fresh = oldVersion === 0;
      if (!fresh) return transaction.abort();
      transaction.onabort = () => { why ??= transaction.error; };
      try {
        keys = made.map((store) => {
          const into = request.result.createObjectStore(store.name, { autoIncrement: store.autoIncrement, keyPath: of(store) });
          for (const index of store.indexes) into.createIndex(index.name, of(index), { unique: index.unique, multiEntry: index.multiEntry });
          return store.records.map(({ key, value }) => into.add(value, of(store) === null ? key : undefined));
        });
      } catch (error) {
        why = error;
        transaction.abort();
      }
    };
    const db = await done(request).catch(async (error) => {
      if (fresh) throw why ?? error;
      const there = (await indexedDB.databases()).find((one) => one.name === given.name);
      if (there?.version > given.version) throw new Refused(`is there in version ${there.version}, which is newer than ${given.version}`);
      if (there) throw new Refused('was there before');
      throw error;
    });
    try {
      if (!fresh) throw new Refused('was there before');
      if (!made.length) return;
      const names = made.map((store) => store.name);
      const reading = db.transaction(names);
      const text = (value) => plain(value) ? JSON.stringify([value]) : encode(value).then(JSON.stringify); // encode makes no list
      const back = await Promise.all(names.map((name) => Promise.all([done(reading.objectStore(name).getAllKeys()), done(reading.objectStore(name).getAll())])));
      for (const [n, store] of made.entries()) {
        const want = new Map();
        for (const [m, { value }] of store.records.entries()) want.set(await text(keys[n][m].result), await text(value));
        const [gotKeys, gotValues] = back[n];
        if (gotKeys.length !== want.size) throw new Refused('has other records than were put in');
        for (const [m, key] of gotKeys.entries()) {
          if (want.get(await text(key)) !== await text(gotValues[m])) throw new Refused('has a record that is not as it was put in');
        }
      }
    } finally {
      db.close();
    }
  }

  if (text) {
    const { localStorage: entries = [], indexedDB: databases = [] } = JSON.parse(text);
    for (const { name, value } of entries) localStorage.setItem(name, value);
    for (const database of databases) {
      try {
        await write(database);
      } catch (error) {
        // The words of others may quote a value; the name of an error is one of a list.
        const why = error instanceof Refused ? error.message : `is not taken (${error?.name})`;
        return JSON.stringify({ origin, refused: `the database ${database.name} ${why}` });
      }
    }
  }

  const entries = [];
  for (let n = 0; n < localStorage.length; n++) {
    const name = localStorage.key(n);
    const value = localStorage.getItem(name);
    const size = length(name) + length(value);
    if (!name.isWellFormed() || !value.isWellFormed()) leave('an entry of localStorage that is no text in Unicode');
    else if (size > most.value) leave(`an entry of localStorage with ${megabytes(size)}`);
    else entries.push({ name, value });
  }
  let bytesLeft = most.origin - sum(entries, ({ name, value }) => length(name) + length(value));
  if (!text && (entries.length > most.items || bytesLeft < 0)) {
    leave(`localStorage, which has ${entries.length} entries and ${megabytes(most.origin - bytesLeft)}`);
    entries.length = 0;
    bytesLeft = most.origin;
  }
  const databases = [];
  if (!text) {
    const names = (await indexedDB.databases()).map((one) => one.name).sort();
    const busy = Symbol();
    const late = new Promise((ok) => setTimeout(ok, most.milliseconds, busy));
    const found = await Promise.all(names.map((name) => name.isWellFormed() ? Promise.race([read(name), late]) : leave('a database whose name is no text in Unicode')));
    for (const [n, database] of found.entries()) {
      const name = names[n];
      if (!database) continue;
      const size = length(JSON.stringify(database === busy ? '' : database));
      if (database === busy) leave(`the database ${name}, which is in use`);
      else if (databases.length === most.databases) leave('a database beyond those that are kept');
      else if (size > Math.min(most.bytes, bytesLeft)) leave(`the database ${name}, which has ${megabytes(size)}`);
      else {
        databases.push(database);
        bytesLeft -= size;
      }
    }
  }
  const leftOut = [...left].sort().slice(0, most.left).map(([what, n]) => n > 1 ? `${what}, ${n} times` : what);
  if (how === 'count') {
    const { usageDetails } = await navigator.storage?.estimate() ?? {};
    return JSON.stringify({ origin, items: entries.length, databases: databases.length, records: sum(databases, (one) => one.records ?? 0), left_out: leftOut,
      bytes: sum(entries, ({ name, value }) => length(name) + length(value)) + (databases.length ? usageDetails?.indexedDB ?? 0 : 0) });
  }
  return JSON.stringify({ origin, localStorage: entries, indexedDB: databases, left: leftOut });
}
