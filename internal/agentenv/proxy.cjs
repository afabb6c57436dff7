// Makes fetch, http and https of an older Node use the proxy of HTTP_PROXY, HTTPS_PROXY and NO_PROXY. Node does so by
// itself from 22.21 and 24.5 on, when NODE_USE_ENV_PROXY=1; there this file does nothing. It is loaded by every Node, so
// it is written in what Node 12 understands. It has no dependencies, and says nothing unless a request fails.
'use strict';
const http = require('http');
const https = require('https');
const net = require('net');
const tls = require('tls');

const [major, minor] = process.versions.node.split('.').map(Number);
const knows = major > 24 || (major === 24 && minor >= 5) || (major === 22 && minor >= 21);
const dispatcherKey = Symbol.for('undici.globalDispatcher.1');
const tunnelTimeout = 30000; // ms for the proxy to open a tunnel
const answerLimit = 16384; // bytes of what it says about it

const proxies = { 'http:': proxyFrom('http_proxy'), 'https:': proxyFrom('https_proxy') };
const direct = (process.env.no_proxy || process.env.NO_PROXY || '')
  .toLowerCase()
  .split(/[\s,]+/)
  .filter(Boolean);

if (!knows && (proxies['http:'] || proxies['https:'])) {
  try {
    patchAgents();
    patchFetch();
  } catch {
    // Something that only resembles Node goes without the proxy, rather than not at all.
  }
}

// proxyFrom reads a proxy. One that is not spoken to in plain HTTP is left to whoever set it.
function proxyFrom(name) {
  try {
    const url = new URL(process.env[name] || process.env[name.toUpperCase()]);
    if (url.protocol !== 'http:') return undefined;
    const user = decodeURIComponent(url.username) + ':' + decodeURIComponent(url.password);
    return {
      origin: url.origin,
      host: url.hostname.replace(/^\[|\]$/g, ''),
      port: Number(url.port || 80),
      authorization: user === ':' ? undefined : 'Basic ' + Buffer.from(user).toString('base64'),
    };
  } catch {
    return undefined;
  }
}

// proxyFor is the proxy for a host; none for those of NO_PROXY: *, host, .domain, each with or without a port.
function proxyFor(protocol, hostname, port) {
  const host = String(hostname).toLowerCase().replace(/^\[|\]$/g, '').replace(/\.$/, '');
  for (const entry of direct) {
    if (entry === '*') return undefined;
    const parts = /^(\[[^\]]*\]|[^:]*):(\d+)$/.exec(entry);
    const name = (parts ? parts[1] : entry).replace(/^\[|\]$/g, '').replace(/^\*?\./, '');
    if (parts && Number(parts[2]) !== Number(port)) continue;
    if (name && (host === name || host.endsWith('.' + name))) return undefined;
  }
  return proxies[protocol];
}

// authority is host and port as they stand in a URL or a CONNECT.
function authority(host, port) {
  host = String(host).replace(/^\[|\]$/g, '');
  return (net.isIPv6(host) ? `[${host}]` : host) + (port ? `:${port}` : '');
}

// tunnel asks the proxy for a way to a host, and calls back with the socket.
function tunnel(proxy, host, port, callback) {
  const target = authority(host, port);
  const headers = { host: target };
  if (proxy.authorization) headers['proxy-authorization'] = proxy.authorization;
  let done = false;
  const end = (err, socket) => {
    if (done) return;
    done = true;
    if (err && !err.code) err.code = 'ERR_PROXY_TUNNEL';
    callback(err, socket);
  };
  const request = new http.ClientRequest({
    method: 'CONNECT',
    host: proxy.host,
    port: proxy.port,
    path: target,
    headers,
    setHost: false,
    timeout: tunnelTimeout,
    agent: false,
    createConnection: net.createConnection, // by itself, and not through this file again
  });
  request.once('connect', (answer, socket, head) => {
    if (answer.statusCode === 200) {
      socket.setTimeout(0);
      if (head.length) socket.unshift(head);
      end(null, socket);
      return;
    }
    explain(answer, socket, head, (why) => end(refusal(target, answer, why)));
  });
  request.once('response', (answer) => {
    answer.destroy();
    end(refusal(target, answer, ''));
  });
  request.once('timeout', () => request.destroy(new Error(`the proxy did not open a tunnel to ${target} in time`)));
  request.once('error', (err) => end(err));
  request.end();
}

function refusal(target, answer, why) {
  const err = new Error(`the proxy refused a tunnel to ${target}: ${answer.statusCode} ${answer.statusMessage}${why && '\n' + why}`);
  err.statusCode = answer.statusCode;
  return err;
}

// explain reads what a refused CONNECT says: Node hands over the socket with whatever has come of it.
function explain(answer, socket, head, callback) {
  const wanted = Math.min(Number(answer.headers['content-length'] || answerLimit), answerLimit);
  let text = head;
  const end = () => {
    socket.destroy();
    callback(text.subarray(0, wanted).toString('utf8').trim());
  };
  const more = (chunk) => {
    text = Buffer.concat([text, chunk]);
    if (text.length >= wanted) end();
  };
  if (text.length >= wanted) return end();
  socket.setTimeout(2000, end);
  socket.on('data', more).once('end', end).once('error', end);
  socket.resume();
}

// patchAgents changes what all agents of http and https inherit. An agent that makes its connections by
// itself, as those of packages for proxies do, stays as it is.
function patchAgents() {
  const { addRequest, createSocket, createConnection } = http.Agent.prototype;
  http.Agent.prototype.addRequest = function (request, options, ...rest) {
    const own = this.createConnection !== createConnection || this.createSocket !== createSocket || this.addRequest !== http.Agent.prototype.addRequest;
    if (own || this.protocol !== 'http:' || typeof options !== 'object' || options.socketPath || options.lookup || !request.path.startsWith('/')) {
      return addRequest.call(this, request, options, ...rest);
    }
    const proxy = proxyFor('http:', options.host, options.port);
    if (!proxy) return addRequest.call(this, request, options, ...rest);
    const path = 'http://' + authority(options.host, Number(options.port) === 80 ? '' : options.port) + request.path;
    if (request._header) {
      // Written already, because the program gave raw headers or expects 100-continue; then it may be on its way out.
      const before = `${request.method} ${request.path} HTTP/1.1\r\n`;
      const after = `${request.method} ${path} HTTP/1.1\r\n` + (proxy.authorization ? `proxy-authorization: ${proxy.authorization}\r\n` : '');
      const rewrite = (text) => (typeof text === 'string' && text.startsWith(before) ? after + text.slice(before.length) : text);
      request._header = rewrite(request._header);
      if (request.outputData && request.outputData.length) request.outputData[0].data = rewrite(request.outputData[0].data);
    } else if (proxy.authorization) {
      request.setHeader('proxy-authorization', proxy.authorization);
    }
    request.path = path;
    return addRequest.call(this, request, { ...options, host: proxy.host, hostname: proxy.host, port: proxy.port }, ...rest);
  };

  const secure = https.Agent.prototype.createConnection;
  https.Agent.prototype.createConnection = function (options, callback, ...rest) {
    if (typeof options !== 'object' || options === null || typeof callback !== 'function' || options.socketPath || options.socket) {
      return secure.call(this, options, callback, ...rest);
    }
    const proxy = proxyFor('https:', options.host, options.port);
    if (!proxy) return secure.call(this, options, callback, ...rest);
    tunnel(proxy, options.host, options.port, (err, socket) => {
      if (err) return callback(err);
      try {
        callback(null, secure.call(this, { ...options, socket }));
      } catch (thrown) {
        socket.destroy();
        callback(thrown);
      }
    });
    return undefined;
  };
}

// patchFetch puts a dispatcher in front of the one that fetch uses. Reading Headers loads fetch, which then has made its
// own; the class of that one is not exported anywhere, and takes a function that makes connections.
function patchFetch() {
  void globalThis.Headers;
  const base = globalThis[dispatcherKey];
  if (!base || base.constructor.name !== 'Agent') return; // somebody was here before
  const through = new base.constructor({ connect });
  const dispatcher = {
    dispatch(options, handler) {
      const origin = new URL(options.origin);
      const secure = origin.protocol === 'https:';
      const proxy = proxyFor(origin.protocol, origin.hostname, origin.port || (secure ? 443 : 80));
      if (!proxy) return base.dispatch(options, handler);
      if (secure) return through.dispatch(options, handler);
      const headers = entries(options.headers);
      if (!headers.some(([name]) => name.toLowerCase() === 'host')) headers.push(['host', origin.host]);
      if (proxy.authorization) headers.push(['proxy-authorization', proxy.authorization]);
      return through.dispatch({ ...options, origin: proxy.origin, path: origin.origin + options.path, headers: headers.flat() }, handler);
    },
    close: (...args) => Promise.all([base.close(), through.close()]).then(...args),
    destroy: (...args) => Promise.all([base.destroy(), through.destroy()]).then(...args),
  };
  // Whoever looks for a method of the original one, an event emitter among other things, finds it.
  globalThis[dispatcherKey] = Object.setPrototypeOf(dispatcher, base);

  // connect is called for the proxy itself, and for hosts behind it when they are spoken to in TLS.
  function connect({ protocol, hostname, port, servername }, callback) {
    if (protocol !== 'https:') {
      const socket = net.connect({ host: hostname.replace(/^\[|\]$/g, ''), port: Number(port || 80), noDelay: true });
      return settle(socket, 'connect', callback);
    }
    const target = Number(port || 443);
    tunnel(proxyFor(protocol, hostname, target), hostname, target, (err, socket) => {
      if (err) return callback(err);
      const name = servername || hostname.replace(/^\[|\]$/g, '');
      settle(tls.connect({ socket, servername: net.isIP(name) ? '' : name, host: name, ALPNProtocols: ['http/1.1'] }), 'secureConnect', callback);
    });
  }
}

// settle calls back once: with the socket when it is ready, or with what went wrong.
function settle(socket, ready, callback) {
  const fail = (err) => callback(err);
  socket.once('error', fail);
  socket.once(ready, () => {
    socket.removeListener('error', fail);
    callback(null, socket);
  });
}

// entries makes pairs of headers in any of the forms that a dispatcher takes: an object, a flat list, pairs.
function entries(headers) {
  if (!headers) return [];
  if (Array.isArray(headers) && !Array.isArray(headers[0])) {
    const out = [];
    for (let n = 0; n + 1 < headers.length; n += 2) out.push([String(headers[n]), headers[n + 1]]);
    return out;
  }
  const pairs = typeof headers[Symbol.iterator] === 'function' ? [...headers] : Object.entries(headers);
  return pairs.flatMap(([name, value]) => (Array.isArray(value) ? value.map((v) => [name, v]) : [[name, value]]));
}
